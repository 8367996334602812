//! Variables in device memory.

use super::copy::copy_ordered;
use super::{require, runtime_api, store};
use crate::abi::*;
use crate::error::{Error, Outcome};
use crate::registry;
use std::ffi::{c_int, c_void};

/// The address of `count` bytes in a variable.
fn part(symbol: *const c_void, count: usize, offset: usize) -> Outcome<Address> {
    let (_, address, size_bytes) = registry::variable(symbol)?;
    match offset.checked_add(count) {
        Some(end) if end <= size_bytes => Ok(address + offset as Address),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// A kind of copy for which the variable may be the target, or the source with `reversed`.
fn check_kind(kind: c_int, reversed: c_int) -> Outcome {
    if kind == reversed || kind == copy_kind::DEVICE_TO_DEVICE || kind == copy_kind::DEFAULT {
        return Ok(());
    }
    Err(Error::INVALID_MEMCPY_DIRECTION)
}

fn pointer(address: Address) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

runtime_api! {
    /// Stores the address of a variable.
    fn cudaGetSymbolAddress(devPtr: *mut *mut c_void, symbol: *const c_void) {
        require(devPtr)?;
        let (_, address, _) = registry::variable(symbol)?;
        unsafe { store(devPtr, pointer(address)) }
    }

    /// Stores the size of a variable in bytes.
    fn cudaGetSymbolSize(size: *mut usize, symbol: *const c_void) {
        require(size)?;
        let (_, _, size_bytes) = registry::variable(symbol)?;
        unsafe { store(size, size_bytes) }
    }

    /// Copies to a variable.
    fn cudaMemcpyToSymbol | cudaMemcpyToSymbol_ptds (
        symbol: *const c_void, src: *const c_void, count: usize, offset: usize, kind: c_int,
    ) on stream {
        check_kind(kind, copy_kind::HOST_TO_DEVICE)?;
        let target = part(symbol, count, offset)?;
        unsafe { copy_ordered(pointer(target), src, count, kind, stream, true) }
    }

    /// Copies from a variable.
    fn cudaMemcpyFromSymbol | cudaMemcpyFromSymbol_ptds (
        dst: *mut c_void, symbol: *const c_void, count: usize, offset: usize, kind: c_int,
    ) on stream {
        check_kind(kind, copy_kind::DEVICE_TO_HOST)?;
        let source = part(symbol, count, offset)?;
        unsafe { copy_ordered(dst, pointer(source), count, kind, stream, true) }
    }

    /// Copies to a variable in the order of a stream.
    fn cudaMemcpyToSymbolAsync | cudaMemcpyToSymbolAsync_ptsz [stream](
        symbol: *const c_void, src: *const c_void, count: usize, offset: usize, kind: c_int, stream: Handle,
    ) {
        check_kind(kind, copy_kind::HOST_TO_DEVICE)?;
        let target = part(symbol, count, offset)?;
        unsafe { copy_ordered(pointer(target), src, count, kind, stream, false) }
    }

    /// Copies from a variable in the order of a stream.
    fn cudaMemcpyFromSymbolAsync | cudaMemcpyFromSymbolAsync_ptsz [stream](
        dst: *mut c_void, symbol: *const c_void, count: usize, offset: usize, kind: c_int, stream: Handle,
    ) {
        check_kind(kind, copy_kind::DEVICE_TO_HOST)?;
        let source = part(symbol, count, offset)?;
        unsafe { copy_ordered(dst, pointer(source), count, kind, stream, false) }
    }
}
