//! Graphs, and streams whose work is captured into one.

use super::copy::sides_of;
use super::copy3d::box_of;
use super::forwarded::forwarded;
use super::{require, runtime_api};
use crate::abi::*;
use crate::context;
use crate::error::Outcome;
use crate::registry;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

/// The parameters of a kernel's node for the driver.
unsafe fn kernel_node(parameters: *const KernelNode) -> Outcome<DriverKernelNode> {
    require(parameters)?;
    let KernelNode { function, grid, block, shared_bytes, parameters, extra } = unsafe { *parameters };
    let (_, kernel) = registry::kernel(function)?;
    let (kernel, none) = (kernel.handle(), ptr::null_mut());
    Ok(DriverKernelNode { function: kernel, grid, block, shared_bytes, parameters, extra, kernel: none, context: none })
}

/// The copy of `count` bytes as a box.
fn flat_copy(target: *mut c_void, source: *const c_void, count: usize, kind: c_int) -> Outcome<Copy3d> {
    let (source_kind, target_kind) = sides_of(kind)?;
    let side = |pointer: *mut c_void, kind| Copy3dSide {
        x_bytes: 0,
        y: 0,
        z: 0,
        level: 0,
        kind,
        host: pointer,
        device: pointer.expose_provenance() as Address,
        array: ptr::null_mut(),
        reserved: ptr::null_mut(),
        pitch_bytes: count,
        height: 1,
    };
    let (source, target) = (side(source.cast_mut(), source_kind), side(target, target_kind));
    Ok(Copy3d { source, target, width_bytes: count, height: 1, depth: 1 })
}

runtime_api! {
    /// Adds a launch to a graph.
    fn cudaGraphAddKernelNode(
        pGraphNode: *mut Handle, graph: Handle, pDependencies: *const Handle, numDependencies: usize,
        pNodeParams: *const KernelNode,
    ) {
        let (driver, _) = context::current()?;
        let parameters = unsafe { kernel_node(pNodeParams) }?;
        unsafe { driver.cuGraphAddKernelNode_v2(pGraphNode, graph, pDependencies, numDependencies, &parameters) }
    }

    /// Replaces the launch of a node.
    fn cudaGraphKernelNodeSetParams(node: Handle, pNodeParams: *const KernelNode) {
        let (driver, _) = context::current()?;
        unsafe { driver.cuGraphKernelNodeSetParams_v2(node, &kernel_node(pNodeParams)?) }
    }

    /// Replaces the launch of a node of an executable graph.
    fn cudaGraphExecKernelNodeSetParams(hGraphExec: Handle, node: Handle, pNodeParams: *const KernelNode) {
        let (driver, _) = context::current()?;
        unsafe { driver.cuGraphExecKernelNodeSetParams_v2(hGraphExec, node, &kernel_node(pNodeParams)?) }
    }

    /// Adds the copy of a box to a graph.
    fn cudaGraphAddMemcpyNode(
        pGraphNode: *mut Handle, graph: Handle, pDependencies: *const Handle, numDependencies: usize,
        pCopyParams: *const Copy3dParameters,
    ) {
        let (driver, current) = context::current()?;
        let copy = unsafe { box_of(pCopyParams) }?;
        unsafe { driver.cuGraphAddMemcpyNode(pGraphNode, graph, pDependencies, numDependencies, &copy, current) }
    }

    /// Adds a copy to a graph.
    fn cudaGraphAddMemcpyNode1D(
        pGraphNode: *mut Handle, graph: Handle, pDependencies: *const Handle, numDependencies: usize, dst: *mut c_void,
        src: *const c_void, count: usize, kind: c_int,
    ) {
        let (driver, current) = context::current()?;
        let copy = flat_copy(dst, src, count, kind)?;
        unsafe { driver.cuGraphAddMemcpyNode(pGraphNode, graph, pDependencies, numDependencies, &copy, current) }
    }

    /// Replaces the copy of a node of an executable graph.
    fn cudaGraphExecMemcpyNodeSetParams1D(
        hGraphExec: Handle, node: Handle, dst: *mut c_void, src: *const c_void, count: usize, kind: c_int,
    ) {
        let (driver, current) = context::current()?;
        let copy = flat_copy(dst, src, count, kind)?;
        unsafe { driver.cuGraphExecMemcpyNodeSetParams(hGraphExec, node, &copy, current) }
    }

    /// Adds a fill to a graph. Its parameters have the layout of the driver.
    fn cudaGraphAddMemsetNode(
        pGraphNode: *mut Handle, graph: Handle, pDependencies: *const Handle, numDependencies: usize,
        pMemsetParams: *const c_void,
    ) {
        let (driver, current) = context::current()?;
        unsafe { driver.cuGraphAddMemsetNode(pGraphNode, graph, pDependencies, numDependencies, pMemsetParams, current) }
    }

    /// Replaces the fill of a node of an executable graph.
    fn cudaGraphExecMemsetNodeSetParams(hGraphExec: Handle, node: Handle, pNodeParams: *const c_void) {
        let (driver, current) = context::current()?;
        unsafe { driver.cuGraphExecMemsetNodeSetParams(hGraphExec, node, pNodeParams, current) }
    }
}

