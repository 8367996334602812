//! Graphs by nodes and by capture.

use super::copy::{box_step, fill_step};
use super::launch::{self, Shape};
use super::stream::{find, UserData};
use super::{driver_api, require, store, Outcome};
use crate::abi::*;
use crate::driver::{Current, Driver, Initialized};
use crate::graph::{node_kind, Capture, Executable, Graph, Node, Step};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null;
use std::sync::Arc;

/// `CUDA_KERNEL_NODE_PARAMS`.
#[repr(C)]
#[allow(missing_docs)]
pub struct CUDA_KERNEL_NODE_PARAMS {
    pub func: CUfunction,
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub sharedMemBytes: c_uint,
    pub kernelParams: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    pub kern: usize,
    pub ctx: CUcontext,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct CUDA_MEMSET_NODE_PARAMS {
    pub dst: CUdeviceptr,
    pub pitch: usize,
    pub value: c_uint,
    pub elementSize: c_uint,
    pub width: usize,
    pub height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[allow(missing_docs)]
pub struct CUDA_HOST_NODE_PARAMS {
    pub function: CUhostFn,
    pub userData: *mut c_void,
}

fn graph(driver: &Driver, handle: usize) -> Result<Arc<Graph>, CUresult> {
    driver.graphs.get(handle).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn executable(driver: &Driver, handle: usize) -> Result<Arc<Executable>, CUresult> {
    driver.executables.get(handle).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn node(driver: &Driver, handle: usize) -> Result<Node, CUresult> {
    driver.graphs.all().iter().find_map(|graph| graph.node(handle)).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Where a node goes.
struct Place {
    node: *mut usize,
    graph: usize,
    after: *const usize,
    count: usize,
}

impl Place {
    unsafe fn add(&self, driver: &Driver, kind: i32, step: Step) -> Outcome {
        require(self.node)?;
        let after = if self.count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.after, self.count) } };
        let handle = driver.nodes.reserve();
        graph(driver, self.graph)?.add(Node { handle, kind, step, after: after.to_vec() })?;
        unsafe { store(self.node, handle) }
    }
}

unsafe fn kernel_step(current: &Current, parameters: *const CUDA_KERNEL_NODE_PARAMS) -> Result<Step, CUresult> {
    require(parameters)?;
    let p = unsafe { &*parameters };
    let shape = Shape { grid: p.grid, block: p.block, shared_bytes: p.sharedMemBytes };
    unsafe { launch::step(current, if p.func == 0 { p.kern } else { p.func }, &shape, p.kernelParams, p.extra) }
}

unsafe fn fill_list(place: *mut usize, count: *mut usize, found: &[usize]) -> Outcome {
    require(count)?;
    if !place.is_null() {
        let room = unsafe { *count };
        for index in 0..room {
            unsafe { place.add(index).write(found.get(index).copied().unwrap_or(0)) };
        }
        return unsafe { store(count, found.len().min(room)) };
    }
    unsafe { store(count, found.len()) }
}

driver_api! { ENTRIES;
    /// Creates a graph.
    fn cuGraphCreate(phGraph: *mut usize, flags: c_uint) with Initialized(driver) => Initialized, {
        require(phGraph)?;
        unsafe { store(phGraph, driver.graphs.add(Graph::default())) }
    }

    /// Ends a graph.
    fn cuGraphDestroy(hGraph: usize) with Initialized(driver) => Initialized, {
        driver.graphs.remove(hGraph).map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Stores the nodes of a graph.
    fn cuGraphGetNodes(hGraph: usize, nodes: *mut usize, numNodes: *mut usize) with Initialized(driver) => Initialized, {
        let graph = graph(driver, hGraph)?;
        let found: Vec<usize> = graph.nodes.lock().map_err(|_| CUDA_ERROR_UNKNOWN)?.iter().map(|node| node.handle).collect();
        unsafe { fill_list(nodes, numNodes, &found) }
    }

    /// Stores the nodes that come after none.
    fn cuGraphGetRootNodes(hGraph: usize, rootNodes: *mut usize, numRootNodes: *mut usize) with Initialized(driver) => Initialized, {
        let graph = graph(driver, hGraph)?;
        let nodes = graph.nodes.lock().map_err(|_| CUDA_ERROR_UNKNOWN)?;
        let found: Vec<usize> = nodes.iter().filter(|node| node.after.is_empty()).map(|node| node.handle).collect();
        unsafe { fill_list(rootNodes, numRootNodes, &found) }
    }

    /// Stores the nodes that a node comes after.
    fn cuGraphNodeGetDependencies_v2(hNode: usize, dependencies: *mut usize, edgeData: *mut u64, numDependencies: *mut usize)
        with Initialized(driver) => Initialized,
    {
        let found = node(driver, hNode)?.after;
        if !edgeData.is_null() && !dependencies.is_null() {
            let room = unsafe { *numDependencies };
            unsafe { std::slice::from_raw_parts_mut(edgeData, room) }.fill(0);
        }
        unsafe { fill_list(dependencies, numDependencies, &found) }
    }

    /// Stores the kind of a node.
    fn cuGraphNodeGetType(hNode: usize, nodeType: *mut c_int) with Initialized(driver) => Initialized, {
        unsafe { store(nodeType, node(driver, hNode)?.kind) }
    }

    /// Adds a node without work.
    fn cuGraphAddEmptyNode(phGraphNode: *mut usize, hGraph: usize, dependencies: *const usize, numDependencies: usize)
        with Initialized(driver) => Initialized,
    {
        let place = Place { node: phGraphNode, graph: hGraph, after: dependencies, count: numDependencies };
        unsafe { place.add(driver, node_kind::EMPTY, Arc::new(|| Ok(()))) }
    }

    /// Adds a launch.
    fn cuGraphAddKernelNode_v2(
        phGraphNode: *mut usize, hGraph: usize, dependencies: *const usize, numDependencies: usize,
        nodeParams: *const CUDA_KERNEL_NODE_PARAMS,
    ) with current => Current, {
        let step = unsafe { kernel_step(&current, nodeParams) }?;
        let place = Place { node: phGraphNode, graph: hGraph, after: dependencies, count: numDependencies };
        unsafe { place.add(current.driver, node_kind::KERNEL, step) }
    }

    /// Adds a copy.
    fn cuGraphAddMemcpyNode(
        phGraphNode: *mut usize, hGraph: usize, dependencies: *const usize, numDependencies: usize,
        copyParams: *const CUDA_MEMCPY3D, ctx: CUcontext,
    ) with current => Current, {
        let step = unsafe { box_step(&current, copyParams) }?;
        let place = Place { node: phGraphNode, graph: hGraph, after: dependencies, count: numDependencies };
        unsafe { place.add(current.driver, node_kind::MEMCPY, step) }
    }

    /// Adds a fill.
    fn cuGraphAddMemsetNode(
        phGraphNode: *mut usize, hGraph: usize, dependencies: *const usize, numDependencies: usize,
        memsetParams: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext,
    ) with current => Current, {
        require(memsetParams)?;
        let step = fill_step(&current, &unsafe { *memsetParams })?;
        let place = Place { node: phGraphNode, graph: hGraph, after: dependencies, count: numDependencies };
        unsafe { place.add(current.driver, node_kind::MEMSET, step) }
    }

    /// Adds a function of the client.
    fn cuGraphAddHostNode(
        phGraphNode: *mut usize, hGraph: usize, dependencies: *const usize, numDependencies: usize,
        nodeParams: *const CUDA_HOST_NODE_PARAMS,
    ) with Initialized(driver) => Initialized, {
        require(nodeParams)?;
        let CUDA_HOST_NODE_PARAMS { function, userData } = unsafe { &*nodeParams };
        let (function, data) = (function.ok_or(CUDA_ERROR_INVALID_VALUE)?, UserData(*userData));
        let place = Place { node: phGraphNode, graph: hGraph, after: dependencies, count: numDependencies };
        let step: Step = Arc::new(move || {
            unsafe { function(data.pointer()) };
            Ok(())
        });
        unsafe { place.add(driver, node_kind::HOST, step) }
    }

    /// Makes a graph executable.
    fn cuGraphInstantiateWithFlags(phGraphExec: *mut usize, hGraph: usize, flags: u64) with Initialized(driver) => Initialized, {
        require(phGraphExec)?;
        let executable = graph(driver, hGraph)?.instantiate();
        unsafe { store(phGraphExec, driver.executables.add(executable)) }
    }

    /// Ends an executable graph.
    fn cuGraphExecDestroy(hGraphExec: usize) with Initialized(driver) => Initialized, {
        driver.executables.remove(hGraphExec).map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Replaces a launch of an executable graph.
    fn cuGraphExecKernelNodeSetParams_v2(hGraphExec: usize, hNode: usize, nodeParams: *const CUDA_KERNEL_NODE_PARAMS)
        with current => Current,
    {
        let step = unsafe { kernel_step(&current, nodeParams) }?;
        executable(current.driver, hGraphExec)?.set(hNode, step)
    }

    /// Launches an executable graph.
    fn cuGraphLaunch(hGraphExec: usize, hStream: CUstream) with current => Current, {
        let stream = find(&current, hStream)?;
        let work = executable(current.driver, hGraphExec)?.work();
        current.context.submit(&stream, Box::new(move || work()));
        Ok(())
    }

    /// Begins to capture what a stream is given.
    fn cuStreamBeginCapture_v2(hStream: CUstream, mode: c_uint) with current => Current, {
        let stream = find(&current, hStream)?;
        if matches!(hStream, stream_handle::DEFAULT | stream_handle::LEGACY) {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut capture = stream.capture();
        if capture.is_some() || mode > 2 {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        let graph = Arc::new(Graph::default());
        let handle = current.driver.graphs.reserve();
        current.driver.graphs.insert(handle, graph.clone());
        *capture = Some(Capture { id: handle as u64, handle, graph, last: Vec::new() });
        Ok(())
    }

    /// Ends a capture.
    fn cuStreamEndCapture(hStream: CUstream, phGraph: *mut usize) with current => Current, {
        let capture = find(&current, hStream)?.capture().take().ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        unsafe { store(phGraph, capture.handle) }
    }

    /// Stores whether a stream is captured.
    fn cuStreamIsCapturing(hStream: CUstream, captureStatus: *mut c_uint) with current => Current, {
        let captures = find(&current, hStream)?.capture().is_some();
        unsafe { store(captureStatus, captures.into()) }
    }

    /// Stores what is known of a capture. The list is valid until the next call for the stream.
    fn cuStreamGetCaptureInfo_v3(
        hStream: CUstream, captureStatus_out: *mut c_uint, id_out: *mut u64, graph_out: *mut usize,
        dependencies_out: *mut *const usize, edgeData_out: *mut *const u64, numDependencies_out: *mut usize,
    ) with current => Current, {
        let stream = find(&current, hStream)?;
        let capture = stream.capture();
        unsafe { store(captureStatus_out, capture.is_some().into()) }?;
        let Some(capture) = capture.as_ref() else { return Ok(()) };
        for place in [id_out, graph_out.cast()] {
            if !place.is_null() {
                unsafe { place.write(capture.id) };
            }
        }
        if !dependencies_out.is_null() {
            unsafe { dependencies_out.write(capture.last.as_ptr()) };
        }
        if !edgeData_out.is_null() {
            unsafe { edgeData_out.write(null()) };
        }
        if !numDependencies_out.is_null() {
            unsafe { numDependencies_out.write(capture.last.len()) };
        }
        Ok(())
    }

    /// Exchanges the mode of captures of a thread, which has no effect.
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) with _ => Initialized, {
        require(mode)?;
        unsafe { store(mode, 0) }
    }
}
