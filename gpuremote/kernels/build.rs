//! Compiles every device source to PTX with clang, so that the program needs no CUDA toolkit.
//!
//! The PTX targets sm_70, which clang 14 emits as PTX ISA 6.0. Every driver since CUDA 9 accepts that version and compiles it for newer GPUs.

use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: [&str; 9] = ["backprop", "bfs", "cfd", "hotspot", "lud", "micro", "nn", "nw", "pathfinder"];

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = std::env::var("NEARMETAL_CLANG").unwrap_or_else(|_| "clang".to_string());
    println!("cargo:rerun-if-env-changed=NEARMETAL_CLANG");
    println!("cargo:rerun-if-changed=device");
    for program in PROGRAMS {
        compile(&clang, &Path::new("device").join(format!("{program}.cl")), &out.join(format!("{program}.ptx")));
    }
}

fn compile(clang: &str, source: &Path, ptx: &Path) {
    let output = Command::new(clang)
        .args([
            "-x",
            "cuda",
            "--cuda-device-only",
            "--cuda-gpu-arch=sm_70",
            "-nocudainc",
            "-nocudalib",
            "-O3",
            "-Wall",
            "-Werror",
            "-Wno-unused-command-line-argument",
            "-S",
            "-include",
            "device/portable.h",
        ])
        .arg(source)
        .arg("-o")
        .arg(ptx)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => fail(&format!(
            "can't run \"{clang}\", which compiles the CUDA kernels to PTX: {error}. \
             Install clang 14 or newer with its NVPTX target (Debian: apt-get install clang), \
             or set NEARMETAL_CLANG to its path."
        )),
    };
    if !output.status.success() {
        fail(&format!("\"{clang}\" can't compile {} to PTX:\n{}", source.display(), String::from_utf8_lossy(&output.stderr)));
    }
    let text = std::fs::read_to_string(ptx).expect("clang wrote the PTX file");
    if let Some(line) = text.lines().find(|line| line.trim_start().starts_with(".extern")) {
        fail(&format!("{} calls a function that the GPU driver does not provide: {}", source.display(), line.trim()));
    }
}

fn fail(message: &str) -> ! {
    eprintln!("error: {message}");
    std::process::exit(1);
}
