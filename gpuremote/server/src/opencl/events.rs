//! Events: those of the client, and functions of the client that events call.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use gpuremote_wire::{Decoder, Encoder};

use super::calls::{kinds, Functions};
use super::{Object, Server, INVALID_OPERATION};
use crate::worker::{Link, Outcome};

const INVALID_CONTEXT: i32 = -34;
const INVALID_EVENT: i32 = -58;
const QUEUE_CONTEXT: u32 = 0x1090;
const EVENT_COMMAND_EXECUTION_STATUS: u32 = 0x11d3;

/// What the lanes share about events.
#[derive(Default)]
pub struct Events {
    reached: Mutex<VecDeque<(u64, i32)>>,
    changed: Condvar,
    unset: AtomicUsize,
}

impl Events {
    /// Whether a command may wait for the client itself.
    pub fn some_wait_for_client(&self) -> bool {
        self.unset.load(Ordering::SeqCst) > 0
    }
}

/// The state of an event's command: 0 complete, negative failed, positive under way.
pub unsafe fn state(functions: &Functions, event: Object) -> i32 {
    let mut state = 0i32;
    match functions.clGetEventInfo {
        None => INVALID_OPERATION,
        Some(run) => match run(event, EVENT_COMMAND_EXECUTION_STATUS, 4, (&raw mut state).cast(), std::ptr::null_mut()) {
            0 => state,
            status => status,
        },
    }
}

/// Waits for an event.
pub unsafe fn wait(functions: &Functions, event: Object) -> i32 {
    match functions.clWaitForEvents {
        None => INVALID_OPERATION,
        Some(run) => run(1, &event),
    }
}

/// Gives an event up.
pub unsafe fn release(functions: &Functions, event: Object) {
    if let Some(run) = functions.clReleaseEvent {
        run(event);
    }
}

/// A function of the client that an event calls.
struct Waiting {
    events: *const Events,
    number: u64,
}

unsafe extern "C" fn reached(_: Object, state: i32, waiting: *mut c_void) {
    let waiting = Box::from_raw(waiting.cast::<Waiting>());
    let events = &*waiting.events;
    events.reached.lock().expect("no one panics with this lock").push_back((waiting.number, state));
    events.changed.notify_one();
}

impl Server {
    /// A command that nobody waited for was refused, and the client believes that it has an event of it: it gets one that has failed.
    pub unsafe fn failed(&self, queue: Object, number: u64, status: i32) -> io::Result<()> {
        let functions = &self.functions;
        let (Some(ask), Some(create), Some(set)) =
            (functions.clGetCommandQueueInfo, functions.clCreateUserEvent, functions.clSetUserEventStatus)
        else {
            return Ok(());
        };
        let (mut context, mut created): (Object, i32) = (std::ptr::null_mut(), 0);
        if ask(queue, QUEUE_CONTEXT, size_of::<Object>(), (&raw mut context).cast(), std::ptr::null_mut()) != 0 {
            return Ok(());
        }
        let event = create(context, &mut created);
        if created == 0 {
            set(event, status);
            self.handles.put(kinds::cl_event, number, event)?;
        }
        Ok(())
    }

    pub unsafe fn cl_create_user_event(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (number, context) = (decoder.u64()?, decoder.u64()?);
        decoder.finish()?;
        let Some(context) = self.get(kinds::cl_context, context) else { return Ok(Outcome::Status(INVALID_CONTEXT)) };
        let Some(run) = self.functions.clCreateUserEvent else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let mut status = 0;
        let event = run(context, &mut status);
        if status == 0 {
            self.handles.put(kinds::cl_event, number, event)?;
            self.events.unset.fetch_add(1, Ordering::SeqCst);
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cl_set_user_event_status(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (event, state) = (decoder.u64()?, decoder.i32()?);
        decoder.finish()?;
        let Some(event) = self.get(kinds::cl_event, event) else { return Ok(Outcome::Status(INVALID_EVENT)) };
        let Some(run) = self.functions.clSetUserEventStatus else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let status = run(event, state);
        if status == 0 {
            // An event that is given up before it is set stays counted, which only makes this process more careful.
            let fewer = |unset: usize| unset.checked_sub(1);
            let _ = self.events.unset.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cl_set_event_callback(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (event, kind, number) = (decoder.u64()?, decoder.i32()?, decoder.u64()?);
        decoder.finish()?;
        let Some(event) = self.get(kinds::cl_event, event) else { return Ok(Outcome::Status(INVALID_EVENT)) };
        let Some(run) = self.functions.clSetEventCallback else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let waiting = Box::into_raw(Box::new(Waiting { events: &raw const self.shared.events, number }));
        let notify: unsafe extern "C" fn(Object, i32, *mut c_void) = reached;
        let status = run(event, kind, notify as *const u8, waiting.cast());
        if status != 0 {
            drop(Box::from_raw(waiting));
        }
        Ok(Outcome::Status(status))
    }

    /// Waits until an event calls a function of the client: its number, and the command's state.
    pub unsafe fn nearmetal_next_callback(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        decoder.finish()?;
        let events = &self.events;
        let mut reached = events.reached.lock().expect("no one panics with this lock");
        let (number, state) = loop {
            match reached.pop_front() {
                Some(next) => break next,
                None => reached = events.changed.wait(reached).expect("no one panics with this lock"),
            }
        };
        values.u64(number);
        values.i32(state);
        Ok(Outcome::Status(0))
    }
}
