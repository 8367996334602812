//! The runtime library over the fake driver, called as programs that nvcc compiled call it.

use libloading::Library;
use std::ffi::{c_char, c_void, CStr};
use std::ptr;
use std::sync::OnceLock;

/// Calls a function of the runtime by name; the types of the arguments are those of the caller.
macro_rules! call {
    ($name:literal $(, $type:ty: $argument:expr)* $(,)?) => {{
        let function = unsafe { runtime().get::<unsafe extern "C" fn($($type),*) -> i32>($name.as_bytes()) }.unwrap();
        unsafe { function($($argument),*) }
    }};
}

/// As [`call`], for a call that must succeed.
macro_rules! ok {
    ($name:literal $($rest:tt)*) => { assert_eq!(error_name(call!($name $($rest)*)), "cudaSuccess", $name) };
}

const KERNELS: &str = concat!(include_str!("../../fakecuda/kernels/known.ptx"), "\0");

const INVALID_VALUE: i32 = 1;
const MEMORY_ALLOCATION: i32 = 2;
const INVALID_SYMBOL: i32 = 13;
const INVALID_MEMCPY_DIRECTION: i32 = 21;
const INVALID_DEVICE_FUNCTION: i32 = 98;
const INVALID_DEVICE: i32 = 101;
const NOT_READY: i32 = 600;
const ILLEGAL_ADDRESS: i32 = 700;
const NOT_SUPPORTED: i32 = 801;
const TO_DEVICE: i32 = 1;
const TO_HOST: i32 = 2;
const DEFAULT_KIND: i32 = 4;

#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    image: *const c_void,
    prelinked: *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Dim3(u32, u32, u32);

/// Addresses that stand for the stubs and shadows of a program.
static STUBS: [u8; 16] = [0; 16];

fn stub(name: &str) -> *const c_void {
    let index = NAMES.iter().position(|known| known.to_str() == Ok(name)).unwrap();
    ptr::from_ref(&STUBS[index]).cast()
}

const NAMES: [&CStr; 9] = [c"empty", c"vector_add", c"scale", c"fill", c"increment", c"scale_by_coefficient", c"spin", c"fail", c"missing"];
const VARIABLES: [(&CStr, usize, usize); 2] = [(c"coefficient", 12, 4), (c"table", 13, 16)];

/// One context serves all tests, and an illegal address ends it, so that test runs in a process of its own.
const FAILING: &str = "CUDART_TEST_FAILING";

fn runtime() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let deps = std::env::current_exe().unwrap();
        let directory = std::env::temp_dir().join(format!("cudart-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let driver = fakecuda::install(&directory).unwrap();
        std::env::set_var("FAKE_CUDA_DEVICES", "2");
        // The runtime's dlopen finds a loaded library by its soname.
        std::mem::forget(unsafe { Library::new(&driver) }.unwrap());
        let library = unsafe { Library::new(deps.with_file_name("libcudart.so")) }.unwrap();
        register(&library);
        library
    })
}

fn register(library: &Library) {
    let wrapper = Box::leak(Box::new(Wrapper { magic: 0x4662_43B1, version: 1, image: KERNELS.as_ptr().cast(), prelinked: ptr::null() }));
    unsafe {
        let binary = library.get::<unsafe extern "C" fn(*mut Wrapper) -> *mut c_void>(b"__cudaRegisterFatBinary").unwrap()(wrapper);
        type AddKernel = unsafe extern "C" fn(*mut c_void, *const u8, *const c_char, *const c_char, i32, usize, usize, usize, usize, usize);
        let add_kernel = library.get::<AddKernel>(b"__cudaRegisterFunction").unwrap();
        for (index, name) in NAMES.iter().enumerate() {
            add_kernel(binary, &STUBS[index], name.as_ptr(), name.as_ptr(), -1, 0, 0, 0, 0, 0);
        }
        type AddVariable = unsafe extern "C" fn(*mut c_void, *const u8, *const c_char, *const c_char, i32, usize, i32, i32);
        let add_variable = library.get::<AddVariable>(b"__cudaRegisterVar").unwrap();
        for (name, index, size) in VARIABLES {
            add_variable(binary, &STUBS[index], name.as_ptr(), name.as_ptr(), 0, size, 0, 0);
        }
        library.get::<unsafe extern "C" fn(*mut c_void)>(b"__cudaRegisterFatBinaryEnd").unwrap()(binary);
    }
}

