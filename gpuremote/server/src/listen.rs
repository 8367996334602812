//! The listener: it greets clients, starts a worker process for each session, and hands lanes over to it. It makes no GPU call itself.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use gpuremote_tickets::{Office, FIRST_BYTE};
use gpuremote_transport::{send_with_files, Address};
use gpuremote_wire::{Hello, Kind, Welcome, TOKEN_BYTES};

use crate::bound::{Table, PLACES};
use crate::counts::Counts;
use crate::options::Options;

/// The first argument of a worker process.
pub const WORKER: &str = "worker";
/// A stranger that says nothing is not waited for longer.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// How often it is written what clients have done.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The first byte of a message to a worker: by what the lane in it comes.
pub const BY_UNIX: u8 = 0;
pub const BY_TCP: u8 = 1;
/// The same of a stripe, which comes by TCP always.
pub const STRIPE: u8 = 2;

/// What runs for a client is partly its own program. In a container of its own, the server's files are not that program's.
const NOBODY: u32 = 65534;

struct Worker {
    token: [u8; TOKEN_BYTES],
    control: UnixStream,
}

struct Listener {
    options: Options,
    /// Where clients by TCP get tickets; none: they have the token, or need none.
    office: Option<Office>,
    /// What clients have of their common bound, the file that it is in, and which places are taken; none: each has a bound of its own.
    together: Option<(Table, OwnedFd, Mutex<[bool; PLACES]>)>,
    /// What clients that have ended had done.
    ended: Mutex<Counts>,
    workers: Mutex<HashMap<u64, Worker>>,
}

enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Listens until the process is ended.
pub fn run(options: &Options) -> Result<(), String> {
    if options.listen.is_empty() {
        return Err("no address to listen on: give --listen unix:PATH or --listen tcp:HOST:PORT".into());
    }
    let office = match (&options.tls, &options.member) {
        (Some(directory), Some(member)) => Some(Office::open(directory.as_ref(), member).map_err(|why| format!("--tls: {why}"))?),
        _ => None,
    };
    let together = match options.together {
        true => Some(table().map_err(|error| format!("can't make the table of clients' memory: {error}"))?),
        false => None,
    };
    let listener = Arc::new(Listener { options: options.clone(), office, together, ended: Mutex::default(), workers: Mutex::default() });
    let mut threads = Vec::new();
    if let Some(path) = options.counts.clone() {
        *listener.ended.lock().expect("no one panics with this lock") = Counts::read(&path);
        let of_thread = Arc::clone(&listener);
        thread::spawn(move || of_thread.tell(&path));
    }
    for address in &options.listen {
        let cannot = |error: io::Error| format!("can't listen on {address}: {error}");
        let of_thread = Arc::clone(&listener);
        match address {
            Address::Unix(path) => {
                // What a killed server left is in nobody's use when no one answers there.
                if UnixStream::connect(path).is_err() {
                    let _ = std::fs::remove_file(path);
                }
                let sockets = UnixListener::bind(path).map_err(cannot)?;
                if listener.office.is_some() {
                    // The directory is its member's alone, in which all users may call.
                    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(cannot)?;
                }
                threads.push(thread::spawn(move || {
                    for socket in sockets.incoming() {
                        of_thread.greet(socket.map(Socket::Unix));
                    }
                }));
            }
            Address::Tcp(host) => {
                let sockets = TcpListener::bind(host.as_str()).map_err(cannot)?;
                threads.push(thread::spawn(move || {
                    for socket in sockets.incoming() {
                        of_thread.greet(socket.map(Socket::Tcp));
                    }
                }));
            }
        }
        eprintln!("nearmetal-gpu-server: listening on {address}");
        if options.token_file.is_none() && options.tls.is_none() && matches!(address, Address::Tcp(_)) {
            eprintln!("nearmetal-gpu-server: whoever reaches {address} can use this host's GPUs; give --token-file to prevent that");
        }
    }
    for thread in threads {
        thread.join().map_err(|_| "a listening thread ended".to_owned())?;
    }
    Ok(())
}

