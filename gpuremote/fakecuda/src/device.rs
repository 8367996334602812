//! Properties of the device, those of a small GPU of compute capability 9.0.

use crate::abi::*;

/// Version of the driver, CUDA 13.0.
pub const DRIVER_VERSION: i32 = 13_000;

/// Name of each device.
pub const NAME: &str = "Fake CUDA device";

/// Limits of a launch.
pub mod limits {
    /// Threads of a block.
    pub const THREADS_PER_BLOCK: u32 = 1024;
    /// Threads of a block in each dimension.
    pub const BLOCK: [u32; 3] = [1024, 1024, 64];
    /// Blocks of a grid in each dimension.
    pub const GRID: [u32; 3] = [2_147_483_647, 65_535, 65_535];
    /// Shared memory of a block in bytes, without opt-in.
    pub const SHARED_BYTES: u32 = 48 << 10;
    /// Shared memory of a block in bytes, with opt-in.
    pub const SHARED_OPTIN_BYTES: u32 = 227 << 10;
    /// Threads of a multiprocessor.
    pub const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
    /// Blocks of a multiprocessor.
    pub const BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
}

/// The value of a `CUdevice_attribute`.
///
/// # Errors
///
/// `CUDA_ERROR_INVALID_VALUE` for a number that isn't an attribute.
pub fn attribute(number: i32, device: CUdevice) -> Result<i32, CUresult> {
    let value = match number {
        1 => limits::THREADS_PER_BLOCK as i32,
        2..=4 => limits::BLOCK[number as usize - 2] as i32,
        5..=7 => limits::GRID[number as usize - 5] as i32,
        8 => limits::SHARED_BYTES as i32,
        9 => 65_536,       // constant memory in bytes
        10 => 32,          // warp
        11 => i32::MAX,    // pitch
        12 | 82 => 65_536, // registers per block and multiprocessor
        13 => 1_500_000,   // clock in kHz
        14 => 512,         // alignment of textures in bytes
        15 | 31 => 1,      // overlap, concurrent kernels
        16 => 4,           // multiprocessors
        19 | 41 => 1,      // maps host memory, unified addresses
        30 => 512,         // alignment of surfaces in bytes
        33 => device + 1,  // PCI bus
        36 => 2_000_000,   // memory clock in kHz
        37 => 1024,        // memory bus in bits
        38 => 1 << 20,     // L2 cache in bytes
        39 => limits::THREADS_PER_MULTIPROCESSOR as i32,
        40 => 2,         // copy engines
        51 => 32,        // alignment of texture pitches in bytes
        75 => 9,         // compute capability, major
        76 => 0,         // compute capability, minor
        78..=80 => 1,    // stream priorities, L1 caches
        81 => 228 << 10, // shared memory per multiprocessor in bytes
        83 => 1,         // managed memory
        87 => 2,         // single to double precision
        89..=91 => 1,    // concurrent managed access, preemption, registered host pointers
        97 => limits::SHARED_OPTIN_BYTES as i32,
        99 => 1, // registers host memory
        106 => limits::BLOCKS_PER_MULTIPROCESSOR as i32,
        111 => 1024, // reserved shared memory per block in bytes
        115 => 1,    // memory pools
        17..=150 => 0,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    Ok(value)
}
