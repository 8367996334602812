//! What the client's numbers stand for in this process.

use std::ffi::c_void;
use std::sync::Mutex;

use gpuremote_wire::Malformed;

/// As in the client: a number is a tag, a kind and an index.
const KIND_SHIFT: u32 = 40;
const TAG_SHIFT: u32 = 56;
const TAG: u64 = 0x6e;
/// The most objects of a kind that a client may have.
const MOST: usize = 1 << 22;

/// A pointer of the driver, which any thread of this process may use.
#[derive(Clone, Copy)]
struct Object(*mut c_void);

// SAFETY: drivers' objects may be used by all threads.
unsafe impl Send for Object {}

/// What the client's numbers stand for.
pub struct Handles {
    first: &'static [u64],
    kinds: Vec<Mutex<Vec<Object>>>,
}

impl Handles {
    /// Empty tables. Of each kind, values below `first` mean something in the API itself, and stand for themselves.
    pub fn new(first: &'static [u64]) -> Self {
        Handles { first, kinds: first.iter().map(|_| Mutex::default()).collect() }
    }

    fn index(kind: usize, number: u64) -> Option<usize> {
        (number >> KIND_SHIFT == (TAG << (TAG_SHIFT - KIND_SHIFT)) | kind as u64).then_some((number & ((1 << KIND_SHIFT) - 1)) as usize)
    }

    /// The object with this number.
    pub fn get(&self, kind: usize, number: u64) -> Option<*mut c_void> {
        if number < self.first[kind] {
            return Some(number as *mut c_void);
        }
        let objects = self.kinds[kind].lock().expect("no one panics with this lock");
        objects.get(Self::index(kind, number)?).map(|object| object.0).filter(|object| !object.is_null())
    }

    /// The object with this number, which has none afterwards.
    pub fn take(&self, kind: usize, number: u64) -> Option<*mut c_void> {
        if number < self.first[kind] {
            return Some(number as *mut c_void);
        }
        let mut objects = self.kinds[kind].lock().expect("no one panics with this lock");
        let object = objects.get_mut(Self::index(kind, number)?)?;
        let taken = std::mem::replace(object, Object(std::ptr::null_mut())).0;
        (!taken.is_null()).then_some(taken)
    }

    /// Gives an object a number. It fails when that is none of this kind, or too large.
    pub fn put(&self, kind: usize, number: u64, object: *mut c_void) -> Result<(), Malformed> {
        let index = Self::index(kind, number).filter(|&index| index < MOST).ok_or(Malformed("a new handle has no number of its kind"))?;
        let mut objects = self.kinds[kind].lock().expect("no one panics with this lock");
        if objects.len() <= index {
            objects.resize(index + 1, Object(std::ptr::null_mut()));
        }
        objects[index] = Object(object);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: u64 = (TAG << TAG_SHIFT) | (1 << KIND_SHIFT) | 5;

    #[test]
    fn numbers_stand_for_what_they_were_given() {
        let handles = Handles::new(&[1, 3]);
        let object = 0x1000 as *mut c_void;
        handles.put(1, NUMBER, object).unwrap();
        assert_eq!(handles.get(1, NUMBER), Some(object));
        assert_eq!(handles.get(0, NUMBER), None, "of another kind");
        assert_eq!(handles.get(1, NUMBER + 1), None, "never given");
        assert_eq!(handles.get(1, 2), Some(2 as *mut c_void), "of the API itself");
        assert_eq!(handles.take(1, NUMBER), Some(object));
        assert_eq!(handles.take(1, NUMBER), None, "taken twice");
        assert!(handles.put(1, NUMBER + MOST as u64, object).is_err());
        assert!(handles.put(0, 7, object).is_err());
    }
}
