//! How much device memory a client gets before the API refuses, which is how a quota looks from inside.

use serde::Serialize;

use crate::api::{Device, Error};

/// Bytes per allocation.
pub const CHUNK_BYTES: usize = 64 << 20;

/// What was allocated.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryReport {
    /// The device's and the driver's name.
    pub device: String,
    /// Allocations that succeeded.
    pub chunks: usize,
    /// Their size in bytes.
    pub total_bytes: u64,
    /// The call and code of the refusal; `None` if allocation ended at the caller's limit.
    pub refusal: Option<String>,
}

/// Allocates chunks of 64 MiB until the API is out of memory or holds `limit_bytes`, then frees all of them.
///
/// A byte is written to each chunk, because OpenCL may defer an allocation until its first use. Errors other than lack of memory
/// are returned.
pub fn allocate_until_refused(device: &mut dyn Device, limit_bytes: u64) -> Result<MemoryReport, Error> {
    let mut chunks = Vec::new();
    let mut refusal = None;
    while ((chunks.len() + 1) * CHUNK_BYTES) as u64 <= limit_bytes {
        let buffer = match device.allocate(CHUNK_BYTES) {
            Ok(buffer) => buffer,
            Err(error) if error.is_out_of_memory() => {
                refusal = Some(error.to_string());
                break;
            }
            Err(error) => return Err(error),
        };
        match device.write(buffer, &[1]) {
            Ok(()) => chunks.push(buffer),
            Err(error) if error.is_out_of_memory() => {
                refusal = Some(error.to_string());
                device.free(buffer)?;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    let count = chunks.len();
    for buffer in chunks {
        device.free(buffer)?;
    }
    Ok(MemoryReport { device: device.description(), chunks: count, total_bytes: (count * CHUNK_BYTES) as u64, refusal })
}

impl std::fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MemoryReport { device, chunks, total_bytes, refusal } = self;
        writeln!(f, "{device}")?;
        write!(f, "allocated {total_bytes} bytes in {chunks} chunks of 64 MiB; ")?;
        match refusal {
            Some(refusal) => writeln!(f, "then {refusal}"),
            None => writeln!(f, "stopped at the limit without a refusal"),
        }
    }
}
