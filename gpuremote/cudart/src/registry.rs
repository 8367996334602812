//! Fat binaries, kernels and variables that the application registers before `main`, and their modules on each context.

use crate::abi::{Address, Handle};
use crate::context;
use crate::driver::Driver;
use crate::error::{Error, Outcome};
use crate::properties::{launch_limits, LaunchLimits};
use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void, CStr, CString};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// `__fatBinC_Wrapper_t`: what the application registers.
#[repr(C)]
pub struct Wrapper {
    magic: c_int,
    version: c_int,
    image: *const c_void,
    prelinked: *const c_void,
}

/// A fat binary and its modules.
pub struct FatBinary {
    image: *const c_void,
    modules: Mutex<HashMap<usize, usize>>,
}

// The image is constant data of the application.
unsafe impl Send for FatBinary {}
unsafe impl Sync for FatBinary {}

struct Symbol {
    binary: Arc<FatBinary>,
    name: CString,
}

struct Variable {
    symbol: Symbol,
    size_bytes: usize,
    /// Where the application keeps the address of a managed variable.
    managed: Option<usize>,
}

/// A kernel on one context.
pub struct Kernel {
    /// Handle of the driver.
    pub function: usize,
    /// Threads of a block that the kernel can have at most.
    pub max_threads: i32,
    /// Dynamic shared memory of a block in bytes that the kernel can have at most.
    max_dynamic_bytes: AtomicI32,
    /// Limits of the device.
    pub limits: LaunchLimits,
}

impl Kernel {
    /// Handle of the driver.
    pub fn handle(&self) -> Handle {
        ptr::with_exposed_provenance_mut(self.function)
    }
}

#[derive(Default)]
struct Registry {
    /// By the address of the stub in the application.
    kernels: HashMap<usize, Symbol>,
    /// By the address of the shadow in the application.
    variables: HashMap<usize, Variable>,
    /// By context and address of the stub.
    loaded: HashMap<(usize, usize), Arc<Kernel>>,
    /// Handles of kernels of libraries that the application loaded itself.
    library_kernels: HashSet<usize>,
}

static REGISTRY: LazyLock<RwLock<Registry>> = LazyLock::new(RwLock::default);

fn read() -> RwLockReadGuard<'static, Registry> {
    REGISTRY.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn write() -> RwLockWriteGuard<'static, Registry> {
    REGISTRY.write().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl FatBinary {
    /// A registered fat binary, as `__cudaRegisterFatBinary` gets it.
    ///
    /// # Safety
    ///
    /// `wrapper` is a wrapper of a fat binary that stays.
    pub unsafe fn new(wrapper: *const Wrapper) -> Arc<FatBinary> {
        let image = unsafe { (*wrapper).image };
        Arc::new(FatBinary { image, modules: Mutex::default() })
    }

    /// The module on a context, which is current. It loads at the first use.
    fn module(self: &Arc<FatBinary>, driver: &Driver, context: Handle) -> Outcome<Handle> {
        let mut modules = self.modules.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(module) = modules.get(&context.expose_provenance()) {
            return Ok(ptr::with_exposed_provenance_mut(*module));
        }
        let mut module = ptr::null_mut();
        unsafe { driver.cuModuleLoadData(&mut module, self.image) }?;
        // All devices share the managed variables of the first module.
        if modules.is_empty() {
            self.publish_managed(driver, module)?;
        }
        modules.insert(context.expose_provenance(), module.expose_provenance());
        Ok(module)
    }

    /// Stores the addresses of managed variables where the application reads them. A device without managed memory leaves them null.
    fn publish_managed(self: &Arc<FatBinary>, driver: &Driver, module: Handle) -> Outcome {
        if !has_managed_memory(driver)? {
            return Ok(());
        }
        for variable in read().variables.values() {
            let Some(place) = variable.managed.filter(|_| Arc::ptr_eq(&variable.symbol.binary, self)) else { continue };
            let mut address = 0;
            unsafe { driver.cuModuleGetGlobal_v2(&mut address, ptr::null_mut(), module, variable.symbol.name.as_ptr()) }?;
            unsafe { ptr::with_exposed_provenance_mut::<u64>(place).write(address) };
        }
        Ok(())
    }

    /// Loads the module on the current context, for the managed variables of the fat binary.
    ///
    /// # Errors
    ///
    /// Those of `cuModuleLoadData`, and `cudaErrorNotSupported` for managed variables on a device without managed memory.
    pub fn load(self: &Arc<FatBinary>) -> Outcome {
        let (driver, context) = context::current()?;
        self.module(driver, context)?;
        if has_managed_memory(driver)? {
            return Ok(());
        }
        self.refuse_managed()
    }

    /// Names the managed variables on standard error: the application is about to read their addresses, which are null.
    fn refuse_managed(self: &Arc<FatBinary>) -> Outcome {
        let registry = read();
        let mine = |variable: &&Variable| variable.managed.is_some() && Arc::ptr_eq(&variable.symbol.binary, self);
        let mut outcome = Ok(());
        for variable in registry.variables.values().filter(mine) {
            let name = variable.symbol.name.to_string_lossy();
            eprintln!("libcudart: the device has no managed memory, so the host can't reach the __managed__ variable {name}");
            outcome = Err(Error::NOT_SUPPORTED);
        }
        outcome
    }
}

