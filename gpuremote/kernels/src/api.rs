//! What a program needs from a GPU API, and the two APIs that provide it.

use std::path::Path;
use std::rc::Rc;

pub mod calls;
pub mod cuda;
pub mod opencl;

use crate::plain::{bytes_of, bytes_of_mut, Plain};
use crate::program::Program;
use calls::CallLog;

/// Which API a program runs through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiKind {
    /// OpenCL 1.2, through the ICD loader or an implementation.
    OpenCl,
    /// The CUDA driver API.
    Cuda,
}

impl ApiKind {
    /// All APIs.
    pub const ALL: [ApiKind; 2] = [ApiKind::OpenCl, ApiKind::Cuda];

    /// Returns the name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenCl => "opencl",
            Self::Cuda => "cuda",
        }
    }

    /// Returns the library that is loaded unless the caller names another.
    pub fn default_library(self) -> &'static str {
        match self {
            Self::OpenCl => "libOpenCL.so.1",
            Self::Cuda => "libcuda.so.1",
        }
    }
}

/// A loaded API library, from which devices are opened.
pub enum Api {
    /// OpenCL.
    OpenCl(Rc<opencl::Library>),
    /// CUDA.
    Cuda(Rc<cuda::Library>),
}

impl Api {
    /// Loads `library`, or the API's default library. Errors name the library or the missing function.
    pub fn load(kind: ApiKind, library: Option<&Path>) -> Result<Self, Error> {
        let path = library.unwrap_or(Path::new(kind.default_library()));
        Ok(match kind {
            ApiKind::OpenCl => Self::OpenCl(Rc::new(opencl::Library::load(path)?)),
            ApiKind::Cuda => Self::Cuda(Rc::new(cuda::Library::load(path)?)),
        })
    }

    /// Initializes the API and returns its first device with a context of its own.
    pub fn open(&self) -> Result<Box<dyn Device>, Error> {
        Ok(match self {
            Self::OpenCl(library) => Box::new(opencl::OpenClDevice::open(library.clone())?),
            Self::Cuda(library) => Box::new(cuda::CudaDevice::open(library.clone())?),
        })
    }
}

/// Device memory. The handle is the API's own; freeing is explicit, as in the APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// A device address (CUDA) or a `cl_mem` (OpenCL).
    pub handle: u64,
    /// Size in bytes.
    pub size_bytes: usize,
}

/// Page-locked host memory that the API allocated; [`Device::free_pinned`] frees it.
#[derive(Debug)]
pub struct PinnedMemory {
    address: *mut u8,
    size_bytes: usize,
}

impl PinnedMemory {
    /// Returns the memory.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the API allocated this many bytes, and freeing consumes `self`.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.size_bytes) }
    }
}

/// A point in the device's queue that the host can wait for: an event of the API.
#[derive(Clone, Copy, Debug)]
pub struct Marker(pub u64);

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    /// Device memory.
    Buffer(Buffer),
    /// A 32-bit integer.
    Int(i32),
    /// A 32-bit floating-point number.
    Float(f32),
}

