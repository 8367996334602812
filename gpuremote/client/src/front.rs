//! A front end: what the stubs of an API call.

use std::collections::HashSet;
use std::sync::{Mutex, OnceLock};

use gpuremote_transport::Address;
use gpuremote_wire::{Decoder, Encoder, Malformed, TOKEN_BYTES};

use crate::handles::{HandleKind, Handles};
use crate::session::{Failure, Session};

/// Where the server is: `unix:PATH` or `tcp:HOST:PORT`.
const ADDRESS_VARIABLE: &str = "NEARMETAL_GPU_SERVER";
/// The file with the server's token: 64 hexadecimal digits.
const TOKEN_VARIABLE: &str = "NEARMETAL_GPU_TOKEN_FILE";

/// Statuses that stubs return themselves, of their API.
#[derive(Clone, Copy, Debug)]
pub struct Statuses {
    /// Success.
    pub ok: i32,
    /// The server is lost.
    pub lost: i32,
    /// An argument is wrong.
    pub invalid: i32,
    /// A handle is of no object.
    pub handle: i32,
    /// The function is not supported.
    pub unsupported: i32,
}

/// A function's address, in a table of all.
#[derive(Clone, Copy)]
pub struct Entry(pub *const ());

// SAFETY: the address of a function, which is the same for all threads.
unsafe impl Sync for Entry {}

/// A front end.
pub struct Front {
    api: u8,
    statuses: Statuses,
    handles: Handles,
    session: OnceLock<Result<Session, Failure>>,
    refused: Mutex<HashSet<&'static str>>,
}

impl Front {
    /// A front end that opens its session at the first call.
    pub fn new(api: u8, statuses: Statuses) -> Self {
        Front { api, statuses, handles: Handles::default(), session: OnceLock::new(), refused: Mutex::default() }
    }

    /// The session. Why there is none is told once, on standard error.
    pub fn session(&self) -> Result<&Session, Failure> {
        let session = self.session.get_or_init(|| {
            let opened = from_environment();
            if let Err(failure) = &opened {
                eprintln!("nearmetal-gpu: {failure}");
            }
            opened
        });
        session.as_ref().map_err(Clone::clone)
    }

    /// The API's number on the wire.
    pub fn api(&self) -> u8 {
        self.api
    }

    /// Statuses that stubs return themselves.
    pub fn statuses(&self) -> Statuses {
        self.statuses
    }

    /// A number for a new object.
    pub fn mint(&self, kind: HandleKind) -> u64 {
        self.handles.mint(kind)
    }

    /// Gives the number of an object back.
    pub fn unmint(&self, kind: HandleKind, handle: u64) {
        self.handles.unmint(kind, handle);
    }

    /// Whether this can be a handle of that kind.
    pub fn is(&self, kind: HandleKind, handle: u64) -> bool {
        Handles::is(kind, handle)
    }

    /// Tells once that a function is not supported, and returns the status for it.
    pub fn refuse(&self, function: &'static str) -> i32 {
        if self.refused.lock().expect("no one panics with this lock").insert(function) {
            eprintln!("nearmetal-gpu: {function} is not supported on remote GPUs");
        }
        self.statuses.unsupported
    }

    fn settle(&self, result: Result<i32, Failure>) -> i32 {
        result.unwrap_or(self.statuses.lost)
    }

    /// Calls without waiting.
    pub fn post(&self, function: u16, arguments: impl FnOnce(&mut Encoder)) -> i32 {
        self.settle(self.session().and_then(|session| session.post(self.api, function, arguments, None)).map(|()| self.statuses.ok))
    }

    /// Calls without waiting; the data follows.
    pub fn post_data(&self, function: u16, arguments: impl FnOnce(&mut Encoder), data: &[u8]) -> i32 {
        let posted = self.session().and_then(|session| session.post(self.api, function, arguments, Some(data)));
        self.settle(posted.map(|()| self.statuses.ok))
    }

    /// Calls and waits; the data follows the arguments, and the reply has no values.
    pub fn call_data(&self, function: u16, arguments: impl FnOnce(&mut Encoder), data: &[u8]) -> i32 {
        let called = self.session().and_then(|session| {
            session.call(self.api, function, arguments, Some(data), |_, reply| {
                Ok(if reply.status == self.statuses.ok && reply.deferred != 0 { reply.deferred } else { reply.status })
            })
        });
        self.settle(called)
    }

