//! What the client's numbers stand for in this process.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

use gpuremote_wire::Malformed;

/// As in the client: a number is a tag, a kind and an index.
const KIND_SHIFT: u32 = 40;
const TAG_SHIFT: u32 = 56;
const TAG: u64 = 0x6e;
/// Set in the index of an object whose number this process gave: one that the driver had already when the client met it.
const GIVEN: usize = 1 << 39;
/// The most objects of a kind that a client may have.
const MOST: usize = 1 << 22;

/// A pointer of the driver, which any thread of this process may use.
#[derive(Clone, Copy)]
struct Object(*mut c_void);

// SAFETY: drivers' objects may be used by all threads.
unsafe impl Send for Object {}

/// The objects of a kind: those whose numbers the client minted, and those whose numbers this process gave.
#[derive(Default)]
struct Objects {
    minted: Vec<Object>,
    given: Vec<Object>,
    free: Vec<usize>,
    numbers: HashMap<usize, u64>,
}

impl Objects {
    fn place(&mut self, index: usize) -> Option<&mut Object> {
        if index & GIVEN == 0 {
            self.minted.get_mut(index)
        } else {
            self.given.get_mut(index & !GIVEN)
        }
    }
}

/// What the client's numbers stand for.
pub struct Handles {
    first: &'static [u64],
    kinds: Vec<Mutex<Objects>>,
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
        let mut objects = self.kinds[kind].lock().expect("no one panics with this lock");
        objects.place(Self::index(kind, number)?).map(|object| object.0).filter(|object| !object.is_null())
    }

    /// The object with this number, which has none afterwards.
    pub fn take(&self, kind: usize, number: u64) -> Option<*mut c_void> {
        if number < self.first[kind] {
            return Some(number as *mut c_void);
        }
        let mut objects = self.kinds[kind].lock().expect("no one panics with this lock");
        let index = Self::index(kind, number)?;
        let taken = std::mem::replace(objects.place(index)?, Object(std::ptr::null_mut())).0;
        if taken.is_null() {
            return None;
        }
        if objects.numbers.get(&(taken as usize)) == Some(&number) {
            objects.numbers.remove(&(taken as usize));
        }
        if index & GIVEN != 0 {
            objects.free.push(index & !GIVEN);
        }
        Some(taken)
    }

    /// The number of an object that the driver names. One that has none yet gets one. It fails when there are too many.
    pub fn number(&self, kind: usize, object: *mut c_void) -> Result<u64, Malformed> {
        if (object as u64) < self.first[kind] {
            return Ok(object as u64);
        }
        let mut objects = self.kinds[kind].lock().expect("no one panics with this lock");
        if let Some(&number) = objects.numbers.get(&(object as usize)) {
            return Ok(number);
        }
        let index = objects.free.pop().unwrap_or(objects.given.len());
        if index >= MOST {
            return Err(Malformed("a client has too many objects of a kind"));
        }
        if index == objects.given.len() {
            objects.given.push(Object(object));
        } else {
            objects.given[index] = Object(object);
        }
        let number = (TAG << TAG_SHIFT) | ((kind as u64) << KIND_SHIFT) | (GIVEN | index) as u64;
        objects.numbers.insert(object as usize, number);
        Ok(number)
    }

    /// Takes the number from an object that the driver has ended by itself.
    pub fn forget(&self, kind: usize, object: *mut c_void) {
        let number = self.kinds[kind].lock().expect("no one panics with this lock").numbers.get(&(object as usize)).copied();
        if let Some(number) = number {
            self.take(kind, number);
        }
    }

    /// Gives an object a number. It fails when that is none of this kind, or too large.
    pub fn put(&self, kind: usize, number: u64, object: *mut c_void) -> Result<(), Malformed> {
        let index = Self::index(kind, number).filter(|&index| index < MOST).ok_or(Malformed("a new handle has no number of its kind"))?;
        let mut objects = self.kinds[kind].lock().expect("no one panics with this lock");
        if objects.minted.len() <= index {
            objects.minted.resize(index + 1, Object(std::ptr::null_mut()));
        }
        objects.minted[index] = Object(object);
        objects.numbers.insert(object as usize, number);
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

    #[test]
    fn what_the_driver_names_has_one_number() {
        let handles = Handles::new(&[1, 1]);
        let [met, made] = [0x1000, 0x2000].map(|address| address as *mut c_void);
        let number = handles.number(1, met).unwrap();
        assert_eq!((handles.number(1, met), handles.get(1, number)), (Ok(number), Some(met)));
        handles.put(1, NUMBER, made).unwrap();
        assert_eq!(handles.number(1, made), Ok(NUMBER), "the client's own number");
        assert_eq!(handles.number(1, std::ptr::null_mut()), Ok(0), "none stays none");
        handles.forget(1, met);
        assert_eq!(handles.get(1, number), None);
        assert_eq!(handles.number(1, 0x3000 as *mut c_void), Ok(number), "numbers come again");
    }
}
