//! What lies where: device memory by address, host memory that both sides share.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::sync::{OnceLock, RwLock};

use gpuremote_client::Arena;

use crate::stubs::{cuMemGetAddressRange_v2, numbers, remote, STATUSES};
use crate::{contexts, front};

/// CU_MEMHOSTALLOC_DEVICEMAP: GPU programs reach the host memory.
const DEVICE_MAPPED: u32 = 2;

struct Place {
    bytes: usize,
    context: u64,
    /// The module or library whose variable it is; 0 is none.
    image: u64,
}

fn device_memory() -> &'static RwLock<BTreeMap<u64, Place>> {
    static DEVICE_MEMORY: OnceLock<RwLock<BTreeMap<u64, Place>>> = OnceLock::new();
    DEVICE_MEMORY.get_or_init(RwLock::default)
}

/// Host memory that was allocated here and is not shared, by address: its size in bytes and its flags.
fn host_memory() -> &'static RwLock<BTreeMap<u64, (usize, u32)>> {
    static HOST_MEMORY: OnceLock<RwLock<BTreeMap<u64, (usize, u32)>>> = OnceLock::new();
    HOST_MEMORY.get_or_init(RwLock::default)
}

/// Memory of the program's own that it has registered, by address: its size in bytes.
fn registered() -> &'static RwLock<BTreeMap<u64, usize>> {
    static REGISTERED: OnceLock<RwLock<BTreeMap<u64, usize>>> = OnceLock::new();
    REGISTERED.get_or_init(RwLock::default)
}

/// Whether so many bytes from there are device memory of this process.
pub(crate) fn is_device(address: u64, bytes: usize) -> bool {
    let memory = device_memory().read().expect("no one panics with this lock");
    memory.range(..=address).next_back().is_some_and(|(&start, place)| {
        let offset = (address - start) as usize;
        offset < place.bytes.max(1) && bytes <= place.bytes - offset
    })
}

/// Whether so many bytes from there begin in device memory that was allocated here, and end outside it.
pub(crate) fn is_overrun(address: u64, bytes: usize) -> bool {
    let memory = device_memory().read().expect("no one panics with this lock");
    memory.range(..=address).next_back().is_some_and(|(&start, place)| {
        let offset = (address - start) as usize;
        offset < place.bytes && bytes > place.bytes - offset
    })
}

/// Whether so many bytes from there are device memory. What was not allocated here, as variables of modules, the server is asked for.
pub(crate) unsafe fn is_device_surely(address: u64, bytes: usize) -> bool {
    if is_device(address, bytes) {
        return true;
    }
    let (mut start, mut length) = (0, 0);
    cuMemGetAddressRange_v2(&mut start, &mut length, address) == STATUSES.ok
        && start != 0
        && (address - start) as usize <= length
        && bytes <= length - (address - start) as usize
}

fn arena() -> Option<&'static Arena> {
    front().session().ok()?.arena()
}

/// Where host memory lies in what both sides share, if it does and was allocated there.
pub(crate) fn shared_offset(start: *const u8, bytes: usize) -> Option<usize> {
    arena()?.offset(start, bytes)
}

pub(crate) unsafe fn allocated(status: i32, address: *const u64, bytes: usize) -> i32 {
    if status == STATUSES.ok {
        let place = Place { bytes, context: contexts::current(), image: 0 };
        device_memory().write().expect("no one panics with this lock").insert(*address, place);
    }
    status
}

unsafe fn freed(status: i32, address: u64) -> i32 {
    if status == STATUSES.ok {
        device_memory().write().expect("no one panics with this lock").remove(&address);
    }
    status
}

unsafe fn variable(address: *mut u64, bytes: *mut usize, image: u64, find: impl FnOnce(*mut u64, *mut usize) -> i32) -> i32 {
    let (mut found, mut length) = (0, 0);
    let status = find(&mut found, &mut length);
    if status == STATUSES.ok {
        let place = Place { bytes: length, context: contexts::current(), image };
        device_memory().write().expect("no one panics with this lock").insert(found, place);
        if !address.is_null() {
            *address = found;
        }
        if !bytes.is_null() {
            *bytes = length;
        }
    }
    status
}

