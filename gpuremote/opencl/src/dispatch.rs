//! The ICD loader's way in.

use std::collections::HashMap;
use std::ffi::{c_char, c_void, CStr};
use std::sync::OnceLock;

use crate::objects::Object;
use crate::platforms;
use crate::stubs::{ENTRY_POINTS, ORDER};

/// The dispatch table: functions in the loader's order. Those that this library lacks are null.
#[repr(C)]
pub(crate) struct Table([*const (); ORDER.len()]);

// SAFETY: addresses of functions, which are the same for all threads.
unsafe impl Sync for Table {}
// SAFETY: as above.
unsafe impl Send for Table {}

/// The one dispatch table.
pub(crate) fn table() -> *const Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let by_name: HashMap<_, _> = ENTRY_POINTS.iter().map(|(name, entry)| (*name, entry.0)).collect();
        Table(ORDER.map(|name| by_name.get(name).copied().unwrap_or(std::ptr::null())))
    })
}

/// What the ICD loader asks for this library's platforms.
#[no_mangle]
pub unsafe extern "C" fn clIcdGetPlatformIDsKHR(count: u32, into: *mut *mut Object, found: *mut u32) -> i32 {
    platforms::clGetPlatformIDs(count, into, found)
}

#[no_mangle]
pub unsafe extern "C" fn clGetExtensionFunctionAddress(name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return std::ptr::null_mut();
    }
    match CStr::from_ptr(name).to_str() {
        Ok("clIcdGetPlatformIDsKHR") => clIcdGetPlatformIDsKHR as *mut c_void,
        // The loader asks for this one, which is no extension.
        Ok("clGetPlatformInfo") => platforms::clGetPlatformInfo as *mut c_void,
        _ => std::ptr::null_mut(),
    }
}

#[no_mangle]
pub unsafe extern "C" fn clGetExtensionFunctionAddressForPlatform(_: *mut Object, name: *const c_char) -> *mut c_void {
    clGetExtensionFunctionAddress(name)
}
