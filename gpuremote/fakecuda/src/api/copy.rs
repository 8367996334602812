//! Copies and fills.
//!
//! Copies of pageable host memory behave as the driver API reference's "API synchronization behavior" says: the source is read before
//! the call returns, and the target is written before the call returns.

use super::graph::CUDA_MEMSET_NODE_PARAMS;
use super::stream::find;
use super::{driver_api, Outcome};
use crate::abi::*;
use crate::driver::Current;
use crate::graph::{node_kind, Step};
use crate::memory::{Kind, Memory};
use crate::stream::Point;
use std::ffi::{c_uchar, c_uint, c_ushort, c_void};
use std::ptr;
use std::sync::Arc;

/// Whether a call waits for its work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Return {
    Finished,
    Early,
}

/// One side of a copy: rows of a rectangle.
#[derive(Clone, Copy)]
struct Side {
    address: u64,
    pitch_bytes: usize,
    host: bool,
}

impl Side {
    fn device(address: u64) -> Side {
        Side { address, pitch_bytes: 0, host: false }
    }

    fn host(address: *const c_void) -> Side {
        Side { address: address as u64, pitch_bytes: 0, host: true }
    }

    /// The side of a copy whose kind follows from the address.
    fn inferred(memory: &Memory, address: u64) -> Side {
        let host = memory.find(address).is_none() && !memory.is_device_address(address);
        Side { address, pitch_bytes: 0, host }
    }

    fn span_bytes(&self, width_bytes: usize, rows: usize) -> usize {
        // What overflows is in no allocation.
        self.pitch_bytes.saturating_mul(rows.saturating_sub(1)).saturating_add(width_bytes)
    }

    /// The bytes of the side, which must be where its kind says.
    fn resolve(&self, memory: &Memory, width_bytes: usize, rows: usize) -> Option<*mut u8> {
        let span = self.span_bytes(width_bytes, rows);
        if !self.host {
            return memory.resolve(self.address, span);
        }
        if memory.is_device_address(self.address) {
            return None;
        }
        memory.resolve_any(self.address, span)
    }

    fn is_pageable(&self, memory: &Memory) -> bool {
        self.host && memory.find(self.address).is_none_or(|item| item.kind == Kind::Device)
    }
}

/// Where the client's pageable memory lies; the client keeps it alive as the driver API asks.
struct Bytes(*mut u8);
unsafe impl Send for Bytes {}

fn copy(current: &Current, stream: CUstream, returns: Return, target: Side, source: Side, width_bytes: usize, rows: usize) -> Outcome {
    let stream = find(current, stream)?;
    let memory = &current.driver.memory;
    if width_bytes == 0 || rows == 0 {
        return Ok(());
    }
    if rows > 1 && (target.pitch_bytes < width_bytes || source.pitch_bytes < width_bytes) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let from = source.resolve(memory, width_bytes, rows).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    target.resolve(memory, width_bytes, rows).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let staged = source.is_pageable(memory).then(|| {
        let row = |row: usize| unsafe { std::slice::from_raw_parts(from.add(row * source.pitch_bytes), width_bytes) };
        (0..rows).flat_map(|index| row(index).iter().copied()).collect::<Vec<u8>>()
    });
    let wait = returns == Return::Finished || target.is_pageable(memory);
    let memory = memory.clone();
    let step = Arc::new(move || {
        // The client could have ended the memory since the call.
        let to = target.resolve(&memory, width_bytes, rows).map(Bytes).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
        let (from, pitch_bytes) = match &staged {
            Some(bytes) => (bytes.as_ptr(), width_bytes),
            None => {
                let from = source.resolve(&memory, width_bytes, rows).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
                (from as *const u8, source.pitch_bytes)
            }
        };
        for row in 0..rows {
            unsafe { ptr::copy(from.add(row * pitch_bytes), to.0.add(row * target.pitch_bytes), width_bytes) };
        }
        Ok(())
    });
    finish(current, current.context.append(&stream, current.driver.nodes.reserve(), node_kind::MEMCPY, step)?, wait)
}

fn finish(current: &Current, point: Option<Point>, wait: bool) -> Outcome {
    match point {
        Some(point) if wait => {
            point.wait();
            current.context.check()
        }
        _ => Ok(()),
    }
}

