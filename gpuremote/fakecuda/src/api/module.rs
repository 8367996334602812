//! Modules and the functions in them.

use super::{driver_api, require, store, Outcome};
use crate::abi::*;
use crate::context::{Function, Module};
use crate::device::limits;
use crate::driver::{Current, Driver, Initialized};
use crate::image::{self, Image};
use crate::memory::Kind;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::{Arc, Mutex};

const MAX_THREADS_PER_BLOCK: c_int = 0;
const NUM_REGS: c_int = 4;
const PTX_VERSION: c_int = 5;
const BINARY_VERSION: c_int = 6;
const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;
const ATTRIBUTES: c_int = 16;

unsafe fn load(current: &Current, place: *mut CUmodule, data: *const c_void) -> Outcome {
    require(place)?;
    let image = unsafe { image::read(data) }?;
    unsafe { store(place, load_image(current, image)?) }
}

/// Loads a module on the current context.
///
/// # Errors
///
/// `CUDA_ERROR_OUT_OF_MEMORY` if its variables don't fit.
pub fn load_image(current: &Current, image: Image) -> Result<CUmodule, CUresult> {
    let Current { driver, context } = current;
    let mut variables = HashMap::new();
    for variable in image.variables {
        let kind = if variable.managed { Kind::Managed } else { Kind::Device };
        let size_bytes = variable.size_bytes;
        let address = driver.memory.allocate(size_bytes, kind, context.device, context.handle, 0)?;
        let bytes = driver.memory.resolve(address, size_bytes).ok_or(CUDA_ERROR_UNKNOWN)?;
        let bytes = unsafe { std::slice::from_raw_parts_mut(bytes, size_bytes) };
        bytes.fill(0);
        bytes[..variable.initial.len()].copy_from_slice(&variable.initial);
        variables.insert(variable.name, (address, size_bytes));
    }
    let module = Module {
        context: context.handle,
        kernels: image.kernels.into_iter().map(Arc::new).collect(),
        variables: Arc::new(variables),
        handles: Mutex::new(HashMap::new()),
    };
    Ok(driver.modules.add(module))
}

/// The handle of a kernel of a module.
///
/// # Errors
///
/// `CUDA_ERROR_NOT_FOUND` for an unknown name.
pub fn function_of(driver: &Driver, handle: CUmodule, module: &Module, name: &str) -> Result<CUfunction, CUresult> {
    let kernel = module.kernels.iter().find(|kernel| kernel.name == name).ok_or(CUDA_ERROR_NOT_FOUND)?;
    let mut handles = module.handles.lock().map_err(|_| CUDA_ERROR_UNKNOWN)?;
    Ok(*handles.entry(name.to_string()).or_insert_with(|| {
        driver.functions.add(Function {
            context: module.context,
            module: handle,
            kernel: kernel.clone(),
            variables: module.variables.clone(),
            attributes: Mutex::new(HashMap::new()),
        })
    }))
}

/// A name that the client gives.
///
/// # Safety
///
/// `text` is null or a string that outlives the result.
///
/// # Errors
///
/// `CUDA_ERROR_INVALID_VALUE` for null, `CUDA_ERROR_NOT_FOUND` for a name that no image has.
pub unsafe fn name<'a>(text: *const c_char) -> Result<&'a str, CUresult> {
    if text.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| CUDA_ERROR_NOT_FOUND)
}

