//! Copies of rectangles and boxes. Rows of this program's memory travel as copies of their own; between places on the GPU, one call does it.

use crate::copies::{to_device, to_host, DEFAULT_STREAM};
use crate::front;
use crate::places::{is_device, shared_offset};
use crate::stubs::{numbers, STATUSES};

/// CUmemorytype of the driver API.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const UNIFIED: u32 = 4;

/// CUDA_MEMCPY2D of the driver API.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy2D {
    from: Side2D,
    to: Side2D,
    width_bytes: usize,
    height: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Side2D {
    x_bytes: usize,
    y: usize,
    memory_type: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

/// CUDA_MEMCPY3D of the driver API.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy3D {
    from: Side3D,
    to: Side3D,
    width_bytes: usize,
    height: usize,
    depth: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Side3D {
    x_bytes: usize,
    y: usize,
    z: usize,
    level: usize,
    memory_type: u32,
    host: u64,
    device: u64,
    array: u64,
    reserved: u64,
    pitch: usize,
    height: usize,
}

impl From<Side2D> for Side3D {
    fn from(side: Side2D) -> Self {
        let Side2D { x_bytes, y, memory_type, host, device, array, pitch } = side;
        Side3D { x_bytes, y, z: 0, level: 0, memory_type, host, device, array, reserved: 0, pitch, height: 0 }
    }
}

impl From<Copy2D> for Copy3D {
    fn from(copy: Copy2D) -> Self {
        Copy3D { from: copy.from.into(), to: copy.to.into(), width_bytes: copy.width_bytes, height: copy.height, depth: 1 }
    }
}

/// One side of a copy: the first byte, and how far apart rows and slices are, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub start: u64,
    pub row_bytes: usize,
    pub slice_bytes: usize,
    pub on_device: bool,
}

/// A box: its sides, and its extents in bytes, rows and slices.
pub(crate) struct Region {
    pub from: Place,
    pub to: Place,
    pub width_bytes: usize,
    pub height: usize,
    pub depth: usize,
}

impl Side3D {
    fn place(&self, width_bytes: usize, height: usize) -> Result<Place, i32> {
        let (base, on_device) = match self.memory_type {
            HOST => (self.host, false),
            DEVICE => (self.device, true),
            UNIFIED => (self.device, is_device(self.device, 1)),
            _ => return Err(front().refuse("a copy of arrays")),
        };
        let row_bytes = if self.pitch == 0 { width_bytes } else { self.pitch };
        let rows = if self.height == 0 { height } else { self.height };
        if row_bytes < width_bytes || rows < height || base == 0 {
            return Err(STATUSES.invalid);
        }
        let slice_bytes = row_bytes * rows;
        let start = base + (self.z * slice_bytes + self.y * row_bytes + self.x_bytes) as u64;
        Ok(Place { start, row_bytes, slice_bytes, on_device })
    }
}

impl Copy3D {
    /// The box of this copy. None when it is empty.
    pub(crate) fn region(&self) -> Result<Option<Region>, i32> {
        let Copy3D { from, to, width_bytes, height, depth } = *self;
        if width_bytes == 0 || height == 0 || depth == 0 {
            return Ok(None);
        }
        let (from, to) = (from.place(width_bytes, height)?, to.place(width_bytes, height)?);
        Ok(Some(Region { from, to, width_bytes, height, depth }))
    }
}

impl Region {
    /// Both sides and the extents, as the server reads them.
    pub(crate) fn encode(&self, encoder: &mut gpuremote_client::wire::Encoder) {
        for place in [self.from, self.to] {
            encoder.u8(place.on_device.into());
            encoder.u64(if place.on_device {
                place.start
            } else {
                shared_offset(place.start as *const u8, 0).unwrap_or(usize::MAX) as u64
            });
            encoder.usize(place.row_bytes);
            encoder.usize(place.slice_bytes);
        }
        for extent in [self.width_bytes, self.height, self.depth] {
            encoder.usize(extent);
        }
    }

