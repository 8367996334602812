//! Graphs: what lists of nodes, launches, copies and host functions in them need by hand. Nodes have numbers that the server gives.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpuremote_client::wire::{Decoder, Encoder, Malformed};
use gpuremote_client::HandleKind;

use crate::boxes::Copy3D;
use crate::front;
use crate::host_functions::{self, HostFunction};
use crate::launch::{Arguments, Launch};
use crate::programs::as_function;
use crate::stubs::{cuGraphInstantiateWithFlags, cuGraphUpload, kinds, numbers, remote, STATUSES};

/// CUDA_GRAPH_INSTANTIATE_UPLOAD and CUDA_GRAPH_INSTANTIATE_SUCCESS, _ERROR.
const INSTANTIATE_UPLOAD: u64 = 2;
const INSTANTIATED: i32 = 0;
const NOT_INSTANTIATED: i32 = 1;
/// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED.
const CAPTURE_INVALIDATED: i32 = 901;

/// Where a list of nodes, or of edges, goes.
struct Lists {
    from: *mut u64,
    to: *mut u64,
    edges: *mut u64,
    count: *mut usize,
}

impl Lists {
    /// Lists as the API has them: without a place for nodes, only their number is asked for.
    unsafe fn fill(&self, number: u16, of: (HandleKind, u64)) -> i32 {
        if self.count.is_null() {
            return STATUSES.invalid;
        }
        if !front().is(of.0, of.1) {
            return STATUSES.handle;
        }
        let room = if self.from.is_null() { 0 } else { *self.count };
        front().call(
            number,
            |encoder| {
                encoder.u64(of.1);
                encoder.u8(u8::from(!self.edges.is_null()));
                encoder.usize(room);
            },
            |decoder| {
                *self.count = decoder.usize()?;
                let filled = decoder.u32()? as usize;
                for list in [self.from, self.to, self.edges] {
                    let comes = decoder.u8()? != 0;
                    for i in 0..if comes { filled } else { 0 } {
                        let value = decoder.u64()?;
                        if !list.is_null() && i < room {
                            *list.add(i) = value;
                        }
                    }
                    for i in filled..if comes && !list.is_null() { room } else { 0 } {
                        *list.add(i) = 0;
                    }
                }
                Ok(())
            },
        )
    }
}

macro_rules! lists {
    ($($name:ident of $kind:ident ($($list:ident),*);)*) => {$(
        #[no_mangle]
        pub unsafe extern "C" fn $name(of: u64 $(, $list: *mut u64)*, count: *mut usize) -> i32 {
            let none = std::ptr::null_mut();
            #[allow(clippy::needless_update)]
            let lists = Lists { $($list,)* ..Lists { from: none, to: none, edges: none, count } };
            lists.fill(numbers::$name, (kinds::$kind, of))
        }
    )*};
}

lists! {
    cuGraphGetNodes of CUgraph(from);
    cuGraphGetRootNodes of CUgraph(from);
    cuGraphGetEdges_v2 of CUgraph(from, to, edges);
    cuGraphNodeGetDependencies_v2 of CUgraphNode(from, edges);
    cuGraphNodeGetDependentNodes_v2 of CUgraphNode(from, edges);
}

/// What a node is added to, and after which nodes.
struct Place {
    graph: u64,
    after: *const u64,
    count: usize,
}

impl Place {
    unsafe fn check(&self) -> Result<(), i32> {
        if !front().is(kinds::CUgraph, self.graph) {
            return Err(STATUSES.handle);
        }
        if self.count > 0 && self.after.is_null() {
            return Err(STATUSES.invalid);
        }
        Ok(())
    }

    unsafe fn encode(&self, encoder: &mut Encoder) {
        encoder.u64(self.graph);
        encoder.u32(self.count as u32);
        for i in 0..self.count {
            encoder.u64(*self.after.add(i));
        }
    }

    unsafe fn add(&self, number: u16, node: *mut u64, what: impl FnOnce(&mut Encoder)) -> i32 {
        if node.is_null() {
            return STATUSES.invalid;
        }
        if let Err(status) = self.check() {
            return status;
        }
        front().call(
            number,
            |encoder| {
                self.encode(encoder);
                what(encoder);
            },
            |decoder| {
                *node = decoder.u64()?;
                Ok(())
            },
        )
    }
}

/// CUDA_KERNEL_NODE_PARAMS of the driver API.
#[repr(C)]
pub struct KernelNode {
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    parameters: *const *const u8,
    extra: *const usize,
    kernel: u64,
    context: u64,
}

