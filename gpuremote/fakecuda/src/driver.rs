//! The state of the driver in this process, and the checks before each call.
//!
//! The driver API has global functions, so its state is global. It is made once, by `cuInit`.

use crate::abi::*;
use crate::api::library::{Library, LibraryKernel};
use crate::api::pool::Pool;
use crate::context::{Context, Function, Module};
use crate::graph::{Executable, Graph};
use crate::memory::Memory;
use crate::stream::{self, Event, Stream};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// Live objects of one kind by their handles, which are never used again.
pub struct Handles<T: ?Sized> {
    kind: usize,
    next: AtomicUsize,
    live: Mutex<HashMap<usize, Arc<T>>>,
}

impl<T: ?Sized> Handles<T> {
    fn new(kind: usize) -> Handles<T> {
        Handles { kind, next: AtomicUsize::new(1), live: Mutex::new(HashMap::new()) }
    }

    fn live(&self) -> MutexGuard<'_, HashMap<usize, Arc<T>>> {
        self.live.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Reserves a handle.
    pub fn reserve(&self) -> usize {
        // The upper bits differ per kind, so that a handle of another kind isn't found.
        (self.kind << 40) | (self.next.fetch_add(1, Ordering::Relaxed) << 4)
    }

    /// Makes an object live under a reserved handle.
    pub fn insert(&self, handle: usize, object: Arc<T>) {
        self.live().insert(handle, object);
    }

    /// Makes an object live and returns its handle.
    pub fn add(&self, object: T) -> usize
    where
        T: Sized,
    {
        let handle = self.reserve();
        self.insert(handle, Arc::new(object));
        handle
    }

    /// The live object of a handle.
    pub fn get(&self, handle: usize) -> Option<Arc<T>> {
        self.live().get(&handle).cloned()
    }

    /// Ends a handle.
    pub fn remove(&self, handle: usize) -> Option<Arc<T>> {
        self.live().remove(&handle)
    }

    /// Ends the handles whose objects `ended` takes.
    pub fn remove_if(&self, ended: impl Fn(&T) -> bool) {
        self.live().retain(|_, object| !ended(object));
    }

    /// All live objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.live().values().cloned().collect()
    }
}

/// A primary context and the number of its users.
#[derive(Default)]
pub struct Primary {
    /// Its handle, which it keeps from its first creation on.
    pub handle: Option<CUcontext>,
    /// Reports whether it exists.
    pub active: bool,
    /// Retains without a release.
    pub retains: u32,
    /// Flags for its next creation.
    pub flags: u32,
}

