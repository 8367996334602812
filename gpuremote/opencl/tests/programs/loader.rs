//! The part of OpenCL that the programs use, from the ICD loader.

use std::ffi::{c_void, CString};

/// An object of OpenCL.
pub type Object = *mut c_void;
/// A function that an event calls.
pub type EventCallback = unsafe extern "C" fn(Object, i32, *mut c_void);

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)+) => {
        /// The loader's functions.
        #[allow(non_snake_case)]
        pub struct Functions {
            _library: libloading::Library,
            $(pub $name: unsafe extern "C" fn($($argument),*) -> $result,)+
        }

        impl Functions {
            fn load() -> Self {
                // SAFETY: OpenCL's loader has these functions.
                unsafe {
                    let library = libloading::Library::new("libOpenCL.so.1").expect("the OpenCL loader is installed");
                    Functions {
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes()).expect(stringify!($name)),)+
                        _library: library,
                    }
                }
            }
        }
    };
}

type Events = *const Object;
type Event = *mut Object;
type Sizes = *const usize;

functions! {
    clGetPlatformIDs: fn(u32, *mut Object, *mut u32) -> i32;
    clGetDeviceIDs: fn(Object, u64, u32, *mut Object, *mut u32) -> i32;
    clGetDeviceInfo: fn(Object, u32, usize, *mut c_void, *mut usize) -> i32;
    clCreateContext: fn(*const isize, u32, *const Object, *const c_void, *mut c_void, *mut i32) -> Object;
    clReleaseContext: fn(Object) -> i32;
    clCreateCommandQueue: fn(Object, Object, u64, *mut i32) -> Object;
    clReleaseCommandQueue: fn(Object) -> i32;
    clCreateBuffer: fn(Object, u64, usize, *const c_void, *mut i32) -> Object;
    clCreateSubBuffer: fn(Object, u64, u32, Sizes, *mut i32) -> Object;
    clReleaseMemObject: fn(Object) -> i32;
    clSetMemObjectDestructorCallback: fn(Object, unsafe extern "C" fn(Object, *mut c_void), *mut c_void) -> i32;
    clCreateImage: fn(Object, u64, *const c_void, *const c_void, *const c_void, *mut i32) -> Object;
    clCreateProgramWithSource: fn(Object, u32, *const *const u8, Sizes, *mut i32) -> Object;
    clCreateProgramWithBinary: fn(Object, u32, *const Object, Sizes, *const *const u8, *mut i32, *mut i32) -> Object;
    clBuildProgram: fn(Object, u32, *const Object, *const i8, *const c_void, *mut c_void) -> i32;
    clCompileProgram: fn(Object, u32, *const Object, *const i8, u32, *const Object, *const *const i8, *const c_void, *mut c_void) -> i32;
    clLinkProgram: fn(Object, u32, *const Object, *const i8, u32, *const Object, *const c_void, *mut c_void, *mut i32) -> Object;
    clGetProgramInfo: fn(Object, u32, usize, *mut c_void, *mut usize) -> i32;
    clGetProgramBuildInfo: fn(Object, Object, u32, usize, *mut c_void, *mut usize) -> i32;
    clReleaseProgram: fn(Object) -> i32;
    clCreateKernel: fn(Object, *const i8, *mut i32) -> Object;
    clSetKernelArg: fn(Object, u32, usize, *const c_void) -> i32;
    clReleaseKernel: fn(Object) -> i32;
    clEnqueueNDRangeKernel: fn(Object, Object, u32, Sizes, Sizes, Sizes, u32, Events, Event) -> i32;
    clEnqueueReadBuffer: fn(Object, Object, u32, usize, usize, *mut c_void, u32, Events, Event) -> i32;
    clEnqueueWriteBuffer: fn(Object, Object, u32, usize, usize, *const c_void, u32, Events, Event) -> i32;
    clEnqueueReadBufferRect: fn(
        Object, Object, u32, Sizes, Sizes, Sizes, usize, usize, usize, usize, *mut c_void, u32, Events, Event
    ) -> i32;
    clEnqueueWriteBufferRect: fn(
        Object, Object, u32, Sizes, Sizes, Sizes, usize, usize, usize, usize, *const c_void, u32, Events, Event
    ) -> i32;
    clEnqueueCopyBuffer: fn(Object, Object, Object, usize, usize, usize, u32, Events, Event) -> i32;
    clEnqueueFillBuffer: fn(Object, Object, *const c_void, usize, usize, usize, u32, Events, Event) -> i32;
    clEnqueueReadImage: fn(Object, Object, u32, Sizes, Sizes, usize, usize, *mut c_void, u32, Events, Event) -> i32;
    clEnqueueMapBuffer: fn(Object, Object, u32, u64, usize, usize, u32, Events, Event, *mut i32) -> *mut u8;
    clEnqueueMapImage: fn(
        Object, Object, u32, u64, Sizes, Sizes, *mut usize, *mut usize, u32, Events, Event, *mut i32
    ) -> *mut u8;
    clEnqueueUnmapMemObject: fn(Object, Object, *mut u8, u32, Events, Event) -> i32;
    clCreateUserEvent: fn(Object, *mut i32) -> Object;
    clSetUserEventStatus: fn(Object, i32) -> i32;
    clWaitForEvents: fn(u32, Events) -> i32;
    clGetEventInfo: fn(Object, u32, usize, *mut c_void, *mut usize) -> i32;
    clGetEventProfilingInfo: fn(Object, u32, usize, *mut c_void, *mut usize) -> i32;
    clSetEventCallback: fn(Object, i32, EventCallback, *mut c_void) -> i32;
    clFlush: fn(Object) -> i32;
    clFinish: fn(Object) -> i32;
}

