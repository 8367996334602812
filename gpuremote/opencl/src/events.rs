//! Events: those of commands, and those of the program itself.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::front;
use crate::info::Query;
use crate::objects::{handed, object, objects, Data, Object};
use crate::stubs::{kinds, numbers, remote, STATUSES};
use crate::transfers;

const CL_INVALID_CONTEXT: i32 = -34;
const CL_INVALID_EVENT: i32 = -58;
const CL_INVALID_EVENT_WAIT_LIST: i32 = -57;
const CL_INVALID_OPERATION: i32 = -59;

const CL_EVENT_COMMAND_QUEUE: u32 = 0x11d0;
const CL_EVENT_COMMAND_TYPE: u32 = 0x11d1;
const CL_EVENT_REFERENCE_COUNT: u32 = 0x11d2;
const CL_EVENT_COMMAND_EXECUTION_STATUS: u32 = 0x11d3;
const CL_EVENT_CONTEXT: u32 = 0x11d4;

/// CL_COMPLETE and CL_SUBMITTED: a command's states are numbers that fall, and negative ones are errors.
const COMPLETE: i32 = 0;
const SUBMITTED: i32 = 2;
/// CL_QUEUED.
const QUEUED: i32 = 3;

/// An event.
pub(crate) struct Event {
    /// The last state that is known: what is complete, or has failed, stays so.
    state: AtomicI32,
    user: bool,
}

