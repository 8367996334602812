//! A lane: bytes in order, both ways, between one thread of a client and one of the server.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{recv, MsgFlags};

use crate::copy::{to_large, LARGE_BYTES};
use crate::memory::sealed_file;
use crate::ring::{Patience, Ring, CONTROL_BYTES};

/// Capacity of each ring, in bytes. Several chunks fit, so that one is filled while another is copied.
pub const RING_BYTES: usize = 4 << 20;

/// Data is copied in pieces of at most so many bytes.
pub const CHUNK_BYTES: usize = 512 << 10;

const RINGS_BYTES: usize = 2 * (CONTROL_BYTES + RING_BYTES);

enum Way {
    /// The rings are shared with the other side; the socket only tells whether that still lives.
    Memory(UnixStream),
    /// The rings are this side's own. What is received is put into the one by its writing end, and what is sent is taken from the other.
    Tcp { socket: TcpStream, received: Ring, unsent: Ring },
}

/// One side of a lane.
pub struct Lane {
    inbound: Ring,
    outbound: Ring,
    way: Way,
    patience: Patience,
}

/// Makes the memory of a lane through shared memory: the server keeps one side and sends the file to the client.
pub fn shared_rings() -> io::Result<OwnedFd> {
    sealed_file("nearmetal-gpu-lane", RINGS_BYTES)
}

