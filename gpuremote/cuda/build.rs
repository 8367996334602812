//! Makes the stubs of the driver API, and gives the library the name that programs ask for.

use std::path::Path;
use std::{env, fs};

const DESCRIPTION: &str = "../describe/apis/cuda.api";

fn main() {
    println!("cargo:rerun-if-changed={DESCRIPTION}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    let out = env::var("OUT_DIR").expect("Cargo sets OUT_DIR");
    let text = fs::read_to_string(DESCRIPTION).unwrap_or_else(|error| panic!("{DESCRIPTION}: {error}"));
    let api = gpuremote_describe::parse(&text).unwrap_or_else(|error| panic!("{DESCRIPTION}: {error}"));
    fs::write(Path::new(&out).join("stubs.rs"), gpuremote_describe::client(&api)).expect("OUT_DIR can be written to");
}
