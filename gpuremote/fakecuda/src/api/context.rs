//! Contexts.

use super::{driver_api, require, store};
use crate::abi::*;
use crate::device::DRIVER_VERSION;
use crate::driver::{current, pop_current, push_current, Current, Driver, Initialized};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

/// Bits of the flags that `cuCtxCreate` takes.
const KNOWN_FLAGS: u32 = 0xFF;

fn create(driver: &Driver, place: *mut CUcontext, flags: u32, device: CUdevice) -> super::Outcome {
    require(place)?;
    driver.check_device(device)?;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let handle = driver.create_context(device, flags);
    push_current(handle);
    unsafe { store(place, handle) }
}

fn release_primary(driver: &Driver, device: CUdevice) -> super::Outcome {
    driver.check_device(device)?;
    let ended = {
        let primary = &mut driver.primaries()[device as usize];
        if primary.retains == 0 {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        primary.retains -= 1;
        if primary.retains > 0 {
            return Ok(());
        }
        primary.active = false;
        primary.handle
    };
    ended.map_or(Ok(()), |context| driver.destroy_context(context))
}

fn reset_primary(driver: &Driver, device: CUdevice) -> super::Outcome {
    driver.check_device(device)?;
    let ended = {
        let primary = &mut driver.primaries()[device as usize];
        if !std::mem::take(&mut primary.active) {
            return Ok(());
        }
        primary.handle
    };
    ended.map_or(Ok(()), |context| driver.destroy_context(context))
}

fn set_primary_flags(driver: &Driver, device: CUdevice, flags: u32) -> super::Outcome {
    driver.check_device(device)?;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let primary = &mut driver.primaries()[device as usize];
    primary.flags = flags;
    if let Some(context) = primary.handle.and_then(|handle| driver.contexts.get(handle)) {
        context.flags.store(flags, Ordering::Relaxed);
    }
    Ok(())
}

driver_api! { ENTRIES;
    /// Retains the primary context of a device, and creates it if it isn't active.
    fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) with Initialized(driver) => Initialized, {
        require(pctx)?;
        driver.check_device(dev)?;
        let primary = &mut driver.primaries()[dev as usize];
        let handle = *primary.handle.get_or_insert_with(|| driver.contexts.reserve());
        if !primary.active {
            driver.create_context_as(handle, dev, primary.flags);
            primary.active = true;
        }
        primary.retains += 1;
        unsafe { store(pctx, handle) }
    }

    /// Releases the primary context of a device.
    fn cuDevicePrimaryCtxRelease(dev: CUdevice) with Initialized(driver) => Initialized, {
        release_primary(driver, dev)
    }

    /// Releases the primary context of a device.
    fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) with Initialized(driver) => Initialized, {
        release_primary(driver, dev)
    }

    /// Ends everything in the primary context of a device.
    fn cuDevicePrimaryCtxReset(dev: CUdevice) with Initialized(driver) => Initialized, {
        reset_primary(driver, dev)
    }

    /// Ends everything in the primary context of a device.
    fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) with Initialized(driver) => Initialized, {
        reset_primary(driver, dev)
    }

    /// Sets the flags of the primary context.
    fn cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: c_uint) with Initialized(driver) => Initialized, {
        set_primary_flags(driver, dev, flags)
    }

    /// Sets the flags of the primary context.
    fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: c_uint) with Initialized(driver) => Initialized, {
        set_primary_flags(driver, dev, flags)
    }

    /// Stores the state of the primary context.
    fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint, active: *mut c_int)
        with Initialized(driver) => Initialized,
    {
        driver.check_device(dev)?;
        let primaries = driver.primaries();
        let primary = &primaries[dev as usize];
        unsafe {
            store(flags, primary.flags)?;
            store(active, primary.active.into())
        }
    }

    /// Creates a context and makes it current.
    fn cuCtxCreate_v2(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice) with Initialized(driver) => Initialized, {
        create(driver, pctx, flags, dev)
    }

    /// Creates a context and makes it current.
    fn cuCtxCreate_v3(pctx: *mut CUcontext, params: *mut c_void, numParams: c_int, flags: c_uint, dev: CUdevice)
        with Initialized(driver) => Initialized,
    {
        if numParams != 0 {
            return Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        create(driver, pctx, flags, dev)
    }

    /// Creates a context and makes it current.
    fn cuCtxCreate_v4(pctx: *mut CUcontext, params: *mut c_void, flags: c_uint, dev: CUdevice)
        with Initialized(driver) => Initialized,
    {
        create(driver, pctx, flags, dev)
    }

    /// Ends a context.
    fn cuCtxDestroy_v2(ctx: CUcontext) with Initialized(driver) => Initialized, {
        if driver.primaries().iter().any(|primary| primary.handle == Some(ctx)) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        driver.destroy_context(ctx)?;
        if current() == Some(ctx) {
            pop_current();
        }
        Ok(())
    }

    /// Makes a context current in place of the top of the stack.
    fn cuCtxSetCurrent(ctx: CUcontext) with Initialized(driver) => Initialized, {
        if ctx != 0 && driver.contexts.get(ctx).is_none() {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        pop_current();
        if ctx != 0 {
            push_current(ctx);
        }
        Ok(())
    }

    /// Stores the current context, or null.
    fn cuCtxGetCurrent(pctx: *mut CUcontext) with _ => Initialized, {
        unsafe { store(pctx, current().unwrap_or(0)) }
    }

    /// Puts a context on the stack.
    fn cuCtxPushCurrent_v2(ctx: CUcontext) with Initialized(driver) => Initialized, {
        driver.contexts.get(ctx).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        push_current(ctx);
        Ok(())
    }

    /// Takes the current context off the stack.
    fn cuCtxPopCurrent_v2(pctx: *mut CUcontext) with _ => Initialized, {
        let context = pop_current().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if pctx.is_null() {
            return Ok(());
        }
        unsafe { store(pctx, context) }
    }

    /// Stores the device of the current context.
    fn cuCtxGetDevice(device: *mut CUdevice) with current => Current, {
        unsafe { store(device, current.context.device) }
    }

    /// Stores the flags of the current context.
    fn cuCtxGetFlags(flags: *mut c_uint) with current => Current, {
        unsafe { store(flags, current.context.flags.load(Ordering::Relaxed)) }
    }

    /// Stores a number that no other context has.
    fn cuCtxGetId(ctx: CUcontext, ctxId: *mut u64) with Initialized(driver) => Initialized, {
        let handle = if ctx == 0 { current().ok_or(CUDA_ERROR_INVALID_CONTEXT)? } else { ctx };
        driver.contexts.get(handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        unsafe { store(ctxId, handle as u64) }
    }

    /// Stores the version of the API of a context.
    fn cuCtxGetApiVersion(ctx: CUcontext, version: *mut c_uint) with Initialized(driver) => Initialized, {
        let handle = if ctx == 0 { current().ok_or(CUDA_ERROR_INVALID_CONTEXT)? } else { ctx };
        driver.contexts.get(handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        unsafe { store(version, DRIVER_VERSION as c_uint) }
    }

    /// Waits for the work of the current context.
    fn cuCtxSynchronize() with current => Current, {
        current.context.synchronize()
    }

    /// Stores the range of priorities.
    fn cuCtxGetStreamPriorityRange(leastPriority: *mut c_int, greatestPriority: *mut c_int) with _ => Current, {
        unsafe {
            if !leastPriority.is_null() {
                store(leastPriority, 0)?;
            }
            if greatestPriority.is_null() { Ok(()) } else { store(greatestPriority, -5) }
        }
    }

    /// Stores a limit of the current context.
    fn cuCtxGetLimit(pvalue: *mut usize, limit: c_uint) with current => Current, {
        let limits = current.context.limits.lock().map_err(|_| CUDA_ERROR_UNKNOWN)?;
        // Stack, printf buffer, heap, nesting, pending launches, L2 granularity, persisting L2.
        const DEFAULTS: [usize; 7] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0];
        let default = *DEFAULTS.get(limit as usize).ok_or(CUDA_ERROR_UNSUPPORTED_LIMIT)?;
        unsafe { store(pvalue, limits.get(&limit).copied().unwrap_or(default)) }
    }

    /// Sets a limit of the current context.
    fn cuCtxSetLimit(limit: c_uint, value: usize) with current => Current, {
        if limit > 6 {
            return Err(CUDA_ERROR_UNSUPPORTED_LIMIT);
        }
        current.context.limits.lock().map_err(|_| CUDA_ERROR_UNKNOWN)?.insert(limit, value);
        Ok(())
    }

    /// Stores the preference for caches, here none.
    fn cuCtxGetCacheConfig(pconfig: *mut c_uint) with _ => Current, {
        unsafe { store(pconfig, 0) }
    }

    /// Takes a preference for caches, without effect.
    fn cuCtxSetCacheConfig(config: c_uint) with _ => Current, {
        if config > 3 { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    /// Gives the memory of another context's device to this one, which no device offers.
    fn cuCtxEnablePeerAccess(peerContext: CUcontext, flags: c_uint) with _ => Current, {
        Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
    }
}
