//! The way of other front ends of a process to the session that the front end of CUDA's driver has: C's interface, as the libraries may have
//! been built apart from each other.

use std::cell::RefCell;
use std::ffi::{c_void, CStr};
use std::slice;

use gpuremote_wire::Encoder;

use crate::session::{Failure, Session};

/// Version of [`Channel`].
pub const CHANNEL_VERSION: u32 = 1;
/// The library that has the session, and its function: a [`FindChannel`].
const LIBRARY: &CStr = c"libcuda.so.1";
const FUNCTION: &CStr = c"nearmetal_gpu_channel";

/// Returns the channel of this version, or null when there is none.
pub type FindChannel = unsafe extern "C" fn(version: u32) -> *const Channel;

/// Takes a reply's values.
pub type TakeValues = unsafe extern "C" fn(context: *mut c_void, values: *const u8, bytes: usize);

/// A call.
#[repr(C)]
pub struct ChannelCall {
    /// The API's number on the wire.
    pub api: u8,
    /// The function's number.
    pub function: u16,
    /// The arguments, as they travel.
    pub arguments: *const u8,
    /// Their length in bytes.
    pub arguments_bytes: usize,
}

/// A reply's header.
#[repr(C)]
#[derive(Default)]
pub struct ChannelReply {
    /// What the function returned.
    pub status: i32,
    /// The first status other than success of earlier calls that were not waited for.
    pub deferred: i32,
}

/// The functions of the session. Each returns whether the session lives.
#[repr(C)]
pub struct Channel {
    /// Calls without waiting.
    pub post: unsafe extern "C" fn(call: *const ChannelCall) -> bool,
    /// Calls and waits. `take` is called once, with the context.
    pub call: unsafe extern "C" fn(call: *const ChannelCall, reply: *mut ChannelReply, take: TakeValues, context: *mut c_void) -> bool,
}

impl ChannelCall {
    unsafe fn arguments(&self) -> &[u8] {
        slice::from_raw_parts(self.arguments, self.arguments_bytes)
    }

    /// Calls without waiting, in this session: for those who have it.
    ///
    /// # Safety
    /// The call's pointer must be valid.
    pub unsafe fn post(&self, session: &Session) -> bool {
        session.post(self.api, self.function, |encoder| encoder.raw(self.arguments()), None).is_ok()
    }

    /// Calls and waits, in this session: for those who have it.
    ///
    /// # Safety
    /// The call's pointer must be valid, and `take` must accept the context.
    pub unsafe fn call(&self, session: &Session, header: &mut ChannelReply, take: TakeValues, context: *mut c_void) -> bool {
        let called = session.call(
            self.api,
            self.function,
            |encoder| encoder.raw(self.arguments()),
            None,
            |lane, reply| {
                *header = ChannelReply { status: reply.status, deferred: reply.deferred };
                take(context, lane.values().as_ptr(), lane.values().len());
                Ok(())
            },
        );
        called.is_ok()
    }
}

impl Channel {
    /// The channel of this process, from the front end of CUDA's driver. A program that has not loaded it yet loads it now.
    pub(crate) fn find() -> Result<&'static Channel, Failure> {
        // SAFETY: the names are C strings, and the front end's initialization is safe. It stays loaded.
        unsafe {
            let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW);
            if library.is_null() {
                let why = libc::dlerror();
                let why = if why.is_null() { String::new() } else { CStr::from_ptr(why).to_string_lossy().into_owned() };
                return Err(Failure(format!("can't load libcuda.so.1: {why}")));
            }
            let find = libc::dlsym(library, FUNCTION.as_ptr());
            if find.is_null() {
                return Err(Failure(
                    "the libcuda.so.1 of this process is not that of remote GPUs: put its directory first in LD_LIBRARY_PATH".into(),
                ));
            }
            let find: FindChannel = std::mem::transmute(find);
            find(CHANNEL_VERSION).as_ref().ok_or(Failure("libcuda.so.1 and this library are of different versions".into()))
        }
    }

    pub(crate) fn post_arguments(&self, api: u8, function: u16, arguments: impl FnOnce(&mut Encoder)) -> Result<(), Failure> {
        // SAFETY: the call's pointer is valid meanwhile.
        with_arguments(arguments, |bytes| lives(unsafe { (self.post)(&call(api, function, bytes)) }))
    }

    /// Calls and waits: the reply's header, and what `read` makes of its values.
    pub(crate) fn call_arguments<T, R: FnOnce(&ChannelReply, &[u8]) -> T>(
        &self,
        api: u8,
        function: u16,
        arguments: impl FnOnce(&mut Encoder),
        read: R,
    ) -> Result<T, Failure> {
        let mut values: Vec<u8> = Vec::new();
        let mut reply = ChannelReply::default();
        with_arguments(arguments, |bytes| {
            let context = (&raw mut values).cast();
            // SAFETY: the pointers are valid meanwhile, and the context is what `keep` accepts.
            lives(unsafe { (self.call)(&call(api, function, bytes), &mut reply, keep, context) })
        })?;
        Ok(read(&reply, &values))
    }
}

unsafe extern "C" fn keep(context: *mut c_void, values: *const u8, bytes: usize) {
    (*context.cast::<Vec<u8>>()).extend_from_slice(slice::from_raw_parts(values, bytes));
}

fn call(api: u8, function: u16, bytes: &[u8]) -> ChannelCall {
    ChannelCall { api, function, arguments: bytes.as_ptr(), arguments_bytes: bytes.len() }
}

/// The library that has the session says itself why it is lost.
fn lives(lives: bool) -> Result<(), Failure> {
    lives.then_some(()).ok_or(Failure("the session with the GPU server is lost".into()))
}

/// Encodes into memory that each thread keeps.
fn with_arguments<T>(arguments: impl FnOnce(&mut Encoder), run: impl FnOnce(&[u8]) -> T) -> T {
    thread_local! {
        static ENCODER: RefCell<Encoder> = RefCell::default();
    }
    let mut encoder = ENCODER.try_with(RefCell::take).unwrap_or_default();
    encoder.clear();
    arguments(&mut encoder);
    let value = run(encoder.bytes());
    let _ = ENCODER.try_with(|kept| kept.replace(encoder));
    value
}
