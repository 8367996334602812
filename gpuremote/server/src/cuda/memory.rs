//! A client's GPU memory, and its bounds.

use std::collections::HashMap;
use std::io;

use gpuremote_wire::{Decoder, Encoder};

use super::{calls, Server, INVALID_HANDLE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::worker::{Link, Outcome};

/// What a client has of the GPU's memory: bytes by address.
pub struct Allocations {
    bound_bytes: u64,
    used_bytes: u64,
    by_address: HashMap<u64, u64>,
}

impl Allocations {
    pub fn new(bound_bytes: u64) -> Self {
        Allocations { bound_bytes, used_bytes: 0, by_address: HashMap::new() }
    }

    /// Whether there is a bound at all.
    pub fn is_bounded(&self) -> bool {
        self.bound_bytes < u64::MAX
    }

    /// Whether so many bytes more are within the bound.
    fn fits(&self, bytes: u64) -> bool {
        bytes <= self.bound_bytes - self.used_bytes
    }

    fn add(&mut self, address: u64, bytes: u64) {
        self.used_bytes += bytes;
        self.by_address.insert(address, bytes);
    }

    fn remove(&mut self, address: u64) {
        if let Some(bytes) = self.by_address.remove(&address) {
            self.used_bytes -= bytes;
        }
    }
}

impl Server {
    /// Allocates within the bound. The lock is held meanwhile, so that two lanes do not pass it together.
    pub fn allocate(&self, bytes: u64, values: &mut Encoder, run: impl FnOnce(&mut u64, &mut Encoder) -> (i32, u64)) -> Outcome {
        let mut allocations = self.allocations.lock().expect("no one panics with this lock");
        if !allocations.fits(bytes) {
            return Outcome::Status(OUT_OF_MEMORY);
        }
        let mut address = 0;
        let (status, bytes) = run(&mut address, values);
        if status == 0 {
            allocations.add(address, bytes);
        }
        Outcome::Status(status)
    }

    pub unsafe fn cu_mem_alloc_v2(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        let _wanted = decoder.u8()?;
        let bytes = decoder.usize()?;
        decoder.finish()?;
        let Some(run) = self.functions.cuMemAlloc_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        Ok(self.allocate(bytes as u64, values, |address, values| {
            let status = run(address, bytes);
            values.u64(*address);
            (status, bytes as u64)
        }))
    }

    pub unsafe fn cu_mem_alloc_pitch_v2(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let (_, _) = (decoder.u8()?, decoder.u8()?);
        let (width, height, element) = (decoder.usize()?, decoder.usize()?, decoder.u32()?);
        decoder.finish()?;
        let Some(run) = self.functions.cuMemAllocPitch_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let Some(least) = width.checked_mul(height) else { return Ok(Outcome::Status(OUT_OF_MEMORY)) };
        Ok(self.allocate(least as u64, values, |address, values| {
            let mut pitch = 0;
            let status = run(address, &mut pitch, width, height, element);
            values.u64(*address);
            values.usize(pitch);
            (status, pitch.saturating_mul(height) as u64)
        }))
    }

    pub unsafe fn cu_mem_alloc_async(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        let _wanted = decoder.u8()?;
        let (bytes, stream) = (decoder.usize()?, decoder.u64()?);
        decoder.finish()?;
        let Some(stream) = self.handles.get(calls::kinds::CUstream, stream) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuMemAllocAsync else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        Ok(self.allocate(bytes as u64, values, |address, values| {
            let status = run(address, bytes, stream);
            values.u64(*address);
            (status, bytes as u64)
        }))
    }

    pub unsafe fn cu_mem_free_v2(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let address = decoder.u64()?;
        decoder.finish()?;
        let Some(run) = self.functions.cuMemFree_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let status = run(address);
        if status == 0 {
            self.allocations.lock().expect("no one panics with this lock").remove(address);
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cu_mem_free_async(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (address, stream) = (decoder.u64()?, decoder.u64()?);
        decoder.finish()?;
        let Some(stream) = self.handles.get(calls::kinds::CUstream, stream) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuMemFreeAsync else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let status = run(address, stream);
        if status == 0 {
            self.allocations.lock().expect("no one panics with this lock").remove(address);
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cu_mem_get_info_v2(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        let (wants_free, wants_total) = (decoder.u8()? != 0, decoder.u8()? != 0);
        decoder.finish()?;
        let Some(run) = self.functions.cuMemGetInfo_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let (mut free, mut total) = (0, 0);
        let status = run(&mut free, &mut total);
        let allocations = self.allocations.lock().expect("no one panics with this lock");
        if wants_free {
            values.u64((free as u64).min(allocations.bound_bytes - allocations.used_bytes));
        }
        if wants_total {
            values.u64((total as u64).min(allocations.bound_bytes));
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cu_device_total_mem_v2(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let _wanted = decoder.u8()?;
        let device = decoder.i32()?;
        decoder.finish()?;
        let Some(run) = self.functions.cuDeviceTotalMem_v2 else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut total = 0;
        let status = run(&mut total, device);
        values.u64((total as u64).min(self.allocations.lock().expect("no one panics with this lock").bound_bytes));
        Ok(Outcome::Status(status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_what_is_freed_comes_again() {
        let mut allocations = Allocations::new(100);
        assert!(allocations.fits(100) && !allocations.fits(101));
        allocations.add(0x1000, 60);
        assert!(!allocations.fits(41));
        allocations.remove(0x2000);
        allocations.remove(0x1000);
        allocations.remove(0x1000);
        assert!(allocations.fits(100));
    }
}
