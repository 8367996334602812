//! Copies and fills of boxes.

use super::copy::sides_of;
use super::{require, runtime_api, store};
use crate::abi::*;
use crate::context;
use crate::error::{Error, Outcome};
use std::ffi::{c_int, c_void};
use std::ptr;

fn side(memory: PitchedPointer, position: Position, kind: u32) -> Copy3dSide {
    Copy3dSide {
        x_bytes: position.x,
        y: position.y,
        z: position.z,
        level: 0,
        kind,
        host: memory.pointer,
        device: memory.pointer.expose_provenance() as Address,
        array: ptr::null_mut(),
        reserved: ptr::null_mut(),
        pitch_bytes: memory.pitch_bytes,
        height: memory.height,
    }
}

/// The copy of a box for the driver.
///
/// # Safety
///
/// `parameters` is null or points to parameters.
///
/// # Errors
///
/// `cudaErrorInvalidValue` for null, `cudaErrorNotSupported` for arrays, `cudaErrorInvalidMemcpyDirection` for an unknown kind.
pub unsafe fn box_of(parameters: *const Copy3dParameters) -> Outcome<Copy3d> {
    require(parameters)?;
    let parameters = unsafe { *parameters };
    if !parameters.source_array.is_null() || !parameters.target_array.is_null() {
        return Err(Error::NOT_SUPPORTED);
    }
    let (source_kind, target_kind) = sides_of(parameters.kind)?;
    let Extent { width, height, depth } = parameters.extent;
    Ok(Copy3d {
        source: side(parameters.source, parameters.source_position, source_kind),
        target: side(parameters.target, parameters.target_position, target_kind),
        width_bytes: width,
        height,
        depth,
    })
}

unsafe fn copy_box(parameters: *const Copy3dParameters, stream: Handle, finished: bool) -> Outcome {
    let copy = unsafe { box_of(parameters) }?;
    let (driver, _) = context::current()?;
    if copy.width_bytes == 0 || copy.height == 0 || copy.depth == 0 {
        return Ok(());
    }
    unsafe {
        if finished && stream == DEFAULT_STREAM {
            return driver.cuMemcpy3D_v2(&copy);
        }
        driver.cuMemcpy3DAsync_v2(&copy, stream)?;
        if finished {
            driver.cuStreamSynchronize(stream)?;
        }
    }
    Ok(())
}

unsafe fn fill_box(memory: PitchedPointer, value: c_int, extent: Extent, stream: Handle, finished: bool) -> Outcome {
    let (driver, _) = context::current()?;
    let start = memory.pointer.expose_provenance() as Address;
    let (slice_bytes, value) = (memory.pitch_bytes * memory.height, value as u8);
    if extent.width == 0 || extent.height == 0 {
        return Ok(());
    }
    for slice in 0..extent.depth {
        let target = start + (slice * slice_bytes) as Address;
        unsafe { driver.cuMemsetD2D8Async(target, memory.pitch_bytes, value, extent.width, extent.height, stream) }?;
    }
    if finished {
        unsafe { driver.cuStreamSynchronize(stream) }?;
    }
    Ok(())
}

runtime_api! {
    /// Allocates device memory for a box.
    fn cudaMalloc3D(pitchedDevPtr: *mut PitchedPointer, extent: Extent) {
        require(pitchedDevPtr)?;
        let (driver, _) = context::current()?;
        let (mut address, mut pitch_bytes) = (0, 0);
        let rows = extent.height.checked_mul(extent.depth).ok_or(Error::MEMORY_ALLOCATION)?;
        if extent.width > 0 && rows > 0 {
            unsafe { driver.cuMemAllocPitch_v2(&mut address, &mut pitch_bytes, extent.width, rows, 4) }?;
        }
        let pointer: *mut c_void = ptr::with_exposed_provenance_mut(address as usize);
        unsafe { store(pitchedDevPtr, PitchedPointer { pointer, pitch_bytes, width: extent.width, height: extent.height }) }
    }

    /// Copies a box.
    fn cudaMemcpy3D | cudaMemcpy3D_ptds (p: *const Copy3dParameters) on stream {
        unsafe { copy_box(p, stream, true) }
    }

    /// Copies a box in the order of a stream.
    fn cudaMemcpy3DAsync | cudaMemcpy3DAsync_ptsz [stream](p: *const Copy3dParameters, stream: Handle) {
        unsafe { copy_box(p, stream, false) }
    }

    /// Fills a box with a byte.
    fn cudaMemset3D | cudaMemset3D_ptds (pitchedDevPtr: PitchedPointer, value: c_int, extent: Extent) on stream {
        unsafe { fill_box(pitchedDevPtr, value, extent, stream, true) }
    }

    /// Fills a box with a byte in the order of a stream.
    fn cudaMemset3DAsync | cudaMemset3DAsync_ptsz [stream](
        pitchedDevPtr: PitchedPointer, value: c_int, extent: Extent, stream: Handle,
    ) {
        unsafe { fill_box(pitchedDevPtr, value, extent, stream, false) }
    }
}
