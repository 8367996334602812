//! Copies between the client's host memory and the GPU.
//!
//! Data arrives in a ring that the driver has pinned, and the GPU's copy engine takes it from there, chunk by chunk, while the next ones
//! arrive; it puts what the client fetches into the other ring likewise. Where both sides are on one host, no processor touches the data after
//! the client has written it.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;

use gpuremote_transport::{Lane, CHUNK_BYTES, RING_BYTES};

use super::calls::Functions;
use super::NOT_SUPPORTED;

/// Data of at most so many bytes is copied into memory of the driver's own at once, as the driver does with memory that is not pinned.
const STAGED_BYTES: usize = 64 << 10;
/// How many chunks are copied at once.
const DEPTH: usize = 4;
/// CU_MEMHOSTREGISTER_PORTABLE: pinned for all contexts.
const PORTABLE: u32 = 1;
/// CU_EVENT_DISABLE_TIMING.
const WITHOUT_TIMES: u32 = 2;

type Event = *mut c_void;

/// A lane's copies: its events, which tell when a chunk is copied.
#[derive(Default)]
pub struct Copier {
    pinned: bool,
    /// Free events, which are of this context.
    events: Vec<Event>,
    context: u64,
    /// How many contexts had ended when the rings were pinned and the events made.
    ended_contexts: u64,
    staging: Vec<u8>,
}

// SAFETY: events may be used by all threads.
unsafe impl Send for Copier {}

/// A copy: its place on the GPU, its length and its stream.
#[derive(Clone, Copy)]
pub struct Transfer {
    pub device: u64,
    pub bytes: usize,
    pub stream: *mut c_void,
    /// How many contexts have ended in this process.
    pub ended_contexts: u64,
}

// SAFETY: streams may be used by all threads.
unsafe impl Send for Transfer {}

/// The driver's functions that copies use.
struct Engine {
    to_device: unsafe extern "C" fn(u64, *const u8, usize, *mut c_void) -> i32,
    to_host: unsafe extern "C" fn(*const u8, u64, usize, *mut c_void) -> i32,
    record: unsafe extern "C" fn(Event, *mut c_void) -> i32,
    wait: unsafe extern "C" fn(Event) -> i32,
    synchronize: unsafe extern "C" fn(*mut c_void) -> i32,
}

impl Engine {
    fn of(functions: &Functions) -> Option<Self> {
        Some(Engine {
            to_device: functions.cuMemcpyHtoDAsync_v2?,
            to_host: functions.cuMemcpyDtoHAsync_v2?,
            record: functions.cuEventRecord?,
            wait: functions.cuEventSynchronize?,
            synchronize: functions.cuStreamSynchronize?,
        })
    }
}

impl Copier {
    /// Pins the rings, and makes events. Without either, copies are slower, not wrong.
    pub unsafe fn prepare(&mut self, functions: &Functions, lane: &Lane, ended_contexts: u64) {
        let mut context = 0;
        if let Some(current) = functions.cuCtxGetCurrent {
            current(&mut context);
        }
        if context != self.context || ended_contexts != self.ended_contexts {
            // Those of a context that has ended are gone, and those of another one are of no use in this one.
            self.events.clear();
            self.pinned &= ended_contexts == self.ended_contexts;
            (self.context, self.ended_contexts) = (context, ended_contexts);
        }
        if self.pinned || context == 0 {
            return;
        }
        self.pinned = true;
        if let Some(register) = functions.cuMemHostRegister_v2 {
            for (start, length) in lane.memories() {
                register(start, length, PORTABLE);
            }
        }
    }

    unsafe fn event(&mut self, functions: &Functions) -> Option<Event> {
        if let Some(event) = self.events.pop() {
            return Some(event);
        }
        let mut event = std::ptr::null_mut();
        (functions.cuEventCreate?(&mut event, WITHOUT_TIMES) == 0).then_some(event)
    }

