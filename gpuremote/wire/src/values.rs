//! Values as bytes.

use std::fmt;

/// A message that no client or server of this version sends, with what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for std::io::Error {
    fn from(error: Malformed) -> Self {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

/// Appends values to a buffer.
#[derive(Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

macro_rules! scalars {
    ($($name:ident),*) => {
        impl Encoder {
            $(
                #[doc = concat!("Appends one `", stringify!($name), "`.")]
                #[inline]
                pub fn $name(&mut self, value: $name) {
                    self.bytes.extend_from_slice(&value.to_le_bytes());
                }
            )*
        }

        impl<'a> Decoder<'a> {
            $(
                #[doc = concat!("Takes one `", stringify!($name), "`.")]
                #[inline]
                pub fn $name(&mut self) -> Result<$name, Malformed> {
                    let bytes = self.take(size_of::<$name>())?;
                    Ok($name::from_le_bytes(bytes.try_into().expect("as many bytes as were taken")))
                }
            )*
        }
    };
}

scalars!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

impl Encoder {
    /// Empties the buffer, which keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// What was appended.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Replaces bytes that were appended before.
    ///
    /// # Panics
    /// When so many bytes are not there yet.
    pub fn set(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Appends a size as a `u64`.
    #[inline]
    pub fn usize(&mut self, value: usize) {
        self.u64(value as u64);
    }

    /// Appends bytes as they are. Their number must follow from other values.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends the number of bytes, then the bytes.
    pub fn bytes_counted(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.raw(bytes);
    }
}

/// Takes values from a message.
#[derive(Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// A decoder at the message's first byte.
    pub fn new(message: &'a [u8]) -> Self {
        Decoder { rest: message }
    }

    /// Takes a size. It fails when the size is more than this machine can address.
    #[inline]
    pub fn usize(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.u64()?).map_err(|_| Malformed("a size is too large"))
    }

    /// Takes so many bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        if count > self.rest.len() {
            return Err(Malformed("a message ends amid a value"));
        }
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(taken)
    }

    /// Takes bytes that their number precedes.
    pub fn bytes_counted(&mut self) -> Result<&'a [u8], Malformed> {
        let count = self.u32()? as usize;
        self.take(count)
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Succeeds when nothing is left.
    pub fn finish(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Malformed("a message is longer than its values"))
        }
    }
}
