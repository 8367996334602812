//! A client's GPU memory, and its bounds.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use gpuremote_wire::{Decoder, Encoder};

use super::{calls, Server, INVALID_HANDLE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::bound::Bound;
use crate::worker::{Link, Outcome};

/// What a client has of the GPU's memory: bytes by address.
pub struct Allocations {
    bound: Arc<Bound>,
    by_address: HashMap<u64, u64>,
}

impl Allocations {
    pub fn new(bound: Arc<Bound>) -> Self {
        Allocations { bound, by_address: HashMap::new() }
    }

    /// Whether there is a bound at all.
    pub fn is_bounded(&self) -> bool {
        self.bound.is_bounded()
    }

    /// Notes what was taken of the bound.
    fn add(&mut self, address: u64, bytes: u64) {
        self.by_address.insert(address, bytes);
    }

    fn remove(&mut self, address: u64) {
        if let Some(bytes) = self.by_address.remove(&address) {
            self.bound.give_back(bytes);
        }
    }
}

impl Server {
    /// Allocates within the bound. The lock is held meanwhile, so that two lanes do not pass it together.
    pub fn allocate(&self, bytes: u64, values: &mut Encoder, run: impl FnOnce(&mut u64, &mut Encoder) -> (i32, u64)) -> Outcome {
        let mut allocations = self.allocations.lock().expect("no one panics with this lock");
        if !allocations.bound.take(bytes) {
            return Outcome::Status(OUT_OF_MEMORY);
        }
        let mut address = 0;
        let (status, has) = run(&mut address, values);
        // A pitch makes it more than was asked for; what a driver gave is counted, beyond the bound too.
        let has = if status == 0 { has } else { 0 };
        allocations.bound.settle(bytes, has);
        if status == 0 {
            allocations.add(address, has);
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
            values.u64((free as u64).min(allocations.bound.left()));
        }
        if wants_total {
            values.u64((total as u64).min(allocations.bound.bytes()));
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
        values.u64((total as u64).min(self.allocations.lock().expect("no one panics with this lock").bound.bytes()));
        Ok(Outcome::Status(status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_what_is_freed_comes_again() {
        let bound = Arc::new(Bound::alone(100));
        let mut allocations = Allocations::new(Arc::clone(&bound));
        assert!(bound.take(60) && !bound.take(41));
        allocations.add(0x1000, 60);
        allocations.remove(0x2000);
        allocations.remove(0x1000);
        allocations.remove(0x1000);
        assert_eq!(bound.left(), 100);
    }
}
