//! The exported functions.

use crate::error::{Error, Outcome, SUCCESS};
use crate::thread;
use std::ffi::c_int;

pub mod copy;
pub mod copy3d;
pub mod device;
pub mod errors;
pub mod execution;
pub mod forwarded;
pub mod graph;
pub mod launch;
pub mod memory;
pub mod registration;
pub mod stream;
pub mod symbols;
pub mod unsupported;

/// Declares exported functions whose bodies give [`Outcome`], and whose errors become the last error of the thread.
///
/// - `fn name(arguments) { body }`
/// - `fn name | name_ptsz [stream](arguments) { body }`: the second form takes a null `stream` as the default stream of the thread.
/// - `fn name | name_ptds (arguments) on stream { body }`: `stream` is the default stream of the form.
macro_rules! runtime_api {
    () => {};
    ($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $(#[$meta])*
        #[no_mangle]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            $crate::api::reported(|| $body)
        }
        $crate::api::runtime_api! { $($rest)* }
    };
    ($(#[$meta:meta])* fn $name:ident | $other:ident [$stream:ident]($($argument:ident: $type:ty),* $(,)?) $body:block
        $($rest:tt)*) => {
        $(#[$meta])*
        #[no_mangle]
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            $crate::api::reported(|| $body)
        }
        $(#[$meta])*
        #[no_mangle]
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C" fn $other($($argument: $type),*) -> std::ffi::c_int {
            let $stream = if $stream.is_null() { $crate::abi::PER_THREAD_STREAM } else { $stream };
            unsafe { $name($($argument),*) }
        }
        $crate::api::runtime_api! { $($rest)* }
    };
    ($(#[$meta:meta])* fn $name:ident | $other:ident ($($argument:ident: $type:ty),* $(,)?) on $stream:ident $body:block
        $($rest:tt)*) => {
        $(#[$meta])*
        #[no_mangle]
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            let $stream = $crate::abi::DEFAULT_STREAM;
            $crate::api::reported(|| $body)
        }
        $(#[$meta])*
        #[no_mangle]
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C" fn $other($($argument: $type),*) -> std::ffi::c_int {
            let $stream = $crate::abi::PER_THREAD_STREAM;
            $crate::api::reported(|| $body)
        }
        $crate::api::runtime_api! { $($rest)* }
    };
}
pub(crate) use runtime_api;

/// Runs a body, keeps its error for `cudaGetLastError`, and keeps its panic out of the application.
pub fn reported(body: impl FnOnce() -> Outcome) -> c_int {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(Err(Error::UNKNOWN));
    match outcome {
        Ok(()) => SUCCESS,
        Err(error) => {
            thread::set_last_error(error);
            error.0
        }
    }
}

/// Stores an output.
///
/// # Safety
///
/// `place` is null or the application's place for a `T`.
///
/// # Errors
///
/// `cudaErrorInvalidValue` for null.
pub unsafe fn store<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { place.write(value) };
    Ok(())
}

/// Gives `cudaErrorInvalidValue` for a null output, before the call has an effect.
pub fn require<T>(place: *const T) -> Outcome {
    if place.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    Ok(())
}
