//! Plain numbers as bytes, the form in which the APIs copy them.

mod sealed {
    pub trait Sealed {}
    impl Sealed for u8 {}
    impl Sealed for i32 {}
    impl Sealed for f32 {}
}

/// A number without padding, for which every bit pattern is a value.
pub trait Plain: sealed::Sealed + Copy + Default {}

impl Plain for u8 {}
impl Plain for i32 {}
impl Plain for f32 {}

/// Returns the memory of `values`.
pub fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: a `Plain` type has no padding, and u8 has no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Returns the memory of `values` for writing.
pub fn bytes_of_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`; any bytes written are values of `T`.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
