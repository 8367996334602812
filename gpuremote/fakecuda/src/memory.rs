//! Memory that the driver knows: device memory, managed memory, and pinned host memory.
//!
//! A device address lies in a reserved range without access rights, and its bytes lie elsewhere ("backing"). The distance between
//! allocations exceeds a page and addresses aren't reused, so each access outside a live allocation is recognized.

use crate::abi::*;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::ptr;
use std::sync::Mutex;

/// Addresses reserved for device memory of all devices, in bytes.
const RESERVED_BYTES: u64 = 1 << 42;
const PAGE_BYTES: u64 = 4096;
/// New memory holds this byte, up to [`PATTERN_LIMIT_BYTES`], so that clients don't rely on zeros.
const PATTERN: u8 = 0xA5;
const PATTERN_LIMIT_BYTES: usize = 1 << 20;

/// What an allocation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Device memory, not accessible from the host.
    Device,
    /// Managed memory, accessible from host and device at one address.
    Managed,
    /// Host memory from `cuMemAllocHost` or `cuMemHostAlloc`.
    Pinned,
    /// Host memory of the caller from `cuMemHostRegister`.
    Registered,
}

/// One allocation.
#[derive(Debug, Clone, Copy)]
pub struct Allocation {
    /// First address.
    pub base: u64,
    /// Size as requested, in bytes.
    pub size_bytes: usize,
    /// What it is.
    pub kind: Kind,
    /// Device on which it counts.
    pub device: CUdevice,
    /// Context in which it was made.
    pub context: CUcontext,
    /// Flags of the call that made it.
    pub flags: u32,
    backing: usize,
    mapped_bytes: usize,
}

struct Tables {
    allocations: BTreeMap<u64, Allocation>,
    next: u64,
    used_bytes: Vec<u64>,
}

/// The memory of all devices.
pub struct Memory {
    reserved: u64,
    limit_bytes: u64,
    tables: Mutex<Tables>,
}

fn map(bytes: u64, protection: i32) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let address = unsafe { libc::mmap(ptr::null_mut(), bytes as usize, protection, flags, -1, 0) };
    (address != libc::MAP_FAILED).then_some(address as u64)
}

fn pages(size_bytes: usize) -> u64 {
    (size_bytes as u64).div_ceil(PAGE_BYTES) * PAGE_BYTES
}

impl Memory {
    /// Reserves addresses for `devices` devices of `limit_bytes` each.
    pub fn new(devices: usize, limit_bytes: u64) -> Option<Memory> {
        let reserved = map(RESERVED_BYTES, libc::PROT_NONE)?;
        let tables = Tables { allocations: BTreeMap::new(), next: reserved + (1 << 21), used_bytes: vec![0; devices] };
        Some(Memory { reserved, limit_bytes, tables: Mutex::new(tables) })
    }

    fn tables(&self) -> std::sync::MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Total and free bytes of a device.
    pub fn total_and_free_bytes(&self, device: CUdevice) -> (u64, u64) {
        let used = self.tables().used_bytes[device as usize];
        (self.limit_bytes, self.limit_bytes - used)
    }

