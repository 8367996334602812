//! Host memory that this process shares with its server process.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use gpuremote_transport::{map_arena, Mapping, ARENA_BYTES};

/// Parts begin at multiples of this, in bytes.
const GRAIN: usize = 64 << 10;

/// Host memory that this process shares with its server process.
pub struct Arena {
    memory: Mapping,
    parts: Mutex<Parts>,
}

/// Which parts are free and which are taken: offset and length, in bytes.
struct Parts {
    free: BTreeMap<usize, usize>,
    taken: BTreeMap<usize, usize>,
}

impl Parts {
    fn new(length: usize) -> Self {
        Parts { free: BTreeMap::from([(0, length)]), taken: BTreeMap::new() }
    }

    /// The first part that is long enough.
    fn take(&mut self, length: usize) -> Option<usize> {
        let length = length.max(1).checked_next_multiple_of(GRAIN)?;
        let (&offset, &free) = self.free.iter().find(|(_, &free)| free >= length)?;
        self.free.remove(&offset);
        if free > length {
            self.free.insert(offset + length, free - length);
        }
        self.taken.insert(offset, length);
        Some(offset)
    }

    /// Frees what begins there, and returns its length.
    fn give_back(&mut self, offset: usize) -> Option<usize> {
        let length = self.taken.remove(&offset)?;
        let (mut begin, mut end) = (offset, offset + length);
        if let Some((&before, &free)) = self.free.range(..offset).next_back() {
            if before + free == begin {
                self.free.remove(&before);
                begin = before;
            }
        }
        if let Some(after) = self.free.remove(&end) {
            end += after;
        }
        self.free.insert(begin, end - begin);
        Some(length)
    }
}

impl Arena {
    pub(crate) fn map(file: &OwnedFd) -> io::Result<Self> {
        Ok(Arena { memory: map_arena(file)?, parts: Mutex::new(Parts::new(ARENA_BYTES)) })
    }

    /// Takes memory. None when no part is long enough.
    pub fn take(&self, length: usize) -> Option<*mut u8> {
        let offset = self.parts.lock().expect("no one panics with this lock").take(length)?;
        // SAFETY: the offset is within the mapping.
        Some(unsafe { self.memory.start().add(offset) })
    }

    /// Gives memory back: what begins at this address. Its offset and length in bytes, or none when nothing that was taken begins there.
    pub fn give_back(&self, start: *const u8) -> Option<(usize, usize)> {
        let offset = self.offset(start, 0)?;
        let length = self.parts.lock().expect("no one panics with this lock").give_back(offset)?;
        Some((offset, length))
    }

    /// Where this memory lies in the arena, if all of it does.
    pub fn offset(&self, start: *const u8, length: usize) -> Option<usize> {
        let offset = (start as usize).checked_sub(self.memory.start() as usize)?;
        (offset < ARENA_BYTES && length <= ARENA_BYTES - offset).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_join_again() {
        let mut parts = Parts::new(4 * GRAIN);
        let taken: Vec<_> = (0..4).map(|_| parts.take(GRAIN).unwrap()).collect();
        assert_eq!(parts.take(1), None);
        for i in [1, 3, 0, 2] {
            assert_eq!(parts.give_back(taken[i]), Some(GRAIN));
            assert_eq!(parts.give_back(taken[i]), None, "given back twice");
        }
        assert_eq!(parts.take(4 * GRAIN), Some(0));
    }
}
