//! The interface of a PTX text: its entries, their parameters, and its variables.
//!
//! The grammar is that of the PTX ISA reference, sections "Kernel Function Directive", "Parameter State Space" and
//! "Initializers". Bodies of functions are skipped.

use crate::abi::*;
use crate::image::{Image, Kernel, Parameter, Variable};

/// Reads a PTX text.
///
/// # Errors
///
/// `CUDA_ERROR_INVALID_IMAGE` without a `.version`, `CUDA_ERROR_INVALID_PTX` for a declaration that can't be read.
pub fn read(text: &str) -> Result<Image, CUresult> {
    let text = without_comments(text);
    if !text.trim_start().starts_with(".version") {
        return Err(CUDA_ERROR_INVALID_IMAGE);
    }
    let mut image = Image::default();
    let mut rest = text.as_str();
    while let Some(start) = rest.find(['.', '{']) {
        rest = &rest[start..];
        if let Some(body) = rest.strip_prefix('{') {
            rest = after_body(body)?;
            continue;
        }
        let word_end = rest.find(|c: char| c.is_whitespace()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(word_end);
        match word {
            ".entry" => {
                let (kernel, after) = entry(after)?;
                image.kernels.push(kernel);
                rest = after;
            }
            ".global" | ".const" => {
                let end = after.find(';').ok_or(CUDA_ERROR_INVALID_PTX)?;
                image.variables.push(variable(&after[..end])?);
                rest = &after[end..];
            }
            ".func" => {
                // The parameters of a function could hold words that look like declarations of the module.
                let end = after.find(['{', ';']).ok_or(CUDA_ERROR_INVALID_PTX)?;
                rest = &after[end..];
            }
            _ => rest = after,
        }
    }
    Ok(image)
}

fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('/') {
        plain.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = match rest.as_bytes().get(1) {
            Some(b'/') => rest.find('\n').unwrap_or(rest.len()),
            Some(b'*') => rest.find("*/").map_or(rest.len(), |end| end + 2),
            _ => {
                plain.push('/');
                1
            }
        };
        rest = &rest[end..];
    }
    plain.push_str(rest);
    plain
}

/// The text behind the body whose opening brace was just read.
fn after_body(text: &str) -> Result<&str, CUresult> {
    let mut depth = 1;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok(&text[index + 1..]);
        }
    }
    Err(CUDA_ERROR_INVALID_PTX)
}

fn entry(text: &str) -> Result<(Kernel, &str), CUresult> {
    let end = text.find(['(', '{', ';']).ok_or(CUDA_ERROR_INVALID_PTX)?;
    let name = text[..end].split_whitespace().next().ok_or(CUDA_ERROR_INVALID_PTX)?.to_string();
    let Some(list) = text[end..].strip_prefix('(') else {
        return Ok((Kernel { name, parameters: Vec::new() }, &text[end..]));
    };
    let close = list.find(')').ok_or(CUDA_ERROR_INVALID_PTX)?;
    let mut parameters = Vec::new();
    let mut offset: usize = 0;
    for item in list[..close].split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let declared = declaration(item.strip_prefix(".param").ok_or(CUDA_ERROR_INVALID_PTX)?)?;
        offset = offset.next_multiple_of(declared.align_bytes);
        parameters.push(Parameter { offset_bytes: offset, size_bytes: declared.size_bytes });
        offset += declared.size_bytes;
    }
    Ok((Kernel { name, parameters }, &list[close + 1..]))
}

struct Declaration {
    name: String,
    element_bytes: usize,
    size_bytes: usize,
    align_bytes: usize,
    managed: bool,
}

/// Reads what follows the state space: `.align 8 .b8 name[24]`.
fn declaration(text: &str) -> Result<Declaration, CUresult> {
    let (mut element_bytes, mut align_bytes, mut managed, mut name) = (0, 0, false, "");
    let mut of_pointee = false;
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        match word {
            ".align" => {
                let bytes = words.next().and_then(|bytes| bytes.parse().ok()).ok_or(CUDA_ERROR_INVALID_PTX)?;
                // Behind `.ptr`, it is the alignment of the memory behind the pointer.
                if !of_pointee {
                    align_bytes = bytes;
                }
            }
            ".ptr" => of_pointee = true,
            _ if word.starts_with(".attribute") => managed |= word.contains(".managed"),
            _ if word.starts_with('.') => element_bytes = bytes_of_type(word).unwrap_or(element_bytes),
            _ => {
                name = word;
                break;
            }
        }
    }
    if element_bytes == 0 || name.is_empty() {
        return Err(CUDA_ERROR_INVALID_PTX);
    }
    let mut count = 1;
    let mut parts = name.split('[');
    let name = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let length: usize = part.trim_end_matches(']').trim().parse().map_err(|_| CUDA_ERROR_INVALID_PTX)?;
        count *= length;
    }
    let align_bytes = if align_bytes == 0 { element_bytes } else { align_bytes };
    Ok(Declaration { name, element_bytes, size_bytes: element_bytes * count, align_bytes, managed })
}

