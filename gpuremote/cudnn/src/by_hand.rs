//! What this library knows itself: streams of handles, types of tensors, versions, texts of statuses.

use std::ffi::{c_char, CStr};
use std::sync::OnceLock;

use gpuremote_client::Notes;

use crate::stubs::{remote, STATUSES};

/// The version of CUDA's runtime that the library is for.
const RUNTIME_VERSION: usize = 13000;
/// CUDNN_DATA_DOUBLE.
const DOUBLE: i32 = 1;

static STREAMS: Notes<u64> = Notes::new();
/// The `cudnnDataType_t` of tensors.
static TENSOR_TYPES: Notes<i32> = Notes::new();

/// Bytes of a number of this `cudnnDataType_t`; those of less than a byte count as one.
pub(crate) fn data_bytes(data_type: i32) -> usize {
    match data_type {
        DOUBLE | 10 | 20 => 8,
        2 | 9 => 2,
        3 | 6 | 11..=13 | 15..=18 | 22 | 23 => 1,
        21 => 16,
        _ => 4,
    }
}

/// Bytes of alpha and beta: they are of 64 bits where the tensor is, and otherwise of 32.
pub(crate) fn scale_bytes(tensor: u64) -> usize {
    if TENSOR_TYPES.of(tensor) == DOUBLE {
        8
    } else {
        4
    }
}

/// Bytes of a value of this tensor.
pub(crate) fn value_bytes(tensor: u64) -> usize {
    data_bytes(TENSOR_TYPES.of(tensor))
}

fn noted(status: i32, tensor: u64, data_type: i32) -> i32 {
    if status == STATUSES.ok {
        TENSOR_TYPES.change(tensor, |known| *known = data_type);
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cudnnSetTensor4dDescriptor(tensor: u64, format: i32, data_type: i32, n: i32, c: i32, h: i32, w: i32) -> i32 {
    noted(remote::cudnnSetTensor4dDescriptor(tensor, format, data_type, n, c, h, w), tensor, data_type)
}

#[no_mangle]
pub unsafe extern "C" fn cudnnSetTensor4dDescriptorEx(
    tensor: u64,
    data_type: i32,
    n: i32,
    c: i32,
    h: i32,
    w: i32,
    n_stride: i32,
    c_stride: i32,
    h_stride: i32,
    w_stride: i32,
) -> i32 {
    let status = remote::cudnnSetTensor4dDescriptorEx(tensor, data_type, n, c, h, w, n_stride, c_stride, h_stride, w_stride);
    noted(status, tensor, data_type)
}

#[no_mangle]
pub unsafe extern "C" fn cudnnSetTensorNdDescriptor(
    tensor: u64,
    data_type: i32,
    rank: i32,
    dimensions: *const i32,
    strides: *const i32,
) -> i32 {
    noted(remote::cudnnSetTensorNdDescriptor(tensor, data_type, rank, dimensions, strides), tensor, data_type)
}

#[no_mangle]
pub unsafe extern "C" fn cudnnSetTensorNdDescriptorEx(tensor: u64, format: i32, data_type: i32, rank: i32, dimensions: *const i32) -> i32 {
    noted(remote::cudnnSetTensorNdDescriptorEx(tensor, format, data_type, rank, dimensions), tensor, data_type)
}

#[no_mangle]
pub unsafe extern "C" fn cudnnSetStream(handle: u64, stream: u64) -> i32 {
    let status = remote::cudnnSetStream(handle, stream);
    if status == STATUSES.ok {
        STREAMS.change(handle, |known| *known = stream);
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cudnnDestroy(handle: u64) -> i32 {
    STREAMS.forget(handle);
    remote::cudnnDestroy(handle)
}

#[no_mangle]
pub unsafe extern "C" fn cudnnGetStream(handle: u64, stream: *mut u64) -> i32 {
    if stream.is_null() {
        return STATUSES.invalid;
    }
    *stream = STREAMS.of(handle);
    STATUSES.ok
}

/// A version, from a call that returns it in place of a status. Statuses are smaller, and give 0.
fn version(kept: &OnceLock<usize>, ask: impl FnOnce() -> i32) -> usize {
    *kept.get_or_init(|| usize::try_from(ask()).ok().filter(|&version| version >= 10000).unwrap_or(0))
}

#[no_mangle]
pub unsafe extern "C" fn cudnnGetVersion() -> usize {
    static VERSION: OnceLock<usize> = OnceLock::new();
    version(&VERSION, || remote::cudnnGetVersion())
}

#[no_mangle]
pub unsafe extern "C" fn cudnnGetMaxDeviceVersion() -> usize {
    static VERSION: OnceLock<usize> = OnceLock::new();
    *VERSION.get_or_init(|| usize::try_from(remote::cudnnGetMaxDeviceVersion()).unwrap_or(0))
}

#[no_mangle]
pub extern "C" fn cudnnGetCudartVersion() -> usize {
    RUNTIME_VERSION
}

/// Names of statuses. Others are told by the thousands that they belong to.
const NAMES: [(i32, &CStr); 8] = [
    (0, c"CUDNN_STATUS_SUCCESS"),
    (1001, c"CUDNN_STATUS_NOT_INITIALIZED"),
    (1002, c"CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"),
    (2000, c"CUDNN_STATUS_BAD_PARAM"),
    (2002, c"CUDNN_STATUS_BAD_PARAM_NULL_POINTER"),
    (3000, c"CUDNN_STATUS_NOT_SUPPORTED"),
    (4000, c"CUDNN_STATUS_INTERNAL_ERROR"),
    (5000, c"CUDNN_STATUS_EXECUTION_FAILED"),
];

#[no_mangle]
pub extern "C" fn cudnnGetErrorString(status: i32) -> *const c_char {
    let named = |status| NAMES.iter().find(|(number, _)| *number == status);
    named(status).or_else(|| named(status / 1000 * 1000)).map_or(c"CUDNN_STATUS_UNKNOWN", |(_, name)| name).as_ptr()
}

/// What went wrong last is in the log of the server's library.
#[no_mangle]
pub unsafe extern "C" fn cudnnGetLastErrorString(message: *mut c_char, size: usize) {
    if !message.is_null() && size > 0 {
        *message = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_no_statuses() {
        assert_eq!(version(&OnceLock::new(), || 91300), 91300);
        assert_eq!(version(&OnceLock::new(), || 1001), 0);
    }

    #[test]
    fn statuses_have_the_names_of_their_thousands() {
        let name = |status| unsafe { CStr::from_ptr(cudnnGetErrorString(status)) };
        assert_eq!(name(3004), c"CUDNN_STATUS_NOT_SUPPORTED");
        assert_eq!(name(2002), c"CUDNN_STATUS_BAD_PARAM_NULL_POINTER");
        assert_eq!(name(9000), c"CUDNN_STATUS_UNKNOWN");
    }
}
