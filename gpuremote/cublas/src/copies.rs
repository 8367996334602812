//! Copies of vectors and matrices, by the driver's front end in this process.

use std::ffi::{c_void, CStr};
use std::sync::OnceLock;

use crate::stubs::STATUSES;

/// CUBLAS_STATUS_MAPPING_ERROR.
const NOT_COPIED: i32 = 11;
/// CUmemorytype of the driver API.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// CUDA_MEMCPY2D of the driver API.
#[repr(C)]
struct Copy {
    from: Side,
    to: Side,
    width_bytes: usize,
    height: usize,
}

#[repr(C)]
#[derive(Default)]
struct Side {
    x_bytes: usize,
    y: usize,
    memory_type: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch_bytes: usize,
}

impl Side {
    fn host(address: u64, pitch_bytes: usize) -> Self {
        Side { memory_type: HOST, host: address, pitch_bytes, ..Default::default() }
    }

    fn device(address: u64, pitch_bytes: usize) -> Self {
        Side { memory_type: DEVICE, device: address, pitch_bytes, ..Default::default() }
    }
}

struct Driver {
    copy: unsafe extern "C" fn(*const Copy) -> i32,
    copy_async: unsafe extern "C" fn(*const Copy, u64) -> i32,
}

impl Driver {
    fn get() -> Option<&'static Driver> {
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        // SAFETY: these are the driver's functions, whose types are those.
        DRIVER
            .get_or_init(|| unsafe {
                let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
                let find = |name: &CStr| {
                    let function = if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) };
                    (!function.is_null()).then_some(function)
                };
                Some(Driver {
                    copy: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const Copy) -> i32>(find(c"cuMemcpy2D_v2")?),
                    copy_async: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const Copy, u64) -> i32>(find(
                        c"cuMemcpy2DAsync_v2",
                    )?),
                })
            })
            .as_ref()
    }
}

/// Copies columns. A vector has one value in each.
#[derive(Clone, Copy)]
struct Columns {
    rows: i64,
    columns: i64,
    value_bytes: i64,
    from: u64,
    from_leading: i64,
    to: u64,
    to_leading: i64,
}

impl Columns {
    unsafe fn copy(self, to_device: bool, stream: Option<u64>) -> i32 {
        let sizes = [self.rows, self.columns, self.value_bytes, self.from_leading, self.to_leading];
        if sizes.iter().any(|&size| size < 0) || self.value_bytes == 0 || self.from_leading < self.rows || self.to_leading < self.rows {
            return STATUSES.invalid;
        }
        if self.rows == 0 || self.columns == 0 {
            return STATUSES.ok;
        }
        let Some(driver) = Driver::get() else { return NOT_COPIED };
        let bytes = |values: i64| (values * self.value_bytes) as usize;
        let (from_pitch, to_pitch) = (bytes(self.from_leading), bytes(self.to_leading));
        let (from, to) = if to_device {
            (Side::host(self.from, from_pitch), Side::device(self.to, to_pitch))
        } else {
            (Side::device(self.from, from_pitch), Side::host(self.to, to_pitch))
        };
        let copy = Copy { from, to, width_bytes: bytes(self.rows), height: self.columns as usize };
        let status = match stream {
            Some(stream) => (driver.copy_async)(&copy, stream),
            None => (driver.copy)(&copy),
        };
        if status == 0 {
            STATUSES.ok
        } else {
            NOT_COPIED
        }
    }
}

macro_rules! copies {
    ($($number:ty: $set_vector:ident $get_vector:ident $set_matrix:ident $get_matrix:ident
        $set_vector_async:ident $get_vector_async:ident $set_matrix_async:ident $get_matrix_async:ident;)*) => {
        $(
            vector!($set_vector $set_vector_async $number, true);
            vector!($get_vector $get_vector_async $number, false);
            matrix!($set_matrix $set_matrix_async $number, true);
            matrix!($get_matrix $get_matrix_async $number, false);
        )*
    };
}

macro_rules! vector {
    ($name:ident $async_name:ident $number:ty, $to_device:literal) => {
        #[no_mangle]
        pub unsafe extern "C" fn $name(n: $number, size: $number, from: u64, incx: $number, to: u64, incy: $number) -> i32 {
            columns([1, n, size, incx, incy].map(i64::from), from, to).copy($to_device, None)
        }

        #[no_mangle]
        pub unsafe extern "C" fn $async_name(
            n: $number,
            size: $number,
            from: u64,
            incx: $number,
            to: u64,
            incy: $number,
            stream: u64,
        ) -> i32 {
            columns([1, n, size, incx, incy].map(i64::from), from, to).copy($to_device, Some(stream))
        }
    };
}

macro_rules! matrix {
    ($name:ident $async_name:ident $number:ty, $to_device:literal) => {
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            rows: $number,
            count: $number,
            size: $number,
            from: u64,
            lda: $number,
            to: u64,
            ldb: $number,
        ) -> i32 {
            columns([rows, count, size, lda, ldb].map(i64::from), from, to).copy($to_device, None)
        }

        #[no_mangle]
        pub unsafe extern "C" fn $async_name(
            rows: $number,
            count: $number,
            size: $number,
            from: u64,
            lda: $number,
            to: u64,
            ldb: $number,
            stream: u64,
        ) -> i32 {
            columns([rows, count, size, lda, ldb].map(i64::from), from, to).copy($to_device, Some(stream))
        }
    };
}

fn columns([rows, columns, value_bytes, from_leading, to_leading]: [i64; 5], from: u64, to: u64) -> Columns {
    Columns { rows, columns, value_bytes, from, from_leading, to, to_leading }
}

copies! {
    i32: cublasSetVector cublasGetVector cublasSetMatrix cublasGetMatrix
        cublasSetVectorAsync cublasGetVectorAsync cublasSetMatrixAsync cublasGetMatrixAsync;
    i64: cublasSetVector_64 cublasGetVector_64 cublasSetMatrix_64 cublasGetMatrix_64
        cublasSetVectorAsync_64 cublasGetVectorAsync_64 cublasSetMatrixAsync_64 cublasGetMatrixAsync_64;
}
