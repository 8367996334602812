//! Makes the stubs of cuFFT.

fn main() {
    gpuremote_describe::write_front_end("../describe/apis", "cufft", "libcufft.so.12").unwrap_or_else(|error| panic!("{error}"));
}
