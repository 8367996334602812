//! The session of this front end, for others in the process: those of CUDA's libraries.

use std::ffi::c_void;

use gpuremote_client::{Channel, ChannelCall, ChannelReply, TakeValues, CHANNEL_VERSION};

use crate::front;

unsafe extern "C" fn post(call: *const ChannelCall) -> bool {
    front().session().is_ok_and(|session| (*call).post(session))
}

unsafe extern "C" fn call(call: *const ChannelCall, reply: *mut ChannelReply, take: TakeValues, context: *mut c_void) -> bool {
    front().session().is_ok_and(|session| (*call).call(session, &mut *reply, take, context))
}

static CHANNEL: Channel = Channel { post, call };

/// The channel to this process's session, or null when the caller's version is another.
#[no_mangle]
pub extern "C" fn nearmetal_gpu_channel(version: u32) -> *const Channel {
    if version == CHANNEL_VERSION {
        &CHANNEL
    } else {
        std::ptr::null()
    }
}
