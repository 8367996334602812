//! Stubs for both sides of a remote API, made from its description.
//!
//! A description names each function once, with the directions of its arguments and the way it is called:
//!
//! ```text
//! api cuda 1;                       # name and number on the wire
//! use other;                        # handles of that API are written other.HANDLE
//! status ok 0 lost 46 malformed 1;  # statuses that the stubs themselves return
//! handle CUstream 3;                # values below 3 mean something in the API itself, and pass unchanged
//! fn cuMemAlloc_v2(address: out u64, bytes: usize) sync;
//! fn cuStreamCreate(stream: new CUstream, flags: u32) async;
//! fn cuStreamDestroy_v2(stream: free CUstream) async;
//! fn cuDeviceGetAttribute(value: out i32, attribute: i32, device: i32) cached;
//! ```
//!
//! Types of arguments:
//!
//! | type | in C | on the wire |
//! |---|---|---|
//! | `i32`, `u32`, `u64`, `usize`, `f32`, ... | by value | the value |
//! | `H`, a handle | by value | its number |
//! | `new H` | pointer to a handle | a number, which the client mints |
//! | `free H` | by value | its number, which is free afterwards |
//! | `in T[n]`, `in H[n]` | pointer to `n` values (another argument, a number, or `6 * n`) | the values, or that it was null |
//! | `out T`, `out T[n]` | pointer | the values, in the reply; null is allowed and filled with nothing |
//! | `str` | pointer to a C string | its bytes |
//! | `api.H`, a handle of another API | by value | its number |
//! | `scalar T`, `scalar T[n]`, `scalar f(x, y)` | pointer | that many bytes, or as many as `f` in the front end's `by_hand` says |
//! | `result T`, `inout T` | pointer | the bytes in the reply, or both ways |
//! | `scalar T of h` and so on | pointer, to the GPU's memory where the handle `h` is in device mode | the bytes, or the address |
//! | `null` | pointer | nothing; anything but null is refused |
//! | `info` | size, pointer, pointer to a size | any value: its length, then its bytes, in the reply |
//!
//! Ways:
//!
//! | way | the client |
//! |---|---|
//! | `sync` | waits for the reply |
//! | `async` | does not wait; a failure is told with the next reply |
//! | `cached` | waits once for each set of arguments, as the answer never changes |
//! | `local` | answers by itself: written by hand, and not on the wire |
//! | `manual` | written by hand on both sides; the description gives the number |
//! | `refused` | returns that the function is not supported |
//! | `retain`, `release` | counts a reference of an object; the object's end is sent when nothing holds it |
//!
//! `family SD S f32, D f64` and `each SD fn x*scal(n: int, a: scalar *) async wide` describe four functions: each member's letter and type are
//! put in the place of `*`, and a `wide` function has a twin `_64` whose `int` are of 64 bits, not 32.
//!
//! A `sync` function with a `result` in device mode is called as an `async` one, as nothing comes back. Modes are what the front end's
//! `by_hand::in_device_mode(handle)` says.
//!
//! After the way: `blocks` (the call may take long, so that others may begin meanwhile), `server` (the server's part is written by hand),
//! `wrapped` (what programs call is written by hand, around the stub, which is then in `remote`).
//!
//! OpenCL's handles are pointers that programs and the ICD loader look into, so they are *objects* of the front end:
//!
//! ```text
//! object cl_mem -38;   # -38 is the status for a pointer to no such object
//! fn clCreateSampler(context: cl_context, normalized: u32, addressing: u32, filter: u32) returns cl_sampler sync;
//! fn clEnqueueMarkerWithWaitList(queue: cl_command_queue, count: u32, waits: list cl_event[count] -57, event: want cl_event) async;
//! fn clRetainSampler(sampler: cl_sampler) retain;
//! fn clReleaseSampler(sampler: cl_sampler) release;
//! ```
//!
//! A function that `returns` an object has one more argument in C, a pointer to the status. A new object holds the function's first object,
//! which so outlives it. What is `cached` about an object is kept with that. Further types of arguments, for objects only:
//!
//! | type | in C | on the wire |
//! |---|---|---|
//! | `maybe H` | by value, or null | its number, or 0 |
//! | `want H` | pointer to a new object, or null when none is wanted | a number, which the client mints, or 0 |
//! | `list H[n] STATUS` | pointer to `n` objects, null exactly when `n` is 0 | their numbers; anything else has that status |
//!
//! The client's code needs from its crate `Object` with a `number`, `object`, `objects`, `made`, `failed`, `answer`, `retain` and `release`.
//! The server's needs a method `failed`, which makes an event for a command that the driver refused after the client had gone on.

mod client;
mod parse;
mod read;
mod server;

pub use client::client;
pub use parse::{parse, Api, Argument, ForeignHandle, Function, Length, Scalars, Type, Way};
pub use read::{read, write_front_end};
pub use server::server;
