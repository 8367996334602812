//! CUDA's driver API, on the GPUs of a server. Programs load this library as `libcuda.so.1`.
//!
//! The environment says where the server is: `NEARMETAL_GPU_SERVER` (`unix:PATH` or `tcp:HOST:PORT`) and `NEARMETAL_GPU_TOKEN_FILE`.

mod boxes;
mod by_hand;
mod channel;
mod contexts;
mod copies;
mod fills;
mod graphs;
mod host_functions;
mod images;
mod launch;
mod places;
mod pools;
mod programs;
mod tensor_maps;

use std::sync::OnceLock;

use gpuremote_client::Front;

#[allow(clippy::all, non_upper_case_globals, non_snake_case)]
mod stubs {
    include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
}

/// The one front end of this process: C's interface leaves no other place for it.
pub(crate) fn front() -> &'static Front {
    static FRONT: OnceLock<Front> = OnceLock::new();
    FRONT.get_or_init(|| Front::new(stubs::API, stubs::STATUSES))
}