fn error_name(code: i32) -> String {
    let name = unsafe { runtime().get::<unsafe extern "C" fn(i32) -> *const c_char>(b"cudaGetErrorName") }.unwrap();
    unsafe { CStr::from_ptr(name(code)) }.to_str().unwrap().to_string()
}

fn allocate(size_bytes: usize) -> u64 {
    let mut address = 0u64;
    ok!("cudaMalloc", *mut u64: &mut address, usize: size_bytes);
    address
}

fn to_device<T>(values: &[T]) -> u64 {
    let address = allocate(size_of_val(values));
    ok!("cudaMemcpy", u64: address, *const T: values.as_ptr(), usize: size_of_val(values), i32: TO_DEVICE);
    address
}

fn to_host<T: Copy + Default>(address: u64, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    let size = size_of_val(values.as_slice());
    ok!("cudaMemcpy", *mut T: values.as_mut_ptr(), u64: address, usize: size, i32: TO_HOST);
    values
}

/// Launches as generated code does: push and pop the configuration, then launch by the kernel's handle.
fn launch(name: &str, blocks: u32, threads: u32, stream: usize, parameters: &[*const c_void]) -> i32 {
    let mut kernel = 0usize;
    ok!("__cudaGetKernel", *mut usize: &mut kernel, *const c_void: stub(name));
    let (grid, block) = (Dim3(blocks, 1, 1), Dim3(threads, 1, 1));
    ok!("__cudaPushCallConfiguration", Dim3: grid, Dim3: block, usize: 0, usize: stream);
    let (mut grid, mut block, mut shared, mut stream) = (Dim3(0, 0, 0), Dim3(0, 0, 0), 1usize, 0usize);
    ok!("__cudaPopCallConfiguration", *mut Dim3: &mut grid, *mut Dim3: &mut block, *mut usize: &mut shared, *mut usize: &mut stream);
    call!("__cudaLaunchKernel", usize: kernel, Dim3: grid, Dim3: block, *const *const c_void: parameters.as_ptr(), usize: shared,
        usize: stream)
}

fn address_of<T>(value: &T) -> *const c_void {
    ptr::from_ref(value).cast()
}

#[test]
fn a_registered_kernel_runs() {
    let (a, b) = (to_device(&[1.0f32, 2.0, 3.0]), to_device(&[10.0f32, 20.0, 30.0]));
    let (out, n) = (allocate(12), 3u32);
    assert_eq!(launch("vector_add", 1, 64, 0, &[address_of(&out), address_of(&a), address_of(&b), address_of(&n)]), 0);
    assert_eq!(to_host::<f32>(out, 3), [11.0, 22.0, 33.0]);
    ok!("cudaFree", u64: out);
    assert_eq!(call!("cudaFree", u64: out), INVALID_VALUE);
    ok!("cudaFree", u64: 0);
}

#[test]
fn an_invalid_launch_is_the_last_error_until_it_is_taken() {
    assert_eq!(launch("empty", 1, 1025, 0, &[]), INVALID_VALUE);
    assert_eq!(call!("cudaPeekAtLastError"), INVALID_VALUE);
    std::thread::spawn(|| assert_eq!(call!("cudaPeekAtLastError"), 0)).join().unwrap();
    assert_eq!(call!("cudaGetLastError"), INVALID_VALUE);
    assert_eq!(call!("cudaGetLastError"), 0);
    assert_eq!(launch("empty", 0, 1, 0, &[]), INVALID_VALUE);
    assert_eq!(launch("missing", 1, 1, 0, &[]), INVALID_DEVICE_FUNCTION);
    let (one, shared) = (Dim3(1, 1, 1), 64usize << 10);
    let launch = |shared| call!("cudaLaunchKernel", *const c_void: stub("empty"), Dim3: one, Dim3: one, usize: 0, usize: shared, usize: 0);
    assert_eq!(launch(shared), INVALID_VALUE);
    ok!("cudaFuncSetAttribute", *const c_void: stub("empty"), i32: 8, i32: shared as i32);
    assert_eq!(launch(shared), 0);
}

