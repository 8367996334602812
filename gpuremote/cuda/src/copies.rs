//! Copies between this program's memory and the GPU.

use std::slice;

use gpuremote_client::wire::Encoder;

use crate::front;
use crate::places::{is_device, is_device_surely, shared_offset};
use crate::stubs::{cuMemcpyDtoDAsync_v2, cuMemcpyDtoD_v2, numbers, STATUSES};

/// The default stream.
pub(crate) const DEFAULT_STREAM: u64 = 0;

/// The stream of each thread, whose copies other threads can't carry.
const STREAM_OF_THREAD: u64 = 2;

/// By what way the data of a copy goes, as the server reads it.
#[derive(Clone, Copy)]
enum Way {
    /// After the message, or after its reply.
    Lane,
    /// It lies in host memory that both sides share, at this offset.
    Shared(usize),
    /// By so many stripes.
    Stripes(usize),
}

/// A copy: where on the GPU, how much, in which stream, and whether the caller counts on its end.
#[derive(Clone, Copy)]
struct Copy {
    device: u64,
    bytes: usize,
    stream: u64,
    at_once: bool,
}

impl Copy {
    fn encode(self, way: Way, encoder: &mut Encoder) {
        encoder.u64(self.device);
        encoder.usize(self.bytes);
        encoder.u64(self.stream);
        encoder.u8(self.at_once.into());
        let (way, place) = match way {
            Way::Lane => (0, 0),
            Way::Shared(offset) => (1, offset),
            Way::Stripes(count) => (2, count),
        };
        encoder.u8(way);
        encoder.usize(place);
    }

    fn goes_by_stripes(self) -> bool {
        self.stream != STREAM_OF_THREAD && front().stripes_copy(self.bytes)
    }
}

/// The data has left the program's memory when this returns, as the API promises. Where the destination is known to be right, nothing can go
/// wrong that the program would be told of here, so it does not wait for the rest.
pub(crate) unsafe fn to_device(to: u64, from: *const u8, bytes: usize, stream: u64, at_once: bool) -> i32 {
    if bytes == 0 {
        return STATUSES.ok;
    }
    if from.is_null() {
        return STATUSES.invalid;
    }
    let number = numbers::cuMemcpyHtoDAsync_v2;
    let copy = Copy { device: to, bytes, stream, at_once };
    if let Some(offset) = shared_offset(from, bytes) {
        let arguments = |encoder: &mut Encoder| copy.encode(Way::Shared(offset), encoder);
        // The program may change shared memory as soon as a copy that it counts on has returned.
        return if at_once { front().call(number, arguments, |_| Ok(())) } else { front().post(number, arguments) };
    }
    let data = slice::from_raw_parts(from, bytes);
    if !is_device(to, bytes) {
        return front().call_data(number, |encoder| copy.encode(Way::Lane, encoder), data);
    }
    let copy = Copy { at_once: false, ..copy };
    if copy.goes_by_stripes() {
        return front().post_striped(number, |encoder, count| copy.encode(Way::Stripes(count), encoder), data);
    }
    front().post_data(number, |encoder| copy.encode(Way::Lane, encoder), data)
}

pub(crate) unsafe fn to_host(to: *mut u8, from: u64, bytes: usize, stream: u64, at_once: bool) -> i32 {
    if bytes == 0 {
        return STATUSES.ok;
    }
    if to.is_null() {
        return STATUSES.invalid;
    }
    let number = numbers::cuMemcpyDtoHAsync_v2;
    let copy = Copy { device: from, bytes, stream, at_once };
    if let Some(offset) = shared_offset(to, bytes) {
        let arguments = |encoder: &mut Encoder| copy.encode(Way::Shared(offset), encoder);
        return if at_once { front().call(number, arguments, |_| Ok(())) } else { front().post(number, arguments) };
    }
    if !is_device_surely(from, bytes) {
        // A wrong address is found before data is promised.
        return STATUSES.invalid;
    }
    let buffer = slice::from_raw_parts_mut(to, bytes);
    if copy.goes_by_stripes() {
        return front().fetch_striped(number, |encoder, count| copy.encode(Way::Stripes(count), encoder), buffer);
    }
    front().fetch(number, |encoder| copy.encode(Way::Lane, encoder), buffer)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const u8, bytes: usize) -> i32 {
    to_device(to, from, bytes, DEFAULT_STREAM, true)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, bytes: usize, stream: u64) -> i32 {
    to_device(to, from, bytes, stream, false)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize) -> i32 {
    to_host(to, from, bytes, DEFAULT_STREAM, true)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, bytes: usize, stream: u64) -> i32 {
    to_host(to, from, bytes, stream, false)
}

/// With one address space, the addresses tell the direction.
unsafe fn between(to: u64, from: u64, bytes: usize, stream: Option<u64>) -> i32 {
    let (in_stream, at_once) = (stream.unwrap_or(DEFAULT_STREAM), stream.is_none());
    match (is_device_surely(to, bytes), is_device_surely(from, bytes)) {
        (true, true) => match stream {
            Some(stream) => cuMemcpyDtoDAsync_v2(to, from, bytes, stream),
            None => cuMemcpyDtoD_v2(to, from, bytes),
        },
        (true, false) => to_device(to, from as *const u8, bytes, in_stream, at_once),
        (false, true) => to_host(to as *mut u8, from, bytes, in_stream, at_once),
        (false, false) => {
            std::ptr::copy(from as *const u8, to as *mut u8, bytes);
            STATUSES.ok
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpy(to: u64, from: u64, bytes: usize) -> i32 {
    between(to, from, bytes, None)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) -> i32 {
    between(to, from, bytes, Some(stream))
}
