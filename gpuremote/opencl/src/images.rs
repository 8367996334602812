//! Images and samplers.

use std::sync::Arc;

use crate::front;
use crate::info::{properties, Query};
use crate::layout::Layout;
use crate::memory::{host_flags, Memory};
use crate::objects::{handed, object, Data, Object};
use crate::stubs::{self, kinds, numbers, remote, STATUSES};

const CL_INVALID_CONTEXT: i32 = -34;
const CL_INVALID_MEM_OBJECT: i32 = -38;
const CL_INVALID_IMAGE_FORMAT_DESCRIPTOR: i32 = -39;
const CL_INVALID_IMAGE_SIZE: i32 = -40;
const CL_INVALID_SAMPLER: i32 = -41;
const CL_INVALID_PROPERTY: i32 = -64;
const CL_INVALID_IMAGE_DESCRIPTOR: i32 = -65;

const CL_MEM_OBJECT_IMAGE2D: u32 = 0x10f1;
const CL_MEM_OBJECT_IMAGE3D: u32 = 0x10f2;
const CL_MEM_OBJECT_IMAGE2D_ARRAY: u32 = 0x10f3;
const CL_MEM_OBJECT_IMAGE1D: u32 = 0x10f4;
const CL_MEM_OBJECT_IMAGE1D_ARRAY: u32 = 0x10f5;
const CL_MEM_OBJECT_IMAGE1D_BUFFER: u32 = 0x10f6;

const CL_IMAGE_BUFFER: u32 = 0x1118;

const CL_SAMPLER_REFERENCE_COUNT: u32 = 0x1150;
const CL_SAMPLER_CONTEXT: u32 = 0x1151;
const CL_SAMPLER_NORMALIZED_COORDS: u64 = 0x1152;
const CL_SAMPLER_ADDRESSING_MODE: u64 = 0x1153;
const CL_SAMPLER_FILTER_MODE: u64 = 0x1154;
const CL_SAMPLER_PROPERTIES: u32 = 0x1158;
const CL_ADDRESS_CLAMP: u64 = 0x1132;
const CL_FILTER_NEAREST: u64 = 0x1140;

/// `cl_image_format`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Format {
    order: u32,
    channel: u32,
}

impl Format {
    /// Length of a pixel, in bytes: channels by their order, and each channel's length by its type.
    fn pixel_bytes(self) -> Option<usize> {
        let channels = match self.order {
            // CL_R, _A, _INTENSITY, _LUMINANCE and _DEPTH
            0x10b0 | 0x10b1 | 0x10b8 | 0x10b9 | 0x10bd => 1,
            // CL_RG, _RA and _Rx
            0x10b2 | 0x10b3 | 0x10ba => 2,
            // CL_RGB, _RGx and _sRGB
            0x10b4 | 0x10bb | 0x10bf => 3,
            // CL_RGBA, _BGRA, _ARGB, _RGBx, _sRGBx, _sRGBA, _sBGRA and _ABGR
            0x10b5..=0x10b7 | 0x10bc | 0x10c0..=0x10c3 => 4,
            _ => return None,
        };
        match self.channel {
            // CL_UNORM_SHORT_565 and _555, and CL_UNORM_INT_101010 with its kin, hold all channels at once.
            0x10d4 | 0x10d5 => Some(2),
            0x10d6 | 0x10e0 => Some(4),
            // Normalized and whole numbers of 8, 16 and 32 bits, halves and floats
            0x10d0 | 0x10d2 | 0x10d7 | 0x10da => Some(channels),
            0x10d1 | 0x10d3 | 0x10d8 | 0x10db | 0x10dd => Some(2 * channels),
            0x10d9 | 0x10dc | 0x10de => Some(4 * channels),
            _ => None,
        }
    }
}

/// `cl_image_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Description {
    kind: u32,
    width: usize,
    height: usize,
    depth: usize,
    layers: usize,
    row_pitch: usize,
    slice_pitch: usize,
    levels: u32,
    samples: u32,
    memory: *mut Object,
}

/// What an image looks like.
pub(crate) struct Shape {
    kind: u32,
    pixel_bytes: usize,
    /// Pitches of the program's memory that the image was made with, in bytes; 0: no gaps.
    pub row_pitch: usize,
    pub slice_pitch: usize,
}

impl Shape {
    /// How a region in pixels lies in host memory. Layers of an array of lines lie a slice apart.
    pub fn layout(&self, region: [usize; 3], row_pitch: usize, slice_pitch: usize) -> Result<Layout, i32> {
        let [width, height, depth] = region;
        let (row_pitch, slice_pitch) = match self.kind {
            CL_MEM_OBJECT_IMAGE1D_ARRAY => (if slice_pitch == 0 { row_pitch } else { slice_pitch }, 0),
            CL_MEM_OBJECT_IMAGE3D | CL_MEM_OBJECT_IMAGE2D_ARRAY => (row_pitch, slice_pitch),
            _ => (row_pitch, 0),
        };
        let row_bytes = width.checked_mul(self.pixel_bytes).ok_or(STATUSES.invalid)?;
        let product = row_bytes.checked_mul(height).and_then(|bytes| bytes.checked_mul(depth));
        product.ok_or(STATUSES.invalid)?;
        Layout::of_region([row_bytes, height, depth], row_pitch, slice_pitch).ok_or(STATUSES.invalid)
    }