    /// Copies the data that follows the call to the GPU. All of it is taken from the lane, whatever comes of the copy.
    pub unsafe fn upload(&mut self, functions: &Functions, lane: &mut Lane, transfer: Transfer, at_once: bool) -> io::Result<i32> {
        let Transfer { device: to, bytes, stream, ended_contexts } = transfer;
        let engine = Engine::of(functions);
        if bytes <= STAGED_BYTES {
            self.staging.resize(bytes, 0);
            lane.read(&mut self.staging)?;
            let Some(engine) = engine else { return Ok(NOT_SUPPORTED) };
            let mut status = (engine.to_device)(to, self.staging.as_ptr(), bytes, stream);
            if status == 0 && at_once {
                status = (engine.synchronize)(stream);
            }
            return Ok(status);
        }
        self.prepare(functions, lane, ended_contexts);
        let mut status = if engine.is_some() { 0 } else { NOT_SUPPORTED };
        let mut under_way: VecDeque<(Option<Event>, usize)> = VecDeque::new();
        let (mut done, mut held) = (0, 0);
        while done < bytes || !under_way.is_empty() {
            if done == bytes || under_way.len() == DEPTH || held > RING_BYTES / 2 {
                let (event, count) = under_way.pop_front().expect("something is held");
                let waited = match (&engine, event) {
                    (Some(engine), Some(event)) => (engine.wait)(event),
                    (Some(engine), None) => (engine.synchronize)(stream),
                    (None, _) => 0,
                };
                self.events.extend(event);
                lane.release(count);
                held -= count;
                status = if status == 0 { waited } else { status };
                continue;
            }
            let wanted = CHUNK_BYTES.min(bytes - done);
            let mut count = lane.wait_readable(held)?;
            // Each copy of its own costs the driver microseconds, so whole chunks are waited for.
            while count < wanted {
                count += lane.wait_readable(held + count)?;
            }
            let count = count.min(wanted);
            let mut event = None;
            if let (Some(engine), 0) = (&engine, status) {
                status = (engine.to_device)(to + done as u64, lane.arrived(held, count), count, stream);
                if status == 0 {
                    event = self.event(functions);
                    if let Some(event) = event {
                        status = (engine.record)(event, stream);
                    }
                }
            }
            under_way.push_back((event, count));
            held += count;
            done += count;
        }
        Ok(status)
    }

    /// Sends data from the GPU, and returns the status of the copy. What the GPU does not fill is zero.
    pub unsafe fn download(&mut self, functions: &Functions, lane: &mut Lane, transfer: Transfer) -> io::Result<i32> {
        let Transfer { device: from, bytes, stream, ended_contexts } = transfer;
        let Some(engine) = Engine::of(functions) else {
            lane.write_zeros(bytes)?;
            return Ok(NOT_SUPPORTED);
        };
        if bytes <= STAGED_BYTES {
            self.staging.clear();
            self.staging.resize(bytes, 0);
            let mut status = (engine.to_host)(self.staging.as_ptr(), from, bytes, stream);
            if status == 0 {
                status = (engine.synchronize)(stream);
            }
            lane.write(&self.staging)?;
            return Ok(status);
        }
        self.prepare(functions, lane, ended_contexts);
        let mut status = 0;
        let mut under_way: VecDeque<(Option<Event>, usize)> = VecDeque::new();
        let (mut done, mut held) = (0, 0);
        while done < bytes || !under_way.is_empty() {
            if done == bytes || under_way.len() == DEPTH || held > RING_BYTES / 2 {
                let (event, count) = under_way.pop_front().expect("something is held");
                let waited = match event {
                    Some(event) => (engine.wait)(event),
                    None => (engine.synchronize)(stream),
                };
                self.events.extend(event);
                status = if status == 0 { waited } else { status };
                lane.publish(count);
                lane.flush()?;
                held -= count;
                continue;
            }
            let count = lane.wait_writable(held)?.min(CHUNK_BYTES).min(bytes - done);
            let into = lane.space(held, count);
            // What the GPU does not fill must not show what was here before.
            if status == 0 {
                status = (engine.to_host)(into, from + done as u64, count, stream);
            }
            if status != 0 {
                std::ptr::write_bytes(into, 0, count);
            }
            let mut event = None;
            if status == 0 {
                event = self.event(functions);
                if let Some(event) = event {
                    status = (engine.record)(event, stream);
                }
            }
            under_way.push_back((event, count));
            held += count;
            done += count;
        }
        Ok(status)
    }
}