/// The work of the copy of a box, for a node of a graph.
///
/// # Safety
///
/// `pcopy` is null or points to the parameters of a copy.
///
/// # Errors
///
/// `CUDA_ERROR_INVALID_VALUE` for null, and for what isn't a whole box of flat memory.
pub unsafe fn box_step(current: &Current, pcopy: *const CUDA_MEMCPY3D) -> Result<Step, CUresult> {
    if pcopy.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let p = unsafe { *pcopy };
    let memory = current.driver.memory.clone();
    let start = |side: &CUDA_MEMCPY3D_side| {
        let (base, host) = if side.MemoryType == memory_type::HOST { (side.Host as u64, true) } else { (side.Device, false) };
        let offset = (side.Z * side.Height + side.Y) * side.Pitch + side.XInBytes;
        (Side { address: base + offset as u64, pitch_bytes: side.Pitch, host }, side.Height * side.Pitch)
    };
    let (source, target) = (start(&p.src), start(&p.dst));
    let slice = move |side: (Side, usize), z: usize| Side { address: side.0.address + (z * side.1) as u64, ..side.0 };
    let resolve = move |memory: &Memory, side, z| slice(side, z).resolve(memory, p.WidthInBytes, p.Height).ok_or(CUDA_ERROR_INVALID_VALUE);
    resolve(&memory, source, p.Depth - 1)?;
    resolve(&memory, target, p.Depth - 1)?;
    Ok(Arc::new(move || {
        for z in 0..p.Depth {
            let (from, to) = (resolve(&memory, source, z)?, resolve(&memory, target, z)?);
            for row in 0..p.Height {
                unsafe { ptr::copy(from.add(row * source.0.pitch_bytes), to.add(row * target.0.pitch_bytes), p.WidthInBytes) };
            }
        }
        Ok(())
    }))
}

