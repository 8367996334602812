//! Memory objects. What was said when they were made answers all queries.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use crate::contexts::{at_the_end, Notify};
use crate::front;
use crate::images::Shape;
use crate::info::Query;
use crate::maps::Mapped;
use crate::objects::{handed, object, Data, Object};
use crate::stubs::{kinds, numbers, remote, STATUSES};

const CL_INVALID_CONTEXT: i32 = -34;
const CL_INVALID_HOST_PTR: i32 = -37;
const CL_INVALID_MEM_OBJECT: i32 = -38;
const CL_INVALID_BUFFER_SIZE: i32 = -61;
const CL_INVALID_PROPERTY: i32 = -64;
const CL_MEM_COPY_OVERLAP: i32 = -8;

const CL_MEM_TYPE: u32 = 0x1100;
const CL_MEM_FLAGS: u32 = 0x1101;
const CL_MEM_SIZE: u32 = 0x1102;
const CL_MEM_HOST_PTR: u32 = 0x1103;
const CL_MEM_MAP_COUNT: u32 = 0x1104;
const CL_MEM_REFERENCE_COUNT: u32 = 0x1105;
const CL_MEM_CONTEXT: u32 = 0x1106;
const CL_MEM_ASSOCIATED_MEMOBJECT: u32 = 0x1107;
const CL_MEM_OFFSET: u32 = 0x1108;
const CL_MEM_USES_SVM_POINTER: u32 = 0x1109;
const CL_MEM_PROPERTIES: u32 = 0x110a;

const CL_MEM_OBJECT_BUFFER: u32 = 0x10f0;
const CL_BUFFER_CREATE_TYPE_REGION: u32 = 0x1220;

/// CL_MEM_READ_WRITE, _WRITE_ONLY and _READ_ONLY: what kernels may do.
const KERNEL_ACCESS: u64 = 7;
/// CL_MEM_HOST_WRITE_ONLY, _HOST_READ_ONLY and _HOST_NO_ACCESS.
const HOST_WRITE_ONLY: u64 = 1 << 7;
const HOST_READ_ONLY: u64 = 1 << 8;
const HOST_NO_ACCESS: u64 = 1 << 9;
const HOST_ACCESS: u64 = HOST_WRITE_ONLY | HOST_READ_ONLY | HOST_NO_ACCESS;
const USE_HOST_PTR: u64 = 8;
const ALLOC_HOST_PTR: u64 = 16;
const COPY_HOST_PTR: u64 = 32;
const HOST_MEMORY: u64 = USE_HOST_PTR | ALLOC_HOST_PTR | COPY_HOST_PTR;

/// A memory object.
#[derive(Default)]
pub(crate) struct Memory {
    /// CL_MEM_OBJECT_BUFFER and so on.
    pub kind: u32,
    pub flags: u64,
    pub bytes: usize,
    /// The program's memory that CL_MEM_USE_HOST_PTR names, which is up to date while it is mapped; 0 without.
    pub host: usize,
    /// Where a part of a buffer begins, in bytes.
    pub origin: usize,
    /// What an image looks like.
    pub image: Option<Shape>,
    pub maps: Mutex<Vec<Mapped>>,
}

impl Memory {
    pub fn host_may_read(&self) -> bool {
        self.flags & (HOST_WRITE_ONLY | HOST_NO_ACCESS) == 0
    }

    pub fn host_may_write(&self) -> bool {
        self.flags & (HOST_READ_ONLY | HOST_NO_ACCESS) == 0
    }
}

