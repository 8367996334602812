//! Makes the server's side of each described API.

use std::path::Path;
use std::{env, fs};

/// Descriptions, by name.
const APIS: [&str; 7] = ["cuda", "opencl", "cublas", "cufft", "curand", "cusparse", "cudnn"];
const DIRECTORY: &str = "../describe/apis";

fn main() {
    let out = env::var("OUT_DIR").expect("Cargo sets OUT_DIR");
    for name in APIS {
        let api = gpuremote_describe::read(DIRECTORY, name).unwrap_or_else(|error| panic!("{error}"));
        fs::write(Path::new(&out).join(format!("{name}.rs")), gpuremote_describe::server(&api)).expect("OUT_DIR can be written to");
    }
}
