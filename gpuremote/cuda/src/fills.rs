//! Fills of device memory. Nobody waits for them: what lies outside an allocation is found here.

use crate::places::is_overrun;
use crate::stubs::{remote, STATUSES};

/// Bytes from the first to the last of a rectangle.
fn rectangle(pitch: usize, width_bytes: usize, height: usize) -> usize {
    if height == 0 {
        return 0;
    }
    pitch.saturating_mul(height - 1).saturating_add(width_bytes)
}

macro_rules! fills {
    ($($name:ident: $value:ty $(, $stream:ident)?;)*) => {$(
        #[no_mangle]
        pub unsafe extern "C" fn $name(to: u64, value: $value, count: usize $(, $stream: u64)?) -> i32 {
            if is_overrun(to, count.saturating_mul(size_of::<$value>())) {
                return STATUSES.invalid;
            }
            remote::$name(to, value, count $(, $stream)?)
        }
    )*};
}

macro_rules! fills_of_rectangles {
    ($($name:ident: $value:ty $(, $stream:ident)?;)*) => {$(
        #[no_mangle]
        pub unsafe extern "C" fn $name(to: u64, pitch: usize, value: $value, width: usize, height: usize $(, $stream: u64)?) -> i32 {
            let width_bytes = width.saturating_mul(size_of::<$value>());
            if (height > 1 && pitch < width_bytes) || is_overrun(to, rectangle(pitch, width_bytes, height)) {
                return STATUSES.invalid;
            }
            remote::$name(to, pitch, value, width, height $(, $stream)?)
        }
    )*};
}

fills! {
    cuMemsetD8_v2: u8;
    cuMemsetD16_v2: u16;
    cuMemsetD32_v2: u32;
    cuMemsetD8Async: u8, stream;
    cuMemsetD16Async: u16, stream;
    cuMemsetD32Async: u32, stream;
}

fills_of_rectangles! {
    cuMemsetD2D8_v2: u8;
    cuMemsetD2D16_v2: u16;
    cuMemsetD2D32_v2: u32;
    cuMemsetD2D8Async: u8, stream;
    cuMemsetD2D16Async: u16, stream;
    cuMemsetD2D32Async: u32, stream;
}