impl KernelNode {
    /// Calls with the launch of this node written by the function that `call` gets.
    unsafe fn with(node: *const KernelNode, call: impl FnOnce(&mut dyn FnMut(&mut Encoder)) -> i32) -> i32 {
        let Some(node) = node.as_ref() else { return STATUSES.invalid };
        let function = if node.function == 0 { node.kernel } else { node.function };
        let function = match as_function(function) {
            Ok(function) => function,
            Err(status) => return status,
        };
        let KernelNode { grid, block, shared_bytes, parameters, extra, .. } = *node;
        let launch = Launch { function, grid, block, shared_bytes, stream: 0, attributes: &[] };
        let prepared = launch.prepare(Arguments { parameters, extra });
        match prepared {
            Ok(encode) => {
                let mut encode = Some(encode);
                call(&mut |encoder| {
                    if let Some(encode) = encode.take() {
                        encode(encoder);
                    }
                })
            }
            Err(status) => status,
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphAddKernelNode_v2(
    node: *mut u64,
    graph: u64,
    after: *const u64,
    count: usize,
    parameters: *const KernelNode,
) -> i32 {
    KernelNode::with(parameters, |encode| {
        Place { graph, after, count }.add(numbers::cuGraphAddKernelNode_v2, node, |encoder| encode(encoder))
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphKernelNodeSetParams_v2(node: u64, parameters: *const KernelNode) -> i32 {
    KernelNode::with(parameters, |encode| {
        let arguments = |encoder: &mut Encoder| {
            encoder.u64(node);
            encode(encoder);
        };
        front().call(numbers::cuGraphKernelNodeSetParams_v2, arguments, |_| Ok(()))
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphExecKernelNodeSetParams_v2(executable: u64, node: u64, parameters: *const KernelNode) -> i32 {
    KernelNode::with(parameters, |encode| {
        let arguments = |encoder: &mut Encoder| {
            encoder.u64(executable);
            encoder.u64(node);
            encode(encoder);
        };
        front().call(numbers::cuGraphExecKernelNodeSetParams_v2, arguments, |_| Ok(()))
    })
}

/// The copy of a node. Its data moves when the graph is launched, so the server must reach both sides by itself.
unsafe fn copy_of_node(copy: *const Copy3D) -> Result<crate::boxes::Region, i32> {
    let region = copy.as_ref().ok_or(STATUSES.invalid)?.region()?.ok_or(STATUSES.invalid)?;
    if !region.is_reached() {
        return Err(front().refuse("a graph that copies host memory not shared with the server"));
    }
    Ok(region)
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphAddMemcpyNode(
    node: *mut u64,
    graph: u64,
    after: *const u64,
    count: usize,
    copy: *const Copy3D,
    context: u64,
) -> i32 {
    match copy_of_node(copy) {
        Ok(region) => Place { graph, after, count }.add(numbers::cuGraphAddMemcpyNode, node, |encoder| {
            encoder.u64(context);
            region.encode(encoder);
        }),
        Err(status) => status,
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphExecMemcpyNodeSetParams(executable: u64, node: u64, copy: *const Copy3D, context: u64) -> i32 {
    match copy_of_node(copy) {
        Ok(region) => front().call(
            numbers::cuGraphExecMemcpyNodeSetParams,
            |encoder| {
                encoder.u64(executable);
                encoder.u64(node);
                encoder.u64(context);
                region.encode(encoder);
            },
            |_| Ok(()),
        ),
        Err(status) => status,
    }
}

/// CUDA_HOST_NODE_PARAMS of the driver API.
#[repr(C)]
pub struct HostNode {
    function: Option<HostFunction>,
    data: *mut c_void,
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphAddHostNode(node: *mut u64, graph: u64, after: *const u64, count: usize, call: *const HostNode) -> i32 {
    let Some(HostNode { function: Some(function), data }) = call.as_ref() else { return STATUSES.invalid };
    let Ok(number) = host_functions::register(*function, *data) else { return STATUSES.lost };
    Place { graph, after, count }.add(numbers::cuGraphAddHostNode, node, |encoder| encoder.u64(number))
}

/// CUgraphExecUpdateResultInfo of the driver API.
#[repr(C)]
pub struct UpdateResult {
    result: i32,
    node: u64,
    node_of_old: u64,
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphExecUpdate_v2(executable: u64, graph: u64, result: *mut UpdateResult) -> i32 {
    if result.is_null() {
        return STATUSES.invalid;
    }
    // The reply tells of success as such, so that the reasons of a failure come with it.
    let mut updated = STATUSES.ok;
    let status = front().call(
        numbers::cuGraphExecUpdate_v2,
        |encoder| {
            encoder.u64(executable);
            encoder.u64(graph);
        },
        |decoder| {
            updated = decoder.i32()?;
            *result = UpdateResult { result: decoder.i32()?, node: decoder.u64()?, node_of_old: decoder.u64()? };
            Ok(())
        },
    );
    if status == STATUSES.ok {
        updated
    } else {
        status
    }
}

/// CUDA_GRAPH_INSTANTIATE_PARAMS of the driver API.
#[repr(C)]
pub struct Instantiation {
    flags: u64,
    upload_stream: u64,
    node: u64,
    result: i32,
}

#[no_mangle]
pub unsafe extern "C" fn cuGraphInstantiateWithParams(executable: *mut u64, graph: u64, parameters: *mut Instantiation) -> i32 {
    let Some(parameters) = parameters.as_mut() else { return STATUSES.invalid };
    let status = cuGraphInstantiateWithFlags(executable, graph, parameters.flags & !INSTANTIATE_UPLOAD);
    parameters.node = 0;
    parameters.result = if status == STATUSES.ok { INSTANTIATED } else { NOT_INSTANTIATED };
    if status == STATUSES.ok && parameters.flags & INSTANTIATE_UPLOAD != 0 {
        return cuGraphUpload(*executable, parameters.upload_stream);
    }
    status
}

/// What a stream captures.
#[derive(Default)]
struct Capture {
    status: i32,
    id: u64,
    graph: u64,
    after: Vec<u64>,
    edges: Vec<u64>,
}

thread_local! {
    /// The API lends lists until the next call, so the last ones of each thread are kept.
    static CAPTURE: RefCell<Capture> = RefCell::default();
}

impl Capture {
    fn read(decoder: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (status, id, graph) = (decoder.i32()?, decoder.u64()?, decoder.u64()?);
        let count = decoder.u32()?;
        let after = (0..count).map(|_| decoder.u64()).collect::<Result<_, _>>()?;
        let edges = if decoder.u8()? != 0 { (0..count).map(|_| decoder.u64()).collect::<Result<_, _>>()? } else { Vec::new() };
        Ok(Capture { status, id, graph, after, edges })
    }
}

/// How many captures have begun, of which no end is known. Without any, no stream captures.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);

fn begun(status: i32) -> i32 {
    if status == STATUSES.ok {
        CAPTURES.fetch_add(1, Ordering::SeqCst);
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(stream: u64, mode: i32) -> i32 {
    begun(remote::cuStreamBeginCapture_v2(stream, mode))
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamBeginCaptureToGraph(
    stream: u64,
    graph: u64,
    after: *const u64,
    edges: *const u64,
    count: usize,
    mode: i32,
) -> i32 {
    begun(remote::cuStreamBeginCaptureToGraph(stream, graph, after, edges, count, mode))
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamEndCapture(stream: u64, graph: *mut u64) -> i32 {
    let status = remote::cuStreamEndCapture(stream, graph);
    // After other failures the capture goes on, or may go on, so that streams are asked for.
    if status == STATUSES.ok || status == CAPTURE_INVALIDATED {
        CAPTURES.fetch_sub(1, Ordering::SeqCst);
    }
    status
}

/// Frameworks ask this at each allocation.
#[no_mangle]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: u64, capturing: *mut i32) -> i32 {
    if capturing.is_null() {
        return STATUSES.invalid;
    }
    if CAPTURES.load(Ordering::SeqCst) > 0 || !front().is(kinds::CUstream, stream) {
        return remote::cuStreamIsCapturing(stream, capturing);
    }
    *capturing = 0;
    STATUSES.ok
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: u64,
    status: *mut i32,
    id: *mut u64,
    graph: *mut u64,
    after: *mut *const u64,
    edges: *mut *const u64,
    count: *mut usize,
) -> i32 {
    if status.is_null() {
        return STATUSES.invalid;
    }
    if !front().is(kinds::CUstream, stream) {
        return STATUSES.handle;
    }
    if CAPTURES.load(Ordering::SeqCst) == 0 {
        *status = 0;
        return STATUSES.ok;
    }
    let mut capture = Capture::default();
    let asked = front().call(
        numbers::cuStreamGetCaptureInfo_v3,
        |encoder| encoder.u64(stream),
        |decoder| {
            capture = Capture::read(decoder)?;
            Ok(())
        },
    );
    if asked != STATUSES.ok {
        return asked;
    }
    *status = capture.status;
    // The rest is told of captures only.
    if capture.status == 0 {
        return asked;
    }
    CAPTURE.with_borrow_mut(|kept| {
        *kept = capture;
        put(id, kept.id);
        put(graph, kept.graph);
        put(after, kept.after.as_ptr());
        put(edges, if kept.edges.is_empty() { std::ptr::null() } else { kept.edges.as_ptr() });
        put(count, kept.after.len());
    });
    asked
}

unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        *place = value;
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: u64,
    status: *mut i32,
    id: *mut u64,
    graph: *mut u64,
    after: *mut *const u64,
    count: *mut usize,
) -> i32 {
    cuStreamGetCaptureInfo_v3(stream, status, id, graph, after, std::ptr::null_mut(), count)
}
