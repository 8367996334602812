//! Launches of kernels.

use super::{require, runtime_api};
use crate::abi::*;
use crate::driver::Driver;
use crate::error::{Error, Outcome};
use crate::registry::{self, Kernel};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

/// What a launch needs beside the kernel and its parameters.
#[derive(Clone, Copy)]
struct Shape {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
}

impl Shape {
    /// Checks what the driver would report later, or with a code of its own.
    fn check(&self, driver: &Driver, kernel: &Kernel) -> Outcome {
        let limits = kernel.limits;
        let fits = |extents: Dim3, limits: [c_uint; 3]| {
            let extents = [extents.x, extents.y, extents.z];
            extents.iter().zip(limits).all(|(extent, limit)| (1..=limit).contains(extent))
        };
        let threads = u64::from(self.block.x) * u64::from(self.block.y) * u64::from(self.block.z);
        if !fits(self.grid, limits.grid) || !fits(self.block, limits.block) || threads > u64::from(limits.block_threads) {
            return Err(Error::INVALID_VALUE);
        }
        if threads > kernel.max_threads as u64 {
            return Err(Error::LAUNCH_OUT_OF_RESOURCES);
        }
        if !kernel.allows_dynamic_bytes(driver, self.shared_bytes)? {
            return Err(Error::INVALID_VALUE);
        }
        Ok(())
    }
}

unsafe fn launch(stub: *const c_void, shape: Shape, parameters: *mut *mut c_void, stream: Handle) -> Outcome {
    let (driver, kernel) = registry::kernel(stub)?;
    shape.check(driver, &kernel)?;
    let Shape { grid, block, shared_bytes } = shape;
    let shared_bytes = shared_bytes as c_uint;
    unsafe {
        driver.cuLaunchKernel(
            kernel.handle(),
            grid.x,
            grid.y,
            grid.z,
            block.x,
            block.y,
            block.z,
            shared_bytes,
            stream,
            parameters,
            ptr::null_mut(),
        )
    }
}

impl LaunchConfig {
    fn shape(&self) -> Shape {
        Shape { grid: self.grid, block: self.block, shared_bytes: self.dynamic_shared_bytes }
    }

    fn for_driver(&self) -> DriverLaunchConfig {
        DriverLaunchConfig {
            grid: self.grid,
            block: self.block,
            shared_bytes: self.dynamic_shared_bytes as c_uint,
            stream: self.stream,
            attributes: self.attributes,
            attribute_count: self.attribute_count,
        }
    }
}

unsafe fn launch_extended(config: *const LaunchConfig, stub: *const c_void, parameters: *mut *mut c_void, default: Handle) -> Outcome {
    require(config)?;
    let mut config = unsafe { *config };
    if config.stream.is_null() {
        config.stream = default;
    }
    if config.attribute_count == 0 {
        return unsafe { launch(stub, config.shape(), parameters, config.stream) };
    }
    let (driver, kernel) = registry::kernel(stub)?;
    config.shape().check(driver, &kernel)?;
    unsafe { driver.cuLaunchKernelEx(&config.for_driver(), kernel.handle(), parameters, ptr::null_mut()) }
}

runtime_api! {
    /// Launches a kernel.
    fn cudaLaunchKernel | cudaLaunchKernel_ptsz [stream](
        func: *const c_void, gridDim: Dim3, blockDim: Dim3, args: *mut *mut c_void, sharedMem: usize, stream: Handle,
    ) {
        unsafe { launch(func, Shape { grid: gridDim, block: blockDim, shared_bytes: sharedMem }, args, stream) }
    }

    /// Launches a kernel by its handle, from the code that nvcc generates.
    fn __cudaLaunchKernel | __cudaLaunchKernel_ptsz [stream](
        kernel: *const c_void, gridDim: Dim3, blockDim: Dim3, args: *mut *mut c_void, sharedMem: usize, stream: Handle,
    ) {
        unsafe { launch(kernel, Shape { grid: gridDim, block: blockDim, shared_bytes: sharedMem }, args, stream) }
    }

    /// Launches a kernel with attributes.
    fn cudaLaunchKernelExC(config: *const LaunchConfig, func: *const c_void, args: *mut *mut c_void) {
        unsafe { launch_extended(config, func, args, DEFAULT_STREAM) }
    }

    /// Launches a kernel with attributes.
    fn cudaLaunchKernelExC_ptsz(config: *const LaunchConfig, func: *const c_void, args: *mut *mut c_void) {
        unsafe { launch_extended(config, func, args, PER_THREAD_STREAM) }
    }

    /// Launches a kernel whose blocks synchronize.
    fn cudaLaunchCooperativeKernel | cudaLaunchCooperativeKernel_ptsz [stream](
        func: *const c_void, gridDim: Dim3, blockDim: Dim3, args: *mut *mut c_void, sharedMem: usize, stream: Handle,
    ) {
        let (driver, kernel) = registry::kernel(func)?;
        let shape = Shape { grid: gridDim, block: blockDim, shared_bytes: sharedMem };
        shape.check(driver, &kernel)?;
        let (grid, block) = (gridDim, blockDim);
        unsafe {
            driver.cuLaunchCooperativeKernel(
                kernel.handle(), grid.x, grid.y, grid.z, block.x, block.y, block.z, sharedMem as c_uint, stream, args,
            )
        }
    }

    /// Stores the clusters of a launch that fit on the device.
    fn cudaOccupancyMaxActiveClusters(numClusters: *mut c_int, func: *const c_void, launchConfig: *const LaunchConfig) {
        require(launchConfig)?;
        let (driver, kernel) = registry::kernel(func)?;
        let config = unsafe { *launchConfig }.for_driver();
        unsafe { driver.cuOccupancyMaxActiveClusters(numClusters, kernel.handle(), &config) }
    }

    /// Stores the largest cluster of a launch.
    fn cudaOccupancyMaxPotentialClusterSize(clusterSize: *mut c_int, func: *const c_void, launchConfig: *const LaunchConfig) {
        require(launchConfig)?;
        let (driver, kernel) = registry::kernel(func)?;
        let config = unsafe { *launchConfig }.for_driver();
        unsafe { driver.cuOccupancyMaxPotentialClusterSize(clusterSize, kernel.handle(), &config) }
    }
}