fn bytes_of_type(word: &str) -> Option<usize> {
    let bits = word.strip_prefix('.')?.trim_start_matches(['b', 'u', 's', 'f']);
    match bits {
        "8" => Some(1),
        "16" => Some(2),
        "32" => Some(4),
        "64" => Some(8),
        "128" => Some(16),
        _ => None,
    }
}

fn variable(text: &str) -> Result<Variable, CUresult> {
    let (declared, values) = match text.split_once('=') {
        Some((declared, values)) => (declared, Some(values)),
        None => (text, None),
    };
    let declared = declaration(declared)?;
    let mut initial = Vec::new();
    for value in values.unwrap_or_default().split(['{', '}', ',']).map(str::trim).filter(|value| !value.is_empty()) {
        let bits = constant(value).unwrap_or(0);
        initial.extend_from_slice(&bits.to_le_bytes()[..declared.element_bytes.min(8)]);
    }
    initial.truncate(declared.size_bytes);
    Ok(Variable { name: declared.name, initial, size_bytes: declared.size_bytes, managed: declared.managed })
}

/// The bits of a constant: decimal, `0x` hexadecimal, `0f` and `0d` floating-point.
fn constant(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x").or(text.strip_prefix("0f")).or(text.strip_prefix("0d")) {
        return u64::from_str_radix(digits.trim_end_matches('U'), 16).ok();
    }
    let negative = text.starts_with('-');
    let magnitude: u64 = text.trim_start_matches('-').trim_end_matches('U').parse().ok()?;
    Some(if negative { magnitude.wrapping_neg() } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        // A comment with .entry in it
        .version 7.0
        .target sm_70
        .address_size 64
        .const .align 4 .f32 factor = 0f40000000;
        .global .attribute(.managed) .align 4 .u32 shared_count;
        .global .align 4 .b32 table[3] = {1, -2, 0x10};
        .func (.param .b32 result) helper (.param .b32 x) { ret; }
        .visible .entry mixed(
            .param .u8 first, /* padded */
            .param .u64 .ptr .global .align 1 second,
            .param .align 8 .b8 third[24],
            .param .f32 fourth
        ) .maxntid 256, 1, 1
        { { ret; } }
        .visible .entry none() { ret; }
    "#;

    #[test]
    fn entries_have_the_offsets_of_the_c_calling_convention() {
        let image = read(TEXT).unwrap();
        let names: Vec<&str> = image.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        assert_eq!(names, ["mixed", "none"]);
        let places: Vec<(usize, usize)> = image.kernels[0].parameters.iter().map(|item| (item.offset_bytes, item.size_bytes)).collect();
        assert_eq!(places, [(0, 1), (8, 8), (16, 24), (40, 4)]);
        assert_eq!(image.kernels[0].parameter_bytes(), 44);
    }

    #[test]
    fn variables_have_their_initial_values() {
        let image = read(TEXT).unwrap();
        let summary: Vec<(&str, usize, bool, Vec<u8>)> =
            image.variables.iter().map(|item| (item.name.as_str(), item.size_bytes, item.managed, item.initial.clone())).collect();
        assert_eq!(
            summary,
            [
                ("factor", 4, false, 2.0f32.to_le_bytes().to_vec()),
                ("shared_count", 4, true, vec![]),
                ("table", 12, false, vec![1, 0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF, 0x10, 0, 0, 0]),
            ]
        );
    }

    #[test]
    fn text_without_a_version_is_no_image() {
        assert_eq!(read("hello"), Err(CUDA_ERROR_INVALID_IMAGE));
        assert_eq!(read(".version 7.0\n.entry broken("), Err(CUDA_ERROR_INVALID_PTX));
    }
}
