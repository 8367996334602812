//! Makes the stubs of cuBLAS.

fn main() {
    gpuremote_describe::write_front_end("../describe/apis", "cublas", "libcublas.so.13").unwrap_or_else(|error| panic!("{error}"));
}
