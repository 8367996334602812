//! Names of errors, addresses of functions, and the profiler.

use super::{driver_api, store, Entry};
use crate::abi::*;
use crate::driver::{Always, Initialized};
use std::ffi::{c_char, c_int, c_void, CStr};

/// Results of the search for a function, `CUdriverProcAddressQueryResult`.
const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;

fn tables() -> [&'static [Entry]; 12] {
    [
        super::context::ENTRIES,
        super::copy::ENTRIES,
        super::device::ENTRIES,
        ENTRIES,
        super::graph::ENTRIES,
        super::launch::ENTRIES,
        super::library::ENTRIES,
        super::memory::ENTRIES,
        super::module::ENTRIES,
        super::pool::ENTRIES,
        super::stream::ENTRIES,
        super::tensor_map::ENTRIES,
    ]
}

/// The newest form of a function: `cuMemAlloc` is `cuMemAlloc_v2`.
fn newest(name: &str) -> Option<*const c_void> {
    ["_v4", "_v3", "_v2", ""].iter().find_map(|suffix| {
        let wanted = format!("{name}{suffix}");
        let entries = tables();
        let found = entries.iter().flat_map(|table| table.iter()).find(|(name, _)| *name == wanted);
        found.map(|(_, address)| *address)
    })
}

unsafe fn text_of(
    result: CUresult,
    place: *mut *const c_char,
    column: fn(&(CUresult, &'static str, &'static str)) -> &'static str,
) -> super::Outcome {
    let row = RESULTS.iter().find(|row| row.0 == result);
    let text = row.map_or(std::ptr::null(), |row| column(row).as_ptr() as *const c_char);
    unsafe { store(place, text) }?;
    row.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
}

driver_api! { ENTRIES;
    /// Stores the name of a result.
    fn cuGetErrorName(error: CUresult, pStr: *mut *const c_char) with _ => Always, {
        unsafe { text_of(error, pStr, |row| row.1) }
    }

    /// Stores the description of a result.
    fn cuGetErrorString(error: CUresult, pStr: *mut *const c_char) with _ => Always, {
        unsafe { text_of(error, pStr, |row| row.2) }
    }

    /// Stores the address of a function.
    fn cuGetProcAddress_v2(
        symbol: *const c_char, pfn: *mut *const c_void, cudaVersion: c_int, flags: u64, symbolStatus: *mut c_int,
    ) with _ => Always, {
        if symbol.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let name = unsafe { CStr::from_ptr(symbol) }.to_string_lossy();
        let found = newest(&name);
        if !symbolStatus.is_null() {
            unsafe { store(symbolStatus, if found.is_some() { FOUND } else { NOT_FOUND }) }?;
        }
        unsafe { store(pfn, found.unwrap_or(std::ptr::null())) }?;
        found.map(|_| ()).ok_or(CUDA_ERROR_NOT_FOUND)
    }

    /// Finds no private tables.
    fn cuGetExportTable(ppExportTable: *mut *const c_void, pExportTableId: *const CUuuid) with _ => Always, {
        Err(CUDA_ERROR_NOT_FOUND)
    }

    /// Starts a profiler, which isn't there.
    fn cuProfilerStart() with _ => Initialized, {
        Ok(())
    }

    /// Stops a profiler, which isn't there.
    fn cuProfilerStop() with _ => Initialized, {
        Ok(())
    }
}
