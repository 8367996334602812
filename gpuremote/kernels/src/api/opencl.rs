//! OpenCL 1.2, loaded at run time. Names and types are those of the public `CL/cl.h`.

use std::ffi::{c_char, c_void, CString};
use std::path::Path;
use std::rc::Rc;

use super::calls::{CallLog, Transfer};
use super::{Argument, Buffer, Device, Error, Grid, Marker, PinnedMemory};
use crate::program::Program;

type ClInt = i32;
type Handle = *mut c_void;

const CL_SUCCESS: ClInt = 0;
const CL_DEVICE_NOT_FOUND: ClInt = -1;
const CL_MEM_OBJECT_ALLOCATION_FAILURE: ClInt = -4;
const CL_OUT_OF_RESOURCES: ClInt = -5;
const CL_OUT_OF_HOST_MEMORY: ClInt = -6;
const CL_DEVICE_TYPE_GPU: u64 = 1 << 2;
const CL_DEVICE_TYPE_ALL: u64 = 0xffff_ffff;
const CL_DEVICE_NAME: u32 = 0x102b;
const CL_DRIVER_VERSION: u32 = 0x102d;
const CL_PROGRAM_BUILD_LOG: u32 = 0x1183;
const CL_MEM_READ_WRITE: u64 = 1;
const CL_TRUE: u32 = 1;

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)+) => {
        /// The loaded library and the functions that the programs call.
        #[allow(non_snake_case)]
        pub struct Library {
            _library: libloading::Library,
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)+
        }

        impl Library {
            /// Loads the library at `path`. Errors name the library and the reason, for example a missing function.
            pub fn load(path: &Path) -> Result<Self, Error> {
                let refuse = |reason: libloading::Error| Error::Library {
                    library: path.display().to_string(),
                    reason: reason.to_string(),
                };
                // SAFETY: the library implements OpenCL, whose initializers have no preconditions; types are those of cl.h.
                unsafe {
                    let library = libloading::Library::new(path).map_err(refuse)?;
                    Ok(Self {
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes()).map_err(refuse)?,)+
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    clGetPlatformIDs: fn(u32, *mut Handle, *mut u32) -> ClInt;
    clGetDeviceIDs: fn(Handle, u64, u32, *mut Handle, *mut u32) -> ClInt;
    clGetDeviceInfo: fn(Handle, u32, usize, *mut c_void, *mut usize) -> ClInt;
    clCreateContext: fn(*const isize, u32, *const Handle, *const c_void, *mut c_void, *mut ClInt) -> Handle;
    clReleaseContext: fn(Handle) -> ClInt;
    clCreateCommandQueue: fn(Handle, Handle, u64, *mut ClInt) -> Handle;
    clReleaseCommandQueue: fn(Handle) -> ClInt;
    clCreateProgramWithSource: fn(Handle, u32, *const *const c_char, *const usize, *mut ClInt) -> Handle;
    clBuildProgram: fn(Handle, u32, *const Handle, *const c_char, *const c_void, *mut c_void) -> ClInt;
    clGetProgramBuildInfo: fn(Handle, Handle, u32, usize, *mut c_void, *mut usize) -> ClInt;
    clReleaseProgram: fn(Handle) -> ClInt;
    clCreateKernel: fn(Handle, *const c_char, *mut ClInt) -> Handle;
    clReleaseKernel: fn(Handle) -> ClInt;
    clSetKernelArg: fn(Handle, u32, usize, *const c_void) -> ClInt;
    clCreateBuffer: fn(Handle, u64, usize, *mut c_void, *mut ClInt) -> Handle;
    clReleaseMemObject: fn(Handle) -> ClInt;
    clEnqueueWriteBuffer: fn(Handle, Handle, u32, usize, usize, *const c_void, u32, *const Handle, *mut Handle) -> ClInt;
    clEnqueueReadBuffer: fn(Handle, Handle, u32, usize, usize, *mut c_void, u32, *const Handle, *mut Handle) -> ClInt;
    clEnqueueCopyBuffer: fn(Handle, Handle, Handle, usize, usize, usize, u32, *const Handle, *mut Handle) -> ClInt;
    clEnqueueNDRangeKernel: fn(
        Handle, Handle, u32, *const usize, *const usize, *const usize, u32, *const Handle, *mut Handle
    ) -> ClInt;
    clEnqueueMarkerWithWaitList: fn(Handle, u32, *const Handle, *mut Handle) -> ClInt;
    clWaitForEvents: fn(u32, *const Handle) -> ClInt;
    clReleaseEvent: fn(Handle) -> ClInt;
    clFlush: fn(Handle) -> ClInt;
    clFinish: fn(Handle) -> ClInt;
}

/// Returns the name of a result code that these calls can return.
fn error_name(code: ClInt) -> &'static str {
    match code {
        CL_DEVICE_NOT_FOUND => "CL_DEVICE_NOT_FOUND",
        -2 => "CL_DEVICE_NOT_AVAILABLE",
        -3 => "CL_COMPILER_NOT_AVAILABLE",
        CL_MEM_OBJECT_ALLOCATION_FAILURE => "CL_MEM_OBJECT_ALLOCATION_FAILURE",
        CL_OUT_OF_RESOURCES => "CL_OUT_OF_RESOURCES",
        CL_OUT_OF_HOST_MEMORY => "CL_OUT_OF_HOST_MEMORY",
        -11 => "CL_BUILD_PROGRAM_FAILURE",
        -14 => "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
        -30 => "CL_INVALID_VALUE",
        -32 => "CL_INVALID_PLATFORM",
        -33 => "CL_INVALID_DEVICE",
        -34 => "CL_INVALID_CONTEXT",
        -36 => "CL_INVALID_COMMAND_QUEUE",
        -38 => "CL_INVALID_MEM_OBJECT",
        -44 => "CL_INVALID_PROGRAM",
        -45 => "CL_INVALID_PROGRAM_EXECUTABLE",
        -46 => "CL_INVALID_KERNEL_NAME",
        -48 => "CL_INVALID_KERNEL",
        -49 => "CL_INVALID_ARG_INDEX",
        -50 => "CL_INVALID_ARG_VALUE",
        -51 => "CL_INVALID_ARG_SIZE",
        -52 => "CL_INVALID_KERNEL_ARGS",
        -54 => "CL_INVALID_WORK_GROUP_SIZE",
        -58 => "CL_INVALID_EVENT",
        -61 => "CL_INVALID_BUFFER_SIZE",
        -1001 => "CL_PLATFORM_NOT_FOUND_KHR",
        _ => "unknown error",
    }
}

fn check(call: &'static str, code: ClInt) -> Result<(), Error> {
    if code == CL_SUCCESS {
        return Ok(());
    }
    Err(Error::Call {
        call,
        code,
        name: error_name(code).to_string(),
        out_of_memory: [CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_RESOURCES, CL_OUT_OF_HOST_MEMORY].contains(&code),
    })
}

/// The first GPU of any platform, or else the first device, with a context and an in-order queue.
pub struct OpenClDevice {
    library: Rc<Library>,
    calls: CallLog,
    device: Handle,
    description: String,
    context: Handle,
    queue: Handle,
    program: Handle,
    kernels: Vec<Handle>,
}

/// Calls a function that returns a code, logs it and turns its result into a `Result`.
macro_rules! call {
    ($self:ident, $name:ident($($argument:expr),*)) => {{
        // SAFETY: pointers outlive the call; handles come from the same library.
        let code = $self.calls.time(stringify!($name), || unsafe { ($self.library.$name)($($argument),*) });
        check(stringify!($name), code)
    }};
    ($self:ident, $name:ident($($argument:expr),*), $transfer:expr, $bytes:expr) => {{
        // SAFETY: as above.
        let code = $self.calls.time_copy(stringify!($name), $transfer, $bytes, || unsafe {
            ($self.library.$name)($($argument),*)
        });
        check(stringify!($name), code)
    }};
}

/// Calls a function that returns an object and stores a code behind its last argument.
macro_rules! create {
    ($self:ident, $name:ident($($argument:expr),*)) => {{
        let mut code = CL_SUCCESS;
        // SAFETY: pointers outlive the call; handles come from the same library.
        let object = $self.calls.time(stringify!($name), || unsafe {
            ($self.library.$name)($($argument,)* &mut code)
        });
        check(stringify!($name), code).map(|()| object)
    }};
}

impl OpenClDevice {
    /// Selects a device and creates a context and a queue.
    pub fn open(library: Rc<Library>) -> Result<Self, Error> {
        let null = std::ptr::null_mut();
        let mut this = Self {
            library,
            calls: CallLog::default(),
            device: null,
            description: String::new(),
            context: null,
            queue: null,
            program: null,
            kernels: Vec::new(),
        };
        this.device = this.select_device()?;
        let name = this.device_text(CL_DEVICE_NAME)?;
        let driver = this.device_text(CL_DRIVER_VERSION)?;
        this.description = format!("{name}, OpenCL driver {driver}");
        let devices = [this.device];
        this.context = create!(this, clCreateContext(std::ptr::null(), 1, devices.as_ptr(), std::ptr::null(), std::ptr::null_mut()))?;
        this.queue = create!(this, clCreateCommandQueue(this.context, this.device, 0))?;
        Ok(this)
    }

    fn select_device(&mut self) -> Result<Handle, Error> {
        let mut platforms = [std::ptr::null_mut(); 16];
        let mut count = 0;
        call!(self, clGetPlatformIDs(16, platforms.as_mut_ptr(), &mut count))?;
        for kind in [CL_DEVICE_TYPE_GPU, CL_DEVICE_TYPE_ALL] {
            for platform in platforms.iter().take(count as usize) {
                let mut device = std::ptr::null_mut();
                let mut devices = 0;
                match call!(self, clGetDeviceIDs(*platform, kind, 1, &mut device, &mut devices)) {
                    Ok(()) if devices > 0 => return Ok(device),
                    Ok(()) | Err(Error::Call { code: CL_DEVICE_NOT_FOUND, .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Err(Error::NoDevice(format!("{count} OpenCL platforms, none of which has a device; \"clinfo -l\" lists what is installed")))
    }

    fn device_text(&mut self, property: u32) -> Result<String, Error> {
        let mut text = [0u8; 256];
        let mut length = 0;
        call!(self, clGetDeviceInfo(self.device, property, 256, text.as_mut_ptr().cast(), &mut length))?;
        Ok(String::from_utf8_lossy(&text[..length.clamp(1, 256) - 1]).into_owned())
    }

    fn build_log(&mut self) -> Result<String, Error> {
        let mut length = 0;
        call!(self, clGetProgramBuildInfo(self.program, self.device, CL_PROGRAM_BUILD_LOG, 0, std::ptr::null_mut(), &mut length))?;
        let mut text = vec![0u8; length];
        call!(
            self,
            clGetProgramBuildInfo(self.program, self.device, CL_PROGRAM_BUILD_LOG, length, text.as_mut_ptr().cast(), std::ptr::null_mut())
        )?;
        Ok(String::from_utf8_lossy(&text).trim_end_matches('\0').trim().to_string())
    }

    fn unload(&mut self) -> Result<(), Error> {
        for kernel in std::mem::take(&mut self.kernels) {
            call!(self, clReleaseKernel(kernel))?;
        }
        let program = std::mem::replace(&mut self.program, std::ptr::null_mut());
        if program.is_null() {
            return Ok(());
        }
        call!(self, clReleaseProgram(program))
    }
}

impl Device for OpenClDevice {
    fn description(&self) -> String {
        self.description.clone()
    }

    fn load(&mut self, program: &'static Program) -> Result<(), Error> {
        self.unload()?;
        let text = program.opencl.as_ptr().cast();
        let length = program.opencl.len();
        self.program = create!(self, clCreateProgramWithSource(self.context, 1, &text, &length))?;
        let devices = [self.device];
        let built =
            call!(self, clBuildProgram(self.program, 1, devices.as_ptr(), std::ptr::null(), std::ptr::null(), std::ptr::null_mut()));
        if let Err(error) = built {
            return Err(Error::Build { program: program.name, log: format!("{error}\n{}", self.build_log()?) });
        }
        for name in program.kernels {
            let name = CString::new(*name).expect("a kernel's name has no NUL");
            let kernel = create!(self, clCreateKernel(self.program, name.as_ptr()))?;
            self.kernels.push(kernel);
        }
        Ok(())
    }

    fn allocate(&mut self, size_bytes: usize) -> Result<Buffer, Error> {
        let memory = create!(self, clCreateBuffer(self.context, CL_MEM_READ_WRITE, size_bytes, std::ptr::null_mut()))?;
        Ok(Buffer { handle: memory as u64, size_bytes })
    }

    fn write(&mut self, buffer: Buffer, bytes: &[u8]) -> Result<(), Error> {
        let memory = buffer.handle as Handle;
        call!(
            self,
            clEnqueueWriteBuffer(
                self.queue,
                memory,
                CL_TRUE,
                0,
                bytes.len(),
                bytes.as_ptr().cast(),
                0,
                std::ptr::null(),
                std::ptr::null_mut()
            ),
            Transfer::ToDevice,
            bytes.len()
        )
    }

    fn read(&mut self, buffer: Buffer, bytes: &mut [u8]) -> Result<(), Error> {
        let memory = buffer.handle as Handle;
        call!(
            self,
            clEnqueueReadBuffer(
                self.queue,
                memory,
                CL_TRUE,
                0,
                bytes.len(),
                bytes.as_mut_ptr().cast(),
                0,
                std::ptr::null(),
                std::ptr::null_mut()
            ),
            Transfer::FromDevice,
            bytes.len()
        )
    }

    fn copy(&mut self, source: Buffer, destination: Buffer) -> Result<(), Error> {
        let (from, to) = (source.handle as Handle, destination.handle as Handle);
        call!(
            self,
            clEnqueueCopyBuffer(self.queue, from, to, 0, 0, source.size_bytes, 0, std::ptr::null(), std::ptr::null_mut()),
            Transfer::OnDevice,
            source.size_bytes
        )
    }

    fn launch(&mut self, kernel: usize, grid: Grid, arguments: &[Argument]) -> Result<(), Error> {
        let kernel = self.kernels[kernel];
        for (index, argument) in arguments.iter().enumerate() {
            let (size, value): (usize, *const c_void) = match argument {
                Argument::Buffer(buffer) => (8, std::ptr::from_ref(&buffer.handle).cast()),
                Argument::Int(value) => (4, std::ptr::from_ref(value).cast()),
                Argument::Float(value) => (4, std::ptr::from_ref(value).cast()),
            };
            call!(self, clSetKernelArg(kernel, index as u32, size, value))?;
        }
        let local = grid.group_size;
        let global = [grid.groups[0] * local[0], grid.groups[1] * local[1]];
        let dimensions = if global[1] == 1 { 1 } else { 2 };
        call!(
            self,
            clEnqueueNDRangeKernel(
                self.queue,
                kernel,
                dimensions,
                std::ptr::null(),
                global.as_ptr(),
                local.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null_mut()
            )
        )
    }

    fn finish(&mut self) -> Result<(), Error> {
        call!(self, clFinish(self.queue))
    }

    fn poll(&mut self) -> Result<(), Error> {
        call!(self, clFlush(self.queue))
    }

    fn mark(&mut self) -> Result<Marker, Error> {
        let mut event = std::ptr::null_mut();
        call!(self, clEnqueueMarkerWithWaitList(self.queue, 0, std::ptr::null(), &mut event))?;
        // An event is complete only if its commands reach the device.
        call!(self, clFlush(self.queue))?;
        Ok(Marker(event as u64))
    }

    fn wait(&mut self, marker: Marker) -> Result<(), Error> {
        let event = marker.0 as Handle;
        call!(self, clWaitForEvents(1, &event))?;
        call!(self, clReleaseEvent(event))
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), Error> {
        call!(self, clReleaseMemObject(buffer.handle as Handle))
    }

    fn allocate_pinned(&mut self, _size_bytes: usize) -> Result<Option<PinnedMemory>, Error> {
        Ok(None)
    }

    fn free_pinned(&mut self, _memory: PinnedMemory) -> Result<(), Error> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        self.unload()?;
        let null = std::ptr::null_mut();
        let queue = std::mem::replace(&mut self.queue, null);
        if !queue.is_null() {
            call!(self, clReleaseCommandQueue(queue))?;
        }
        let context = std::mem::replace(&mut self.context, null);
        if !context.is_null() {
            call!(self, clReleaseContext(context))?;
        }
        Ok(())
    }

    fn calls(&mut self) -> &mut CallLog {
        &mut self.calls
    }
}

impl Drop for OpenClDevice {
    fn drop(&mut self) {
        // A program that ends early reports its own error; there is nothing to add.
        let _ = self.close();
    }
}
