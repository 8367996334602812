//! Errors, versions, the profiler, and addresses of functions of the driver.

use super::{require, runtime_api, store};
use crate::abi::ChannelFormat;
use crate::driver::{driver, uninitialized};
use crate::error::{name_of, text_of, Error};
use crate::thread;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

/// Version of the runtime, CUDA 13.0.
pub const RUNTIME_VERSION: c_int = 13_000;

/// Returns the last error of the thread and clears it.
#[no_mangle]
pub extern "C" fn cudaGetLastError() -> c_int {
    thread::take_last_error()
}

/// Returns the last error of the thread.
#[no_mangle]
pub extern "C" fn cudaPeekAtLastError() -> c_int {
    thread::last_error()
}

/// Returns the name of an error.
#[no_mangle]
pub extern "C" fn cudaGetErrorName(error: c_int) -> *const c_char {
    name_of(error)
}

/// Returns the description of an error.
#[no_mangle]
pub extern "C" fn cudaGetErrorString(error: c_int) -> *const c_char {
    text_of(error)
}

/// Returns a description of a channel, which only functions of arrays take.
#[no_mangle]
pub extern "C" fn cudaCreateChannelDesc(x: c_int, y: c_int, z: c_int, w: c_int, f: c_int) -> ChannelFormat {
    ChannelFormat { x, y, z, w, kind: f }
}

/// Bit of the flags that asks for functions with the default stream of the thread.
const PER_THREAD_DEFAULT_STREAM: u64 = 2;

fn entry_point(symbol: *const c_char, place: *mut *mut c_void, version: c_uint, flags: u64, status: *mut c_int) -> super::Outcome {
    const FOUND: c_int = 0;
    const NOT_FOUND: c_int = 1;
    require(symbol)?;
    require(place)?;
    let (mut address, mut found) = (ptr::null_mut(), FOUND);
    let outcome = unsafe { driver()?.cuGetProcAddress_v2(symbol, &mut address, version as c_int, flags, &mut found) };
    if outcome.is_err() && found == FOUND {
        found = NOT_FOUND;
    }
    unsafe { store(place, address) }?;
    if status.is_null() {
        return outcome;
    }
    unsafe { store(status, found) }
}

runtime_api! {
    /// Stores the version of the driver, 0 without one.
    fn cudaDriverGetVersion(driverVersion: *mut c_int) {
        require(driverVersion)?;
        let mut version = 0;
        if let Some(driver) = uninitialized() {
            unsafe { driver.cuDriverGetVersion(&mut version) }?;
        }
        unsafe { store(driverVersion, version) }
    }

    /// Stores the version of this library.
    fn cudaRuntimeGetVersion(runtimeVersion: *mut c_int) {
        unsafe { store(runtimeVersion, RUNTIME_VERSION) }
    }

    /// Starts the profiler, if the driver has one.
    fn cudaProfilerStart() {
        let _ = unsafe { driver()?.cuProfilerStart() };
        Ok(())
    }

    /// Stops the profiler, if the driver has one.
    fn cudaProfilerStop() {
        let _ = unsafe { driver()?.cuProfilerStop() };
        Ok(())
    }

    /// Stores the address of a function of the driver.
    fn cudaGetDriverEntryPoint(symbol: *const c_char, funcPtr: *mut *mut c_void, flags: u64, driverStatus: *mut c_int) {
        entry_point(symbol, funcPtr, RUNTIME_VERSION as c_uint, flags, driverStatus)
    }

    /// Stores the address of a function of the driver, with the default stream of the thread.
    fn cudaGetDriverEntryPoint_ptsz(symbol: *const c_char, funcPtr: *mut *mut c_void, flags: u64, driverStatus: *mut c_int) {
        let flags = if flags == 0 { PER_THREAD_DEFAULT_STREAM } else { flags };
        entry_point(symbol, funcPtr, RUNTIME_VERSION as c_uint, flags, driverStatus)
    }

    /// Stores the address of a function of the driver, as of a version.
    fn cudaGetDriverEntryPointByVersion(
        symbol: *const c_char, funcPtr: *mut *mut c_void, cudaVersion: c_uint, flags: u64, driverStatus: *mut c_int,
    ) {
        entry_point(symbol, funcPtr, cudaVersion, flags, driverStatus)
    }

    /// Stores the address of a function of the driver, as of a version and with the default stream of the thread.
    fn cudaGetDriverEntryPointByVersion_ptsz(
        symbol: *const c_char, funcPtr: *mut *mut c_void, cudaVersion: c_uint, flags: u64, driverStatus: *mut c_int,
    ) {
        let flags = if flags == 0 { PER_THREAD_DEFAULT_STREAM } else { flags };
        entry_point(symbol, funcPtr, cudaVersion, flags, driverStatus)
    }

    /// Finds no private tables.
    fn cudaGetExportTable(ppExportTable: *mut *const c_void, pExportTableId: *const [u8; 16]) {
        let _ = (ppExportTable, pExportTableId);
        Err(Error::NOT_SUPPORTED)
    }
}
