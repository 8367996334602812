//! How much memory clients may have, and the table in which each notes that. All clients of a server share one bound: each notes in a table that all of them map what it has, so a client that dies
//! gives back all of it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::counts::{Counts, Tally};

/// So many clients have a place in the table.
pub const PLACES: usize = 512;

/// What a client has, in bytes, and what it has done.
#[repr(C)]
struct Place {
    memory: AtomicU64,
    tally: Tally,
}

/// What each client has and has done, by its place.
pub struct Table {
    places: *const [Place; PLACES],
}

// SAFETY: the table is made of atomic numbers, and is mapped until the process ends.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// The file of a new table, which processes that are started inherit.
    pub fn file() -> io::Result<OwnedFd> {
        let file = nix::sys::memfd::memfd_create(c"nearmetal-gpu-memory", nix::sys::memfd::MFdFlags::empty())?;
        File::from(file.try_clone()?).set_len(size_of::<[Place; PLACES]>() as u64)?;
        Ok(file)
    }

    /// Maps the table in a file.
    pub fn map(file: &impl AsFd) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        let (length, flags) = (size_of::<[Place; PLACES]>(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping of a file that is long enough, which stays.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, flags, libc::MAP_SHARED, file.as_fd().as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Table { places: at.cast() })
    }

    fn places(&self) -> &[Place; PLACES] {
        // SAFETY: the mapping is as long, aligned to a page, and stays.
        unsafe { &*self.places }
    }

    /// Empties a place, whose client has ended.
    pub fn clear(&self, place: usize) {
        self.places()[place].memory.store(0, Ordering::SeqCst);
        self.places()[place].tally.clear();
    }

    /// What the client at a place has done.
    pub fn tally(&self, place: usize) -> &Tally {
        &self.places()[place].tally
    }

    /// What the clients at all places have done.
    pub fn counts(&self) -> Counts {
        self.places().iter().fold(Counts::default(), |sum, place| sum.and(place.tally.counts()))
    }

    fn sum(&self) -> u64 {
        self.places().iter().fold(0, |sum, place| sum.saturating_add(place.memory.load(Ordering::SeqCst)))
    }
}

/// One client's way to the bound.
pub struct Bound {
    bytes: u64,
    table: Option<(Table, usize)>,
    own: AtomicU64,
}

impl Bound {
    /// The bound of a client at a place of the table, in bytes.
    pub fn shared(bytes: u64, table: Table, place: usize) -> Self {
        Bound { bytes, table: Some((table, place)), own: AtomicU64::new(0) }
    }

    /// A bound of this process alone.
    pub fn alone(bytes: u64) -> Self {
        Bound { bytes, table: None, own: AtomicU64::new(0) }
    }

    /// All that clients may have together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there is a bound at all.
    pub fn is_bounded(&self) -> bool {
        self.bytes < u64::MAX
    }

    fn place(&self) -> &AtomicU64 {
        match &self.table {
            Some((table, place)) => &table.places()[*place].memory,
            None => &self.own,
        }
    }

    fn sum(&self) -> u64 {
        match &self.table {
            Some((table, _)) => table.sum(),
            None => self.own.load(Ordering::SeqCst),
        }
    }

    /// What nobody has.
    pub fn left(&self) -> u64 {
        self.bytes.saturating_sub(self.sum())
    }

    /// Takes so many bytes if all clients together are within the bound then. Two that ask at once may both be refused, and never both pass it.
    pub fn take(&self, bytes: u64) -> bool {
        let place = self.place();
        let noted = place.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |has| has.checked_add(bytes));
        if noted.is_err() {
            return false;
        }
        if self.sum() <= self.bytes {
            return true;
        }
        place.fetch_sub(bytes, Ordering::SeqCst);
        false
    }

    /// Corrects what was taken, once it is known what was got.
    pub fn settle(&self, took: u64, got: u64) {
        if got >= took {
            self.place().fetch_add(got - took, Ordering::SeqCst);
        } else {
            self.give_back(took - got);
        }
    }

    /// Gives bytes back that were taken.
    pub fn give_back(&self, bytes: u64) {
        self.place().fetch_sub(bytes, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_share_one_bound_and_who_ends_gives_all_back() {
        let file = Table::file().unwrap();
        let client = |place| Bound::shared(100, Table::map(&file).unwrap(), place);
        let (one, other) = (client(0), client(1));
        assert!(one.take(60) && !other.take(41) && other.take(40));
        assert_eq!((one.left(), other.left(), one.bytes()), (0, 0, 100));
        one.give_back(10);
        assert!(other.take(10) && !other.take(1));
        Table::map(&file).unwrap().clear(0);
        assert!(other.take(50) && !other.take(1));
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        for bound in [Bound::alone(100), Bound::alone(u64::MAX - 1)] {
            assert!(bound.take(50) && !bound.take(u64::MAX) && bound.is_bounded());
            assert_eq!(bound.bytes() - bound.left(), 50);
        }
        assert!(Bound::alone(u64::MAX).take(u64::MAX) && !Bound::alone(u64::MAX).is_bounded());
    }
}