impl Listener {
    /// Each stranger has a thread of its own, so that none keeps others waiting.
    fn greet(self: &Arc<Self>, socket: io::Result<Socket>) {
        let listener = Arc::clone(self);
        thread::spawn(move || {
            if let Err(error) = socket.and_then(|socket| listener.admit(socket)) {
                eprintln!("nearmetal-gpu-server: turned a client away: {error}");
            }
        });
    }

    fn admit(self: &Arc<Self>, socket: Socket) -> io::Result<()> {
        let mut greeting = vec![0; Hello::BYTES];
        let hello = match &socket {
            Socket::Unix(unix) => {
                unix.set_read_timeout(Some(GREETING_TIMEOUT))?;
                (&*unix).read_exact(&mut greeting)
            }
            Socket::Tcp(tcp) => {
                tcp.set_read_timeout(Some(GREETING_TIMEOUT))?;
                if let Some(office) = self.office.as_ref().filter(|_| first_byte(tcp).is_ok_and(|byte| byte == FIRST_BYTE)) {
                    tcp.set_write_timeout(Some(GREETING_TIMEOUT))?;
                    return office.give(tcp.try_clone()?);
                }
                (&*tcp).read_exact(&mut greeting)
            }
        }
        .and_then(|()| Hello::from_bytes(&greeting).map_err(Into::into));
        let hello = match hello {
            Ok(hello) => hello,
            // Who connects and says nothing only looks whether somebody listens.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return self.refuse(socket, &error.to_string(), error),
        };
        let joined = match hello.kind {
            Kind::Session if !self.knows(&socket, &hello.token) => Err("the token is not this server's"),
            Kind::Session if self.workers.lock().expect("no one panics with this lock").len() >= self.options.clients => {
                Err("the server has as many clients as it serves at a time")
            }
            Kind::Session => self.start(&socket),
            Kind::Lane | Kind::Stripe => self.join(&hello, &socket),
        };
        match joined {
            Ok(()) => Ok(()),
            Err(why) => self.refuse(socket, why, io::Error::new(io::ErrorKind::PermissionDenied, why)),
        }
    }

    /// Whether a client may begin a session: by its ticket where it needs one, else by the server's token.
    fn knows(&self, socket: &Socket, token: &[u8; TOKEN_BYTES]) -> bool {
        match (&self.office, socket) {
            (Some(office), Socket::Tcp(_)) => office.take(token),
            _ => same(token, &self.options.token),
        }
    }

    fn refuse(&self, socket: Socket, reason: &str, error: io::Error) -> io::Result<()> {
        let welcome = Welcome { refusal: reason.to_owned(), session: 0, token: [0; TOKEN_BYTES] }.to_bytes();
        match socket {
            Socket::Unix(mut unix) => unix.write_all(&welcome)?,
            Socket::Tcp(mut tcp) => tcp.write_all(&welcome)?,
        }
        Err(error)
    }

