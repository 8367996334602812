//! What is written by hand, in one place for the table of all functions, and small functions that others here answer.

use std::ffi::c_void;

pub use crate::contexts::*;
pub use crate::dispatch::*;
pub use crate::events::*;
pub use crate::images::*;
pub use crate::kernels::*;
pub use crate::maps::*;
pub use crate::memory::*;
use crate::objects::Object;
pub use crate::platforms::*;
pub use crate::programs::*;
use crate::stubs::{self, STATUSES};
pub use crate::transfers::*;

/// An old form of a marker, which waits for all commands before it.
#[no_mangle]
pub unsafe extern "C" fn clEnqueueMarker(queue: *mut Object, event: *mut *mut Object) -> i32 {
    if event.is_null() {
        return STATUSES.invalid;
    }
    stubs::clEnqueueMarkerWithWaitList(queue, 0, std::ptr::null(), event)
}

/// An old form of a barrier.
#[no_mangle]
pub unsafe extern "C" fn clEnqueueBarrier(queue: *mut Object) -> i32 {
    stubs::clEnqueueBarrierWithWaitList(queue, 0, std::ptr::null(), std::ptr::null_mut())
}

/// An old form of a barrier that waits for events.
#[no_mangle]
pub unsafe extern "C" fn clEnqueueWaitForEvents(queue: *mut Object, count: u32, events: *const *mut Object) -> i32 {
    const CL_INVALID_EVENT: i32 = -58;
    const CL_INVALID_EVENT_WAIT_LIST: i32 = -57;
    if count == 0 || events.is_null() {
        return STATUSES.invalid;
    }
    match stubs::clEnqueueBarrierWithWaitList(queue, count, events, std::ptr::null_mut()) {
        CL_INVALID_EVENT_WAIT_LIST => CL_INVALID_EVENT,
        status => status,
    }
}

/// Memory at one address for host and devices can't be had across hosts.
#[no_mangle]
pub extern "C" fn clSVMAlloc(_: *mut Object, _: u64, _: usize, _: u32) -> *mut c_void {
    std::ptr::null_mut()
}

#[no_mangle]
pub extern "C" fn clSVMFree(_: *mut Object, _: *mut c_void) {}
