//! Memory objects mapped into the program's memory: a copy there, which is written back when it is unmapped.

use std::ffi::c_void;
use std::sync::Arc;

use crate::layout::Layout;
use crate::objects::{failed, object, Object};
use crate::stubs::{kinds, numbers, STATUSES};
use crate::transfers::{self, HostAccess, Place, Transfer};

const CL_INVALID_MEM_OBJECT: i32 = -38;
const CL_INVALID_COMMAND_QUEUE: i32 = -36;
const CL_INVALID_OPERATION: i32 = -59;
const CL_OUT_OF_HOST_MEMORY: i32 = -6;

/// CL_MAP_READ, _WRITE and _WRITE_INVALIDATE_REGION.
const MAP_READ: u64 = 1;
const MAP_WRITE: u64 = 2;
const MAP_INVALIDATE: u64 = 4;

/// Memory for a mapped part.
struct Shadow {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: memory may be used by all threads.
unsafe impl Send for Shadow {}

impl Shadow {
    fn new(bytes: usize) -> Option<Self> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory of its own.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        (start != libc::MAP_FAILED).then_some(Shadow { start: start.cast(), bytes })
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        // SAFETY: it was mapped so.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// A mapped part.
pub(crate) struct Mapped {
    /// The address that the program has.
    at: usize,
    place: Place,
    layout: Layout,
    writes: bool,
    /// None where the memory is the program's own.
    _shadow: Option<Shadow>,
}

/// What a program maps.
struct Request {
    queue: *mut Object,
    memory: *mut Object,
    blocking: bool,
    flags: u64,
    count: u32,
    events: *const *mut Object,
    event: *mut *mut Object,
    made_by: u16,
}

/// Maps a part. In the program's own memory it begins `host_offset` bytes after the start, in the second layout.
unsafe fn map(request: &Request, place: Place, layout: Layout, in_host: (Layout, usize)) -> Result<(*mut u8, Layout), i32> {
    let objects = (request.queue, request.memory);
    let transfer = Transfer::new(objects, (place, layout), (request.count, request.events), request.made_by, HostAccess::Mapped)?;
    let object = Arc::clone(&transfer.memory);
    let memory = object.as_memory();
    let reads = request.flags & MAP_READ != 0 && !memory.host_may_read();
    let writes = request.flags & (MAP_WRITE | MAP_INVALIDATE) != 0 && !memory.host_may_write();
    if reads || writes {
        return Err(CL_INVALID_OPERATION);
    }
    let (at, layout, shadow) = if memory.host != 0 {
        ((memory.host + in_host.1) as *mut u8, in_host.0, None)
    } else {
        let shadow = Shadow::new(layout.bytes()).ok_or(CL_OUT_OF_HOST_MEMORY)?;
        (shadow.start, layout, Some(shadow))
    };
    let status = if request.flags & MAP_INVALIDATE == 0 {
        // Also a part that is only written is read first, as the program may leave some of it as it was.
        Transfer { layout, ..transfer }.read(at, request.blocking, request.event)
    } else {
        // The program will overwrite all of it, and need not wait for that.
        transfer.mark(request.event)
    };
    if status != STATUSES.ok {
        return Err(status);
    }
    let writes = request.flags & (MAP_WRITE | MAP_INVALIDATE) != 0;
    let mapped = Mapped { at: at as usize, place, layout, writes, _shadow: shadow };
    memory.maps.lock().expect("no one panics with this lock").push(mapped);
    Ok((at, layout))
}

unsafe fn settle(result: Result<(*mut u8, Layout), i32>, errcode: *mut i32) -> *mut c_void {
    match result {
        Ok((at, _)) => {
            failed(STATUSES.ok, errcode);
            at.cast()
        }
        Err(status) => failed(status, errcode).cast(),
    }
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn clEnqueueMapBuffer(
    queue: *mut Object,
    memory: *mut Object,
    blocking: u32,
    flags: u64,
    offset: usize,
    bytes: usize,
    count: u32,
    events: *const *mut Object,
    event: *mut *mut Object,
    errcode: *mut i32,
) -> *mut c_void {
    let made_by = numbers::clEnqueueMapBuffer;
    let request = Request { queue, memory, blocking: blocking != 0, flags, count, events, event, made_by };
    let layout = Layout::of_bytes(bytes);
    settle(map(&request, Place::Bytes { offset }, layout, (layout, offset)), errcode)
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn clEnqueueMapImage(
    queue: *mut Object,
    memory: *mut Object,
    blocking: u32,
    flags: u64,
    origin: *const [usize; 3],
    region: *const [usize; 3],
    row_pitch: *mut usize,
    slice_pitch: *mut usize,
    count: u32,
    events: *const *mut Object,
    event: *mut *mut Object,
    errcode: *mut i32,
) -> *mut c_void {
    let made_by = numbers::clEnqueueMapImage;
    let request = Request { queue, memory, blocking: blocking != 0, flags, count, events, event, made_by };
    let run = || {
        let object = object(kinds::cl_mem, memory).ok_or(CL_INVALID_MEM_OBJECT)?;
        let shape = object.as_memory().image.as_ref().ok_or(CL_INVALID_MEM_OBJECT)?;
        if origin.is_null() || region.is_null() || row_pitch.is_null() || (shape.has_slices() && slice_pitch.is_null()) {
            return Err(STATUSES.invalid);
        }
        let (origin, region) = (*origin, *region);
        let tight = shape.layout(region, 0, 0)?;
        let in_host = shape.layout(region, shape.row_pitch, shape.slice_pitch)?;
        let offset = shape.offset(origin, &in_host);
        let (at, layout) = map(&request, Place::Image { origin, region }, tight, (in_host, offset))?;
        *row_pitch = if shape.is_lines() { layout.row_bytes } else { layout.row_pitch };
        if !slice_pitch.is_null() {
            *slice_pitch = match (shape.has_slices(), shape.is_lines()) {
                (true, true) => layout.row_pitch,
                (true, false) => layout.slice_pitch,
                _ => 0,
            };
        }
        Ok((at, layout))
    };
    settle(run(), errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clEnqueueUnmapMemObject(
    queue: *mut Object,
    memory: *mut Object,
    at: *mut c_void,
    count: u32,
    events: *const *mut Object,
    event: *mut *mut Object,
) -> i32 {
    if object(kinds::cl_command_queue, queue).is_none() {
        return CL_INVALID_COMMAND_QUEUE;
    }
    let Some(of_memory) = object(kinds::cl_mem, memory) else { return CL_INVALID_MEM_OBJECT };
    let mut maps = of_memory.as_memory().maps.lock().expect("no one panics with this lock");
    let Some(place) = maps.iter().position(|mapped| mapped.at == at as usize) else { return STATUSES.invalid };
    let part = (maps[place].place, maps[place].layout);
    let transfer = Transfer::new((queue, memory), part, (count, events), numbers::clEnqueueUnmapMemObject, HostAccess::Mapped);
    let transfer = match transfer {
        Ok(transfer) => transfer,
        Err(status) => return status,
    };
    let mapped = maps.remove(place);
    // What was not read yet, the program can't have changed.
    if mapped.writes && !transfers::forget(at.cast()) {
        transfer.write(at.cast(), event)
    } else {
        transfer.mark(event)
    }
}
