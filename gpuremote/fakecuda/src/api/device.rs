//! Initialization and devices.

use super::{driver_api, store, store_text};
use crate::abi::*;
use crate::device::{self, DRIVER_VERSION, NAME};
use crate::driver::{initialize, Always, Initialized};
use std::ffi::{c_char, c_int, c_uint, CStr};

fn bus_id(device: CUdevice) -> String {
    format!("0000:{:02X}:00.0", device + 1)
}

driver_api! { ENTRIES;
    /// Makes the driver.
    fn cuInit(flags: c_uint) with _ => Always, {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        initialize()
    }

    /// Stores the version of the driver.
    fn cuDriverGetVersion(version: *mut c_int) with _ => Always, {
        unsafe { store(version, DRIVER_VERSION) }
    }

    /// Stores the handle of a device.
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) with Initialized(driver) => Initialized, {
        driver.check_device(ordinal)?;
        unsafe { store(device, ordinal) }
    }

    /// Stores the number of devices.
    fn cuDeviceGetCount(count: *mut c_int) with Initialized(driver) => Initialized, {
        unsafe { store(count, driver.devices) }
    }

    /// Stores the name of a device.
    fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice) with Initialized(driver) => Initialized, {
        driver.check_device(dev)?;
        unsafe { store_text(name, len, NAME) }
    }

    /// Stores an attribute of a device.
    fn cuDeviceGetAttribute(pi: *mut c_int, attrib: c_int, dev: CUdevice) with Initialized(driver) => Initialized, {
        driver.check_device(dev)?;
        unsafe { store(pi, device::attribute(attrib, dev)?) }
    }

    /// Stores the UUID of a device.
    fn cuDeviceGetUuid(uuid: *mut CUuuid, dev: CUdevice) with Initialized(driver) => Initialized, {
        driver.check_device(dev)?;
        let mut bytes = *b"fake-cuda-device";
        bytes[15] = dev as u8;
        unsafe { store(uuid, CUuuid { bytes }) }
    }

    /// Stores the UUID of a device.
    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice) with Initialized(driver) => Initialized, {
        driver.check_device(dev)?;
        let mut bytes = *b"fake-cuda-device";
        bytes[15] = dev as u8;
        unsafe { store(uuid, CUuuid { bytes }) }
    }

    /// Stores the memory of a device in bytes.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) with Initialized(driver) => Initialized, {
        driver.check_device(dev)?;
        unsafe { store(bytes, driver.memory.total_and_free_bytes(dev).0 as usize) }
    }

    /// Stores the PCI address of a device.
    fn cuDeviceGetPCIBusId(pciBusId: *mut c_char, len: c_int, dev: CUdevice) with Initialized(driver) => Initialized, {
        driver.check_device(dev)?;
        unsafe { store_text(pciBusId, len, &bus_id(dev)) }
    }

    /// Stores the device with a PCI address.
    fn cuDeviceGetByPCIBusId(dev: *mut CUdevice, pciBusId: *const c_char) with Initialized(driver) => Initialized, {
        if pciBusId.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let wanted = unsafe { CStr::from_ptr(pciBusId) }.to_string_lossy().to_uppercase();
        let found = (0..driver.devices).find(|device| bus_id(*device) == wanted || bus_id(*device)[5..] == wanted);
        unsafe { store(dev, found.ok_or(CUDA_ERROR_INVALID_DEVICE)?) }
    }

    /// Stores the compute capability of a device.
    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, dev: CUdevice)
        with Initialized(driver) => Initialized,
    {
        driver.check_device(dev)?;
        unsafe {
            store(major, device::attribute(75, dev)?)?;
            store(minor, device::attribute(76, dev)?)
        }
    }

    /// Stores whether a device can access the memory of another.
    fn cuDeviceCanAccessPeer(canAccessPeer: *mut c_int, dev: CUdevice, peerDev: CUdevice)
        with Initialized(driver) => Initialized,
    {
        driver.check_device(dev)?;
        driver.check_device(peerDev)?;
        unsafe { store(canAccessPeer, 0) }
    }
}
