//! Kernels and their arguments.

use std::io;

use gpuremote_wire::{Decoder, Encoder, Malformed};

use super::calls::kinds;
use super::{info, text, Object, Server, INVALID_OPERATION};
use crate::worker::{Link, Outcome};

const INVALID_MEM_OBJECT: i32 = -38;
const INVALID_SAMPLER: i32 = -41;
const INVALID_PROGRAM: i32 = -44;
const INVALID_KERNEL: i32 = -48;
const KERNEL_NUM_ARGS: u32 = 0x1191;
const KERNEL_ARG_ADDRESS_QUALIFIER: u32 = 0x1196;
const KERNEL_ARG_TYPE_NAME: u32 = 0x1198;
const ADDRESS_GLOBAL: u32 = 0x119b;
const ADDRESS_LOCAL: u32 = 0x119c;
const ADDRESS_CONSTANT: u32 = 0x119d;

/// What an argument is, as the client understands it.
const VALUE: u8 = 0;
const MEMORY: u8 = 1;
const SAMPLER: u8 = 2;
const LOCAL: u8 = 3;
const UNKNOWN: u8 = 4;

impl Server {
    unsafe fn kind_of_argument(&self, kernel: Object, index: u32) -> u8 {
        let Some(run) = self.functions.clGetKernelArgInfo else { return UNKNOWN };
        let mut qualifier = 0u32;
        let status = run(kernel, index, KERNEL_ARG_ADDRESS_QUALIFIER, 4, (&raw mut qualifier).cast(), std::ptr::null_mut());
        if status != 0 {
            return UNKNOWN;
        }
        match qualifier {
            ADDRESS_GLOBAL | ADDRESS_CONSTANT => return MEMORY,
            ADDRESS_LOCAL => return LOCAL,
            _ => {}
        }
        match info(|size, into, length| run(kernel, index, KERNEL_ARG_TYPE_NAME, size, into, length)) {
            Ok(name) if name.starts_with(b"sampler_t") => SAMPLER,
            Ok(name) if name.starts_with(b"image") => MEMORY,
            Ok(_) => VALUE,
            Err(_) => UNKNOWN,
        }
    }

    pub unsafe fn cl_create_kernel(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        let (number, program, name) = (decoder.u64()?, decoder.u64()?, text(decoder)?);
        decoder.finish()?;
        let Some(program) = self.get(kinds::cl_program, program) else { return Ok(Outcome::Status(INVALID_PROGRAM)) };
        let (Some(run), Some(ask)) = (self.functions.clCreateKernel, self.functions.clGetKernelInfo) else {
            return Ok(Outcome::Status(INVALID_OPERATION));
        };
        let mut status = 0;
        let kernel = run(program, name.as_ptr(), &mut status);
        if status != 0 {
            return Ok(Outcome::Status(status));
        }
        self.handles.put(kinds::cl_kernel, number, kernel)?;
        let mut count = 0u32;
        let status = ask(kernel, KERNEL_NUM_ARGS, 4, (&raw mut count).cast(), std::ptr::null_mut());
        values.u32(count);
        for index in 0..count {
            values.u8(self.kind_of_argument(kernel, index));
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cl_set_kernel_arg(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (kernel, index, bytes, kind) = (decoder.u64()?, decoder.u32()?, decoder.usize()?, decoder.u8()?);
        let Some(kernel) = self.get(kinds::cl_kernel, kernel) else { return Ok(Outcome::Status(INVALID_KERNEL)) };
        let Some(run) = self.functions.clSetKernelArg else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        if kind == VALUE {
            // Drivers read values as whole words, so they begin at one.
            let value = decoder.take(bytes)?;
            let mut aligned = vec![0u128; bytes.div_ceil(size_of::<u128>())];
            std::ptr::copy_nonoverlapping(value.as_ptr(), aligned.as_mut_ptr().cast(), bytes);
            return Ok(Outcome::Status(run(kernel, index, bytes, aligned.as_ptr().cast())));
        }
        if kind == LOCAL {
            return Ok(Outcome::Status(run(kernel, index, bytes, std::ptr::null())));
        }
        let (of_kind, wrong) = match kind {
            MEMORY => (kinds::cl_mem, INVALID_MEM_OBJECT),
            SAMPLER => (kinds::cl_sampler, INVALID_SAMPLER),
            _ => return Err(Malformed("an argument is of no known kind").into()),
        };
        // Where the client can't tell a memory object from a sampler, the number does.
        let object = match decoder.u64()? {
            0 => Some(std::ptr::null_mut()),
            number => self.get(of_kind, number).or_else(|| self.get(kinds::cl_sampler, number)),
        };
        decoder.finish()?;
        let Some(object) = object else { return Ok(Outcome::Status(wrong)) };
        Ok(Outcome::Status(run(kernel, index, size_of::<Object>(), (&raw const object).cast())))
    }
}