fn unloaded(status: i32, image: u64) -> i32 {
    if status == STATUSES.ok {
        device_memory().write().expect("no one panics with this lock").retain(|_, place| place.image != image);
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleGetGlobal_v2(address: *mut u64, bytes: *mut usize, module: u64, name: *const c_char) -> i32 {
    variable(address, bytes, module, |address, bytes| remote::cuModuleGetGlobal_v2(address, bytes, module, name))
}

#[no_mangle]
pub unsafe extern "C" fn cuLibraryGetGlobal(address: *mut u64, bytes: *mut usize, library: u64, name: *const c_char) -> i32 {
    variable(address, bytes, library, |address, bytes| remote::cuLibraryGetGlobal(address, bytes, library, name))
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleUnload(module: u64) -> i32 {
    unloaded(remote::cuModuleUnload(module), module)
}

#[no_mangle]
pub unsafe extern "C" fn cuLibraryUnload(library: u64) -> i32 {
    unloaded(remote::cuLibraryUnload(library), library)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> i32 {
    if address.is_null() || bytes == 0 {
        return STATUSES.invalid;
    }
    allocated(remote::cuMemAlloc_v2(address, bytes), address, bytes)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemAllocPitch_v2(address: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) -> i32 {
    if address.is_null() || pitch.is_null() {
        return STATUSES.invalid;
    }
    let status = remote::cuMemAllocPitch_v2(address, pitch, width, height, element);
    allocated(status, address, (*pitch).saturating_mul(height))
}

#[no_mangle]
pub unsafe extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: u64) -> i32 {
    if address.is_null() {
        return STATUSES.invalid;
    }
    allocated(remote::cuMemAllocAsync(address, bytes, stream), address, bytes)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemFree_v2(address: u64) -> i32 {
    freed(remote::cuMemFree_v2(address), address)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemFreeAsync(address: u64, stream: u64) -> i32 {
    freed(remote::cuMemFreeAsync(address, stream), address)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemHostAlloc(memory: *mut u64, bytes: usize, flags: u32) -> i32 {
    if memory.is_null() || bytes == 0 {
        return STATUSES.invalid;
    }
    if let Some(arena) = arena() {
        let Some(start) = arena.take(bytes) else { return OUT_OF_MEMORY };
        let offset = arena.offset(start, bytes).expect("it was taken there");
        let status = front().call(
            numbers::cuMemHostAlloc,
            |encoder| {
                encoder.usize(offset);
                encoder.usize(bytes);
                // Flags of allocation and of registration are the same but for write-combining, which has no use here.
                encoder.u32(flags & 3);
            },
            |_| Ok(()),
        );
        if status == STATUSES.ok {
            *memory = start as u64;
        } else {
            arena.give_back(start);
        }
        return status;
    }
    let start = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
    if start == libc::MAP_FAILED {
        return OUT_OF_MEMORY;
    }
    host_memory().write().expect("no one panics with this lock").insert(start as u64, (bytes, flags));
    *memory = start as u64;
    STATUSES.ok
}

/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: i32 = 2;

#[no_mangle]
pub unsafe extern "C" fn cuMemAllocHost_v2(memory: *mut u64, bytes: usize) -> i32 {
    cuMemHostAlloc(memory, bytes, 0)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemFreeHost(memory: *mut u8) -> i32 {
    if let Some((offset, bytes)) = arena().and_then(|arena| arena.give_back(memory)) {
        let arguments = |encoder: &mut gpuremote_client::wire::Encoder| {
            encoder.usize(offset);
            encoder.usize(bytes);
        };
        return front().call(numbers::cuMemFreeHost, arguments, |_| Ok(()));
    }
    match host_memory().write().expect("no one panics with this lock").remove(&(memory as u64)) {
        Some((bytes, _)) => {
            libc::munmap(memory.cast(), bytes);
            STATUSES.ok
        }
        None => STATUSES.invalid,
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(address: *mut u64, memory: *const u8, flags: u32) -> i32 {
    if address.is_null() || flags != 0 {
        return STATUSES.invalid;
    }
    let Some(offset) = shared_offset(memory, 1) else { return front().refuse("cuMemHostGetDevicePointer of memory on another host") };
    front().call(
        numbers::cuMemHostGetDevicePointer_v2,
        |encoder| encoder.usize(offset),
        |decoder| {
            *address = decoder.u64()?;
            Ok(())
        },
    )
}

#[no_mangle]
pub unsafe extern "C" fn cuMemHostGetFlags(flags: *mut u32, memory: *const u8) -> i32 {
    if flags.is_null() {
        return STATUSES.invalid;
    }
    if shared_offset(memory, 1).is_some() {
        *flags = DEVICE_MAPPED;
        return STATUSES.ok;
    }
    match host_memory().read().expect("no one panics with this lock").get(&(memory as u64)) {
        Some((_, host_flags)) => {
            *flags = *host_flags;
            STATUSES.ok
        }
        None => STATUSES.invalid,
    }
}

/// The program's own memory stays its own: copies from it are as right as before, and as fast as from memory that is not pinned.
#[no_mangle]
pub unsafe extern "C" fn cuMemHostRegister_v2(memory: *mut c_void, bytes: usize, flags: u32) -> i32 {
    if memory.is_null() || bytes == 0 {
        return STATUSES.invalid;
    }
    if flags & DEVICE_MAPPED != 0 {
        return front().refuse("cuMemHostRegister with CU_MEMHOSTREGISTER_DEVICEMAP");
    }
    let mut registered = registered().write().expect("no one panics with this lock");
    let (start, end) = (memory as u64, (memory as u64).saturating_add(bytes as u64));
    if registered.range(..end).next_back().is_some_and(|(&other, &length)| other + length as u64 > start) {
        return ALREADY_REGISTERED;
    }
    registered.insert(start, bytes);
    STATUSES.ok
}

/// CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED and _NOT_REGISTERED.
const ALREADY_REGISTERED: i32 = 712;
const NOT_REGISTERED: i32 = 713;

#[no_mangle]
pub unsafe extern "C" fn cuMemHostUnregister(memory: *mut c_void) -> i32 {
    if memory.is_null() {
        return STATUSES.invalid;
    }
    match registered().write().expect("no one panics with this lock").remove(&(memory as u64)) {
        Some(_) => STATUSES.ok,
        None => NOT_REGISTERED,
    }
}

/// CUpointer_attribute and CUmemorytype of the driver API.
mod attributes {
    pub const CONTEXT: i32 = 1;
    pub const MEMORY_TYPE: i32 = 2;
    pub const DEVICE_POINTER: i32 = 3;
    pub const HOST_POINTER: i32 = 4;
    pub const IS_MANAGED: i32 = 8;
    pub const DEVICE_ORDINAL: i32 = 9;
    pub const RANGE_START: i32 = 11;
    pub const RANGE_BYTES: i32 = 12;
    pub const HOST: u32 = 1;
    pub const DEVICE: u32 = 2;
}

/// Whether this is host memory that the program has allocated here or registered.
fn is_pinned(address: u64) -> bool {
    let within = |(&start, bytes): (&u64, usize)| ((address - start) as usize) < bytes;
    let allocated = || {
        let memory = host_memory().read().expect("no one panics with this lock");
        memory.range(..=address).next_back().is_some_and(|(start, (bytes, _))| within((start, *bytes)))
    };
    let is_registered = || {
        let memory = registered().read().expect("no one panics with this lock");
        memory.range(..=address).next_back().is_some_and(|(start, bytes)| within((start, *bytes)))
    };
    shared_offset(address as *const u8, 1).is_some() || allocated() || is_registered()
}

unsafe fn pointer_attribute(value: *mut u8, attribute: i32, address: u64) -> i32 {
    let memory = device_memory().read().expect("no one panics with this lock");
    let place = memory.range(..=address).next_back().filter(|(&start, place)| ((address - start) as usize) < place.bytes);
    if place.is_none() && !is_pinned(address) {
        return STATUSES.invalid;
    }
    match (attribute, place) {
        (attributes::CONTEXT, Some((_, place))) => *value.cast::<u64>() = place.context,
        (attributes::MEMORY_TYPE, Some(_)) => *value.cast::<u32>() = attributes::DEVICE,
        (attributes::MEMORY_TYPE, None) => *value.cast::<u32>() = attributes::HOST,
        (attributes::DEVICE_POINTER, Some(_)) => *value.cast::<u64>() = address,
        (attributes::HOST_POINTER, None) => *value.cast::<u64>() = address,
        (attributes::IS_MANAGED, _) => *value.cast::<u32>() = 0,
        (attributes::DEVICE_ORDINAL, Some((_, place))) => *value.cast::<i32>() = contexts::device_of(place.context),
        (attributes::DEVICE_ORDINAL, None) => *value.cast::<i32>() = contexts::device_of(contexts::current()),
        (attributes::RANGE_START, Some((&start, _))) => *value.cast::<u64>() = start,
        (attributes::RANGE_BYTES, Some((_, place))) => *value.cast::<usize>() = place.bytes,
        _ => return STATUSES.invalid,
    }
    STATUSES.ok
}

#[no_mangle]
pub unsafe extern "C" fn cuPointerGetAttribute(value: *mut u8, attribute: i32, address: u64) -> i32 {
    if value.is_null() {
        return STATUSES.invalid;
    }
    pointer_attribute(value, attribute, address)
}

/// As the manual has it: what is unknown of an address is zero, not an error.
#[no_mangle]
pub unsafe extern "C" fn cuPointerGetAttributes(count: u32, attributes: *const i32, values: *const *mut u8, address: u64) -> i32 {
    if attributes.is_null() || values.is_null() {
        return STATUSES.invalid;
    }
    for i in 0..count as usize {
        let (attribute, value) = (*attributes.add(i), *values.add(i));
        if value.is_null() {
            return STATUSES.invalid;
        }
        if pointer_attribute(value, attribute, address) != STATUSES.ok {
            let wide = matches!(
                attribute,
                attributes::CONTEXT
                    | attributes::DEVICE_POINTER
                    | attributes::HOST_POINTER
                    | attributes::RANGE_START
                    | attributes::RANGE_BYTES
            );
            std::ptr::write_bytes(value, 0, if wide { 8 } else { 4 });
        }
    }
    STATUSES.ok
}
