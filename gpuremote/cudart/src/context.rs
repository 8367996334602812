//! Primary contexts, made current where a thread has no context.
//!
//! A context that the application made current through the driver API stays current, as the runtime API reference says under
//! "Interactions with the CUDA Driver API".

use crate::abi::Handle;
use crate::driver::{driver, Driver};
use crate::error::{Error, Outcome};
use crate::{registry, thread};
use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Retained primary contexts by device.
static PRIMARIES: Mutex<Option<HashMap<i32, Handles>>> = Mutex::new(None);
/// Number of device resets, after each of which all threads look for their context again.
static RESETS: AtomicU64 = AtomicU64::new(0);

/// A handle that threads share.
#[derive(Clone, Copy)]
struct Handles(Handle);
unsafe impl Send for Handles {}

fn primaries() -> MutexGuard<'static, Option<HashMap<i32, Handles>>> {
    PRIMARIES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The primary context of a device, retained once by this process.
///
/// # Errors
///
/// Those of `cuDevicePrimaryCtxRetain`.
pub fn primary(device: i32) -> Outcome<Handle> {
    let mut primaries = primaries();
    let known = primaries.get_or_insert_with(HashMap::new);
    if let Some(context) = known.get(&device) {
        return Ok(context.0);
    }
    let mut context = ptr::null_mut();
    unsafe { driver()?.cuDevicePrimaryCtxRetain(&mut context, device) }?;
    known.insert(device, Handles(context));
    Ok(context)
}

/// The driver with a current context, and the context.
///
/// # Errors
///
/// Those of the initialization of driver and context.
pub fn current() -> Outcome<(&'static Driver, Handle)> {
    let driver = driver()?;
    let resets = RESETS.load(Ordering::Acquire);
    let mut context = ptr::null_mut();
    if thread::generation() == resets {
        unsafe { driver.cuCtxGetCurrent(&mut context) }?;
    }
    if context.is_null() {
        context = primary(thread::device())?;
        unsafe { driver.cuCtxSetCurrent(context) }?;
        thread::set_generation(resets);
    }
    Ok((driver, context))
}

/// The device of the calling thread: that of its current context, or else that of `cudaSetDevice`.
///
/// # Errors
///
/// Those of the initialization of the driver.
pub fn device() -> Outcome<i32> {
    let driver = driver()?;
    let (mut context, mut device) = (ptr::null_mut(), 0);
    if thread::generation() == RESETS.load(Ordering::Acquire) {
        unsafe { driver.cuCtxGetCurrent(&mut context) }?;
    }
    if context.is_null() || unsafe { driver.cuCtxGetDevice(&mut device) }.is_err() {
        return Ok(thread::device());
    }
    Ok(device)
}

/// Makes the primary context of a device current in the calling thread.
///
/// # Errors
///
/// `cudaErrorInvalidDevice`, and those of the initialization of driver and context.
pub fn set_device(device: i32) -> Outcome {
    let driver = driver()?;
    check_device(driver, device)?;
    let resets = RESETS.load(Ordering::Acquire);
    unsafe { driver.cuCtxSetCurrent(primary(device)?) }?;
    thread::set_device(device);
    thread::set_generation(resets);
    Ok(())
}

/// Checks the ordinal of a device.
///
/// # Errors
///
/// `cudaErrorInvalidDevice`.
pub fn check_device(driver: &Driver, device: i32) -> Outcome {
    let mut count = 0;
    unsafe { driver.cuDeviceGetCount(&mut count) }?;
    if (0..count).contains(&device) {
        return Ok(());
    }
    Err(Error::INVALID_DEVICE)
}

/// Ends everything that the process has on the calling thread's device.
///
/// # Errors
///
/// Those of `cuDevicePrimaryCtxReset`.
pub fn reset() -> Outcome {
    let device = device()?;
    let driver = driver()?;
    if let Some(context) = primaries().as_mut().and_then(|known| known.remove(&device)) {
        registry::forget_context(context.0);
    }
    let outcome = unsafe { driver.cuDevicePrimaryCtxReset_v2(device) };
    RESETS.fetch_add(1, Ordering::AcqRel);
    outcome
}
