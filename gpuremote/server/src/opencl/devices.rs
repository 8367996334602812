//! Platforms, devices, contexts.

use std::io;

use gpuremote_wire::{Decoder, Encoder, Malformed};

use super::calls::kinds;
use super::{bounded, info, Object, Server, INVALID_OPERATION, INVALID_VALUE};
use crate::worker::{Link, Outcome};

const DEVICE_NOT_FOUND: i32 = -1;
const INVALID_PLATFORM: i32 = -32;
const INVALID_DEVICE: i32 = -33;
const DEVICE_TYPE_DEFAULT: u64 = 1;
const DEVICE_TYPE_ALL: u64 = 0xffff_ffff;
const DEVICE_TYPE: u32 = 0x1000;
const DEVICE_MAX_MEM_ALLOC_SIZE: u32 = 0x1010;
const DEVICE_GLOBAL_MEM_SIZE: u32 = 0x101f;
const DEVICE_PLATFORM: u32 = 0x1031;
const CONTEXT_PLATFORM: u64 = 0x1084;

/// Numbers that the client has minted: all that are left.
fn minted(decoder: &mut Decoder<'_>) -> Result<Vec<u64>, Malformed> {
    (0..decoder.remaining() / 8).map(|_| decoder.u64()).collect()
}

impl Server {
    pub unsafe fn cl_get_platform_ids(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        let numbers = minted(decoder)?;
        let Some(run) = self.functions.clGetPlatformIDs else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let mut platforms = vec![0u64; numbers.len()];
        let mut count = 0;
        let status = run(numbers.len() as u32, platforms.as_mut_ptr(), &mut count);
        let found = if status == 0 { (count as usize).min(numbers.len()) } else { 0 };
        for (&number, &platform) in numbers.iter().zip(&platforms).take(found) {
            self.handles.put(kinds::cl_platform_id, number, platform as Object)?;
        }
        values.u32(found as u32);
        Ok(Outcome::Status(status))
    }

    /// All devices of a platform: for each the bits of its types, one of them that of the default.
    pub unsafe fn cl_get_device_ids(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        let platform = decoder.u64()?;
        let numbers = minted(decoder)?;
        let Some(platform) = self.get(kinds::cl_platform_id, platform) else { return Ok(Outcome::Status(INVALID_PLATFORM)) };
        let (Some(run), Some(ask)) = (self.functions.clGetDeviceIDs, self.functions.clGetDeviceInfo) else {
            return Ok(Outcome::Status(INVALID_OPERATION));
        };
        let (mut devices, mut count, mut default) = (vec![0u64; numbers.len()], 0, 0);
        let status = run(platform, DEVICE_TYPE_ALL, numbers.len() as u32, devices.as_mut_ptr(), &mut count);
        if status != 0 && status != DEVICE_NOT_FOUND {
            return Ok(Outcome::Status(status));
        }
        run(platform, DEVICE_TYPE_DEFAULT, 1, &mut default, std::ptr::null_mut());
        devices.truncate(if status == 0 { count as usize } else { 0 });
        values.u32(devices.len() as u32);
        for (&number, &device) in numbers.iter().zip(&devices) {
            self.handles.put(kinds::cl_device_id, number, device as Object)?;
            let mut types = 0u64;
            ask(device as Object, DEVICE_TYPE, 8, (&raw mut types).cast(), std::ptr::null_mut());
            values.u64((types & !DEVICE_TYPE_DEFAULT) | if device == default { DEVICE_TYPE_DEFAULT } else { 0 });
        }
        Ok(Outcome::Status(0))
    }

    /// A device has as much memory as the client may have.
    pub unsafe fn cl_get_device_info(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        let (device, name) = (decoder.u64()?, decoder.u32()?);
        decoder.finish()?;
        let Some(device) = self.get(kinds::cl_device_id, device) else { return Ok(Outcome::Status(INVALID_DEVICE)) };
        let Some(run) = self.functions.clGetDeviceInfo else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let mut value = match info(|size, into, length| run(device, name, size, into, length)) {
            Ok(value) => value,
            Err(status) => return Ok(Outcome::Status(status)),
        };
        if let (DEVICE_GLOBAL_MEM_SIZE | DEVICE_MAX_MEM_ALLOC_SIZE, Ok(bytes)) = (name, <[u8; 8]>::try_from(value.as_slice())) {
            value = u64::from_le_bytes(bytes).min(self.bound.bytes()).to_le_bytes().to_vec();
        }
        values.bytes_counted(&value[..bounded(value.len(), 1)?]);
        Ok(Outcome::Status(0))
    }

    pub unsafe fn cl_create_sub_devices(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let device = decoder.u64()?;
        let count = bounded(decoder.u32()? as usize, 8)?;
        let properties: Vec<i64> = (0..count).map(|_| decoder.i64()).collect::<Result<_, _>>()?;
        let wanted = decoder.u32()? as usize;
        let numbers = minted(decoder)?;
        if numbers.len() != wanted || properties.last().is_none_or(|&last| last != 0) {
            return Err(Malformed("a list of properties or numbers has another length").into());
        }
        let Some(device) = self.get(kinds::cl_device_id, device) else { return Ok(Outcome::Status(INVALID_DEVICE)) };
        let Some(run) = self.functions.clCreateSubDevices else { return Ok(Outcome::Status(INVALID_OPERATION)) };
        let mut parts = 0;
        let status = run(device, properties.as_ptr(), 0, std::ptr::null_mut(), &mut parts);
        values.u32(parts);
        if status != 0 || wanted < parts as usize {
            return Ok(Outcome::Status(status));
        }
        let mut devices = vec![0u64; parts as usize];
        let status = run(device, properties.as_ptr(), parts, devices.as_mut_ptr(), &mut parts);
        if status == 0 {
            for (&number, &device) in numbers.iter().zip(&devices) {
                self.handles.put(kinds::cl_device_id, number, device as Object)?;
            }
        }
        Ok(Outcome::Status(status))
    }

    pub unsafe fn cl_create_context(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let number = decoder.u64()?;
        let devices = self.list(decoder, kinds::cl_device_id)?;
        decoder.finish()?;
        let Some(devices) = devices else { return Ok(Outcome::Status(INVALID_DEVICE)) };
        let Some(&first) = devices.first() else { return Ok(Outcome::Status(INVALID_VALUE)) };
        let (Some(run), Some(ask)) = (self.functions.clCreateContext, self.functions.clGetDeviceInfo) else {
            return Ok(Outcome::Status(INVALID_OPERATION));
        };
        // The loader finds the driver by the platform.
        let mut platform = 0u64;
        let mut status = ask(first, DEVICE_PLATFORM, 8, (&raw mut platform).cast(), std::ptr::null_mut());
        if status != 0 {
            return Ok(Outcome::Status(status));
        }
        let properties = [CONTEXT_PLATFORM as i64, platform as i64, 0];
        let context =
            run(properties.as_ptr(), devices.len() as u32, devices.as_ptr().cast(), std::ptr::null(), std::ptr::null(), &mut status);
        if status == 0 {
            self.handles.put(kinds::cl_context, number, context)?;
        }
        Ok(Outcome::Status(status))
    }
}