impl Lane {
    /// One side of a lane through shared memory. The socket is the one that the client connected by.
    pub fn by_memory(rings: &OwnedFd, socket: UnixStream, server: bool) -> io::Result<Self> {
        let length = nix::sys::stat::fstat(rings)?.st_size;
        if length != RINGS_BYTES as i64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory of a lane has another size"));
        }
        let second = CONTROL_BYTES + RING_BYTES;
        let (in_at, out_at) = if server { (0, second) } else { (second, 0) };
        Ok(Lane {
            inbound: Ring::map(rings, in_at, RING_BYTES, false)?,
            outbound: Ring::map(rings, out_at, RING_BYTES, true)?,
            way: Way::Memory(socket),
            patience: Patience::of_machine(),
        })
    }

    /// One side of a lane by TCP.
    pub fn by_tcp(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let rings = shared_rings()?;
        let second = CONTROL_BYTES + RING_BYTES;
        Ok(Lane {
            inbound: Ring::map(&rings, 0, RING_BYTES, false)?,
            outbound: Ring::map(&rings, second, RING_BYTES, true)?,
            way: Way::Tcp {
                socket,
                received: Ring::map(&rings, 0, RING_BYTES, true)?,
                unsent: Ring::map(&rings, second, RING_BYTES, false)?,
            },
            patience: Patience::of_machine(),
        })
    }

    /// Whether the two sides share memory.
    pub fn shares_memory(&self) -> bool {
        matches!(self.way, Way::Memory(_))
    }

    /// The memory that data passes through on this side, as addresses and lengths in bytes: what a driver may pin.
    pub fn memories(&self) -> [(*mut u8, usize); 2] {
        [self.inbound.memory(), self.outbound.memory()]
    }

    /// Waits until more than `held` bytes have arrived, and returns how many more. The first `held` are in use by the caller still.
    pub fn wait_readable(&mut self, held: usize) -> io::Result<usize> {
        let available = self.inbound.available(held)?;
        if available > 0 {
            return Ok(available);
        }
        match &mut self.way {
            Way::Memory(socket) => self.inbound.wait(held, self.patience, &|| lives(socket)),
            Way::Tcp { socket, received, .. } => {
                let room = received.available(0)?;
                if room == 0 {
                    return Err(io::Error::other("a lane is full of data that is held"));
                }
                let into = received.slice(0, room);
                // SAFETY: the slice is this ring's free part, which nobody else uses.
                let count = receive(socket, unsafe { std::slice::from_raw_parts_mut(into, room) }, self.patience)?;
                received.advance(count);
                self.inbound.available(held)
            }
        }
    }

    /// Bytes that have arrived, after `held` ones: valid until they are released. Their content may change when the other side is hostile.
    pub fn arrived(&self, held: usize, count: usize) -> *const u8 {
        self.inbound.slice(held, count)
    }

    /// Gives the first `count` arrived bytes back to the sender.
    pub fn release(&mut self, count: usize) {
        self.inbound.advance(count);
    }

    /// Fills the buffer with the next bytes. Large ones come directly, without a ring, where there is a socket.
    pub fn read(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        let copy = if buffer.len() >= LARGE_BYTES { to_large } else { std::ptr::copy_nonoverlapping };
        while !buffer.is_empty() {
            let arrived = self.inbound.available(0)?;
            if arrived == 0 {
                if let Way::Tcp { socket, .. } = &mut self.way {
                    if buffer.len() >= CHUNK_BYTES / 4 {
                        let count = receive(socket, buffer, self.patience)?;
                        buffer = &mut buffer[count..];
                        continue;
                    }
                }
            }
            let count = self.wait_readable(0)?.min(buffer.len()).min(CHUNK_BYTES);
            // SAFETY: so many bytes have arrived, and the buffer is as long; they do not overlap.
            unsafe { copy(self.inbound.slice(0, count), buffer.as_mut_ptr(), count) };
            self.inbound.advance(count);
            buffer = &mut buffer[count..];
        }
        Ok(())
    }

    /// Passes over the next bytes.
    pub fn skip(&mut self, mut count: usize) -> io::Result<()> {
        while count > 0 {
            let skipped = self.wait_readable(0)?.min(count);
            self.inbound.advance(skipped);
            count -= skipped;
        }
        Ok(())
    }

    /// Waits until more than `held` bytes can be written, and returns how many more.
    pub fn wait_writable(&mut self, held: usize) -> io::Result<usize> {
        let available = self.outbound.available(held)?;
        if available > 0 {
            return Ok(available);
        }
        match &mut self.way {
            Way::Memory(socket) => self.outbound.wait(held, self.patience, &|| lives(socket)),
            Way::Tcp { .. } => {
                self.flush()?;
                match self.outbound.available(held)? {
                    0 => Err(io::Error::other("a lane is full of data that is held")),
                    room => Ok(room),
                }
            }
        }
    }

    /// Memory to write to, after `held` bytes that are not published yet.
    pub fn space(&self, held: usize, count: usize) -> *mut u8 {
        self.outbound.slice(held, count)
    }

    /// Hands the first `count` written bytes over; by TCP, [`Lane::flush`] sends them.
    pub fn publish(&mut self, count: usize) {
        self.outbound.advance(count);
    }

    /// Writes bytes; by TCP, [`Lane::flush`] sends them.
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.wait_writable(0)?.min(bytes.len()).min(CHUNK_BYTES / 4);
            // SAFETY: so many bytes are free, and are not among those given.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.outbound.slice(0, count), count) };
            self.outbound.advance(count);
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Writes so many zero bytes; by TCP, [`Lane::flush`] sends them.
    pub fn write_zeros(&mut self, count: usize) -> io::Result<()> {
        let zeros = vec![0; count.min(CHUNK_BYTES)];
        let mut left = count;
        while left > 0 {
            let part = left.min(zeros.len());
            self.write(&zeros[..part])?;
            left -= part;
        }
        Ok(())
    }

    /// Writes much data, and sends it. By TCP it is not copied.
    pub fn write_data(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() < CHUNK_BYTES / 16 || self.shares_memory() {
            self.write(bytes)?;
            return self.flush();
        }
        self.flush()?;
        match &mut self.way {
            Way::Memory(_) => Ok(()),
            Way::Tcp { socket, .. } => socket.write_all(bytes),
        }
    }

    /// Sends what was written. With shared memory the other side has it already.
    pub fn flush(&mut self) -> io::Result<()> {
        let Way::Tcp { socket, unsent, .. } = &mut self.way else { return Ok(()) };
        loop {
            let count = unsent.available(0)?;
            if count == 0 {
                return Ok(());
            }
            // SAFETY: so many bytes are written, and the writing end leaves them alone until they are released.
            let sent = socket.write(unsafe { std::slice::from_raw_parts(unsent.slice(0, count), count) })?;
            unsent.advance(sent);
        }
    }

    /// How many written bytes wait to be sent.
    pub fn unsent(&mut self) -> usize {
        match &mut self.way {
            Way::Memory(_) => 0,
            Way::Tcp { unsent, .. } => unsent.available(0).unwrap_or(0),
        }
    }

    /// Ends both ways. The other side sees what was sent before, then the end.
    pub fn close(&mut self) {
        // The other side may be gone already; there is nothing else to do then.
        let _ = match &self.way {
            Way::Memory(socket) => socket.shutdown(Shutdown::Both),
            Way::Tcp { socket, .. } => socket.shutdown(Shutdown::Both),
        };
    }
}

fn lives(socket: &UnixStream) -> bool {
    // Nothing is sent by this socket after the start, so anything readable is its end.
    let mut of_interest = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    match poll(&mut of_interest, PollTimeout::ZERO) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error == nix::errno::Errno::EINTR,
    }
}

/// Receives at least one byte. It looks for a while before it sleeps, as a wake-up takes longer than a round trip.
fn receive(socket: &mut TcpStream, buffer: &mut [u8], patience: Patience) -> io::Result<usize> {
    let begun = Instant::now();
    let count = loop {
        match recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(count) => break count,
            Err(nix::errno::Errno::EAGAIN) if begun.elapsed() < patience.spin => std::thread::yield_now(),
            Err(nix::errno::Errno::EAGAIN) => break socket.read(buffer)?,
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    if count == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other side has ended"));
    }
    Ok(count)
}
