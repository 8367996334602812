//! Makes the stubs of cuRAND.

fn main() {
    gpuremote_describe::write_front_end("../describe/apis", "curand", "libcurand.so.10").unwrap_or_else(|error| panic!("{error}"));
}
