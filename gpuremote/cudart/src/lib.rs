//! The CUDA runtime API on top of the driver API.
//!
//! Applications that nvcc linked with `-cudart shared` load this library as `libcudart.so.13`. It takes the driver from `libcuda.so.1`,
//! whichever that is: a remote driver, a driver for tests, or NVIDIA's. Device code comes from the fat binaries that the application
//! registers, and loads at the first use of one of its kernels or variables.
//!
//! Start reading at [`registry`] for kernels and variables and at [`context`] for the primary contexts; the exported functions are in
//! [`api`]. Functions whose parameters the driver takes unchanged are rows of a table in [`api::forwarded`]. [`api::unsupported`] lists
//! what returns `cudaErrorNotSupported`.

#![allow(non_snake_case)] // The exported functions have the names of the runtime API.

pub mod abi;
pub mod api;
pub mod context;
pub mod driver;
pub mod error;
pub mod properties;
pub mod registry;
pub mod thread;
