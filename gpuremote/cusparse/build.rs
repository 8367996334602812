//! Makes the stubs of cuSPARSE.

fn main() {
    gpuremote_describe::write_front_end("../describe/apis", "cusparse", "libcusparse.so.12").unwrap_or_else(|error| panic!("{error}"));
}
