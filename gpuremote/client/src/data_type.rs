//! Types of numbers, as CUDA's libraries take them for arguments.

/// Bytes of each type, by its number as `cudaDataType`; types of less than a byte count as one.
#[rustfmt::skip]
const BYTES: [usize; 34] = [
    4, 8, 2, 1,                 // real: f32, f64, f16, i8
    8, 16, 4, 2,                // complex: likewise
    1, 2, 4, 8, 4, 8,           // u8, i32, u32: real and complex
    2, 4,                       // bf16
    1, 1, 1, 1,                 // i4, u4
    2, 4, 2, 4,                 // i16, u16
    8, 16, 8, 16,               // i64, u64
    1, 1, 1, 1, 1, 1,           // f8 and less, real only
];

/// How many bytes a number of this `cudaDataType` takes. None when there is no such type.
pub fn data_type_bytes(data_type: i32) -> Option<usize> {
    BYTES.get(usize::try_from(data_type).ok()?).copied()
}
