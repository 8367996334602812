//! Streams and events.

use super::{driver_api, require, store, Outcome};
use crate::abi::*;
use crate::driver::{Current, Driver};
use crate::graph::node_kind;
use crate::stream::{Event, Stream};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// The stream of a handle, with the meaning that the current context gives to the fixed ones.
pub fn find(current: &Current, handle: CUstream) -> Result<Arc<Stream>, CUresult> {
    match handle {
        stream_handle::DEFAULT | stream_handle::LEGACY => Ok(current.context.legacy_stream()),
        stream_handle::PER_THREAD => Ok(current.context.thread_stream()),
        _ => {
            let stream = current.driver.streams.get(handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
            if stream.context != current.context.handle {
                return Err(CUDA_ERROR_INVALID_HANDLE);
            }
            Ok(stream)
        }
    }
}

fn event(driver: &Driver, handle: CUevent) -> Result<Arc<Event>, CUresult> {
    driver.events.get(handle).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn create(current: &Current, place: *mut CUstream, flags: c_uint, priority: c_int) -> Outcome {
    require(place)?;
    if flags > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let handle = current.driver.streams.reserve();
    current.driver.streams.insert(handle, current.context.create_stream(flags, priority.clamp(-5, 0)));
    unsafe { store(place, handle) }
}

/// Records an event behind the work of a stream.
///
/// # Errors
///
/// `CUDA_ERROR_INVALID_HANDLE` for an unknown handle, or one of another context.
pub fn record(current: &Current, handle: CUevent, stream: CUstream) -> Outcome {
    let event = event(current.driver, handle)?;
    let stream = find(current, stream)?;
    if event.context != current.context.handle {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    event.record(|work| current.context.submit(&stream, work));
    Ok(())
}

fn elapsed(current: &Current, place: *mut f32, start: CUevent, end: CUevent) -> Outcome {
    let (start, end) = (event(current.driver, start)?, event(current.driver, end)?);
    unsafe { store(place, end.elapsed_ms(&start)?) }
}

/// A pointer of the client that its host function gets back.
pub struct UserData(pub *mut c_void);
unsafe impl Send for UserData {}
unsafe impl Sync for UserData {}

impl UserData {
    /// The pointer.
    pub fn pointer(&self) -> *mut c_void {
        self.0
    }
}

driver_api! { ENTRIES;
    /// Creates a stream.
    fn cuStreamCreate(phStream: *mut CUstream, flags: c_uint) with current => Current, {
        create(&current, phStream, flags, 0)
    }

    /// Creates a stream with a priority, which is clamped.
    fn cuStreamCreateWithPriority(phStream: *mut CUstream, flags: c_uint, priority: c_int) with current => Current, {
        create(&current, phStream, flags, priority)
    }

    /// Ends a stream, whose submitted work still runs.
    fn cuStreamDestroy_v2(hStream: CUstream) with current => Current, {
        let stream = current.driver.streams.remove(hStream).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(context) = current.driver.contexts.get(stream.context) {
            context.forget_stream(&stream);
        }
        Ok(())
    }

    /// Waits for the work of a stream.
    fn cuStreamSynchronize(hStream: CUstream) with current => Current, {
        let stream = find(&current, hStream)?;
        if stream.capture().is_some() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        current.context.submit(&stream, Box::new(|| Ok(()))).wait();
        current.context.check()
    }

    /// Reports whether the work of a stream is finished.
    fn cuStreamQuery(hStream: CUstream) with current => Current, {
        let stream = find(&current, hStream)?;
        if !stream.last_point().is_reached() {
            return Err(CUDA_ERROR_NOT_READY);
        }
        current.context.check()
    }

    /// Lets later work of a stream wait for an event.
    fn cuStreamWaitEvent(hStream: CUstream, hEvent: CUevent, flags: c_uint) with current => Current, {
        let stream = find(&current, hStream)?;
        let event = event(current.driver, hEvent)?;
        if flags > 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if let Some(point) = event.point() {
            stream.wait_for(point);
        }
        Ok(())
    }

    /// Stores the flags of a stream.
    fn cuStreamGetFlags(hStream: CUstream, flags: *mut c_uint) with current => Current, {
        unsafe { store(flags, find(&current, hStream)?.flags) }
    }

    /// Stores the priority of a stream.
    fn cuStreamGetPriority(hStream: CUstream, priority: *mut c_int) with current => Current, {
        unsafe { store(priority, find(&current, hStream)?.priority) }
    }

    /// Stores a number that no other stream has.
    fn cuStreamGetId(hStream: CUstream, streamId: *mut u64) with current => Current, {
        find(&current, hStream)?;
        unsafe { store(streamId, hStream as u64) }
    }

    /// Stores the context of a stream.
    fn cuStreamGetCtx(hStream: CUstream, pctx: *mut CUcontext) with current => Current, {
        unsafe { store(pctx, find(&current, hStream)?.context) }
    }

    /// Stores the device of a stream.
    fn cuStreamGetDevice(hStream: CUstream, device: *mut CUdevice) with current => Current, {
        find(&current, hStream)?;
        unsafe { store(device, current.context.device) }
    }

    /// Runs a function of the client in the order of a stream.
    fn cuLaunchHostFunc(hStream: CUstream, func: CUhostFn, userData: *mut c_void) with current => Current, {
        let stream = find(&current, hStream)?;
        let function = func.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let data = UserData(userData);
        let step = Arc::new(move || {
            unsafe { function(data.pointer()) };
            Ok(())
        });
        current.context.append(&stream, current.driver.nodes.reserve(), node_kind::HOST, step).map(|_| ())
    }

    /// Runs a callback of the client in the order of a stream.
    fn cuStreamAddCallback(hStream: CUstream, callback: CUstreamCallback, userData: *mut c_void, flags: c_uint)
        with current => Current,
    {
        let stream = find(&current, hStream)?;
        let function = callback.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let data = UserData(userData);
        current.context.submit(&stream, Box::new(move || {
            unsafe { function(hStream, CUDA_SUCCESS, data.pointer()) };
            Ok(())
        }));
        Ok(())
    }

    /// Creates an event.
    fn cuEventCreate(phEvent: *mut CUevent, flags: c_uint) with current => Current, {
        require(phEvent)?;
        // Blocking, no timing, interprocess: the last needs the second.
        if flags > 7 || flags & 6 == 4 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        unsafe { store(phEvent, current.driver.events.add(Event::new(current.context.handle, flags))) }
    }

    /// Ends an event.
    fn cuEventDestroy_v2(hEvent: CUevent) with current => Current, {
        current.driver.events.remove(hEvent).map(|_| ()).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// Records an event behind the work of a stream.
    fn cuEventRecord(hEvent: CUevent, hStream: CUstream) with current => Current, {
        record(&current, hEvent, hStream)
    }

    /// Records an event behind the work of a stream.
    fn cuEventRecordWithFlags(hEvent: CUevent, hStream: CUstream, flags: c_uint) with current => Current, {
        if flags > 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        record(&current, hEvent, hStream)
    }

    /// Reports whether the work before the last record is finished.
    fn cuEventQuery(hEvent: CUevent) with current => Current, {
        match event(current.driver, hEvent)?.point() {
            Some(point) if !point.is_reached() => Err(CUDA_ERROR_NOT_READY),
            _ => current.context.check(),
        }
    }

    /// Waits for the work before the last record.
    fn cuEventSynchronize(hEvent: CUevent) with current => Current, {
        if let Some(point) = event(current.driver, hEvent)?.point() {
            point.wait();
        }
        current.context.check()
    }

    /// Stores the milliseconds between two events.
    fn cuEventElapsedTime(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) with current => Current, {
        elapsed(&current, pMilliseconds, hStart, hEnd)
    }

    /// Stores the milliseconds between two events.
    fn cuEventElapsedTime_v2(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) with current => Current, {
        elapsed(&current, pMilliseconds, hStart, hEnd)
    }
}
