//! Functions whose parameters the driver takes as they are.
//!
//! A row is `runtime | per-thread form [stream] (arguments) => driver`; the part between is absent for functions without a stream.

use crate::abi::*;
use crate::context;
use std::ffi::{c_char, c_int, c_uint, c_void};

macro_rules! forwarded {
    () => {};
    ($name:ident($($argument:ident: $type:ty),*) => $driver:ident; $($rest:tt)*) => {
        $crate::api::runtime_api! {
            #[doc = concat!("Calls `", stringify!($driver), "`.")]
            fn $name($($argument: $type),*) {
                let (driver, _) = context::current()?;
                unsafe { driver.$driver($($argument),*) }
            }
        }
        $crate::api::forwarded::forwarded! { $($rest)* }
    };
    ($name:ident | $other:ident [$stream:ident]($($argument:ident: $type:ty),*) => $driver:ident; $($rest:tt)*) => {
        $crate::api::runtime_api! {
            #[doc = concat!("Calls `", stringify!($driver), "`.")]
            fn $name | $other [$stream]($($argument: $type),*) {
                let (driver, _) = context::current()?;
                unsafe { driver.$driver($($argument),*) }
            }
        }
        $crate::api::forwarded::forwarded! { $($rest)* }
    };
}

pub(crate) use forwarded;