/// Succeeds when a call did.
#[track_caller]
pub fn ok(status: i32) {
    assert_eq!(status, 0, "a call failed");
}

/// The object of a call that creates one.
#[track_caller]
pub fn new<T>(create: impl FnOnce(*mut i32) -> *mut T) -> *mut T {
    let mut status = 1;
    let object = create(&mut status);
    assert_eq!(status, 0, "a call failed");
    assert!(!object.is_null());
    object
}

/// CL_QUEUE_PROFILING_ENABLE.
const PROFILES: u64 = 2;

/// The first device, with a context and a queue.
pub struct Device {
    pub cl: Functions,
    pub device: Object,
    pub context: Object,
    pub queue: Object,
}

// SAFETY: objects of OpenCL may be used by all threads.
unsafe impl Sync for Device {}

impl Device {
    pub fn open() -> Self {
        let cl = Functions::load();
        let (mut platform, mut device, none) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: pointers outlive the calls.
        unsafe {
            ok((cl.clGetPlatformIDs)(1, &mut platform, std::ptr::null_mut()));
            ok((cl.clGetDeviceIDs)(platform, 0xffff_ffff, 1, &mut device, std::ptr::null_mut()));
            let context = new(|status| (cl.clCreateContext)(std::ptr::null(), 1, &device, std::ptr::null(), none, status));
            let queue = new(|status| (cl.clCreateCommandQueue)(context, device, PROFILES, status));
            Device { cl, device, context, queue }
        }
    }

    /// A buffer with these numbers.
    pub fn buffer(&self, values: &[u32]) -> Object {
        /// CL_MEM_READ_WRITE and CL_MEM_COPY_HOST_PTR.
        const FLAGS: u64 = 1 | 32;
        // SAFETY: so many bytes are copied.
        unsafe { new(|status| (self.cl.clCreateBuffer)(self.context, FLAGS, size_of_val(values), values.as_ptr().cast(), status)) }
    }

    /// A program of this source.
    pub fn program(&self, source: &str) -> Object {
        let (text, length) = (source.as_ptr(), source.len());
        // SAFETY: the text is copied.
        unsafe { new(|status| (self.cl.clCreateProgramWithSource)(self.context, 1, &text, &length, status)) }
    }

    /// A kernel of this source.
    pub fn kernel(&self, source: &str, name: &str) -> Object {
        let program = self.program(source);
        let name = CString::new(name).expect("a name has no zero byte");
        // SAFETY: pointers outlive the calls.
        unsafe {
            ok((self.cl.clBuildProgram)(program, 0, std::ptr::null(), std::ptr::null(), std::ptr::null(), std::ptr::null_mut()));
            let kernel = new(|status| (self.cl.clCreateKernel)(program, name.as_ptr(), status));
            ok((self.cl.clReleaseProgram)(program));
            kernel
        }
    }

    /// Sets an argument.
    pub fn set<T>(&self, kernel: Object, index: u32, value: &T) {
        // SAFETY: so many bytes are copied.
        ok(unsafe { (self.cl.clSetKernelArg)(kernel, index, size_of::<T>(), std::ptr::from_ref(value).cast()) });
    }

    /// Launches a kernel on so many items.
    pub fn launch(&self, kernel: Object, items: usize, waits: &[Object], event: Event) -> i32 {
        let list = if waits.is_empty() { std::ptr::null() } else { waits.as_ptr() };
        let none = std::ptr::null();
        // SAFETY: pointers outlive the call.
        unsafe { (self.cl.clEnqueueNDRangeKernel)(self.queue, kernel, 1, none, &items, none, waits.len() as u32, list, event) }
    }

    /// Reads so many numbers.
    pub fn read(&self, buffer: Object, count: usize) -> Vec<u32> {
        let mut values = vec![0u32; count];
        // SAFETY: so many bytes are written.
        unsafe {
            let into = values.as_mut_ptr().cast();
            ok((self.cl.clEnqueueReadBuffer)(self.queue, buffer, 1, 0, 4 * count, into, 0, std::ptr::null(), std::ptr::null_mut()));
        }
        values
    }
}
