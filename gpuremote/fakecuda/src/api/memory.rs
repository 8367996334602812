//! Memory: allocation, and what is known about an address.

use super::stream::find;
use super::{driver_api, require, store, Outcome};
use crate::abi::*;
use crate::driver::{Current, Driver, Initialized};
use crate::memory::{Allocation, Kind};
use std::ffi::{c_int, c_uint, c_void};

/// Alignment of the rows that `cuMemAllocPitch` gives, in bytes.
const PITCH_BYTES: usize = 512;

/// `CUpointer_attribute` values.
mod attribute {
    pub const CONTEXT: i32 = 1;
    pub const MEMORY_TYPE: i32 = 2;
    pub const DEVICE_POINTER: i32 = 3;
    pub const HOST_POINTER: i32 = 4;
    pub const SYNC_MEMOPS: i32 = 6;
    pub const BUFFER_ID: i32 = 7;
    pub const IS_MANAGED: i32 = 8;
    pub const DEVICE_ORDINAL: i32 = 9;
    pub const RANGE_START: i32 = 11;
    pub const RANGE_SIZE: i32 = 12;
    pub const MAPPED: i32 = 13;
}

fn allocate(current: &Current, place: *mut CUdeviceptr, size_bytes: usize, kind: Kind, flags: u32) -> Outcome {
    require(place)?;
    let Current { driver, context } = current;
    let address = driver.memory.allocate(size_bytes, kind, context.device, context.handle, flags)?;
    unsafe { store(place, address) }
}

/// Stores an attribute of the memory at `address`; memory that the driver doesn't know has zeros.
unsafe fn store_attribute(driver: &Driver, number: i32, place: *mut c_void, address: CUdeviceptr, known: Option<Allocation>) -> Outcome {
    let on_device = |item: &Allocation| matches!(item.kind, Kind::Device | Kind::Managed);
    let host_pointer = |item: &Allocation| if item.kind == Kind::Device { 0 } else { address };
    match number {
        attribute::CONTEXT => unsafe { store(place as *mut usize, known.map_or(0, |item| item.context)) },
        attribute::MEMORY_TYPE => {
            let value = known.map_or(0, |item| if on_device(&item) { memory_type::DEVICE } else { memory_type::HOST });
            unsafe { store(place as *mut c_uint, value) }
        }
        attribute::DEVICE_POINTER => unsafe { store(place as *mut u64, known.map_or(0, |_| address)) },
        attribute::HOST_POINTER => unsafe { store(place as *mut u64, known.as_ref().map_or(0, host_pointer)) },
        attribute::SYNC_MEMOPS => unsafe { store(place as *mut c_uint, 0) },
        attribute::BUFFER_ID | attribute::RANGE_START => unsafe { store(place as *mut u64, known.map_or(0, |item| item.base)) },
        attribute::IS_MANAGED => unsafe { store(place as *mut c_uint, known.is_some_and(|item| item.kind == Kind::Managed).into()) },
        attribute::DEVICE_ORDINAL => unsafe { store(place as *mut c_int, known.map_or(-2, |item| item.device)) },
        attribute::RANGE_SIZE => unsafe { store(place as *mut usize, known.map_or(0, |item| item.size_bytes)) },
        attribute::MAPPED => unsafe { store(place as *mut c_int, known.is_some().into()) },
        _ => {
            let _ = driver;
            Err(CUDA_ERROR_INVALID_VALUE)
        }
    }
}

fn host_allocate(current: &Current, place: *mut *mut c_void, size_bytes: usize, flags: u32) -> Outcome {
    if flags > 7 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    allocate(current, place as *mut CUdeviceptr, size_bytes, Kind::Pinned, flags)
}

