//! OpenCL. What the description says all about is generated; here is the rest.

mod devices;
mod driver;
mod events;
mod kernels;
mod memory;
mod programs;
mod transfers;

use std::ffi::c_void;
use std::io;
use std::sync::Arc;

use gpuremote_wire::{Decoder, Encoder, Malformed};

use crate::cuda::{array, bounded, handle_array, text};
use crate::handles::Handles;
use crate::options::Options;
use crate::worker::{Api, Link, Outcome};

#[allow(missing_docs, dead_code, clippy::all)]
mod calls {
    include!(concat!(env!("OUT_DIR"), "/opencl.rs"));
}

use calls::FAILED;
pub use calls::{API, MISSING};

const INVALID_VALUE: i32 = -30;
const INVALID_OPERATION: i32 = -59;

type Object = *mut c_void;

/// What the lanes of a session share.
pub struct Shared {
    functions: calls::Functions,
    handles: Handles,
    bound: Arc<crate::bound::Bound>,
    staged: transfers::Staged,
    events: events::Events,
    _library: libloading::Library,
}

impl Shared {
    /// Loads OpenCL's loader, or a driver that has all functions itself.
    pub fn load(options: &Options) -> Result<Self, String> {
        // The front end may be among this host's drivers: without a server's address it has no platforms.
        std::env::remove_var("NEARMETAL_GPU_SERVER");
        // SAFETY: the operator names OpenCL's loader, whose initialization is safe.
        let library = unsafe { libloading::Library::new(&options.opencl) };
        let library = library.map_err(|error| format!("can't load OpenCL {}: {error}", options.opencl))?;
        Ok(Shared {
            // SAFETY: the library is of this API.
            functions: unsafe { driver::functions(&library) },
            handles: Handles::new(&calls::FIRST_HANDLES),
            bound: options.bound()?,
            staged: transfers::Staged::default(),
            events: events::Events::default(),
            _library: library,
        })
    }
}

/// A lane's part.
pub struct Server {
    shared: Arc<Shared>,
}

impl std::ops::Deref for Server {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Server {
    pub fn new(shared: Arc<Shared>) -> Self {
        Server { shared }
    }

    /// The object with this number.
    fn get(&self, kind: usize, number: u64) -> Option<Object> {
        self.handles.get(kind, number)
    }

    /// A list of objects: how many, and their numbers. The outer none: a number stands for nothing.
    fn list(&self, decoder: &mut Decoder<'_>, kind: usize) -> Result<Option<Vec<Object>>, Malformed> {
        let count = bounded(decoder.u32()? as usize, 8)?;
        let numbers: Vec<u64> = (0..count).map(|_| decoder.u64()).collect::<Result<_, _>>()?;
        Ok(numbers.into_iter().map(|number| self.get(kind, number)).collect())
    }
}

impl Api for Server {
    fn blocks(&self, function: u16) -> bool {
        calls::blocks(function)
    }

    fn failed(&self) -> i32 {
        FAILED
    }

    fn run(&mut self, link: &mut Link<'_>, function: u16, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        // SAFETY: the library that was loaded is OpenCL, and the description has its functions' types.
        unsafe { calls::dispatch(self, link, function, decoder, values) }
    }
}

/// A pointer to a list, which is null when there is none.
fn pointer(list: &[Object]) -> *const Object {
    if list.is_empty() {
        std::ptr::null()
    } else {
        list.as_ptr()
    }
}

/// Data that follows a call.
fn data(link: &mut Link<'_>, bytes: usize) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    data.try_reserve_exact(bytes).map_err(|_| Malformed("more data follows than there is memory"))?;
    data.resize(bytes, 0);
    link.lane.read(&mut data)?;
    Ok(data)
}

/// The value of a query, by a function that first tells its length.
fn info(mut run: impl FnMut(usize, *mut u8, *mut usize) -> i32) -> Result<Vec<u8>, i32> {
    let mut bytes = 0;
    match run(0, std::ptr::null_mut(), &mut bytes) {
        0 => {}
        status => return Err(status),
    }
    let mut value = vec![0; bytes];
    match run(bytes, value.as_mut_ptr(), std::ptr::null_mut()) {
        0 => Ok(value),
        status => Err(status),
    }
}
