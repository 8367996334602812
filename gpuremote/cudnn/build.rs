//! Makes the stubs of cuDNN.

fn main() {
    gpuremote_describe::write_front_end("../describe/apis", "cudnn", "libcudnn.so.9").unwrap_or_else(|error| panic!("{error}"));
}
