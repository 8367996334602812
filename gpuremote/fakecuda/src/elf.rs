//! The interface of a cubin, an ELF file for the GPU.
//!
//! The places of parameters are in the section `.nv.info.KERNEL`, whose records NVIDIA doesn't document. The layout used here was
//! seen in files that nvcc 13.0 writes: a format byte, an attribute byte, and 16 bits that are either a value or, for format 4, the
//! size of what follows.

use crate::abi::*;
use crate::image::{Image, Kernel, Parameter, Variable};

/// The first four bytes of an ELF file, read as a little-endian number.
pub const MAGIC: u32 = 0x464C_457F;

const SECTION_HEADER_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
const SECTION_SYMBOLS: u32 = 2;
const SECTION_NOBITS: u32 = 8;
const SYMBOL_OBJECT: u8 = 1;
/// Bit of a symbol's visibility byte that nvcc 13.0 sets for `__managed__` variables.
const SYMBOL_MANAGED: u8 = 4;

/// Length of the ELF file at `data`: its section headers or program headers end it.
///
/// # Safety
///
/// `data` points to a whole ELF file of 64 bits.
pub unsafe fn length_bytes(data: *const u8) -> usize {
    let header = unsafe { std::slice::from_raw_parts(data, 64) };
    let file = File(header);
    let table = |offset: usize, size: usize, count: usize| {
        let start = file.number(offset, 8).unwrap_or(0) as usize;
        start + file.number(size, 2).unwrap_or(0) as usize * file.number(count, 2).unwrap_or(0) as usize
    };
    table(0x28, 0x3A, 0x3C).max(table(0x20, 0x36, 0x38))
}

struct File<'a>(&'a [u8]);

struct Section<'a> {
    name: &'a str,
    kind: u32,
    link: usize,
    content: &'a [u8],
}

impl<'a> File<'a> {
    fn number(&self, offset: usize, size_bytes: usize) -> Option<u64> {
        let bytes = self.0.get(offset..offset + size_bytes)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn text(&self, offset: usize) -> Option<&'a str> {
        let bytes = self.0.get(offset..)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&bytes[..end]).ok()
    }

    fn sections(&self) -> Option<Vec<Section<'a>>> {
        let start = self.number(0x28, 8)? as usize;
        let count = self.number(0x3C, 2)? as usize;
        let header = |index: usize, offset: usize, size| self.number(start + index * SECTION_HEADER_BYTES + offset, size);
        let names = header(self.number(0x3E, 2)? as usize, 0x18, 8)? as usize;
        (0..count)
            .map(|index| {
                let kind = header(index, 4, 4)? as u32;
                let offset = header(index, 0x18, 8)? as usize;
                let size = header(index, 0x20, 8)? as usize;
                let content = if kind == SECTION_NOBITS { &[] } else { self.0.get(offset..offset + size)? };
                let name = self.text(names + header(index, 0, 4)? as usize)?;
                Some(Section { name, kind, link: header(index, 0x28, 4)? as usize, content })
            })
            .collect()
    }
}

/// Reads a cubin.
///
/// # Errors
///
/// `CUDA_ERROR_INVALID_IMAGE` for a file that isn't whole.
pub fn read(bytes: &[u8]) -> Result<Image, CUresult> {
    interface(bytes).ok_or(CUDA_ERROR_INVALID_IMAGE)
}

fn interface(bytes: &[u8]) -> Option<Image> {
    let file = File(bytes);
    let sections = file.sections()?;
    let mut image = Image::default();
    for section in &sections {
        if let Some(name) = section.name.strip_prefix(".text.") {
            let info = sections.iter().find(|other| other.name.strip_prefix(".nv.info.") == Some(name));
            let parameters = info.map_or_else(Vec::new, |info| parameters(info.content));
            image.kernels.push(Kernel { name: name.to_string(), parameters });
        }
    }
    for table in sections.iter().filter(|section| section.kind == SECTION_SYMBOLS) {
        let names = File(sections.get(table.link)?.content);
        for symbol in table.content.chunks_exact(SYMBOL_BYTES) {
            let symbol = File(symbol);
            let home = symbol.number(6, 2)? as usize;
            let Some(section) = sections.get(home) else { continue };
            let in_memory = section.name.starts_with(".nv.global") || section.name == ".nv.constant3";
            if symbol.number(4, 1)? as u8 & 0xF != SYMBOL_OBJECT || !in_memory {
                continue;
            }
            let (value, size_bytes) = (symbol.number(8, 8)? as usize, symbol.number(16, 8)? as usize);
            let initial = match section.kind {
                SECTION_NOBITS => Vec::new(),
                _ => section.content.get(value..value + size_bytes)?.to_vec(),
            };
            let managed = symbol.number(5, 1)? as u8 & SYMBOL_MANAGED != 0;
            let name = names.text(symbol.number(0, 4)? as usize)?.to_string();
            image.variables.push(Variable { name, initial, size_bytes, managed });
        }
    }
    Some(image)
}

fn parameters(info: &[u8]) -> Vec<Parameter> {
    const FORMAT_SIZED: u8 = 4;
    const PARAMETER: u8 = 0x17;
    let mut found: Vec<(u16, Parameter)> = Vec::new();
    let mut rest = info;
    while rest.len() >= 4 {
        let (format, attribute) = (rest[0], rest[1]);
        let value = u16::from_le_bytes([rest[2], rest[3]]) as usize;
        let size = if format == FORMAT_SIZED { value } else { 0 };
        let Some(content) = rest.get(4..4 + size) else { break };
        if format == FORMAT_SIZED && attribute == PARAMETER && size >= 12 {
            let ordinal = u16::from_le_bytes([content[4], content[5]]);
            let offset_bytes = u16::from_le_bytes([content[6], content[7]]) as usize;
            // The upper 14 bits of the last word are the size in bytes.
            let word = u32::from_le_bytes([content[8], content[9], content[10], content[11]]);
            found.push((ordinal, Parameter { offset_bytes, size_bytes: (word >> 18) as usize }));
        }
        rest = &rest[4 + size..];
    }
    found.sort_by_key(|(ordinal, _)| *ordinal);
    found.into_iter().map(|(_, parameter)| parameter).collect()
}
