//! What this library knows of its handles.

use gpuremote_client::Notes;

use crate::stubs::{remote, STATUSES};

/// CUBLAS_POINTER_MODE_HOST, the mode of a new handle, and CUBLAS_POINTER_MODE_DEVICE.
const HOST: i32 = 0;
const DEVICE: i32 = 1;

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
pub unsafe extern "C" fn cublasSetStream_v2(handle: u64, stream: u64) -> i32 {
    let status = remote::cublasSetStream_v2(handle, stream);
    if status == STATUSES.ok {
        SETTINGS.change(handle, |settings| settings.stream = stream);
    }
    status
}