fn has_managed_memory(driver: &Driver) -> Outcome<bool> {
    /// `CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY`.
    const MANAGED_MEMORY: c_int = 83;
    let mut value = 0;
    unsafe { driver.cuDeviceGetAttribute(&mut value, MANAGED_MEMORY, context::device()?) }?;
    Ok(value != 0)
}

/// Runs what may load code while the thread captures a stream: loading isn't part of the captured work, so the driver may allow it.
fn outside_capture<T>(driver: &Driver, load: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    const RELAXED: u32 = 2;
    if !driver.has_capture_modes() {
        return load();
    }
    let mut mode = RELAXED;
    unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) }?;
    let outcome = load();
    // The call stores the mode of before in its argument, and sets it again here.
    unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) }?;
    outcome
}

/// Registers a kernel by the address of its stub.
pub fn add_kernel(binary: &Arc<FatBinary>, stub: *const c_void, name: &CStr) {
    let symbol = Symbol { binary: binary.clone(), name: name.to_owned() };
    write().kernels.insert(stub.expose_provenance(), symbol);
}

/// Makes a kernel of a library launchable by its handle.
pub fn add_library_kernel(kernel: Handle) {
    write().library_kernels.insert(kernel.expose_provenance());
}

/// Registers a variable by the address of its shadow. A managed variable has its address stored at the shadow.
pub fn add_variable(binary: &Arc<FatBinary>, shadow: *const c_void, name: &CStr, size_bytes: usize, managed: bool) {
    let symbol = Symbol { binary: binary.clone(), name: name.to_owned() };
    let shadow = shadow.expose_provenance();
    write().variables.insert(shadow, Variable { symbol, size_bytes, managed: managed.then_some(shadow) });
}

/// Forgets a fat binary with its kernels and variables.
///
/// Modules stay loaded: this runs when the process or a plugin ends, and the driver may be gone already.
pub fn remove(binary: &Arc<FatBinary>) {
    let mut registry = write();
    let Registry { kernels, variables, loaded, .. } = &mut *registry;
    kernels.retain(|_, symbol| !Arc::ptr_eq(&symbol.binary, binary));
    variables.retain(|_, variable| !Arc::ptr_eq(&variable.symbol.binary, binary));
    loaded.retain(|(_, stub), _| kernels.contains_key(stub));
}

/// Forgets the modules of a context that ends.
pub fn forget_context(context: Handle) {
    let context = context.expose_provenance();
    let binaries: Vec<Arc<FatBinary>> = {
        let mut registry = write();
        registry.loaded.retain(|(other, _), _| *other != context);
        let symbols = registry.kernels.values().chain(registry.variables.values().map(|variable| &variable.symbol));
        symbols.map(|symbol| symbol.binary.clone()).collect()
    };
    for binary in binaries {
        binary.modules.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(&context);
    }
}

/// Reports whether an address stands for a kernel.
pub fn is_kernel(stub: *const c_void) -> bool {
    let registry = read();
    registry.kernels.contains_key(&stub.addr()) || registry.library_kernels.contains(&stub.addr())
}

/// The name of the kernel of a stub, valid while its fat binary is registered.
pub fn kernel_name(stub: *const c_void) -> Option<*const std::ffi::c_char> {
    read().kernels.get(&stub.addr()).map(|symbol| symbol.name.as_ptr())
}

