//! Memory pools, which hold attributes only: an allocation of a pool is one of its device.

use super::stream::find;
use super::{driver_api, require, store, Outcome};
use crate::abi::*;
use crate::driver::{Current, Driver, Initialized};
use crate::memory::Kind;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

/// A memory pool.
pub struct Pool {
    device: CUdevice,
    attributes: Mutex<HashMap<c_int, u64>>,
}

impl Pool {
    /// A pool of a device.
    pub fn new(device: CUdevice) -> Pool {
        Pool { device, attributes: Mutex::new(HashMap::new()) }
    }
}

/// The first three `CUmemPool_attribute`s are switches of 32 bits, on at first; the others count bytes in 64 bits.
const SWITCHES: std::ops::RangeInclusive<c_int> = 1..=3;
const COUNTS: std::ops::RangeInclusive<c_int> = 4..=8;

fn pool(driver: &Driver, handle: usize) -> Result<Arc<Pool>, CUresult> {
    driver.pools.get(handle).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn store_default(driver: &Driver, place: *mut usize, device: CUdevice) -> Outcome {
    driver.check_device(device)?;
    unsafe { store(place, driver.default_pools[device as usize]) }
}

driver_api! { ENTRIES;
    /// Stores the default pool of a device.
    fn cuDeviceGetDefaultMemPool(pool_out: *mut usize, dev: CUdevice) with Initialized(driver) => Initialized, {
        store_default(driver, pool_out, dev)
    }

    /// Stores the pool of a device, which is the default one.
    fn cuDeviceGetMemPool(pool: *mut usize, dev: CUdevice) with Initialized(driver) => Initialized, {
        store_default(driver, pool, dev)
    }

    /// Creates a pool of a device. Of the properties, kind and number of the place count.
    fn cuMemPoolCreate(pool: *mut usize, poolProps: *const c_int) with Initialized(driver) => Initialized, {
        require(pool)?;
        require(poolProps)?;
        let [kind, device] = [2, 3].map(|index| unsafe { *poolProps.add(index) });
        if kind != 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.check_device(device)?;
        unsafe { store(pool, driver.pools.add(Pool::new(device))) }
    }

    /// Ends a pool, whose allocations stay.
    fn cuMemPoolDestroy(pool: usize) with Initialized(driver) => Initialized, {
        if driver.default_pools.contains(&pool) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.pools.remove(pool).map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Stores an attribute of a pool.
    fn cuMemPoolGetAttribute(pool: usize, attr: c_int, value: *mut c_void) with Initialized(driver) => Initialized, {
        let pool = self::pool(driver, pool)?;
        let set = pool.attributes.lock().map_err(|_| CUDA_ERROR_UNKNOWN)?.get(&attr).copied();
        match attr {
            _ if SWITCHES.contains(&attr) => unsafe { store(value.cast::<u32>(), set.unwrap_or(1) as u32) },
            _ if COUNTS.contains(&attr) => unsafe { store(value.cast::<u64>(), set.unwrap_or(0)) },
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Sets an attribute of a pool.
    fn cuMemPoolSetAttribute(pool: usize, attr: c_int, value: *mut c_void) with Initialized(driver) => Initialized, {
        let pool = self::pool(driver, pool)?;
        require(value)?;
        let value = match attr {
            _ if SWITCHES.contains(&attr) => unsafe { value.cast::<u32>().read() }.into(),
            _ if COUNTS.contains(&attr) => unsafe { value.cast::<u64>().read() },
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        pool.attributes.lock().map_err(|_| CUDA_ERROR_UNKNOWN)?.insert(attr, value);
        Ok(())
    }

    /// Gives unused memory of a pool back, of which there is none.
    fn cuMemPoolTrimTo(pool: usize, minBytesToKeep: usize) with Initialized(driver) => Initialized, {
        self::pool(driver, pool).map(|_| ())
    }

    /// Allocates device memory of a pool in the order of a stream, here at once.
    fn cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: usize, hStream: CUstream)
        with current => Current,
    {
        let Current { driver, context } = &current;
        require(dptr)?;
        let device = self::pool(driver, pool)?.device;
        find(&current, hStream)?;
        let address = driver.memory.allocate(bytesize, Kind::Device, device, context.handle, 0)?;
        unsafe { store(dptr, address) }
    }
}
