//! Functions of the program that streams and graphs call. The server's process waits in the stream while a thread here runs them.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, OnceLock};

use crate::front;
use crate::stubs::{kinds, numbers, STATUSES};

pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

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
        let (mut number, mut again) = (0, false);
        let status = front().call(
            numbers::nearmetalNextHostFunction,
            |_| {},
            |decoder| {
                (number, again) = (decoder.u64()?, decoder.u8()? != 0);
                Ok(())
            },
        );
        if status != STATUSES.ok {
            return;
        }
        let function = {
            let by_number = &mut host_functions().lock().expect("no one panics with this lock").by_number;
            // A graph calls its functions whenever it is launched.
            if again {
                by_number.get(&number).copied()
            } else {
                by_number.remove(&number)
            }
        };
        if let Some((function, data)) = function {
            // SAFETY: the program gave a function of this type.
            unsafe { std::mem::transmute::<usize, HostFunction>(function)(data as *mut c_void) };
        }
        if front().call(numbers::nearmetalHostFunctionDone, |_| {}, |_| Ok(())) != STATUSES.ok {
            return;
        }
    }
}

/// Gives a function a number, by which the server names it.
pub(crate) fn register(function: HostFunction, data: *mut c_void) -> std::io::Result<u64> {
    let mut functions = host_functions().lock().expect("no one panics with this lock");
    if !functions.runs {
        std::thread::Builder::new().name("gpu-callbacks".into()).spawn(run_host_functions)?;
        functions.runs = true;
    }
    functions.next += 1;
    let number = functions.next;
    functions.by_number.insert(number, (function as usize, data as usize));
    Ok(number)
}

#[no_mangle]
pub unsafe extern "C" fn cuLaunchHostFunc(stream: u64, function: Option<HostFunction>, data: *mut c_void) -> i32 {
    let Some(function) = function else { return STATUSES.invalid };
    if !front().is(kinds::CUstream, stream) {
        return STATUSES.handle;
    }
    let Ok(number) = register(function, data) else { return STATUSES.lost };
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