    /// Where a pixel lies in host memory of this layout, in bytes.
    pub fn offset(&self, origin: [usize; 3], layout: &Layout) -> usize {
        origin[0] * self.pixel_bytes + origin[1] * layout.row_pitch + origin[2] * layout.slice_pitch
    }

    /// Whether rows have a pitch between slices, which programs ask for.
    pub fn has_slices(&self) -> bool {
        matches!(self.kind, CL_MEM_OBJECT_IMAGE3D | CL_MEM_OBJECT_IMAGE2D_ARRAY | CL_MEM_OBJECT_IMAGE1D_ARRAY)
    }

    /// Whether this is an array of lines, whose layers are rows.
    pub fn is_lines(&self) -> bool {
        self.kind == CL_MEM_OBJECT_IMAGE1D_ARRAY
    }
}

/// The whole image, as a region in pixels.
fn whole(shape: &Description) -> Result<[usize; 3], i32> {
    match shape.kind {
        CL_MEM_OBJECT_IMAGE1D | CL_MEM_OBJECT_IMAGE1D_BUFFER => Ok([shape.width, 1, 1]),
        CL_MEM_OBJECT_IMAGE2D => Ok([shape.width, shape.height, 1]),
        CL_MEM_OBJECT_IMAGE3D => Ok([shape.width, shape.height, shape.depth]),
        CL_MEM_OBJECT_IMAGE1D_ARRAY => Ok([shape.width, shape.layers, 1]),
        CL_MEM_OBJECT_IMAGE2D_ARRAY => Ok([shape.width, shape.height, shape.layers]),
        _ => Err(CL_INVALID_IMAGE_DESCRIPTOR),
    }
}

unsafe fn create(
    context: *mut Object,
    flags: u64,
    format: *const Format,
    shape: *const Description,
    host: *const u8,
) -> Result<Arc<Object>, i32> {
    let context = object(kinds::cl_context, context).ok_or(CL_INVALID_CONTEXT)?;
    if format.is_null() {
        return Err(CL_INVALID_IMAGE_FORMAT_DESCRIPTOR);
    }
    if shape.is_null() {
        return Err(CL_INVALID_IMAGE_DESCRIPTOR);
    }
    let (format, shape) = (*format, *shape);
    let pixel_bytes = format.pixel_bytes().ok_or(CL_INVALID_IMAGE_FORMAT_DESCRIPTOR)?;
    let (remote_flags, with_data, kept_host) = host_flags(flags, host)?;
    let buffer = match shape.memory.is_null() {
        true => None,
        false => Some(object(kinds::cl_mem, shape.memory).ok_or(CL_INVALID_IMAGE_DESCRIPTOR)?),
    };
    let of_image = Shape { kind: shape.kind, pixel_bytes, row_pitch: shape.row_pitch, slice_pitch: shape.slice_pitch };
    let region = whole(&shape)?;
    if region.contains(&0) {
        return Err(CL_INVALID_IMAGE_SIZE);
    }
    let layout = of_image.layout(region, shape.row_pitch, shape.slice_pitch).map_err(|_| CL_INVALID_IMAGE_DESCRIPTOR)?;
    let data = with_data.then(|| layout.gather(host));
    let bytes = layout.bytes();
    front().create(
        (kinds::cl_mem, numbers::clCreateImage),
        |encoder| {
            encoder.u64(context.number);
            encoder.u64(remote_flags);
            encoder.u32(format.order);
            encoder.u32(format.channel);
            encoder.u32(shape.kind);
            // Data arrives without gaps; only a buffer that an image looks into has pitches.
            let row_pitch = if buffer.is_some() { shape.row_pitch } else { 0 };
            for size in [shape.width, shape.height, shape.depth, shape.layers, row_pitch] {
                encoder.usize(size);
            }
            encoder.u64(buffer.as_ref().map_or(0, |buffer| buffer.number));
            encoder.u8(with_data.into());
            encoder.usize(data.as_ref().map_or(0, Vec::len));
        },
        data.as_deref(),
        |_| Ok(()),
        || {
            let flags = if flags & 7 == 0 { flags | 1 } else { flags };
            let memory = Memory { kind: shape.kind, flags, bytes, host: kept_host, image: Some(of_image), ..Memory::default() };
            (buffer.clone().unwrap_or_else(|| Arc::clone(&context)), Data::Memory(memory))
        },
    )
}

