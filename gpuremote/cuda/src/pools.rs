//! Pools of memory, and memory that remote GPUs lack.

use std::ffi::{c_char, c_void};
use std::slice;

use crate::front;
use crate::places::allocated;
use crate::stubs::{kinds, numbers, remote, STATUSES};

/// CUmemPool_attribute: the first three are switches of 32 bits, the others are numbers of 64.
const SWITCHES: std::ops::RangeInclusive<i32> = 1..=3;
/// Length of CUmemPoolProps in bytes.
const PROPERTIES_BYTES: usize = 88;
/// Numbers of 32 bits in a CUmemAccessDesc: type and number of the place, and the kind of access.
const ACCESS_WORDS: usize = 3;

#[no_mangle]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, pool: u64, stream: u64) -> i32 {
    if address.is_null() {
        return STATUSES.invalid;
    }
    allocated(remote::cuMemAllocFromPoolAsync(address, bytes, pool, stream), address, bytes)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemPoolCreate(pool: *mut u64, properties: *const u8) -> i32 {
    if pool.is_null() || properties.is_null() {
        return STATUSES.invalid;
    }
    front().call(
        numbers::cuMemPoolCreate,
        |encoder| encoder.raw(slice::from_raw_parts(properties, PROPERTIES_BYTES)),
        |decoder| {
            *pool = decoder.u64()?;
            Ok(())
        },
    )
}

#[no_mangle]
pub unsafe extern "C" fn cuMemPoolGetAttribute(pool: u64, attribute: i32, value: *mut c_void) -> i32 {
    if value.is_null() {
        return STATUSES.invalid;
    }
    let mut number = 0;
    let status = remote::cuMemPoolGetAttribute(pool, attribute, &mut number);
    if status == STATUSES.ok {
        if SWITCHES.contains(&attribute) {
            *value.cast::<u32>() = number as u32;
        } else {
            *value.cast::<u64>() = number;
        }
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cuMemPoolSetAttribute(pool: u64, attribute: i32, value: *const c_void) -> i32 {
    if value.is_null() {
        return STATUSES.invalid;
    }
    let number = if SWITCHES.contains(&attribute) { u64::from(*value.cast::<u32>()) } else { *value.cast::<u64>() };
    remote::cuMemPoolSetAttribute(pool, attribute, &number)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemPoolSetAccess(pool: u64, accesses: *const i32, count: usize) -> i32 {
    if accesses.is_null() {
        return STATUSES.invalid;
    }
    if !front().is(kinds::CUmemoryPool, pool) {
        return STATUSES.handle;
    }
    front().call(
        numbers::cuMemPoolSetAccess,
        |encoder| {
            encoder.u64(pool);
            encoder.usize(count);
            for i in 0..count * ACCESS_WORDS {
                encoder.i32(*accesses.add(i));
            }
        },
        |_| Ok(()),
    )
}

/// Memory that both processors see at one address needs both on one host.
#[no_mangle]
pub unsafe extern "C" fn cuMemAllocManaged(_: *mut u64, _: usize, _: u32) -> i32 {
    front().refuse("managed memory (cuMemAllocManaged, cudaMallocManaged)")
}

#[no_mangle]
pub unsafe extern "C" fn cuLibraryGetManaged(_: *mut u64, _: *mut usize, _: u64, _: *const c_char) -> i32 {
    front().refuse("a managed variable (cuLibraryGetManaged)")
}