fn function(driver: &Driver, handle: CUfunction) -> Result<Arc<Function>, CUresult> {
    driver.functions.get(handle).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

driver_api! { ENTRIES;
    /// Loads an image.
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) with current => Current, {
        unsafe { load(&current, module, image) }
    }

    /// Loads an image; the options of the compiler have no effect.
    fn cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, numOptions: c_uint, options: *mut c_uint,
        optionValues: *mut *mut c_void,
    ) with current => Current, {
        unsafe { load(&current, module, image) }
    }

    /// Loads a fat binary.
    fn cuModuleLoadFatBinary(module: *mut CUmodule, fatCubin: *const c_void) with current => Current, {
        unsafe { load(&current, module, fatCubin) }
    }

    /// Ends a module.
    fn cuModuleUnload(hmod: CUmodule) with current => Current, {
        let Current { driver, context } = &current;
        let module = driver.modules.get(hmod).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        context.synchronize()?;
        driver.modules.remove(hmod);
        driver.functions.remove_if(|function| function.module == hmod);
        for (address, _) in module.variables.values() {
            driver.memory.release(*address, &[Kind::Device, Kind::Managed], CUDA_ERROR_UNKNOWN)?;
        }
        Ok(())
    }

    /// Stores a kernel of a module.
    fn cuModuleGetFunction(hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char) with current => Current, {
        require(hfunc)?;
        let driver = current.driver;
        let module = driver.modules.get(hmod).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let name = unsafe { self::name(name) }?;
        let handle = function_of(driver, hmod, &module, name)?;
        unsafe { store(hfunc, handle) }
    }

    /// Stores the number of kernels of a module.
    fn cuModuleGetFunctionCount(count: *mut c_uint, module: CUmodule) with current => Current, {
        let module = current.driver.modules.get(module).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        unsafe { store(count, module.kernels.len() as c_uint) }
    }

    /// Stores address and size of a variable of a module.
    fn cuModuleGetGlobal_v2(dptr: *mut CUdeviceptr, bytes: *mut usize, hmod: CUmodule, name: *const c_char)
        with current => Current,
    {
        let module = current.driver.modules.get(hmod).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let name = unsafe { self::name(name) }?;
        let (address, size_bytes) = *module.variables.get(name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        if !dptr.is_null() {
            unsafe { store(dptr, address) }?;
        }
        if bytes.is_null() { Ok(()) } else { unsafe { store(bytes, size_bytes) } }
    }

    /// Stores the mode of loading, here eager.
    fn cuModuleGetLoadingMode(mode: *mut c_uint) with _ => Initialized, {
        unsafe { store(mode, 1) }
    }

    /// Stores an attribute of a kernel.
    fn cuFuncGetAttribute(pi: *mut c_int, attrib: c_int, hfunc: CUfunction) with current => Current, {
        let function = function(current.driver, hfunc)?;
        if !(0..ATTRIBUTES).contains(&attrib) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let set = function.attributes.lock().map_err(|_| CUDA_ERROR_UNKNOWN)?.get(&attrib).copied();
        let value = match attrib {
            MAX_THREADS_PER_BLOCK => limits::THREADS_PER_BLOCK as c_int,
            NUM_REGS => 32,
            PTX_VERSION | BINARY_VERSION => 90,
            MAX_DYNAMIC_SHARED_BYTES => limits::SHARED_BYTES as c_int,
            _ => 0,
        };
        unsafe { store(pi, set.unwrap_or(value)) }
    }

    /// Sets an attribute of a kernel.
    fn cuFuncSetAttribute(hfunc: CUfunction, attrib: c_int, value: c_int) with current => Current, {
        let function = function(current.driver, hfunc)?;
        let too_much = attrib == MAX_DYNAMIC_SHARED_BYTES && value as c_uint > limits::SHARED_OPTIN_BYTES;
        if !(MAX_DYNAMIC_SHARED_BYTES..ATTRIBUTES).contains(&attrib) || too_much {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        function.attributes.lock().map_err(|_| CUDA_ERROR_UNKNOWN)?.insert(attrib, value);
        Ok(())
    }

    /// Takes a preference for caches, without effect.
    fn cuFuncSetCacheConfig(hfunc: CUfunction, config: c_uint) with current => Current, {
        function(current.driver, hfunc)?;
        if config > 3 { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    /// Stores the module of a kernel.
    fn cuFuncGetModule(hmod: *mut CUmodule, hfunc: CUfunction) with current => Current, {
        unsafe { store(hmod, function(current.driver, hfunc)?.module) }
    }

    /// Stores offset and size of a parameter.
    fn cuFuncGetParamInfo(func: CUfunction, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize)
        with current => Current,
    {
        let function = function(current.driver, func)?;
        let place = function.kernel.parameters.get(paramIndex).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        unsafe { store(paramOffset, place.offset_bytes) }?;
        if paramSize.is_null() { Ok(()) } else { unsafe { store(paramSize, place.size_bytes) } }
    }
}