#[no_mangle]
pub unsafe extern "C" fn clCreateImage(
    context: *mut Object,
    flags: u64,
    format: *const Format,
    shape: *const Description,
    host: *const u8,
    errcode: *mut i32,
) -> *mut Object {
    handed(create(context, flags, format, shape, host), errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clCreateImageWithProperties(
    context: *mut Object,
    properties: *const u64,
    flags: u64,
    format: *const Format,
    shape: *const Description,
    host: *const u8,
    errcode: *mut i32,
) -> *mut Object {
    if !properties.is_null() && *properties != 0 {
        return handed(Err(CL_INVALID_PROPERTY), errcode);
    }
    clCreateImage(context, flags, format, shape, host, errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clCreateImage2D(
    context: *mut Object,
    flags: u64,
    format: *const Format,
    width: usize,
    height: usize,
    row_pitch: usize,
    host: *const u8,
    errcode: *mut i32,
) -> *mut Object {
    let (kind, memory) = (CL_MEM_OBJECT_IMAGE2D, std::ptr::null_mut());
    let shape = Description { kind, width, height, depth: 1, layers: 1, row_pitch, slice_pitch: 0, levels: 0, samples: 0, memory };
    clCreateImage(context, flags, format, &shape, host, errcode)
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn clCreateImage3D(
    context: *mut Object,
    flags: u64,
    format: *const Format,
    width: usize,
    height: usize,
    depth: usize,
    row_pitch: usize,
    slice_pitch: usize,
    host: *const u8,
    errcode: *mut i32,
) -> *mut Object {
    let (kind, memory) = (CL_MEM_OBJECT_IMAGE3D, std::ptr::null_mut());
    let shape = Description { kind, width, height, depth, layers: 1, row_pitch, slice_pitch, levels: 0, samples: 0, memory };
    clCreateImage(context, flags, format, &shape, host, errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clGetImageInfo(image: *mut Object, name: u32, size: usize, into: *mut u8, size_ret: *mut usize) -> i32 {
    let Some(object) = object(kinds::cl_mem, image) else { return CL_INVALID_MEM_OBJECT };
    if object.as_memory().image.is_none() {
        return CL_INVALID_MEM_OBJECT;
    }
    match name {
        CL_IMAGE_BUFFER => Query { size, into, size_ret }.object(object.parent.as_ref().filter(|parent| parent.kind == kinds::cl_mem)),
        _ => remote::clGetImageInfo(image, name, size, into, size_ret),
    }
}

#[no_mangle]
pub unsafe extern "C" fn clGetSupportedImageFormats(
    context: *mut Object,
    flags: u64,
    kind: u32,
    count: u32,
    into: *mut Format,
    found: *mut u32,
) -> i32 {
    let Some(context) = object(kinds::cl_context, context) else { return CL_INVALID_CONTEXT };
    if count == 0 && !into.is_null() {
        return STATUSES.invalid;
    }
    let mut formats = Vec::new();
    let arguments = |encoder: &mut gpuremote_client::wire::Encoder| {
        encoder.u64(context.number);
        encoder.u64(flags);
        encoder.u32(kind);
    };
    let status = front().ask_of(&context, numbers::clGetSupportedImageFormats, arguments, |decoder| {
        for _ in 0..decoder.u32()? {
            formats.push(Format { order: decoder.u32()?, channel: decoder.u32()? });
        }
        Ok(())
    });
    if status != STATUSES.ok {
        return status;
    }
    if !into.is_null() {
        for (i, &format) in formats.iter().take(count as usize).enumerate() {
            *into.add(i) = format;
        }
    }
    if !found.is_null() {
        *found = formats.len() as u32;
    }
    STATUSES.ok
}

#[no_mangle]
pub unsafe extern "C" fn clCreateSamplerWithProperties(context: *mut Object, list: *const u64, errcode: *mut i32) -> *mut Object {
    let (mut normalized, mut addressing, mut filter) = (1, CL_ADDRESS_CLAMP, CL_FILTER_NEAREST);
    for (name, value) in properties(list).0 {
        *match name {
            CL_SAMPLER_NORMALIZED_COORDS => &mut normalized,
            CL_SAMPLER_ADDRESSING_MODE => &mut addressing,
            CL_SAMPLER_FILTER_MODE => &mut filter,
            _ => return handed(Err(STATUSES.invalid), errcode),
        } = value;
    }
    stubs::clCreateSampler(context, normalized as u32, addressing as u32, filter as u32, errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clGetSamplerInfo(sampler: *mut Object, name: u32, size: usize, into: *mut u8, size_ret: *mut usize) -> i32 {
    let Some(object) = object(kinds::cl_sampler, sampler) else { return CL_INVALID_SAMPLER };
    let query = Query { size, into, size_ret };
    match name {
        CL_SAMPLER_REFERENCE_COUNT => query.u32(object.references()),
        CL_SAMPLER_CONTEXT => query.object(object.parent.as_ref()),
        CL_SAMPLER_PROPERTIES => query.words([]),
        _ => remote::clGetSamplerInfo(sampler, name, size, into, size_ret),
    }
}
