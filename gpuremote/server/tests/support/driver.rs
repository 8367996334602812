//! CUDA's driver API, as programs see it through the front end.

use std::ffi::{c_char, c_void, CString};

use libloading::{Library, Symbol};

/// PTX of programs that the fake driver knows.
pub const PROGRAMS: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
    .visible .entry vector_add(.param .u64 out, .param .u64 a, .param .u64 b, .param .u32 n)\n{\n ret;\n}\n\
    .visible .entry scale(.param .u64 x, .param .f32 factor, .param .u32 n)\n{\n ret;\n}\n\
    .visible .entry increment(.param .u64 x, .param .u32 n)\n{\n ret;\n}\n\
    .visible .entry spin(.param .u32 microseconds)\n{\n ret;\n}\n\
    .visible .entry fail()\n{\n ret;\n}\n";

/// The driver API.
pub struct Driver(Library);

/// Calls a function of the driver: `cuda!(driver, cuMemAlloc_v2(&mut address: *mut u64, 4: usize))`.
#[macro_export]
#[allow(clippy::macro_metavars_in_unsafe)]
macro_rules! cuda {
    ($driver:expr, $name:ident($($value:expr => $type:ty),* $(,)?)) => {{
        type Function = unsafe extern "C" fn($($type),*) -> i32;
        let function: Function = unsafe { $driver.function(stringify!($name)) };
        unsafe { function($($value),*) }
    }};
}

impl Driver {
    pub fn open() -> Self {
        Driver(unsafe { Library::new(super::front_end()) }.expect("the front end loads"))
    }

    /// A function by name.
    pub unsafe fn function<T: Copy>(&self, name: &str) -> T {
        let symbol: Symbol<'_, T> = self.0.get(CString::new(name).unwrap().as_bytes_with_nul()).unwrap_or_else(|_| panic!("no {name}"));
        *symbol
    }

    /// Initializes the driver, and makes the first device's context current.
    pub fn begin(&self) -> Result<(), i32> {
        let (mut device, mut context) = (0, 0);
        for status in [
            cuda!(self, cuInit(0 => u32)),
            cuda!(self, cuDeviceGet(&mut device => *mut i32, 0 => i32)),
            cuda!(self, cuDevicePrimaryCtxRetain(&mut context => *mut u64, device => i32)),
            cuda!(self, cuCtxSetCurrent(context => u64)),
        ] {
            if status != 0 {
                return Err(status);
            }
        }
        Ok(())
    }

    /// A program of the module.
    pub fn program(&self, name: &str) -> u64 {
        let image = CString::new(PROGRAMS).unwrap();
        let (mut module, mut function) = (0, 0);
        assert_eq!(cuda!(self, cuModuleLoadData(&mut module => *mut u64, image.as_ptr() => *const c_char)), 0);
        let name = CString::new(name).unwrap();
        let status = cuda!(self, cuModuleGetFunction(&mut function => *mut u64, module => u64, name.as_ptr() => *const c_char));
        assert_eq!(status, 0, "{name:?}");
        function
    }

    pub fn allocate(&self, bytes: usize) -> u64 {
        let mut address = 0;
        assert_eq!(cuda!(self, cuMemAlloc_v2(&mut address => *mut u64, bytes => usize)), 0, "{bytes} bytes");
        address
    }

    pub fn write(&self, to: u64, values: &[f32]) {
        assert_eq!(cuda!(self, cuMemcpyHtoD_v2(to => u64, values.as_ptr() => *const f32, size_of_val(values) => usize)), 0);
    }

    pub fn read(&self, from: u64, count: usize) -> Vec<f32> {
        let mut values = vec![f32::NAN; count];
        assert_eq!(cuda!(self, cuMemcpyDtoH_v2(values.as_mut_ptr() => *mut f32, from => u64, 4 * count => usize)), 0);
        values
    }

    /// Launches with 256 threads in each block.
    pub fn launch(&self, function: u64, count: usize, stream: u64, parameters: &[*const c_void]) -> i32 {
        cuda!(self, cuLaunchKernel(function => u64, count.div_ceil(256) as u32 => u32, 1 => u32, 1 => u32, 256 => u32, 1 => u32, 1 => u32,
            0 => u32, stream => u64, parameters.as_ptr() => *const *const c_void, std::ptr::null() => *const c_void))
    }
}
