//! A client's process: it serves the lanes of one session, and ends with the last of them.

use std::collections::hash_map::{Entry, HashMap};
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{mpsc, Arc, Mutex, OnceLock};
use std::thread;
use std::time::Instant;

use gpuremote_transport::{map_arena, receive_with_files, send_with_files, shared_arena, shared_rings, Lane, Mapping};
use gpuremote_wire::{session_calls, Call, Decoder, Encoder, Malformed, Reply, Welcome, TOKEN_BYTES};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

use crate::bound::Table;
use crate::cuda;
use crate::library::{self, Libraries};
use crate::listen::{BY_UNIX, STRIPE};
use crate::opencl;
use crate::options::Options;
use crate::order::Order;
use crate::output::Output;

/// A lane's part of an API: it runs the calls of that lane.
pub trait Api {
    /// Whether others may begin while this function runs.
    fn blocks(&self, function: u16) -> bool;

    /// The status that tells of a failed call of another API, for which its caller did not wait.
    fn failed(&self) -> i32;

    /// Runs a call: it takes its arguments from the decoder, and data that follows them from the link's lane.
    fn run(&mut self, link: &mut Link<'_>, function: u16, decoder: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome>;
}

/// An API whose library can't be loaded: each call has this status.
struct Missing(i32);

impl Api for Missing {
    fn blocks(&self, _: u16) -> bool {
        false
    }

    fn failed(&self) -> i32 {
        self.0
    }

    fn run(&mut self, _: &mut Link<'_>, _: u16, _: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        Ok(Outcome::Status(self.0))
    }
}

/// What came of a call.
pub enum Outcome {
    /// The function's status. Its values, if any, are in the encoder.
    Status(i32),
    /// The function has replied itself.
    Replied,
}

/// Host memory that the client shares.
pub struct HostMemory {
    pub file: OwnedFd,
    pub mapping: Mapping,
}

/// A session: what its lanes share.
pub struct Session {
    number: u64,
    token: [u8; TOKEN_BYTES],
    options: Options,
    order: Order,
    output: Output,
    host_memory: OnceLock<HostMemory>,
    stripes: Mutex<Vec<mpsc::Sender<StripeJob>>>,
    cuda: OnceLock<Result<Arc<cuda::Shared>, String>>,
    opencl: OnceLock<Result<Arc<opencl::Shared>, String>>,
    libraries: Libraries,
    /// Where what the client does is counted: the table, and its place there.
    table: Option<(Table, usize)>,
}

impl Session {
    /// A lane's part of an API. The first lane that needs it loads its library.
    fn open(&self, api: u8) -> io::Result<Box<dyn Api>> {
        match api {
            cuda::API => match self.cuda() {
                Some(shared) => Ok(Box::new(cuda::Server::new(Arc::clone(shared)))),
                None => Ok(Box::new(Missing(cuda::MISSING))),
            },
            opencl::API => match self.opencl.get_or_init(|| told(opencl::Shared::load(&self.options)).map(Arc::new)) {
                Ok(shared) => Ok(Box::new(opencl::Server::new(Arc::clone(shared)))),
                Err(_) => Ok(Box::new(Missing(opencl::MISSING))),
            },
            _ => self.open_library(api),
        }
    }

    fn cuda(&self) -> Option<&Arc<cuda::Shared>> {
        self.cuda.get_or_init(|| told(cuda::Shared::load(&self.options)).map(Arc::new)).as_ref().ok()
    }

    fn open_library(&self, api: u8) -> io::Result<Box<dyn Api>> {
        let kind = library::KINDS.iter().position(|kind| kind.api == api).ok_or(Malformed("there is no such API"))?;
        let lane = self.cuda().and_then(|cuda| self.libraries.lane(kind, self.options.library(kind), cuda));
        Ok(lane.unwrap_or_else(|| Box::new(Missing(library::KINDS[kind].missing))))
    }
}

/// Says on standard error why a library is missing.
fn told<T>(loaded: Result<T, String>) -> Result<T, String> {
    if let Err(why) = &loaded {
        eprintln!("nearmetal-gpu-server: {why}");
    }
    loaded
}

/// A way beside the lanes, with a thread of its own, for parts of large copies.
pub struct Stripe {
    pub lane: Lane,
    pub copier: cuda::Copier,
}

/// A part of a copy.
pub type StripeJob = Box<dyn FnOnce(&mut Stripe) + Send>;

/// The way back to the client, for the call at hand.
pub struct Link<'a> {
    pub lane: Lane,
    session: &'a Session,
    /// Whether the client waits.
    pub replies: bool,
    /// The call's API, and its status that tells of failures of others.
    api: u8,
    failed: i32,
    /// The first failure that the client has not been told of: of which API, and its status.
    deferred: Option<(u8, i32)>,
}

