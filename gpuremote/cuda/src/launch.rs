//! Launches. Nobody waits for them: what is wrong with them is found here as far as it can be.

use std::slice;

use gpuremote_client::wire::Encoder;

use crate::front;
use crate::programs::{self, as_function, Parameters};
use crate::stubs::{kinds, numbers, remote, STATUSES};

/// CU_LAUNCH_PARAM_END, _BUFFER_POINTER and _BUFFER_SIZE.
const PARAMETERS_END: usize = 0;
const PARAMETERS_AT: usize = 1;
const PARAMETERS_BYTES: usize = 2;

/// A launch: in a stream, or as a node of a graph.
pub(crate) struct Launch<'a> {
    pub function: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub stream: u64,
    pub attributes: &'a [Attribute],
}

/// Where a launch's parameters are: each behind a pointer of its own, or all in one buffer, as the API has it.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    pub parameters: *const *const u8,
    pub extra: *const usize,
}

impl Launch<'_> {
    /// What is wrong with the launch as far as it can be seen here, or else where its parameters lie.
    fn check(&self, arguments: Arguments) -> Result<std::sync::Arc<Parameters>, i32> {
        if !front().is(kinds::CUstream, self.stream) {
            return Err(STATUSES.handle);
        }
        let places = programs::parameters(self.function).ok_or(STATUSES.handle)?;
        let threads = self.block.iter().map(|&extent| u64::from(extent)).product::<u64>();
        let is_too_large = self.block[2] > MOST_Z_THREADS || self.grid[1] > MOST_YZ_BLOCKS || self.grid[2] > MOST_YZ_BLOCKS;
        if self.grid.contains(&0) || threads == 0 || threads > MOST_THREADS || is_too_large {
            return Err(STATUSES.invalid);
        }
        for attribute in self.attributes {
            attribute.check()?;
        }
        match (arguments.parameters.is_null(), arguments.extra.is_null()) {
            (true, true) if !places.places.is_empty() => Err(STATUSES.invalid),
            (false, false) => Err(STATUSES.invalid),
            _ => Ok(places),
        }
    }

    /// The launch as the server reads it, written by the function that this returns.
    ///
    /// # Safety
    /// The arguments must be those that the function's parameters need.
    pub unsafe fn prepare(&self, arguments: Arguments) -> Result<impl FnOnce(&mut Encoder) + '_, i32> {
        let places = self.check(arguments)?;
        let buffer = if arguments.extra.is_null() { None } else { Some(from_buffer(arguments.extra).ok_or(STATUSES.invalid)?) };
        Ok(move |encoder: &mut Encoder| {
            self.encode_shape(encoder);
            if let Some(buffer) = buffer {
                encoder.bytes_counted(buffer);
                return;
            }
            encoder.u32(places.bytes as u32);
            let mut filled = 0;
            for (i, &(offset, bytes)) in places.places.iter().enumerate() {
                // Padding, as parameters are aligned.
                encoder.raw(&[0; 128][..(offset - filled).min(128)]);
                encoder.raw(slice::from_raw_parts(*arguments.parameters.add(i), bytes));
                filled = offset + bytes;
            }
        })
    }

    fn encode_shape(&self, encoder: &mut Encoder) {
        encoder.u64(self.function);
        for size in self.grid.into_iter().chain(self.block) {
            encoder.u32(size);
        }
        encoder.u32(self.shared_bytes);
        encoder.u64(self.stream);
        encoder.u8(self.attributes.len() as u8);
        for attribute in self.attributes {
            encoder.u32(attribute.id);
            encoder.raw(&attribute.value);
        }
    }
}

unsafe fn launch(launch: &Launch<'_>, arguments: Arguments) -> i32 {
    match launch.prepare(arguments) {
        Ok(encode) => front().post(numbers::cuLaunchKernel, encode),
        Err(status) => status,
    }
}

/// CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK of every GPU since compute capability 2.0.
const MOST_THREADS: u64 = 1024;
/// CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, and _MAX_GRID_DIM_Y and _Z, likewise.
const MOST_Z_THREADS: u32 = 64;
const MOST_YZ_BLOCKS: u32 = 65_535;

/// The buffer that `extra` names.
unsafe fn from_buffer<'a>(extra: *const usize) -> Option<&'a [u8]> {
    let (mut at, mut bytes) = (std::ptr::null(), 0);
    let mut entry = extra;
    loop {
        match *entry {
            PARAMETERS_END => break,
            PARAMETERS_AT => at = *entry.add(1) as *const u8,
            PARAMETERS_BYTES => bytes = *(*entry.add(1) as *const usize),
            _ => return None,
        }
        entry = entry.add(2);
    }
    (!at.is_null()).then(|| slice::from_raw_parts(at, bytes))
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: u64,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared_bytes: u32,
    stream: u64,
    parameters: *const *const u8,
    extra: *const usize,
) -> i32 {
    let shape = Launch { function, grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, stream, attributes: &[] };
    launch(&shape, Arguments { parameters, extra })
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cuLaunchCooperativeKernel(
    function: u64,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared_bytes: u32,
    stream: u64,
    parameters: *const *const u8,
) -> i32 {
    let mut cooperative = Attribute { id: COOPERATIVE, padding: [0; 4], value: [0; 64] };
    cooperative.value[0] = 1;
    let attributes = slice::from_ref(&cooperative);
    let shape = Launch { function, grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, stream, attributes };
    launch(&shape, Arguments { parameters, extra: std::ptr::null() })
}

/// CUlaunchConfig of the driver API.
#[repr(C)]
pub struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: u64,
    attributes: *const Attribute,
    attribute_count: u32,
}