#[test]
fn variables_are_copied_by_their_shadows() {
    let shadow = |index: usize| ptr::from_ref(&STUBS[index]);
    let (mut table, values) = ([0u32; 4], [7u32, 8]);
    ok!("cudaMemcpyToSymbol", *const u8: shadow(13), *const u32: values.as_ptr(), usize: 8, usize: 4, i32: TO_DEVICE);
    ok!("cudaMemcpyFromSymbol", *mut u32: table.as_mut_ptr(), *const u8: shadow(13), usize: 16, usize: 0, i32: TO_HOST);
    assert_eq!(table, [1, 7, 8, 4]);
    let (mut address, mut size) = (0u64, 0usize);
    ok!("cudaGetSymbolAddress", *mut u64: &mut address, *const u8: shadow(13));
    ok!("cudaGetSymbolSize", *mut usize: &mut size, *const u8: shadow(13));
    assert_eq!((size, to_host::<u32>(address, 4)), (16, vec![1, 7, 8, 4]));
    let beyond = call!("cudaMemcpyToSymbol", *const u8: shadow(13), *const u32: values.as_ptr(), usize: 8, usize: 12, i32: TO_DEVICE);
    assert_eq!(beyond, INVALID_VALUE);
    assert_eq!(call!("cudaGetSymbolSize", *mut usize: &mut size, *const u8: shadow(15)), INVALID_SYMBOL);
    let (x, n) = (to_device(&[2.0f32]), 1u32);
    assert_eq!(launch("scale_by_coefficient", 1, 1, 0, &[address_of(&x), address_of(&n)]), 0);
    assert_eq!(to_host::<f32>(x, 1), [6.0]);
}

#[test]
fn streams_and_events_order_work() {
    let (mut stream, mut start, mut end, mut milliseconds) = (0usize, 0usize, 0usize, 0.0f32);
    ok!("cudaStreamCreateWithFlags", *mut usize: &mut stream, u32: 1);
    ok!("cudaEventCreate", *mut usize: &mut start);
    ok!("cudaEventCreateWithFlags", *mut usize: &mut end, u32: 0);
    let microseconds = 30_000u32;
    ok!("cudaEventRecord", usize: start, usize: stream);
    assert_eq!(launch("spin", 1, 1, stream, &[address_of(&microseconds)]), 0);
    ok!("cudaEventRecord", usize: end, usize: stream);
    assert_eq!(call!("cudaStreamQuery", usize: stream), NOT_READY);
    ok!("cudaEventSynchronize", usize: end);
    ok!("cudaEventElapsedTime", *mut f32: &mut milliseconds, usize: start, usize: end);
    assert!((30.0..3000.0).contains(&milliseconds), "{milliseconds} ms");
    ok!("cudaStreamDestroy", usize: stream);
    ok!("cudaEventDestroy", usize: end);
}

#[test]
fn copies_follow_their_kind_and_pitch() {
    let rows: Vec<u8> = (0..12).collect();
    let (mut device, mut pitch) = (0u64, 0usize);
    ok!("cudaMallocPitch", *mut u64: &mut device, *mut usize: &mut pitch, usize: 3, usize: 4);
    assert!(pitch >= 3);
    ok!("cudaMemcpy2D", u64: device, usize: pitch, *const u8: rows.as_ptr(), usize: 3, usize: 3, usize: 4, i32: TO_DEVICE);
    ok!("cudaMemset2D", u64: device, usize: pitch, i32: 0xFF, usize: 1, usize: 2);
    let mut back = [0u8; 12];
    ok!("cudaMemcpy2D", *mut u8: back.as_mut_ptr(), usize: 3, u64: device, usize: pitch, usize: 3, usize: 4, i32: DEFAULT_KIND);
    assert_eq!(back, [255, 1, 2, 255, 4, 5, 6, 7, 8, 9, 10, 11]);
    let unknown = call!("cudaMemcpy", *mut u8: back.as_mut_ptr(), u64: device, usize: 3, i32: 9);
    assert_eq!(unknown, INVALID_MEMCPY_DIRECTION);
    ok!("cudaMemcpy_ptds", *mut u8: back.as_mut_ptr(), u64: device, usize: 3, i32: TO_HOST);
    assert_eq!(back[..3], [255, 1, 2]);
}

