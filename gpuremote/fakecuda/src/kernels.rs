//! Kernels with an implementation on the host, found by the name in their source and the sizes of their parameters.
//!
//! They compute what the same source computes on a GPU, for the threads of the launch: thread `i` of a one-dimensional grid works
//! on element `i`, and threads beyond `n` do nothing.
//!
//! | kernel | effect |
//! |---|---|
//! | `empty()` | none |
//! | `vector_add(float *out, const float *a, const float *b, unsigned n)` | `out[i] = a[i] + b[i]` |
//! | `saxpy(float *y, const float *x, float a, unsigned n)` | `y[i] += a * x[i]` |
//! | `scale(float *x, float factor, unsigned n)` | `x[i] *= factor` |
//! | `fill(unsigned *x, unsigned value, unsigned n)` | `x[i] = value` |
//! | `increment(unsigned *x, unsigned n)` | `x[i] += 1` |
//! | `scale_by_coefficient(float *x, unsigned n)` | `x[i] *= coefficient`, a variable of the module |
//! | `spin(unsigned microseconds)` | takes that long |
//! | `fail()` | an illegal address, which the context keeps as its error |
//!
//! The kernels of `nearmetal-gpu-kernels` are in [`benchmark`].

use crate::abi::*;
use crate::image::Kernel;
use crate::memory::Memory;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

mod benchmark;

/// A launch, with its parameters copied.
pub struct Launch {
    /// The kernel of the image.
    pub kernel: Arc<Kernel>,
    /// Blocks in each dimension.
    pub grid: [u32; 3],
    /// Threads of a block in each dimension.
    pub block: [u32; 3],
    /// The parameter buffer.
    pub parameters: Vec<u8>,
    /// Addresses of the variables of the module.
    pub variables: Arc<HashMap<String, (u64, usize)>>,
    /// The memory of the driver.
    pub memory: Arc<Memory>,
}

/// A value that kernels read from their parameters and from memory.
pub trait Value: Copy {}
impl Value for u8 {}
impl Value for i32 {}
impl Value for u32 {}
impl Value for u64 {}
impl Value for f32 {}

impl Launch {
    /// Threads of the launch, up to `limit`.
    fn threads(&self, limit: u32) -> usize {
        let count: u64 = self.grid.iter().chain(&self.block).map(|extent| u64::from(*extent)).product();
        count.min(u64::from(limit)) as usize
    }

    fn parameter<T: Value>(&self, index: usize) -> T {
        let place = self.kernel.parameters[index];
        debug_assert_eq!(place.size_bytes, size_of::<T>());
        unsafe { (self.parameters[place.offset_bytes..].as_ptr() as *const T).read_unaligned() }
    }

    /// `count` values at the device address in a parameter.
    fn values<T: Value>(&self, index: usize, count: usize) -> Result<&mut [T], CUresult> {
        self.values_at(self.parameter(index), count)
    }

    #[allow(clippy::mut_from_ref)] // The memory is the device's, and a data race of kernels is the client's.
    fn values_at<T: Value>(&self, address: u64, count: usize) -> Result<&mut [T], CUresult> {
        if count == 0 {
            return Ok(&mut []);
        }
        if address % align_of::<T>() as u64 != 0 {
            return Err(CUDA_ERROR_MISALIGNED_ADDRESS);
        }
        let bytes = self.memory.resolve(address, count * size_of::<T>()).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes as *mut T, count) })
    }
}

/// Computes a launch.
pub type Body = fn(&Launch) -> Result<(), CUresult>;

/// Name, sizes of the parameters in bytes, and implementation.
const KERNELS: &[(&str, &[usize], Body)] = &[
    ("empty", &[], |_| Ok(())),
    ("vector_add", &[8, 8, 8, 4], vector_add),
    ("saxpy", &[8, 8, 4, 4], saxpy),
    ("scale", &[8, 4, 4], scale),
    ("fill", &[8, 4, 4], fill),
    ("increment", &[8, 4], increment),
    ("scale_by_coefficient", &[8, 4], scale_by_coefficient),
    ("spin", &[4], spin),
    ("fail", &[], |_| Err(CUDA_ERROR_ILLEGAL_ADDRESS)),
];

/// The implementation of a kernel.
pub fn find(kernel: &Kernel) -> Option<Body> {
    let sizes: Vec<usize> = kernel.parameters.iter().map(|parameter| parameter.size_bytes).collect();
    let known = KERNELS.iter().chain(benchmark::KERNELS).find(|(name, expected, _)| *name == kernel.source_name() && *expected == sizes)?;
    Some(known.2)
}

fn vector_add(launch: &Launch) -> Result<(), CUresult> {
    let n = launch.threads(launch.parameter(3));
    let (a, b) = (launch.values::<f32>(1, n)?, launch.values::<f32>(2, n)?);
    let sums: Vec<f32> = a.iter().zip(b.iter()).map(|(a, b)| a + b).collect();
    launch.values::<f32>(0, n)?.copy_from_slice(&sums);
    Ok(())
}

fn saxpy(launch: &Launch) -> Result<(), CUresult> {
    let n = launch.threads(launch.parameter(3));
    let a: f32 = launch.parameter(2);
    let x = launch.values::<f32>(1, n)?.to_vec();
    launch.values::<f32>(0, n)?.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
    Ok(())
}

fn scale(launch: &Launch) -> Result<(), CUresult> {
    let n = launch.threads(launch.parameter(2));
    let factor: f32 = launch.parameter(1);
    launch.values::<f32>(0, n)?.iter_mut().for_each(|x| *x *= factor);
    Ok(())
}

fn fill(launch: &Launch) -> Result<(), CUresult> {
    let n = launch.threads(launch.parameter(2));
    launch.values::<u32>(0, n)?.fill(launch.parameter(1));
    Ok(())
}

fn increment(launch: &Launch) -> Result<(), CUresult> {
    let n = launch.threads(launch.parameter(1));
    launch.values::<u32>(0, n)?.iter_mut().for_each(|x| *x = x.wrapping_add(1));
    Ok(())
}

fn scale_by_coefficient(launch: &Launch) -> Result<(), CUresult> {
    let n = launch.threads(launch.parameter(1));
    let (address, _) = launch.variables.get("coefficient").ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
    let coefficient = launch.values_at::<f32>(*address, 1)?[0];
    launch.values::<f32>(0, n)?.iter_mut().for_each(|x| *x *= coefficient);
    Ok(())
}

fn spin(launch: &Launch) -> Result<(), CUresult> {
    thread::sleep(Duration::from_micros(u64::from(launch.parameter::<u32>(0))));
    Ok(())
}