/// The kernel of a stub on the current context, with the driver.
///
/// # Errors
///
/// `cudaErrorInvalidDeviceFunction` for an address without a kernel, and those of loading a module.
pub fn kernel(stub: *const c_void) -> Outcome<(&'static Driver, Arc<Kernel>)> {
    let (driver, context) = context::current()?;
    let key = (context.addr(), stub.addr());
    let symbol = {
        let registry = read();
        if let Some(kernel) = registry.loaded.get(&key) {
            return Ok((driver, kernel.clone()));
        }
        match registry.kernels.get(&stub.addr()) {
            Some(symbol) => Some((symbol.binary.clone(), symbol.name.clone())),
            None if registry.library_kernels.contains(&stub.addr()) => None,
            None => return Err(Error::INVALID_DEVICE_FUNCTION),
        }
    };
    let kernel = outside_capture(driver, || {
        let mut function = ptr::null_mut();
        match &symbol {
            Some((binary, name)) => {
                let module = binary.module(driver, context)?;
                unsafe { driver.cuModuleGetFunction(&mut function, module, name.as_ptr()) }.map_err(|error| match error {
                    Error::SYMBOL_NOT_FOUND => Error::INVALID_DEVICE_FUNCTION,
                    other => other,
                })?;
            }
            None => unsafe { driver.cuKernelGetFunction(&mut function, stub.cast_mut()) }?,
        }
        describe(driver, function)
    })?;
    let kernel = Arc::new(kernel);
    write().loaded.insert(key, kernel.clone());
    Ok((driver, kernel))
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;

fn describe(driver: &Driver, function: Handle) -> Outcome<Kernel> {
    const MAX_THREADS_PER_BLOCK: c_int = 0;
    let attribute = |number| {
        let mut value = 0;
        unsafe { driver.cuFuncGetAttribute(&mut value, number, function) }.map(|()| value)
    };
    Ok(Kernel {
        function: function.expose_provenance(),
        max_threads: attribute(MAX_THREADS_PER_BLOCK)?,
        max_dynamic_bytes: AtomicI32::new(attribute(MAX_DYNAMIC_SHARED_BYTES)?),
        limits: launch_limits(driver)?,
    })
}

impl Kernel {
    /// Reports whether a block may have this much dynamic shared memory.
    ///
    /// # Errors
    ///
    /// Those of `cuFuncGetAttribute`.
    pub fn allows_dynamic_bytes(&self, driver: &Driver, bytes: usize) -> Outcome<bool> {
        if bytes <= self.max_dynamic_bytes.load(Ordering::Relaxed) as usize {
            return Ok(true);
        }
        // The application may have raised the limit through the driver.
        let mut limit = 0;
        unsafe { driver.cuFuncGetAttribute(&mut limit, MAX_DYNAMIC_SHARED_BYTES, self.handle()) }?;
        self.max_dynamic_bytes.store(limit, Ordering::Relaxed);
        Ok(bytes <= limit as usize)
    }

    /// Sets an attribute of the kernel.
    ///
    /// # Errors
    ///
    /// Those of `cuFuncSetAttribute`.
    pub fn set_attribute(&self, driver: &Driver, attribute: c_int, value: c_int) -> Outcome {
        unsafe { driver.cuFuncSetAttribute(self.handle(), attribute, value) }?;
        if attribute == MAX_DYNAMIC_SHARED_BYTES {
            self.max_dynamic_bytes.store(value, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Address and size in bytes of a variable on the current context, by the address of its shadow. A managed variable is also found by
/// its own address.
///
/// # Errors
///
/// `cudaErrorInvalidSymbol` for an address without a variable, and those of loading a module.
pub fn variable(shadow: *const c_void) -> Outcome<(&'static Driver, Address, usize)> {
    let (driver, context) = context::current()?;
    let (binary, name, registered_bytes) = {
        let registry = read();
        let is_target = |variable: &&Variable| {
            let place = variable.managed.map(ptr::with_exposed_provenance::<usize>);
            !shadow.is_null() && place.is_some_and(|place| unsafe { place.read() } == shadow.addr())
        };
        let found = registry.variables.get(&shadow.addr()).or_else(|| registry.variables.values().find(is_target));
        let found = found.ok_or(Error::INVALID_SYMBOL)?;
        (found.symbol.binary.clone(), found.symbol.name.clone(), found.size_bytes)
    };
    let module = outside_capture(driver, || binary.module(driver, context))?;
    let (mut address, mut size_bytes) = (0, registered_bytes);
    unsafe { driver.cuModuleGetGlobal_v2(&mut address, &mut size_bytes, module, name.as_ptr()) }.map_err(|error| match error {
        Error::SYMBOL_NOT_FOUND => Error::INVALID_SYMBOL,
        other => other,
    })?;
    Ok((driver, address, size_bytes))
}