impl From<Buffer> for Argument {
    fn from(buffer: Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<i32> for Argument {
    fn from(value: i32) -> Self {
        Self::Int(value)
    }
}

impl From<usize> for Argument {
    /// Sizes and indices of these programs are 32-bit on the device.
    fn from(value: usize) -> Self {
        Self::Int(i32::try_from(value).expect("an index fits 32 bits"))
    }
}

impl From<f32> for Argument {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

/// The work-items of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Groups in x and y.
    pub groups: [usize; 2],
    /// Work-items of a group in x and y.
    pub group_size: [usize; 2],
}

impl Grid {
    /// Returns `groups` groups of `group_size` work-items in a row.
    pub fn line(groups: usize, group_size: usize) -> Self {
        Self { groups: [groups, 1], group_size: [group_size, 1] }
    }

    /// Returns `columns` x `rows` groups of `side` x `side` work-items.
    pub fn plane(columns: usize, rows: usize, side: usize) -> Self {
        Self { groups: [columns, rows], group_size: [side, side] }
    }
}

/// A device with a context and a queue of its own. Every method is one step of a program and logs the API calls that it makes.
pub trait Device {
    /// Returns the device's and the driver's name, for reports.
    fn description(&self) -> String;
    /// Builds `program` and looks up its kernels; launches refer to the latest program.
    fn load(&mut self, program: &'static Program) -> Result<(), Error>;
    /// Allocates device memory. [`Error::is_out_of_memory`] reports whether a refusal is for lack of memory.
    fn allocate(&mut self, size_bytes: usize) -> Result<Buffer, Error>;
    /// Copies pageable host memory to the start of `buffer` and returns when `bytes` may be reused.
    fn write(&mut self, buffer: Buffer, bytes: &[u8]) -> Result<(), Error>;
    /// Copies the start of `buffer` to pageable host memory after all queued work.
    fn read(&mut self, buffer: Buffer, bytes: &mut [u8]) -> Result<(), Error>;
    /// Queues a copy of all of `source` to `destination`.
    fn copy(&mut self, source: Buffer, destination: Buffer) -> Result<(), Error>;
    /// Queues the kernel with index `kernel` of the loaded program.
    fn launch(&mut self, kernel: usize, grid: Grid, arguments: &[Argument]) -> Result<(), Error>;
    /// Waits for all queued work.
    fn finish(&mut self) -> Result<(), Error>;
    /// Asks about or flushes the queue without waiting: the API's cheapest call about a queue.
    fn poll(&mut self) -> Result<(), Error>;
    /// Queues a marker behind all queued work.
    fn mark(&mut self) -> Result<Marker, Error>;
    /// Waits until the device has reached `marker`, and frees it.
    fn wait(&mut self, marker: Marker) -> Result<(), Error>;
    /// Frees device memory.
    fn free(&mut self, buffer: Buffer) -> Result<(), Error>;
    /// Allocates page-locked host memory; `None` if the API has no call for it.
    fn allocate_pinned(&mut self, size_bytes: usize) -> Result<Option<PinnedMemory>, Error>;
    /// Frees page-locked host memory.
    fn free_pinned(&mut self, memory: PinnedMemory) -> Result<(), Error>;
    /// Releases program, queue and context. Later calls to other methods fail; another `close` does nothing.
    fn close(&mut self) -> Result<(), Error>;
    /// Returns the calls logged so far.
    fn calls(&mut self) -> &mut CallLog;
}

impl dyn Device + '_ {
    /// Allocates memory for `length` numbers.
    pub fn allocate_for<T: Plain>(&mut self, length: usize) -> Result<Buffer, Error> {
        self.allocate(length * size_of::<T>())
    }

    /// Copies numbers to the device.
    pub fn write_values<T: Plain>(&mut self, buffer: Buffer, values: &[T]) -> Result<(), Error> {
        self.write(buffer, bytes_of(values))
    }

    /// Copies numbers from the device.
    pub fn read_values<T: Plain>(&mut self, buffer: Buffer, values: &mut [T]) -> Result<(), Error> {
        self.read(buffer, bytes_of_mut(values))
    }
}

/// Why an API step failed.
#[derive(Debug)]
pub enum Error {
    /// The library can't be loaded or lacks a function.
    Library {
        /// The library, as given.
        library: String,
        /// The loader's reason.
        reason: String,
    },
    /// The API has no device to run on.
    NoDevice(String),
    /// A program can't be built.
    Build {
        /// The program's name.
        program: &'static str,
        /// The compiler's log.
        log: String,
    },
    /// A call returned an error code.
    Call {
        /// The function.
        call: &'static str,
        /// Its result.
        code: i32,
        /// The code's name in the API.
        name: String,
        /// Whether the code stands for lack of device memory.
        out_of_memory: bool,
    },
    /// A result differs from the reference.
    WrongResult(String),
}

impl Error {
    /// Reports whether the API refused for lack of device memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Call { out_of_memory: true, .. })
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Library { library, reason } => write!(f, "can't load {library}: {reason}"),
            Self::NoDevice(reason) => write!(f, "no device to run on: {reason}"),
            Self::Build { program, log } => {
                write!(f, "program \"{program}\" can't be built: {log}")
            }
            Self::Call { call, code, name, .. } => write!(f, "{call} failed: {name} ({code})"),
            Self::WrongResult(difference) => write!(f, "wrong result: {difference}"),
        }
    }
}

impl std::error::Error for Error {}
