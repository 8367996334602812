//! Copies and fills of flat memory and of rectangles.

use super::runtime_api;
use crate::abi::*;
use crate::context;
use crate::error::{Error, Outcome};
use std::ffi::{c_int, c_void};
use std::ptr;

fn address(pointer: *const c_void) -> Address {
    pointer.expose_provenance() as Address
}

/// Copies `count` bytes in the order of a stream, and waits for it if `finished`.
///
/// # Safety
///
/// Both pointers have `count` bytes, as the kind of copy says.
///
/// # Errors
///
/// `cudaErrorInvalidMemcpyDirection` for an unknown kind, and those of the driver.
pub unsafe fn copy_ordered(
    target: *mut c_void,
    source: *const c_void,
    count: usize,
    kind: c_int,
    stream: Handle,
    finished: bool,
) -> Outcome {
    if !(copy_kind::HOST_TO_HOST..=copy_kind::DEFAULT).contains(&kind) {
        return Err(Error::INVALID_MEMCPY_DIRECTION);
    }
    let (driver, _) = context::current()?;
    if count == 0 {
        return Ok(());
    }
    let (to, from) = (address(target), address(source));
    if finished && stream == DEFAULT_STREAM {
        return unsafe {
            match kind {
                copy_kind::HOST_TO_DEVICE => driver.cuMemcpyHtoD_v2(to, source, count),
                copy_kind::DEVICE_TO_HOST => driver.cuMemcpyDtoH_v2(target, from, count),
                copy_kind::DEVICE_TO_DEVICE => driver.cuMemcpyDtoD_v2(to, from, count),
                copy_kind::HOST_TO_HOST => {
                    // The driver has no such copy: earlier work of the default stream comes first.
                    driver.cuStreamSynchronize(stream)?;
                    ptr::copy(source.cast::<u8>(), target.cast::<u8>(), count);
                    Ok(())
                }
                _ => driver.cuMemcpy(to, from, count),
            }
        };
    }
    unsafe {
        match kind {
            copy_kind::HOST_TO_DEVICE => driver.cuMemcpyHtoDAsync_v2(to, source, count, stream)?,
            copy_kind::DEVICE_TO_HOST => driver.cuMemcpyDtoHAsync_v2(target, from, count, stream)?,
            copy_kind::DEVICE_TO_DEVICE => driver.cuMemcpyDtoDAsync_v2(to, from, count, stream)?,
            _ => driver.cuMemcpyAsync(to, from, count, stream)?,
        }
        if finished {
            driver.cuStreamSynchronize(stream)?;
        }
    }
    Ok(())
}

/// The memory types of source and target for the driver.
///
/// # Errors
///
/// `cudaErrorInvalidMemcpyDirection` for an unknown kind.
pub fn sides_of(kind: c_int) -> Outcome<(u32, u32)> {
    use memory_type::{DEVICE, HOST, UNIFIED};
    match kind {
        copy_kind::HOST_TO_HOST => Ok((HOST, HOST)),
        copy_kind::HOST_TO_DEVICE => Ok((HOST, DEVICE)),
        copy_kind::DEVICE_TO_HOST => Ok((DEVICE, HOST)),
        copy_kind::DEVICE_TO_DEVICE => Ok((DEVICE, DEVICE)),
        copy_kind::DEFAULT => Ok((UNIFIED, UNIFIED)),
        _ => Err(Error::INVALID_MEMCPY_DIRECTION),
    }
}

/// A rectangle of rows at a pointer.
struct Rows {
    pointer: *const c_void,
    pitch_bytes: usize,
}

impl Rows {
    fn side(&self, kind: u32) -> Copy2dSide {
        Copy2dSide {
            x_bytes: 0,
            y: 0,
            kind,
            host: self.pointer.cast_mut(),
            device: address(self.pointer),
            array: ptr::null_mut(),
            pitch_bytes: self.pitch_bytes,
        }
    }
}

unsafe fn copy_rows(target: Rows, source: Rows, width_bytes: usize, height: usize, kind: c_int, stream: Handle, finished: bool) -> Outcome {
    let (source_kind, target_kind) = sides_of(kind)?;
    if width_bytes > target.pitch_bytes || width_bytes > source.pitch_bytes {
        return Err(Error::INVALID_VALUE);
    }
    let (driver, _) = context::current()?;
    if width_bytes == 0 || height == 0 {
        return Ok(());
    }
    let parameters = Copy2d { source: source.side(source_kind), target: target.side(target_kind), width_bytes, height };
    unsafe {
        if finished && stream == DEFAULT_STREAM {
            return driver.cuMemcpy2DUnaligned_v2(&parameters);
        }
        driver.cuMemcpy2DAsync_v2(&parameters, stream)?;
        if finished {
            driver.cuStreamSynchronize(stream)?;
        }
    }
    Ok(())
}

