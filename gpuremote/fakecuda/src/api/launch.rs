//! Launches of kernels.

use super::stream::{find, record};
use super::{driver_api, store, Outcome};
use crate::abi::*;
use crate::device::limits;
use crate::driver::Current;
use crate::graph::{node_kind, Step};
use crate::image::Kernel;
use crate::kernels::{self, Launch};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

const PARAMETER_END: usize = 0;
const PARAMETER_POINTER: usize = 1;
const PARAMETER_SIZE: usize = 2;
const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;

/// Copies the values of the parameters, each behind its own pointer.
unsafe fn collected(kernel: &Kernel, pointers: *mut *mut c_void) -> Result<Vec<u8>, CUresult> {
    let mut buffer = vec![0; kernel.parameter_bytes()];
    if kernel.parameters.is_empty() {
        return Ok(buffer);
    }
    if pointers.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    for (index, place) in kernel.parameters.iter().enumerate() {
        let value = unsafe { *pointers.add(index) } as *const u8;
        if value.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let target = &mut buffer[place.offset_bytes..place.offset_bytes + place.size_bytes];
        target.copy_from_slice(unsafe { std::slice::from_raw_parts(value, place.size_bytes) });
    }
    Ok(buffer)
}

/// Copies the parameter buffer that the list `extra` names.
unsafe fn packed(kernel: &Kernel, extra: *mut *mut c_void) -> Result<Vec<u8>, CUresult> {
    let (mut buffer, mut size_bytes) = (std::ptr::null::<u8>(), 0);
    let mut item = extra;
    loop {
        match unsafe { *item } as usize {
            PARAMETER_END => break,
            PARAMETER_POINTER => buffer = unsafe { *item.add(1) } as *const u8,
            PARAMETER_SIZE => size_bytes = unsafe { *(*item.add(1) as *const usize) },
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        item = unsafe { item.add(2) };
    }
    // Alignment of the last parameter may pad the buffer.
    if buffer.is_null() || size_bytes < kernel.parameter_bytes() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(unsafe { std::slice::from_raw_parts(buffer, size_bytes) }.to_vec())
}

/// The extents of a launch.
pub struct Shape {
    /// Blocks in each dimension.
    pub grid: [c_uint; 3],
    /// Threads of a block in each dimension.
    pub block: [c_uint; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: c_uint,
}

fn check(shape: &Shape, dynamic_limit_bytes: c_uint) -> Outcome {
    let fits = |extents: &[c_uint; 3], limits: &[u32; 3]| extents.iter().zip(limits).all(|(extent, limit)| (1..=*limit).contains(extent));
    let threads: u64 = shape.block.iter().map(|extent| u64::from(*extent)).product();
    if !fits(&shape.grid, &limits::GRID)
        || !fits(&shape.block, &limits::BLOCK)
        || threads > u64::from(limits::THREADS_PER_BLOCK)
        || shape.shared_bytes > dynamic_limit_bytes
    {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

/// The work of a launch.
///
/// # Safety
///
/// The parameters are those of the kernel.
///
/// # Errors
///
/// Those of `cuLaunchKernel`.
pub unsafe fn step(
    current: &Current,
    handle: CUfunction,
    shape: &Shape,
    pointers: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<Step, CUresult> {
    // A kernel of a library stands for its function on the current context.
    let handle = current.driver.kernels.get(handle).map_or(Ok(handle), |kernel| kernel.function(current))?;
    let function = current.driver.functions.get(handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    if function.context != current.context.handle {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    let set = function.attributes.lock().map_err(|_| CUDA_ERROR_UNKNOWN)?.get(&MAX_DYNAMIC_SHARED_BYTES).copied();
    check(shape, set.map_or(limits::SHARED_BYTES, |bytes| bytes as c_uint))?;
    if !pointers.is_null() && !extra.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let parameters =
        if extra.is_null() { unsafe { collected(&function.kernel, pointers) }? } else { unsafe { packed(&function.kernel, extra) }? };
    let body = kernels::find(&function.kernel).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
    let launch = Launch {
        kernel: function.kernel.clone(),
        grid: shape.grid,
        block: shape.block,
        parameters,
        variables: function.variables.clone(),
        memory: current.driver.memory.clone(),
    };
    Ok(Arc::new(move || body(&launch)))
}

unsafe fn launch(
    current: &Current,
    handle: CUfunction,
    shape: Shape,
    stream: CUstream,
    pointers: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Outcome {
    let stream = find(current, stream)?;
    let step = unsafe { step(current, handle, &shape, pointers, extra) }?;
    current.context.append(&stream, current.driver.nodes.reserve(), node_kind::KERNEL, step).map(|_| ())
}

/// `CUlaunchAttribute`.
#[repr(C)]
struct Attribute {
    id: c_uint,
    padding: c_uint,
    value: [u64; 8],
}

/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION` and `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT`: the others have no effect.
const CLUSTER_DIMENSION: c_uint = 4;
const PROGRAMMATIC_EVENT: c_uint = 7;

unsafe fn launch_extended(
    current: &Current,
    config: &CUlaunchConfig,
    f: CUfunction,
    pointers: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Outcome {
    let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
    let shape = Shape { grid, block: [config.blockDimX, config.blockDimY, config.blockDimZ], shared_bytes: config.sharedMemBytes };
    let attributes: &[Attribute] = match config.numAttrs as usize {
        0 => &[],
        count => unsafe { std::slice::from_raw_parts(config.attrs.cast(), count) },
    };
    for Attribute { value, .. } in attributes.iter().filter(|attribute| attribute.id == CLUSTER_DIMENSION) {
        let cluster = [value[0] as u32, (value[0] >> 32) as u32, value[1] as u32];
        if grid.iter().zip(cluster).any(|(blocks, of_cluster)| of_cluster == 0 || blocks % of_cluster != 0) {
            return Err(CUDA_ERROR_INVALID_CLUSTER_SIZE);
        }
    }
    unsafe { launch(current, f, shape, config.hStream, pointers, extra) }?;
    for Attribute { value, .. } in attributes.iter().filter(|attribute| attribute.id == PROGRAMMATIC_EVENT) {
        record(current, value[0] as usize, config.hStream)?;
    }
    Ok(())
}

/// Blocks of a kernel that fit on a multiprocessor, by threads and shared memory.
fn occupancy(block_threads: c_int, dynamic_shared_bytes: usize) -> Result<c_int, CUresult> {
    const SHARED_PER_MULTIPROCESSOR_BYTES: usize = 228 << 10;
    const RESERVED_PER_BLOCK_BYTES: usize = 1 << 10;
    if block_threads < 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if block_threads as u32 > limits::THREADS_PER_BLOCK {
        return Ok(0);
    }
    let by_threads = limits::THREADS_PER_MULTIPROCESSOR / (block_threads as u32).next_multiple_of(32);
    let by_shared = SHARED_PER_MULTIPROCESSOR_BYTES / (dynamic_shared_bytes + RESERVED_PER_BLOCK_BYTES);
    Ok(by_threads.min(by_shared as u32).min(limits::BLOCKS_PER_MULTIPROCESSOR) as c_int)
}

driver_api! { ENTRIES;
    /// Launches a kernel.
    fn cuLaunchKernel(
        f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint,
        blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: CUstream, kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) with current => Current, {
        let shape = Shape {
            grid: [gridDimX, gridDimY, gridDimZ],
            block: [blockDimX, blockDimY, blockDimZ],
            shared_bytes: sharedMemBytes,
        };
        unsafe { launch(&current, f, shape, hStream, kernelParams, extra) }
    }

    /// Launches a kernel with attributes.
    fn cuLaunchKernelEx(
        config: *const CUlaunchConfig, f: CUfunction, kernelParams: *mut *mut c_void, extra: *mut *mut c_void,
    ) with current => Current, {
        if config.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        unsafe { launch_extended(&current, &*config, f, kernelParams, extra) }
    }

    /// Launches a kernel whose blocks synchronize, which no kernel here does.
    fn cuLaunchCooperativeKernel(
        f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint,
        blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: CUstream, kernelParams: *mut *mut c_void,
    ) with current => Current, {
        let shape = Shape {
            grid: [gridDimX, gridDimY, gridDimZ],
            block: [blockDimX, blockDimY, blockDimZ],
            shared_bytes: sharedMemBytes,
        };
        unsafe { launch(&current, f, shape, hStream, kernelParams, std::ptr::null_mut()) }
    }

    /// Stores the blocks of a kernel that fit on a multiprocessor.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        numBlocks: *mut c_int, func: CUfunction, blockSize: c_int, dynamicSMemSize: usize,
    ) with current => Current, {
        current.driver.functions.get(func).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        unsafe { store(numBlocks, occupancy(blockSize, dynamicSMemSize)?) }
    }

    /// Stores the blocks of a kernel that fit on a multiprocessor.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        numBlocks: *mut c_int, func: CUfunction, blockSize: c_int, dynamicSMemSize: usize, flags: c_uint,
    ) with current => Current, {
        current.driver.functions.get(func).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        unsafe { store(numBlocks, occupancy(blockSize, dynamicSMemSize)?) }
    }
}