/// The flags for the server, whether there is data to copy, and the address that the program will find up to date when it maps.
pub(crate) fn host_flags(flags: u64, host: *const u8) -> Result<(u64, bool, usize), i32> {
    let with_data = flags & (USE_HOST_PTR | COPY_HOST_PTR) != 0;
    if flags & USE_HOST_PTR != 0 && flags & (ALLOC_HOST_PTR | COPY_HOST_PTR) != 0 {
        return Err(STATUSES.invalid);
    }
    if with_data == host.is_null() {
        return Err(CL_INVALID_HOST_PTR);
    }
    let several = |group: u64| (flags & group).count_ones() > 1;
    if several(KERNEL_ACCESS) || several(HOST_ACCESS) {
        return Err(STATUSES.invalid);
    }
    // What the host may do is checked here, as mapping for writing alone reads all the same.
    Ok((flags & !(HOST_MEMORY | HOST_ACCESS), with_data, if flags & USE_HOST_PTR != 0 { host as usize } else { 0 }))
}

unsafe fn create_buffer(context: *mut Object, flags: u64, bytes: usize, host: *const u8) -> Result<Arc<Object>, i32> {
    let context = object(kinds::cl_context, context).ok_or(CL_INVALID_CONTEXT)?;
    if bytes == 0 {
        return Err(CL_INVALID_BUFFER_SIZE);
    }
    let (remote_flags, with_data, kept_host) = host_flags(flags, host)?;
    let data = with_data.then(|| std::slice::from_raw_parts(host, bytes));
    let flags = if flags & KERNEL_ACCESS == 0 { flags | 1 } else { flags };
    front().create(
        (kinds::cl_mem, numbers::clCreateBuffer),
        |encoder| {
            encoder.u64(context.number);
            encoder.u64(remote_flags);
            encoder.usize(bytes);
            encoder.u8(with_data.into());
        },
        data,
        |_| Ok(()),
        || {
            let memory = Memory { kind: CL_MEM_OBJECT_BUFFER, flags, bytes, host: kept_host, ..Memory::default() };
            (Arc::clone(&context), Data::Memory(memory))
        },
    )
}

