//! Memory that two processes share.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A mapping that ends with this value.
#[derive(Debug)]
pub struct Mapping {
    start: *mut u8,
    length: usize,
}

// SAFETY: a mapping is plain memory; who uses it orders accesses itself.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a part of a file, shared.
    pub fn shared(file: RawFd, offset: usize, length: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses where.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file,
                offset as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { start: start.cast(), length })
    }

    /// Maps memory of this process alone, whose pages the kernel gives when they are written.
    #[cfg(test)]
    pub(crate) fn private(length: usize) -> io::Result<Self> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses where.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { start: start.cast(), length })
    }

    /// Maps a part of a file twice, one mapping right after the other.
    pub(crate) fn mirrored(file: RawFd, offset: usize, length: usize) -> io::Result<Self> {
        // SAFETY: this reserves addresses, which the two mappings below then take.
        unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                2 * length,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let mapping = Mapping { start: start.cast(), length: 2 * length };
            for copy in 0..2 {
                let at = mapping.start.add(copy * length).cast();
                // All pages are there from the start: the first copies would else meet a fault at each of them.
                let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
                if libc::mmap(at, length, libc::PROT_READ | libc::PROT_WRITE, flags, file, offset as libc::off_t) == libc::MAP_FAILED {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(mapping)
        }
    }

    /// The first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: these addresses are this value's alone.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// A file in memory, of this size for good: who else maps it can make no page of it vanish.
pub fn sealed_file(name: &str, length: usize) -> io::Result<OwnedFd> {
    let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the name is a C string, and the descriptor is owned from here on.
    let file = unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: plain system calls on an owned descriptor.
    unsafe {
        if libc::ftruncate(file.as_raw_fd(), length as libc::off_t) < 0 {
            return Err(io::Error::last_os_error());
        }
        if libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(file)
}
