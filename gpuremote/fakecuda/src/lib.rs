//! A CUDA driver without a GPU.
//!
//! Tests load this library as `libcuda.so.1`. It implements the part of the CUDA driver API that the front ends of
//! `gpuremote` use, on the memory and the processor of the host, and it is strict: a call out of order, with a dead handle,
//! or with an address outside an allocation gets the error of the real driver.
//!
//! Environment variables, read at `cuInit`:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `FAKE_CUDA_LOG` | file that receives one line per call: name, arguments, result | no log |
//! | `FAKE_CUDA_MEMORY_MIB` | memory of each device | 256 |
//! | `FAKE_CUDA_DEVICES` | number of devices | 1 |
//! | `FAKE_CUDA_DELAY_US` | delay before each asynchronous operation, which widens races of a client | 0 |
//!
//! Device addresses are not accessible from the host, so that a client that dereferences one is stopped by SIGSEGV. Each stream
//! has a thread of its own, and asynchronous calls return before their work runs. Kernels can't be executed from their image:
//! [`kernels`] lists the names with an implementation on the host. A launch of another kernel gives
//! `CUDA_ERROR_NOT_SUPPORTED`.
//!
//! Start reading at [`driver`], then [`stream`] and [`memory`]; the exported functions are in [`api`].

#![allow(non_snake_case)] // The exported functions have the names of the driver API.

pub mod abi;
pub mod api;
pub mod context;
pub mod device;
pub mod driver;
pub mod elf;
pub mod graph;
pub mod image;
pub mod kernels;
pub mod log;
pub mod memory;
pub mod ptx;
pub mod stream;

use std::io;
use std::path::{Path, PathBuf};

/// Makes `directory/libcuda.so.1` a link to the built library and returns the link's path.
///
/// For integration tests of this workspace: Cargo puts the library beside the test's executable.
///
/// # Errors
///
/// The library wasn't built, or the link can't be made.
pub fn install(directory: &Path) -> io::Result<PathBuf> {
    let executable = std::env::current_exe()?;
    let built = executable.with_file_name("libfakecuda.so");
    built.metadata()?;
    let link = directory.join("libcuda.so.1");
    match std::os::unix::fs::symlink(&built, &link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(link),
        Err(error) => Err(error),
        Ok(()) => Ok(link),
    }
}