#[no_mangle]
pub unsafe extern "C" fn clCreateBuffer(context: *mut Object, flags: u64, bytes: usize, host: *const u8, errcode: *mut i32) -> *mut Object {
    handed(create_buffer(context, flags, bytes, host), errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clCreateBufferWithProperties(
    context: *mut Object,
    properties: *const u64,
    flags: u64,
    bytes: usize,
    host: *const u8,
    errcode: *mut i32,
) -> *mut Object {
    if !properties.is_null() && *properties != 0 {
        return handed(Err(CL_INVALID_PROPERTY), errcode);
    }
    clCreateBuffer(context, flags, bytes, host, errcode)
}

unsafe fn create_sub_buffer(buffer: *mut Object, flags: u64, kind: u32, region: *const usize) -> Result<Arc<Object>, i32> {
    let buffer = object(kinds::cl_mem, buffer).ok_or(CL_INVALID_MEM_OBJECT)?;
    let whole = buffer.as_memory();
    if whole.kind != CL_MEM_OBJECT_BUFFER || buffer.parent.as_ref().is_some_and(|parent| parent.kind == kinds::cl_mem) {
        return Err(CL_INVALID_MEM_OBJECT);
    }
    if kind != CL_BUFFER_CREATE_TYPE_REGION || region.is_null() {
        return Err(STATUSES.invalid);
    }
    let [origin, bytes] = *region.cast::<[usize; 2]>();
    if bytes == 0 {
        return Err(CL_INVALID_BUFFER_SIZE);
    }
    if origin.checked_add(bytes).is_none_or(|end| end > whole.bytes) {
        return Err(STATUSES.invalid);
    }
    let widened =
        [(HOST_READ_ONLY, HOST_WRITE_ONLY), (HOST_WRITE_ONLY, HOST_READ_ONLY), (HOST_NO_ACCESS, HOST_READ_ONLY | HOST_WRITE_ONLY)];
    if flags & HOST_MEMORY != 0 || widened.iter().any(|&(has, wants)| whole.flags & has != 0 && flags & wants != 0) {
        return Err(STATUSES.invalid);
    }
    // What is left open is as in the whole.
    let inherited = |group: u64| if flags & group == 0 { whole.flags & group } else { flags & group };
    let all_flags = inherited(KERNEL_ACCESS) | inherited(HOST_ACCESS) | (whole.flags & HOST_MEMORY);
    front().create(
        (kinds::cl_mem, numbers::clCreateSubBuffer),
        |encoder| {
            encoder.u64(buffer.number);
            encoder.u64(flags & !HOST_ACCESS);
            encoder.u32(kind);
            encoder.u8(1);
            encoder.usize(origin);
            encoder.usize(bytes);
        },
        None,
        |_| Ok(()),
        || {
            let host = if whole.host == 0 { 0 } else { whole.host + origin };
            let memory = Memory { kind: CL_MEM_OBJECT_BUFFER, flags: all_flags, bytes, host, origin, ..Memory::default() };
            (Arc::clone(&buffer), Data::Memory(memory))
        },
    )
}

#[no_mangle]
pub unsafe extern "C" fn clCreateSubBuffer(
    buffer: *mut Object,
    flags: u64,
    kind: u32,
    region: *const usize,
    errcode: *mut i32,
) -> *mut Object {
    handed(create_sub_buffer(buffer, flags, kind, region), errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clGetMemObjectInfo(memory: *mut Object, name: u32, size: usize, into: *mut u8, size_ret: *mut usize) -> i32 {
    let Some(object) = object(kinds::cl_mem, memory) else { return CL_INVALID_MEM_OBJECT };
    let (query, memory) = (Query { size, into, size_ret }, object.as_memory());
    match name {
        CL_MEM_TYPE => query.u32(memory.kind),
        CL_MEM_FLAGS => query.u64(memory.flags),
        CL_MEM_SIZE => query.u64(memory.bytes as u64),
        CL_MEM_HOST_PTR => query.u64(memory.host as u64),
        CL_MEM_MAP_COUNT => query.u32(memory.maps.lock().expect("no one panics with this lock").len() as u32),
        CL_MEM_REFERENCE_COUNT => query.u32(object.references()),
        CL_MEM_CONTEXT => query.object(Some(object.context())),
        CL_MEM_ASSOCIATED_MEMOBJECT => query.object(object.parent.as_ref().filter(|parent| parent.kind == kinds::cl_mem)),
        CL_MEM_OFFSET => query.u64(memory.origin as u64),
        CL_MEM_USES_SVM_POINTER => query.u32(0),
        CL_MEM_PROPERTIES => query.words([]),
        _ => STATUSES.invalid,
    }
}

#[no_mangle]
pub unsafe extern "C" fn clSetMemObjectDestructorCallback(memory: *mut Object, notify: Option<Notify>, data: *mut c_void) -> i32 {
    at_the_end(object(kinds::cl_mem, memory), CL_INVALID_MEM_OBJECT, notify, data)
}

/// What is wrong with a copy is found here, as nobody waits for the driver's word.
#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn clEnqueueCopyBuffer(
    queue: *mut Object,
    from: *mut Object,
    to: *mut Object,
    from_offset: usize,
    to_offset: usize,
    bytes: usize,
    count: u32,
    events: *const *mut Object,
    event: *mut *mut Object,
) -> i32 {
    let (Some(source), Some(target)) = (object(kinds::cl_mem, from), object(kinds::cl_mem, to)) else { return CL_INVALID_MEM_OBJECT };
    if !Arc::ptr_eq(source.context(), target.context()) {
        return CL_INVALID_CONTEXT;
    }
    let outside = |memory: &Memory, offset: usize| offset.checked_add(bytes).is_none_or(|end| end > memory.bytes);
    if bytes == 0 || outside(source.as_memory(), from_offset) || outside(target.as_memory(), to_offset) {
        return STATUSES.invalid;
    }
    if Arc::ptr_eq(&source, &target) && from_offset.abs_diff(to_offset) < bytes {
        return CL_MEM_COPY_OVERLAP;
    }
    remote::clEnqueueCopyBuffer(queue, from, to, from_offset, to_offset, bytes, count, events, event)
}