#[test]
fn memory_is_known_by_its_kind() {
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        kind: i32,
        device: i32,
        device_pointer: u64,
        host_pointer: u64,
        reserved: [u64; 8],
    }
    let kind = |address: u64| {
        let mut attributes = Attributes::default();
        ok!("cudaPointerGetAttributes", *mut Attributes: &mut attributes, u64: address);
        (attributes.kind, attributes.device_pointer, attributes.host_pointer)
    };
    let device = allocate(4);
    let (mut pinned, mut managed) = (0u64, 0u64);
    ok!("cudaMallocHost", *mut u64: &mut pinned, usize: 4);
    ok!("cudaMallocManaged", *mut u64: &mut managed, usize: 4, u32: 1);
    let local = address_of(&device) as u64;
    assert_eq!(kind(device), (2, device, 0));
    assert_eq!(kind(pinned), (1, pinned, pinned));
    assert_eq!(kind(managed), (3, managed, managed));
    assert_eq!(kind(local), (0, 0, local));
    ok!("cudaFreeHost", u64: pinned);
    ok!("cudaFree", u64: managed);
    let mut none = 1u64;
    ok!("cudaMalloc", *mut u64: &mut none, usize: 0);
    assert_eq!(none, 0);
    assert_eq!(call!("cudaMalloc", *mut u64: &mut none, usize: 1 << 40), MEMORY_ALLOCATION);
}

#[test]
fn each_thread_has_a_device() {
    let device = || {
        let mut device = -1;
        ok!("cudaGetDevice", *mut i32: &mut device);
        device
    };
    std::thread::spawn(move || {
        let mut count = 0;
        ok!("cudaGetDeviceCount", *mut i32: &mut count);
        assert_eq!((count, device()), (2, 0));
        ok!("cudaSetDevice", i32: 1);
        assert_eq!(device(), 1);
        assert_eq!(call!("cudaSetDevice", i32: 2), INVALID_DEVICE);
        let x = to_device(&[1.0f32]);
        let (factor, n) = (3.0f32, 1u32);
        assert_eq!(launch("scale", 1, 1, 0, &[address_of(&x), address_of(&factor), address_of(&n)]), 0);
        assert_eq!(to_host::<f32>(x, 1), [3.0]);
        ok!("cudaDeviceReset");
        let mut byte = 0u8;
        assert_eq!(call!("cudaMemcpy", *mut u8: &mut byte, u64: x, usize: 1, i32: TO_HOST), INVALID_VALUE);
        let x = to_device(&[2.0f32]);
        assert_eq!(launch("scale", 1, 1, 0, &[address_of(&x), address_of(&factor), address_of(&n)]), 0);
        assert_eq!(to_host::<f32>(x, 1), [6.0]);
    })
    .join()
    .unwrap();
    assert_eq!(device(), 0);
}

#[test]
fn an_extended_launch_takes_its_configuration_by_address() {
    #[repr(C)]
    struct Config {
        grid: Dim3,
        block: Dim3,
        shared_bytes: usize,
        stream: usize,
        attributes: usize,
        attribute_count: u32,
    }
    let (x, n) = (to_device(&[4u32, 5]), 2u32);
    let (grid, block) = (Dim3(1, 1, 1), Dim3(2, 1, 1));
    let config = Config { grid, block, shared_bytes: 0, stream: 0, attributes: 0, attribute_count: 0 };
    let parameters = [address_of(&x), address_of(&n)];
    ok!("cudaLaunchKernelExC", *const Config: &config, *const c_void: stub("increment"), *const *const c_void: parameters.as_ptr());
    ok!("cudaLaunchKernelExC_ptsz", *const Config: &config, *const c_void: stub("increment"), *const *const c_void: parameters.as_ptr());
    assert_eq!(to_host::<u32>(x, 2), [6, 7]);
}

