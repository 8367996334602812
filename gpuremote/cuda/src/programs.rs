//! Modules, libraries and their functions. Where a function's parameters lie is asked for once, so that launches need not ask.

use std::collections::HashMap;
use std::ffi::{c_char, c_void, CStr};
use std::sync::{Arc, OnceLock, RwLock};

use gpuremote_client::HandleKind;

use crate::front;
use crate::images;
use crate::stubs::{kinds, numbers, STATUSES};

/// CUDA_ERROR_FILE_NOT_FOUND.
const FILE_NOT_FOUND: i32 = 301;

/// Where a function's parameters lie.
#[derive(Default)]
pub(crate) struct Parameters {
    /// Offset and length of each, in bytes.
    pub places: Vec<(usize, usize)>,
    /// Length of all, in bytes.
    pub bytes: usize,
}

fn functions() -> &'static RwLock<HashMap<u64, Arc<Parameters>>> {
    static FUNCTIONS: OnceLock<RwLock<HashMap<u64, Arc<Parameters>>>> = OnceLock::new();
    FUNCTIONS.get_or_init(RwLock::default)
}

/// Where the parameters of this function lie. None when there is no such function.
pub(crate) fn parameters(function: u64) -> Option<Arc<Parameters>> {
    functions().read().expect("no one panics with this lock").get(&function).cloned()
}

unsafe fn load(kind: HandleKind, number: u16, handle: *mut u64, image: *const u8) -> i32 {
    if handle.is_null() || image.is_null() {
        return STATUSES.invalid;
    }
    let image = images::bytes(image);
    let minted = front().mint(kind);
    let arguments = |encoder: &mut gpuremote_client::wire::Encoder| {
        encoder.u64(minted);
        encoder.usize(image.len());
    };
    let status = front().call_data(number, arguments, image);
    if status == STATUSES.ok {
        *handle = minted;
    } else {
        front().unmint(kind, minted);
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut u64, image: *const u8) -> i32 {
    load(kinds::CUmodule, numbers::cuModuleLoadData, module, image)
}

/// The options speak of compilation, which is the server's driver's.
#[no_mangle]
pub unsafe extern "C" fn cuModuleLoadDataEx(module: *mut u64, image: *const u8, _: u32, _: *const c_void, _: *const c_void) -> i32 {
    cuModuleLoadData(module, image)
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleLoadFatBinary(module: *mut u64, image: *const u8) -> i32 {
    cuModuleLoadData(module, image)
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleLoad(module: *mut u64, path: *const c_char) -> i32 {
    if path.is_null() {
        return STATUSES.invalid;
    }
    let Ok(path) = CStr::from_ptr(path).to_str() else { return STATUSES.invalid };
    let Ok(mut image) = std::fs::read(path) else { return FILE_NOT_FOUND };
    image.push(0);
    cuModuleLoadData(module, image.as_ptr())
}

#[no_mangle]
pub unsafe extern "C" fn cuLibraryLoadData(
    library: *mut u64,
    image: *const u8,
    _: *const c_void,
    _: *const c_void,
    _: u32,
    _: *const c_void,
    _: *const c_void,
    _: u32,
) -> i32 {
    load(kinds::CUlibrary, numbers::cuLibraryLoadData, library, image)
}

unsafe fn find(kind: HandleKind, number: u16, function: *mut u64, from: (HandleKind, u64), name: *const c_char) -> i32 {
    if function.is_null() || name.is_null() {
        return STATUSES.invalid;
    }
    if !front().is(from.0, from.1) {
        return STATUSES.handle;
    }
    let minted = front().mint(kind);
    let mut parameters = Parameters::default();
    let status = front().call(
        number,
        |encoder| {
            encoder.u64(minted);
            encoder.u64(from.1);
            encoder.bytes_counted(CStr::from_ptr(name).to_bytes());
        },
        |decoder| {
            for _ in 0..decoder.u32()? {
                let (offset, bytes) = (decoder.u32()? as usize, decoder.u32()? as usize);
                parameters.bytes = parameters.bytes.max(offset + bytes);
                parameters.places.push((offset, bytes));
            }
            Ok(())
        },
    );
    if status == STATUSES.ok {
        functions().write().expect("no one panics with this lock").insert(minted, Arc::new(parameters));
        *function = minted;
    } else {
        front().unmint(kind, minted);
    }
    status
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) -> i32 {
    find(kinds::CUfunction, numbers::cuModuleGetFunction, function, (kinds::CUmodule, module), name)
}

#[no_mangle]
pub unsafe extern "C" fn cuLibraryGetKernel(kernel: *mut u64, library: u64, name: *const c_char) -> i32 {
    find(kinds::CUkernel, numbers::cuLibraryGetKernel, kernel, (kinds::CUlibrary, library), name)
}

/// A kernel is launched as a function, so its number serves for both.
#[no_mangle]
pub unsafe extern "C" fn cuKernelGetFunction(function: *mut u64, kernel: u64) -> i32 {
    if function.is_null() {
        return STATUSES.invalid;
    }
    if !front().is(kinds::CUkernel, kernel) {
        return STATUSES.handle;
    }
    *function = kernel;
    STATUSES.ok
}

#[no_mangle]
pub unsafe extern "C" fn cuFuncGetParamInfo(function: u64, index: usize, offset: *mut usize, bytes: *mut usize) -> i32 {
    let Some(parameters) = parameters(function) else { return STATUSES.handle };
    let Some(&(at, length)) = parameters.places.get(index) else { return STATUSES.invalid };
    if offset.is_null() {
        return STATUSES.invalid;
    }
    *offset = at;
    if !bytes.is_null() {
        *bytes = length;
    }
    STATUSES.ok
}

#[no_mangle]
pub unsafe extern "C" fn cuKernelGetParamInfo(kernel: u64, index: usize, offset: *mut usize, bytes: *mut usize) -> i32 {
    cuFuncGetParamInfo(kernel, index, offset, bytes)
}
