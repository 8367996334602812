//! The CUDA driver API, loaded at run time. Names and types are those of the public `cuda.h`.

use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::path::Path;
use std::rc::Rc;

use super::calls::{CallLog, Transfer};
use super::{Argument, Buffer, Device, Error, Grid, Marker, PinnedMemory};
use crate::program::Program;

type CuResult = c_int;
type CuDevice = c_int;
type CuDevicePtr = u64;
type Handle = *mut c_void;

const CUDA_SUCCESS: CuResult = 0;
const CUDA_ERROR_OUT_OF_MEMORY: CuResult = 2;
const CUDA_ERROR_NOT_READY: CuResult = 600;
const CU_EVENT_DISABLE_TIMING: c_uint = 2;
const CU_JIT_ERROR_LOG_BUFFER: c_int = 5;
const CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_int = 6;
const BUILD_LOG_BYTES: usize = 8192;

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*);)+) => {
        /// The loaded library and the functions that the programs call.
        #[allow(non_snake_case)]
        pub struct Library {
            _library: libloading::Library,
            $($name: unsafe extern "C" fn($($argument),*) -> CuResult,)+
        }

        impl Library {
            /// Loads the library at `path`. Errors name the library and the reason, for example a missing function.
            pub fn load(path: &Path) -> Result<Self, Error> {
                let refuse = |reason: libloading::Error| Error::Library {
                    library: path.display().to_string(),
                    reason: reason.to_string(),
                };
                // SAFETY: the library is a CUDA driver, whose initializers have no preconditions; types are those of cuda.h.
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
    cuInit: fn(c_uint);
    cuDriverGetVersion: fn(*mut c_int);
    cuDeviceGet: fn(*mut CuDevice, c_int);
    cuDeviceGetName: fn(*mut c_char, c_int, CuDevice);
    cuDevicePrimaryCtxRetain: fn(*mut Handle, CuDevice);
    cuDevicePrimaryCtxRelease_v2: fn(CuDevice);
    cuCtxSetCurrent: fn(Handle);
    cuCtxSynchronize: fn();
    cuModuleLoadDataEx: fn(*mut Handle, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    cuModuleGetFunction: fn(*mut Handle, Handle, *const c_char);
    cuModuleUnload: fn(Handle);
    cuMemAlloc_v2: fn(*mut CuDevicePtr, usize);
    cuMemFree_v2: fn(CuDevicePtr);
    cuMemcpyHtoD_v2: fn(CuDevicePtr, *const c_void, usize);
    cuMemcpyDtoH_v2: fn(*mut c_void, CuDevicePtr, usize);
    cuMemcpyDtoD_v2: fn(CuDevicePtr, CuDevicePtr, usize);
    cuMemHostAlloc: fn(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost: fn(*mut c_void);
    cuLaunchKernel: fn(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
    cuStreamQuery: fn(Handle);
    cuEventCreate: fn(*mut Handle, c_uint);
    cuEventRecord: fn(Handle, Handle);
    cuEventSynchronize: fn(Handle);
    cuEventDestroy_v2: fn(Handle);
    cuGetErrorName: fn(CuResult, *mut *const c_char);
}

impl Library {
    fn check(&self, call: &'static str, code: CuResult) -> Result<(), Error> {
        if code == CUDA_SUCCESS {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: on success the text is a static string of the driver.
        let name = unsafe {
            if (self.cuGetErrorName)(code, &mut text) == CUDA_SUCCESS && !text.is_null() {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            } else {
                "unknown error".to_string()
            }
        };
        Err(Error::Call { call, code, name, out_of_memory: code == CUDA_ERROR_OUT_OF_MEMORY })
    }
}

/// Device 0 with its primary context; work goes to the default stream.
pub struct CudaDevice {
    library: Rc<Library>,
    calls: CallLog,
    device: CuDevice,
    description: String,
    context: Handle,
    module: Handle,
    functions: Vec<Handle>,
}

/// Calls a function of the library, logs it and turns its result into a `Result`.
macro_rules! call {
    ($self:ident, $name:ident($($argument:expr),*)) => {{
        // SAFETY: pointers outlive the call; handles come from the same library.
        let code = $self.calls.time(stringify!($name), || unsafe { ($self.library.$name)($($argument),*) });
        $self.library.check(stringify!($name), code)
    }};
    ($self:ident, $name:ident($($argument:expr),*), $transfer:expr, $bytes:expr) => {{
        // SAFETY: as above.
        let code = $self.calls.time_copy(stringify!($name), $transfer, $bytes, || unsafe {
            ($self.library.$name)($($argument),*)
        });
        $self.library.check(stringify!($name), code)
    }};
}

impl CudaDevice {
    /// Initializes the driver and makes device 0's primary context current in this thread.
    pub fn open(library: Rc<Library>) -> Result<Self, Error> {
        let mut this = Self {
            library,
            calls: CallLog::default(),
            device: 0,
            description: String::new(),
            context: std::ptr::null_mut(),
            module: std::ptr::null_mut(),
            functions: Vec::new(),
        };
        call!(this, cuInit(0))?;
        let mut version = 0;
        call!(this, cuDriverGetVersion(&mut version))?;
        call!(this, cuDeviceGet(&mut this.device, 0))?;
        let mut name = [0 as c_char; 256];
        call!(this, cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, this.device))?;
        name[255] = 0;
        // SAFETY: the array ends with NUL.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy();
        this.description = format!("{name}, CUDA driver {}.{}", version / 1000, version % 1000 / 10);
        call!(this, cuDevicePrimaryCtxRetain(&mut this.context, this.device))?;
        call!(this, cuCtxSetCurrent(this.context))?;
        Ok(this)
    }

    fn unload(&mut self) -> Result<(), Error> {
        self.functions.clear();
        let module = std::mem::replace(&mut self.module, std::ptr::null_mut());
        if module.is_null() {
            return Ok(());
        }
        call!(self, cuModuleUnload(module))
    }
}

impl Device for CudaDevice {
    fn description(&self) -> String {
        self.description.clone()
    }

    fn load(&mut self, program: &'static Program) -> Result<(), Error> {
        self.unload()?;
        let mut log = vec![0u8; BUILD_LOG_BYTES];
        let mut options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The driver reads a size option from the pointer's value itself.
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), BUILD_LOG_BYTES as *mut c_void];
        let image = program.ptx.as_ptr().cast();
        let loaded = call!(self, cuModuleLoadDataEx(&mut self.module, image, 2, options.as_mut_ptr(), values.as_mut_ptr()));
        if let Err(error) = loaded {
            self.module = std::ptr::null_mut();
            let text = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
            return Err(Error::Build {
                program: program.name,
                log: format!("{error}: {}", if text.is_empty() { "no log" } else { text.trim() }),
            });
        }
        for name in program.kernels {
            let name = CString::new(*name).expect("a kernel's name has no NUL");
            let mut function = std::ptr::null_mut();
            call!(self, cuModuleGetFunction(&mut function, self.module, name.as_ptr()))?;
            self.functions.push(function);
        }
        Ok(())
    }

    fn allocate(&mut self, size_bytes: usize) -> Result<Buffer, Error> {
        let mut handle = 0;
        call!(self, cuMemAlloc_v2(&mut handle, size_bytes))?;
        Ok(Buffer { handle, size_bytes })
    }

    fn write(&mut self, buffer: Buffer, bytes: &[u8]) -> Result<(), Error> {
        assert!(bytes.len() <= buffer.size_bytes);
        call!(self, cuMemcpyHtoD_v2(buffer.handle, bytes.as_ptr().cast(), bytes.len()), Transfer::ToDevice, bytes.len())
    }

    fn read(&mut self, buffer: Buffer, bytes: &mut [u8]) -> Result<(), Error> {
        assert!(bytes.len() <= buffer.size_bytes);
        call!(self, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), buffer.handle, bytes.len()), Transfer::FromDevice, bytes.len())
    }

    fn copy(&mut self, source: Buffer, destination: Buffer) -> Result<(), Error> {
        assert!(source.size_bytes <= destination.size_bytes);
        call!(self, cuMemcpyDtoD_v2(destination.handle, source.handle, source.size_bytes), Transfer::OnDevice, source.size_bytes)
    }

    fn launch(&mut self, kernel: usize, grid: Grid, arguments: &[Argument]) -> Result<(), Error> {
        let mut pointers: Vec<*mut c_void> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::Buffer(buffer) => std::ptr::from_ref(&buffer.handle).cast_mut().cast(),
                Argument::Int(value) => std::ptr::from_ref(value).cast_mut().cast(),
                Argument::Float(value) => std::ptr::from_ref(value).cast_mut().cast(),
            })
            .collect();
        let function = self.functions[kernel];
        let [groups_x, groups_y] = grid.groups.map(|groups| groups as c_uint);
        let [size_x, size_y] = grid.group_size.map(|size| size as c_uint);
        let none = std::ptr::null_mut();
        let parameters = pointers.as_mut_ptr();
        call!(self, cuLaunchKernel(function, groups_x, groups_y, 1, size_x, size_y, 1, 0, none, parameters, std::ptr::null_mut()))
    }

    fn finish(&mut self) -> Result<(), Error> {
        call!(self, cuCtxSynchronize())
    }

    fn poll(&mut self) -> Result<(), Error> {
        match call!(self, cuStreamQuery(std::ptr::null_mut())) {
            Err(Error::Call { code: CUDA_ERROR_NOT_READY, .. }) => Ok(()),
            result => result,
        }
    }

    fn mark(&mut self) -> Result<Marker, Error> {
        let mut event = std::ptr::null_mut();
        call!(self, cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING))?;
        call!(self, cuEventRecord(event, std::ptr::null_mut()))?;
        Ok(Marker(event as u64))
    }

    fn wait(&mut self, marker: Marker) -> Result<(), Error> {
        let event = marker.0 as Handle;
        call!(self, cuEventSynchronize(event))?;
        call!(self, cuEventDestroy_v2(event))
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), Error> {
        call!(self, cuMemFree_v2(buffer.handle))
    }

    fn allocate_pinned(&mut self, size_bytes: usize) -> Result<Option<PinnedMemory>, Error> {
        let mut address = std::ptr::null_mut();
        call!(self, cuMemHostAlloc(&mut address, size_bytes, 0))?;
        Ok(Some(PinnedMemory { address: address.cast(), size_bytes }))
    }

    fn free_pinned(&mut self, memory: PinnedMemory) -> Result<(), Error> {
        call!(self, cuMemFreeHost(memory.address.cast()))
    }

    fn close(&mut self) -> Result<(), Error> {
        if self.context.is_null() {
            return Ok(());
        }
        self.unload()?;
        self.context = std::ptr::null_mut();
        call!(self, cuCtxSetCurrent(std::ptr::null_mut()))?;
        call!(self, cuDevicePrimaryCtxRelease_v2(self.device))
    }

    fn calls(&mut self) -> &mut CallLog {
        &mut self.calls
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // A program that ends early reports its own error; there is nothing to add.
        let _ = self.close();
    }
}