    /// Allocates `size_bytes` of `kind`.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE` for no bytes, `CUDA_ERROR_OUT_OF_MEMORY` beyond the size of the device.
    pub fn allocate(&self, size_bytes: usize, kind: Kind, device: CUdevice, context: CUcontext, flags: u32) -> Result<u64, CUresult> {
        if size_bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut tables = self.tables();
        let counted = counted_bytes(kind, size_bytes);
        if tables.used_bytes[device as usize].saturating_add(counted) > self.limit_bytes {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let mapped_bytes = pages(size_bytes);
        let backing = map(mapped_bytes + PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        unsafe {
            // An overrun of the host's own code is stopped here.
            libc::mprotect((backing + mapped_bytes) as *mut _, PAGE_BYTES as usize, libc::PROT_NONE);
            ptr::write_bytes(backing as *mut u8, PATTERN, size_bytes.min(PATTERN_LIMIT_BYTES));
        }
        let base = if kind == Kind::Device {
            let base = tables.next;
            tables.next += mapped_bytes + 2 * PAGE_BYTES;
            base
        } else {
            backing
        };
        if tables.next > self.reserved + RESERVED_BYTES {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        tables.used_bytes[device as usize] += counted;
        let allocation = Allocation {
            base,
            size_bytes,
            kind,
            device,
            context,
            flags,
            backing: backing as usize,
            mapped_bytes: (mapped_bytes + PAGE_BYTES) as usize,
        };
        tables.allocations.insert(base, allocation);
        Ok(base)
    }

    /// Makes host memory of the caller known.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE` for an empty range, `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED` if part of it is known.
    pub fn register(&self, address: u64, size_bytes: usize, device: CUdevice, context: CUcontext, flags: u32) -> Result<(), CUresult> {
        if address == 0 || size_bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut tables = self.tables();
        let end = address + size_bytes as u64;
        if let Some((_, last)) = tables.allocations.range(..end).next_back() {
            if last.base + last.size_bytes as u64 > address {
                return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
            }
        }
        let allocation = Allocation {
            base: address,
            size_bytes,
            kind: Kind::Registered,
            device,
            context,
            flags,
            backing: address as usize,
            mapped_bytes: 0,
        };
        tables.allocations.insert(address, allocation);
        Ok(())
    }

    /// Ends the allocation that begins at `base`, if `accept` takes its kind. `refusal` is the error otherwise.
    pub fn release(&self, base: u64, accept: &[Kind], refusal: CUresult) -> Result<(), CUresult> {
        let mut tables = self.tables();
        let Some(allocation) = tables.allocations.get(&base).copied() else { return Err(refusal) };
        if !accept.contains(&allocation.kind) {
            return Err(refusal);
        }
        tables.allocations.remove(&base);
        tables.used_bytes[allocation.device as usize] -= counted_bytes(allocation.kind, allocation.size_bytes);
        if allocation.mapped_bytes > 0 {
            unsafe { libc::munmap(allocation.backing as *mut _, allocation.mapped_bytes) };
        }
        Ok(())
    }

    /// Ends all allocations of a context.
    pub fn release_context(&self, context: CUcontext) {
        let all = [Kind::Device, Kind::Managed, Kind::Pinned, Kind::Registered];
        let bases: Vec<u64> = self.tables().allocations.values().filter(|item| item.context == context).map(|item| item.base).collect();
        for base in bases {
            let _ = self.release(base, &all, CUDA_ERROR_INVALID_VALUE);
        }
    }

    /// The allocation that holds `address`.
    pub fn find(&self, address: u64) -> Option<Allocation> {
        let tables = self.tables();
        let (_, last) = tables.allocations.range((Bound::Unbounded, Bound::Included(address))).next_back()?;
        (address - last.base < last.size_bytes as u64).then_some(*last)
    }

    /// Reports whether `address` lies where device memory is, live or not.
    pub fn is_device_address(&self, address: u64) -> bool {
        address.wrapping_sub(self.reserved) < RESERVED_BYTES
    }

    /// The bytes behind `size_bytes` at `address`, or nothing if one of them is outside an allocation.
    pub fn resolve(&self, address: u64, size_bytes: usize) -> Option<*mut u8> {
        let allocation = self.find(address)?;
        let offset = (address - allocation.base) as usize;
        (size_bytes <= allocation.size_bytes - offset).then_some((allocation.backing + offset) as *mut u8)
    }

    /// As [`Memory::resolve`], but an address unknown to the driver is taken as pageable host memory.
    pub fn resolve_any(&self, address: u64, size_bytes: usize) -> Option<*mut u8> {
        if self.find(address).is_some() || self.is_device_address(address) || address == 0 {
            return self.resolve(address, size_bytes);
        }
        Some(address as *mut u8)
    }
}

/// Bytes by which an allocation counts on its device.
fn counted_bytes(kind: Kind, size_bytes: usize) -> u64 {
    match kind {
        Kind::Device | Kind::Managed => size_bytes as u64,
        Kind::Pinned | Kind::Registered => 0,
    }
}
