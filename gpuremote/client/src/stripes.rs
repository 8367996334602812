//! Ways beside the lanes of a session, for large copies by TCP: one connection keeps one processor busy on either side, several keep several.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;

use gpuremote_wire::pieces;

/// Copies of fewer bytes are not worth waking others up.
pub(crate) const STRIPED_BYTES: usize = 2 << 20;

/// A part of the program's memory, which is the stripe's alone until it has told of its end.
struct Part {
    start: *mut u8,
    length: usize,
    writes: bool,
    done: mpsc::Sender<io::Result<()>>,
}

// SAFETY: whoever hands a part out waits for its end.
unsafe impl Send for Part {}

/// Threads that each have a connection.
pub(crate) struct Stripes {
    threads: Vec<mpsc::Sender<Part>>,
}

impl Stripes {
    /// How many there should be: two processors for each, one on either side, as if both were on this host.
    pub fn wanted() -> usize {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let wanted = std::env::var("NEARMETAL_GPU_STREAMS").ok().and_then(|text| text.parse().ok());
        wanted.unwrap_or(processors / 2).clamp(1, 4)
    }

    /// Threads for these connections.
    pub fn start(sockets: Vec<TcpStream>) -> io::Result<Self> {
        let mut threads = Vec::new();
        for mut socket in sockets {
            let (parts, waiting) = mpsc::channel::<Part>();
            thread::Builder::new().name("gpu-stripe".into()).spawn(move || {
                for part in waiting {
                    // SAFETY: as for the part.
                    let memory = unsafe { std::slice::from_raw_parts_mut(part.start, part.length) };
                    let result = if part.writes { socket.write_all(memory) } else { socket.read_exact(memory) };
                    let _ = part.done.send(result);
                }
            })?;
            threads.push(parts);
        }
        Ok(Stripes { threads })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    fn pass(&self, start: *mut u8, length: usize, writes: bool) -> io::Result<()> {
        let (done, ends) = mpsc::channel();
        let mut result = Ok(());
        for (thread, (offset, length)) in self.threads.iter().zip(pieces(length, self.threads.len())) {
            // SAFETY: the offset is within the memory.
            let part = Part { start: unsafe { start.add(offset) }, length, writes, done: done.clone() };
            if thread.send(part).is_err() {
                result = Err(io::Error::new(io::ErrorKind::BrokenPipe, "a stripe has ended"));
            }
        }
        drop(done);
        // All ends are waited for, also after a failure, because the memory is in use until then.
        for end in ends {
            result = result.and(end);
        }
        result
    }

    /// Sends memory.
    pub fn write(&self, data: &[u8]) -> io::Result<()> {
        self.pass(data.as_ptr().cast_mut(), data.len(), true)
    }

    /// Fills memory.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<()> {
        self.pass(buffer.as_mut_ptr(), buffer.len(), false)
    }
}
