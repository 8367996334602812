//! What this library knows itself: settings of handles, sizes of scalars, texts of statuses.

use std::ffi::{c_char, c_void, CStr};

use gpuremote_client::{data_type_bytes, Notes};

pub use crate::copies::*;
use crate::stubs::{remote, STATUSES};

/// CUBLAS_POINTER_MODE_HOST, the mode of a new handle, and CUBLAS_POINTER_MODE_DEVICE.
const HOST: i32 = 0;
const DEVICE: i32 = 1;
/// The version of CUDA's runtime that the library is for.
const RUNTIME_VERSION: usize = 13000;

/// What was set for a handle.
#[derive(Clone, Copy, Default)]
struct Settings {
    pointer_mode: i32,
    stream: u64,
}

static SETTINGS: Notes<Settings> = Notes::new();

/// Whether scalars are on the GPU.
pub(crate) fn in_device_mode(handle: u64) -> bool {
    SETTINGS.of(handle).pointer_mode == DEVICE
}

/// Bytes of a scalar of a `cudaDataType`. The server's library refuses types that are none.
pub(crate) fn bytes_of(data_type: i32) -> usize {
    data_type_bytes(data_type).unwrap_or(0)
}

/// Bytes of alpha and beta by the computation's type (`cublasComputeType_t`), as the table at cublasGemmEx has them.
pub(crate) fn scale_bytes(compute: i32, result: i32) -> usize {
    /// CUDA_C_32F, _64F, _16F, _8I.
    const COMPLEX: [i32; 4] = [4, 5, 6, 7];
    let real = match compute {
        64 | 65 => 2,
        70 | 71 | 79 => 8,
        _ => 4,
    };
    if COMPLEX.contains(&result) {
        2 * real
    } else {
        real
    }
}

#[no_mangle]
pub unsafe extern "C" fn cublasDestroy_v2(handle: u64) -> i32 {
    SETTINGS.forget(handle);
    remote::cublasDestroy_v2(handle)
}

#[no_mangle]
pub unsafe extern "C" fn cublasSetPointerMode_v2(handle: u64, mode: i32) -> i32 {
    if mode != HOST && mode != DEVICE {
        return STATUSES.invalid;
    }
    let status = remote::cublasSetPointerMode_v2(handle, mode);
    if status == STATUSES.ok {
        SETTINGS.change(handle, |settings| settings.pointer_mode = mode);
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cublasGetPointerMode_v2(handle: u64, mode: *mut i32) -> i32 {
    if mode.is_null() {
        return STATUSES.invalid;
    }
    *mode = SETTINGS.of(handle).pointer_mode;
    STATUSES.ok
}

#[no_mangle]
pub unsafe extern "C" fn cublasSetStream_v2(handle: u64, stream: u64) -> i32 {
    let status = remote::cublasSetStream_v2(handle, stream);
    if status == STATUSES.ok {
        SETTINGS.change(handle, |settings| settings.stream = stream);
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cublasGetStream_v2(handle: u64, stream: *mut u64) -> i32 {
    if stream.is_null() {
        return STATUSES.invalid;
    }
    *stream = SETTINGS.of(handle).stream;
    STATUSES.ok
}

#[no_mangle]
pub extern "C" fn cublasGetCudartVersion() -> usize {
    RUNTIME_VERSION
}

/// Name and meaning of each status.
const TEXTS: [(i32, &CStr, &CStr); 10] = [
    (0, c"CUBLAS_STATUS_SUCCESS", c"success"),
    (1, c"CUBLAS_STATUS_NOT_INITIALIZED", c"the library is not initialized"),
    (3, c"CUBLAS_STATUS_ALLOC_FAILED", c"the library could not allocate memory"),
    (7, c"CUBLAS_STATUS_INVALID_VALUE", c"an argument is invalid"),
    (8, c"CUBLAS_STATUS_ARCH_MISMATCH", c"the GPU lacks a feature"),
    (11, c"CUBLAS_STATUS_MAPPING_ERROR", c"GPU memory could not be accessed"),
    (13, c"CUBLAS_STATUS_EXECUTION_FAILED", c"a GPU program failed"),
    (14, c"CUBLAS_STATUS_INTERNAL_ERROR", c"an internal operation failed"),
    (15, c"CUBLAS_STATUS_NOT_SUPPORTED", c"the function is not supported"),
    (16, c"CUBLAS_STATUS_LICENSE_ERROR", c"the license could not be checked"),
];

#[no_mangle]
pub extern "C" fn cublasGetStatusName(status: i32) -> *const c_char {
    TEXTS.iter().find(|text| text.0 == status).map_or(c"CUBLAS_STATUS_UNKNOWN", |text| text.1).as_ptr()
}

#[no_mangle]
pub extern "C" fn cublasGetStatusString(status: i32) -> *const c_char {
    TEXTS.iter().find(|text| text.0 == status).map_or(c"unknown status", |text| text.2).as_ptr()
}

/// The real library is the server's, where nobody reads its log.
#[no_mangle]
pub extern "C" fn cublasLoggerConfigure(_: i32, _: i32, _: i32, _: *const c_char) -> i32 {
    STATUSES.ok
}

#[no_mangle]
pub extern "C" fn cublasSetLoggerCallback(_: *const c_void) -> i32 {
    STATUSES.ok
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_as_long_as_the_computation_has_them() {
        let (compute_16f, compute_32f, compute_64f, compute_32i) = (64, 68, 70, 72);
        let (r_32f, c_32f, c_64f) = (0, 4, 5);
        assert_eq!(scale_bytes(compute_16f, 2), 2);
        assert_eq!(scale_bytes(compute_32f, r_32f), 4);
        assert_eq!(scale_bytes(compute_32f, c_32f), 8);
        assert_eq!(scale_bytes(compute_64f, c_64f), 16);
        assert_eq!(scale_bytes(compute_32i, 10), 4);
    }
}
