//! What the code calls that nvcc 13.0 generates around kernels.

use super::{reported, require, store};
use crate::abi::{Dim3, Handle};
use crate::error::Error;
use crate::registry::{self, FatBinary};
use crate::thread::{self, CallConfiguration};
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::Arc;

/// What `__cudaRegisterFatBinary` returns: the application only passes it back.
type BinaryHandle = *mut *mut c_void;

unsafe fn binary(handle: BinaryHandle) -> Arc<FatBinary> {
    let binary = handle.cast_const().cast::<FatBinary>();
    unsafe {
        Arc::increment_strong_count(binary);
        Arc::from_raw(binary)
    }
}

/// Registers a fat binary.
#[no_mangle]
pub unsafe extern "C" fn __cudaRegisterFatBinary(fatCubin: *mut c_void) -> BinaryHandle {
    Arc::into_raw(unsafe { FatBinary::new(fatCubin.cast()) }).cast_mut().cast()
}

/// Ends the registrations of a fat binary.
#[no_mangle]
pub unsafe extern "C" fn __cudaRegisterFatBinaryEnd(fatCubinHandle: BinaryHandle) {
    let _ = fatCubinHandle;
}

/// Forgets a fat binary.
#[no_mangle]
pub unsafe extern "C" fn __cudaUnregisterFatBinary(fatCubinHandle: BinaryHandle) {
    if fatCubinHandle.is_null() {
        return;
    }
    let binary = unsafe { Arc::from_raw(fatCubinHandle.cast_const().cast::<FatBinary>()) };
    registry::remove(&binary);
}

/// Registers a kernel.
#[no_mangle]
pub unsafe extern "C" fn __cudaRegisterFunction(
    fatCubinHandle: BinaryHandle,
    hostFun: *const c_char,
    deviceFun: *mut c_char,
    deviceName: *const c_char,
    thread_limit: c_int,
    tid: *mut c_void,
    bid: *mut c_void,
    bDim: *mut Dim3,
    gDim: *mut Dim3,
    wSize: *mut c_int,
) {
    let _ = (deviceFun, thread_limit, tid, bid, bDim, gDim, wSize);
    unsafe { registry::add_kernel(&binary(fatCubinHandle), hostFun.cast(), CStr::from_ptr(deviceName)) };
}

/// Registers a variable.
#[no_mangle]
pub unsafe extern "C" fn __cudaRegisterVar(
    fatCubinHandle: BinaryHandle,
    hostVar: *mut c_char,
    deviceAddress: *mut c_char,
    deviceName: *const c_char,
    ext: c_int,
    size: usize,
    constant: c_int,
    global: c_int,
) {
    let _ = (deviceAddress, ext, constant, global);
    unsafe { registry::add_variable(&binary(fatCubinHandle), hostVar.cast(), CStr::from_ptr(deviceName), size, false) };
}

/// Registers a variable that the runtime could place in host memory, as a variable.
#[no_mangle]
pub unsafe extern "C" fn __cudaRegisterHostVar(fatCubinHandle: BinaryHandle, deviceName: *const c_char, hostVar: *mut c_char, size: usize) {
    unsafe { registry::add_variable(&binary(fatCubinHandle), hostVar.cast(), CStr::from_ptr(deviceName), size, false) };
}

/// Registers a managed variable.
#[no_mangle]
pub unsafe extern "C" fn __cudaRegisterManagedVar(
    fatCubinHandle: BinaryHandle,
    hostVarPtrAddress: *mut *mut c_void,
    deviceAddress: *mut c_char,
    deviceName: *const c_char,
    ext: c_int,
    size: usize,
    constant: c_int,
    global: c_int,
) {
    let _ = (deviceAddress, ext, constant, global);
    unsafe { registry::add_variable(&binary(fatCubinHandle), hostVarPtrAddress.cast(), CStr::from_ptr(deviceName), size, true) };
}

/// Gives managed variables their addresses, before the application reads one. Returns 1, which the application keeps as "done".
#[no_mangle]
pub unsafe extern "C" fn __cudaInitModule(fatCubinHandle: BinaryHandle) -> c_char {
    reported(|| unsafe { binary(fatCubinHandle) }.load());
    1
}

/// Keeps the configuration of the next launch. Returns 0, on which the application launches.
#[no_mangle]
pub unsafe extern "C" fn __cudaPushCallConfiguration(gridDim: Dim3, blockDim: Dim3, sharedMem: usize, stream: Handle) -> c_uint {
    thread::push_configuration(CallConfiguration { grid: gridDim, block: blockDim, shared_bytes: sharedMem, stream });
    0
}

/// Stores the configuration of a launch.
#[no_mangle]
pub unsafe extern "C" fn __cudaPopCallConfiguration(
    gridDim: *mut Dim3,
    blockDim: *mut Dim3,
    sharedMem: *mut usize,
    stream: *mut c_void,
) -> c_int {
    reported(|| {
        let configuration = thread::pop_configuration().ok_or(Error::MISSING_CONFIGURATION)?;
        unsafe {
            store(gridDim, configuration.grid)?;
            store(blockDim, configuration.block)?;
            store(sharedMem, configuration.shared_bytes)?;
            store(stream.cast::<Handle>(), configuration.stream)
        }
    })
}

/// Stores the handle of a kernel, which here is the address of its stub.
unsafe fn kernel_handle(kernel: *mut Handle, stub: *const c_void) -> c_int {
    reported(|| {
        require(kernel)?;
        if !registry::is_kernel(stub) {
            return Err(Error::INVALID_DEVICE_FUNCTION);
        }
        unsafe { store(kernel, stub.cast_mut()) }
    })
}

/// Stores the handle of a kernel.
#[no_mangle]
pub unsafe extern "C" fn __cudaGetKernel(kernel: *mut Handle, entryFuncAddr: *const c_void) -> c_int {
    unsafe { kernel_handle(kernel, entryFuncAddr) }
}

/// Stores the handle of a kernel.
#[no_mangle]
pub unsafe extern "C" fn cudaGetKernel(kernelPtr: *mut Handle, entryFuncAddr: *const c_void) -> c_int {
    unsafe { kernel_handle(kernelPtr, entryFuncAddr) }
}
