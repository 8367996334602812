//! Transfers between the client's memory and memory objects.
//!
//! Data that is written waits in memory of this process until its command is complete. Data that is read goes to the client at once, or waits
//! here until the client collects it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Mutex;

use gpuremote_transport::CHUNK_BYTES;
use gpuremote_wire::{Decoder, Encoder, Malformed};

use super::calls::{kinds, Functions};
use super::events::{release, state, wait};
use super::{pointer, Object, Server, INVALID_OPERATION, INVALID_VALUE};
use crate::worker::{Link, Outcome};

const INVALID_COMMAND_QUEUE: i32 = -36;
const INVALID_MEM_OBJECT: i32 = -38;
const INVALID_EVENT_WAIT_LIST: i32 = -57;
const IMAGE_ELEMENT_SIZE: u32 = 0x1111;
/// A read that is not complete yet.
const NOT_YET: i32 = 1;
/// A transfer of more bytes is several commands, so that one is copied while the next arrives: unless the client wants its event, which
/// tells when all of it began and ended.
const WHOLE_BYTES: usize = 4 << 20;
/// The most bytes that wait for their commands, when they need not.
const MOST_BYTES: usize = 64 << 20;
/// Memory that is kept for the next writes, in bytes.
const SPARE_BYTES: usize = 32 << 20;

/// Data that waits for its command, with the command's event.
struct Waiting {
    event: Object,
    data: Vec<u8>,
}

// SAFETY: drivers' objects may be used by all threads.
unsafe impl Send for Waiting {}

/// What waits.
#[derive(Default)]
pub struct Staged {
    writes: Mutex<Writes>,
    reads: Mutex<HashMap<u64, Waiting>>,
}

#[derive(Default)]
struct Writes {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
}

impl Writes {
    /// Takes back what the first command that still waits has copied. False when it has not yet.
    unsafe fn reap(&mut self, functions: &Functions, patient: bool) -> bool {
        let Some(first) = self.waiting.front() else { return false };
        if patient {
            wait(functions, first.event);
        } else if state(functions, first.event) > 0 {
            return false;
        }
        let Some(Waiting { event, data }) = self.waiting.pop_front() else { return false };
        release(functions, event);
        self.bytes -= data.len();
        if self.spare_bytes + data.capacity() <= SPARE_BYTES {
            self.spare_bytes += data.capacity();
            self.spare.push(data);
        }
        true
    }

    /// Memory for so many bytes. What it holds does not matter.
    fn memory(&mut self, bytes: usize) -> Vec<u8> {
        let fitting = self.spare.iter().position(|spare| spare.capacity() >= bytes && spare.capacity() / 4 <= bytes.max(4096));
        let mut memory = fitting.map(|place| self.spare.swap_remove(place)).unwrap_or_default();
        self.spare_bytes -= memory.capacity();
        memory.resize(bytes, 0);
        memory
    }
}

/// Which part of a memory object.
#[derive(Clone, Copy)]
enum Place {
    Bytes { offset: usize },
    Rect { origin: [usize; 3], region: [usize; 3], row_pitch: usize, slice_pitch: usize },
    Image { origin: [usize; 3], region: [usize; 3] },
}

impl Place {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let three = |decoder: &mut Decoder<'_>| Ok::<_, Malformed>([decoder.usize()?, decoder.usize()?, decoder.usize()?]);
        match decoder.u8()? {
            0 => Ok(Place::Bytes { offset: decoder.usize()? }),
            1 => Ok(Place::Rect {
                origin: three(decoder)?,
                region: three(decoder)?,
                row_pitch: decoder.usize()?,
                slice_pitch: decoder.usize()?,
            }),
            2 => Ok(Place::Image { origin: three(decoder)?, region: three(decoder)? }),
            _ => Err(Malformed("a place in memory is of no known kind")),
        }
    }
}

/// A transfer, as the client asks for it.
struct Request {
    queue: u64,
    memory: u64,
    event: u64,
    bytes: usize,
    place: Place,
    waits: Vec<u64>,
}

impl Request {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (queue, memory, event, bytes) = (decoder.u64()?, decoder.u64()?, decoder.u64()?, decoder.usize()?);
        let place = Place::decode(decoder)?;
        let count = super::bounded(decoder.u32()? as usize, 8)?;
        let waits = (0..count).map(|_| decoder.u64()).collect::<Result<_, _>>()?;
        decoder.finish()?;
        Ok(Request { queue, memory, event, bytes, place, waits })
    }
}

/// A transfer of objects that are there.
struct Transfer {
    queue: Object,
    memory: Object,
    place: Place,
    waits: Vec<Object>,
}

impl Transfer {
    /// The transfer, or the status that says what is wrong with it.
    unsafe fn of(server: &Server, request: &Request) -> Result<Self, i32> {
        let queue = server.get(kinds::cl_command_queue, request.queue).ok_or(INVALID_COMMAND_QUEUE)?;
        let memory = server.get(kinds::cl_mem, request.memory).ok_or(INVALID_MEM_OBJECT)?;
        let waits: Option<Vec<Object>> = request.waits.iter().map(|&number| server.get(kinds::cl_event, number)).collect();
        let transfer = Transfer { queue, memory, place: request.place, waits: waits.ok_or(INVALID_EVENT_WAIT_LIST)? };
        // The driver must not touch more of this process's memory than there is.
        if transfer.bytes(&server.functions).is_some_and(|bytes| bytes != request.bytes) {
            return Err(INVALID_VALUE);
        }
        Ok(transfer)
    }

