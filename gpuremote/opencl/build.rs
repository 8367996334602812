//! Makes the stubs of OpenCL.

use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnearmetal_opencl.so");
    // The ICD loader has functions of the same names, which must not take the place of this library's own.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let out = env::var("OUT_DIR").expect("Cargo sets OUT_DIR");
    let api = gpuremote_describe::read("../describe/apis", "opencl").unwrap_or_else(|error| panic!("{error}"));
    fs::write(Path::new(&out).join("stubs.rs"), gpuremote_describe::client(&api)).expect("OUT_DIR can be written to");
}
