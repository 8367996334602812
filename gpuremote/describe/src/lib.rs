//! Stubs for both sides of a remote API, made from its description.
//!
//! A description names each function once, with the directions of its arguments and the way it is called:
//!
//! ```text
//! api cuda 1;                       # name and number on the wire
//! use other;                        # handles of that API are written other.HANDLE
//! status ok 0 lost 46 invalid 1;    # statuses that the stubs themselves return
//! handle CUstream 3;                # values below 3 mean something in the API itself, and pass unchanged
//! fn cuMemAlloc_v2(address: out u64, bytes: usize) sync;
//! fn cuStreamCreate(stream: new CUstream, flags: u32) async;
//! fn cuStreamDestroy_v2(stream: free CUstream) async;
//! fn cuDeviceGetAttribute(value: out i32, attribute: i32, device: i32) cached;
//! ```
//!
//! # Functions
//!
//! A function's way says what its stub in the client does:
//!
//! | way | the client |
//! |---|---|
//! | `sync` | waits for the reply |
//! | `async` | does not wait; a failure is reported with the next reply |
//! | `cached` | waits once for each set of arguments, because the answer never changes |
//! | `local` | answers by itself: written by hand, and not on the wire |
//! | `manual` | written by hand on both sides; the description gives the number |
//! | `refused` | returns that the function is not supported |
//! | `retain`, `release` | counts a reference of an object; the object's end is sent when nothing holds it |
//!
//! After the way: `blocks` (the call may take long, so that others may begin meanwhile), `server` (the server's part is written by hand),
//! `wrapped` (what programs call is written by hand, around the stub, which is then in `remote`).
//!
//! `family SD S f32, D f64` and `each SD fn x*scal(n: int, a: scalar *) async wide` describe four functions: each member's letter and type are
//! put in the place of `*`, and a `wide` function has a twin `_64` whose `int` are of 64 bits, not 32.
//!
//! # Arguments
//!
//! Numbers, texts and arrays:
//!
//! | type | in C | on the wire |
//! |---|---|---|
//! | `i32`, `u32`, `u64`, `usize`, `f32`, ... | by value | the value |
//! | `in T[n]` | pointer to `n` values (another argument, a number, or `6 * n`) | the values, or that the pointer was null |
//! | `out T`, `out T[n]` | pointer | the values, in the reply; null is allowed and filled with nothing |
//! | `str` | pointer to a C string | its bytes |
//! | `info` | size, pointer, pointer to a size | any value: its length, then its bytes, in the reply |
//! | `null` | pointer | nothing; anything but null is refused |
//!
//! Handles, which are numbers in the client too:
//!
//! | type | in C | on the wire |
//! |---|---|---|
//! | `H` | by value | its number |
//! | `api.H`, a handle of another API | by value | its number |
//! | `new H` | pointer to a handle | a number, which the client mints |
//! | `found H` | pointer to a handle | the number of an object that the library has already, in the reply |
//! | `free H` | by value | its number, which is free afterwards |
//! | `in H[n]` | pointer to `n` handles | their numbers, or that the pointer was null |
//!
//! # Modes
//!
//! CUDA's libraries take scalars by pointers, to host memory or to the GPU's, as the mode of a handle says. The front end knows the mode:
//! `by_hand::in_device_mode(handle)`.
//!
//! | type | in C | on the wire |
//! |---|---|---|
//! | `scalar T`, `scalar T[n]`, `scalar f(x, y)` | pointer | that many bytes, or as many as `by_hand::f` of the front end returns |
//! | `result T`, `inout T` | pointer | the bytes in the reply, or both ways |
//! | `scalar T of h` and so on | pointer, to the GPU's memory where the handle `h` is in device mode | the bytes, or the address |
//!
//! A `sync` function with a `result` in device mode is called as an `async` one, because nothing comes back.
//!
//! # Objects
//!
//! OpenCL's handles are pointers that programs and the ICD loader look into, so they are *objects* of the front end:
//!
//! ```text
//! object cl_mem -38;   # -38 is the status for a pointer to no such object
//! fn clCreateSampler(context: cl_context, normalized: u32, addressing: u32, filter: u32) returns cl_sampler sync;
//! fn clEnqueueMarkerWithWaitList(queue: cl_command_queue, count: u32, waits: list cl_event[count] -57, event: want cl_event) async;
//! fn clRetainSampler(sampler: cl_sampler) retain;
//! order clGetPlatformIDs clGetPlatformInfo; # the table that an ICD loader knows functions by, also those that are not described
//! fn clReleaseSampler(sampler: cl_sampler) release;
//! ```
//!
//! A function that `returns` an object has one more argument in C, a pointer to the status. A new object holds the function's first object,
//! which therefore outlives the new one. An answer that is `cached` is kept with the first object, because numbers of objects come again.
//!
//! | type | in C | on the wire |
//! |---|---|---|
//! | `H` | by value | its number |
//! | `maybe H` | by value, or null | its number, or 0 |
//! | `want H` | pointer to a new object, or null when none is wanted | a number, which the client mints, or 0 |
//! | `in H[n]` | pointer to `n` objects, at least one | their numbers |
//! | `list H[n] STATUS` | pointer to `n` objects, null exactly when `n` is 0 | their numbers; anything else has that status |
//!
//! The client's code needs from its crate `Object` with a `number`, `object`, `objects`, `made`, `failed`, `answer`, `retain` and `release`, and
//! a front end with `ask_of`. The server's needs a method `failed`, which makes an event for a command that the driver refused after the client
//! had gone on.

mod api;
mod client;
mod parse;
mod read;
mod server;

pub use api::{Api, Argument, ForeignHandle, Function, Length, Object, Objects, Scalars, Statuses, Type, Way};
pub use client::client;
pub use parse::parse;
pub use read::{read, write_front_end};
pub use server::server;
