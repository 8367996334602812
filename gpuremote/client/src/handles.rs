//! Numbers of handles. The client mints them, so that whoever creates an object need not wait for the server.

use std::sync::Mutex;

/// A kind of handles, such as streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleKind {
    /// The kind's place in its API's description.
    pub number: usize,
    /// The first value that is a handle. Smaller ones mean something in the API itself.
    pub first: u64,
}

const KIND_SHIFT: u32 = 40;
const TAG_SHIFT: u32 = 56;
/// No pointer of a program begins so, which catches handles of other libraries.
const TAG: u64 = 0x6e;
/// Set in the index of an object whose number the server gave.
const GIVEN: u64 = 1 << 39;

#[derive(Default)]
struct Numbers {
    next: u64,
    free: Vec<u64>,
}

/// The numbers of all kinds of handles of an API.
pub struct Handles {
    kinds: [Mutex<Numbers>; Handles::MOST_KINDS],
}

impl Default for Handles {
    fn default() -> Self {
        Handles { kinds: std::array::from_fn(|_| Mutex::new(Numbers::default())) }
    }
}

impl Handles {
    /// The most kinds that an API may have.
    pub const MOST_KINDS: usize = 32;

    /// A number that no object of this kind has now. Those that were given back come first, so that the server's tables stay short.
    pub fn mint(&self, kind: HandleKind) -> u64 {
        let mut numbers = self.kinds[kind.number].lock().expect("no one panics with this lock");
        let index = numbers.free.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next
        });
        (TAG << TAG_SHIFT) | ((kind.number as u64) << KIND_SHIFT) | index
    }

    /// Gives a number back.
    pub fn unmint(&self, kind: HandleKind, handle: u64) {
        if handle >= kind.first && Self::is(kind, handle) && handle & GIVEN == 0 {
            let mut numbers = self.kinds[kind.number].lock().expect("no one panics with this lock");
            numbers.free.push(handle & ((1 << KIND_SHIFT) - 1));
        }
    }

    /// Whether this can be a handle of that kind, or means something in the API itself.
    pub fn is(kind: HandleKind, handle: u64) -> bool {
        handle < kind.first || (handle >> KIND_SHIFT) == (TAG << (TAG_SHIFT - KIND_SHIFT)) | kind.number as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_of_one_kind_and_come_again() {
        let (streams, events) = (HandleKind { number: 2, first: 3 }, HandleKind { number: 3, first: 1 });
        let handles = Handles::default();
        let (one, two) = (handles.mint(streams), handles.mint(streams));
        assert_ne!(one, two);
        assert!(Handles::is(streams, one) && !Handles::is(events, one));
        assert!(Handles::is(streams, 2) && !Handles::is(events, 2), "2 is the stream of each thread, and no event");
        handles.unmint(streams, one);
        assert_eq!(handles.mint(streams), one);
    }
}
