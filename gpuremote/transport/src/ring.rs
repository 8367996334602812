//! A ring of bytes in shared memory: one process writes, another reads, and neither copies more than it must.
//!
//! The bytes are mapped twice, one after the other, so that any part of the ring is one slice, also across its end. The other side may be
//! hostile: its positions are checked, and what was read from the ring must be copied before it is checked.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::memory::Mapping;

/// Bytes before the data: positions and who sleeps, each in a cache line of its own.
pub(crate) const CONTROL_BYTES: usize = 4096;

#[repr(C)]
struct Line<T>(T, [u8; 56]);

#[repr(C)]
struct Control {
    /// Bytes written, ever.
    written: Line<AtomicU64>,
    /// Bytes read, ever.
    read: Line<AtomicU64>,
    /// 1 while the reader sleeps (a futex).
    reader_sleeps: Line<AtomicU64>,
    /// 1 while the writer sleeps (a futex).
    writer_sleeps: Line<AtomicU64>,
}

/// One end of a ring: the writing or the reading one.
pub(crate) struct Ring {
    control: Mapping,
    data: Mapping,
    capacity: u64,
    /// This end's own position; the other end cannot change it.
    own: u64,
    /// The other end's position, when last looked.
    other: u64,
    writes: bool,
}

/// An answer that takes long enough for so many looks is not on its way back from another processor yet.
const LOOKS_UNTIL_YIELD: u32 = 32;

/// How long an end looks for news before it sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Zero where a single processor would only be kept from the other end.
    pub spin: Duration,
}

impl Patience {
    pub(crate) fn of_machine() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Patience { spin: if processors > 1 { Duration::from_micros(50) } else { Duration::ZERO } }
    }
}

impl Ring {
    /// Maps one end of the ring that lies in the file at an offset.
    pub(crate) fn map(file: &OwnedFd, offset: usize, capacity: usize, writes: bool) -> io::Result<Self> {
        debug_assert!(capacity.is_power_of_two() && capacity % CONTROL_BYTES == 0);
        let control = Mapping::shared(file.as_raw_fd(), offset, CONTROL_BYTES)?;
        let data = Mapping::mirrored(file.as_raw_fd(), offset + CONTROL_BYTES, capacity)?;
        Ok(Ring { control, data, capacity: capacity as u64, own: 0, other: 0, writes })
    }

    fn control(&self) -> &Control {
        // SAFETY: the mapping is CONTROL_BYTES long, aligned to a page, and lives as long as self; all fields are atomics.
        unsafe { &*self.control.start().cast::<Control>() }
    }

    /// The memory of the data, mapped twice: what a driver may pin.
    pub(crate) fn memory(&self) -> (*mut u8, usize) {
        (self.data.start(), self.data.length())
    }

    fn at(&self, position: u64) -> *mut u8 {
        // SAFETY: the remainder is less than the capacity, and the data is mapped.
        unsafe { self.data.start().add((position & (self.capacity - 1)) as usize) }
    }

    /// How many bytes this end may take or put now, at a distance from its position.
    fn room(&self) -> u64 {
        if self.writes {
            self.capacity - (self.own - self.other)
        } else {
            self.other - self.own
        }
    }

    fn look(&mut self) -> io::Result<u64> {
        let position = if self.writes { &self.control().read.0 } else { &self.control().written.0 }.load(Ordering::Acquire);
        let plausible = if self.writes {
            position >= self.other && position <= self.own
        } else {
            position >= self.other && position - self.own <= self.capacity
        };
        if !plausible {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the other side's position in a ring is impossible"));
        }
        self.other = position;
        Ok(self.room())
    }

    /// Bytes this end may use now, without waiting, beyond those it holds already (`held`).
    pub(crate) fn available(&mut self, held: usize) -> io::Result<usize> {
        let room = self.room();
        let room = if room > held as u64 { room } else { self.look()? };
        Ok(room.saturating_sub(held as u64) as usize)
    }

    /// The bytes from this end's position plus `held`, of which at least `count` must be available.
    pub(crate) fn slice(&self, held: usize, count: usize) -> *mut u8 {
        debug_assert!(held as u64 + count as u64 <= self.room());
        self.at(self.own + held as u64)
    }

    /// Moves this end's position on, and wakes the other end if it sleeps.
    pub(crate) fn advance(&mut self, count: usize) {
        debug_assert!(count as u64 <= self.room());
        self.own += count as u64;
        let control = self.control();
        let (position, sleeper) =
            if self.writes { (&control.written.0, &control.reader_sleeps.0) } else { (&control.read.0, &control.writer_sleeps.0) };
        position.store(self.own, Ordering::Release);
        fence(Ordering::SeqCst);
        if sleeper.load(Ordering::Relaxed) != 0 && sleeper.swap(0, Ordering::SeqCst) != 0 {
            futex_wake(sleeper);
        }
    }

    /// Waits until more than `held` bytes can be used. It fails when `alive` says that the other side is gone.
    pub(crate) fn wait(&mut self, held: usize, patience: Patience, alive: &dyn Fn() -> bool) -> io::Result<usize> {
        let begun = Instant::now();
        let mut looks = 0u32;
        loop {
            let room = self.look()?.saturating_sub(held as u64);
            if room > 0 {
                return Ok(room as usize);
            }
            looks += 1;
            std::hint::spin_loop();
            if looks % LOOKS_UNTIL_YIELD == 0 {
                if begun.elapsed() >= patience.spin {
                    break;
                }
                // The other end may wait for this very processor.
                std::thread::yield_now();
            }
        }
        loop {
            let own_end = if self.writes { &self.control().writer_sleeps.0 } else { &self.control().reader_sleeps.0 } as *const AtomicU64;
            // SAFETY: the control page is mapped as long as self.
            let sleeps = unsafe { &*own_end };
            sleeps.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let room = self.look()?.saturating_sub(held as u64);
            if room > 0 {
                sleeps.store(0, Ordering::Relaxed);
                return Ok(room as usize);
            }
            if !alive() {
                // What came before the end of the other side still counts.
                let room = self.look()?.saturating_sub(held as u64);
                if room > 0 {
                    return Ok(room as usize);
                }
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other side has ended"));
            }
            futex_wait(sleeps, Duration::from_millis(100));
        }
    }
}

fn futex_word(word: &AtomicU64) -> *mut u32 {
    // The low half on little-endian machines, which are all that CUDA runs on.
    (word as *const AtomicU64 as *const AtomicU32 as *mut AtomicU32).cast()
}

fn futex_wake(word: &AtomicU64) {
    // SAFETY: the word is mapped; waking has no other effect.
    unsafe { libc::syscall(libc::SYS_futex, futex_word(word), libc::FUTEX_WAKE, 1) };
}

fn futex_wait(word: &AtomicU64, at_most: Duration) {
    let timeout = libc::timespec { tv_sec: at_most.as_secs() as _, tv_nsec: at_most.subsec_nanos() as _ };
    // SAFETY: the word is mapped, and the timeout lives during the call. Early returns are looked after by the caller's loop.
    unsafe { libc::syscall(libc::SYS_futex, futex_word(word), libc::FUTEX_WAIT, 1, &timeout) };
}