    fn start(self: &Arc<Self>, socket: &Socket) -> Result<(), &'static str> {
        let started = self.start_worker();
        let (session, worker, child, place) = started.map_err(|error| {
            eprintln!("nearmetal-gpu-server: can't start a process for a client: {error}");
            "the server can't start a process for this client"
        })?;
        hand_over(&worker.control, Kind::Session, socket)?;
        self.workers.lock().expect("no one panics with this lock").insert(session, worker);
        let listener = Arc::clone(self);
        thread::spawn(move || listener.wait(session, child, place));
        Ok(())
    }

    fn start_worker(&self) -> io::Result<(u64, Worker, Child, Option<usize>)> {
        let mut random = [0; 8 + TOKEN_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let (number, token) = random.split_at(8);
        let session = u64::from_le_bytes(number.try_into().expect("8 bytes"));
        let token: [u8; TOKEN_BYTES] = token.try_into().expect("the rest is the token");
        let (control, of_worker) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("nearmetal-gpu-server").arg(WORKER).args(self.options.for_worker()).stdin(Stdio::from(OwnedFd::from(of_worker)));
        let place = self.take_place()?;
        if let (Some(place), Some((_, file, _))) = (place, &self.together) {
            command.arg("--place").arg(format!("{}:{place}", file.as_raw_fd()));
        }
        // What GPU programs print goes to standard output, wherever the driver runs.
        command.stdout(Stdio::from(output_file()?));
        // SAFETY: the call has no arguments that could be wrong.
        if unsafe { libc::geteuid() } == 0 && self.office.is_some() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let child = command.spawn().inspect_err(|_| self.free_place(place))?;
        (&control).write_all(&random)?;
        Ok((session, Worker { token, control }, child, place))
    }

    /// A place in the table of clients' memory, where there is one.
    fn take_place(&self) -> io::Result<Option<usize>> {
        let Some((_, _, taken)) = &self.together else { return Ok(None) };
        let mut taken = taken.lock().expect("no one panics with this lock");
        let free = taken.iter().position(|taken| !taken).ok_or(io::Error::other("no place is left in the table of clients"))?;
        taken[free] = true;
        Ok(Some(free))
    }

    /// Gives a place back, with all that its client had.
    fn free_place(&self, place: Option<usize>) {
        if let (Some(place), Some((table, _, taken))) = (place, &self.together) {
            let mut ended = self.ended.lock().expect("no one panics with this lock");
            *ended = ended.and(table.tally(place).counts());
            table.clear(place);
            drop(ended);
            taken.lock().expect("no one panics with this lock")[place] = false;
        }
    }

    /// What all clients have done.
    fn counts(&self) -> Counts {
        let ended = self.ended.lock().expect("no one panics with this lock");
        self.together.as_ref().map_or(*ended, |(table, _, _)| ended.and(table.counts()))
    }

    /// Writes to a file what clients have done, whenever that has changed.
    fn tell(&self, path: &Path) {
        let mut told = None;
        loop {
            let counts = self.counts();
            if told != Some(counts) {
                match counts.write(path) {
                    Ok(()) => told = Some(counts),
                    Err(error) => eprintln!("nearmetal-gpu-server: can't write {}: {error}", path.display()),
                }
            }
            thread::sleep(TELL_EVERY);
        }
    }

    fn join(&self, hello: &Hello, socket: &Socket) -> Result<(), &'static str> {
        let workers = self.workers.lock().expect("no one panics with this lock");
        let worker = workers.get(&hello.session).filter(|worker| same(&worker.token, &hello.token));
        hand_over(&worker.ok_or("there is no such session")?.control, hello.kind, socket)
    }

    fn wait(&self, session: u64, mut child: Child, place: Option<usize>) {
        let ended = child.wait();
        self.free_place(place);
        self.workers.lock().expect("no one panics with this lock").remove(&session);
        match ended {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("nearmetal-gpu-server: the process of a client ended: {status}"),
            Err(error) => eprintln!("nearmetal-gpu-server: can't wait for the process of a client: {error}"),
        }
    }
}

/// A new table of clients' memory. Its file stays open in the processes of clients.
fn table() -> io::Result<(Table, OwnedFd, Mutex<[bool; PLACES]>)> {
    let file = Table::file()?;
    Ok((Table::map(&file)?, file, Mutex::new([false; PLACES])))
}

/// The first byte that comes, which stays to be read.
fn first_byte(socket: &TcpStream) -> io::Result<u8> {
    let mut first = [0];
    match socket.peek(&mut first)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first[0]),
    }
}

/// A file in memory, without a name.
fn output_file() -> io::Result<OwnedFd> {
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
    Ok(nix::sys::memfd::memfd_create(c"nearmetal-gpu-output", flags)?)
}

fn hand_over(control: &UnixStream, kind: Kind, socket: &Socket) -> Result<(), &'static str> {
    let (by, fd): (u8, RawFd) = match socket {
        Socket::Unix(_) if kind == Kind::Stripe => return Err("a stripe comes by TCP"),
        Socket::Unix(unix) => (BY_UNIX, unix.as_raw_fd()),
        Socket::Tcp(tcp) if kind == Kind::Stripe => (STRIPE, tcp.as_raw_fd()),
        Socket::Tcp(tcp) => (BY_TCP, tcp.as_raw_fd()),
    };
    send_with_files(control, &[by], &[fd]).map_err(|_| "the session has ended")
}

/// Compares in a time that does not tell where they differ.
fn same(one: &[u8; TOKEN_BYTES], other: &[u8; TOKEN_BYTES]) -> bool {
    one.iter().zip(other).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}
