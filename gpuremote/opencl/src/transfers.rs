//! Transfers between the program's memory and memory objects.
//!
//! What is written is copied at once, so no program waits for a write, as the specification allows even blocking ones to return then. What is
//! read without blocking is collected when the program next waits for commands, or sees that one is complete: before that it must not look.
//! A large read without blocking is done at once, unless it may wait for a user event, which the program has yet to set.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gpuremote_client::wire::Encoder;

use crate::events::{some_wait_for_program, waits, NewEvent};
use crate::front;
use crate::layout::Layout;
use crate::objects::{object, Object};
use crate::remote::{ok, status};
use crate::stubs::{kinds, numbers, STATUSES};

const CL_INVALID_COMMAND_QUEUE: i32 = -36;
const CL_INVALID_MEM_OBJECT: i32 = -38;
const CL_INVALID_CONTEXT: i32 = -34;

/// Reads of more bytes than this are done at once when they may be.
const LATER_BYTES: usize = 1 << 20;
/// The most bytes that wait to be collected when they need not.
const MOST_BYTES: usize = 64 << 20;
/// The status of a read that is not complete yet.
const NOT_YET: i32 = 1;

/// Which part of a memory object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Bytes of a buffer.
    Bytes { offset: usize },
    /// A region of a buffer, with pitches in bytes.
    Rect { origin: [usize; 3], region: [usize; 3], row_pitch: usize, slice_pitch: usize },
    /// A region of an image, in pixels.
    Image { origin: [usize; 3], region: [usize; 3] },
}

/// What the program does, which the memory object may not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostAccess {
    Reads,
    Writes,
    /// The mapping was allowed.
    Mapped,
}

/// A transfer.
pub(crate) struct Transfer {
    pub queue: Arc<Object>,
    pub memory: Arc<Object>,
    pub place: Place,
    pub layout: Layout,
    pub waits: Vec<Arc<Object>>,
    /// The function that the program called.
    pub made_by: u16,
}

impl Transfer {
    /// Checks the objects of a transfer.
    pub unsafe fn new(
        (queue, memory): (*mut Object, *mut Object),
        (place, layout): (Place, Layout),
        (count, events): (u32, *const *mut Object),
        made_by: u16,
        access: HostAccess,
    ) -> Result<Self, i32> {
        let queue = object(kinds::cl_command_queue, queue).ok_or(CL_INVALID_COMMAND_QUEUE)?;
        let memory = object(kinds::cl_mem, memory).ok_or(CL_INVALID_MEM_OBJECT)?;
        if !Arc::ptr_eq(queue.context(), memory.context()) {
            return Err(CL_INVALID_CONTEXT);
        }
        let allowed = match access {
            HostAccess::Reads => memory.as_memory().host_may_read(),
            HostAccess::Writes => memory.as_memory().host_may_write(),
            HostAccess::Mapped => true,
        };
        ok(if allowed { STATUSES.ok } else { STATUSES.unsupported })?;
        let transfer = Transfer { queue, memory, place, layout, waits: waits(count, events)?, made_by };
        if let Place::Bytes { offset } = place {
            let end = offset.checked_add(layout.bytes());
            if layout.bytes() == 0 || end.is_none_or(|end| end > transfer.memory.as_memory().bytes) {
                return Err(STATUSES.invalid);
            }
        }
        Ok(transfer)
    }

    fn encode(&self, encoder: &mut Encoder, event: u64) {
        encoder.u64(self.queue.number);
        encoder.u64(self.memory.number);
        encoder.u64(event);
        encoder.usize(self.layout.bytes());
        let numbers = |encoder: &mut Encoder, values: &[usize]| values.iter().for_each(|&value| encoder.usize(value));
        match self.place {
            Place::Bytes { offset } => {
                encoder.u8(0);
                encoder.usize(offset);
            }
            Place::Rect { origin, region, row_pitch, slice_pitch } => {
                encoder.u8(1);
                numbers(encoder, &origin);
                numbers(encoder, &region);
                numbers(encoder, &[row_pitch, slice_pitch]);
            }
            Place::Image { origin, region } => {
                encoder.u8(2);
                numbers(encoder, &origin);
                numbers(encoder, &region);
            }
        }
        encoder.u32(self.waits.len() as u32);
        self.waits.iter().for_each(|event| encoder.u64(event.number));
    }