#[test]
fn a_library_of_the_application_has_kernels() {
    let (mut library, mut kernel, none) = (0usize, 0usize, ptr::null_mut::<c_void>());
    ok!("cudaLibraryLoadData", *mut usize: &mut library, *const u8: KERNELS.as_ptr(), *mut c_void: none, *mut c_void: none, u32: 0,
        *mut c_void: none, *mut c_void: none, u32: 0);
    ok!("cudaLibraryGetKernel", *mut usize: &mut kernel, usize: library, *const c_char: c"fill".as_ptr());
    let (mut x, value, n, one) = (0u64, 9u32, 3u32, Dim3(1, 1, 1));
    ok!("cudaMallocAsync", *mut u64: &mut x, usize: 12, usize: 0);
    let parameters = [address_of(&x), address_of(&value), address_of(&n)];
    ok!("cudaLaunchKernel", usize: kernel, Dim3: one, Dim3: Dim3(32, 1, 1), *const *const c_void: parameters.as_ptr(), usize: 0,
        usize: 0);
    assert_eq!(to_host::<u32>(x, 3), [9, 9, 9]);
    ok!("cudaFreeAsync", u64: x, usize: 0);
    ok!("cudaLibraryUnload", usize: library);
}

#[test]
fn a_host_function_runs_between_the_work_of_its_stream() {
    type HostFunction = unsafe extern "C" fn(*mut c_void);
    unsafe extern "C" fn double(data: *mut c_void) {
        unsafe { *data.cast::<u32>() *= 2 };
    }
    let (mut stream, mut pinned, value, n) = (0usize, 0u64, 21u32, 1u32);
    ok!("cudaStreamCreate", *mut usize: &mut stream);
    ok!("cudaMallocHost", *mut u64: &mut pinned, usize: 4);
    assert_eq!(launch("fill", 1, 1, stream, &[address_of(&pinned), address_of(&value), address_of(&n)]), 0);
    ok!("cudaLaunchHostFunc", usize: stream, HostFunction: double, u64: pinned);
    let x = allocate(4);
    ok!("cudaMemcpyAsync", u64: x, u64: pinned, usize: 4, i32: DEFAULT_KIND, usize: stream);
    ok!("cudaStreamSynchronize", usize: stream);
    assert_eq!(to_host::<u32>(x, 1), [42]);
    ok!("cudaFreeHost", u64: pinned);
}

#[test]
fn what_is_missing_says_so() {
    assert_eq!(call!("cudaMallocArray", usize: 0), NOT_SUPPORTED);
    assert_eq!(call!("cudaGetLastError"), NOT_SUPPORTED);
}

#[test]
fn an_error_of_a_kernel_stays() {
    if std::env::var_os(FAILING).is_none() {
        let arguments = ["--exact", "an_error_of_a_kernel_stays"];
        let status = std::process::Command::new(std::env::current_exe().unwrap()).args(arguments).env(FAILING, "1").status().unwrap();
        assert!(status.success());
        return;
    }
    assert_eq!(launch("fail", 1, 1, 0, &[]), 0);
    assert_eq!(call!("cudaDeviceSynchronize"), ILLEGAL_ADDRESS);
    let mut address = 0u64;
    assert_eq!(call!("cudaMalloc", *mut u64: &mut address, usize: 4), ILLEGAL_ADDRESS);
    ok!("cudaDeviceReset");
    assert_eq!(call!("cudaGetLastError"), ILLEGAL_ADDRESS);
    allocate(4);
}

#[test]
fn without_a_driver_there_is_no_device() {
    let library = std::env::current_exe().unwrap().with_file_name("libcudart.so");
    if std::env::var_os("CUDART_TEST_ALONE").is_none() {
        let arguments = ["--exact", "without_a_driver_there_is_no_device"];
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(arguments)
            .env("CUDART_TEST_ALONE", "1")
            .env_remove("LD_LIBRARY_PATH")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    if unsafe { Library::new("libcuda.so.1") }.is_ok() {
        return;
    }
    let library = unsafe { Library::new(library) }.unwrap();
    const INSUFFICIENT_DRIVER: i32 = 35;
    let mut count = 7;
    let count_devices = unsafe { library.get::<unsafe extern "C" fn(*mut i32) -> i32>(b"cudaGetDeviceCount") }.unwrap();
    assert_eq!((unsafe { count_devices(&mut count) }, count), (INSUFFICIENT_DRIVER, 0));
}
