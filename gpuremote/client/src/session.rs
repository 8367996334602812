//! A session with the server: one for each process.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpuremote_transport::{receive_with_files, Address, Lane};
use gpuremote_wire::{session_calls, Encoder, Hello, Kind, Reply, Welcome, TOKEN_BYTES};

use crate::arena::Arena;
use crate::flusher::Flusher;
use crate::lane::ClientLane;
use crate::stripes::{Stripes, STRIPED_BYTES};

/// Starting a driver takes seconds on some machines.
const GREETING_TIMEOUT: Duration = Duration::from_secs(60);
/// By TCP, so many bytes of gathered calls are sent by the caller itself.
const GATHER_BYTES: usize = 32 << 10;

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A session with the server.
pub struct Session {
    address: Address,
    number: u64,
    token: [u8; TOKEN_BYTES],
    process: u32,
    tickets: AtomicU64,
    lost: AtomicBool,
    flusher: Option<Flusher>,
    arena: Option<Arena>,
    /// One large copy at a time uses them.
    stripes: Mutex<Option<Stripes>>,
    /// The first lane stays when its thread ends, so that the session does, too.
    anchor: Mutex<Option<Arc<Mutex<ClientLane>>>>,
}

thread_local! {
    static LANE: RefCell<Option<Arc<Mutex<ClientLane>>>> = const { RefCell::new(None) };
}

impl Session {
    /// Opens a session with the server at this address, by its token.
    pub fn open(address: Address, token: [u8; TOKEN_BYTES]) -> Result<Self, Failure> {
        let (lane, welcome, arena) = greet(&address, &Hello { kind: Kind::Session, session: 0, token })
            .map_err(|error| Failure(format!("can't open a session with the GPU server at {address}: {error}")))?;
        let flusher = match address {
            Address::Unix(_) => None,
            Address::Tcp(_) => Some(Flusher::start().map_err(|error| Failure(format!("can't start a thread: {error}")))?),
        };
        let session = Session {
            address,
            number: welcome.session,
            token: welcome.token,
            process: std::process::id(),
            tickets: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            flusher,
            arena,
            stripes: Mutex::default(),
            anchor: Mutex::default(),
        };
        let first = session.keep(lane);
        *session.anchor.lock().expect("no one panics with this lock") = Some(first);
        Ok(session)
    }

    /// Host memory that the server process shares, where it is on this host.
    pub fn arena(&self) -> Option<&Arena> {
        self.arena.as_ref()
    }

    fn keep(&self, lane: Lane) -> Arc<Mutex<ClientLane>> {
        let lane = Arc::new(Mutex::new(ClientLane::new(lane)));
        if let Some(flusher) = &self.flusher {
            flusher.add(&lane);
        }
        LANE.with(|of_thread| *of_thread.borrow_mut() = Some(Arc::clone(&lane)));
        lane
    }

    /// This thread's lane; the first call of a thread opens it.
    fn lane(&self) -> Result<Arc<Mutex<ClientLane>>, Failure> {
        if self.lost.load(Ordering::Relaxed) {
            return Err(Failure(format!("the session with the GPU server at {} is lost", self.address)));
        }
        let lane = LANE
            .try_with(|of_thread| of_thread.borrow().clone())
            .map_err(|_| Failure("a thread that ends can't call the GPU server".into()))?;
        if let Some(lane) = lane {
            return Ok(lane);
        }
        if std::process::id() != self.process {
            return Err(Failure("a forked process can't use its parent's session with the GPU server".into()));
        }
        let hello = Hello { kind: Kind::Lane, session: self.number, token: self.token };
        let (lane, _, _) = greet(&self.address, &hello).map_err(|error| self.lose(&error))?;
        Ok(self.keep(lane))
    }

    fn lose(&self, error: &io::Error) -> Failure {
        let failure = Failure(format!("lost the GPU server at {}: {error}", self.address));
        if !self.lost.swap(true, Ordering::SeqCst) {
            eprintln!("nearmetal-gpu: {failure}");
        }
        failure
    }

    /// Runs with this thread's lane.
    pub fn with_lane<T>(&self, run: impl FnOnce(&mut ClientLane) -> io::Result<T>) -> Result<T, Failure> {
        let lane = self.lane()?;
        let mut lane = lane.lock().map_err(|_| Failure("a lane to the GPU server is broken".into()))?;
        run(&mut lane).map_err(|error| self.lose(&error))
    }

    /// The next call's place in the order of all calls.
    pub fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls without waiting. `data` follows the arguments.
    pub fn post(&self, api: u8, function: u16, arguments: impl FnOnce(&mut Encoder), data: Option<&[u8]>) -> Result<(), Failure> {
        self.with_lane(|lane| {
            lane.put(api, function, false, || self.ticket(), arguments)?;
            match (data, &self.flusher) {
                (Some(data), _) => lane.data().write_data(data),
                (None, Some(_)) if lane.data().unsent() >= GATHER_BYTES => lane.flush(),
                (None, Some(flusher)) => {
                    flusher.nudge();
                    Ok(())
                }
                (None, None) => Ok(()),
            }
        })
    }