runtime_api! {
    /// Copies memory.
    fn cudaMemcpy | cudaMemcpy_ptds (dst: *mut c_void, src: *const c_void, count: usize, kind: c_int) on stream {
        unsafe { copy_ordered(dst, src, count, kind, stream, true) }
    }

    /// Copies memory in the order of a stream.
    fn cudaMemcpyAsync | cudaMemcpyAsync_ptsz [stream](
        dst: *mut c_void, src: *const c_void, count: usize, kind: c_int, stream: Handle,
    ) {
        unsafe { copy_ordered(dst, src, count, kind, stream, false) }
    }

    /// Copies a rectangle.
    fn cudaMemcpy2D | cudaMemcpy2D_ptds (
        dst: *mut c_void, dpitch: usize, src: *const c_void, spitch: usize, width: usize, height: usize, kind: c_int,
    ) on stream {
        let (target, source) = (Rows { pointer: dst, pitch_bytes: dpitch }, Rows { pointer: src, pitch_bytes: spitch });
        unsafe { copy_rows(target, source, width, height, kind, stream, true) }
    }

    /// Copies a rectangle in the order of a stream.
    fn cudaMemcpy2DAsync | cudaMemcpy2DAsync_ptsz [stream](
        dst: *mut c_void, dpitch: usize, src: *const c_void, spitch: usize, width: usize, height: usize, kind: c_int,
        stream: Handle,
    ) {
        let (target, source) = (Rows { pointer: dst, pitch_bytes: dpitch }, Rows { pointer: src, pitch_bytes: spitch });
        unsafe { copy_rows(target, source, width, height, kind, stream, false) }
    }

    /// Copies between devices.
    fn cudaMemcpyPeer(dst: *mut c_void, dstDevice: c_int, src: *const c_void, srcDevice: c_int, count: usize) {
        let (driver, _) = context::current()?;
        let (to, from) = (context::primary(dstDevice)?, context::primary(srcDevice)?);
        unsafe { driver.cuMemcpyPeer(address(dst), to, address(src), from, count) }
    }

    /// Copies between devices in the order of a stream.
    fn cudaMemcpyPeerAsync(
        dst: *mut c_void, dstDevice: c_int, src: *const c_void, srcDevice: c_int, count: usize, stream: Handle,
    ) {
        let (driver, _) = context::current()?;
        let (to, from) = (context::primary(dstDevice)?, context::primary(srcDevice)?);
        unsafe { driver.cuMemcpyPeerAsync(address(dst), to, address(src), from, count, stream) }
    }

    /// Fills memory with a byte.
    fn cudaMemset | cudaMemset_ptds (devPtr: *mut c_void, value: c_int, count: usize) on stream {
        let (driver, _) = context::current()?;
        if count == 0 {
            return Ok(());
        }
        if stream == DEFAULT_STREAM {
            return unsafe { driver.cuMemsetD8_v2(address(devPtr), value as u8, count) };
        }
        unsafe {
            driver.cuMemsetD8Async(address(devPtr), value as u8, count, stream)?;
            driver.cuStreamSynchronize(stream)
        }
    }

    /// Fills memory with a byte in the order of a stream.
    fn cudaMemsetAsync | cudaMemsetAsync_ptsz [stream](devPtr: *mut c_void, value: c_int, count: usize, stream: Handle) {
        let (driver, _) = context::current()?;
        if count == 0 {
            return Ok(());
        }
        unsafe { driver.cuMemsetD8Async(address(devPtr), value as u8, count, stream) }
    }

    /// Fills a rectangle with a byte.
    fn cudaMemset2D | cudaMemset2D_ptds (devPtr: *mut c_void, pitch: usize, value: c_int, width: usize, height: usize) on stream {
        let (driver, _) = context::current()?;
        if width == 0 || height == 0 {
            return Ok(());
        }
        if stream == DEFAULT_STREAM {
            return unsafe { driver.cuMemsetD2D8_v2(address(devPtr), pitch, value as u8, width, height) };
        }
        unsafe {
            driver.cuMemsetD2D8Async(address(devPtr), pitch, value as u8, width, height, stream)?;
            driver.cuStreamSynchronize(stream)
        }
    }

    /// Fills a rectangle with a byte in the order of a stream.
    fn cudaMemset2DAsync | cudaMemset2DAsync_ptsz [stream](
        devPtr: *mut c_void, pitch: usize, value: c_int, width: usize, height: usize, stream: Handle,
    ) {
        let (driver, _) = context::current()?;
        if width == 0 || height == 0 {
            return Ok(());
        }
        unsafe { driver.cuMemsetD2D8Async(address(devPtr), pitch, value as u8, width, height, stream) }
    }
}
