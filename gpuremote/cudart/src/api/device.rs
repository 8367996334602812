//! Devices.

use super::{require, runtime_api, store};
use crate::context::{self, check_device};
use crate::driver::driver;
use crate::error::{Error, Outcome};
use crate::properties::{self, DeviceProperties};
use crate::thread;
use std::ffi::{c_char, c_int, c_uint};

runtime_api! {
    /// Stores the number of devices.
    fn cudaGetDeviceCount(count: *mut c_int) {
        require(count)?;
        let outcome = driver().and_then(|driver| unsafe { driver.cuDeviceGetCount(count) });
        if outcome.is_err() {
            unsafe { store(count, 0) }?;
        }
        outcome
    }

    /// Makes a device that of the thread.
    fn cudaSetDevice(device: c_int) {
        context::set_device(device)
    }

    /// Stores the device of the thread.
    fn cudaGetDevice(device: *mut c_int) {
        require(device)?;
        unsafe { store(device, context::device()?) }
    }

    /// Initializes a device without making it that of the thread.
    fn cudaInitDevice(device: c_int, deviceFlags: c_uint, flags: c_uint) {
        const FLAGS_ARE_VALID: c_uint = 1;
        let driver = driver()?;
        check_device(driver, device)?;
        if flags & FLAGS_ARE_VALID != 0 {
            unsafe { driver.cuDevicePrimaryCtxSetFlags_v2(device, deviceFlags) }?;
        }
        context::primary(device).map(|_| ())
    }

    /// Takes a list of devices, of which the first becomes the thread's.
    fn cudaSetValidDevices(device_arr: *mut c_int, len: c_int) {
        require(device_arr)?;
        let driver = driver()?;
        let devices = unsafe { std::slice::from_raw_parts(device_arr, len.max(0) as usize) };
        devices.iter().try_for_each(|device| check_device(driver, *device))?;
        devices.first().map_or(Ok(()), |device| context::set_device(*device))
    }

    /// Stores the device that fits a request; the first device does.
    fn cudaChooseDevice(device: *mut c_int, prop: *const DeviceProperties) {
        require(prop)?;
        check_device(driver()?, 0)?;
        unsafe { store(device, 0) }
    }

    /// Stores the properties of a device.
    fn cudaGetDeviceProperties(prop: *mut DeviceProperties, device: c_int) {
        require(prop)?;
        let driver = driver()?;
        check_device(driver, device)?;
        unsafe { store(prop, properties::of_device(driver, device)?) }
    }

    /// Stores an attribute of a device. Numbers are those of the driver.
    fn cudaDeviceGetAttribute(value: *mut c_int, attr: c_int, device: c_int) {
        require(value)?;
        unsafe { driver()?.cuDeviceGetAttribute(value, attr, device) }
    }

    /// Waits for all work of the device.
    fn cudaDeviceSynchronize() {
        let (driver, _) = context::current()?;
        unsafe { driver.cuCtxSynchronize() }
    }

    /// Ends everything that the process has on the device.
    fn cudaDeviceReset() {
        context::reset()
    }

    /// Sets the flags of the device.
    fn cudaSetDeviceFlags(flags: c_uint) {
        let driver = driver()?;
        unsafe { driver.cuDevicePrimaryCtxSetFlags_v2(context::device()?, flags) }
    }

    /// Stores the flags of the device.
    fn cudaGetDeviceFlags(flags: *mut c_uint) {
        let (driver, _) = context::current()?;
        unsafe { driver.cuCtxGetFlags(flags) }
    }

    /// Stores the PCI address of a device.
    fn cudaDeviceGetPCIBusId(pciBusId: *mut c_char, len: c_int, device: c_int) {
        unsafe { driver()?.cuDeviceGetPCIBusId(pciBusId, len, device) }
    }

    /// Stores the device with a PCI address.
    fn cudaDeviceGetByPCIBusId(device: *mut c_int, pciBusId: *const c_char) {
        unsafe { driver()?.cuDeviceGetByPCIBusId(device, pciBusId) }
    }

    /// Stores whether a device can access the memory of another.
    fn cudaDeviceCanAccessPeer(canAccessPeer: *mut c_int, device: c_int, peerDevice: c_int) {
        let driver = driver()?;
        check_device(driver, device)?;
        check_device(driver, peerDevice)?;
        unsafe { driver.cuDeviceCanAccessPeer(canAccessPeer, device, peerDevice) }
    }

    /// Stores an attribute of a pair of devices.
    fn cudaDeviceGetP2PAttribute(value: *mut c_int, attr: c_int, srcDevice: c_int, dstDevice: c_int) {
        unsafe { driver()?.cuDeviceGetP2PAttribute(value, attr, srcDevice, dstDevice) }
    }

    /// Gives the memory of another device to this one.
    fn cudaDeviceEnablePeerAccess(peerDevice: c_int, flags: c_uint) {
        let (driver, _) = context::current()?;
        check_device(driver, peerDevice)?;
        if peerDevice == thread::device() {
            return Err(Error::INVALID_DEVICE);
        }
        unsafe { driver.cuCtxEnablePeerAccess(context::primary(peerDevice)?, flags) }
    }

    /// Takes the memory of another device from this one.
    fn cudaDeviceDisablePeerAccess(peerDevice: c_int) {
        let (driver, _) = context::current()?;
        check_device(driver, peerDevice)?;
        let outcome: Outcome = unsafe { driver.cuCtxDisablePeerAccess(context::primary(peerDevice)?) };
        outcome
    }
}
