//! Libraries: images without a context, whose modules load at the first use on one.

use super::module::{function_of, load_image, name};
use super::{driver_api, require, store};
use crate::abi::*;
use crate::driver::{Current, Initialized};
use crate::image::{self, Image};
use std::collections::HashMap;
use std::ffi::{c_char, c_uint, c_void};
use std::sync::{Arc, Mutex};

/// A library.
pub struct Library {
    image: Image,
    modules: Mutex<HashMap<CUcontext, CUmodule>>,
}

/// A kernel of a library.
pub struct LibraryKernel {
    library: Arc<Library>,
    handle: usize,
    name: String,
}

impl Library {
    fn module(&self, current: &Current) -> Result<CUmodule, CUresult> {
        let mut modules = self.modules.lock().map_err(|_| CUDA_ERROR_UNKNOWN)?;
        if let Some(module) = modules.get(&current.context.handle).filter(|module| current.driver.modules.get(**module).is_some()) {
            return Ok(*module);
        }
        let module = load_image(current, self.image.clone())?;
        modules.insert(current.context.handle, module);
        Ok(module)
    }
}

impl LibraryKernel {
    /// The kernel's handle on the current context.
    ///
    /// # Errors
    ///
    /// Those of loading the module.
    pub fn function(&self, current: &Current) -> Result<CUfunction, CUresult> {
        let handle = self.library.module(current)?;
        let module = current.driver.modules.get(handle).ok_or(CUDA_ERROR_UNKNOWN)?;
        function_of(current.driver, handle, &module, &self.name)
    }
}

driver_api! { ENTRIES;
    /// Reads an image; options have no effect.
    fn cuLibraryLoadData(
        library: *mut usize, code: *const c_void, jitOptions: *mut c_uint, jitOptionsValues: *mut *mut c_void,
        numJitOptions: c_uint, libraryOptions: *mut c_uint, libraryOptionValues: *mut *mut c_void, numLibraryOptions: c_uint,
    ) with Initialized(driver) => Initialized, {
        require(library)?;
        let image = unsafe { image::read(code) }?;
        unsafe { store(library, driver.libraries.add(Library { image, modules: Mutex::new(HashMap::new()) })) }
    }

    /// Ends a library with its modules on the current context.
    fn cuLibraryUnload(library: usize) with current => Current, {
        let ended = current.driver.libraries.remove(library).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        current.driver.kernels.remove_if(|kernel| kernel.handle == library);
        let module = ended.modules.lock().map_err(|_| CUDA_ERROR_UNKNOWN)?.remove(&current.context.handle);
        match module.map(|module| unsafe { super::module::cuModuleUnload(module) }) {
            None | Some(CUDA_SUCCESS) => Ok(()),
            Some(code) => Err(code),
        }
    }

    /// Stores a kernel of a library.
    fn cuLibraryGetKernel(pKernel: *mut usize, library: usize, name: *const c_char) with Initialized(driver) => Initialized, {
        require(pKernel)?;
        let found = driver.libraries.get(library).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let name = unsafe { self::name(name) }?.to_string();
        if !found.image.kernels.iter().any(|kernel| kernel.name == name) {
            return Err(CUDA_ERROR_NOT_FOUND);
        }
        unsafe { store(pKernel, driver.kernels.add(LibraryKernel { library: found, handle: library, name })) }
    }

    /// Stores the number of kernels of a library.
    fn cuLibraryGetKernelCount(count: *mut c_uint, lib: usize) with Initialized(driver) => Initialized, {
        let library = driver.libraries.get(lib).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        unsafe { store(count, library.image.kernels.len() as c_uint) }
    }

    /// Stores the kernels of a library.
    fn cuLibraryEnumerateKernels(kernels: *mut usize, numKernels: c_uint, lib: usize) with Initialized(driver) => Initialized, {
        require(kernels)?;
        let library = driver.libraries.get(lib).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let mut names = library.image.kernels.iter().map(|kernel| kernel.name.clone());
        for index in 0..numKernels as usize {
            let kernel = names.next().map(|name| driver.kernels.add(LibraryKernel { library: library.clone(), handle: lib, name }));
            unsafe { kernels.add(index).write(kernel.unwrap_or(0)) };
        }
        Ok(())
    }

    /// Stores the name of a kernel, which stays.
    fn cuKernelGetName(name: *mut *const c_char, kernel: usize) with Initialized(driver) => Initialized, {
        let kernel = driver.kernels.get(kernel).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let text = std::ffi::CString::new(kernel.name.as_str()).map_err(|_| CUDA_ERROR_UNKNOWN)?;
        unsafe { store(name, text.into_raw().cast_const()) }
    }

    /// Stores offset and size of a parameter.
    fn cuKernelGetParamInfo(kernel: usize, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize)
        with Initialized(driver) => Initialized,
    {
        let kernel = driver.kernels.get(kernel).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let found = kernel.library.image.kernels.iter().find(|other| other.name == kernel.name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        let place = found.parameters.get(paramIndex).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        unsafe { store(paramOffset, place.offset_bytes) }?;
        if paramSize.is_null() { Ok(()) } else { unsafe { store(paramSize, place.size_bytes) } }
    }

    /// Stores the module of a library on the current context.
    fn cuLibraryGetModule(pMod: *mut CUmodule, library: usize) with current => Current, {
        let library = current.driver.libraries.get(library).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        unsafe { store(pMod, library.module(&current)?) }
    }

    /// Stores a variable of a library on the current context.
    fn cuLibraryGetGlobal(dptr: *mut CUdeviceptr, bytes: *mut usize, library: usize, name: *const c_char)
        with current => Current,
    {
        let library = current.driver.libraries.get(library).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let module = library.module(&current)?;
        match unsafe { super::module::cuModuleGetGlobal_v2(dptr, bytes, module, name) } {
            CUDA_SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Stores the kernel's handle on the current context.
    fn cuKernelGetFunction(pFunc: *mut CUfunction, kernel: usize) with current => Current, {
        let kernel = current.driver.kernels.get(kernel).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        unsafe { store(pFunc, kernel.function(&current)?) }
    }
}