    /// How many bytes the place has. None: as many as are asked for.
    unsafe fn bytes(&self, functions: &Functions) -> Option<usize> {
        let product = |region: [usize; 3], size: usize| region.iter().try_fold(size, |product, &side| product.checked_mul(side));
        match self.place {
            Place::Bytes { .. } => None,
            Place::Rect { region, .. } => Some(product(region, 1).unwrap_or(usize::MAX)),
            Place::Image { region, .. } => {
                let mut size = 0usize;
                let asked = functions
                    .clGetImageInfo
                    .map(|run| run(self.memory, IMAGE_ELEMENT_SIZE, size_of::<usize>(), (&raw mut size).cast(), std::ptr::null_mut()));
                Some(if asked == Some(0) { product(region, size).unwrap_or(usize::MAX) } else { usize::MAX })
            }
        }
    }

    /// Enqueues the transfer of a part: `at` bytes after its begin, which only bytes of a buffer may have other than 0.
    unsafe fn enqueue(&self, functions: &Functions, writes: bool, (at, bytes): (usize, usize), host: *mut u8, event: &mut Object) -> i32 {
        let (count, waits) = (self.waits.len() as u32, pointer(&self.waits).cast());
        let event = std::ptr::from_mut(event).cast();
        let (queue, memory) = (self.queue, self.memory);
        let origin = [0usize; 3];
        match self.place {
            Place::Bytes { offset } => {
                let run = if writes { functions.clEnqueueWriteBuffer } else { functions.clEnqueueReadBuffer };
                run.map(|run| run(queue, memory, 0, offset + at, bytes, host, count, waits, event))
            }
            Place::Rect { origin: from, region, row_pitch, slice_pitch } => {
                let run = if writes { functions.clEnqueueWriteBufferRect } else { functions.clEnqueueReadBufferRect };
                let (from, host_from, region) = (from.as_ptr(), origin.as_ptr(), region.as_ptr());
                run.map(|run| run(queue, memory, 0, from, host_from, region, row_pitch, slice_pitch, 0, 0, host, count, waits, event))
            }
            Place::Image { origin, region } => {
                let run = if writes { functions.clEnqueueWriteImage } else { functions.clEnqueueReadImage };
                run.map(|run| run(queue, memory, 0, origin.as_ptr(), region.as_ptr(), 0, 0, host, count, waits, event))
            }
        }
        .unwrap_or(INVALID_OPERATION)
    }

    /// Whether it may be several commands.
    fn can_be_parted(&self) -> bool {
        matches!(self.place, Place::Bytes { .. })
    }
}

impl Server {
    /// Counts one more reference of an event, and gives the one to the client under this number.
    unsafe fn share_event(&self, number: u64, event: Object) -> io::Result<()> {
        if number != 0 {
            if let Some(run) = self.functions.clRetainEvent {
                run(event);
            }
            self.handles.put(kinds::cl_event, number, event)?;
        }
        Ok(())
    }

    pub unsafe fn cl_enqueue_write_buffer(
        &mut self,
        link: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        _: &mut Encoder,
    ) -> io::Result<Outcome> {
        let request = Request::decode(decoder)?;
        let transfer = Transfer::of(self, &request);
        let parts = match &transfer {
            Ok(transfer) if transfer.can_be_parted() && request.event == 0 => WHOLE_BYTES,
            _ => usize::MAX,
        };
        let (mut at, mut status) = (0, transfer.as_ref().err().copied().unwrap_or(0));
        while at < request.bytes {
            let bytes = parts.min(request.bytes - at);
            let mut data = self.memory_for_write(bytes)?;
            link.lane.read(&mut data)?;
            if let (Ok(transfer), 0) = (&transfer, status) {
                let mut event = std::ptr::null_mut();
                status = transfer.enqueue(&self.functions, true, (at, bytes), data.as_mut_ptr(), &mut event);
                if status == 0 {
                    self.share_event(request.event, event)?;
                    let mut writes = self.staged.writes.lock().expect("no one panics with this lock");
                    writes.bytes += data.len();
                    writes.waiting.push_back(Waiting { event, data });
                }
            }
            at += bytes;
        }
        if let (Ok(transfer), true) = (&transfer, status != 0 && !link.replies && request.event != 0) {
            self.failed(transfer.queue, request.event, status)?;
        }
        Ok(Outcome::Status(status))
    }

    /// Memory for data that arrives, after what is complete has given its own back.
    unsafe fn memory_for_write(&self, bytes: usize) -> io::Result<Vec<u8>> {
        let mut writes = self.staged.writes.lock().expect("no one panics with this lock");
        while writes.reap(&self.functions, false) {}
        while writes.bytes > MOST_BYTES && !self.events.some_wait_for_client() && writes.reap(&self.functions, true) {}
        if bytes > isize::MAX as usize / 2 {
            return Err(Malformed("more data follows than there is memory").into());
        }
        Ok(writes.memory(bytes))
    }

