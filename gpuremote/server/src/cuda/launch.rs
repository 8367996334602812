//! Launches of GPU programs, in streams and as nodes of graphs.

use std::ffi::c_void;
use std::io;

use gpuremote_wire::{Decoder, Encoder, Malformed};

use super::{calls, Server, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::worker::{Link, Outcome};

/// CU_LAUNCH_PARAM_END, _BUFFER_POINTER and _BUFFER_SIZE: how `extra` of cuLaunchKernel passes parameters as one buffer.
const PARAMETERS_END: usize = 0;
const PARAMETERS_AT: usize = 1;
const PARAMETERS_BYTES: usize = 2;

/// CUlaunchAttributeID: values that begin with an event, one with a place for a handle that GPU programs use, and the last that is known to be data.
const PROGRAMMATIC_EVENT: u32 = 7;
const COMPLETION_EVENT: u32 = 12;
const DEVICE_UPDATABLE_NODE: u32 = 13;
const LAST_ATTRIBUTE: u32 = 16;

/// CUlaunchAttribute of the driver API.
#[repr(C)]
struct Attribute {
    id: u32,
    padding: u32,
    value: [u8; 64],
}

/// CUlaunchConfig of the driver API.
#[repr(C)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: *mut c_void,
    attributes: *const Attribute,
    attribute_count: u32,
}

/// CUDA_KERNEL_NODE_PARAMS of the driver API.
#[repr(C)]
struct KernelNode {
    function: *mut c_void,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    parameters: *const c_void,
    extra: *const usize,
    kernel: *mut c_void,
    context: *mut c_void,
}

/// A launch as the client asks for it.
struct Launch {
    function: *mut c_void,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: *mut c_void,
    attributes: Vec<Attribute>,
}

impl Launch {
    fn config(&self) -> Config {
        Config {
            grid: self.grid,
            block: self.block,
            shared_bytes: self.shared_bytes,
            stream: self.stream,
            attributes: self.attributes.as_ptr(),
            attribute_count: self.attributes.len() as u32,
        }
    }
}

/// A buffer of parameters, and its length, in the form that the driver takes.
fn extra(parameters: &[u8], length: &usize) -> [usize; 5] {
    [PARAMETERS_AT, parameters.as_ptr() as usize, PARAMETERS_BYTES, &raw const *length as usize, PARAMETERS_END]
}

impl Server {
    fn attribute(&self, decoder: &mut Decoder<'_>) -> Result<Result<Attribute, i32>, Malformed> {
        let id = decoder.u32()?;
        let mut value: [u8; 64] = decoder.take(64)?.try_into().expect("as many bytes as were taken");
        if id > LAST_ATTRIBUTE || (id == DEVICE_UPDATABLE_NODE && value[..4] != [0; 4]) {
            return Ok(Err(NOT_SUPPORTED));
        }
        if id == PROGRAMMATIC_EVENT || id == COMPLETION_EVENT {
            let number = u64::from_le_bytes(value[..8].try_into().expect("8 bytes"));
            let Some(event) = self.handles.get(calls::kinds::CUevent, number) else { return Ok(Err(INVALID_HANDLE)) };
            value[..8].copy_from_slice(&(event as u64).to_ne_bytes());
        }
        Ok(Ok(Attribute { id, padding: 0, value }))
    }

    /// A launch, or what is wrong with it. All of it is taken from the decoder.
    fn launch(&self, decoder: &mut Decoder<'_>) -> Result<Result<Launch, i32>, Malformed> {
        let function = decoder.u64()?;
        let mut sizes = [0; 7];
        for size in &mut sizes {
            *size = decoder.u32()?;
        }
        let stream = decoder.u64()?;
        let (mut attributes, mut wrong) = (Vec::new(), None);
        for _ in 0..decoder.u8()? {
            match self.attribute(decoder)? {
                Ok(attribute) => attributes.push(attribute),
                Err(status) => wrong = Some(status),
            }
        }
        let function = self.handles.get(calls::kinds::CUfunction, function).or_else(|| self.handles.get(calls::kinds::CUkernel, function));
        let (Some(function), Some(stream)) = (function, self.handles.get(calls::kinds::CUstream, stream)) else {
            return Ok(Err(INVALID_HANDLE));
        };
        let [gx, gy, gz, bx, by, bz, shared_bytes] = sizes;
        let launch = Launch { function, grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, stream, attributes };
        Ok(wrong.map_or(Ok(launch), Err))
    }