    /// Whether all that can be wrong was found here, so that nobody need wait for the driver's word.
    fn is_certain(&self) -> bool {
        matches!(self.place, Place::Bytes { .. })
    }

    /// Writes what lies there.
    pub unsafe fn write(self, from: *const u8, wanted: *mut *mut Object) -> i32 {
        let event = NewEvent::mint(wanted);
        let gathered;
        let data = if self.layout.is_tight() {
            std::slice::from_raw_parts(from, self.layout.bytes())
        } else {
            gathered = self.layout.gather(from);
            &gathered
        };
        let arguments = |encoder: &mut Encoder| self.encode(encoder, event.number);
        let status = if self.is_certain() {
            front().post_data(numbers::clEnqueueWriteBuffer, arguments, data)
        } else {
            front().call_data(numbers::clEnqueueWriteBuffer, arguments, Some(data), |_| Ok(()))
        };
        event.settle(status, &self.queue, self.made_by);
        status
    }

    /// Marks the place of a transfer that moves nothing.
    pub unsafe fn mark(&self, wanted: *mut *mut Object) -> i32 {
        if self.waits.is_empty() && wanted.is_null() {
            return STATUSES.ok;
        }
        let event = NewEvent::mint(wanted);
        let status = front().post(numbers::clEnqueueMarkerWithWaitList, |encoder| {
            encoder.u64(self.queue.number);
            encoder.u32(self.waits.len() as u32);
            encoder.u64(event.number);
            encoder.u8((!self.waits.is_empty()).into());
            self.waits.iter().for_each(|event| encoder.u64(event.number));
        });
        event.settle(status, &self.queue, self.made_by);
        status
    }

    /// Reads to there.
    pub unsafe fn read(self, to: *mut u8, blocking: bool, wanted: *mut *mut Object) -> i32 {
        let event = NewEvent::mint(wanted);
        let (queue, made_by) = (Arc::clone(&self.queue), self.made_by);
        let at_once = blocking || (self.layout.bytes() > LATER_BYTES && !some_wait_for_program());
        let status = if at_once { self.read_now(to, event.number) } else { self.read_later(to, event.number) };
        event.settle(status, &queue, made_by);
        if at_once {
            return reached(if blocking { front().with_deferred(status) } else { status });
        }
        status
    }

    unsafe fn read_now(&self, to: *mut u8, event: u64) -> i32 {
        let fetch = |buffer: &mut [u8]| {
            let arguments = |encoder: &mut Encoder| {
                encoder.u64(0);
                self.encode(encoder, event);
            };
            front().fetch(numbers::clEnqueueReadBuffer, arguments, buffer)
        };
        if self.layout.is_tight() {
            return fetch(std::slice::from_raw_parts_mut(to, self.layout.bytes()));
        }
        let mut tight = vec![0; self.layout.bytes()];
        let status = fetch(&mut tight);
        if status == STATUSES.ok {
            self.layout.scatter(&tight, to);
        }
        status
    }

    unsafe fn read_later(self, to: *mut u8, event: u64) -> i32 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut pending = PENDING.lock().expect("no one panics with this lock");
        if !some_wait_for_program() && pending.iter().map(|read| read.layout.bytes()).sum::<usize>() > MOST_BYTES {
            collect(&mut pending, true);
        }
        let arguments = |encoder: &mut Encoder| {
            encoder.u64(number);
            self.encode(encoder, event);
        };
        let status = if self.is_certain() {
            front().post(numbers::clEnqueueReadBuffer, arguments)
        } else {
            front().call(numbers::clEnqueueReadBuffer, arguments, |_| Ok(()))
        };
        if status == STATUSES.ok {
            pending.push(Pending { number, to: to as usize, layout: self.layout });
        }
        status
    }
}

/// A read whose data is still with the server.
struct Pending {
    number: u64,
    to: usize,
    layout: Layout,
}

/// Reads to be collected. The lock is held while they are, so that nobody goes on before another thread has filled what both wait for.
static PENDING: Mutex<Vec<Pending>> = Mutex::new(Vec::new());

