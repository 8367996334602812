//! Modules, libraries and their functions. Where a function's parameters lie is asked for once, so that launches need not ask.

use std::collections::HashMap;
use std::ffi::{c_char, c_void, CStr, CString};
use std::sync::{Arc, OnceLock, RwLock};

use gpuremote_client::wire::{Decoder, Malformed};
use gpuremote_client::HandleKind;

use crate::front;
use crate::images;
use crate::stubs::{kinds, numbers, remote, STATUSES};

/// CUDA_ERROR_FILE_NOT_FOUND.
const FILE_NOT_FOUND: i32 = 301;

/// Where a function's parameters lie.
#[derive(Default, PartialEq)]
pub(crate) struct Parameters {
    /// Offset and length of each, in bytes.
    pub places: Vec<(usize, usize)>,
    /// Length of all, in bytes.
    pub bytes: usize,
    name: CString,
}

impl Parameters {
    fn read(decoder: &mut Decoder<'_>, name: CString) -> Result<Self, Malformed> {
        let mut parameters = Parameters { name, ..Parameters::default() };
        for _ in 0..decoder.u32()? {
            let (offset, bytes) = (decoder.u32()? as usize, decoder.u32()? as usize);
            parameters.bytes = parameters.bytes.max(offset + bytes);
            parameters.places.push((offset, bytes));
        }
        Ok(parameters)
    }
}

fn functions() -> &'static RwLock<HashMap<u64, Arc<Parameters>>> {
    static FUNCTIONS: OnceLock<RwLock<HashMap<u64, Arc<Parameters>>>> = OnceLock::new();
    FUNCTIONS.get_or_init(RwLock::default)
}

/// Where the parameters of this function lie. None when there is no such function.
pub(crate) fn parameters(function: u64) -> Option<Arc<Parameters>> {
    functions().read().expect("no one panics with this lock").get(&function).cloned()
}

/// What is known already stays, because programs may hold the text of a name.
fn keep(function: u64, parameters: Arc<Parameters>) {
    let mut functions = functions().write().expect("no one panics with this lock");
    let known = functions.entry(function).or_insert_with(|| Arc::clone(&parameters));
    if *known != parameters {
        *known = parameters;
    }
}

/// The function that a kernel of a library is in the current context, or the function itself.
pub(crate) unsafe fn as_function(function: u64) -> Result<u64, i32> {
    if !front().is(kinds::CUkernel, function) || function == 0 {
        return Ok(function);
    }
    let mut of_context = 0;
    match cuKernelGetFunction(&mut of_context, function) {
        status if status == STATUSES.ok => Ok(of_context),
        status => Err(status),
    }
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
    match read(path) {
        Ok(image) => cuModuleLoadData(module, image.as_ptr()),
        Err(status) => status,
    }
}

/// An image in a file. PTX ends with a zero byte in memory.
unsafe fn read(path: *const c_char) -> Result<Vec<u8>, i32> {
    if path.is_null() {
        return Err(STATUSES.invalid);
    }
    let path = CStr::from_ptr(path).to_str().map_err(|_| STATUSES.invalid)?;
    let mut image = std::fs::read(path).map_err(|_| FILE_NOT_FOUND)?;
    image.push(0);
    Ok(image)
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

#[no_mangle]
pub unsafe extern "C" fn cuLibraryLoadFromFile(
    library: *mut u64,
    path: *const c_char,
    _: *const c_void,
    _: *const c_void,
    _: u32,
    _: *const c_void,
    _: *const c_void,
    _: u32,
) -> i32 {
    match read(path) {
        Ok(image) => load(kinds::CUlibrary, numbers::cuLibraryLoadData, library, image.as_ptr()),
        Err(status) => status,
    }
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
            parameters = Parameters::read(decoder, CStr::from_ptr(name).to_owned())?;
            Ok(())
        },
    );
    if status == STATUSES.ok {
        keep(minted, Arc::new(parameters));
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

#[no_mangle]
pub unsafe extern "C" fn cuKernelGetFunction(function: *mut u64, kernel: u64) -> i32 {
    let Some(parameters) = parameters(kernel) else { return STATUSES.handle };
    let status = remote::cuKernelGetFunction(function, kernel);
    if status == STATUSES.ok {
        keep(*function, parameters);
    }
    status
}

/// Fills the list with as many functions as it takes. Each comes with its name and the places of its parameters.
unsafe fn enumerate(number: u16, list: *mut u64, count: u32, from: (HandleKind, u64)) -> i32 {
    if list.is_null() {
        return STATUSES.invalid;
    }
    if !front().is(from.0, from.1) {
        return STATUSES.handle;
    }
    front().call(
        number,
        |encoder| {
            encoder.u32(count);
            encoder.u64(from.1);
        },
        |decoder| {
            for i in 0..decoder.u32()?.min(count) as usize {
                let found = decoder.u64()?;
                let name = CString::new(decoder.bytes_counted()?).unwrap_or_default();
                keep(found, Arc::new(Parameters::read(decoder, name)?));
                *list.add(i) = found;
            }
            Ok(())
        },
    )
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleEnumerateFunctions(list: *mut u64, count: u32, module: u64) -> i32 {
    enumerate(numbers::cuModuleEnumerateFunctions, list, count, (kinds::CUmodule, module))
}

#[no_mangle]
pub unsafe extern "C" fn cuLibraryEnumerateKernels(list: *mut u64, count: u32, library: u64) -> i32 {
    enumerate(numbers::cuLibraryEnumerateKernels, list, count, (kinds::CUlibrary, library))
}

#[no_mangle]
pub unsafe extern "C" fn cuFuncGetName(name: *mut *const c_char, function: u64) -> i32 {
    if name.is_null() {
        return STATUSES.invalid;
    }
    let functions = functions().read().expect("no one panics with this lock");
    let Some(parameters) = functions.get(&function) else { return STATUSES.handle };
    // What is known of a function stays known, so the text does, too.
    *name = parameters.name.as_ptr();
    STATUSES.ok
}

#[no_mangle]
pub unsafe extern "C" fn cuKernelGetName(name: *mut *const c_char, kernel: u64) -> i32 {
    cuFuncGetName(name, kernel)
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
