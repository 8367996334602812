//! The functions of the driver library that the runtime uses.

use crate::abi::*;
use crate::error::{Error, Outcome, SUCCESS};
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, OnceLock};

macro_rules! driver_functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        /// Functions of the driver, as far as its library has them.
        #[derive(Default)]
        pub struct Driver {
            $($name: Option<unsafe extern "C" fn($($type),*) -> c_int>,)*
        }

        impl Driver {
            fn load(library: *mut c_void) -> Driver {
                Driver {
                    $($name: {
                        let address = unsafe { libc::dlsym(library, concat!(stringify!($name), "\0").as_ptr().cast()) };
                        // The types are those of the driver API reference. A null address becomes None.
                        unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($type),*) -> c_int>>(address) }
                    },)*
                }
            }

            $(
                /// The function of the driver API with this name.
                ///
                /// # Errors
                ///
                /// Those of the driver API, and `cudaErrorCallRequiresNewerDriver` if the library lacks the function.
                #[allow(clippy::too_many_arguments)]
                pub unsafe fn $name(&self, $($argument: $type),*) -> Outcome {
                    let function = self.$name.ok_or_else(|| missing(stringify!($name)))?;
                    match unsafe { function($($argument),*) } {
                        SUCCESS => Ok(()),
                        code => Err(Error(code)),
                    }
                }
            )*
        }
    };
}

/// Names a function that the library of the driver lacks, once on standard error, and gives the error for it.
fn missing(function: &'static str) -> Error {
    static NAMED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if NAMED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(function) {
        eprintln!("libcudart: the driver library lacks {function}");
    }
    Error::CALL_REQUIRES_NEWER_DRIVER
}

impl Driver {
    /// Reports whether the driver can exchange the capture mode of a thread.
    pub fn has_capture_modes(&self) -> bool {
        self.cuThreadExchangeStreamCaptureMode.is_some()
    }
}

/// The initialized driver.
///
/// # Errors
///
/// `cudaErrorInsufficientDriver` without a library, or the error of `cuInit`. A failed initialization isn't repeated.
pub fn driver() -> Outcome<&'static Driver> {
    static DRIVER: OnceLock<Outcome<Driver>> = OnceLock::new();
    let loaded = DRIVER.get_or_init(|| {
        let driver = uninitialized().ok_or(Error::INSUFFICIENT_DRIVER)?;
        unsafe { driver.cuInit(0) }?;
        Ok(driver)
    });
    loaded.as_ref().map_err(|error| *error)
}

/// The driver before `cuInit`, or nothing without a library.
pub fn uninitialized() -> Option<Driver> {
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    (!library.is_null()).then(|| Driver::load(library))
}