    /// Calls and waits. Values are decoded after success only.
    pub fn call(
        &self,
        function: u16,
        arguments: impl FnOnce(&mut Encoder),
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<(), Malformed>,
    ) -> i32 {
        let called = self.session().and_then(|session| {
            session.call(self.api, function, arguments, None, |lane, reply| {
                if reply.status == self.statuses.ok {
                    lane.decode(decode)?;
                }
                Ok(if reply.status == self.statuses.ok && reply.deferred != 0 { reply.deferred } else { reply.status })
            })
        });
        self.settle(called)
    }

    /// Calls and waits the first time that these arguments are given. Later the answer is the same.
    pub fn ask(
        &self,
        function: u16,
        arguments: impl FnOnce(&mut Encoder),
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<(), Malformed>,
    ) -> i32 {
        let asked = self.session().and_then(|session| {
            let mut key = Encoder::default();
            key.u8(self.api);
            key.u16(function);
            arguments(&mut key);
            let kept = session.kept.lock().expect("no one panics with this lock").get(key.bytes()).cloned();
            let (status, values) = match kept {
                Some(kept) => kept,
                None => {
                    let arguments = |encoder: &mut Encoder| encoder.raw(&key.bytes()[3..]);
                    let answer =
                        session.call(self.api, function, arguments, None, |lane, reply| Ok((reply.status, lane.values().to_vec())))?;
                    if answer.0 == self.statuses.ok {
                        session.kept.lock().expect("no one panics with this lock").insert(key.bytes().to_vec(), answer.clone());
                    }
                    answer
                }
            };
            if status == self.statuses.ok {
                let mut decoder = Decoder::new(&values);
                decode(&mut decoder).and_then(|()| decoder.finish()).map_err(|malformed| Failure(malformed.to_string()))?;
            }
            Ok(status)
        });
        self.settle(asked)
    }

    /// Whether a copy of so many bytes goes by stripes, beside the lanes.
    pub fn stripes_copy(&self, bytes: usize) -> bool {
        self.session().is_ok_and(|session| session.stripes_copy(bytes))
    }

    /// Calls without waiting; stripes carry the data. The arguments' encoder learns how many there are.
    pub fn post_striped(&self, function: u16, arguments: impl FnOnce(&mut Encoder, usize), data: &[u8]) -> i32 {
        let posted = self.session().and_then(|session| session.post_striped(self.api, function, arguments, data));
        self.settle(posted.map(|()| self.statuses.ok))
    }

    /// Calls, waits, and lets stripes fill the buffer.
    pub fn fetch_striped(&self, function: u16, arguments: impl FnOnce(&mut Encoder, usize), buffer: &mut [u8]) -> i32 {
        let fetched = self.session().and_then(|session| session.fetch_striped(self.api, function, arguments, buffer, self.statuses.ok));
        self.settle(fetched)
    }

    /// Calls, waits, and fills the buffer with the data that follows the reply.
    ///
    /// A reply with success is followed by as many bytes as the buffer has, and by the status of the copy.
    pub fn fetch(&self, function: u16, arguments: impl FnOnce(&mut Encoder), buffer: &mut [u8]) -> i32 {
        let fetched = self.session().and_then(|session| {
            session.call(self.api, function, arguments, None, |lane, reply| {
                if reply.status != self.statuses.ok {
                    return Ok(reply.status);
                }
                lane.data().read(buffer)?;
                let mut status = [0; 4];
                lane.data().read(&mut status)?;
                let status = i32::from_le_bytes(status);
                Ok(if status == self.statuses.ok && reply.deferred != 0 { reply.deferred } else { status })
            })
        });
        self.settle(fetched)
    }
}

fn from_environment() -> Result<Session, Failure> {
    let address = std::env::var(ADDRESS_VARIABLE)
        .map_err(|_| Failure(format!("no GPU server is known: set {ADDRESS_VARIABLE} to unix:PATH or tcp:HOST:PORT")))?;
    let address: Address = address.parse().map_err(|error| Failure(format!("{ADDRESS_VARIABLE}: {error}")))?;
    let token = match std::env::var(TOKEN_VARIABLE) {
        Err(_) => [0; TOKEN_BYTES],
        Ok(path) => read_token(&path).map_err(|why| Failure(format!("{TOKEN_VARIABLE}: {path}: {why}")))?,
    };
    Session::open(address, token)
}

fn read_token(path: &str) -> Result<[u8; TOKEN_BYTES], String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    gpuremote_wire::token_of_hex(text.trim()).ok_or("the file does not hold 64 hexadecimal digits".to_owned())
}
