//! A part of cuBLAS without a GPU.
//!
//! Tests load this library as `libcublas.so.13` beside `fakecuda`, whose memory it computes on by copies to the host and back. It is strict
//! about handles, sizes and addresses, so that a client that passes wrong ones is told.

#![allow(non_snake_case)] // The exported functions have cuBLAS's names.

mod driver;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, OnceLock};

use driver::Driver;

const SUCCESS: i32 = 0;
const NOT_INITIALIZED: i32 = 1;
const INVALID_VALUE: i32 = 7;
const EXECUTION_FAILED: i32 = 13;
/// CUBLAS_POINTER_MODE_DEVICE.
const DEVICE: i32 = 1;
/// CUBLAS_OP_N and CUBLAS_OP_T.
const PLAIN: i32 = 0;
const TRANSPOSED: i32 = 1;

#[derive(Clone, Copy, Default)]
struct Handle {
    stream: u64,
    pointer_mode: i32,
}

#[derive(Default)]
struct Handles {
    live: HashMap<usize, Handle>,
    made: usize,
}

fn handles() -> MutexGuard<'static, Handles> {
    static HANDLES: OnceLock<Mutex<Handles>> = OnceLock::new();
    HANDLES.get_or_init(Mutex::default).lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The driver, and the handle's settings. The error is the call's status.
fn begin(handle: *mut c_void) -> Result<(&'static Driver, Handle), i32> {
    let settings = handles().live.get(&(handle as usize)).copied().ok_or(NOT_INITIALIZED)?;
    Ok((Driver::get().ok_or(NOT_INITIALIZED)?, settings))
}

fn settled(result: Result<(), i32>) -> i32 {
    result.err().unwrap_or(SUCCESS)
}

/// A scalar, from where the pointer mode says.
unsafe fn scalar(driver: &Driver, settings: Handle, at: *const f32) -> Result<f32, i32> {
    match settings.pointer_mode {
        _ if at.is_null() => Err(INVALID_VALUE),
        DEVICE => Ok(driver.fetch(settings.stream, at as u64, 1).ok_or(EXECUTION_FAILED)?[0]),
        _ => Ok(*at),
    }
}

/// Makes a handle, in the context that is current.
#[no_mangle]
pub unsafe extern "C" fn cublasCreate_v2(handle: *mut *mut c_void) -> i32 {
    if handle.is_null() {
        return INVALID_VALUE;
    }
    if !Driver::get().is_some_and(Driver::has_context) {
        return NOT_INITIALIZED;
    }
    let mut handles = handles();
    handles.made += 1;
    let made = 0xB1A5_0000 + handles.made * 16;
    handles.live.insert(made, Handle::default());
    *handle = made as *mut c_void;
    SUCCESS
}

/// Ends a handle.
#[no_mangle]
pub unsafe extern "C" fn cublasDestroy_v2(handle: *mut c_void) -> i32 {
    match handles().live.remove(&(handle as usize)) {
        Some(_) => SUCCESS,
        None => NOT_INITIALIZED,
    }
}

/// Sets the stream of later calls.
#[no_mangle]
pub unsafe extern "C" fn cublasSetStream_v2(handle: *mut c_void, stream: u64) -> i32 {
    set(handle, |settings| settings.stream = stream)
}

/// Sets where scalars are.
#[no_mangle]
pub unsafe extern "C" fn cublasSetPointerMode_v2(handle: *mut c_void, mode: i32) -> i32 {
    set(handle, |settings| settings.pointer_mode = mode)
}

fn set(handle: *mut c_void, change: impl FnOnce(&mut Handle)) -> i32 {
    match handles().live.get_mut(&(handle as usize)) {
        Some(settings) => {
            change(settings);
            SUCCESS
        }
        None => NOT_INITIALIZED,
    }
}

/// The dot product of two vectors.
#[no_mangle]
pub unsafe extern "C" fn cublasSdot_v2(handle: *mut c_void, n: i32, x: u64, incx: i32, y: u64, incy: i32, value: *mut f32) -> i32 {
    settled((|| {
        let (driver, settings) = begin(handle)?;
        let (n, incx, incy) = (positive(n)?, positive(incx)?, positive(incy)?);
        if value.is_null() || incx == 0 || incy == 0 {
            return Err(INVALID_VALUE);
        }
        let x = driver.fetch(settings.stream, x, span(n, incx)).ok_or(EXECUTION_FAILED)?;
        let y = driver.fetch(settings.stream, y, span(n, incy)).ok_or(EXECUTION_FAILED)?;
        let dot: f32 = (0..n).map(|i| x[i * incx] * y[i * incy]).sum();
        if settings.pointer_mode == DEVICE {
            return driver.put(settings.stream, value as u64, &[dot]).ok_or(EXECUTION_FAILED);
        }
        *value = dot;
        Ok(())
    })())
}

/// C = alpha op(A) op(B) + beta C, with columns one after another in memory.
#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cublasSgemm_v2(
    handle: *mut c_void,
    transa: i32,
    transb: i32,
    m: i32,
    n: i32,
    k: i32,
    alpha: *const f32,
    a: u64,
    lda: i32,
    b: u64,
    ldb: i32,
    beta: *const f32,
    c: u64,
    ldc: i32,
) -> i32 {
    settled((|| {
        let (driver, settings) = begin(handle)?;
        let (m, n, k) = (positive(m)?, positive(n)?, positive(k)?);
        let (lda, ldb, ldc) = (positive(lda)?, positive(ldb)?, positive(ldc)?);
        let (rows_a, columns_a) = shape(transa, m, k)?;
        let (rows_b, columns_b) = shape(transb, k, n)?;
        if lda < rows_a.max(1) || ldb < rows_b.max(1) || ldc < m.max(1) {
            return Err(INVALID_VALUE);
        }
        let (alpha, beta) = (scalar(driver, settings, alpha)?, scalar(driver, settings, beta)?);
        let fetch = |address, rows: usize, columns: usize, leading: usize| {
            let count = if rows == 0 || columns == 0 { 0 } else { leading * (columns - 1) + rows };
            driver.fetch(settings.stream, address, count).ok_or(EXECUTION_FAILED)
        };
        let (a, b) = (fetch(a, rows_a, columns_a, lda)?, fetch(b, rows_b, columns_b, ldb)?);
        let mut product = fetch(c, m, n, ldc)?;
        let at = |matrix: &[f32], operation, leading: usize, row: usize, column: usize| match operation {
            PLAIN => matrix[column * leading + row],
            _ => matrix[row * leading + column],
        };
        for column in 0..n {
            for row in 0..m {
                let sum: f32 = (0..k).map(|i| at(&a, transa, lda, row, i) * at(&b, transb, ldb, i, column)).sum();
                let value = &mut product[column * ldc + row];
                *value = alpha * sum + if beta == 0.0 { 0.0 } else { beta * *value };
            }
        }
        driver.put(settings.stream, c, &product).ok_or(EXECUTION_FAILED)
    })())
}

fn positive(value: i32) -> Result<usize, i32> {
    usize::try_from(value).map_err(|_| INVALID_VALUE)
}

/// How many values a vector spans.
fn span(n: usize, increment: usize) -> usize {
    if n == 0 {
        0
    } else {
        (n - 1) * increment + 1
    }
}

/// Rows and columns of a matrix whose operation's result has these.
fn shape(operation: i32, rows: usize, columns: usize) -> Result<(usize, usize), i32> {
    match operation {
        PLAIN => Ok((rows, columns)),
        TRANSPOSED => Ok((columns, rows)),
        _ => Err(INVALID_VALUE),
    }
}