/// CUlaunchAttribute of the driver API.
#[repr(C)]
pub(crate) struct Attribute {
    id: u32,
    padding: [u8; 4],
    value: [u8; 64],
}

/// CUlaunchAttributeID: those with a meaning here, and the last of the API's version 13.0.
const COOPERATIVE: u32 = 2;
const DEVICE_UPDATABLE_NODE: u32 = 13;
const LAST_ATTRIBUTE: u32 = 16;
/// The most attributes of a launch that travel.
const MOST_ATTRIBUTES: usize = 64;

impl Attribute {
    /// All but one are plain data, or events, whose numbers the server knows.
    fn check(&self) -> Result<(), i32> {
        if self.id > LAST_ATTRIBUTE {
            return Err(front().refuse("a launch with attributes later than CUDA 13.0"));
        }
        if self.id == DEVICE_UPDATABLE_NODE && self.value[0] != 0 {
            return Err(front().refuse("a launch that GPU programs update"));
        }
        Ok(())
    }
}

impl Config {
    unsafe fn attributes(&self) -> Result<&[Attribute], i32> {
        match self.attribute_count as usize {
            0 => Ok(&[]),
            count if count > MOST_ATTRIBUTES || self.attributes.is_null() => Err(STATUSES.invalid),
            count => Ok(slice::from_raw_parts(self.attributes, count)),
        }
    }

    unsafe fn launch(&self, function: u64) -> Result<Launch<'_>, i32> {
        let attributes = self.attributes()?;
        let Config { grid, block, shared_bytes, stream, .. } = *self;
        Ok(Launch { function, grid, block, shared_bytes, stream, attributes })
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuLaunchKernelEx(config: *const Config, function: u64, parameters: *const *const u8, extra: *const usize) -> i32 {
    if config.is_null() {
        return STATUSES.invalid;
    }
    match (*config).launch(function) {
        Ok(shape) => launch(&shape, Arguments { parameters, extra }),
        Err(status) => status,
    }
}

unsafe fn ask_of_clusters(number: u16, answer: *mut i32, function: u64, config: *const Config) -> i32 {
    if answer.is_null() || config.is_null() {
        return STATUSES.invalid;
    }
    let shape = as_function(function).and_then(|function| (*config).launch(function));
    let shape = match shape {
        Ok(shape) => shape,
        Err(status) => return status,
    };
    front().call(
        number,
        |encoder| shape.encode_shape(encoder),
        |decoder| {
            *answer = decoder.i32()?;
            Ok(())
        },
    )
}

#[no_mangle]
pub unsafe extern "C" fn cuOccupancyMaxActiveClusters(count: *mut i32, function: u64, config: *const Config) -> i32 {
    ask_of_clusters(numbers::cuOccupancyMaxActiveClusters, count, function, config)
}

#[no_mangle]
pub unsafe extern "C" fn cuOccupancyMaxPotentialClusterSize(size: *mut i32, function: u64, config: *const Config) -> i32 {
    ask_of_clusters(numbers::cuOccupancyMaxPotentialClusterSize, size, function, config)
}

/// Functions that take a kernel of a library for its function in the current context.
macro_rules! of_kernels {
    ($($name:ident($($before:ident: $before_type:ty,)* @function $(, $after:ident: $after_type:ty)*);)*) => {$(
        #[no_mangle]
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($before: $before_type,)* function: u64 $(, $after: $after_type)*) -> i32 {
            match as_function(function) {
                Ok(function) => remote::$name($($before,)* function $(, $after)*),
                Err(status) => status,
            }
        }
    )*};
}

of_kernels! {
    cuFuncGetAttribute(value: *mut i32, attribute: i32, @function);
    cuFuncSetAttribute(@function, attribute: i32, value: i32);
    cuFuncSetCacheConfig(@function, config: i32);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut i32, @function, threads: i32, shared_bytes: usize);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: *mut i32, @function, threads: i32, shared_bytes: usize, flags: u32);
    cuOccupancyAvailableDynamicSMemPerBlock(bytes: *mut usize, @function, blocks: i32, threads: i32);
    cuOccupancyMaxPotentialBlockSize(blocks: *mut i32, threads: *mut i32, @function, shared_of: *const std::ffi::c_void, shared_bytes: usize, most: i32);
    cuOccupancyMaxPotentialBlockSizeWithFlags(blocks: *mut i32, threads: *mut i32, @function, shared_of: *const std::ffi::c_void, shared_bytes: usize, most: i32, flags: u32);
}