impl Default for Event {
    fn default() -> Self {
        Event { state: AtomicI32::new(QUEUED), user: false }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.user && *self.state.get_mut() > COMPLETE {
            UNSET.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// How many user events have no final status. While there are any, a command may wait for this program, so the program must not wait for it
/// unless it says so.
static UNSET: AtomicUsize = AtomicUsize::new(0);

/// Whether some command may wait for the program itself.
pub(crate) fn some_wait_for_program() -> bool {
    UNSET.load(Ordering::SeqCst) > 0
}

/// CL_COMMAND_NDRANGE_KERNEL and so on: the type of the command, by the function that made it.
fn command_type(made_by: u16) -> u32 {
    match made_by {
        numbers::clEnqueueNDRangeKernel => 0x11f0,
        numbers::clEnqueueTask => 0x11f1,
        numbers::clEnqueueReadBuffer => 0x11f3,
        numbers::clEnqueueWriteBuffer => 0x11f4,
        numbers::clEnqueueCopyBuffer => 0x11f5,
        numbers::clEnqueueReadImage => 0x11f6,
        numbers::clEnqueueWriteImage => 0x11f7,
        numbers::clEnqueueCopyImage => 0x11f8,
        numbers::clEnqueueCopyImageToBuffer => 0x11f9,
        numbers::clEnqueueCopyBufferToImage => 0x11fa,
        numbers::clEnqueueMapBuffer => 0x11fb,
        numbers::clEnqueueMapImage => 0x11fc,
        numbers::clEnqueueUnmapMemObject => 0x11fd,
        numbers::clEnqueueReadBufferRect => 0x1201,
        numbers::clEnqueueWriteBufferRect => 0x1202,
        numbers::clEnqueueCopyBufferRect => 0x1203,
        numbers::clCreateUserEvent => 0x1204,
        numbers::clEnqueueBarrierWithWaitList => 0x1205,
        numbers::clEnqueueMigrateMemObjects => 0x1206,
        numbers::clEnqueueFillBuffer => 0x1207,
        numbers::clEnqueueFillImage => 0x1208,
        _ => 0x11fe,
    }
}

/// A new event of a command, for the program if it wants one.
pub(crate) struct NewEvent {
    pub number: u64,
    wanted: *mut *mut Object,
}

impl NewEvent {
    /// Mints its number, if it is wanted.
    pub fn mint(wanted: *mut *mut Object) -> Self {
        let number = if wanted.is_null() { 0 } else { front().mint(kinds::cl_event) };
        NewEvent { number, wanted }
    }

    /// Gives it to the program when the command was accepted.
    pub unsafe fn settle(self, status: i32, queue: &Arc<Object>, made_by: u16) {
        if self.wanted.is_null() {
            return;
        }
        if status != STATUSES.ok {
            front().unmint(kinds::cl_event, self.number);
            return;
        }
        let data = Data::Event(Event::default());
        *self.wanted = Object::new(kinds::cl_event, self.number, Some(Arc::clone(queue)), made_by, data).give();
    }
}

/// The events that a command waits for.
pub(crate) unsafe fn waits(count: u32, events: *const *mut Object) -> Result<Vec<Arc<Object>>, i32> {
    objects(kinds::cl_event, events, count as usize).ok_or(CL_INVALID_EVENT_WAIT_LIST)
}

#[no_mangle]
pub unsafe extern "C" fn clCreateUserEvent(context: *mut Object, errcode: *mut i32) -> *mut Object {
    let created = || {
        let context = object(kinds::cl_context, context).ok_or(CL_INVALID_CONTEXT)?;
        front().create(
            (kinds::cl_event, numbers::clCreateUserEvent),
            |encoder| encoder.u64(context.number),
            None,
            |_| Ok(()),
            || {
                UNSET.fetch_add(1, Ordering::SeqCst);
                (Arc::clone(&context), Data::Event(Event { state: AtomicI32::new(SUBMITTED), user: true }))
            },
        )
    };
    handed(created(), errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clSetUserEventStatus(event: *mut Object, status: i32) -> i32 {
    let Some(object) = object(kinds::cl_event, event) else { return CL_INVALID_EVENT };
    let of_event = object.as_event();
    if !of_event.user {
        return CL_INVALID_EVENT;
    }
    if status > COMPLETE {
        return STATUSES.invalid;
    }
    if of_event.state.compare_exchange(SUBMITTED, status, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return CL_INVALID_OPERATION;
    }
    UNSET.fetch_sub(1, Ordering::SeqCst);
    remote::clSetUserEventStatus(event, status)
}

#[no_mangle]
pub unsafe extern "C" fn clWaitForEvents(count: u32, events: *const *mut Object) -> i32 {
    transfers::reached(front().with_deferred(remote::clWaitForEvents(count, events)))
}

#[no_mangle]
pub unsafe extern "C" fn clGetEventInfo(event: *mut Object, name: u32, size: usize, into: *mut u8, size_ret: *mut usize) -> i32 {
    let Some(object) = object(kinds::cl_event, event) else { return CL_INVALID_EVENT };
    let (query, of_event) = (Query { size, into, size_ret }, object.as_event());
    match name {
        CL_EVENT_COMMAND_QUEUE => query.object(object.parent.as_ref().filter(|_| !of_event.user)),
        CL_EVENT_CONTEXT => query.object(Some(object.context())),
        CL_EVENT_COMMAND_TYPE => query.u32(command_type(object.made_by)),
        CL_EVENT_REFERENCE_COUNT => query.u32(object.references()),
        CL_EVENT_COMMAND_EXECUTION_STATUS => {
            let mut state = of_event.state.load(Ordering::SeqCst);
            if state > COMPLETE && !of_event.user {
                let status = remote::clGetEventInfo(event, name, 4, (&raw mut state).cast(), std::ptr::null_mut());
                if status != STATUSES.ok {
                    return status;
                }
                if state <= COMPLETE {
                    // What the program will now look at must be there.
                    transfers::reached(STATUSES.ok);
                    of_event.state.store(state, Ordering::SeqCst);
                }
            }
            query.bytes(&state.to_le_bytes())
        }
        _ => STATUSES.invalid,
    }
}

/// The times are known once the command is complete, and are kept then.
#[no_mangle]
pub unsafe extern "C" fn clGetEventProfilingInfo(event: *mut Object, name: u32, size: usize, into: *mut u8, size_ret: *mut usize) -> i32 {
    remote::clGetEventProfilingInfo(event, name, size, into, size_ret)
}

type Callback = unsafe extern "C" fn(*mut Object, i32, *mut c_void);

/// A function that the program wants to be called.
struct Waiting {
    event: Arc<Object>,
    notify: Callback,
    data: usize,
}

#[derive(Default)]
struct Callbacks {
    next: u64,
    by_number: HashMap<u64, Waiting>,
    runs: bool,
}

fn callbacks() -> &'static Mutex<Callbacks> {
    static CALLBACKS: OnceLock<Mutex<Callbacks>> = OnceLock::new();
    CALLBACKS.get_or_init(Mutex::default)
}

/// A thread with a lane of its own waits for events to reach states, and calls the program's functions.
fn run_callbacks() {
    loop {
        let (mut number, mut state) = (0, 0);
        let status = front().call(
            numbers::nearmetalNextCallback,
            |_| {},
            |decoder| {
                (number, state) = (decoder.u64()?, decoder.i32()?);
                Ok(())
            },
        );
        if status != STATUSES.ok {
            return;
        }
        let waiting = callbacks().lock().expect("no one panics with this lock").by_number.remove(&number);
        if let Some(Waiting { event, notify, data }) = waiting {
            if state <= COMPLETE {
                transfers::reached(STATUSES.ok);
            }
            // SAFETY: the program gave a function of this type, and the event lives still.
            unsafe { notify(event.address(), state, data as *mut c_void) };
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn clSetEventCallback(event: *mut Object, state: i32, notify: Option<Callback>, data: *mut c_void) -> i32 {
    let Some(event) = object(kinds::cl_event, event) else { return CL_INVALID_EVENT };
    let Some(notify) = notify else { return STATUSES.invalid };
    if !(COMPLETE..=SUBMITTED).contains(&state) {
        return STATUSES.invalid;
    }
    let mut callbacks = callbacks().lock().expect("no one panics with this lock");
    if !callbacks.runs {
        if std::thread::Builder::new().name("gpu-callbacks".into()).spawn(run_callbacks).is_err() {
            return STATUSES.lost;
        }
        callbacks.runs = true;
    }
    callbacks.next += 1;
    let number = callbacks.next;
    callbacks.by_number.insert(number, Waiting { event: Arc::clone(&event), notify, data: data as usize });
    drop(callbacks);
    front().post(numbers::clSetEventCallback, |encoder| {
        encoder.u64(event.number);
        encoder.i32(state);
        encoder.u64(number);
    })
}
