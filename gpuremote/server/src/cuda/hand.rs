//! Calls whose arguments a description can't tell.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void, CStr};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex};

use gpuremote_wire::{Decoder, Encoder, Malformed};

use super::{calls, text, Server, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::worker::{Link, Outcome};

/// CU_LAUNCH_PARAM_END, _BUFFER_POINTER and _BUFFER_SIZE: how `extra` of cuLaunchKernel passes parameters as one buffer.
const PARAMETERS_END: usize = 0;
const PARAMETERS_AT: usize = 1;
const PARAMETERS_BYTES: usize = 2;
/// The largest image of GPU programs, in bytes.
const IMAGE_BYTES: usize = 1 << 30;
/// The most parameters of a GPU program.
const MOST_PARAMETERS: usize = 4096;

/// Functions of the client that its streams call, and that it runs itself.
#[derive(Default)]
pub struct HostFunctions {
    state: Mutex<HostFunctionsState>,
    changed: Condvar,
}

#[derive(Default)]
struct HostFunctionsState {
    reached: VecDeque<u64>,
    done: u64,
    begun: u64,
}

/// What a stream calls: it waits until the client has run its function.
struct Reached {
    shared: *const HostFunctions,
    number: u64,
}

unsafe extern "C" fn reached(data: *mut c_void) {
    let reached = Box::from_raw(data.cast::<Reached>());
    let functions = &*reached.shared;
    let mut state = functions.state.lock().expect("no one panics with this lock");
    state.reached.push_back(reached.number);
    state.begun += 1;
    let place = state.begun;
    functions.changed.notify_all();
    while state.done < place {
        state = functions.changed.wait(state).expect("no one panics with this lock");
    }
}

impl Server {
    fn function(&self, number: u64) -> Option<*mut c_void> {
        self.handles.get(calls::kinds::CUfunction, number).or_else(|| self.handles.get(calls::kinds::CUkernel, number))
    }

    unsafe fn image(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>) -> io::Result<(u64, Vec<u8>)> {
        let (number, length) = (decoder.u64()?, decoder.usize()?);
        decoder.finish()?;
        if length > IMAGE_BYTES {
            return Err(Malformed("an image of GPU programs is too long").into());
        }
        // PTX ends with a zero byte.
        let mut image = vec![0; length + 1];
        link.lane.read(&mut image[..length])?;
        Ok((number, image))
    }

    pub unsafe fn cu_module_load_data(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (number, image) = self.image(link, decoder)?;
        let Some(run) = self.functions.cuModuleLoadData else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut module = std::ptr::null_mut();
        let status = run(&mut module, image.as_ptr());
        if status == 0 {
            self.handles.put(calls::kinds::CUmodule, number, module)?;
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cu_library_load_data(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (number, image) = self.image(link, decoder)?;
        let Some(run) = self.functions.cuLibraryLoadData else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut library = std::ptr::null_mut();
        let none = std::ptr::null();
        let status = run(&mut library, image.as_ptr(), none, none, 0, none, none, 0);
        if status == 0 {
            self.handles.put(calls::kinds::CUlibrary, number, library)?;
        }
        Ok(Outcome::Status(status))
    }

    /// Where a program's parameters lie: a number, then offset and length of each, in bytes.
    fn parameters(values: &mut Encoder, mut info: impl FnMut(usize, &mut usize, &mut usize) -> i32) {
        let mut places = Vec::new();
        let (mut offset, mut bytes) = (0, 0);
        while places.len() < MOST_PARAMETERS && info(places.len(), &mut offset, &mut bytes) == 0 {
            places.push((offset as u32, bytes as u32));
        }
        values.u32(places.len() as u32);
        for (offset, bytes) in places {
            values.u32(offset);
            values.u32(bytes);
        }
    }

    pub unsafe fn cu_module_get_function(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let (number, module, name) = (decoder.u64()?, decoder.u64()?, text(decoder)?);
        decoder.finish()?;
        let Some(module) = self.handles.get(calls::kinds::CUmodule, module) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let (Some(run), Some(info)) = (self.functions.cuModuleGetFunction, self.functions.cuFuncGetParamInfo) else {
            return Ok(Outcome::Status(NOT_SUPPORTED));
        };
        let mut function = std::ptr::null_mut();
        let status = run(&mut function, module, name.as_ptr());
        if status == 0 {
            self.handles.put(calls::kinds::CUfunction, number, function)?;
            Self::parameters(values, |i, offset, bytes| info(function, i, offset, bytes));
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cu_library_get_kernel(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let (number, library, name) = (decoder.u64()?, decoder.u64()?, text(decoder)?);
        decoder.finish()?;
        let Some(library) = self.handles.get(calls::kinds::CUlibrary, library) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let (Some(run), Some(info)) = (self.functions.cuLibraryGetKernel, self.functions.cuKernelGetParamInfo) else {
            return Ok(Outcome::Status(NOT_SUPPORTED));
        };
        let mut kernel = std::ptr::null_mut();
        let status = run(&mut kernel, library, name.as_ptr());
        if status == 0 {
            self.handles.put(calls::kinds::CUkernel, number, kernel)?;
            Self::parameters(values, |i, offset, bytes| info(kernel, i, offset, bytes));
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cu_launch_kernel(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let function = decoder.u64()?;
        let mut sizes = [0; 7];
        for size in &mut sizes {
            *size = decoder.u32()?;
        }
        let stream = decoder.u64()?;
        let cooperative = decoder.u8()? != 0;
        let parameters = decoder.bytes_counted()?;
        decoder.finish()?;
        let (Some(function), Some(stream)) = (self.function(function), self.handles.get(calls::kinds::CUstream, stream)) else {
            return Ok(Outcome::Status(INVALID_HANDLE));
        };
        let length = parameters.len();
        let extra = [PARAMETERS_AT, parameters.as_ptr() as usize, PARAMETERS_BYTES, &raw const length as usize, PARAMETERS_END];
        let [gx, gy, gz, bx, by, bz, shared] = sizes;
        if cooperative {
            return self.launch_cooperative(function, sizes, stream, parameters);
        }
        let Some(run) = self.functions.cuLaunchKernel else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        Ok(Outcome::Status(run(function, gx, gy, gz, bx, by, bz, shared, stream, std::ptr::null(), extra.as_ptr().cast())))
    }

    /// Cooperative launches take no buffer of parameters, so the places of each are asked for again.
    unsafe fn launch_cooperative(
        &self,
        function: *mut c_void,
        sizes: [u32; 7],
        stream: *mut c_void,
        parameters: &[u8],
    ) -> io::Result<Outcome> {
        let (Some(run), Some(info)) = (self.functions.cuLaunchCooperativeKernel, self.functions.cuFuncGetParamInfo) else {
            return Ok(Outcome::Status(NOT_SUPPORTED));
        };
        let mut pointers = Vec::new();
        let (mut offset, mut bytes) = (0, 0);
        while pointers.len() < MOST_PARAMETERS && info(function, pointers.len(), &mut offset, &mut bytes) == 0 {
            if offset.checked_add(bytes).is_none_or(|end| end > parameters.len()) {
                return Ok(Outcome::Status(INVALID_VALUE));
            }
            pointers.push(parameters.as_ptr().add(offset) as u64);
        }
        let [gx, gy, gz, bx, by, bz, shared] = sizes;
        Ok(Outcome::Status(run(function, gx, gy, gz, bx, by, bz, shared, stream, pointers.as_ptr())))
    }

    pub unsafe fn cu_launch_cooperative_kernel(
        &mut self,
        link: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        self.cu_launch_kernel(link, decoder, values)
    }

    pub unsafe fn cu_ctx_pop_current_v2(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        decoder.finish()?;
        let Some(run) = self.functions.cuCtxPopCurrent_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut popped = 0;
        Ok(Outcome::Status(run(&mut popped)))
    }

    /// A place in the client's host memory that this process shares, as an address here.
    pub fn host_address(link: &Link<'_>, offset: usize, bytes: usize) -> io::Result<*mut u8> {
        let memory = link.host_memory().ok_or(Malformed("this client shares no host memory"))?;
        if offset.checked_add(bytes).is_none_or(|end| end > memory.mapping.length()) {
            return Err(Malformed("a place is outside the client's host memory").into());
        }
        // SAFETY: the offset is within the mapping.
        Ok(unsafe { memory.mapping.start().add(offset) })
    }

    pub unsafe fn cu_mem_host_alloc(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (offset, bytes, flags) = (decoder.usize()?, decoder.usize()?, decoder.u32()?);
        decoder.finish()?;
        let start = Self::host_address(link, offset, bytes)?;
        let Some(run) = self.functions.cuMemHostRegister_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        Ok(Outcome::Status(run(start, bytes, flags)))
    }

    pub unsafe fn cu_mem_free_host(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (offset, bytes) = (decoder.usize()?, decoder.usize()?);
        decoder.finish()?;
        let start = Self::host_address(link, offset, bytes)?;
        let Some(run) = self.functions.cuMemHostUnregister else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let status = run(start);
        if let Some(memory) = link.host_memory() {
            gpuremote_transport::free_in_arena(&memory.file, offset, bytes)?;
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cu_mem_host_get_device_pointer_v2(
        &mut self,
        link: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let offset = decoder.usize()?;
        decoder.finish()?;
        let start = Self::host_address(link, offset, 1)?;
        let Some(run) = self.functions.cuMemHostGetDevicePointer_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut address = 0;
        let status = run(&mut address, start, 0);
        values.u64(address);
        Ok(Outcome::Status(status))
    }

    /// Between two places on the GPU. A client's own rows travel by the copies above.
    pub unsafe fn cu_memcpy2_dasync_v2(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let stream = decoder.u64()?;
        let mut fields = [0u64; 6];
        for field in &mut fields {
            *field = decoder.u64()?;
        }
        decoder.finish()?;
        let Some(stream) = self.handles.get(calls::kinds::CUstream, stream) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuMemcpy2DAsync_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let [from, from_pitch, to, to_pitch, width, height] = fields;
        /// CUDA_MEMCPY2D of the driver API; type 2 is device memory.
        const DEVICE: u64 = 2;
        let copy: [u64; 16] = [0, 0, DEVICE, 0, from, 0, from_pitch, 0, 0, DEVICE, 0, to, 0, to_pitch, width, height];
        Ok(Outcome::Status(run(copy.as_ptr().cast(), stream)))
    }

    unsafe fn error_text(
        &mut self,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
        run: Option<unsafe extern "C" fn(i32, *mut u64) -> i32>,
    ) -> io::Result<Outcome> {
        let status = decoder.i32()?;
        decoder.finish()?;
        let Some(run) = run else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut text = 0;
        let result = run(status, &mut text);
        if result == 0 && text != 0 {
            values.bytes_counted(CStr::from_ptr(text as *const c_char).to_bytes());
        }
        Ok(Outcome::Status(if text == 0 { INVALID_VALUE } else { result }))
    }

    pub unsafe fn cu_get_error_name(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        self.error_text(decoder, values, self.functions.cuGetErrorName)
    }

    pub unsafe fn cu_get_error_string(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        self.error_text(decoder, values, self.functions.cuGetErrorString)
    }

    pub unsafe fn cu_launch_host_func(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (stream, number) = (decoder.u64()?, decoder.u64()?);
        decoder.finish()?;
        let Some(stream) = self.handles.get(calls::kinds::CUstream, stream) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuLaunchHostFunc else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let data = Box::into_raw(Box::new(Reached { shared: &self.shared.host_functions, number }));
        let callback: unsafe extern "C" fn(*mut c_void) = reached;
        let status = run(stream, callback as *const u8, data.cast());
        if status != 0 {
            drop(Box::from_raw(data));
        }
        Ok(Outcome::Status(status))
    }

    /// Waits until a stream reaches a function of the client.
    pub unsafe fn nearmetal_next_host_function(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        decoder.finish()?;
        let functions = &self.shared.host_functions;
        let mut state = functions.state.lock().expect("no one panics with this lock");
        let number = loop {
            match state.reached.pop_front() {
                Some(number) => break number,
                None => state = functions.changed.wait(state).expect("no one panics with this lock"),
            }
        };
        values.u64(number);
        Ok(Outcome::Status(0))
    }

    /// The client has run the function that was reached first of those not done.
    pub unsafe fn nearmetal_host_function_done(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        _: &mut Encoder,
    ) -> io::Result<Outcome> {
        decoder.finish()?;
        let functions = &self.shared.host_functions;
        functions.state.lock().expect("no one panics with this lock").done += 1;
        functions.changed.notify_all();
        Ok(Outcome::Status(0))
    }

    pub unsafe fn cu_thread_exchange_stream_capture_mode(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let mut mode = decoder.i32()?;
        decoder.finish()?;
        // A driver without this function captures nothing, so no mode forbids anything.
        let status = self.functions.cuThreadExchangeStreamCaptureMode.map_or(0, |run| run(&raw mut mode));
        values.i32(mode);
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cu_stream_begin_capture_v2(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        _: &mut Encoder,
    ) -> io::Result<Outcome> {
        let (stream, mode) = (decoder.u64()?, decoder.i32()?);
        decoder.finish()?;
        let Some(stream) = self.handles.get(calls::kinds::CUstream, stream) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuStreamBeginCapture_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let status = run(stream, mode);
        if status == 0 {
            self.shared.captures.store(true, Ordering::SeqCst);
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cu_stream_end_capture(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (stream, number) = (decoder.u64()?, decoder.u64()?);
        decoder.finish()?;
        let Some(stream) = self.handles.get(calls::kinds::CUstream, stream) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuStreamEndCapture else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut graph = std::ptr::null_mut();
        let status = run(stream, &mut graph);
        if status == 0 {
            self.handles.put(calls::kinds::CUgraph, number, graph)?;
        }
        Ok(Outcome::Status(status))
    }
}
