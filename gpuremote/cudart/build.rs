//! Gives the library the soname and the symbol version of NVIDIA's runtime library.
//!
//! Applications reference `cudaMalloc@libcudart.so.13`: the version has the name of the library, which is what `--default-symver` of GNU
//! ld makes. LLVM's linker lacks that option, and Rust's own version script can't be combined with another.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in ["-fuse-ld=bfd", "-Wl,-soname,libcudart.so.13", "-Wl,--default-symver"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
