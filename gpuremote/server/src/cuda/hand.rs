//! Calls whose arguments a description can't tell.

use std::ffi::{c_char, c_void, CStr};
use std::io;

use gpuremote_wire::{Decoder, Encoder, Malformed};

use super::{calls, text, Server, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::worker::{Link, Outcome};

/// The largest image of GPU programs, in bytes.
const IMAGE_BYTES: usize = 1 << 30;
/// The most parameters of a GPU program.
const MOST_PARAMETERS: usize = 4096;
/// The most programs of an image that a reply names.
const MOST_PROGRAMS: u32 = 1 << 14;

/// Functions of the driver that list programs, and tell of each its name and where its parameters lie.
type Find = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> i32;
type List = unsafe extern "C" fn(*mut u64, u32, *mut c_void) -> i32;
type Name = unsafe extern "C" fn(*mut u64, *mut c_void) -> i32;
type Info = unsafe extern "C" fn(*mut c_void, usize, *mut usize, *mut usize) -> i32;

impl Server {
    unsafe fn image(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>) -> io::Result<(u64, Vec<u8>)> {
        let (number, length) = (decoder.u64()?, decoder.usize()?);
        decoder.finish()?;
        if length > IMAGE_BYTES {
            return Err(Malformed("an image of GPU programs is too long").into());
        }
        // PTX ends with a zero byte.
        let mut image = vec![0; length + 1];
        link.lane.read(&mut image[..length])?;
        Ok((number, image))
    }

    pub unsafe fn cu_module_load_data(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (number, image) = self.image(link, decoder)?;
        let Some(run) = self.functions.cuModuleLoadData else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut module = std::ptr::null_mut();
        let status = run(&mut module, image.as_ptr());
        if status == 0 {
            self.handles.put(calls::kinds::CUmodule, number, module)?;
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cu_library_load_data(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (number, image) = self.image(link, decoder)?;
        let Some(run) = self.functions.cuLibraryLoadData else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut library = std::ptr::null_mut();
        let none = std::ptr::null();
        let status = run(&mut library, image.as_ptr(), none, none, 0, none, none, 0);
        if status == 0 {
            self.handles.put(calls::kinds::CUlibrary, number, library)?;
        }
        Ok(Outcome::Status(status))
    }

    /// Where a program's parameters lie: a number, then offset and length of each, in bytes.
    fn parameters(values: &mut Encoder, mut info: impl FnMut(usize, &mut usize, &mut usize) -> i32) {
        let mut places = Vec::new();
        let (mut offset, mut bytes) = (0, 0);
        while places.len() < MOST_PARAMETERS && info(places.len(), &mut offset, &mut bytes) == 0 {
            places.push((offset as u32, bytes as u32));
        }
        values.u32(places.len() as u32);
        for (offset, bytes) in places {
            values.u32(offset);
            values.u32(bytes);
        }
    }

    pub unsafe fn cu_module_get_function(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let f = &self.functions;
        let calls = (f.cuModuleGetFunction, f.cuFuncGetParamInfo);
        self.find(calls, (calls::kinds::CUmodule, calls::kinds::CUfunction), decoder, values)
    }

    pub unsafe fn cu_library_get_kernel(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let f = &self.functions;
        let calls = (f.cuLibraryGetKernel, f.cuKernelGetParamInfo);
        self.find(calls, (calls::kinds::CUlibrary, calls::kinds::CUkernel), decoder, values)
    }

    /// A program of a module or library by its name: the places of its parameters.
    unsafe fn find(
        &self,
        (run, info): (Option<Find>, Option<Info>),
        (of, kind): (usize, usize),
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let (number, image, name) = (decoder.u64()?, decoder.u64()?, text(decoder)?);
        decoder.finish()?;
        let Some(image) = self.handles.get(of, image) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let (Some(run), Some(info)) = (run, info) else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut program = std::ptr::null_mut();
        let status = run(&mut program, image, name.as_ptr());
        if status == 0 {
            self.handles.put(kind, number, program)?;
            Self::parameters(values, |i, offset, bytes| info(program, i, offset, bytes));
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cu_module_enumerate_functions(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let f = &self.functions;
        let calls = (f.cuModuleEnumerateFunctions, f.cuFuncGetName, f.cuFuncGetParamInfo);
        self.enumerate(calls, (calls::kinds::CUmodule, calls::kinds::CUfunction), decoder, values)
    }

    pub unsafe fn cu_library_enumerate_kernels(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let f = &self.functions;
        let calls = (f.cuLibraryEnumerateKernels, f.cuKernelGetName, f.cuKernelGetParamInfo);
        self.enumerate(calls, (calls::kinds::CUlibrary, calls::kinds::CUkernel), decoder, values)
    }

    /// The programs of a module or library: the number, the name, and the places of the parameters of each.
    unsafe fn enumerate(
        &self,
        (list, name, info): (Option<List>, Option<Name>, Option<Info>),
        (of, kind): (usize, usize),
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let (count, number) = (decoder.u32()?, decoder.u64()?);
        decoder.finish()?;
        let count = count.min(MOST_PROGRAMS);
        let Some(image) = self.handles.get(of, number) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let (Some(list), Some(name), Some(info)) = (list, name, info) else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut programs = vec![0u64; count as usize];
        let status = list(programs.as_mut_ptr(), count, image);
        if status != 0 {
            return Ok(Outcome::Status(status));
        }
        programs.retain(|&program| program != 0);
        values.u32(programs.len() as u32);
        for program in programs {
            let program = program as *mut c_void;
            values.u64(self.handles.number(kind, program)?);
            let mut text = 0;
            let named = name(&mut text, program) == 0 && text != 0;
            values.bytes_counted(if named { CStr::from_ptr(text as *const c_char).to_bytes() } else { &[] });
            Self::parameters(values, |i, offset, bytes| info(program, i, offset, bytes));
        }
        Ok(Outcome::Status(0))
    }

    pub unsafe fn cu_ctx_pop_current_v2(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        decoder.finish()?;
        let Some(run) = self.functions.cuCtxPopCurrent_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut popped = 0;
        Ok(Outcome::Status(run(&mut popped)))
    }

    /// A place in the client's host memory that this process shares, as an address here.
    pub fn host_address(link: &Link<'_>, offset: usize, bytes: usize) -> io::Result<*mut u8> {
        let memory = link.host_memory().ok_or(Malformed("this client shares no host memory"))?;
        if offset.checked_add(bytes).is_none_or(|end| end > memory.mapping.length()) {
            return Err(Malformed("a place is outside the client's host memory").into());
        }
        // SAFETY: the offset is within the mapping.
        Ok(unsafe { memory.mapping.start().add(offset) })
    }

    pub unsafe fn cu_mem_host_alloc(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (offset, bytes, flags) = (decoder.usize()?, decoder.usize()?, decoder.u32()?);
        decoder.finish()?;
        let start = Self::host_address(link, offset, bytes)?;
        let Some(run) = self.functions.cuMemHostRegister_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        Ok(Outcome::Status(run(start, bytes, flags)))
    }

    pub unsafe fn cu_mem_free_host(&mut self, link: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (offset, bytes) = (decoder.usize()?, decoder.usize()?);
        decoder.finish()?;
        let start = Self::host_address(link, offset, bytes)?;
        let Some(run) = self.functions.cuMemHostUnregister else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let status = run(start);
        if let Some(memory) = link.host_memory() {
            gpuremote_transport::free_in_arena(&memory.file, offset, bytes)?;
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cu_mem_host_get_device_pointer_v2(
        &mut self,
        link: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let offset = decoder.usize()?;
        decoder.finish()?;
        let start = Self::host_address(link, offset, 1)?;
        let Some(run) = self.functions.cuMemHostGetDevicePointer_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut address = 0;
        let status = run(&mut address, start, 0);
        values.u64(address);
        Ok(Outcome::Status(status))
    }

    unsafe fn error_text(
        &mut self,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
        run: Option<unsafe extern "C" fn(i32, *mut u64) -> i32>,
    ) -> io::Result<Outcome> {
        let status = decoder.i32()?;
        decoder.finish()?;
        let Some(run) = run else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut text = 0;
        let result = run(status, &mut text);
        if result == 0 && text != 0 {
            values.bytes_counted(CStr::from_ptr(text as *const c_char).to_bytes());
        }
        Ok(Outcome::Status(if text == 0 { INVALID_VALUE } else { result }))
    }

    pub unsafe fn cu_get_error_name(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        self.error_text(decoder, values, self.functions.cuGetErrorName)
    }

    pub unsafe fn cu_get_error_string(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        self.error_text(decoder, values, self.functions.cuGetErrorString)
    }

    pub unsafe fn cu_thread_exchange_stream_capture_mode(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let mut mode = decoder.i32()?;
        decoder.finish()?;
        // A driver without this function captures nothing, so no mode forbids anything.
        let status = self.functions.cuThreadExchangeStreamCaptureMode.map_or(0, |run| run(&raw mut mode));
        values.i32(mode);
        Ok(Outcome::Status(status))
    }
}
