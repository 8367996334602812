//! The fake driver as a client sees it, loaded as a client loads it.

use fakecuda::abi::*;
use libloading::Library;
use std::ffi::{c_void, CString};
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;

/// Calls a function of the driver by name; the types of the arguments are those of the caller.
macro_rules! call {
    ($name:literal, $($type:ty: $argument:expr),* $(,)?) => {{
        let function = unsafe { driver().get::<unsafe extern "C" fn($($type),*) -> CUresult>($name.as_bytes()) }.unwrap();
        unsafe { function($($argument),*) }
    }};
}

/// As [`call`], for a call that must succeed.
macro_rules! ok {
    ($name:literal $($rest:tt)*) => { assert_eq!(name_of(call!($name $($rest)*)), "CUDA_SUCCESS", $name) };
}

const KERNELS: &str = concat!(include_str!("../kernels/known.ptx"), "\0");

fn log_path() -> PathBuf {
    std::env::temp_dir().join(format!("fakecuda-{}.log", std::process::id()))
}

fn driver() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        std::env::set_var("FAKE_CUDA_LOG", log_path());
        std::env::set_var("FAKE_CUDA_MEMORY_MIB", "64");
        let path = std::env::current_exe().unwrap().with_file_name("libfakecuda.so");
        let library = unsafe { Library::new(path) }.unwrap();
        unsafe {
            let allocate = library.get::<unsafe extern "C" fn(*mut u64, usize) -> CUresult>(b"cuMemAlloc_v2").unwrap();
            let mut address = 0;
            assert_eq!(allocate(&mut address, 4), CUDA_ERROR_NOT_INITIALIZED);
            let initialize = library.get::<unsafe extern "C" fn(u32) -> CUresult>(b"cuInit").unwrap();
            assert_eq!(initialize(0), CUDA_SUCCESS);
        }
        library
    })
}

/// A context of the test's own, current in its thread.
struct Context(CUcontext);

impl Context {
    fn new() -> Context {
        let mut handle = 0;
        ok!("cuCtxCreate_v2", *mut CUcontext: &mut handle, u32: 0, i32: 0);
        Context(handle)
    }

    fn kernel(&self, name: &str) -> CUfunction {
        let (mut module, mut function) = (0, 0);
        ok!("cuModuleLoadData", *mut CUmodule: &mut module, *const c_void: KERNELS.as_ptr().cast());
        let name = CString::new(name).unwrap();
        ok!("cuModuleGetFunction", *mut CUfunction: &mut function, CUmodule: module, *const i8: name.as_ptr());
        function
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        call!("cuCtxDestroy_v2", CUcontext: self.0);
    }
}

fn allocate(size_bytes: usize) -> u64 {
    let mut address = 0;
    ok!("cuMemAlloc_v2", *mut u64: &mut address, usize: size_bytes);
    address
}

fn to_device<T: Copy>(values: &[T]) -> u64 {
    let address = allocate(size_of_val(values));
    ok!("cuMemcpyHtoD_v2", u64: address, *const c_void: values.as_ptr().cast(), usize: size_of_val(values));
    address
}

fn to_host<T: Copy + Default>(address: u64, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    let size = size_of_val(values.as_slice());
    ok!("cuMemcpyDtoH_v2", *mut c_void: values.as_mut_ptr().cast(), u64: address, usize: size);
    values
}

fn launch(function: CUfunction, blocks: u32, threads: u32, stream: CUstream, parameters: &[*const c_void]) -> CUresult {
    let none = ptr::null_mut::<*mut c_void>();
    call!("cuLaunchKernel", CUfunction: function, u32: blocks, u32: 1, u32: 1, u32: threads, u32: 1, u32: 1, u32: 0,
        CUstream: stream, *const *const c_void: parameters.as_ptr(), *mut *mut c_void: none)
}

fn address_of<T>(value: &T) -> *const c_void {
    ptr::from_ref(value).cast()
}

#[test]
fn a_kernel_adds_vectors_with_both_forms_of_parameters() {
    let context = Context::new();
    let function = context.kernel("vector_add");
    let (a, b) = (to_device(&[1.0f32, 2.0, 3.0]), to_device(&[10.0f32, 20.0, 30.0]));
    let (out, n) = (allocate(12), 3u32);
    let parameters = [address_of(&out), address_of(&a), address_of(&b), address_of(&n)];
    assert_eq!(launch(function, 1, 32, 0, &parameters), CUDA_SUCCESS);
    assert_eq!(to_host::<f32>(out, 3), [11.0, 22.0, 33.0]);

    #[repr(C)]
    struct Packed(u64, u64, u64, u32);
    let (packed, size) = (Packed(out, out, b, n), 28usize);
    let extra = [1, address_of(&packed) as usize, 2, address_of(&size) as usize, 0];
    let none = ptr::null::<*const c_void>();
    ok!("cuLaunchKernel", CUfunction: function, u32: 1, u32: 1, u32: 1, u32: 2, u32: 1, u32: 1, u32: 0, CUstream: 0,
        *const *const c_void: none, *const usize: extra.as_ptr());
    // Two threads only, so the third element stays.
    assert_eq!(to_host::<f32>(out, 3), [21.0, 42.0, 33.0]);
}