/// The driver after `cuInit`.
pub struct Driver {
    /// Number of devices.
    pub devices: i32,
    /// Delay before each asynchronous operation.
    pub delay: Duration,
    /// All memory.
    pub memory: Arc<Memory>,
    /// Primary contexts by device.
    pub primaries: Mutex<Vec<Primary>>,
    /// Contexts.
    pub contexts: Handles<Context>,
    /// Modules.
    pub modules: Handles<Module>,
    /// Kernels of modules.
    pub functions: Handles<Function>,
    /// Streams that the client created.
    pub streams: Handles<Stream>,
    /// Events.
    pub events: Handles<Event>,
    /// Libraries, whose modules load at the first use on a context.
    pub libraries: Handles<Library>,
    /// Kernels of libraries.
    pub kernels: Handles<LibraryKernel>,
    /// Graphs.
    pub graphs: Handles<Graph>,
    /// Handles of nodes, which the graphs have.
    pub nodes: Handles<()>,
    /// Executable graphs.
    pub executables: Handles<Executable>,
    /// Memory pools.
    pub pools: Handles<Pool>,
    /// The default pool of each device.
    pub default_pools: Vec<usize>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

thread_local! {
    static CURRENT: RefCell<Vec<CUcontext>> = const { RefCell::new(Vec::new()) };
}

fn from_environment<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Makes the driver, for `cuInit`.
///
/// # Errors
///
/// `CUDA_ERROR_NO_DEVICE` with `FAKE_CUDA_DEVICES=0`, `CUDA_ERROR_OUT_OF_MEMORY` if no addresses can be reserved.
pub fn initialize() -> Result<(), CUresult> {
    let devices: i32 = from_environment("FAKE_CUDA_DEVICES", 1);
    if devices < 1 {
        return Err(CUDA_ERROR_NO_DEVICE);
    }
    if DRIVER.get().is_some() {
        return Ok(());
    }
    let limit_bytes = from_environment::<u64>("FAKE_CUDA_MEMORY_MIB", 256) << 20;
    let memory = Memory::new(devices as usize, limit_bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    let pools = Handles::new(0x90);
    let driver = Driver {
        devices,
        delay: Duration::from_micros(from_environment("FAKE_CUDA_DELAY_US", 0)),
        memory: Arc::new(memory),
        primaries: Mutex::new((0..devices).map(|_| Primary::default()).collect()),
        contexts: Handles::new(0xC7),
        modules: Handles::new(0x3D),
        functions: Handles::new(0xF5),
        streams: Handles::new(0x57),
        events: Handles::new(0xE7),
        libraries: Handles::new(0x1B),
        kernels: Handles::new(0x4E),
        graphs: Handles::new(0x6A),
        nodes: Handles::new(0x6D),
        executables: Handles::new(0x6B),
        default_pools: (0..devices).map(|device| pools.add(Pool::new(device))).collect(),
        pools,
    };
    // Another thread may have been first, with the same environment.
    let _ = DRIVER.set(driver);
    Ok(())
}

/// A condition of a call, with what the call gets from it.
pub trait Condition: Sized {
    /// Establishes the condition or gives the error of the call.
    fn establish() -> Result<Self, CUresult>;
}

/// The call is allowed before `cuInit`.
pub struct Always;

/// The call needs `cuInit`.
pub struct Initialized(pub &'static Driver);

/// The call needs a current context without an error.
pub struct Current {
    /// The driver.
    pub driver: &'static Driver,
    /// The current context.
    pub context: Arc<Context>,
}

impl Condition for Always {
    fn establish() -> Result<Always, CUresult> {
        Ok(Always)
    }
}

impl Condition for Initialized {
    fn establish() -> Result<Initialized, CUresult> {
        if stream::on_worker() {
            return Err(CUDA_ERROR_NOT_PERMITTED);
        }
        DRIVER.get().map(Initialized).ok_or(CUDA_ERROR_NOT_INITIALIZED)
    }
}

impl Condition for Current {
    fn establish() -> Result<Current, CUresult> {
        let Initialized(driver) = Initialized::establish()?;
        let handle = current().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        let context = driver.contexts.get(handle).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        context.check()?;
        Ok(Current { driver, context })
    }
}

/// Handle of the calling thread's current context.
pub fn current() -> Option<CUcontext> {
    CURRENT.with_borrow(|stack| stack.last().copied())
}

/// Puts a context on the calling thread's stack.
pub fn push_current(context: CUcontext) {
    CURRENT.with_borrow_mut(|stack| stack.push(context));
}

/// Takes the top of the calling thread's stack.
pub fn pop_current() -> Option<CUcontext> {
    CURRENT.with_borrow_mut(|stack| stack.pop())
}

impl Driver {
    /// Checks the ordinal of a device.
    pub fn check_device(&self, device: CUdevice) -> Result<(), CUresult> {
        if (0..self.devices).contains(&device) {
            return Ok(());
        }
        Err(CUDA_ERROR_INVALID_DEVICE)
    }

    /// The primary contexts.
    pub fn primaries(&self) -> MutexGuard<'_, Vec<Primary>> {
        self.primaries.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes a context and returns its handle.
    pub fn create_context(&self, device: CUdevice, flags: u32) -> CUcontext {
        let handle = self.contexts.reserve();
        self.create_context_as(handle, device, flags);
        handle
    }

    /// Makes a context with a reserved handle.
    pub fn create_context_as(&self, handle: CUcontext, device: CUdevice, flags: u32) {
        self.contexts.insert(handle, Arc::new(Context::new(handle, device, flags, self.delay)));
    }

    /// Ends a context with everything in it, after its work.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_CONTEXT` for an unknown handle.
    pub fn destroy_context(&self, handle: CUcontext) -> Result<(), CUresult> {
        let context = self.contexts.remove(handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        context.wait();
        self.functions.remove_if(|function| function.context == handle);
        self.modules.remove_if(|module| module.context == handle);
        self.streams.remove_if(|stream| stream.context == handle);
        self.events.remove_if(|event| event.context == handle);
        self.memory.release_context(handle);
        Ok(())
    }
}
