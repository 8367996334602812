//! A client's memory objects, and the bound of their memory.

use std::ffi::c_void;
use std::io;
use std::sync::Arc;

use gpuremote_wire::{Decoder, Encoder};

use super::calls::kinds;
use super::{data, Object, Server, INVALID_OPERATION, INVALID_VALUE};
use crate::bound::Bound;
use crate::worker::{Link, Outcome};

const MEM_OBJECT_ALLOCATION_FAILURE: i32 = -4;
const INVALID_CONTEXT: i32 = -34;
const INVALID_MEM_OBJECT: i32 = -38;
const COPY_HOST_PTR: u64 = 32;
/// CL_MEM_USE_HOST_PTR, _ALLOC_HOST_PTR and _COPY_HOST_PTR: the client's own matter.
const HOST_MEMORY: u64 = 8 | 16 | 32;
const MEM_SIZE: u32 = 0x1102;
/// No pixel is longer: four channels of 32 bits.
const PIXEL_BYTES: usize = 16;

/// What a memory object has of the bound.
struct Share {
    bound: Arc<Bound>,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.bound.give_back(self.bytes);
    }
}

/// The driver calls this when it frees a memory object, which may be later than its last release.
unsafe extern "C" fn freed(_: Object, share: *mut c_void) {
    drop(Box::from_raw(share.cast::<Share>()));
}

impl Server {
    /// Makes a memory object within the bound.
    unsafe fn allocate(&self, number: u64, bytes: u64, run: impl FnOnce(&mut i32) -> Object) -> io::Result<Outcome> {
        if !self.bound.take(bytes) {
            return Ok(Outcome::Status(MEM_OBJECT_ALLOCATION_FAILURE));
        }
        let share = Box::new(Share { bound: Arc::clone(&self.bound), bytes });
        let mut status = 0;
        let memory = run(&mut status);
        if status == 0 {
            self.keep(number, memory, share)?;
        }
        Ok(Outcome::Status(status))
    }

    /// Keeps a memory object, and its share of the bound until the driver frees it.
    unsafe fn keep(&self, number: u64, memory: Object, share: Box<Share>) -> io::Result<()> {
        self.handles.put(kinds::cl_mem, number, memory)?;
        if let Some(tell) = self.functions.clSetMemObjectDestructorCallback {
            let share = Box::into_raw(share);
            let notify: unsafe extern "C" fn(Object, *mut c_void) = freed;
            if tell(memory, notify as *const u8, share.cast()) != 0 {
                drop(Box::from_raw(share));
            }
        }
        Ok(())
    }

    /// Keeps an image if it is within the bound. How long its pixels are, the driver knows once it is there.
    unsafe fn keep_image(&self, number: u64, image: Object) -> io::Result<Outcome> {
        let mut bytes = 0usize;
        if let Some(ask) = self.functions.clGetMemObjectInfo {
            ask(image, MEM_SIZE, size_of::<usize>(), (&raw mut bytes).cast(), std::ptr::null_mut());
        }
        let bytes = bytes as u64;
        if self.bound.take(bytes) {
            self.keep(number, image, Box::new(Share { bound: Arc::clone(&self.bound), bytes }))?;
            return Ok(Outcome::Status(0));
        }
        if let Some(release) = self.functions.clReleaseMemObject {
            release(image);
        }
        Ok(Outcome::Status(MEM_OBJECT_ALLOCATION_FAILURE))
    }

    pub unsafe fn cl_create_buffer(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (number, context, flags, bytes, with_data) =
            (decoder.u64()?, decoder.u64()?, decoder.u64()? & !HOST_MEMORY, decoder.usize()?, decoder.u8()? != 0);
        decoder.finish()?;
        let data = if with_data { Some(data(link, bytes)?) } else { None };
        let Some(context) = self.get(kinds::cl_context, context) else { return Ok(Outcome::Status(INVALID_CONTEXT)) };
        let Some(run) = self.functions.clCreateBuffer else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let (flags, host) = match &data {
            Some(data) => (flags | COPY_HOST_PTR, data.as_ptr()),
            None => (flags, std::ptr::null()),
        };
        self.allocate(number, bytes as u64, |status| run(context, flags, bytes, host, status))
    }

    pub unsafe fn cl_create_image(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (number, context, flags) = (decoder.u64()?, decoder.u64()?, decoder.u64()? & !HOST_MEMORY);
        let format = [decoder.u32()?, decoder.u32()?];
        let kind = decoder.u32()?;
        let mut sizes = [0; 5];
        for size in &mut sizes {
            *size = decoder.usize()?;
        }
        let [width, height, depth, layers, row_pitch] = sizes;
        let (buffer, with_data, bytes) = (decoder.u64()?, decoder.u8()? != 0, decoder.usize()?);
        decoder.finish()?;
        let mut data = if with_data { Some(data(link, bytes)?) } else { None };
        let Some(context) = self.get(kinds::cl_context, context) else { return Ok(Outcome::Status(INVALID_CONTEXT)) };
        let Some(run) = self.functions.clCreateImage else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let buffer = match buffer {
            0 => std::ptr::null_mut(),
            number => match self.get(kinds::cl_mem, number) {
                Some(buffer) => buffer,
                None => return Ok(Outcome::Status(INVALID_MEM_OBJECT)),
            },
        };
        // Sizes that a kind of image has no use for are 0 or 1.
        let most = [width, height.max(1), depth.max(1), layers.max(1), PIXEL_BYTES];
        let Some(most) = most.iter().try_fold(1usize, |product, &size| product.checked_mul(size)) else {
            return Ok(Outcome::Status(INVALID_VALUE));
        };
        if let Some(data) = &mut data {
            // The driver reads as much as the format says, whatever the client has sent.
            data.resize(data.len().max(most), 0);
        }
        /// `cl_image_desc`.
        #[repr(C)]
        struct Description {
            kind: u32,
            sizes: [usize; 6],
            levels: u32,
            samples: u32,
            buffer: Object,
        }
        let shape = Description { kind, sizes: [width, height, depth, layers, row_pitch, 0], levels: 0, samples: 0, buffer };
        let (flags, host) = match &data {
            Some(data) => (flags | COPY_HOST_PTR, data.as_ptr()),
            None => (flags, std::ptr::null()),
        };
        let mut status = 0;
        let image = run(context, flags, format.as_ptr().cast(), (&raw const shape).cast(), host, &mut status);
        if status != 0 {
            return Ok(Outcome::Status(status));
        }
        if buffer.is_null() {
            return self.keep_image(number, image);
        }
        // The memory is the buffer's.
        self.handles.put(kinds::cl_mem, number, image)?;
        Ok(Outcome::Status(0))
    }

    pub unsafe fn cl_get_supported_image_formats(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let (context, flags, kind) = (decoder.u64()?, decoder.u64()?, decoder.u32()?);
        decoder.finish()?;
        let Some(context) = self.get(kinds::cl_context, context) else { return Ok(Outcome::Status(INVALID_CONTEXT)) };
        let Some(run) = self.functions.clGetSupportedImageFormats else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        /// More than any device has.
        const MOST: u32 = 4096;
        let mut formats = vec![[0u32; 2]; MOST as usize];
        let mut found = 0;
        let status = run(context, flags, kind, MOST, formats.as_mut_ptr().cast(), &mut found);
        formats.truncate(if status == 0 { found as usize } else { 0 });
        values.u32(formats.len() as u32);
        formats.iter().flatten().for_each(|&value| values.u32(value));
        Ok(Outcome::Status(status))
    }
}
