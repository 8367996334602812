//! CUDA's libraries. Each is the real one, in the client's own process, and its calls run on the lane's thread, whose context is the
//! client's; so nothing is by hand here.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use gpuremote_wire::{Decoder, Encoder, Malformed};

use crate::cuda;
use crate::handles::Handles;
use crate::worker::Api;

/// A library that is loaded, for all lanes of a session.
trait Loaded: Send + Sync {
    /// A lane's part.
    fn lane(self: Arc<Self>) -> Box<dyn Api>;
}

/// What a library is called, and how it is loaded.
pub struct Kind {
    /// Its name, which is that of its flag, too.
    pub name: &'static str,
    /// The file that is loaded where no flag names another.
    pub file: &'static str,
    /// The API's number on the wire.
    pub api: u8,
    /// The status of each call where it is missing.
    pub missing: i32,
    load: Load,
}

/// Loads a library from a file.
type Load = fn(&str, &Arc<cuda::Shared>) -> Result<Arc<dyn Loaded>, String>;

/// The libraries of a session, which are loaded at their first calls.
#[derive(Default)]
pub struct Libraries {
    loaded: [OnceLock<Option<Arc<dyn Loaded>>>; KINDS.len()],
}

impl Libraries {
    /// A lane's part of a library from this file. None, which is told on standard error, where it can't be loaded.
    ///
    /// # Panics
    /// When there is no such kind.
    pub fn lane(&self, kind: usize, file: &str, cuda: &Arc<cuda::Shared>) -> Option<Box<dyn Api>> {
        let loaded = self.loaded[kind].get_or_init(|| {
            let loaded = (KINDS[kind].load)(file, cuda);
            loaded.map_err(|why| eprintln!("nearmetal-gpu-server: can't load {} as {}: {why}", file, KINDS[kind].name)).ok()
        });
        loaded.as_ref().map(|loaded| Arc::clone(loaded).lane())
    }
}

/// A library with these functions.
pub struct Library<F> {
    functions: F,
    handles: Handles,
    #[allow(dead_code)]
    cuda: Arc<cuda::Shared>,
    _library: libloading::Library,
}

impl<F> Library<F> {
    fn load(
        file: &str,
        cuda: &Arc<cuda::Shared>,
        find: unsafe fn(&libloading::Library) -> F,
        first_handles: &'static [u64],
    ) -> Result<Self, String> {
        // SAFETY: the operator names the library, whose initialization is safe.
        let library = unsafe { libloading::Library::new(file) }.map_err(|error| error.to_string())?;
        // SAFETY: the operator says that it is this library.
        let functions = unsafe { find(&library) };
        Ok(Library { functions, handles: Handles::new(first_handles), cuda: Arc::clone(cuda), _library: library })
    }
}

macro_rules! libraries {
    ($($name:ident $file:literal;)*) => {
        $(mod $name {
            use std::io;
            use std::sync::Arc;

            use gpuremote_wire::{Decoder, Encoder};

            use super::{cuda, Library, Loaded};
            #[allow(unused_imports)]
            use crate::cuda::{array, bounded, handle_array, text};
            use crate::worker::{Api, Link, Outcome};

            #[allow(missing_docs, dead_code, unused_imports, non_snake_case, clippy::all)]
            pub mod calls {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));
            }

            pub struct Server(Arc<Library<calls::Functions>>);

            impl std::ops::Deref for Server {
                type Target = Library<calls::Functions>;

                fn deref(&self) -> &Self::Target {
                    &self.0
                }
            }

            impl Loaded for Library<calls::Functions> {
                fn lane(self: Arc<Self>) -> Box<dyn Api> {
                    Box::new(Server(self))
                }
            }

            pub fn load(file: &str, cuda: &Arc<cuda::Shared>) -> Result<Arc<dyn Loaded>, String> {
                Ok(Arc::new(Library::load(file, cuda, calls::Functions::load, &calls::FIRST_HANDLES)?))
            }

            impl Api for Server {
                fn blocks(&self, function: u16) -> bool {
                    calls::blocks(function)
                }

                fn failed(&self) -> i32 {
                    calls::FAILED
                }

                fn run(&mut self, link: &mut Link<'_>, function: u16, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
                    // SAFETY: the library is what its kind says, and the description has its functions' types.
                    unsafe { calls::dispatch(self, link, function, decoder, values) }
                }
            }
        })*

        /// All libraries.
        pub const KINDS: [Kind; [$($file),*].len()] = [$(Kind {
            name: stringify!($name),
            file: $file,
            api: $name::calls::API,
            missing: $name::calls::MISSING,
            load: $name::load,
        }),*];
    };
}

libraries! {
    cublas "libcublas.so.13";
    cufft "libcufft.so.12";
    curand "libcurand.so.10";
    cusparse "libcusparse.so.12";
    cudnn "libcudnn.so.9";
}

/// Numbers that a library reads or writes by a pointer.
pub enum Scalars {
    Null,
    Device(u64),
    Host { values: [u64; Scalars::MOST_BYTES / 8], bytes: usize },
}

impl Scalars {
    /// The most bytes of them.
    const MOST_BYTES: usize = 64;

    /// Takes what the client says of them. Those that the library reads come with their values.
    pub fn take(decoder: &mut Decoder<'_>, read: bool) -> Result<Self, Malformed> {
        match decoder.u8()? {
            0 => Ok(Scalars::Null),
            1 => {
                let mut values = [0; Self::MOST_BYTES / 8];
                let bytes = decoder.u32()? as usize;
                if bytes > Self::MOST_BYTES {
                    return Err(Malformed("scalars are too long"));
                }
                let taken = if read { decoder.take(bytes)? } else { &[] };
                for (value, chunk) in values.iter_mut().zip(taken.chunks(8)) {
                    let mut whole = [0; 8];
                    whole[..chunk.len()].copy_from_slice(chunk);
                    *value = u64::from_le_bytes(whole);
                }
                Ok(Scalars::Host { values, bytes })
            }
            2 => Ok(Scalars::Device(decoder.u64()?)),
            _ => Err(Malformed("scalars are in no known place")),
        }
    }

    /// What the library gets.
    pub fn pointer(&mut self) -> *mut c_void {
        match self {
            Scalars::Null => std::ptr::null_mut(),
            Scalars::Device(address) => *address as *mut c_void,
            Scalars::Host { values, .. } => values.as_mut_ptr().cast(),
        }
    }

    /// Appends what the library has written to host memory.
    pub fn put(&self, encoder: &mut Encoder) {
        if let Scalars::Host { values, bytes } = self {
            let written: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).take(*bytes).collect();
            encoder.raw(&written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_taken_and_put_as_they_were() {
        let mut encoder = Encoder::default();
        encoder.u8(1);
        encoder.bytes_counted(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let mut scalars = Scalars::take(&mut Decoder::new(encoder.bytes()), true).unwrap();
        let mut put = Encoder::default();
        scalars.put(&mut put);
        assert_eq!(put.bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        // SAFETY: so many were taken.
        assert_eq!(unsafe { *scalars.pointer().cast::<u8>().add(8) }, 9);
    }

    #[test]
    fn scalars_that_are_too_long_or_nowhere_are_refused() {
        for message in [&[1, 65, 0, 0, 0][..], &[3]] {
            assert!(Scalars::take(&mut Decoder::new(message), false).is_err(), "{message:?}");
        }
    }
}
