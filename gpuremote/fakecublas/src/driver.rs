//! The driver of the process, which its user has loaded before.

use std::ffi::{c_void, CStr};
use std::sync::OnceLock;

/// Functions of the driver.
pub struct Driver {
    to_host: unsafe extern "C" fn(*mut c_void, u64, usize) -> i32,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize) -> i32,
    synchronize: unsafe extern "C" fn(u64) -> i32,
    current: unsafe extern "C" fn(*mut usize) -> i32,
}

impl Driver {
    /// The driver, if the process has one.
    pub fn get() -> Option<&'static Driver> {
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        DRIVER.get_or_init(|| unsafe { Self::find() }).as_ref()
    }

    unsafe fn find() -> Option<Driver> {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        let find = |name: &CStr| {
            let function = libc::dlsym(library, name.as_ptr());
            (!function.is_null()).then_some(function)
        };
        Some(Driver {
            to_host: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, u64, usize) -> i32>(find(c"cuMemcpyDtoH_v2")?),
            to_device: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64, *const c_void, usize) -> i32>(find(
                c"cuMemcpyHtoD_v2",
            )?),
            synchronize: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64) -> i32>(find(c"cuStreamSynchronize")?),
            current: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut usize) -> i32>(find(c"cuCtxGetCurrent")?),
        })
    }

    /// Whether a context is current.
    pub fn has_context(&self) -> bool {
        let mut context = 0;
        // SAFETY: the pointer is valid meanwhile.
        unsafe { (self.current)(&mut context) == 0 && context != 0 }
    }

    /// Copies values from device memory, after the work of the stream.
    pub fn fetch(&self, stream: u64, from: u64, count: usize) -> Option<Vec<f32>> {
        let mut values = vec![0.0; count];
        // SAFETY: the vector has so many bytes.
        let status = unsafe {
            match (self.synchronize)(stream) {
                0 if count > 0 => (self.to_host)(values.as_mut_ptr().cast(), from, count * size_of::<f32>()),
                status => status,
            }
        };
        (status == 0).then_some(values)
    }

    /// Copies values to device memory, after the work of the stream.
    pub fn put(&self, stream: u64, to: u64, values: &[f32]) -> Option<()> {
        // SAFETY: the slice has so many bytes.
        let status = unsafe {
            match (self.synchronize)(stream) {
                0 if !values.is_empty() => (self.to_device)(to, values.as_ptr().cast(), size_of_val(values)),
                status => status,
            }
        };
        (status == 0).then_some(())
    }
}