impl Link<'_> {
    /// Host memory that the client shares, if it does.
    pub fn host_memory(&self) -> Option<&HostMemory> {
        self.session.host_memory.get()
    }

    /// Gives a stripe something to do. It fails when the client has opened no such stripe.
    pub fn stripe(&self, number: usize, job: StripeJob) -> io::Result<()> {
        let stripes = self.session.stripes.lock().expect("no one panics with this lock");
        let stripe = stripes.get(number).ok_or(Malformed("there is no such stripe"))?;
        stripe.send(job).map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "a stripe has ended"))
    }

    /// Replies. Nothing is sent before [`Lane::flush`].
    pub fn reply(&mut self, status: i32, values: &[u8]) -> io::Result<()> {
        let deferred = match self.deferred.take() {
            Some((api, status)) if api == self.api => status,
            Some((api, status)) => {
                eprintln!("nearmetal-gpu-server: a call of API {api}, for which its client did not wait, failed with status {status}");
                self.failed
            }
            None => 0,
        };
        let reply = Reply { length: values.len() as u32, status, deferred, output_bytes: self.session.output.waiting() };
        self.lane.write(&reply.to_bytes())?;
        self.lane.write(values)
    }

    fn settle(&mut self, status: i32, values: &[u8]) -> io::Result<()> {
        if self.replies {
            self.reply(status, values)?;
            return self.lane.flush();
        }
        if status != 0 && self.deferred.is_none() {
            self.deferred = Some((self.api, status));
        }
        Ok(())
    }
}

/// Serves the session whose lanes come by standard input.
pub fn run(options: &Options) -> Result<(), String> {
    let wrong = |error: io::Error| format!("a worker is started by the server only: {error}");
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(wrong)?);
    let mut start = [0; 8 + TOKEN_BYTES];
    (&control).read_exact(&mut start).map_err(wrong)?;
    let (number, token) = start.split_at(8);
    let session = Arc::new(Session {
        number: u64::from_le_bytes(number.try_into().expect("8 bytes")),
        token: token.try_into().expect("the rest is the token"),
        options: options.clone(),
        order: Order::default(),
        output: Output::of_process().map_err(|error| format!("can't keep what GPU programs print: {error}"))?,
        host_memory: OnceLock::new(),
        stripes: Mutex::default(),
        cuda: OnceLock::new(),
        opencl: OnceLock::new(),
        libraries: Libraries::default(),
        table: options.table()?,
    });
    watch(&session, &control).map_err(|error| format!("a session ended: {error}"))?;
    // Lanes may still run GPU calls, whose libraries an orderly exit would take apart under them. The system frees what the process has.
    // SAFETY: nothing here waits to be written.
    unsafe { libc::_exit(0) }
}

/// Takes lanes in, and returns when the client has left by all of them: also while a call for it still runs.
fn watch(session: &Arc<Session>, control: &UnixStream) -> io::Result<()> {
    let mut lanes: Vec<OwnedFd> = Vec::new();
    loop {
        let mut watched = vec![PollFd::new(control.as_fd(), PollFlags::POLLIN)];
        let end = PollFlags::from_bits_retain(libc::POLLRDHUP);
        watched.extend(lanes.iter().map(|lane| PollFd::new(lane.as_fd(), end)));
        match poll(&mut watched, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            polled => polled?,
        };
        // Events that the library has no name for, as POLLRDHUP, are none.
        let news: Vec<bool> = watched.iter().map(|fd| fd.revents().is_none_or(|events| !events.is_empty())).collect();
        let mut ended = news[1..].iter();
        lanes.retain(|_| !ended.next().expect("as many as lanes"));
        if news[0] {
            let mut by = [0];
            // The listener's end is that of all sessions.
            let Ok(mut files) = receive_with_files(control, &mut by) else { return Ok(()) };
            let socket = files.pop().ok_or(io::Error::new(io::ErrorKind::InvalidData, "a lane came without its socket"))?;
            lanes.push(socket.try_clone()?);
            begin(session, by[0], socket)?;
        } else if lanes.is_empty() {
            return Ok(());
        }
    }
}

