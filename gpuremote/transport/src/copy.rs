//! Copies of memory that is not read again soon.

/// From so many bytes on, what is copied does not stay in the caches anyway.
pub(crate) const LARGE_BYTES: usize = 4 << 20;

/// Copies to where the memory of a large buffer may be in use already or be given for the first time.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
pub(crate) unsafe fn to_large(from: *const u8, to: *mut u8, count: usize) {
    if is_resident(to, count) {
        past_caches(from, to, count);
    } else {
        // The kernel clears memory that it gives, in the caches, from where each line would have to go before it is written past them.
        std::ptr::copy_nonoverlapping(from, to, count);
    }
}

/// Whether all of this memory has been given to the process.
fn is_resident(start: *mut u8, count: usize) -> bool {
    const PAGE: usize = 4096;
    const MOST_PAGES: usize = crate::CHUNK_BYTES / PAGE + 1;
    let first = start as usize & !(PAGE - 1);
    let pages = (start as usize + count - first).div_ceil(PAGE);
    let mut resident = [0; MOST_PAGES];
    if pages > MOST_PAGES {
        return false;
    }
    // SAFETY: the kernel writes a byte for each page, and fails where there is none.
    let known = unsafe { libc::mincore(first as *mut libc::c_void, pages * PAGE, resident.as_mut_ptr()) } == 0;
    known && resident[..pages].iter().all(|page| page & 1 != 0)
}

/// Copies past the caches: each line of the target is written at once, and not read before, which saves a third of what passes to memory.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
unsafe fn past_caches(from: *const u8, to: *mut u8, count: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    const PART: usize = size_of::<__m128i>();
    let head = to.align_offset(LINE).min(count);
    std::ptr::copy_nonoverlapping(from, to, head);
    let lines = (count - head) / LINE;
    let (mut source, mut target) = (from.add(head), to.add(head));
    for _ in 0..lines {
        let parts: [__m128i; LINE / PART] = std::array::from_fn(|i| _mm_loadu_si128(source.add(i * PART).cast()));
        for (i, part) in parts.into_iter().enumerate() {
            _mm_stream_si128(target.add(i * PART).cast(), part);
        }
        source = source.add(LINE);
        target = target.add(LINE);
    }
    _mm_sfence();
    std::ptr::copy_nonoverlapping(source, target, count - head - lines * LINE);
}

/// Copies as the compiler likes it best.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn past_caches(from: *const u8, to: *mut u8, count: usize) {
    std::ptr::copy_nonoverlapping(from, to, count);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapping;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_bytes_arrive(length in 0usize..3000, from_at in 0usize..70, to_at in 0usize..70) {
            let source: Vec<u8> = (0..length + 70).map(|i| (i * 7) as u8).collect();
            let mut target = vec![0xee; length + 140];
            // SAFETY: both are long enough.
            unsafe { past_caches(source[from_at..].as_ptr(), target[to_at..].as_mut_ptr(), length) };
            prop_assert!(target[..to_at].iter().all(|&b| b == 0xee));
            prop_assert_eq!(&target[to_at..to_at + length], &source[from_at..from_at + length]);
            prop_assert!(target[to_at + length..].iter().all(|&b| b == 0xee));
        }
    }

    #[test]
    fn memory_is_resident_once_it_is_written() {
        const LENGTH: usize = 64 * 4096;
        let memory = Mapping::private(LENGTH).unwrap();
        assert!(!is_resident(memory.start(), LENGTH));
        // SAFETY: the mapping is as long.
        unsafe { to_large([7; LENGTH].as_ptr(), memory.start(), LENGTH) };
        assert!(is_resident(memory.start(), LENGTH));
        assert!(is_resident(unsafe { memory.start().add(100) }, LENGTH - 5000));
        // SAFETY: as above.
        assert!(unsafe { std::slice::from_raw_parts(memory.start(), LENGTH) }.iter().all(|&b| b == 7));
    }
}
