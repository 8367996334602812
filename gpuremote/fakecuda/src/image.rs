//! Device images: PTX text, cubins and fat binaries, read as far as their interface goes.

use crate::abi::*;
use crate::{elf, ptx};
use std::ffi::{c_void, CStr};

/// A parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// Offset in the parameter buffer, in bytes.
    pub offset_bytes: usize,
    /// Size in bytes.
    pub size_bytes: usize,
}

/// A kernel of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Name as in the image, possibly mangled.
    pub name: String,
    /// Parameters in order.
    pub parameters: Vec<Parameter>,
}

impl Kernel {
    /// Size of the parameter buffer in bytes.
    pub fn parameter_bytes(&self) -> usize {
        self.parameters.iter().map(|parameter| parameter.offset_bytes + parameter.size_bytes).max().unwrap_or(0)
    }

    /// Name of the function in the source: `vector_add` for `_Z10vector_addPfPKfS1_j`.
    pub fn source_name(&self) -> &str {
        let Some(rest) = self.name.strip_prefix("_Z") else { return &self.name };
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let length: usize = rest[..digits].parse().unwrap_or(0);
        rest.get(digits..digits + length).filter(|name| !name.is_empty()).unwrap_or(&self.name)
    }
}

/// A variable of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Name as in the image.
    pub name: String,
    /// Its first bytes; the rest is zero.
    pub initial: Vec<u8>,
    /// Size in bytes.
    pub size_bytes: usize,
    /// Reports whether it lies in managed memory.
    pub managed: bool,
}

/// The interface of a device image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Kernels of the image.
    pub kernels: Vec<Kernel>,
    /// Variables of the image.
    pub variables: Vec<Variable>,
}

const WRAPPER_MAGIC: u32 = 0x4662_43B1;
const FATBIN_MAGIC: u32 = 0xBA55_ED50;

/// Start of a fat binary, as found in files that nvcc writes.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct FatbinHeader {
    magic: u32,
    version: u16,
    header_bytes: u16,
    content_bytes: u64,
}

/// Start of each entry of a fat binary, as found in files that nvcc writes. Further fields follow up to `header_bytes`.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct EntryHeader {
    kind: u16,
    version: u16,
    header_bytes: u32,
    content_bytes: u64,
    compressed_bytes: u32,
}

const ENTRY_PTX: u16 = 1;
const ENTRY_CUBIN: u16 = 2;

/// Reads the image at `data`, which the caller of the driver gives without a size.
///
/// # Safety
///
/// `data` points to a whole PTX text with a NUL byte at its end, cubin, fat binary, or wrapper of a fat binary.
///
/// # Errors
///
/// `CUDA_ERROR_INVALID_VALUE` for null, `CUDA_ERROR_INVALID_IMAGE` for anything unknown, `CUDA_ERROR_INVALID_PTX` for a
/// faulty PTX text, `CUDA_ERROR_NO_BINARY_FOR_GPU` for a fat binary with compressed entries only.
pub unsafe fn read(data: *const c_void) -> Result<Image, CUresult> {
    if data.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // Each kind has at least four bytes: the shortest PTX text is longer.
    let magic = unsafe { (data as *const u32).read_unaligned() };
    match magic {
        WRAPPER_MAGIC => {
            let fatbin = unsafe { *(data as *const *const c_void).add(1) };
            unsafe { read(fatbin) }
        }
        FATBIN_MAGIC => {
            let header = unsafe { (data as *const FatbinHeader).read_unaligned() };
            let content = unsafe { (data as *const u8).add(header.header_bytes as usize) };
            let content = unsafe { std::slice::from_raw_parts(content, header.content_bytes as usize) };
            from_fatbin(content)
        }
        elf::MAGIC => {
            let length = unsafe { elf::length_bytes(data as *const u8) };
            elf::read(unsafe { std::slice::from_raw_parts(data as *const u8, length) })
        }
        _ => {
            let text = unsafe { CStr::from_ptr(data as *const _) };
            ptx::read(text.to_str().map_err(|_| CUDA_ERROR_INVALID_IMAGE)?)
        }
    }
}

fn from_fatbin(content: &[u8]) -> Result<Image, CUresult> {
    let mut images = Vec::new();
    let mut rest = content;
    while rest.len() >= size_of::<EntryHeader>() {
        let header = unsafe { (rest.as_ptr() as *const EntryHeader).read_unaligned() };
        let start = header.header_bytes as usize;
        let end = start.checked_add(header.content_bytes as usize).ok_or(CUDA_ERROR_INVALID_IMAGE)?;
        let content = rest.get(start..end).ok_or(CUDA_ERROR_INVALID_IMAGE)?;
        if header.compressed_bytes == 0 {
            images.push((header.kind, content));
        }
        rest = &rest[end..];
    }
    let of_kind = |kind| images.iter().find(|(found, _)| *found == kind).map(|(_, content)| *content);
    if let Some(cubin) = of_kind(ENTRY_CUBIN) {
        return elf::read(cubin);
    }
    let text = of_kind(ENTRY_PTX).ok_or(CUDA_ERROR_NO_BINARY_FOR_GPU)?;
    let text = std::str::from_utf8(text).map_err(|_| CUDA_ERROR_INVALID_PTX)?;
    ptx::read(text.trim_end_matches('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mangled_name_gives_the_name_in_the_source() {
        let kernel = |name: &str| Kernel { name: name.into(), parameters: Vec::new() };
        assert_eq!(kernel("_Z10vector_addPfPKfS1_j").source_name(), "vector_add");
        assert_eq!(kernel("vector_add").source_name(), "vector_add");
        assert_eq!(kernel("_ZN1a1bEv").source_name(), "_ZN1a1bEv");
    }
}