fn begin(session: &Arc<Session>, by: u8, socket: OwnedFd) -> io::Result<()> {
    let welcome = Welcome { refusal: String::new(), session: session.number, token: session.token }.to_bytes();
    let lane = if by != BY_UNIX {
        let socket = TcpStream::from(socket);
        socket.set_read_timeout(None)?;
        let mut lane = Lane::by_tcp(socket)?;
        lane.write(&welcome)?;
        if by == STRIPE {
            let (jobs, waiting) = mpsc::channel::<StripeJob>();
            // It is there before the client hears of it.
            session.stripes.lock().expect("no one panics with this lock").push(jobs);
            lane.flush()?;
            let mut stripe = Stripe { lane, copier: cuda::Copier::default() };
            thread::Builder::new().name("stripe".into()).spawn(move || {
                for job in waiting {
                    job(&mut stripe);
                }
            })?;
            return Ok(());
        }
        lane.flush()?;
        lane
    } else {
        let socket = UnixStream::from(socket);
        socket.set_read_timeout(None)?;
        let rings = shared_rings()?;
        if session.host_memory.get().is_none() {
            let file = shared_arena()?;
            send_with_files(&socket, &welcome, &[rings.as_raw_fd(), file.as_raw_fd()])?;
            let mapping = map_arena(&file)?;
            let _ = session.host_memory.set(HostMemory { file, mapping });
        } else {
            send_with_files(&socket, &welcome, &[rings.as_raw_fd()])?;
        }
        Lane::by_memory(&rings, socket, true)?
    };
    let session = Arc::clone(session);
    thread::Builder::new().name("lane".into()).spawn(move || {
        if let Err(error) = serve(&session, lane) {
            session.order.close();
            // Other lanes may wait for this one's calls, so the session can't go on; the client sees its end.
            eprintln!("nearmetal-gpu-server: a session ended: {error}");
            // SAFETY: as at the end of a session.
            unsafe { libc::_exit(1) }
        }
    })?;
    Ok(())
}

fn serve(session: &Session, lane: Lane) -> io::Result<()> {
    let mut link = Link { lane, session, replies: false, api: session_calls::API, failed: 0, deferred: None };
    let mut apis: HashMap<u8, Box<dyn Api>> = HashMap::from([(session_calls::API, Box::new(SessionCalls) as Box<dyn Api>)]);
    let mut arguments = Vec::new();
    let mut values = Encoder::default();
    let tally = session.table.as_ref().map(|(table, place)| table.tally(*place));
    let mut answered: Option<Instant> = None;
    loop {
        let mut header = [0; Call::BYTES];
        match link.lane.read(&mut header) {
            Err(error) if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => return Ok(()),
            read => read?,
        }
        let call = Call::from_bytes(&header)?;
        if let (Some(tally), Some(answered)) = (tally, answered.take()) {
            tally.called_again(answered.elapsed());
        }
        // A copy of its own, because a hostile client could change what lies in shared memory while it is checked.
        arguments.resize(call.length as usize, 0);
        link.lane.read(&mut arguments)?;
        if !session.order.wait(call.ticket) {
            return Err(Malformed("a call's ticket is out of order").into());
        }
        let api = match apis.entry(call.api) {
            Entry::Occupied(api) => api.into_mut(),
            Entry::Vacant(place) => place.insert(session.open(call.api)?),
        };
        let begun = (tally.is_some() && call.replies).then(Instant::now);
        // While its caller waits, nobody can count on what a call does. A call without a reply must have begun before later ones do.
        let blocks = call.replies && api.blocks(call.function);
        if blocks {
            session.order.pass();
        }
        (link.replies, link.api, link.failed) = (call.replies, call.api, api.failed());
        values.clear();
        let outcome = api.run(&mut link, call.function, &mut Decoder::new(&arguments), &mut values)?;
        if !blocks {
            session.order.pass();
        }
        match (tally, begun) {
            (Some(tally), Some(begun)) => {
                let now = Instant::now();
                tally.answered(now - begun);
                // Before it is sent: on one host, the client may call again before that has returned. When a function replied itself is not known.
                answered = matches!(outcome, Outcome::Status(_)).then_some(now);
            }
            (Some(tally), None) => tally.call(),
            (None, _) => {}
        }
        if let Outcome::Status(status) = outcome {
            link.settle(status, values.bytes())?;
        }
    }
}

/// Calls of the session itself.
struct SessionCalls;

impl Api for SessionCalls {
    fn blocks(&self, _: u16) -> bool {
        false
    }

    fn failed(&self) -> i32 {
        0
    }

    fn run(&mut self, link: &mut Link<'_>, function: u16, _: &mut Decoder<'_>, values: &mut Encoder) -> io::Result<Outcome> {
        match function {
            session_calls::ECHO => {}
            session_calls::TAKE_OUTPUT => values.raw(&link.session.output.take()?),
            _ => return Err(Malformed("there is no such call of a session").into()),
        }
        Ok(Outcome::Status(0))
    }
}
