//! Pools of memory.

use std::ffi::c_void;
use std::io;

use gpuremote_wire::{Decoder, Encoder, MAX_ARGUMENT_BYTES};

use super::{calls, Server, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::worker::{Link, Outcome};

/// CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: how many bytes a pool keeps though nobody uses them.
const RELEASE_THRESHOLD: i32 = 4;
/// Length of CUmemPoolProps in bytes, and the places of the kind of memory, the ways to share it, and the kind of processor that has it.
const PROPERTIES_BYTES: usize = 88;
const SHARED_BY: std::ops::Range<usize> = 4..8;
const PROCESSOR: std::ops::Range<usize> = 8..12;
/// A pointer that means something on other systems.
const SECURITY: std::ops::Range<usize> = 16..24;
/// CU_MEM_LOCATION_TYPE_DEVICE.
const GPU: [u8; 4] = 1i32.to_ne_bytes();

/// CUmemPoolProps.
#[repr(C, align(8))]
struct Properties([u8; PROPERTIES_BYTES]);

impl Server {
    pub unsafe fn cu_mem_alloc_from_pool_async(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let _wanted = decoder.u8()?;
        let (bytes, pool, stream) = (decoder.usize()?, decoder.u64()?, decoder.u64()?);
        decoder.finish()?;
        let (pool, stream) = (self.handles.get(calls::kinds::CUmemoryPool, pool), self.handles.get(calls::kinds::CUstream, stream));
        let (Some(pool), Some(stream)) = (pool, stream) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuMemAllocFromPoolAsync else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        Ok(self.allocate(bytes as u64, values, |address, values| {
            let status = run(address, bytes, pool, stream);
            values.u64(*address);
            (status, bytes as u64)
        }))
    }

    /// Pools of a GPU's memory, which this process shares with no other.
    pub unsafe fn cu_mem_pool_create(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        let mut properties = Properties(decoder.take(PROPERTIES_BYTES)?.try_into().expect("as many bytes as were taken"));
        decoder.finish()?;
        if properties.0[SHARED_BY] != [0; 4] || properties.0[PROCESSOR] != GPU {
            return Ok(Outcome::Status(NOT_SUPPORTED));
        }
        properties.0[SECURITY].fill(0);
        let Some(run) = self.functions.cuMemPoolCreate else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let mut pool = 0;
        let status = run(&mut pool, properties.0.as_ptr());
        if status == 0 {
            values.u64(self.handles.number(calls::kinds::CUmemoryPool, pool as *mut c_void)?);
        }
        Ok(Outcome::Status(status))
    }

    /// A client with a bound for its memory may not keep what it does not use: the bound counts allocations.
    pub unsafe fn cu_mem_pool_set_attribute(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        _: &mut Encoder,
    ) -> io::Result<Outcome> {
        let (pool, attribute) = (decoder.u64()?, decoder.i32()?);
        let mut value = if decoder.u8()? == 0 { return Ok(Outcome::Status(INVALID_VALUE)) } else { decoder.u64()? };
        decoder.finish()?;
        let Some(pool) = self.handles.get(calls::kinds::CUmemoryPool, pool) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuMemPoolSetAttribute else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        if attribute == RELEASE_THRESHOLD && self.allocations.lock().expect("no one panics with this lock").is_bounded() {
            value = 0;
        }
        Ok(Outcome::Status(run(pool, attribute, &raw mut value)))
    }

    pub unsafe fn cu_mem_pool_set_access(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (pool, count) = (decoder.u64()?, decoder.usize()?);
        if count > MAX_ARGUMENT_BYTES / 12 {
            return Ok(Outcome::Status(INVALID_VALUE));
        }
        // CUmemAccessDesc: type and number of the place, and the kind of access.
        let words = (0..3 * count).map(|_| decoder.i32()).collect::<Result<Vec<_>, _>>()?;
        decoder.finish()?;
        let Some(pool) = self.handles.get(calls::kinds::CUmemoryPool, pool) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuMemPoolSetAccess else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        Ok(Outcome::Status(run(pool, words.as_ptr(), count)))
    }
}