forwarded! {
    cudaThreadExchangeStreamCaptureMode(mode: *mut c_uint) => cuThreadExchangeStreamCaptureMode;
    cudaStreamBeginCapture | cudaStreamBeginCapture_ptsz [stream](stream: Handle, mode: c_uint) => cuStreamBeginCapture_v2;
    cudaStreamEndCapture | cudaStreamEndCapture_ptsz [stream](stream: Handle, graph: *mut Handle) => cuStreamEndCapture;
    cudaStreamIsCapturing | cudaStreamIsCapturing_ptsz [stream](stream: Handle, status: *mut c_uint) => cuStreamIsCapturing;
    cudaStreamGetCaptureInfo | cudaStreamGetCaptureInfo_ptsz [stream](stream: Handle, status: *mut c_uint, id: *mut u64,
        graph: *mut Handle, dependencies: *mut *const Handle, edges: *mut *const c_void, count: *mut usize)
        => cuStreamGetCaptureInfo_v3;
    cudaStreamBeginCaptureToGraph | cudaStreamBeginCaptureToGraph_ptsz [stream](stream: Handle, graph: Handle,
        after: *const Handle, edges: *const c_void, count: usize, mode: c_uint) => cuStreamBeginCaptureToGraph;
    cudaStreamUpdateCaptureDependencies | cudaStreamUpdateCaptureDependencies_ptsz [stream](stream: Handle, nodes: *mut Handle,
        edges: *const c_void, count: usize, flags: c_uint) => cuStreamUpdateCaptureDependencies_v2;

    cudaGraphCreate(graph: *mut Handle, flags: c_uint) => cuGraphCreate;
    cudaGraphClone(clone: *mut Handle, graph: Handle) => cuGraphClone;
    cudaGraphDestroy(graph: Handle) => cuGraphDestroy;
    cudaGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) => cuGraphGetNodes;
    cudaGraphNodeGetType(node: Handle, kind: *mut c_uint) => cuGraphNodeGetType;
    cudaGraphInstantiate(exec: *mut Handle, graph: Handle, flags: u64) => cuGraphInstantiateWithFlags;
    cudaGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64) => cuGraphInstantiateWithFlags;
    cudaGraphUpload | cudaGraphUpload_ptsz [stream](exec: Handle, stream: Handle) => cuGraphUpload;
    cudaGraphLaunch | cudaGraphLaunch_ptsz [stream](exec: Handle, stream: Handle) => cuGraphLaunch;
    cudaGraphExecDestroy(exec: Handle) => cuGraphExecDestroy;
    cudaGraphExecUpdate(exec: Handle, graph: Handle, result: *mut c_void) => cuGraphExecUpdate_v2;
    cudaGraphExecGetFlags(exec: Handle, flags: *mut u64) => cuGraphExecGetFlags;
    cudaGraphInstantiateWithParams(exec: *mut Handle, graph: Handle, parameters: *mut c_void) => cuGraphInstantiateWithParams;
    cudaGraphDestroyNode(node: Handle) => cuGraphDestroyNode;
    cudaGraphGetRootNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) => cuGraphGetRootNodes;
    cudaGraphGetEdges(graph: Handle, from: *mut Handle, to: *mut Handle, edges: *mut c_void, count: *mut usize)
        => cuGraphGetEdges_v2;
    cudaGraphNodeFindInClone(node: *mut Handle, original: Handle, clone: Handle) => cuGraphNodeFindInClone;
    cudaGraphNodeGetDependencies(node: Handle, nodes: *mut Handle, edges: *mut c_void, count: *mut usize)
        => cuGraphNodeGetDependencies_v2;
    cudaGraphNodeGetDependentNodes(node: Handle, nodes: *mut Handle, edges: *mut c_void, count: *mut usize)
        => cuGraphNodeGetDependentNodes_v2;
    cudaGraphAddDependencies(graph: Handle, from: *const Handle, to: *const Handle, edges: *const c_void, count: usize)
        => cuGraphAddDependencies_v2;
    cudaGraphRemoveDependencies(graph: Handle, from: *const Handle, to: *const Handle, edges: *const c_void, count: usize)
        => cuGraphRemoveDependencies_v2;
    cudaGraphNodeSetEnabled(exec: Handle, node: Handle, enabled: c_uint) => cuGraphNodeSetEnabled;
    cudaGraphNodeGetEnabled(exec: Handle, node: Handle, enabled: *mut c_uint) => cuGraphNodeGetEnabled;
    cudaGraphDebugDotPrint(graph: Handle, path: *const c_char, flags: c_uint) => cuGraphDebugDotPrint;
    cudaGraphAddEmptyNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize) => cuGraphAddEmptyNode;
    cudaGraphAddChildGraphNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, child: Handle)
        => cuGraphAddChildGraphNode;
    cudaGraphAddEventRecordNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, event: Handle)
        => cuGraphAddEventRecordNode;
    cudaGraphAddEventWaitNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, event: Handle)
        => cuGraphAddEventWaitNode;
    cudaGraphAddHostNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *const c_void)
        => cuGraphAddHostNode;
    cudaGraphAddMemFreeNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, address: Address)
        => cuGraphAddMemFreeNode;
    cudaGraphRetainUserObject(graph: Handle, object: Handle, count: c_uint, flags: c_uint) => cuGraphRetainUserObject;
    cudaGraphReleaseUserObject(graph: Handle, object: Handle, count: c_uint) => cuGraphReleaseUserObject;
    cudaUserObjectCreate(object: *mut Handle, pointer: *mut c_void, destroy: HostFunction, count: c_uint, flags: c_uint)
        => cuUserObjectCreate;
    cudaUserObjectRetain(object: Handle, count: c_uint) => cuUserObjectRetain;
    cudaUserObjectRelease(object: Handle, count: c_uint) => cuUserObjectRelease;
    cudaDeviceGraphMemTrim(device: c_int) => cuDeviceGraphMemTrim;
    cudaDeviceGetGraphMemAttribute(device: c_int, attribute: c_uint, value: *mut c_void) => cuDeviceGetGraphMemAttribute;
    cudaDeviceSetGraphMemAttribute(device: c_int, attribute: c_uint, value: *mut c_void) => cuDeviceSetGraphMemAttribute;
}
