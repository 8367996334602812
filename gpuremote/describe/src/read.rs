//! Descriptions in files, for build scripts.

use std::path::Path;
use std::{env, fs};

use crate::api::Api;
use crate::parse::parse_among;

/// Reads the description of an API from `NAME.api` in this directory, and those of APIs that it uses. Cargo is told of the files.
pub fn read(directory: &str, name: &str) -> Result<Api, String> {
    let path = format!("{directory}/{name}.api");
    println!("cargo:rerun-if-changed={path}");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    parse_among(&text, &|other| read(directory, other)).map_err(|error| format!("{path}: {error}"))
}

/// Makes the stubs of a front end, `stubs.rs` in the build's directory, and gives the library the name and the symbols' version that
/// programs ask for. NVIDIA's libraries have one version for all symbols, which is the name of the library.
pub fn write_front_end(directory: &str, name: &str, soname: &str) -> Result<(), String> {
    let api = read(directory, name)?;
    let out = env::var("OUT_DIR").map_err(|_| "Cargo sets OUT_DIR")?;
    fs::write(Path::new(&out).join("stubs.rs"), crate::client(&api)).map_err(|error| format!("{out}: {error}"))?;
    // Only GNU's linker can add such a version to the list of exported symbols that rustc passes.
    for argument in ["-fuse-ld=bfd".to_owned(), "-Wl,--default-symver".to_owned(), format!("-Wl,-soname,{soname}")] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    Ok(())
}
