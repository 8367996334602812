//! Maps of tensors, in a form of this driver's own: the numbers that describe the tensor, in the order of the arguments.

use super::{driver_api, require, Outcome};
use crate::abi::*;
use crate::driver::Initialized;
use std::ffi::{c_int, c_uint};

/// Alignment of a map in bytes.
const ALIGNMENT: u64 = 64;
/// Words of a map.
const WORDS: usize = 16;

unsafe fn write(map: *mut u64, words: &[u64]) -> Outcome {
    require(map)?;
    if map as u64 % ALIGNMENT != 0 || words.len() > WORDS {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    for index in 0..WORDS {
        unsafe { map.add(index).write(words.get(index).copied().unwrap_or(0)) };
    }
    Ok(())
}

driver_api! { ENTRIES;
    /// Encodes the map of boxes of a tensor.
    fn cuTensorMapEncodeTiled(
        tensorMap: *mut u64, tensorDataType: c_int, tensorRank: c_uint, globalAddress: u64, globalDim: *const u64,
        globalStrides: *const u64, boxDim: *const c_uint, elementStrides: *const c_uint, interleave: c_int, swizzle: c_int,
        l2Promotion: c_int, oobFill: c_int,
    ) with _ => Initialized, {
        if !(1..=5).contains(&tensorRank) || globalAddress % 16 != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let rank = tensorRank as usize;
        let mut words = vec![globalAddress, u64::from(tensorRank), tensorDataType as u64, swizzle as u64];
        words.extend(unsafe { std::slice::from_raw_parts(globalDim, rank) });
        words.extend(unsafe { std::slice::from_raw_parts(globalStrides, rank - 1) });
        words.extend(unsafe { std::slice::from_raw_parts(boxDim, rank) }.iter().map(|extent| u64::from(*extent)));
        words.truncate(WORDS);
        unsafe { write(tensorMap, &words) }
    }

    /// Replaces the address in a map.
    fn cuTensorMapReplaceAddress(tensorMap: *mut u64, globalAddress: u64) with _ => Initialized, {
        require(tensorMap)?;
        if tensorMap as u64 % ALIGNMENT != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        unsafe { tensorMap.write(globalAddress) };
        Ok(())
    }
}