#[test]
fn parameters_have_the_places_of_the_image() {
    let context = Context::new();
    let function = context.kernel("unknown");
    let places: Vec<(usize, usize)> = (0..3)
        .map(|index| {
            let (mut offset, mut size) = (0, 0);
            ok!("cuFuncGetParamInfo", CUfunction: function, usize: index, *mut usize: &mut offset, *mut usize: &mut size);
            (offset, size)
        })
        .collect();
    assert_eq!(places, [(0, 1), (8, 24), (32, 4)]);
    let mut offset = 0;
    let beyond = call!("cuFuncGetParamInfo", CUfunction: function, usize: 3, *mut usize: &mut offset, usize: 0);
    assert_eq!(beyond, CUDA_ERROR_INVALID_VALUE);
    let (small, structure, last) = (1u8, [0u64; 3], 2u32);
    let parameters = [address_of(&small), address_of(&structure), address_of(&last)];
    assert_eq!(launch(function, 1, 1, 0, &parameters), CUDA_ERROR_NOT_SUPPORTED);
}

#[test]
fn faults_of_a_client_give_the_errors_of_the_driver() {
    let context = Context::new();
    let address = allocate(100);
    let mut byte = [0u8; 101];
    let read =
        |from: u64, size: usize, byte: &mut [u8]| call!("cuMemcpyDtoH_v2", *mut c_void: byte.as_mut_ptr().cast(), u64: from, usize: size);
    assert_eq!(read(address, 100, &mut byte), CUDA_SUCCESS);
    assert_eq!(read(address, 101, &mut byte), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(read(address + 100, 1, &mut byte), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(call!("cuMemFree_v2", u64: address + 4), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(call!("cuMemFree_v2", u64: address), CUDA_SUCCESS);
    assert_eq!(call!("cuMemFree_v2", u64: address), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(read(address, 1, &mut byte), CUDA_ERROR_INVALID_VALUE);
    let mut address = 0u64;
    assert_eq!(call!("cuMemAlloc_v2", *mut u64: &mut address, usize: 65 << 20), CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(call!("cuMemAlloc_v2", *mut u64: &mut address, usize: 0), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(call!("cuStreamSynchronize", CUstream: context.0), CUDA_ERROR_INVALID_HANDLE);
    let mut device = 0;
    assert_eq!(call!("cuDeviceGet", *mut i32: &mut device, i32: 7), CUDA_ERROR_INVALID_DEVICE);
    let function = context.kernel("empty");
    assert_eq!(launch(function, 1, 1025, 0, &[]), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(launch(function, 0, 1, 0, &[]), CUDA_ERROR_INVALID_VALUE);
    let text = c"no image".as_ptr();
    let mut module = 0;
    assert_eq!(call!("cuModuleLoadData", *mut CUmodule: &mut module, *const i8: text), CUDA_ERROR_INVALID_IMAGE);
    let other = Context::new();
    assert_eq!(launch(function, 1, 1, 0, &[]), CUDA_ERROR_INVALID_HANDLE);
    drop(other);
    ok!("cuCtxPopCurrent_v2", usize: 0);
    assert_eq!(call!("cuCtxSynchronize",), CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn an_error_of_a_kernel_stays_with_its_context() {
    let context = Context::new();
    let function = context.kernel("fail");
    assert_eq!(launch(function, 1, 1, 0, &[]), CUDA_SUCCESS);
    assert_eq!(call!("cuCtxSynchronize",), CUDA_ERROR_ILLEGAL_ADDRESS);
    let mut address = 0u64;
    assert_eq!(call!("cuMemAlloc_v2", *mut u64: &mut address, usize: 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    drop(context);
    let _fresh = Context::new();
    allocate(4);
}

#[test]
fn streams_run_behind_the_caller_and_in_order() {
    let context = Context::new();
    let (spin, fill) = (context.kernel("spin"), context.kernel("fill"));
    let (mut first, mut second, mut start, mut end) = (0, 0, 0, 0);
    ok!("cuStreamCreate", *mut CUstream: &mut first, u32: 1);
    ok!("cuStreamCreate", *mut CUstream: &mut second, u32: 1);
    ok!("cuEventCreate", *mut CUevent: &mut start, u32: 0);
    ok!("cuEventCreate", *mut CUevent: &mut end, u32: 0);
    let (address, value, n, microseconds) = (allocate(16), 7u32, 4u32, 50_000u32);
    ok!("cuEventRecord", CUevent: start, CUstream: first);
    assert_eq!(launch(spin, 1, 1, first, &[address_of(&microseconds)]), CUDA_SUCCESS);
    assert_eq!(launch(fill, 1, 4, first, &[address_of(&address), address_of(&value), address_of(&n)]), CUDA_SUCCESS);
    ok!("cuEventRecord", CUevent: end, CUstream: first);
    assert_eq!(call!("cuStreamQuery", CUstream: first), CUDA_ERROR_NOT_READY);
    let mut milliseconds = 0.0f32;
    let early = call!("cuEventElapsedTime", *mut f32: &mut milliseconds, CUevent: start, CUevent: end);
    assert_eq!(early, CUDA_ERROR_NOT_READY);

    let mut pinned: *mut u32 = ptr::null_mut();
    ok!("cuMemAllocHost_v2", *mut *mut u32: &mut pinned, usize: 16);
    ok!("cuStreamWaitEvent", CUstream: second, CUevent: end, u32: 0);
    ok!("cuMemcpyDtoHAsync_v2", *mut u32: pinned, u64: address, usize: 16, CUstream: second);
    ok!("cuStreamSynchronize", CUstream: second);
    assert_eq!(unsafe { std::slice::from_raw_parts(pinned, 4) }, [7; 4]);
    ok!("cuEventElapsedTime", *mut f32: &mut milliseconds, CUevent: start, CUevent: end);
    assert!((50.0..5000.0).contains(&milliseconds), "{milliseconds} ms");
    ok!("cuMemFreeHost", *mut u32: pinned);
    ok!("cuStreamDestroy_v2", CUstream: second);
    assert_eq!(call!("cuStreamQuery", CUstream: second), CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn variables_of_a_module_are_initialized_and_used() {
    let _context = Context::new();
    let (mut module, mut function, mut address, mut size) = (0, 0, 0u64, 0usize);
    ok!("cuModuleLoadData", *mut CUmodule: &mut module, *const c_void: KERNELS.as_ptr().cast());
    ok!("cuModuleGetGlobal_v2", *mut u64: &mut address, *mut usize: &mut size, CUmodule: module, *const i8: c"table".as_ptr());
    assert_eq!((size, to_host::<u32>(address, 4)), (16, vec![1, 2, 3, 4]));
    let name = c"scale_by_coefficient";
    ok!("cuModuleGetFunction", *mut CUfunction: &mut function, CUmodule: module, *const i8: name.as_ptr());
    let (x, n) = (to_device(&[1.0f32, 2.0]), 2u32);
    assert_eq!(launch(function, 1, 2, 0, &[address_of(&x), address_of(&n)]), CUDA_SUCCESS);
    assert_eq!(to_host::<f32>(x, 2), [3.0, 6.0]);
    let missing = c"missing".as_ptr();
    let found = call!("cuModuleGetFunction", *mut CUfunction: &mut function, CUmodule: module, *const i8: missing);
    assert_eq!(found, CUDA_ERROR_NOT_FOUND);
    ok!("cuModuleUnload", CUmodule: module);
    assert_eq!(launch(function, 1, 1, 0, &[]), CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn a_kernel_of_a_library_runs_on_each_context() {
    let (mut library, mut kernel, none) = (0usize, 0usize, ptr::null_mut::<c_void>());
    ok!("cuLibraryLoadData", *mut usize: &mut library, *const u8: KERNELS.as_ptr(), *mut c_void: none, *mut c_void: none, u32: 0,
        *mut c_void: none, *mut c_void: none, u32: 0);
    ok!("cuLibraryGetKernel", *mut usize: &mut kernel, usize: library, *const i8: c"increment".as_ptr());
    for _ in 0..2 {
        let _context = Context::new();
        let (x, n) = (to_device(&[41u32]), 1u32);
        assert_eq!(launch(kernel, 1, 1, 0, &[address_of(&x), address_of(&n)]), CUDA_SUCCESS);
        assert_eq!(to_host::<u32>(x, 1), [42]);
    }
    let _context = Context::new();
    ok!("cuLibraryUnload", usize: library);
    assert_eq!(launch(kernel, 1, 1, 0, &[]), CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn the_log_names_calls_arguments_and_results() {
    let _context = Context::new();
    let mut address = 0u64;
    call!("cuMemAlloc_v2", *mut u64: &mut address, usize: 4_321_000_000);
    let log = std::fs::read_to_string(log_path()).unwrap();
    let line = log.lines().find(|line| line.contains("4321000000")).unwrap();
    assert!(line.starts_with("cuMemAlloc_v2(dptr=0x"), "{line}");
    assert!(line.ends_with("bytesize=4321000000) = CUDA_ERROR_OUT_OF_MEMORY"), "{line}");
}

#[test]
fn an_entry_point_is_the_newest_form() {
    let (mut found, mut status) = (ptr::null::<c_void>(), -1);
    ok!("cuGetProcAddress_v2", *const i8: c"cuMemAlloc".as_ptr(), *mut *const c_void: &mut found, i32: 13_000, u64: 0,
        *mut i32: &mut status);
    let direct = unsafe { driver().get::<*const c_void>(b"cuMemAlloc_v2") }.unwrap();
    assert_eq!((found, status), (*direct, 0));
}
