//! What is known about kernels, and how many of their blocks fit.

use super::{require, runtime_api, store};
use crate::abi::*;
use crate::registry;
use std::ffi::{c_char, c_int, c_uint, c_void};

runtime_api! {
    /// Stores the attributes of a kernel.
    fn cudaFuncGetAttributes(attr: *mut FunctionAttributes, func: *const c_void) {
        require(attr)?;
        let (driver, kernel) = registry::kernel(func)?;
        let read = |number: c_int| {
            let mut value = 0;
            unsafe { driver.cuFuncGetAttribute(&mut value, number, kernel.handle()) }.map(|()| value)
        };
        // Attributes newer than the driver stay 0.
        let read_if_known = |number: c_int| read(number).unwrap_or(0);
        let attributes = FunctionAttributes {
            sharedSizeBytes: read(1)? as usize,
            constSizeBytes: read(2)? as usize,
            localSizeBytes: read(3)? as usize,
            maxThreadsPerBlock: read(0)?,
            numRegs: read(4)?,
            ptxVersion: read(5)?,
            binaryVersion: read(6)?,
            cacheModeCA: read(7)?,
            maxDynamicSharedSizeBytes: read(8)?,
            preferredShmemCarveout: read(9)?,
            clusterDimMustBeSet: read_if_known(10),
            requiredClusterWidth: read_if_known(11),
            requiredClusterHeight: read_if_known(12),
            requiredClusterDepth: read_if_known(13),
            clusterSchedulingPolicyPreference: read_if_known(15),
            nonPortableClusterSizeAllowed: read_if_known(14),
            reserved: [0; 16],
        };
        unsafe { store(attr, attributes) }
    }

    /// Sets an attribute of a kernel.
    fn cudaFuncSetAttribute(func: *const c_void, attr: c_int, value: c_int) {
        let (driver, kernel) = registry::kernel(func)?;
        kernel.set_attribute(driver, attr, value)
    }

    /// Sets the preference of a kernel for caches.
    fn cudaFuncSetCacheConfig(func: *const c_void, cacheConfig: c_uint) {
        let (driver, kernel) = registry::kernel(func)?;
        unsafe { driver.cuFuncSetCacheConfig(kernel.handle(), cacheConfig) }
    }

    /// Stores the name of a kernel.
    fn cudaFuncGetName(name: *mut *const c_char, func: *const c_void) {
        let known = registry::kernel_name(func).ok_or(crate::error::Error::INVALID_DEVICE_FUNCTION)?;
        unsafe { store(name, known) }
    }

    /// Stores offset and size of a parameter of a kernel in bytes.
    fn cudaFuncGetParamInfo(func: *const c_void, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize) {
        let (driver, kernel) = registry::kernel(func)?;
        unsafe { driver.cuFuncGetParamInfo(kernel.handle(), paramIndex, paramOffset, paramSize) }
    }

    /// Stores the handle that the driver has for a kernel on the current context.
    fn cudaGetFuncBySymbol(functionPtr: *mut Handle, symbolPtr: *const c_void) {
        require(functionPtr)?;
        let (_, kernel) = registry::kernel(symbolPtr)?;
        unsafe { store(functionPtr, kernel.handle()) }
    }

    /// Stores the blocks of a kernel that fit on a multiprocessor.
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        numBlocks: *mut c_int, func: *const c_void, blockSize: c_int, dynamicSMemSize: usize,
    ) {
        let (driver, kernel) = registry::kernel(func)?;
        unsafe {
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, kernel.handle(), blockSize, dynamicSMemSize, 0)
        }
    }

    /// Stores the blocks of a kernel that fit on a multiprocessor.
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        numBlocks: *mut c_int, func: *const c_void, blockSize: c_int, dynamicSMemSize: usize, flags: c_uint,
    ) {
        let (driver, kernel) = registry::kernel(func)?;
        unsafe {
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                numBlocks, kernel.handle(), blockSize, dynamicSMemSize, flags,
            )
        }
    }

    /// Stores the dynamic shared memory that each of some blocks can have.
    fn cudaOccupancyAvailableDynamicSMemPerBlock(
        dynamicSmemSize: *mut usize, func: *const c_void, numBlocks: c_int, blockSize: c_int,
    ) {
        let (driver, kernel) = registry::kernel(func)?;
        unsafe { driver.cuOccupancyAvailableDynamicSMemPerBlock(dynamicSmemSize, kernel.handle(), numBlocks, blockSize) }
    }
}
