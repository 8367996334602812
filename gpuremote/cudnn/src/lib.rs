//! cuDNN, on the GPUs of a server. Programs load this library as `libcudnn.so.9`.
//!
//! It has the session of the process's `libcuda.so.1`, whose streams and memory its calls name.

mod by_hand;

use std::sync::OnceLock;

use gpuremote_client::Front;

#[allow(clippy::all, dead_code, non_upper_case_globals, non_snake_case)]
mod stubs {
    include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
}

/// The one front end of this process: C's interface leaves no other place for it.
pub(crate) fn front() -> &'static Front {
    static FRONT: OnceLock<Front> = OnceLock::new();
    FRONT.get_or_init(|| Front::beside_cuda(stubs::API, stubs::STATUSES))
}