    pub unsafe fn cl_enqueue_read_buffer(
        &mut self,
        link: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        _: &mut Encoder,
    ) -> io::Result<Outcome> {
        let later = decoder.u64()?;
        let request = Request::decode(decoder)?;
        let transfer = match Transfer::of(self, &request) {
            Ok(transfer) => transfer,
            Err(status) => return Ok(Outcome::Status(status)),
        };
        if later == 0 {
            return self.read_now(link, &request, &transfer);
        }
        let (mut data, mut event) = (vec![0; request.bytes], std::ptr::null_mut());
        let status = transfer.enqueue(&self.functions, false, (0, request.bytes), data.as_mut_ptr(), &mut event);
        if status == 0 {
            self.share_event(request.event, event)?;
            self.staged.reads.lock().expect("no one panics with this lock").insert(later, Waiting { event, data });
        } else if !link.replies && request.event != 0 {
            self.failed(transfer.queue, request.event, status)?;
        }
        Ok(Outcome::Status(status))
    }

    /// Replies, and sends data after that: of one command, or of several, while the next ones are copied.
    unsafe fn read_now(&self, link: &mut Link<'_>, request: &Request, transfer: &Transfer) -> io::Result<Outcome> {
        if !link.replies {
            return Err(Malformed("data without a reply has nowhere to go").into());
        }
        let functions = &self.functions;
        let parted = transfer.can_be_parted() && request.event == 0 && request.bytes > CHUNK_BYTES;
        let part = if parted { CHUNK_BYTES } else { request.bytes };
        let (mut begun, mut sent, mut status, mut replied) = (0, 0, 0, false);
        let mut under_way: VecDeque<Waiting> = VecDeque::new();
        let mut spare: Vec<Vec<u8>> = Vec::new();
        /// How many parts are copied at once.
        const DEPTH: usize = 4;
        loop {
            while begun < request.bytes && under_way.len() < DEPTH && status == 0 {
                let bytes = part.min(request.bytes - begun);
                let mut data = spare.pop().unwrap_or_default();
                data.resize(bytes, 0);
                let mut event = std::ptr::null_mut();
                status = transfer.enqueue(functions, false, (begun, bytes), data.as_mut_ptr(), &mut event);
                if status == 0 {
                    self.share_event(request.event, event)?;
                    under_way.push_back(Waiting { event, data });
                    begun += bytes;
                }
            }
            let Some(Waiting { event, mut data }) = under_way.pop_front() else { break };
            let waited = wait(functions, event);
            release(functions, event);
            status = if status == 0 { waited } else { status };
            if status != 0 && !replied {
                continue;
            }
            if status != 0 {
                data.fill(0);
            }
            if !replied {
                replied = true;
                link.reply(0, &[])?;
            }
            link.lane.write_data(&data)?;
            sent += data.len();
            spare.push(data);
        }
        if !replied {
            return Ok(Outcome::Status(if status == 0 { INVALID_VALUE } else { status }));
        }
        // After a failure the rest is zeros.
        let zeros = vec![0; CHUNK_BYTES.min(request.bytes - sent)];
        while sent < request.bytes {
            let count = zeros.len().min(request.bytes - sent);
            link.lane.write_data(&zeros[..count])?;
            sent += count;
        }
        link.lane.write(&status.to_le_bytes())?;
        link.lane.flush()?;
        Ok(Outcome::Replied)
    }

    /// The data of a read that the client did not wait for, after the reply, if it is complete.
    pub unsafe fn nearmetal_collect(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (number, patient) = (decoder.u64()?, decoder.u8()? != 0);
        decoder.finish()?;
        let reads = || self.staged.reads.lock().expect("no one panics with this lock");
        let Some(waiting) = reads().remove(&number) else { return Ok(Outcome::Status(INVALID_VALUE)) };
        let mut status = if patient { wait(&self.functions, waiting.event) } else { 0 };
        if status == 0 {
            status = state(&self.functions, waiting.event);
        }
        if status > 0 {
            reads().insert(number, waiting);
            return Ok(Outcome::Status(NOT_YET));
        }
        release(&self.functions, waiting.event);
        if status < 0 || !link.replies {
            return Ok(Outcome::Status(status));
        }
        link.reply(0, &[])?;
        link.lane.write_data(&waiting.data)?;
        link.lane.write(&status.to_le_bytes())?;
        link.lane.flush()?;
        Ok(Outcome::Replied)
    }

    /// The client gives a read up. Its memory stays until the command is complete.
    pub unsafe fn nearmetal_forget(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let number = decoder.u64()?;
        decoder.finish()?;
        if let Some(waiting) = self.staged.reads.lock().expect("no one panics with this lock").remove(&number) {
            let mut writes = self.staged.writes.lock().expect("no one panics with this lock");
            writes.bytes += waiting.data.len();
            writes.waiting.push_back(waiting);
        }
        Ok(Outcome::Status(0))
    }
}
