//! What this library knows itself: settings of handles, sizes of scalars, texts of statuses.

use std::ffi::{c_char, CStr};

use gpuremote_client::{data_type_bytes, Notes};

use crate::stubs::{remote, STATUSES};

/// CUSPARSE_POINTER_MODE_HOST, the mode of a new handle, and CUSPARSE_POINTER_MODE_DEVICE.
const HOST: i32 = 0;
const DEVICE: i32 = 1;

/// What was set for a handle.
#[derive(Clone, Copy, Default)]
struct Settings {
    pointer_mode: i32,
    stream: u64,
}

static SETTINGS: Notes<Settings> = Notes::new();
/// The `cudaDataType` of dense vectors.
static VECTOR_TYPES: Notes<i32> = Notes::new();

/// Whether scalars are on the GPU.
pub(crate) fn in_device_mode(handle: u64) -> bool {
    SETTINGS.of(handle).pointer_mode == DEVICE
}

/// Bytes of a scalar of a `cudaDataType`. The server's library refuses types that are none.
pub(crate) fn bytes_of(data_type: i32) -> usize {
    data_type_bytes(data_type).unwrap_or(0)
}

/// Bytes of a scalar of a dense vector's type. Where values are short, the scalar is of 32 bits.
pub(crate) fn vector_bytes(vector: u64) -> usize {
    bytes_of(VECTOR_TYPES.of(vector)).max(4)
}

#[no_mangle]
pub unsafe extern "C" fn cusparseDestroy(handle: u64) -> i32 {
    SETTINGS.forget(handle);
    remote::cusparseDestroy(handle)
}

#[no_mangle]
pub unsafe extern "C" fn cusparseSetPointerMode(handle: u64, mode: i32) -> i32 {
    if mode != HOST && mode != DEVICE {
        return STATUSES.invalid;
    }
    let status = remote::cusparseSetPointerMode(handle, mode);
    if status == STATUSES.ok {
        SETTINGS.change(handle, |settings| settings.pointer_mode = mode);
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cusparseGetPointerMode(handle: u64, mode: *mut i32) -> i32 {
    if mode.is_null() {
        return STATUSES.invalid;
    }
    *mode = SETTINGS.of(handle).pointer_mode;
    STATUSES.ok
}

#[no_mangle]
pub unsafe extern "C" fn cusparseSetStream(handle: u64, stream: u64) -> i32 {
    let status = remote::cusparseSetStream(handle, stream);
    if status == STATUSES.ok {
        SETTINGS.change(handle, |settings| settings.stream = stream);
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cusparseGetStream(handle: u64, stream: *mut u64) -> i32 {
    if stream.is_null() {
        return STATUSES.invalid;
    }
    *stream = SETTINGS.of(handle).stream;
    STATUSES.ok
}

unsafe fn noted(status: i32, vector: *const u64, data_type: i32) -> i32 {
    if status == STATUSES.ok {
        // The number may have been another vector's.
        VECTOR_TYPES.change(*vector, |known| *known = data_type);
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cusparseCreateDnVec(vector: *mut u64, size: i64, values: u64, data_type: i32) -> i32 {
    noted(remote::cusparseCreateDnVec(vector, size, values, data_type), vector, data_type)
}

#[no_mangle]
pub unsafe extern "C" fn cusparseCreateConstDnVec(vector: *mut u64, size: i64, values: u64, data_type: i32) -> i32 {
    noted(remote::cusparseCreateConstDnVec(vector, size, values, data_type), vector, data_type)
}

/// Name and meaning of each status, by its number.
const TEXTS: [(&CStr, &CStr); 12] = [
    (c"CUSPARSE_STATUS_SUCCESS", c"success"),
    (c"CUSPARSE_STATUS_NOT_INITIALIZED", c"the library is not initialized"),
    (c"CUSPARSE_STATUS_ALLOC_FAILED", c"the library could not allocate memory"),
    (c"CUSPARSE_STATUS_INVALID_VALUE", c"an argument is invalid"),
    (c"CUSPARSE_STATUS_ARCH_MISMATCH", c"the GPU lacks a feature"),
    (c"CUSPARSE_STATUS_MAPPING_ERROR", c"GPU memory could not be accessed"),
    (c"CUSPARSE_STATUS_EXECUTION_FAILED", c"a GPU program failed"),
    (c"CUSPARSE_STATUS_INTERNAL_ERROR", c"an internal operation failed"),
    (c"CUSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED", c"the type of the matrix is not supported"),
    (c"CUSPARSE_STATUS_ZERO_PIVOT", c"a pivot is zero"),
    (c"CUSPARSE_STATUS_NOT_SUPPORTED", c"the function is not supported"),
    (c"CUSPARSE_STATUS_INSUFFICIENT_RESOURCES", c"the GPU has too few resources"),
];

fn text(status: i32) -> (&'static CStr, &'static CStr) {
    let known = usize::try_from(status).ok().and_then(|status| TEXTS.get(status));
    known.copied().unwrap_or((c"CUSPARSE_STATUS_UNKNOWN", c"unknown status"))
}

#[no_mangle]
pub extern "C" fn cusparseGetErrorName(status: i32) -> *const c_char {
    text(status).0.as_ptr()
}

#[no_mangle]
pub extern "C" fn cusparseGetErrorString(status: i32) -> *const c_char {
    text(status).1.as_ptr()
}
