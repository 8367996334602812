//! Open files pass from process to process over Unix sockets (SCM_RIGHTS, unix(7)).

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{recvmsg, sendmsg, ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr};

/// The most files in one message.
const MOST_FILES: usize = 4;

/// Sends a message with files. The message must be short enough for the socket to take it at once.
pub fn send_with_files(socket: &UnixStream, message: &[u8], files: &[RawFd]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(files)];
    let ancillary: &[ControlMessage] = if files.is_empty() { &[] } else { &rights };
    let sent = sendmsg::<UnixAddr>(socket.as_raw_fd(), &[IoSlice::new(message)], ancillary, MsgFlags::MSG_NOSIGNAL, None)?;
    if sent == message.len() {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::WriteZero, "a message with files was cut"))
    }
}

/// Receives a message of this length, with the files that came with its first byte.
pub fn receive_with_files(socket: &UnixStream, message: &mut [u8]) -> io::Result<Vec<OwnedFd>> {
    let mut files = Vec::new();
    let mut filled = 0;
    while filled < message.len() {
        let mut space = nix::cmsg_space!([RawFd; MOST_FILES]);
        let mut parts = [IoSliceMut::new(&mut message[filled..])];
        let received = match recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(nix::errno::Errno::EINTR) => continue,
            received => received?,
        };
        for part in received.cmsgs()? {
            if let ControlMessageOwned::ScmRights(descriptors) = part {
                // SAFETY: the kernel has just made these descriptors for this process.
                files.extend(descriptors.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        if received.bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other side has ended"));
        }
        filled += received.bytes;
    }
    Ok(files)
}
