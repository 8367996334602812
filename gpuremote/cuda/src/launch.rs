//! Launches. Nobody waits for them: what is wrong with them is found here as far as it can be.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, OnceLock};

use crate::front;
use crate::programs;
use crate::stubs::{kinds, numbers, STATUSES};

/// CU_LAUNCH_PARAM_END, _BUFFER_POINTER and _BUFFER_SIZE.
const PARAMETERS_END: usize = 0;
const PARAMETERS_AT: usize = 1;
const PARAMETERS_BYTES: usize = 2;

struct Launch {
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: u64,
    cooperative: bool,
}

unsafe fn launch(launch: &Launch, parameters: *const *const u8, extra: *const usize) -> i32 {
    if !front().is(kinds::CUstream, launch.stream) {
        return STATUSES.handle;
    }
    let Some(places) = programs::parameters(launch.function) else { return STATUSES.handle };
    if launch.grid.contains(&0) || launch.block.contains(&0) || launch.block.iter().map(|&b| u64::from(b)).product::<u64>() > MOST_THREADS {
        return STATUSES.invalid;
    }
    let buffer = match (parameters.is_null(), extra.is_null()) {
        (true, false) => match from_buffer(extra) {
            Some(buffer) => Some(buffer),
            None => return STATUSES.invalid,
        },
        (true, true) if !places.places.is_empty() => return STATUSES.invalid,
        _ => None,
    };
    front().post(numbers::cuLaunchKernel, |encoder| {
        encoder.u64(launch.function);
        for size in launch.grid.into_iter().chain(launch.block) {
            encoder.u32(size);
        }
        encoder.u32(launch.shared_bytes);
        encoder.u64(launch.stream);
        encoder.u8(launch.cooperative.into());
        if let Some(buffer) = buffer {
            encoder.bytes_counted(buffer);
            return;
        }
        encoder.u32(places.bytes as u32);
        let mut filled = 0;
        for (i, &(offset, bytes)) in places.places.iter().enumerate() {
            // Padding, as parameters are aligned.
            encoder.raw(&[0; 16][..(offset - filled).min(16)]);
            encoder.raw(std::slice::from_raw_parts(*parameters.add(i), bytes));
            filled = offset + bytes;
        }
    })
}

/// CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK of every GPU since compute capability 2.0.
const MOST_THREADS: u64 = 1024;

/// The buffer that `extra` names.
unsafe fn from_buffer<'a>(extra: *const usize) -> Option<&'a [u8]> {
    let (mut at, mut bytes) = (std::ptr::null(), 0);
    let mut entry = extra;
    loop {
        match *entry {
            PARAMETERS_END => break,
            PARAMETERS_AT => at = *entry.add(1) as *const u8,
            PARAMETERS_BYTES => bytes = *(*entry.add(1) as *const usize),
            _ => return None,
        }
        entry = entry.add(2);
    }
    (!at.is_null()).then(|| std::slice::from_raw_parts(at, bytes))
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: u64,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared_bytes: u32,
    stream: u64,
    parameters: *const *const u8,
    extra: *const usize,
) -> i32 {
    let l = Launch { function, grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, stream, cooperative: false };
    launch(&l, parameters, extra)
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cuLaunchCooperativeKernel(
    function: u64,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared_bytes: u32,
    stream: u64,
    parameters: *const *const u8,
) -> i32 {
    let l = Launch { function, grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, stream, cooperative: true };
    launch(&l, parameters, std::ptr::null())
}

/// CUlaunchConfig of the driver API.
#[repr(C)]
pub struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: u64,
    attributes: *const Attribute,
    attribute_count: u32,
}

/// CUlaunchAttribute of the driver API.
#[repr(C)]
struct Attribute {
    id: u32,
    padding: [u8; 4],
    value: [u8; 64],
}

/// CU_LAUNCH_ATTRIBUTE_COOPERATIVE.
const COOPERATIVE: u32 = 2;
/// CU_LAUNCH_ATTRIBUTE_IGNORE and others that say how fast, not what.
const HINTS: [u32; 4] = [0, 1, 8, 9];