    pub unsafe fn cu_launch_kernel(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let launch = self.launch(decoder)?;
        let parameters = decoder.bytes_counted()?;
        decoder.finish()?;
        let launch = match launch {
            Ok(launch) => launch,
            Err(status) => return Ok(Outcome::Status(status)),
        };
        let length = parameters.len();
        let extra = extra(parameters, &length);
        if launch.attributes.is_empty() {
            let Some(run) = self.functions.cuLaunchKernel else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
            let Launch { function, grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, stream, .. } = launch;
            return Ok(Outcome::Status(run(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared_bytes,
                stream,
                std::ptr::null(),
                extra.as_ptr().cast(),
            )));
        }
        let Some(run) = self.functions.cuLaunchKernelEx else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let config = launch.config();
        Ok(Outcome::Status(run((&raw const config).cast(), launch.function, std::ptr::null(), extra.as_ptr().cast())))
    }

    unsafe fn ask_of_clusters(
        &self,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
        run: Option<unsafe extern "C" fn(*mut i32, *mut c_void, *const u8) -> i32>,
    ) -> io::Result<Outcome> {
        let launch = self.launch(decoder)?;
        decoder.finish()?;
        let launch = match launch {
            Ok(launch) => launch,
            Err(status) => return Ok(Outcome::Status(status)),
        };
        let Some(run) = run else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let config = launch.config();
        let mut answer = 0;
        let status = run(&mut answer, launch.function, (&raw const config).cast());
        values.i32(answer);
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cu_occupancy_max_active_clusters(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        self.ask_of_clusters(decoder, values, self.functions.cuOccupancyMaxActiveClusters)
    }

    pub unsafe fn cu_occupancy_max_potential_cluster_size(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        self.ask_of_clusters(decoder, values, self.functions.cuOccupancyMaxPotentialClusterSize)
    }

    /// Runs with the launch of a node, which the rest of the message describes.
    unsafe fn with_node(&self, decoder: &mut Decoder<'_>, run: impl FnOnce(*const u8) -> io::Result<Outcome>) -> io::Result<Outcome> {
        let launch = self.launch(decoder)?;
        let parameters = decoder.bytes_counted()?;
        decoder.finish()?;
        let launch = match launch {
            Ok(launch) if launch.attributes.is_empty() => launch,
            Ok(_) => return Ok(Outcome::Status(INVALID_VALUE)),
            Err(status) => return Ok(Outcome::Status(status)),
        };
        let length = parameters.len();
        let extra = extra(parameters, &length);
        let none = std::ptr::null_mut();
        let Launch { function, grid, block, shared_bytes, .. } = launch;
        let node = KernelNode { function, grid, block, shared_bytes, parameters: none, extra: extra.as_ptr(), kernel: none, context: none };
        run((&raw const node).cast())
    }

    pub unsafe fn cu_graph_add_kernel_node_v2(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let place = self.place(decoder)?;
        let Some(place) = place else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(add) = self.functions.cuGraphAddKernelNode_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        self.with_node(decoder, |launch| place.add(self, values, |node, graph, after, count| add(node, graph, after, count, launch)))
    }

    pub unsafe fn cu_graph_kernel_node_set_params_v2(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        _: &mut Encoder,
    ) -> io::Result<Outcome> {
        let Some(node) = self.handles.get(calls::kinds::CUgraphNode, decoder.u64()?) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(set) = self.functions.cuGraphKernelNodeSetParams_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        self.with_node(decoder, |launch| Ok(Outcome::Status(set(node, launch))))
    }

    pub unsafe fn cu_graph_exec_kernel_node_set_params_v2(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        _: &mut Encoder,
    ) -> io::Result<Outcome> {
        let executable = self.handles.get(calls::kinds::CUgraphExec, decoder.u64()?);
        let node = self.handles.get(calls::kinds::CUgraphNode, decoder.u64()?);
        let (Some(executable), Some(node)) = (executable, node) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(set) = self.functions.cuGraphExecKernelNodeSetParams_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        self.with_node(decoder, |launch| Ok(Outcome::Status(set(executable, node, launch))))
    }
}
