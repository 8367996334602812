//! The exported functions.
//!
//! Each is declared with [`driver_api`], which establishes its condition, writes the log, and lists it for `cuGetProcAddress`.

use crate::abi::*;

pub mod context;
pub mod copy;
pub mod device;
pub mod entry;
pub mod graph;
pub mod launch;
pub mod library;
pub mod memory;
pub mod module;
pub mod pool;
pub mod stream;
pub mod tensor_map;

/// Declares exported functions: `fn name(arguments) with pattern: Condition { body }`, where the body gives
/// `Result<(), CUresult>`. `TABLE` lists their names and addresses.
macro_rules! driver_api {
    ($table:ident; $(
        $(#[$meta:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) with $pattern:pat => $condition:ty, $body:block
    )*) => {
        $(
            $(#[$meta])*
            #[no_mangle]
            #[allow(clippy::too_many_arguments)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::abi::CUresult {
                let outcome = $crate::api::contained(|| {
                    let $pattern = <$condition as $crate::driver::Condition>::establish()?;
                    $body
                });
                let result = outcome.err().unwrap_or($crate::abi::CUDA_SUCCESS);
                $crate::log::call(stringify!($name), &[$((stringify!($argument), &$argument)),*], result);
                result
            }
        )*

        /// Names and addresses of the functions of this module.
        pub const $table: &[$crate::api::Entry] =
            &[$((stringify!($name), $name as *const () as *const std::ffi::c_void)),*];
    };
}
pub(crate) use driver_api;

/// Name and address of an exported function.
pub type Entry = (&'static str, *const std::ffi::c_void);

/// Result of the body of an exported function.
pub type Outcome = Result<(), CUresult>;

/// Runs a body so that its panic doesn't cross into the caller's C code.
pub fn contained(body: impl FnOnce() -> Outcome) -> Outcome {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(Err(CUDA_ERROR_UNKNOWN))
}

/// Stores an output.
///
/// # Safety
///
/// `place` is null or the caller's place for a `T`.
///
/// # Errors
///
/// `CUDA_ERROR_INVALID_VALUE` for null.
pub unsafe fn store<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    unsafe { place.write(value) };
    Ok(())
}

/// Gives `CUDA_ERROR_INVALID_VALUE` for a null output, before the call has an effect.
pub fn require<T>(place: *const T) -> Outcome {
    if place.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

/// Stores as much of a string as fits, with a NUL byte at its end.
///
/// # Safety
///
/// `place` is null or has `size_bytes` bytes.
///
/// # Errors
///
/// `CUDA_ERROR_INVALID_VALUE` for null or no room.
pub unsafe fn store_text(place: *mut std::ffi::c_char, size_bytes: i32, text: &str) -> Outcome {
    if place.is_null() || size_bytes < 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let length = text.len().min(size_bytes as usize - 1);
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), place as *mut u8, length);
        place.add(length).write(0);
    }
    Ok(())
}
