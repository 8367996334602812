//! Streams, events and libraries, where the driver's function differs.

use super::runtime_api;
use crate::abi::*;
use crate::{context, registry};
use std::ffi::{c_char, c_uint};

runtime_api! {
    /// Creates a stream.
    fn cudaStreamCreate(pStream: *mut Handle) {
        let (driver, _) = context::current()?;
        unsafe { driver.cuStreamCreateWithPriority(pStream, 0, 0) }
    }

    /// Creates a stream.
    fn cudaStreamCreateWithFlags(pStream: *mut Handle, flags: c_uint) {
        let (driver, _) = context::current()?;
        unsafe { driver.cuStreamCreateWithPriority(pStream, flags, 0) }
    }

    /// Copies the attributes of a stream.
    fn cudaStreamCopyAttributes(dst: Handle, src: Handle) {
        let (driver, _) = context::current()?;
        unsafe { driver.cuStreamCopyAttributes(dst, src) }
    }

    /// Copies the attributes of a stream, null for the default stream of the thread.
    fn cudaStreamCopyAttributes_ptsz(dst: Handle, src: Handle) {
        let (driver, _) = context::current()?;
        let named = |stream: Handle| if stream.is_null() { PER_THREAD_STREAM } else { stream };
        unsafe { driver.cuStreamCopyAttributes(named(dst), named(src)) }
    }

    /// Creates an event.
    fn cudaEventCreate(event: *mut Handle) {
        let (driver, _) = context::current()?;
        unsafe { driver.cuEventCreate(event, 0) }
    }

    /// Stores a kernel of a library.
    fn cudaLibraryGetKernel(pKernel: *mut Handle, library: Handle, name: *const c_char) {
        let (driver, _) = context::current()?;
        unsafe { driver.cuLibraryGetKernel(pKernel, library, name) }?;
        registry::add_library_kernel(unsafe { *pKernel });
        Ok(())
    }

    /// Stores the kernels of a library.
    fn cudaLibraryEnumerateKernels(kernels: *mut Handle, numKernels: c_uint, lib: Handle) {
        let (driver, _) = context::current()?;
        unsafe { driver.cuLibraryEnumerateKernels(kernels, numKernels, lib) }?;
        let found = unsafe { std::slice::from_raw_parts(kernels, numKernels as usize) };
        found.iter().filter(|kernel| !kernel.is_null()).for_each(|kernel| registry::add_library_kernel(*kernel));
        Ok(())
    }
}
