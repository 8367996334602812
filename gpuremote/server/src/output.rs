//! What GPU programs print. The driver writes it to this process's standard output, which is a file in memory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Mutex;

use gpuremote_wire::MAX_ARGUMENT_BYTES;

/// The printed bytes that the client has not taken yet.
pub struct Output {
    file: OwnedFd,
    taken: Mutex<i64>,
}

impl Output {
    /// Takes over the standard output.
    pub fn of_process() -> io::Result<Self> {
        let stdout = unsafe { BorrowedFd::borrow_raw(libc::STDOUT_FILENO) };
        // Appending keeps what threads print apart, and the position is the driver's to move.
        let file = unsafe { OwnedFd::from_raw_fd(nix::errno::Errno::result(libc::dup(stdout.as_raw_fd()))?) };
        // SAFETY: C's buffer is given up, so that a look sees all that was printed.
        unsafe { libc::setvbuf(stdout_stream(), std::ptr::null_mut(), libc::_IONBF, 0) };
        Ok(Output { file, taken: Mutex::new(0) })
    }

    /// How many bytes wait.
    pub fn waiting(&self) -> u32 {
        // SAFETY: a plain system call on an owned descriptor.
        let written = unsafe { libc::lseek(self.file.as_raw_fd(), 0, libc::SEEK_CUR) };
        (written - *self.taken.lock().expect("no one panics with this lock")).clamp(0, MAX_ARGUMENT_BYTES as i64 / 2) as u32
    }

    /// Takes what waits.
    pub fn take(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.waiting() as usize];
        let mut taken = self.taken.lock().expect("no one panics with this lock");
        let count = nix::sys::uio::pread(&self.file, &mut bytes, *taken)?;
        bytes.truncate(count);
        *taken += count as i64;
        Ok(bytes)
    }
}

fn stdout_stream() -> *mut libc::FILE {
    extern "C" {
        static stdout: *mut libc::FILE;
    }
    // SAFETY: C's library has set it before main.
    unsafe { stdout }
}