    /// Calls and waits. `read` sees the lane after the reply, to take its values and data that follow.
    pub fn call<T>(
        &self,
        api: u8,
        function: u16,
        arguments: impl FnOnce(&mut Encoder),
        data: Option<&[u8]>,
        read: impl FnOnce(&mut ClientLane, Reply) -> io::Result<T>,
    ) -> Result<T, Failure> {
        self.with_lane(|lane| {
            lane.put(api, function, true, || self.ticket(), arguments)?;
            match data {
                Some(data) => lane.data().write_data(data)?,
                None => lane.flush()?,
            }
            let reply = lane.reply()?;
            let value = read(lane, reply)?;
            if reply.output_bytes > 0 {
                self.print(lane)?;
            }
            Ok(value)
        })
    }

    /// Whether a copy of so many bytes goes by stripes.
    pub fn stripes_copy(&self, bytes: usize) -> bool {
        bytes >= STRIPED_BYTES && self.flusher.is_some() && Stripes::wanted() > 1
    }

    /// Runs with the stripes; the first time, it opens them.
    fn with_stripes<T>(&self, run: impl FnOnce(&Stripes) -> Result<T, Failure>) -> Result<T, Failure> {
        let mut stripes = self.stripes.lock().map_err(|_| Failure("the stripes to the GPU server are broken".into()))?;
        if stripes.is_none() {
            let hello = Hello { kind: Kind::Stripe, session: self.number, token: self.token };
            let sockets = (0..Stripes::wanted()).map(|_| greet_by_tcp(&self.address, &hello)).collect::<io::Result<_>>();
            *stripes = Some(sockets.and_then(Stripes::start).map_err(|error| self.lose(&error))?);
        }
        run(stripes.as_ref().expect("it is there now"))
    }

    /// Calls without waiting; stripes carry the data. The arguments' encoder learns how many there are.
    pub fn post_striped(&self, api: u8, function: u16, arguments: impl FnOnce(&mut Encoder, usize), data: &[u8]) -> Result<(), Failure> {
        self.with_stripes(|stripes| {
            self.with_lane(|lane| {
                lane.put(api, function, false, || self.ticket(), |encoder| arguments(encoder, stripes.count()))?;
                lane.flush()
            })?;
            stripes.write(data).map_err(|error| self.lose(&error))
        })
    }

    /// Calls, waits, and lets stripes fill the buffer after a reply with `ok`. The last is the status of the copy.
    pub fn fetch_striped(
        &self,
        api: u8,
        function: u16,
        arguments: impl FnOnce(&mut Encoder, usize),
        buffer: &mut [u8],
        ok: i32,
    ) -> Result<i32, Failure> {
        self.with_stripes(|stripes| {
            let arguments = |encoder: &mut Encoder| arguments(encoder, stripes.count());
            self.call(api, function, arguments, None, |lane, reply| {
                if reply.status != ok {
                    return Ok(reply.status);
                }
                stripes.read(buffer)?;
                let mut status = [0; 4];
                lane.data().read(&mut status)?;
                let status = i32::from_le_bytes(status);
                Ok(if status == ok && reply.deferred != 0 { reply.deferred } else { status })
            })
        })
    }

    /// Prints what GPU programs have printed.
    fn print(&self, lane: &mut ClientLane) -> io::Result<()> {
        lane.put(session_calls::API, session_calls::TAKE_OUTPUT, true, || self.ticket(), |_| {})?;
        lane.flush()?;
        lane.reply()?;
        let text = lane.values();
        // SAFETY: the format takes a length and as many bytes. C's own output keeps the order of what the program prints itself.
        unsafe { libc::printf(c"%.*s".as_ptr(), text.len() as libc::c_int, text.as_ptr()) };
        Ok(())
    }
}

fn greet(address: &Address, hello: &Hello) -> io::Result<(Lane, Welcome, Option<Arena>)> {
    let mut answer = vec![0; Welcome::BYTES];
    match address {
        Address::Unix(path) => {
            let mut socket = UnixStream::connect(path)?;
            socket.set_read_timeout(Some(GREETING_TIMEOUT))?;
            socket.write_all(&hello.to_bytes())?;
            let files = receive_with_files(&socket, &mut answer)?;
            let welcome = accepted(&answer)?;
            let (rings, arena) = match (files.as_slice(), hello.kind) {
                ([rings, arena], Kind::Session) => (rings, Some(Arena::map(arena)?)),
                ([rings], Kind::Lane) => (rings, None),
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "the server sent no shared memory")),
            };
            Ok((Lane::by_memory(rings, socket, false)?, welcome, arena))
        }
        Address::Tcp(host) => {
            let mut socket = greeting(host, hello)?;
            socket.read_exact(&mut answer)?;
            socket.set_read_timeout(None)?;
            Ok((Lane::by_tcp(socket)?, accepted(&answer)?, None))
        }
    }
}

fn greeting(host: &str, hello: &Hello) -> io::Result<TcpStream> {
    let mut socket = TcpStream::connect(host)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(GREETING_TIMEOUT))?;
    socket.write_all(&hello.to_bytes())?;
    Ok(socket)
}

fn greet_by_tcp(address: &Address, hello: &Hello) -> io::Result<TcpStream> {
    let Address::Tcp(host) = address else { return Err(io::Error::from(io::ErrorKind::Unsupported)) };
    let mut socket = greeting(host, hello)?;
    let mut answer = vec![0; Welcome::BYTES];
    socket.read_exact(&mut answer)?;
    accepted(&answer)?;
    socket.set_read_timeout(None)?;
    Ok(socket)
}

fn accepted(answer: &[u8]) -> io::Result<Welcome> {
    let welcome = Welcome::from_bytes(answer)?;
    if welcome.refusal.is_empty() {
        Ok(welcome)
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, welcome.refusal))
    }
}
