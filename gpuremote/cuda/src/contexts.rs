//! Which context is current in a thread. The server's lane for the thread has the same state; this is the copy that answers questions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use crate::front;
use crate::stubs::{kinds, numbers, remote, STATUSES};

thread_local! {
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The primary context of each device has one number, however often it is retained.
fn primaries() -> &'static Mutex<HashMap<i32, u64>> {
    static PRIMARIES: OnceLock<Mutex<HashMap<i32, u64>>> = OnceLock::new();
    PRIMARIES.get_or_init(Mutex::default)
}

fn with_stack<T>(run: impl FnOnce(&mut Vec<u64>) -> T) -> Option<T> {
    STACK.try_with(|stack| run(&mut stack.borrow_mut())).ok()
}

/// The context that is current in this thread; 0 is none.
pub(crate) fn current() -> u64 {
    with_stack(|stack| stack.last().copied()).flatten().unwrap_or(0)
}

/// The device of each context.
fn devices() -> &'static Mutex<HashMap<u64, i32>> {
    static DEVICES: OnceLock<Mutex<HashMap<u64, i32>>> = OnceLock::new();
    DEVICES.get_or_init(Mutex::default)
}

/// The device of a context; the first one where the context is unknown.
pub(crate) fn device_of(context: u64) -> i32 {
    devices().lock().expect("no one panics with this lock").get(&context).copied().unwrap_or(0)
}

/// Flags of each device's primary context and whether it is active, as far as they are known.
fn states() -> &'static Mutex<HashMap<i32, (u32, i32)>> {
    static STATES: OnceLock<Mutex<HashMap<i32, (u32, i32)>>> = OnceLock::new();
    STATES.get_or_init(Mutex::default)
}

/// The state of a device's primary context may have changed.
fn changed(status: i32, device: i32) -> i32 {
    states().lock().expect("no one panics with this lock").remove(&device);
    status
}

/// A device's primary context may have ended.
fn ended(status: i32, device: i32) -> i32 {
    if let Some(context) = primaries().lock().expect("no one panics with this lock").get(&device) {
        devices().lock().expect("no one panics with this lock").remove(context);
    }
    changed(status, device)
}

#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> i32 {
    ended(remote::cuDevicePrimaryCtxRelease_v2(device), device)
}

#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(device: i32) -> i32 {
    ended(remote::cuDevicePrimaryCtxReset_v2(device), device)
}

#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) -> i32 {
    changed(remote::cuDevicePrimaryCtxSetFlags_v2(device, flags), device)
}

/// Frameworks ask this before each operation, and nobody but this process changes it.
#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) -> i32 {
    if flags.is_null() || active.is_null() {
        return STATUSES.invalid;
    }
    if let Some(&(known_flags, known_active)) = states().lock().expect("no one panics with this lock").get(&device) {
        (*flags, *active) = (known_flags, known_active);
        return STATUSES.ok;
    }
    let status = remote::cuDevicePrimaryCtxGetState(device, flags, active);
    if status == STATUSES.ok {
        states().lock().expect("no one panics with this lock").insert(device, (*flags, *active));
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut i32) -> i32 {
    let known = devices().lock().expect("no one panics with this lock").get(&current()).copied();
    match known {
        Some(known) if !device.is_null() => {
            *device = known;
            STATUSES.ok
        }
        _ => remote::cuCtxGetDevice(device),
    }
}

fn made(status: i32, context: *const u64, device: i32) -> i32 {
    if status == STATUSES.ok {
        // SAFETY: the stub has checked the pointer, and has filled it.
        let context = unsafe { *context };
        devices().lock().expect("no one panics with this lock").insert(context, device);
        with_stack(|stack| stack.push(context));
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxCreate_v2(context: *mut u64, flags: u32, device: i32) -> i32 {
    made(remote::cuCtxCreate_v2(context, flags, device), context, device)
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxCreate_v3(
    context: *mut u64,
    affinities: *const std::ffi::c_void,
    count: i32,
    flags: u32,
    device: i32,
) -> i32 {
    made(remote::cuCtxCreate_v3(context, affinities, count, flags, device), context, device)
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxCreate_v4(context: *mut u64, parameters: *const std::ffi::c_void, flags: u32, device: i32) -> i32 {
    made(remote::cuCtxCreate_v4(context, parameters, flags, device), context, device)
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxDestroy_v2(context: u64) -> i32 {
    let status = remote::cuCtxDestroy_v2(context);
    if status == STATUSES.ok {
        devices().lock().expect("no one panics with this lock").remove(&context);
        with_stack(|stack| {
            if stack.last() == Some(&context) {
                stack.pop();
            }
        });
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxSetCurrent(context: u64) -> i32 {
    let status = remote::cuCtxSetCurrent(context);
    if status == STATUSES.ok {
        with_stack(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        });
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxPushCurrent_v2(context: u64) -> i32 {
    let status = remote::cuCtxPushCurrent_v2(context);
    if status == STATUSES.ok {
        with_stack(|stack| stack.push(context));
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut u64) -> i32 {
    let status = front().call(numbers::cuCtxPopCurrent_v2, |_| {}, |_| Ok(()));
    if status == STATUSES.ok {
        let popped = with_stack(Vec::pop).flatten().unwrap_or(0);
        if !context.is_null() {
            *context = popped;
        }
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut u64) -> i32 {
    if context.is_null() {
        return STATUSES.invalid;
    }
    *context = current();
    STATUSES.ok
}

#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) -> i32 {
    if context.is_null() {
        return STATUSES.invalid;
    }
    let mut primaries = primaries().lock().expect("no one panics with this lock");
    let known = primaries.get(&device).copied();
    let number = known.unwrap_or_else(|| front().mint(kinds::CUcontext));
    let status = front().call(
        numbers::cuDevicePrimaryCtxRetain,
        |encoder| {
            encoder.u64(number);
            encoder.i32(device);
        },
        |_| Ok(()),
    );
    if status == STATUSES.ok {
        primaries.insert(device, number);
        devices().lock().expect("no one panics with this lock").insert(number, device);
        changed(status, device);
        *context = number;
    } else if known.is_none() {
        front().unmint(kinds::CUcontext, number);
    }
    status
}
