//! Allocation, and what is known about an address.

use super::{require, runtime_api, store};
use crate::abi::*;
use crate::context;
use crate::error::{Error, Outcome};
use std::ffi::{c_uint, c_void};
use std::ptr;

/// Calls the allocation with a place for the address, and stores the pointer. No bytes give a null pointer.
unsafe fn allocate(place: *mut *mut c_void, bytes: usize, call: impl FnOnce(&mut Address) -> Outcome) -> Outcome {
    require(place)?;
    let mut address = 0;
    if bytes > 0 {
        call(&mut address)?;
    }
    unsafe { store(place, ptr::with_exposed_provenance_mut(address as usize)) }
}

fn address(pointer: *const c_void) -> Address {
    pointer.expose_provenance() as Address
}

unsafe fn allocate_host(place: *mut *mut c_void, bytes: usize, flags: c_uint) -> Outcome {
    require(place)?;
    let (driver, _) = context::current()?;
    let mut pointer = ptr::null_mut();
    if bytes > 0 {
        unsafe { driver.cuMemHostAlloc(&mut pointer, bytes, flags) }?;
    }
    unsafe { store(place, pointer) }
}

runtime_api! {
    /// Allocates device memory.
    fn cudaMalloc(devPtr: *mut *mut c_void, size: usize) {
        let (driver, _) = context::current()?;
        unsafe { allocate(devPtr, size, |address| driver.cuMemAlloc_v2(address, size)) }
    }

    /// Allocates device memory for rows.
    fn cudaMallocPitch(devPtr: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize) {
        require(pitch)?;
        let (driver, _) = context::current()?;
        if width == 0 || height == 0 {
            unsafe { store(pitch, 0) }?;
        }
        unsafe { allocate(devPtr, width * height, |address| driver.cuMemAllocPitch_v2(address, pitch, width, height, 4)) }
    }

    /// Allocates managed memory.
    fn cudaMallocManaged(devPtr: *mut *mut c_void, size: usize, flags: c_uint) {
        let (driver, _) = context::current()?;
        if size == 0 {
            return Err(Error::INVALID_VALUE);
        }
        unsafe { allocate(devPtr, size, |address| driver.cuMemAllocManaged(address, size, flags)) }
    }

    /// Allocates device memory in the order of a stream.
    fn cudaMallocAsync | cudaMallocAsync_ptsz [hStream](devPtr: *mut *mut c_void, size: usize, hStream: Handle) {
        let (driver, _) = context::current()?;
        unsafe { allocate(devPtr, size, |address| driver.cuMemAllocAsync(address, size, hStream)) }
    }

    /// Allocates device memory of a pool in the order of a stream.
    fn cudaMallocFromPoolAsync | cudaMallocFromPoolAsync_ptsz [stream](
        ptr: *mut *mut c_void, size: usize, memPool: Handle, stream: Handle,
    ) {
        let (driver, _) = context::current()?;
        unsafe { allocate(ptr, size, |address| driver.cuMemAllocFromPoolAsync(address, size, memPool, stream)) }
    }

    /// Ends an allocation of device memory or managed memory. A null pointer only initializes.
    fn cudaFree(devPtr: *mut c_void) {
        let (driver, _) = context::current()?;
        if devPtr.is_null() {
            return Ok(());
        }
        unsafe { driver.cuMemFree_v2(address(devPtr)) }
    }

    /// Ends an allocation of device memory in the order of a stream.
    fn cudaFreeAsync | cudaFreeAsync_ptsz [hStream](devPtr: *mut c_void, hStream: Handle) {
        let (driver, _) = context::current()?;
        if devPtr.is_null() {
            return Ok(());
        }
        unsafe { driver.cuMemFreeAsync(address(devPtr), hStream) }
    }

    /// Allocates pinned host memory.
    fn cudaMallocHost(ptr: *mut *mut c_void, size: usize) {
        unsafe { allocate_host(ptr, size, 0) }
    }

    /// Allocates pinned host memory.
    fn cudaHostAlloc(pHost: *mut *mut c_void, size: usize, flags: c_uint) {
        unsafe { allocate_host(pHost, size, flags) }
    }

    /// Ends an allocation of pinned host memory.
    fn cudaFreeHost(ptr: *mut c_void) {
        let (driver, _) = context::current()?;
        if ptr.is_null() {
            return Ok(());
        }
        unsafe { driver.cuMemFreeHost(ptr) }
    }

    /// Pins host memory.
    fn cudaHostRegister(ptr: *mut c_void, size: usize, flags: c_uint) {
        let (driver, _) = context::current()?;
        unsafe { driver.cuMemHostRegister_v2(ptr, size, flags) }
    }

    /// Unpins host memory.
    fn cudaHostUnregister(ptr: *mut c_void) {
        let (driver, _) = context::current()?;
        unsafe { driver.cuMemHostUnregister(ptr) }
    }

    /// Stores the device address of pinned host memory.
    fn cudaHostGetDevicePointer(pDevice: *mut *mut c_void, pHost: *mut c_void, flags: c_uint) {
        let (driver, _) = context::current()?;
        unsafe { allocate(pDevice, 1, |address| driver.cuMemHostGetDevicePointer_v2(address, pHost, flags)) }
    }

    /// Stores the flags of pinned host memory.
    fn cudaHostGetFlags(pFlags: *mut c_uint, pHost: *mut c_void) {
        let (driver, _) = context::current()?;
        unsafe { driver.cuMemHostGetFlags(pFlags, pHost) }
    }

    /// Stores free and total memory in bytes.
    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) {
        let (driver, _) = context::current()?;
        unsafe { driver.cuMemGetInfo_v2(free, total) }
    }

    /// Stores what is known about an address.
    fn cudaPointerGetAttributes(attributes: *mut PointerAttributes, ptr: *const c_void) {
        require(attributes)?;
        let (driver, _) = context::current()?;
        // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, _DEVICE_POINTER, _HOST_POINTER, _IS_MANAGED, _DEVICE_ORDINAL.
        const ATTRIBUTES: [c_uint; 5] = [2, 3, 4, 8, 9];
        let (mut kind, mut device_pointer, mut host_pointer, mut managed, mut device) =
            (0u32, ptr::null_mut::<c_void>(), ptr::null_mut::<c_void>(), 0u32, 0i32);
        let places: [*mut c_void; 5] = [
            (&raw mut kind).cast(),
            (&raw mut device_pointer).cast(),
            (&raw mut host_pointer).cast(),
            (&raw mut managed).cast(),
            (&raw mut device).cast(),
        ];
        unsafe { driver.cuPointerGetAttributes(5, ATTRIBUTES.as_ptr(), places.as_ptr(), address(ptr)) }?;
        // cudaMemoryType: unregistered 0, host 1, device 2, managed 3.
        let known = match kind {
            0 => PointerAttributes {
                kind: 0,
                device: -2,
                device_pointer: ptr::null_mut(),
                host_pointer: ptr.cast_mut(),
                reserved: [0; 8],
            },
            _ => PointerAttributes {
                kind: if managed != 0 { 3 } else { kind as i32 },
                device,
                device_pointer,
                host_pointer,
                reserved: [0; 8],
            },
        };
        unsafe { store(attributes, known) }
    }
}
