//! Programs.

use std::ffi::CString;
use std::io;

use gpuremote_wire::{Decoder, Encoder, Malformed};

use super::calls::kinds;
use super::{data, info, pointer, text, Object, Server, INVALID_OPERATION, INVALID_VALUE};
use crate::worker::{Link, Outcome};

const INVALID_DEVICE: i32 = -33;
const INVALID_CONTEXT: i32 = -34;
const INVALID_PROGRAM: i32 = -44;
const PROGRAM_BINARY_SIZES: u32 = 0x1165;
const PROGRAM_BINARIES: u32 = 0x1166;
/// The longest source, and the longest binary of a device, in bytes.
const LONGEST: usize = 1 << 30;

/// Options with which a driver keeps what a kernel's arguments are, so that the client can tell objects from numbers.
fn with_argument_info(options: CString) -> CString {
    let mut options = options.into_bytes();
    options.extend_from_slice(b" -cl-kernel-arg-info");
    CString::new(options).unwrap_or_default()
}

impl Server {
    pub unsafe fn cl_create_program_with_source(
        &mut self,
        link: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        _: &mut Encoder,
    ) -> io::Result<Outcome> {
        let (number, context, bytes) = (decoder.u64()?, decoder.u64()?, decoder.usize()?);
        decoder.finish()?;
        if bytes > LONGEST {
            return Err(Malformed("a source is too long").into());
        }
        let mut source = data(link, bytes)?;
        // An empty source is one, too, but a length of 0 means that a zero byte ends it.
        source.push(0);
        let Some(context) = self.get(kinds::cl_context, context) else { return Ok(Outcome::Status(INVALID_CONTEXT)) };
        let Some(run) = self.functions.clCreateProgramWithSource else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let (start, mut status) = (source.as_ptr() as u64, 0);
        let program = run(context, 1, &start, &bytes, &mut status);
        if status == 0 {
            self.handles.put(kinds::cl_program, number, program)?;
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cl_create_program_with_binary(
        &mut self,
        link: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let (number, context) = (decoder.u64()?, decoder.u64()?);
        let (mut devices, mut lengths) = (Vec::new(), Vec::new());
        for _ in 0..decoder.u32()? {
            devices.push(self.get(kinds::cl_device_id, decoder.u64()?));
            lengths.push(decoder.usize()?);
        }
        decoder.finish()?;
        if lengths.iter().any(|&length| length > LONGEST) {
            return Err(Malformed("a binary is too long").into());
        }
        let binaries: Vec<Vec<u8>> = lengths.iter().map(|&length| data(link, length)).collect::<Result<_, _>>()?;
        let Some(context) = self.get(kinds::cl_context, context) else { return Ok(Outcome::Status(INVALID_CONTEXT)) };
        let devices: Option<Vec<Object>> = devices.into_iter().collect();
        let Some(devices) = devices else { return Ok(Outcome::Status(INVALID_DEVICE)) };
        let Some(run) = self.functions.clCreateProgramWithBinary else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let starts: Vec<u64> = binaries.iter().map(|binary| binary.as_ptr() as u64).collect();
        let (mut statuses, mut status) = (vec![0; devices.len()], 0);
        let count = devices.len() as u32;
        let program = run(context, count, devices.as_ptr().cast(), lengths.as_ptr(), starts.as_ptr(), statuses.as_mut_ptr(), &mut status);
        if status == 0 {
            self.handles.put(kinds::cl_program, number, program)?;
        }
        // The client learns what is wrong with each binary, so the call itself succeeds.
        values.i32(status);
        statuses.iter().for_each(|&status| values.i32(status));
        Ok(Outcome::Status(0))
    }

    /// The devices and the options of a build. The outer none: a number stands for nothing.
    fn build(&self, decoder: &mut Decoder<'_>) -> Result<(Option<Vec<Object>>, CString), Malformed> {
        Ok((self.list(decoder, kinds::cl_device_id)?, text(decoder)?))
    }

    pub unsafe fn cl_build_program(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let program = decoder.u64()?;
        let (devices, options) = self.build(decoder)?;
        decoder.finish()?;
        let Some(program) = self.get(kinds::cl_program, program) else { return Ok(Outcome::Status(INVALID_PROGRAM)) };
        let Some(devices) = devices else { return Ok(Outcome::Status(INVALID_DEVICE)) };
        let Some(run) = self.functions.clBuildProgram else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let options = with_argument_info(options);
        let (none, count) = (std::ptr::null(), devices.len() as u32);
        Ok(Outcome::Status(run(program, count, pointer(&devices).cast(), options.as_ptr(), none, none)))
    }

    pub unsafe fn cl_compile_program(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let program = decoder.u64()?;
        let (devices, options) = self.build(decoder)?;
        let (mut headers, mut names) = (Vec::new(), Vec::new());
        for _ in 0..decoder.u32()? {
            headers.push(self.get(kinds::cl_program, decoder.u64()?));
            names.push(text(decoder)?);
        }
        decoder.finish()?;
        let headers: Option<Vec<Object>> = headers.into_iter().collect();
        let (Some(program), Some(headers)) = (self.get(kinds::cl_program, program), headers) else {
            return Ok(Outcome::Status(INVALID_PROGRAM));
        };
        let Some(devices) = devices else { return Ok(Outcome::Status(INVALID_DEVICE)) };
        let Some(run) = self.functions.clCompileProgram else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let options = with_argument_info(options);
        let starts: Vec<Object> = names.iter().map(|name| name.as_ptr() as Object).collect();
        let (none, count) = (std::ptr::null(), devices.len() as u32);
        let headers_at = pointer(&headers).cast();
        let starts_at = pointer(&starts).cast();
        let list = pointer(&devices).cast();
        Ok(Outcome::Status(run(program, count, list, options.as_ptr(), headers.len() as u32, headers_at, starts_at, none, none)))
    }

    pub unsafe fn cl_link_program(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        let (number, context) = (decoder.u64()?, decoder.u64()?);
        let (devices, options) = self.build(decoder)?;
        let parts = self.list(decoder, kinds::cl_program)?;
        decoder.finish()?;
        let Some(context) = self.get(kinds::cl_context, context) else { return Ok(Outcome::Status(INVALID_CONTEXT)) };
        let Some(devices) = devices else { return Ok(Outcome::Status(INVALID_DEVICE)) };
        let Some(parts) = parts else { return Ok(Outcome::Status(INVALID_PROGRAM)) };
        let Some(run) = self.functions.clLinkProgram else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let (none, mut status) = (std::ptr::null(), 0);
        let (count, part_count) = (devices.len() as u32, parts.len() as u32);
        let list = pointer(&devices).cast();
        let program = run(context, count, list, options.as_ptr(), part_count, pointer(&parts).cast(), none, none, &mut status);
        if program.is_null() {
            return Ok(Outcome::Status(if status == 0 { INVALID_VALUE } else { status }));
        }
        self.handles.put(kinds::cl_program, number, program)?;
        values.i32(status);
        Ok(Outcome::Status(0))
    }

    /// The binary for one of the program's devices, as data after the reply.
    pub unsafe fn nearmetal_program_binary(
        &mut self,
        link: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        _: &mut Encoder,
    ) -> io::Result<Outcome> {
        let (program, index, length) = (decoder.u64()?, decoder.u32()? as usize, decoder.usize()?);
        decoder.finish()?;
        let Some(program) = self.get(kinds::cl_program, program) else { return Ok(Outcome::Status(INVALID_PROGRAM)) };
        let Some(run) = self.functions.clGetProgramInfo else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let sizes = match info(|size, into, length| run(program, PROGRAM_BINARY_SIZES, size, into, length)) {
            Ok(sizes) => sizes,
            Err(status) => return Ok(Outcome::Status(status)),
        };
        let sizes = sizes.chunks_exact(8).map(|size| usize::from_le_bytes(size.try_into().expect("8 bytes")));
        let mut binaries: Vec<Vec<u8>> = sizes.map(|size| vec![0; size]).collect();
        if binaries.get(index).is_none_or(|binary| binary.len() != length) || !link.replies {
            return Ok(Outcome::Status(INVALID_VALUE));
        }
        let mut starts: Vec<*mut u8> = binaries.iter_mut().map(Vec::as_mut_ptr).collect();
        let status = run(program, PROGRAM_BINARIES, size_of_val(starts.as_slice()), starts.as_mut_ptr().cast(), std::ptr::null_mut());
        if status != 0 {
            return Ok(Outcome::Status(status));
        }
        link.reply(0, &[])?;
        link.lane.write_data(&binaries[index])?;
        link.lane.write(&status.to_le_bytes())?;
        link.lane.flush()?;
        Ok(Outcome::Replied)
    }
}
