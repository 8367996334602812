//! Images of GPU programs. The API gives their address only, so their length follows from what they are.

use std::ffi::CStr;

/// Magic of the wrapper that compilers put around a fat binary: a version and the address of the data follow.
const WRAPPER: u32 = 0x4662_43b1;
/// Magic of a fat binary: version (2 bytes), length of the header (2 bytes) and of what follows it (8 bytes) come after it.
const FAT_BINARY: u32 = 0xba55_ed50;
const ELF: &[u8; 4] = b"\x7fELF";

/// The bytes of an image.
///
/// # Safety
/// It must be an image: PTX that ends with a zero byte, an ELF file of 64 bits, or a fat binary, in its wrapper or without.
pub(crate) unsafe fn bytes<'a>(image: *const u8) -> &'a [u8] {
    let magic = image.cast::<u32>().read_unaligned();
    if magic == WRAPPER {
        return bytes(image.add(8).cast::<*const u8>().read_unaligned());
    }
    let length = if magic == FAT_BINARY {
        let header = image.add(6).cast::<u16>().read_unaligned();
        header as usize + image.add(8).cast::<u64>().read_unaligned() as usize
    } else if magic.to_ne_bytes() == *ELF {
        elf_length(image)
    } else {
        CStr::from_ptr(image.cast()).count_bytes()
    };
    std::slice::from_raw_parts(image, length)
}

/// The end of the last of a file's tables, segments and sections (ELF-64 Object File Format, version 1.5).
unsafe fn elf_length(image: *const u8) -> usize {
    let u16_at = |at: usize| image.add(at).cast::<u16>().read_unaligned() as usize;
    let u64_at = |at: usize| image.add(at).cast::<u64>().read_unaligned() as usize;
    let (segments, sections) = (u64_at(0x20), u64_at(0x28));
    let (segment_bytes, segment_count, section_bytes, section_count) = (u16_at(0x36), u16_at(0x38), u16_at(0x3a), u16_at(0x3c));
    let mut end = (segments + segment_bytes * segment_count).max(sections + section_bytes * section_count);
    /// Sections of this type take no bytes of the file.
    const WITHOUT_BYTES: u32 = 8;
    for i in 0..section_count {
        let section = sections + i * section_bytes;
        if image.add(section + 4).cast::<u32>().read_unaligned() != WITHOUT_BYTES {
            end = end.max(u64_at(section + 0x18) + u64_at(section + 0x20));
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_from_the_kind() {
        unsafe {
            assert_eq!(bytes(c".version 7.0".as_ptr().cast()).len(), 12);
            let mut fat = [0u8; 16 + 40];
            fat[..4].copy_from_slice(&FAT_BINARY.to_le_bytes());
            fat[6..8].copy_from_slice(&16u16.to_le_bytes());
            fat[8..16].copy_from_slice(&40u64.to_le_bytes());
            assert_eq!(bytes(fat.as_ptr()).len(), 56);
            let mut wrapper = [0u8; 24];
            wrapper[..4].copy_from_slice(&WRAPPER.to_le_bytes());
            wrapper[8..16].copy_from_slice(&(fat.as_ptr() as u64).to_le_bytes());
            assert_eq!(bytes(wrapper.as_ptr()).as_ptr(), fat.as_ptr());
            let own = std::fs::read("/proc/self/exe").unwrap();
            assert_eq!(bytes(own.as_ptr()).len(), own.len());
        }
    }
}
