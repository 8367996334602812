//! CUDA's driver API. What the description says all about is generated; here is the rest.

mod copies;
mod graphs;
mod hand;
mod host_functions;
mod launch;
mod memory;
mod pools;
mod tensor_maps;
mod transfers;

use std::ffi::{c_void, CString};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gpuremote_wire::{Decoder, Encoder, Malformed, MAX_ARGUMENT_BYTES};

use crate::handles::Handles;
use crate::options::Options;
use crate::worker::{Api, Link, Outcome};

#[allow(missing_docs, dead_code, clippy::all)]
mod calls {
    include!(concat!(env!("OUT_DIR"), "/cuda.rs"));
}

pub use calls::{kinds, API, FAILED, MISSING};
pub use copies::Copier;

const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
const INVALID_HANDLE: i32 = 400;
const NOT_SUPPORTED: i32 = 801;

/// What the lanes of a session share.
pub struct Shared {
    functions: calls::Functions,
    handles: Handles,
    allocations: Mutex<memory::Allocations>,
    host_functions: host_functions::HostFunctions,
    /// How often contexts may have ended, with all events in them and what was pinned for them.
    ended_contexts: AtomicU64,
    /// Whether a stream has captured a graph, ever.
    captures: AtomicBool,
    _library: libloading::Library,
}

impl Shared {
    /// Loads the driver.
    pub fn load(options: &Options) -> Result<Self, String> {
        // SAFETY: the operator names CUDA's driver, whose initialization is safe.
        let library = unsafe { libloading::Library::new(&options.cuda) };
        let library = library.map_err(|error| format!("can't load CUDA's driver {}: {error}", options.cuda))?;
        Ok(Shared {
            // SAFETY: the library is of this API.
            functions: unsafe { calls::Functions::load(&library) },
            handles: Handles::new(&calls::FIRST_HANDLES),
            allocations: Mutex::new(memory::Allocations::new(options.bound()?)),
            host_functions: host_functions::HostFunctions::default(),
            ended_contexts: AtomicU64::new(0),
            captures: AtomicBool::new(false),
            _library: library,
        })
    }

    /// What numbers stand for, for other APIs that use them.
    pub fn handles(&self) -> &Handles {
        &self.handles
    }
}

impl std::ops::Deref for Server {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// A lane's part.
pub struct Server {
    shared: Arc<Shared>,
    copier: copies::Copier,
}

impl Server {
    pub fn new(shared: Arc<Shared>) -> Self {
        Server { shared, copier: copies::Copier::default() }
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
        // SAFETY: the library that was loaded is CUDA's driver, and the description has its functions' types.
        let outcome = unsafe { calls::dispatch(self, link, function, decoder, values)? };
        if ends_context(function) {
            self.shared.ended_contexts.fetch_add(1, Ordering::SeqCst);
        }
        if captures(function) {
            self.shared.captures.store(true, Ordering::SeqCst);
        }
        if makes_current(function) && link.lane.shares_memory() {
            // Pinning takes a millisecond, which counts less beside the making of a context than in a first copy.
            let ended = self.shared.ended_contexts.load(Ordering::SeqCst);
            // SAFETY: as above.
            unsafe { self.copier.prepare(&self.shared.functions, &link.lane, ended) };
        }
        Ok(outcome)
    }
}

/// Whether a context may be current after this function that was not before.
fn makes_current(function: u16) -> bool {
    use calls::numbers::{cuCtxCreate_v2, cuCtxCreate_v3, cuCtxCreate_v4, cuCtxPushCurrent_v2, cuCtxSetCurrent};
    [cuCtxCreate_v2, cuCtxCreate_v3, cuCtxCreate_v4, cuCtxPushCurrent_v2, cuCtxSetCurrent].contains(&function)
}

/// Whether a stream may capture after this function.
fn captures(function: u16) -> bool {
    use calls::numbers::{cuStreamBeginCaptureToGraph, cuStreamBeginCapture_v2};
    [cuStreamBeginCapture_v2, cuStreamBeginCaptureToGraph].contains(&function)
}

/// Whether a context, with all in it, may end by this function.
fn ends_context(function: u16) -> bool {
    use calls::numbers::{cuCtxDestroy_v2, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset_v2};
    [cuCtxDestroy_v2, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset_v2].contains(&function)
}

/// So many values of this size fit a message.
pub(crate) fn bounded(count: usize, size: usize) -> Result<usize, Malformed> {
    match count.checked_mul(size) {
        Some(bytes) if bytes <= MAX_ARGUMENT_BYTES => Ok(count),
        _ => Err(Malformed("an array is too long")),
    }
}

/// An array, or none where the client gave a null pointer.
pub(crate) fn array<T>(
    decoder: &mut Decoder<'_>,
    count: usize,
    size: usize,
    mut value: impl FnMut(&mut Decoder<'_>) -> Result<T, Malformed>,
) -> Result<Option<Vec<T>>, Malformed> {
    if decoder.u8()? == 0 {
        return Ok(None);
    }
    (0..bounded(count, size)?).map(|_| value(decoder)).collect::<Result<_, _>>().map(Some)
}

/// An array of handles. The outer none: a number stands for nothing.
#[allow(dead_code)]
pub(crate) fn handle_array(
    decoder: &mut Decoder<'_>,
    count: usize,
    handles: &Handles,
    kind: usize,
) -> Result<Option<Option<Vec<*mut c_void>>>, Malformed> {
    let Some(numbers) = array(decoder, count, 8, |d| d.u64())? else { return Ok(Some(None)) };
    Ok(numbers.into_iter().map(|number| handles.get(kind, number)).collect::<Option<_>>().map(Some))
}

pub(crate) fn text(decoder: &mut Decoder<'_>) -> Result<CString, Malformed> {
    CString::new(decoder.bytes_counted()?).map_err(|_| Malformed("a text has a zero byte"))
}
