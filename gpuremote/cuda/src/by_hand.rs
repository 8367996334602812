//! What this library answers itself, and the list of all that is written by hand.

use std::collections::HashMap;
use std::ffi::{c_char, c_void, CStr, CString};
use std::sync::{Mutex, OnceLock};

pub use crate::boxes::*;
pub use crate::contexts::*;
pub use crate::copies::*;
pub use crate::fills::*;
use crate::front;
pub use crate::graphs::*;
pub use crate::host_functions::*;
pub use crate::launch::*;
pub use crate::places::*;
pub use crate::pools::*;
pub use crate::programs::*;
use crate::stubs::{numbers, remote, ENTRY_POINTS, STATUSES};
pub use crate::tensor_maps::*;

/// CUDA_ERROR_NOT_FOUND.
const NOT_FOUND: i32 = 500;
/// CU_GET_PROC_ADDRESS_SUCCESS and _SYMBOL_NOT_FOUND.
const FOUND: i32 = 0;
const NO_SYMBOL: i32 = 1;

/// CUdevice_attribute of what this library lacks, whatever the device has: mapped host memory of other hosts, managed memory, access to pageable
/// memory and its forms, atomics on host memory, registered memory at its own address, and arrays.
const LACKING: [i32; 9] = [83, 86, 88, 89, 91, 98, 100, 101, 121];
/// CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY.
const MAPS_HOST_MEMORY: i32 = 19;

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) -> i32 {
    let status = remote::cuDeviceGetAttribute(value, attribute, device);
    if status != STATUSES.ok || value.is_null() {
        return status;
    }
    let shares_memory = front().session().is_ok_and(|session| session.arena().is_some());
    if LACKING.contains(&attribute) || (attribute == MAPS_HOST_MEMORY && !shares_memory) {
        *value = 0;
    }
    status
}

/// Texts of statuses, kept for good as the API promises.
unsafe fn error_text(number: u16, status: i32, text: *mut *const c_char) -> i32 {
    static TEXTS: OnceLock<Mutex<HashMap<(u16, i32), CString>>> = OnceLock::new();
    if text.is_null() {
        return STATUSES.invalid;
    }
    let mut texts = TEXTS.get_or_init(Mutex::default).lock().expect("no one panics with this lock");
    if let Some(kept) = texts.get(&(number, status)) {
        *text = kept.as_ptr();
        return STATUSES.ok;
    }
    *text = std::ptr::null();
    let mut bytes = Vec::new();
    let asked = front().call(
        number,
        |encoder| encoder.i32(status),
        |decoder| {
            bytes = decoder.bytes_counted()?.to_vec();
            Ok(())
        },
    );
    if asked == STATUSES.ok {
        let kept = CString::new(bytes).unwrap_or_default();
        *text = kept.as_ptr();
        texts.insert((number, status), kept);
    }
    asked
}

#[no_mangle]
pub unsafe extern "C" fn cuGetErrorName(status: i32, name: *mut *const c_char) -> i32 {
    error_text(numbers::cuGetErrorName, status, name)
}

#[no_mangle]
pub unsafe extern "C" fn cuGetErrorString(status: i32, text: *mut *const c_char) -> i32 {
    error_text(numbers::cuGetErrorString, status, text)
}

/// The latest form of a function: names are those without the suffix of a version.
fn entry(name: &str) -> Option<*const ()> {
    static BY_NAME: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    let by_name = BY_NAME.get_or_init(|| ENTRY_POINTS.iter().map(|(name, entry)| (*name, entry.0 as usize)).collect());
    // Context creation and elapsed times have later forms whose arguments differ; programs that ask by number want those of their headers.
    ["_v4", "_v3", "_v2", ""].iter().find_map(|suffix| by_name.get(format!("{name}{suffix}").as_str())).map(|&entry| entry as *const ())
}

#[no_mangle]
pub unsafe extern "C" fn cuGetProcAddress_v2(name: *const c_char, function: *mut *const (), version: i32, _: u64, status: *mut i32) -> i32 {
    if name.is_null() || function.is_null() {
        return STATUSES.invalid;
    }
    let name = CStr::from_ptr(name).to_str().unwrap_or("");
    // Forms of context creation by the version of CUDA that brought them.
    let found = match name {
        "cuCtxCreate" if version < 11040 => entry_exactly("cuCtxCreate_v2"),
        "cuCtxCreate" if version < 13000 => entry_exactly("cuCtxCreate_v3"),
        "cuEventElapsedTime" if version < 12080 => entry_exactly("cuEventElapsedTime"),
        "cuStreamGetCaptureInfo" if version < 13000 => entry_exactly("cuStreamGetCaptureInfo_v2"),
        "cuGraphInstantiate" => entry_exactly("cuGraphInstantiateWithFlags"),
        "cuGetProcAddress" if version < 12000 => entry_exactly("cuGetProcAddress"),
        _ => entry(name),
    };
    *function = found.unwrap_or(std::ptr::null());
    if !status.is_null() {
        *status = if found.is_some() { FOUND } else { NO_SYMBOL };
    }
    match found {
        Some(_) => STATUSES.ok,
        None => NOT_FOUND,
    }
}

fn entry_exactly(name: &str) -> Option<*const ()> {
    ENTRY_POINTS.iter().find(|(entry, _)| *entry == name).map(|(_, entry)| entry.0)
}

#[no_mangle]
pub unsafe extern "C" fn cuGetProcAddress(name: *const c_char, function: *mut *const (), version: i32, flags: u64) -> i32 {
    cuGetProcAddress_v2(name, function, version, flags, std::ptr::null_mut())
}

/// These tables are a private matter of NVIDIA's own libraries.
#[no_mangle]
pub unsafe extern "C" fn cuGetExportTable(table: *mut *const c_void, _: *const u8) -> i32 {
    if !table.is_null() {
        *table = std::ptr::null();
    }
    NOT_FOUND
}

#[no_mangle]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut i32) -> i32 {
    if mode.is_null() {
        return STATUSES.invalid;
    }
    front().call(
        numbers::cuThreadExchangeStreamCaptureMode,
        |encoder| encoder.i32(*mode),
        |decoder| {
            *mode = decoder.i32()?;
            Ok(())
        },
    )
}

#[no_mangle]
pub extern "C" fn cuProfilerStart() -> i32 {
    STATUSES.ok
}

#[no_mangle]
pub extern "C" fn cuProfilerStop() -> i32 {
    STATUSES.ok
}
