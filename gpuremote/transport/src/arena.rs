//! Host memory that a client and its server process share, so that copies from and to it need no other.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::memory::{sealed_file, Mapping};

/// Addresses for host memory of one client, in bytes. Memory is taken for what is used of it only.
pub const ARENA_BYTES: usize = 64 << 30;

/// Makes the memory of an arena: the server keeps one side and sends the file to the client.
pub fn shared_arena() -> io::Result<OwnedFd> {
    sealed_file("nearmetal-gpu-host-memory", ARENA_BYTES)
}

/// Maps an arena. It fails when the file has another size.
pub fn map_arena(file: &OwnedFd) -> io::Result<Mapping> {
    if nix::sys::stat::fstat(file)?.st_size != ARENA_BYTES as i64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory of an arena has another size"));
    }
    Mapping::shared(file.as_raw_fd(), 0, ARENA_BYTES)
}

/// Gives the memory of a part of an arena back. Its addresses stay, and read as zero.
pub fn free_in_arena(file: &OwnedFd, offset: usize, length: usize) -> io::Result<()> {
    // SAFETY: a plain system call on an owned descriptor.
    let result = unsafe {
        libc::fallocate(
            file.as_raw_fd(),
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            offset as libc::off_t,
            length as libc::off_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