#[no_mangle]
pub unsafe extern "C" fn cuLaunchKernelEx(config: *const Config, function: u64, parameters: *const *const u8, extra: *const usize) -> i32 {
    if config.is_null() {
        return STATUSES.invalid;
    }
    let config = &*config;
    let mut cooperative = false;
    for i in 0..config.attribute_count as usize {
        let attribute = &*config.attributes.add(i);
        match attribute.id {
            COOPERATIVE => cooperative = attribute.value[0] != 0,
            id if HINTS.contains(&id) => {}
            _ => return front().refuse("cuLaunchKernelEx with attributes such as clusters"),
        }
    }
    let l =
        Launch { function, grid: config.grid, block: config.block, shared_bytes: config.shared_bytes, stream: config.stream, cooperative };
    launch(&l, parameters, extra)
}

type HostFunction = unsafe extern "C" fn(*mut c_void);

/// Functions that streams will call, by number: address and argument.
#[derive(Default)]
struct HostFunctions {
    next: u64,
    by_number: HashMap<u64, (usize, usize)>,
    runs: bool,
}

fn host_functions() -> &'static Mutex<HostFunctions> {
    static HOST_FUNCTIONS: OnceLock<Mutex<HostFunctions>> = OnceLock::new();
    HOST_FUNCTIONS.get_or_init(Mutex::default)
}

/// A thread with a lane of its own waits for streams that reach such functions, and runs them.
fn run_host_functions() {
    loop {
        let mut number = 0;
        let status = front().call(
            numbers::nearmetalNextHostFunction,
            |_| {},
            |decoder| {
                number = decoder.u64()?;
                Ok(())
            },
        );
        if status != STATUSES.ok {
            return;
        }
        let function = host_functions().lock().expect("no one panics with this lock").by_number.remove(&number);
        if let Some((function, data)) = function {
            // SAFETY: the program gave a function of this type.
            unsafe { std::mem::transmute::<usize, HostFunction>(function)(data as *mut c_void) };
        }
        if front().call(numbers::nearmetalHostFunctionDone, |_| {}, |_| Ok(())) != STATUSES.ok {
            return;
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuLaunchHostFunc(stream: u64, function: Option<HostFunction>, data: *mut c_void) -> i32 {
    let Some(function) = function else { return STATUSES.invalid };
    if !front().is(kinds::CUstream, stream) {
        return STATUSES.handle;
    }
    let mut functions = host_functions().lock().expect("no one panics with this lock");
    if !functions.runs {
        if std::thread::Builder::new().name("gpu-callbacks".into()).spawn(run_host_functions).is_err() {
            return STATUSES.lost;
        }
        functions.runs = true;
    }
    functions.next += 1;
    let number = functions.next;
    functions.by_number.insert(number, (function as usize, data as usize));
    front().post(numbers::cuLaunchHostFunc, |encoder| {
        encoder.u64(stream);
        encoder.u64(number);
    })
}

type StreamCallback = unsafe extern "C" fn(u64, i32, *mut c_void);

struct Callback {
    function: StreamCallback,
    stream: u64,
    data: *mut c_void,
}

/// The older form of such functions, which also hears of the stream and its state.
#[no_mangle]
pub unsafe extern "C" fn cuStreamAddCallback(stream: u64, function: Option<StreamCallback>, data: *mut c_void, flags: u32) -> i32 {
    unsafe extern "C" fn run(callback: *mut c_void) {
        let callback = Box::from_raw(callback.cast::<Callback>());
        (callback.function)(callback.stream, STATUSES.ok, callback.data);
    }
    let (Some(function), 0) = (function, flags) else { return STATUSES.invalid };
    let callback = Box::into_raw(Box::new(Callback { function, stream, data }));
    let status = cuLaunchHostFunc(stream, Some(run), callback.cast());
    if status != STATUSES.ok {
        drop(Box::from_raw(callback));
    }
    status
}
