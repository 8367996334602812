//! A front end: what the stubs of an API call.

use std::collections::{HashMap, HashSet};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use gpuremote_transport::Address;
use gpuremote_wire::{Decoder, Encoder, Malformed, TOKEN_BYTES};

use crate::channel::Channel;
use crate::handles::{HandleKind, Handles};
use crate::session::{Failure, Session};

/// Where the server is: `unix:PATH` or `tcp:HOST:PORT`.
const ADDRESS_VARIABLE: &str = "NEARMETAL_GPU_SERVER";
/// The file with the server's token: 64 hexadecimal digits.
const TOKEN_VARIABLE: &str = "NEARMETAL_GPU_TOKEN_FILE";

/// The directory with the certificate that servers are shown: `ca.crt`, `workload.crt` and `workload.key`.
const TLS_VARIABLE: &str = "NEARMETAL_GPU_TLS";
/// In members of clusters: the address of the server, and the member's certificate.
const ADDRESS_FILE: &str = "/etc/nearmetal/gpu-server";
const TLS_DIRECTORY: &str = "/etc/nearmetal/tls";
const TICKET_TIMEOUT: Duration = Duration::from_secs(20);

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

/// An answer that never changes: the status and the values.
type Kept = (i32, Vec<u8>);

/// A front end's way to the server.
enum Way {
    /// The process's session, which opens at the first call.
    Session(Box<OnceLock<Result<Session, Failure>>>),
    /// The session of another front end, which is found at the first call.
    Channel(OnceLock<Result<&'static Channel, Failure>>),
}

/// A front end.
pub struct Front {
    api: u8,
    statuses: Statuses,
    handles: Handles,
    way: Way,
    kept: Mutex<HashMap<Vec<u8>, Kept>>,
    refused: Mutex<HashSet<&'static str>>,
}

impl Front {
    /// A front end that opens its session at the first call.
    pub fn new(api: u8, statuses: Statuses) -> Self {
        Self::by(Way::Session(Box::default()), api, statuses)
    }

    /// A front end that uses the session of the front end of CUDA's driver in this process.
    pub fn beside_cuda(api: u8, statuses: Statuses) -> Self {
        Self::by(Way::Channel(OnceLock::new()), api, statuses)
    }

    fn by(way: Way, api: u8, statuses: Statuses) -> Self {
        Front { api, statuses, handles: Handles::default(), way, kept: Mutex::default(), refused: Mutex::default() }
    }

    /// The session, which a front end beside another has not got. Why there is none is told once, on standard error.
    pub fn session(&self) -> Result<&Session, Failure> {
        match &self.way {
            Way::Session(session) => session.get_or_init(|| told(from_environment())).as_ref().map_err(Clone::clone),
            Way::Channel(_) => Err(Failure("the session is another front end's".into())),
        }
    }

    fn send(&self, function: u16, arguments: impl FnOnce(&mut Encoder)) -> Result<(), Failure> {
        match &self.way {
            Way::Session(_) => self.session()?.post(self.api, function, arguments, None),
            Way::Channel(channel) => found(channel)?.post_arguments(self.api, function, arguments),
        }
    }

    /// Calls and waits: status, deferred status, and what `read` makes of them and the values.
    fn transact<T>(
        &self,
        function: u16,
        arguments: impl FnOnce(&mut Encoder),
        read: impl FnOnce(i32, i32, &[u8]) -> Result<T, Malformed>,
    ) -> Result<T, Failure> {
        match &self.way {
            Way::Session(_) => self.session()?.call(self.api, function, arguments, None, |lane, reply| {
                read(reply.status, reply.deferred, lane.values()).map_err(Into::into)
            }),
            Way::Channel(channel) => found(channel)?
                .call_arguments(self.api, function, arguments, |reply, values| read(reply.status, reply.deferred, values))?
                .map_err(|malformed| Failure(malformed.to_string())),
        }
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
        self.settle(self.send(function, arguments).map(|()| self.statuses.ok))
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
        let called = self.transact(function, arguments, |status, deferred, values| {
            if status != self.statuses.ok {
                return Ok(status);
            }
            decoded(values, decode)?;
            Ok(if deferred != 0 { deferred } else { status })
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
        let mut key = Encoder::default();
        key.u16(function);
        arguments(&mut key);
        let kept = self.kept.lock().expect("no one panics with this lock").get(key.bytes()).cloned();
        let answer = match kept {
            Some(kept) => Ok(kept),
            None => self.transact(function, |encoder| encoder.raw(&key.bytes()[2..]), |status, _, values| Ok((status, values.to_vec()))),
        };
        let asked = answer.and_then(|(status, values)| {
            if status == self.statuses.ok {
                decoded(&values, decode).map_err(|malformed| Failure(malformed.to_string()))?;
                self.kept.lock().expect("no one panics with this lock").insert(key.bytes().to_vec(), (status, values));
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

fn decoded<T>(values: &[u8], decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, Malformed>) -> Result<T, Malformed> {
    let mut decoder = Decoder::new(values);
    let value = decode(&mut decoder)?;
    decoder.finish()?;
    Ok(value)
}

fn found(channel: &OnceLock<Result<&'static Channel, Failure>>) -> Result<&'static Channel, Failure> {
    channel.get_or_init(|| told(Channel::find())).clone()
}

/// Says on standard error why there is no way to the server.
fn told<T>(opened: Result<T, Failure>) -> Result<T, Failure> {
    if let Err(failure) = &opened {
        eprintln!("nearmetal-gpu: {failure}");
    }
    opened
}

/// Whether a server is known: by the environment, or by the member that this process runs in.
pub fn knows_server() -> bool {
    std::env::var_os(ADDRESS_VARIABLE).is_some() || Path::new(ADDRESS_FILE).exists()
}

fn from_environment() -> Result<Session, Failure> {
    let (text, source) = match (std::env::var(ADDRESS_VARIABLE), std::fs::read_to_string(ADDRESS_FILE)) {
        (Ok(text), _) => (text, ADDRESS_VARIABLE),
        (_, Ok(text)) => (text, ADDRESS_FILE),
        _ => return Err(Failure(format!("no GPU server is known: set {ADDRESS_VARIABLE} to unix:PATH or tcp:HOST:PORT"))),
    };
    let address: Address = text.trim().parse().map_err(|error| Failure(format!("{source}: {error}")))?;
    let token = match (std::env::var(TOKEN_VARIABLE), &address, tls_directory(source)) {
        (Ok(path), _, _) => read_token(&path).map_err(|why| Failure(format!("{TOKEN_VARIABLE}: {path}: {why}")))?,
        (_, Address::Tcp(host), Some(directory)) => {
            let asked = TcpStream::connect(host.as_str()).and_then(|stream| {
                stream.set_read_timeout(Some(TICKET_TIMEOUT))?;
                gpuremote_tickets::ask(stream, &directory)
            });
            asked.map_err(|error| Failure(format!("the GPU server at {address} gives no ticket: {error}")))?
        }
        _ => [0; TOKEN_BYTES],
    };
    Session::open(address, token)
}

/// Where the certificate is that the server is to be shown, if it is.
fn tls_directory(source: &str) -> Option<PathBuf> {
    match std::env::var_os(TLS_VARIABLE) {
        Some(directory) => Some(directory.into()),
        None => (source == ADDRESS_FILE).then(|| TLS_DIRECTORY.into()),
    }
}

fn read_token(path: &str) -> Result<[u8; TOKEN_BYTES], String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    gpuremote_wire::token_of_hex(text.trim()).ok_or("the file does not hold 64 hexadecimal digits".to_owned())
}