driver_api! { ENTRIES;
    /// Stores free and total memory in bytes.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) with current => Current, {
        let (total_bytes, free_bytes) = current.driver.memory.total_and_free_bytes(current.context.device);
        unsafe {
            store(free, free_bytes as usize)?;
            store(total, total_bytes as usize)
        }
    }

    /// Allocates device memory.
    fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) with current => Current, {
        allocate(&current, dptr, bytesize, Kind::Device, 0)
    }

    /// Allocates device memory for rows.
    fn cuMemAllocPitch_v2(
        dptr: *mut CUdeviceptr, pPitch: *mut usize, WidthInBytes: usize, Height: usize, ElementSizeBytes: c_uint,
    ) with current => Current, {
        require(pPitch)?;
        if WidthInBytes == 0 || Height == 0 || !matches!(ElementSizeBytes, 4 | 8 | 16) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let pitch = WidthInBytes.next_multiple_of(PITCH_BYTES);
        allocate(&current, dptr, pitch * Height, Kind::Device, 0)?;
        unsafe { store(pPitch, pitch) }
    }

    /// Allocates managed memory.
    fn cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint) with current => Current, {
        // Global, host, single: exactly one of the first two.
        if !matches!(flags, 1 | 2) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        allocate(&current, dptr, bytesize, Kind::Managed, flags)
    }

    /// Allocates device memory in the order of a stream, here at once.
    fn cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream) with current => Current, {
        find(&current, hStream)?;
        allocate(&current, dptr, bytesize, Kind::Device, 0)
    }

    /// Ends an allocation after all work of the context.
    fn cuMemFree_v2(dptr: CUdeviceptr) with current => Current, {
        if dptr == 0 {
            return Ok(());
        }
        current.context.synchronize()?;
        current.driver.memory.release(dptr, &[Kind::Device, Kind::Managed], CUDA_ERROR_INVALID_VALUE)
    }

    /// Ends an allocation in the order of a stream.
    fn cuMemFreeAsync(dptr: CUdeviceptr, hStream: CUstream) with current => Current, {
        let stream = find(&current, hStream)?;
        if dptr == 0 {
            return Ok(());
        }
        let memory = current.driver.memory.clone();
        if memory.find(dptr).is_none_or(|item| item.base != dptr || item.kind != Kind::Device) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        current.context.submit(&stream, Box::new(move || {
            memory.release(dptr, &[Kind::Device], CUDA_ERROR_ILLEGAL_ADDRESS)
        }));
        Ok(())
    }

    /// Allocates pinned host memory.
    fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) with current => Current, {
        host_allocate(&current, pp, bytesize, 0)
    }

    /// Allocates pinned host memory.
    fn cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, Flags: c_uint) with current => Current, {
        host_allocate(&current, pp, bytesize, Flags)
    }

    /// Ends an allocation of pinned host memory, after all work.
    fn cuMemFreeHost(p: *mut c_void) with current => Current, {
        current.context.synchronize()?;
        current.driver.memory.release(p as u64, &[Kind::Pinned], CUDA_ERROR_INVALID_VALUE)
    }

    /// Pins host memory of the client.
    fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, Flags: c_uint) with current => Current, {
        let Current { driver, context } = &current;
        if Flags > 15 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.memory.register(p as u64, bytesize, context.device, context.handle, Flags)
    }

    /// Unpins host memory of the client, after all work.
    fn cuMemHostUnregister(p: *mut c_void) with current => Current, {
        current.context.synchronize()?;
        current.driver.memory.release(p as u64, &[Kind::Registered], CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
    }

    /// Stores the device address of pinned host memory, which is the same.
    fn cuMemHostGetDevicePointer_v2(pdptr: *mut CUdeviceptr, p: *mut c_void, Flags: c_uint) with current => Current, {
        let item = current.driver.memory.find(p as u64).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if Flags != 0 || item.kind == Kind::Device {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        unsafe { store(pdptr, p as u64) }
    }

    /// Stores the flags of pinned host memory.
    fn cuMemHostGetFlags(pFlags: *mut c_uint, p: *mut c_void) with current => Current, {
        let item = current.driver.memory.find(p as u64).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if item.kind != Kind::Pinned {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        unsafe { store(pFlags, item.flags) }
    }

    /// Stores the allocation around an address.
    fn cuMemGetAddressRange_v2(pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr)
        with current => Current,
    {
        let item = current.driver.memory.find(dptr).ok_or(CUDA_ERROR_NOT_FOUND)?;
        if !pbase.is_null() {
            unsafe { store(pbase, item.base) }?;
        }
        if psize.is_null() { Ok(()) } else { unsafe { store(psize, item.size_bytes) } }
    }

    /// Stores an attribute of the memory at an address.
    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, ptr: CUdeviceptr)
        with Initialized(driver) => Initialized,
    {
        let item = driver.memory.find(ptr).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        unsafe { store_attribute(driver, attribute, data, ptr, Some(item)) }
    }

    /// Stores attributes of the memory at an address.
    fn cuPointerGetAttributes(
        numAttributes: c_uint, attributes: *const c_int, data: *const *mut c_void, ptr: CUdeviceptr,
    ) with Initialized(driver) => Initialized, {
        require(attributes)?;
        require(data)?;
        let known = driver.memory.find(ptr);
        for index in 0..numAttributes as usize {
            let (number, place) = unsafe { (*attributes.add(index), *data.add(index)) };
            unsafe { store_attribute(driver, number, place, ptr, known) }?;
        }
        Ok(())
    }

    /// Takes advice about managed memory, without effect.
    fn cuMemAdvise_v2(devPtr: CUdeviceptr, count: usize, advice: c_uint, device: u64) with current => Current, {
        current.driver.memory.resolve(devPtr, count).map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Moves managed memory, which is at one place here.
    fn cuMemPrefetchAsync_v2(devPtr: CUdeviceptr, count: usize, device: u64, flags: c_uint, hStream: CUstream)
        with current => Current,
    {
        find(&current, hStream)?;
        current.driver.memory.resolve(devPtr, count).map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}