    /// Whether the server reaches both sides by itself.
    pub(crate) fn is_reached(&self) -> bool {
        [self.from, self.to].iter().all(|place| {
            let bytes = place.slice_bytes * (self.depth - 1) + place.row_bytes * (self.height - 1) + self.width_bytes;
            place.on_device || shared_offset(place.start as *const u8, bytes).is_some()
        })
    }

    unsafe fn copy(&self, stream: Option<u64>) -> i32 {
        let Region { from, to, width_bytes, height, depth } = *self;
        let (in_stream, at_once) = (stream.unwrap_or(DEFAULT_STREAM), stream.is_none());
        if from.on_device && to.on_device {
            return front().post(numbers::cuMemcpy3DAsync_v2, |encoder| {
                encoder.u64(in_stream);
                self.encode(encoder);
            });
        }
        // Rows without gaps are one row, and so are slices.
        let (slices, rows, bytes) = if from.row_bytes != width_bytes || to.row_bytes != width_bytes {
            (depth, height, width_bytes)
        } else if from.slice_bytes != width_bytes * height || to.slice_bytes != width_bytes * height {
            (depth, 1, width_bytes * height)
        } else {
            (1, 1, width_bytes * height * depth)
        };
        for slice in 0..slices {
            for row in 0..rows {
                let at = |place: Place| place.start + (slice * place.slice_bytes + row * place.row_bytes) as u64;
                let (source, target) = (at(from), at(to));
                let status = match (from.on_device, to.on_device) {
                    (false, true) => to_device(target, source as *const u8, bytes, in_stream, at_once),
                    (true, false) => to_host(target as *mut u8, source, bytes, in_stream, at_once),
                    _ => {
                        std::ptr::copy(source as *const u8, target as *mut u8, bytes);
                        STATUSES.ok
                    }
                };
                if status != STATUSES.ok {
                    return status;
                }
            }
        }
        STATUSES.ok
    }
}

unsafe fn copy_box(copy: Copy3D, stream: Option<u64>) -> i32 {
    match copy.region() {
        Ok(Some(region)) => region.copy(stream),
        Ok(None) => STATUSES.ok,
        Err(status) => status,
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpy2D_v2(copy: *const Copy2D) -> i32 {
    if copy.is_null() {
        return STATUSES.invalid;
    }
    copy_box((*copy).into(), None)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpy2DUnaligned_v2(copy: *const Copy2D) -> i32 {
    cuMemcpy2D_v2(copy)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(copy: *const Copy2D, stream: u64) -> i32 {
    if copy.is_null() {
        return STATUSES.invalid;
    }
    copy_box((*copy).into(), Some(stream))
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpy3D_v2(copy: *const Copy3D) -> i32 {
    if copy.is_null() {
        return STATUSES.invalid;
    }
    copy_box(*copy, None)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpy3DAsync_v2(copy: *const Copy3D, stream: u64) -> i32 {
    if copy.is_null() {
        return STATUSES.invalid;
    }
    copy_box(*copy, Some(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_lie_as_the_driver_says() {
        let side = |memory_type, base| Side3D {
            x_bytes: 2,
            y: 1,
            z: 3,
            level: 0,
            memory_type,
            host: base,
            device: base,
            array: 0,
            reserved: 0,
            pitch: 20,
            height: 6,
        };
        let copy = Copy3D { from: side(HOST, 1000), to: side(DEVICE, 2000), width_bytes: 10, height: 3, depth: 2 };
        let region = copy.region().unwrap().unwrap();
        assert_eq!((region.from.start, region.to.start), (1000 + 3 * 120 + 20 + 2, 2000 + 3 * 120 + 20 + 2));
        assert_eq!((region.from.row_bytes, region.from.slice_bytes), (20, 120));
        assert!(!region.from.on_device && region.to.on_device);
        assert!(Copy3D { depth: 0, ..copy }.region().unwrap().is_none());
        assert_eq!(Copy3D { width_bytes: 21, ..copy }.region().err(), Some(STATUSES.invalid), "wider than a row");
    }
}
