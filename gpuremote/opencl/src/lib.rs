//! OpenCL, on the GPUs of a server: an ICD, which OpenCL's loader finds by a file in its directory of vendors.
//!
//! The environment says where the server is: `NEARMETAL_GPU_SERVER` (`unix:PATH` or `tcp:HOST:PORT`) and `NEARMETAL_GPU_TOKEN_FILE`. Without the
//! first, this library has no platform.
//!
//! What a program sees as a `cl_mem` or a `cl_event` is an [`Object`] here, with the number that the server knows it by. References are counted
//! here; the end of an object is sent. What an object was made of is kept with it, so most queries need not ask.

mod by_hand;
mod contexts;
mod dispatch;
mod events;
mod images;
mod info;
mod kernels;
mod layout;
mod maps;
mod memory;
mod objects;
mod platforms;
mod programs;
mod remote;
mod transfers;

use std::sync::OnceLock;

use gpuremote_client::Front;

pub(crate) use info::answer;
pub(crate) use objects::{failed, made, object, objects, release, retain, Object};
use remote::Remote;

#[allow(clippy::all, non_upper_case_globals, non_snake_case)]
mod stubs {
    include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
}

/// The one front end of this process: C's interface leaves no other place for it.
pub(crate) fn front() -> &'static Remote {
    static FRONT: OnceLock<Remote> = OnceLock::new();
    FRONT.get_or_init(|| Remote::new(Front::new(stubs::API, stubs::STATUSES)))
}