forwarded! {
    cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) => cuCtxGetStreamPriorityRange;
    cudaDeviceGetLimit(value: *mut usize, limit: c_uint) => cuCtxGetLimit;
    cudaDeviceSetLimit(limit: c_uint, value: usize) => cuCtxSetLimit;
    cudaDeviceGetCacheConfig(config: *mut c_uint) => cuCtxGetCacheConfig;
    cudaDeviceSetCacheConfig(config: c_uint) => cuCtxSetCacheConfig;
    cudaCtxResetPersistingL2Cache() => cuCtxResetPersistingL2Cache;

    cudaDeviceGetDefaultMemPool(pool: *mut Handle, device: c_int) => cuDeviceGetDefaultMemPool;
    cudaDeviceGetMemPool(pool: *mut Handle, device: c_int) => cuDeviceGetMemPool;
    cudaDeviceSetMemPool(device: c_int, pool: Handle) => cuDeviceSetMemPool;
    cudaMemPoolCreate(pool: *mut Handle, properties: *const c_void) => cuMemPoolCreate;
    cudaMemPoolDestroy(pool: Handle) => cuMemPoolDestroy;
    cudaMemPoolTrimTo(pool: Handle, bytes: usize) => cuMemPoolTrimTo;
    cudaMemPoolGetAttribute(pool: Handle, attribute: c_uint, value: *mut c_void) => cuMemPoolGetAttribute;
    cudaMemPoolSetAttribute(pool: Handle, attribute: c_uint, value: *mut c_void) => cuMemPoolSetAttribute;
    cudaMemPoolSetAccess(pool: Handle, list: *const c_void, count: usize) => cuMemPoolSetAccess;
    cudaMemPoolGetAccess(flags: *mut c_uint, pool: Handle, location: *mut c_void) => cuMemPoolGetAccess;
    cudaMemAdvise(address: Address, bytes: usize, advice: c_uint, location: u64) => cuMemAdvise_v2;
    cudaMemPrefetchAsync | cudaMemPrefetchAsync_ptsz [stream](address: Address, bytes: usize, location: u64, flags: c_uint,
        stream: Handle) => cuMemPrefetchAsync_v2;
    cudaMemRangeGetAttribute(data: *mut c_void, size: usize, attribute: c_uint, address: Address, bytes: usize)
        => cuMemRangeGetAttribute;

    cudaStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int) => cuStreamCreateWithPriority;
    cudaStreamDestroy(stream: Handle) => cuStreamDestroy_v2;
    cudaStreamSynchronize | cudaStreamSynchronize_ptsz [stream](stream: Handle) => cuStreamSynchronize;
    cudaStreamQuery | cudaStreamQuery_ptsz [stream](stream: Handle) => cuStreamQuery;
    cudaStreamWaitEvent | cudaStreamWaitEvent_ptsz [stream](stream: Handle, event: Handle, flags: c_uint) => cuStreamWaitEvent;
    cudaStreamGetFlags | cudaStreamGetFlags_ptsz [stream](stream: Handle, flags: *mut c_uint) => cuStreamGetFlags;
    cudaStreamGetPriority | cudaStreamGetPriority_ptsz [stream](stream: Handle, priority: *mut c_int) => cuStreamGetPriority;
    cudaStreamGetId | cudaStreamGetId_ptsz [stream](stream: Handle, id: *mut u64) => cuStreamGetId;
    cudaStreamGetDevice | cudaStreamGetDevice_ptsz [stream](stream: Handle, device: *mut c_int) => cuStreamGetDevice;
    cudaStreamGetAttribute | cudaStreamGetAttribute_ptsz [stream](stream: Handle, attribute: c_uint, value: *mut c_void)
        => cuStreamGetAttribute;
    cudaStreamSetAttribute | cudaStreamSetAttribute_ptsz [stream](stream: Handle, attribute: c_uint, value: *const c_void)
        => cuStreamSetAttribute;
    cudaStreamAttachMemAsync | cudaStreamAttachMemAsync_ptsz [stream](stream: Handle, address: Address, bytes: usize,
        flags: c_uint) => cuStreamAttachMemAsync;
    cudaStreamAddCallback | cudaStreamAddCallback_ptsz [stream](stream: Handle, callback: StreamCallback, data: *mut c_void,
        flags: c_uint) => cuStreamAddCallback;
    cudaLaunchHostFunc | cudaLaunchHostFunc_ptsz [stream](stream: Handle, function: HostFunction, data: *mut c_void)
        => cuLaunchHostFunc;

    cudaEventCreateWithFlags(event: *mut Handle, flags: c_uint) => cuEventCreate;
    cudaEventDestroy(event: Handle) => cuEventDestroy_v2;
    cudaEventRecord | cudaEventRecord_ptsz [stream](event: Handle, stream: Handle) => cuEventRecord;
    cudaEventRecordWithFlags | cudaEventRecordWithFlags_ptsz [stream](event: Handle, stream: Handle, flags: c_uint)
        => cuEventRecordWithFlags;
    cudaEventQuery(event: Handle) => cuEventQuery;
    cudaEventSynchronize(event: Handle) => cuEventSynchronize;
    cudaEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) => cuEventElapsedTime;

    cudaLibraryLoadData(library: *mut Handle, code: *const c_void, options: *mut c_uint, values: *mut *mut c_void,
        count: c_uint, library_options: *mut c_uint, library_values: *mut *mut c_void, library_count: c_uint)
        => cuLibraryLoadData;
    cudaLibraryLoadFromFile(library: *mut Handle, path: *const c_char, options: *mut c_uint, values: *mut *mut c_void,
        count: c_uint, library_options: *mut c_uint, library_values: *mut *mut c_void, library_count: c_uint)
        => cuLibraryLoadFromFile;
    cudaLibraryUnload(library: Handle) => cuLibraryUnload;
    cudaLibraryGetKernelCount(count: *mut c_uint, library: Handle) => cuLibraryGetKernelCount;
    cudaLibraryGetGlobal(address: *mut Address, bytes: *mut usize, library: Handle, name: *const c_char) => cuLibraryGetGlobal;
    cudaLibraryGetManaged(address: *mut Address, bytes: *mut usize, library: Handle, name: *const c_char)
        => cuLibraryGetManaged;

    cudaIpcGetEventHandle(handle: *mut IpcHandle, event: Handle) => cuIpcGetEventHandle;
    cudaIpcOpenEventHandle(event: *mut Handle, handle: IpcHandle) => cuIpcOpenEventHandle;
    cudaIpcGetMemHandle(handle: *mut IpcHandle, address: Address) => cuIpcGetMemHandle;
    cudaIpcOpenMemHandle(address: *mut Address, handle: IpcHandle, flags: c_uint) => cuIpcOpenMemHandle_v2;
    cudaIpcCloseMemHandle(address: Address) => cuIpcCloseMemHandle;
}