driver_functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuGetProcAddress_v2(symbol: Text, address: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int);
    cuProfilerStart();
    cuProfilerStop();

    cuDeviceGet(device: *mut c_int, ordinal: c_int);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int);
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
    cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: c_int);
    cuDeviceGetByPCIBusId(device: *mut c_int, text: Text);
    cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int);
    cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_int, source: c_int, target: c_int);
    cuDeviceGetDefaultMemPool(pool: *mut Handle, device: c_int);
    cuDeviceGetMemPool(pool: *mut Handle, device: c_int);
    cuDeviceSetMemPool(device: c_int, pool: Handle);

    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
    cuDevicePrimaryCtxReset_v2(device: c_int);
    cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint);
    cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int);
    cuCtxGetCurrent(context: *mut Handle);
    cuCtxSetCurrent(context: Handle);
    cuCtxGetDevice(device: *mut c_int);
    cuCtxGetFlags(flags: *mut c_uint);
    cuCtxSynchronize();
    cuCtxGetLimit(value: *mut usize, limit: c_uint);
    cuCtxSetLimit(limit: c_uint, value: usize);
    cuCtxGetCacheConfig(config: *mut c_uint);
    cuCtxSetCacheConfig(config: c_uint);
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    cuCtxResetPersistingL2Cache();
    cuCtxEnablePeerAccess(peer: Handle, flags: c_uint);
    cuCtxDisablePeerAccess(peer: Handle);

    cuModuleLoadData(module: *mut Handle, image: *const c_void);
    cuModuleLoadFatBinary(module: *mut Handle, image: *const c_void);
    cuModuleUnload(module: Handle);
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: Text);
    cuModuleGetGlobal_v2(address: *mut Address, bytes: *mut usize, module: Handle, name: Text);
    cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: Handle);
    cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int);
    cuFuncSetCacheConfig(function: Handle, config: c_uint);
    cuFuncGetParamInfo(function: Handle, index: usize, offset: *mut usize, size: *mut usize);
    cuKernelGetFunction(function: *mut Handle, kernel: Handle);
    cuLibraryLoadData(library: *mut Handle, code: *const c_void, options: *mut c_uint, values: *mut *mut c_void, count: c_uint,
        library_options: *mut c_uint, library_values: *mut *mut c_void, library_count: c_uint);
    cuLibraryLoadFromFile(library: *mut Handle, path: Text, options: *mut c_uint, values: *mut *mut c_void, count: c_uint,
        library_options: *mut c_uint, library_values: *mut *mut c_void, library_count: c_uint);
    cuLibraryUnload(library: Handle);
    cuLibraryGetKernel(kernel: *mut Handle, library: Handle, name: Text);
    cuLibraryGetKernelCount(count: *mut c_uint, library: Handle);
    cuLibraryEnumerateKernels(kernels: *mut Handle, count: c_uint, library: Handle);
    cuLibraryGetGlobal(address: *mut Address, bytes: *mut usize, library: Handle, name: Text);
    cuLibraryGetManaged(address: *mut Address, bytes: *mut usize, library: Handle, name: Text);

    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc_v2(address: *mut Address, bytes: usize);
    cuMemAllocPitch_v2(address: *mut Address, pitch: *mut usize, width: usize, height: usize, element: c_uint);
    cuMemAllocManaged(address: *mut Address, bytes: usize, flags: c_uint);
    cuMemAllocAsync(address: *mut Address, bytes: usize, stream: Handle);
    cuMemAllocFromPoolAsync(address: *mut Address, bytes: usize, pool: Handle, stream: Handle);
    cuMemFree_v2(address: Address);
    cuMemFreeAsync(address: Address, stream: Handle);
    cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemFreeHost(pointer: *mut c_void);
    cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostUnregister(pointer: *mut c_void);
    cuMemHostGetDevicePointer_v2(address: *mut Address, pointer: *mut c_void, flags: c_uint);
    cuMemHostGetFlags(flags: *mut c_uint, pointer: *mut c_void);
    cuPointerGetAttributes(count: c_uint, attributes: *const c_uint, data: *const *mut c_void, address: Address);
    cuMemAdvise_v2(address: Address, bytes: usize, advice: c_uint, location: u64);
    cuMemPrefetchAsync_v2(address: Address, bytes: usize, location: u64, flags: c_uint, stream: Handle);
    cuMemRangeGetAttribute(data: *mut c_void, size: usize, attribute: c_uint, address: Address, bytes: usize);
    cuMemPoolCreate(pool: *mut Handle, properties: *const c_void);
    cuMemPoolDestroy(pool: Handle);
    cuMemPoolTrimTo(pool: Handle, bytes: usize);
    cuMemPoolGetAttribute(pool: Handle, attribute: c_uint, value: *mut c_void);
    cuMemPoolSetAttribute(pool: Handle, attribute: c_uint, value: *mut c_void);
    cuMemPoolSetAccess(pool: Handle, list: *const c_void, count: usize);
    cuMemPoolGetAccess(flags: *mut c_uint, pool: Handle, location: *mut c_void);

    cuMemcpy(target: Address, source: Address, bytes: usize);
    cuMemcpyAsync(target: Address, source: Address, bytes: usize, stream: Handle);
    cuMemcpyHtoD_v2(target: Address, source: *const c_void, bytes: usize);
    cuMemcpyDtoH_v2(target: *mut c_void, source: Address, bytes: usize);
    cuMemcpyDtoD_v2(target: Address, source: Address, bytes: usize);
    cuMemcpyHtoDAsync_v2(target: Address, source: *const c_void, bytes: usize, stream: Handle);
    cuMemcpyDtoHAsync_v2(target: *mut c_void, source: Address, bytes: usize, stream: Handle);
    cuMemcpyDtoDAsync_v2(target: Address, source: Address, bytes: usize, stream: Handle);
    cuMemcpyPeer(target: Address, target_context: Handle, source: Address, source_context: Handle, bytes: usize);
    cuMemcpyPeerAsync(target: Address, target_context: Handle, source: Address, source_context: Handle, bytes: usize,
        stream: Handle);
    cuMemcpy2DUnaligned_v2(parameters: *const Copy2d);
    cuMemcpy2DAsync_v2(parameters: *const Copy2d, stream: Handle);
    cuMemcpy3D_v2(parameters: *const Copy3d);
    cuMemcpy3DAsync_v2(parameters: *const Copy3d, stream: Handle);
    cuMemsetD8_v2(target: Address, value: u8, count: usize);
    cuMemsetD8Async(target: Address, value: u8, count: usize, stream: Handle);
    cuMemsetD2D8_v2(target: Address, pitch: usize, value: u8, width: usize, height: usize);
    cuMemsetD2D8Async(target: Address, pitch: usize, value: u8, width: usize, height: usize, stream: Handle);

    cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamSynchronize(stream: Handle);
    cuStreamQuery(stream: Handle);
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    cuStreamGetFlags(stream: Handle, flags: *mut c_uint);
    cuStreamGetPriority(stream: Handle, priority: *mut c_int);
    cuStreamGetId(stream: Handle, id: *mut u64);
    cuStreamGetDevice(stream: Handle, device: *mut c_int);
    cuStreamGetAttribute(stream: Handle, attribute: c_uint, value: *mut c_void);
    cuStreamSetAttribute(stream: Handle, attribute: c_uint, value: *const c_void);
    cuStreamCopyAttributes(target: Handle, source: Handle);
    cuStreamAttachMemAsync(stream: Handle, address: Address, bytes: usize, flags: c_uint);
    cuStreamAddCallback(stream: Handle, callback: StreamCallback, data: *mut c_void, flags: c_uint);
    cuLaunchHostFunc(stream: Handle, function: HostFunction, data: *mut c_void);
    cuEventCreate(event: *mut Handle, flags: c_uint);
    cuEventDestroy_v2(event: Handle);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint);
    cuEventQuery(event: Handle);
    cuEventSynchronize(event: Handle);
    cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle);

    cuLaunchKernel(function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void);
    cuLaunchKernelEx(config: *const DriverLaunchConfig, function: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void);
    cuLaunchCooperativeKernel(function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: Handle, parameters: *mut *mut c_void);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: *mut c_int, function: Handle, threads: c_int,
        shared_bytes: usize, flags: c_uint);
    cuOccupancyAvailableDynamicSMemPerBlock(bytes: *mut usize, function: Handle, blocks: c_int, threads: c_int);
    cuOccupancyMaxActiveClusters(count: *mut c_int, function: Handle, config: *const DriverLaunchConfig);
    cuOccupancyMaxPotentialClusterSize(size: *mut c_int, function: Handle, config: *const DriverLaunchConfig);

    cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
    cuStreamBeginCapture_v2(stream: Handle, mode: c_uint);
    cuStreamEndCapture(stream: Handle, graph: *mut Handle);
    cuStreamIsCapturing(stream: Handle, status: *mut c_uint);
    cuStreamGetCaptureInfo_v3(stream: Handle, status: *mut c_uint, id: *mut u64, graph: *mut Handle,
        dependencies: *mut *const Handle, edges: *mut *const c_void, count: *mut usize);
    cuGraphCreate(graph: *mut Handle, flags: c_uint);
    cuGraphClone(clone: *mut Handle, graph: Handle);
    cuGraphDestroy(graph: Handle);
    cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize);
    cuGraphNodeGetType(node: Handle, kind: *mut c_uint);
    cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64);
    cuGraphUpload(exec: Handle, stream: Handle);
    cuGraphLaunch(exec: Handle, stream: Handle);
    cuGraphExecDestroy(exec: Handle);
    cuGraphExecUpdate_v2(exec: Handle, graph: Handle, result: *mut c_void);
    cuGraphExecGetFlags(exec: Handle, flags: *mut u64);
    cuGraphInstantiateWithParams(exec: *mut Handle, graph: Handle, parameters: *mut c_void);
    cuGraphDestroyNode(node: Handle);
    cuGraphGetRootNodes(graph: Handle, nodes: *mut Handle, count: *mut usize);
    cuGraphGetEdges_v2(graph: Handle, from: *mut Handle, to: *mut Handle, edges: *mut c_void, count: *mut usize);
    cuGraphNodeFindInClone(node: *mut Handle, original: Handle, clone: Handle);
    cuGraphNodeGetDependencies_v2(node: Handle, nodes: *mut Handle, edges: *mut c_void, count: *mut usize);
    cuGraphNodeGetDependentNodes_v2(node: Handle, nodes: *mut Handle, edges: *mut c_void, count: *mut usize);
    cuGraphAddDependencies_v2(graph: Handle, from: *const Handle, to: *const Handle, edges: *const c_void, count: usize);
    cuGraphRemoveDependencies_v2(graph: Handle, from: *const Handle, to: *const Handle, edges: *const c_void, count: usize);
    cuGraphNodeSetEnabled(exec: Handle, node: Handle, enabled: c_uint);
    cuGraphNodeGetEnabled(exec: Handle, node: Handle, enabled: *mut c_uint);
    cuGraphDebugDotPrint(graph: Handle, path: Text, flags: c_uint);
    cuGraphAddEmptyNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize);
    cuGraphAddChildGraphNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, child: Handle);
    cuGraphAddEventRecordNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, event: Handle);
    cuGraphAddEventWaitNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, event: Handle);
    cuGraphAddHostNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *const c_void);
    cuGraphAddMemFreeNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, address: Address);
    cuGraphAddKernelNode_v2(node: *mut Handle, graph: Handle, after: *const Handle, count: usize,
        parameters: *const DriverKernelNode);
    cuGraphKernelNodeSetParams_v2(node: Handle, parameters: *const DriverKernelNode);
    cuGraphExecKernelNodeSetParams_v2(exec: Handle, node: Handle, parameters: *const DriverKernelNode);
    cuGraphAddMemcpyNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, copy: *const Copy3d,
        context: Handle);
    cuGraphExecMemcpyNodeSetParams(exec: Handle, node: Handle, copy: *const Copy3d, context: Handle);
    cuGraphAddMemsetNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, fill: *const c_void,
        context: Handle);
    cuGraphExecMemsetNodeSetParams(exec: Handle, node: Handle, fill: *const c_void, context: Handle);
    cuGraphRetainUserObject(graph: Handle, object: Handle, count: c_uint, flags: c_uint);
    cuGraphReleaseUserObject(graph: Handle, object: Handle, count: c_uint);
    cuUserObjectCreate(object: *mut Handle, pointer: *mut c_void, destroy: HostFunction, count: c_uint, flags: c_uint);
    cuUserObjectRetain(object: Handle, count: c_uint);
    cuUserObjectRelease(object: Handle, count: c_uint);
    cuDeviceGraphMemTrim(device: c_int);
    cuDeviceGetGraphMemAttribute(device: c_int, attribute: c_uint, value: *mut c_void);
    cuDeviceSetGraphMemAttribute(device: c_int, attribute: c_uint, value: *mut c_void);
    cuStreamBeginCaptureToGraph(stream: Handle, graph: Handle, after: *const Handle, edges: *const c_void, count: usize,
        mode: c_uint);
    cuStreamUpdateCaptureDependencies_v2(stream: Handle, nodes: *mut Handle, edges: *const c_void, count: usize, flags: c_uint);

    cuIpcGetEventHandle(handle: *mut IpcHandle, event: Handle);
    cuIpcOpenEventHandle(event: *mut Handle, handle: IpcHandle);
    cuIpcGetMemHandle(handle: *mut IpcHandle, address: Address);
    cuIpcOpenMemHandle_v2(address: *mut Address, handle: IpcHandle, flags: c_uint);
    cuIpcCloseMemHandle(address: Address);
}
