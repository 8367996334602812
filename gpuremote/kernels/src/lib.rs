//! Eight classic GPU kernels as programs for OpenCL and for the CUDA driver API, with every API call timed.
//!
//! The cost of a remote GPU is the number of API calls times their latency, plus copies. Each program therefore issues the calls
//! that its published description has (the Rodinia suite: Che et al., IISWC 2009 and 2010), and checks its result against the CPU.
//!
//! Start at [`cases`] for the kernels, at [`api::Device`] for what they need from an API, and at [`measure`] for what is timed.
//! [`report`] compares the results of several runs.

pub mod api;
pub mod cases;
pub mod machine;
pub mod measure;
pub mod memory;
pub mod micro;
pub mod plain;
pub mod program;
pub mod random;
pub mod report;
pub mod share;
pub mod table;
