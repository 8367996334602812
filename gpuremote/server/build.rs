//! Makes the server's side of each described API.

use std::path::Path;
use std::{env, fs};

/// Descriptions, by name.
const APIS: [&str; 1] = ["cuda"];

fn main() {
    let out = env::var("OUT_DIR").expect("Cargo sets OUT_DIR");
    for name in APIS {
        let path = format!("../describe/apis/{name}.api");
        println!("cargo:rerun-if-changed={path}");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let api = gpuremote_describe::parse(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        fs::write(Path::new(&out).join(format!("{name}.rs")), gpuremote_describe::server(&api)).expect("OUT_DIR can be written to");
    }
}
