//! Answers to queries, as all of OpenCL's functions called `clGet...Info` give them.

use crate::objects::Object;
use crate::stubs::STATUSES;
use std::sync::Arc;

/// Copies a value to where the program wants it, and its length. A value that does not fit is an error.
///
/// # Safety
/// The pointers are null or can be written to, the first as far as `size` bytes.
pub(crate) unsafe fn answer(value: &[u8], size: usize, into: *mut u8, size_ret: *mut usize) -> i32 {
    if !into.is_null() {
        if size < value.len() {
            return STATUSES.invalid;
        }
        std::ptr::copy_nonoverlapping(value.as_ptr(), into, value.len());
    }
    if !size_ret.is_null() {
        *size_ret = value.len();
    }
    STATUSES.ok
}

/// Where the program wants a value.
pub(crate) struct Query {
    pub size: usize,
    pub into: *mut u8,
    pub size_ret: *mut usize,
}

impl Query {
    /// Answers with bytes.
    pub unsafe fn bytes(&self, value: &[u8]) -> i32 {
        answer(value, self.size, self.into, self.size_ret)
    }

    /// Answers with a `cl_uint` or `cl_bool`.
    pub unsafe fn u32(&self, value: u32) -> i32 {
        self.bytes(&value.to_le_bytes())
    }

    /// Answers with a `cl_ulong`, a bit field, a size or an address.
    pub unsafe fn u64(&self, value: u64) -> i32 {
        self.bytes(&value.to_le_bytes())
    }

    /// Answers with an object, or null.
    pub unsafe fn object(&self, object: Option<&Arc<Object>>) -> i32 {
        self.u64(object.map_or(0, |object| object.address() as u64))
    }

    /// Answers with objects.
    pub unsafe fn objects(&self, objects: &[Arc<Object>]) -> i32 {
        self.words(objects.iter().map(|object| object.address() as u64))
    }

    /// Answers with an array of 64-bit values.
    pub unsafe fn words(&self, words: impl IntoIterator<Item = u64>) -> i32 {
        self.bytes(&words.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<_>>())
    }

    /// Answers with what the server says, or passes its failure on.
    pub unsafe fn result(&self, value: Result<Vec<u8>, i32>) -> i32 {
        match value {
            Ok(value) => self.bytes(&value),
            Err(status) => status,
        }
    }
}

/// An array of `cl_properties`, which ends with a zero: pairs, and all words as they were given, which is what queries answer.
///
/// # Safety
/// The pointer is null, or at an array that ends with a zero.
pub(crate) unsafe fn properties(mut list: *const u64) -> (Vec<(u64, u64)>, Vec<u64>) {
    let (mut pairs, mut words) = (Vec::new(), Vec::new());
    if list.is_null() {
        return (pairs, words);
    }
    while *list != 0 {
        pairs.push((*list, *list.add(1)));
        words.extend([*list, *list.add(1)]);
        list = list.add(2);
    }
    words.push(0);
    (pairs, words)
}
