//! Tests of the front ends of CUDA's libraries.
//!
//! `tests/blas.rs` runs cuBLAS's front end on a server with fake libraries. `tests/programs` has programs that check themselves, for machines
//! with GPUs and NVIDIA's libraries; its README says how they are built and run.