/// Collects what is complete, or waits for all.
fn collect(pending: &mut Vec<Pending>, wait: bool) {
    pending.retain(|read| {
        let mut tight = vec![0; read.layout.bytes()];
        let arguments = |encoder: &mut Encoder| {
            encoder.u64(read.number);
            encoder.u8(wait.into());
        };
        let status = front().fetch(numbers::nearmetalCollect, arguments, &mut tight);
        if status == STATUSES.ok {
            // SAFETY: the program keeps its memory until the command is complete.
            unsafe { read.layout.scatter(&tight, read.to as *mut u8) };
        }
        // A failed read leaves nothing to collect; its event tells of the failure.
        status == NOT_YET
    });
}

/// The program has waited for commands, or seen one complete: what was read must be there now. Passes the status of the wait on.
pub(crate) fn reached(status: i32) -> i32 {
    let mut pending = PENDING.lock().expect("no one panics with this lock");
    if !pending.is_empty() {
        collect(&mut pending, false);
    }
    status
}

/// Gives up a read to this memory, if one is to be collected. Returns whether one was.
pub(crate) fn forget(to: *const u8) -> bool {
    let mut pending = PENDING.lock().expect("no one panics with this lock");
    let Some(place) = pending.iter().position(|read| read.to == to as usize) else { return false };
    let read = pending.remove(place);
    front().post(numbers::nearmetalForget, |encoder| encoder.u64(read.number));
    true
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn clEnqueueReadBuffer(
    queue: *mut Object,
    buffer: *mut Object,
    blocking: u32,
    offset: usize,
    bytes: usize,
    to: *mut u8,
    count: u32,
    events: *const *mut Object,
    event: *mut *mut Object,
) -> i32 {
    let part = (Place::Bytes { offset }, Layout::of_bytes(bytes));
    match Transfer::new((queue, buffer), part, (count, events), numbers::clEnqueueReadBuffer, HostAccess::Reads) {
        Ok(_) if to.is_null() => STATUSES.invalid,
        Ok(transfer) => transfer.read(to, blocking != 0, event),
        Err(status) => status,
    }
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn clEnqueueWriteBuffer(
    queue: *mut Object,
    buffer: *mut Object,
    _blocking: u32,
    offset: usize,
    bytes: usize,
    from: *const u8,
    count: u32,
    events: *const *mut Object,
    event: *mut *mut Object,
) -> i32 {
    let part = (Place::Bytes { offset }, Layout::of_bytes(bytes));
    match Transfer::new((queue, buffer), part, (count, events), numbers::clEnqueueWriteBuffer, HostAccess::Writes) {
        Ok(_) if from.is_null() => STATUSES.invalid,
        Ok(transfer) => transfer.write(from, event),
        Err(status) => status,
    }
}

/// Regions of a buffer and of host memory.
struct Rects {
    origin: [usize; 3],
    host_origin: [usize; 3],
    region: [usize; 3],
    row_pitch: usize,
    slice_pitch: usize,
    host_row_pitch: usize,
    host_slice_pitch: usize,
}

impl Rects {
    /// The part of the buffer, the layout in host memory, and where that begins there, in bytes.
    fn parts(&self) -> Result<((Place, Layout), usize), i32> {
        let bytes = self.region.iter().try_fold(1usize, |product, &side| product.checked_mul(side)).ok_or(STATUSES.invalid)?;
        if bytes == 0 {
            return Err(STATUSES.invalid);
        }
        let layout = Layout::of_region(self.region, self.host_row_pitch, self.host_slice_pitch).ok_or(STATUSES.invalid)?;
        let [x, y, z] = self.host_origin;
        let start = z * layout.slice_pitch + y * layout.row_pitch + x;
        let place = Place::Rect { origin: self.origin, region: self.region, row_pitch: self.row_pitch, slice_pitch: self.slice_pitch };
        Ok(((place, layout), start))
    }
}

unsafe fn three(values: *const usize) -> Result<[usize; 3], i32> {
    ok(if values.is_null() { STATUSES.invalid } else { STATUSES.ok })?;
    Ok(*values.cast())
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn clEnqueueReadBufferRect(
    queue: *mut Object,
    buffer: *mut Object,
    blocking: u32,
    origin: *const usize,
    host_origin: *const usize,
    region: *const usize,
    row_pitch: usize,
    slice_pitch: usize,
    host_row_pitch: usize,
    host_slice_pitch: usize,
    to: *mut u8,
    count: u32,
    events: *const *mut Object,
    event: *mut *mut Object,
) -> i32 {
    let run = || {
        let (origin, host_origin, region) = (three(origin)?, three(host_origin)?, three(region)?);
        let rects = Rects { origin, host_origin, region, row_pitch, slice_pitch, host_row_pitch, host_slice_pitch };
        let (parts, start) = rects.parts()?;
        let transfer = Transfer::new((queue, buffer), parts, (count, events), numbers::clEnqueueReadBufferRect, HostAccess::Reads)?;
        ok(if to.is_null() { STATUSES.invalid } else { transfer.read(to.add(start), blocking != 0, event) })
    };
    status(run())
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn clEnqueueWriteBufferRect(
    queue: *mut Object,
    buffer: *mut Object,
    _blocking: u32,
    origin: *const usize,
    host_origin: *const usize,
    region: *const usize,
    row_pitch: usize,
    slice_pitch: usize,
    host_row_pitch: usize,
    host_slice_pitch: usize,
    from: *const u8,
    count: u32,
    events: *const *mut Object,
    event: *mut *mut Object,
) -> i32 {
    let run = || {
        let (origin, host_origin, region) = (three(origin)?, three(host_origin)?, three(region)?);
        let rects = Rects { origin, host_origin, region, row_pitch, slice_pitch, host_row_pitch, host_slice_pitch };
        let (parts, start) = rects.parts()?;
        let transfer = Transfer::new((queue, buffer), parts, (count, events), numbers::clEnqueueWriteBufferRect, HostAccess::Writes)?;
        ok(if from.is_null() { STATUSES.invalid } else { transfer.write(from.add(start), event) })
    };
    status(run())
}

/// A region of an image: part and layout. Layers of an array of lines lie a slice apart in host memory.
unsafe fn image_parts(
    image: *mut Object,
    origin: *const usize,
    region: *const usize,
    row_pitch: usize,
    slice_pitch: usize,
) -> Result<(Place, Layout), i32> {
    let (origin, region) = (three(origin)?, three(region)?);
    let of_image = object(kinds::cl_mem, image).ok_or(CL_INVALID_MEM_OBJECT)?;
    let shape = of_image.as_memory().image.as_ref().ok_or(CL_INVALID_MEM_OBJECT)?;
    let layout = shape.layout(region, row_pitch, slice_pitch)?;
    if layout.bytes() == 0 {
        return Err(STATUSES.invalid);
    }
    Ok((Place::Image { origin, region }, layout))
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn clEnqueueReadImage(
    queue: *mut Object,
    image: *mut Object,
    blocking: u32,
    origin: *const usize,
    region: *const usize,
    row_pitch: usize,
    slice_pitch: usize,
    to: *mut u8,
    count: u32,
    events: *const *mut Object,
    event: *mut *mut Object,
) -> i32 {
    let run = || {
        let parts = image_parts(image, origin, region, row_pitch, slice_pitch)?;
        let transfer = Transfer::new((queue, image), parts, (count, events), numbers::clEnqueueReadImage, HostAccess::Reads)?;
        ok(if to.is_null() { STATUSES.invalid } else { transfer.read(to, blocking != 0, event) })
    };
    status(run())
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn clEnqueueWriteImage(
    queue: *mut Object,
    image: *mut Object,
    _blocking: u32,
    origin: *const usize,
    region: *const usize,
    row_pitch: usize,
    slice_pitch: usize,
    from: *const u8,
    count: u32,
    events: *const *mut Object,
    event: *mut *mut Object,
) -> i32 {
    let run = || {
        let parts = image_parts(image, origin, region, row_pitch, slice_pitch)?;
        let transfer = Transfer::new((queue, image), parts, (count, events), numbers::clEnqueueWriteImage, HostAccess::Writes)?;
        ok(if from.is_null() { STATUSES.invalid } else { transfer.write(from, event) })
    };
    status(run())
}