/// The work of a fill, for a node of a graph.
///
/// # Errors
///
/// `CUDA_ERROR_INVALID_VALUE` for a size of elements that fills don't have, and for memory outside an allocation.
pub fn fill_step(current: &Current, p: &CUDA_MEMSET_NODE_PARAMS) -> Result<Step, CUresult> {
    let target = Rectangle { address: p.dst, pitch_bytes: p.pitch, width: p.width, rows: p.height };
    match p.elementSize {
        1 => step_of_fill(current, &target, p.value as u8),
        2 => step_of_fill(current, &target, p.value as u16),
        4 => step_of_fill(current, &target, p.value),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn copy_flat(current: &Current, stream: CUstream, returns: Return, target: Side, source: Side, size_bytes: usize) -> Outcome {
    copy(current, stream, returns, target, source, size_bytes, 1)
}

fn copy_inferred(current: &Current, stream: CUstream, returns: Return, target: u64, source: u64, size_bytes: usize) -> Outcome {
    let memory = &current.driver.memory;
    let (target, source) = (Side::inferred(memory, target), Side::inferred(memory, source));
    copy_flat(current, stream, returns, target, source, size_bytes)
}

unsafe fn copy_2d(current: &Current, stream: CUstream, returns: Return, pcopy: *const CUDA_MEMCPY2D) -> Outcome {
    if pcopy.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let parameters = unsafe { *pcopy };
    let memory = &current.driver.memory;
    let side = |kind, host: *const c_void, device, pitch: usize, x: usize, y: usize| {
        let start = match kind {
            memory_type::HOST => Side::host(host),
            memory_type::DEVICE => Side::device(device),
            memory_type::UNIFIED => Side::inferred(memory, device),
            _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
        };
        let pitch_bytes = if pitch == 0 { parameters.WidthInBytes } else { pitch };
        Ok(Side { address: start.address + (y * pitch_bytes + x) as u64, pitch_bytes, host: start.host })
    };
    let p = &parameters;
    let source = side(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcPitch, p.srcXInBytes, p.srcY)?;
    let target = side(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstPitch, p.dstXInBytes, p.dstY)?;
    copy(current, stream, returns, target, source, p.WidthInBytes, p.Height)
}

/// Copies a box slice by slice.
unsafe fn copy_3d(current: &Current, stream: CUstream, returns: Return, pcopy: *const CUDA_MEMCPY3D) -> Outcome {
    if pcopy.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let parameters = unsafe { *pcopy };
    let memory = &current.driver.memory;
    let slice_of = |side: &CUDA_MEMCPY3D_side, slice: usize| {
        let start = match side.MemoryType {
            memory_type::HOST => Side::host(side.Host),
            memory_type::DEVICE => Side::device(side.Device),
            memory_type::UNIFIED => Side::inferred(memory, side.Device),
            _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
        };
        let pitch_bytes = if side.Pitch == 0 { parameters.WidthInBytes } else { side.Pitch };
        let height = if side.Height == 0 { parameters.Height } else { side.Height };
        let offset = ((side.Z + slice) * height + side.Y) * pitch_bytes + side.XInBytes;
        Ok(Side { address: start.address + offset as u64, pitch_bytes, host: start.host })
    };
    for slice in 0..parameters.Depth {
        let (target, source) = (slice_of(&parameters.dst, slice)?, slice_of(&parameters.src, slice)?);
        copy(current, stream, returns, target, source, parameters.WidthInBytes, parameters.Height)?;
    }
    Ok(())
}

/// Elements to fill.
struct Rectangle {
    address: u64,
    pitch_bytes: usize,
    width: usize,
    rows: usize,
}

/// Work that stores `value` into each element of a rectangle.
fn step_of_fill<T: Copy + Send + Sync + 'static>(current: &Current, target: &Rectangle, value: T) -> Result<Step, CUresult> {
    let Rectangle { address, pitch_bytes, width, rows } = *target;
    let width_bytes = width.checked_mul(size_of::<T>()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let side = Side { address, pitch_bytes, host: false };
    let misaligned = address % size_of::<T>() as u64 != 0;
    if misaligned || (rows > 1 && (pitch_bytes < width_bytes || pitch_bytes % size_of::<T>() != 0)) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let memory = current.driver.memory.clone();
    side.resolve(&memory, width_bytes, rows).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Ok(Arc::new(move || {
        let bytes = side.resolve(&memory, width_bytes, rows).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
        for row in 0..rows {
            let start = unsafe { bytes.add(row * pitch_bytes) } as *mut T;
            unsafe { std::slice::from_raw_parts_mut(start, width) }.fill(value);
        }
        Ok(())
    }))
}

fn fill<T: Copy + Send + Sync + 'static>(current: &Current, stream: CUstream, returns: Return, target: Rectangle, value: T) -> Outcome {
    let stream = find(current, stream)?;
    if target.width == 0 || target.rows == 0 {
        return Ok(());
    }
    let step = step_of_fill(current, &target, value)?;
    let point = current.context.append(&stream, current.driver.nodes.reserve(), node_kind::MEMSET, step)?;
    finish(current, point, returns == Return::Finished)
}

/// The stream of synchronous copies.
const DEFAULT: CUstream = stream_handle::DEFAULT;

driver_api! { ENTRIES;
    /// Copies between addresses of any kind.
    fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize) with current => Current, {
        copy_inferred(&current, DEFAULT, Return::Finished, dst, src, ByteCount)
    }

    /// Copies between addresses of any kind, in the order of a stream.
    fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize, hStream: CUstream) with current => Current, {
        copy_inferred(&current, hStream, Return::Early, dst, src, ByteCount)
    }

    /// Copies between devices.
    fn cuMemcpyPeer(
        dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize,
    ) with current => Current, {
        copy_flat(&current, DEFAULT, Return::Finished, Side::device(dstDevice), Side::device(srcDevice), ByteCount)
    }

    /// Copies between devices in the order of a stream.
    fn cuMemcpyPeerAsync(
        dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize,
        hStream: CUstream,
    ) with current => Current, {
        copy_flat(&current, hStream, Return::Early, Side::device(dstDevice), Side::device(srcDevice), ByteCount)
    }

    /// Copies to device memory.
    fn cuMemcpyHtoD_v2(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize) with current => Current, {
        copy_flat(&current, DEFAULT, Return::Finished, Side::device(dstDevice), Side::host(srcHost), ByteCount)
    }

    /// Copies from device memory.
    fn cuMemcpyDtoH_v2(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize) with current => Current, {
        copy_flat(&current, DEFAULT, Return::Finished, Side::host(dstHost), Side::device(srcDevice), ByteCount)
    }

    /// Copies within device memory.
    fn cuMemcpyDtoD_v2(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize) with current => Current, {
        copy_flat(&current, DEFAULT, Return::Finished, Side::device(dstDevice), Side::device(srcDevice), ByteCount)
    }

    /// Copies to device memory in the order of a stream.
    fn cuMemcpyHtoDAsync_v2(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize, hStream: CUstream)
        with current => Current,
    {
        copy_flat(&current, hStream, Return::Early, Side::device(dstDevice), Side::host(srcHost), ByteCount)
    }

    /// Copies from device memory in the order of a stream.
    fn cuMemcpyDtoHAsync_v2(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream)
        with current => Current,
    {
        copy_flat(&current, hStream, Return::Early, Side::host(dstHost), Side::device(srcDevice), ByteCount)
    }

    /// Copies within device memory in the order of a stream.
    fn cuMemcpyDtoDAsync_v2(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream)
        with current => Current,
    {
        copy_flat(&current, hStream, Return::Early, Side::device(dstDevice), Side::device(srcDevice), ByteCount)
    }

    /// Copies a rectangle.
    fn cuMemcpy2D_v2(pCopy: *const CUDA_MEMCPY2D) with current => Current, {
        unsafe { copy_2d(&current, DEFAULT, Return::Finished, pCopy) }
    }

    /// Copies a rectangle of any pitch.
    fn cuMemcpy2DUnaligned_v2(pCopy: *const CUDA_MEMCPY2D) with current => Current, {
        unsafe { copy_2d(&current, DEFAULT, Return::Finished, pCopy) }
    }

    /// Copies a rectangle in the order of a stream.
    fn cuMemcpy2DAsync_v2(pCopy: *const CUDA_MEMCPY2D, hStream: CUstream) with current => Current, {
        unsafe { copy_2d(&current, hStream, Return::Early, pCopy) }
    }

    /// Copies a box.
    fn cuMemcpy3D_v2(pCopy: *const CUDA_MEMCPY3D) with current => Current, {
        unsafe { copy_3d(&current, DEFAULT, Return::Finished, pCopy) }
    }

    /// Copies a box in the order of a stream.
    fn cuMemcpy3DAsync_v2(pCopy: *const CUDA_MEMCPY3D, hStream: CUstream) with current => Current, {
        unsafe { copy_3d(&current, hStream, Return::Early, pCopy) }
    }

    /// Fills bytes.
    fn cuMemsetD8_v2(dstDevice: CUdeviceptr, uc: c_uchar, N: usize) with current => Current, {
        fill(&current, DEFAULT, Return::Finished, Rectangle { address: dstDevice, pitch_bytes: 0, width: N, rows: 1 }, uc)
    }

    /// Fills values of 16 bits.
    fn cuMemsetD16_v2(dstDevice: CUdeviceptr, us: c_ushort, N: usize) with current => Current, {
        fill(&current, DEFAULT, Return::Finished, Rectangle { address: dstDevice, pitch_bytes: 0, width: N, rows: 1 }, us)
    }

    /// Fills values of 32 bits.
    fn cuMemsetD32_v2(dstDevice: CUdeviceptr, ui: c_uint, N: usize) with current => Current, {
        fill(&current, DEFAULT, Return::Finished, Rectangle { address: dstDevice, pitch_bytes: 0, width: N, rows: 1 }, ui)
    }

    /// Fills bytes in the order of a stream.
    fn cuMemsetD8Async(dstDevice: CUdeviceptr, uc: c_uchar, N: usize, hStream: CUstream) with current => Current, {
        fill(&current, hStream, Return::Early, Rectangle { address: dstDevice, pitch_bytes: 0, width: N, rows: 1 }, uc)
    }

    /// Fills values of 16 bits in the order of a stream.
    fn cuMemsetD16Async(dstDevice: CUdeviceptr, us: c_ushort, N: usize, hStream: CUstream) with current => Current, {
        fill(&current, hStream, Return::Early, Rectangle { address: dstDevice, pitch_bytes: 0, width: N, rows: 1 }, us)
    }

    /// Fills values of 32 bits in the order of a stream.
    fn cuMemsetD32Async(dstDevice: CUdeviceptr, ui: c_uint, N: usize, hStream: CUstream) with current => Current, {
        fill(&current, hStream, Return::Early, Rectangle { address: dstDevice, pitch_bytes: 0, width: N, rows: 1 }, ui)
    }

    /// Fills a rectangle of bytes.
    fn cuMemsetD2D8_v2(dstDevice: CUdeviceptr, dstPitch: usize, uc: c_uchar, Width: usize, Height: usize)
        with current => Current,
    {
        fill(&current, DEFAULT, Return::Finished, Rectangle { address: dstDevice, pitch_bytes: dstPitch, width: Width, rows: Height }, uc)
    }

    /// Fills a rectangle of values of 32 bits.
    fn cuMemsetD2D32_v2(dstDevice: CUdeviceptr, dstPitch: usize, ui: c_uint, Width: usize, Height: usize)
        with current => Current,
    {
        fill(&current, DEFAULT, Return::Finished, Rectangle { address: dstDevice, pitch_bytes: dstPitch, width: Width, rows: Height }, ui)
    }

    /// Fills a rectangle of bytes in the order of a stream.
    fn cuMemsetD2D8Async(
        dstDevice: CUdeviceptr, dstPitch: usize, uc: c_uchar, Width: usize, Height: usize, hStream: CUstream,
    ) with current => Current, {
        fill(&current, hStream, Return::Early, Rectangle { address: dstDevice, pitch_bytes: dstPitch, width: Width, rows: Height }, uc)
    }

    /// Fills a rectangle of values of 32 bits in the order of a stream.
    fn cuMemsetD2D32Async(
        dstDevice: CUdeviceptr, dstPitch: usize, ui: c_uint, Width: usize, Height: usize, hStream: CUstream,
    ) with current => Current, {
        fill(&current, hStream, Return::Early, Rectangle { address: dstDevice, pitch_bytes: dstPitch, width: Width, rows: Height }, ui)
    }
}
