//! A server on the fake driver, and programs that use it.

pub mod driver;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that ends with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let path = std::env::temp_dir().join(format!("gpuremote-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server on the fake driver, by a Unix socket and by TCP, which ends with the test.
pub struct Server {
    pub process: Child,
    pub scratch: Scratch,
    pub unix: String,
    pub tcp: String,
}

impl Server {
    pub fn start(flags: &[&str]) -> Self {
        let scratch = Scratch::new();
        let driver = scratch.0.join("driver");
        std::fs::create_dir(&driver).unwrap();
        let library = fakecuda::install(&driver).expect("the fake driver is built");
        let unix = format!("unix:{}", scratch.0.join("gpu.sock").display());
        // The listener that found a free port is closed before the server takes it.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let tcp = format!("tcp:127.0.0.1:{port}");
        let process = Command::new(env!("CARGO_BIN_EXE_nearmetal-gpu-server"))
            .args(["--listen", &unix, "--listen", &tcp, "--cuda"])
            .arg(&library)
            .args(flags)
            .env("FAKE_CUDA_LOG", scratch.0.join("log"))
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(scratch.0.join("messages")).unwrap())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < PATIENCE, "the server does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        Server { process, scratch, unix, tcp }
    }

    /// The calls that the driver has seen.
    pub fn driver_log(&self) -> String {
        std::fs::read_to_string(self.scratch.0.join("log")).unwrap_or_default()
    }

    /// Process IDs of the clients' processes.
    pub fn workers(&self) -> Vec<i32> {
        let children = format!("/proc/{0}/task", self.process.id());
        let mut workers = Vec::new();
        for task in std::fs::read_dir(children).unwrap().flatten() {
            let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            workers.extend(list.split_whitespace().filter_map(|id| id.parse::<i32>().ok()));
        }
        workers
    }

    /// Waits until no client's process is left.
    pub fn wait_until_idle(&self) {
        let begun = Instant::now();
        while !self.workers().is_empty() {
            assert!(begun.elapsed() < PATIENCE, "processes of clients are left: {:?}", self.workers());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a test's program is to do, when this process is one.
pub fn role() -> Option<String> {
    std::env::var("GPUREMOTE_ROLE").ok()
}

/// The test of this name, run as a program of its own: it has only the front end, and the server's address.
pub fn program(test: &str, role: &str, address: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .stdout(Stdio::null())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("GPUREMOTE_ROLE", role)
        .env("NEARMETAL_GPU_SERVER", address);
    command
}

/// Ends a child that takes too long.
pub fn wait(child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("a program does not end");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// The front end that this workspace builds.
pub fn front_end() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libcuda.so");
    assert!(library.exists(), "{} is not built", library.display());
    library
}

/// Passes connections on, counts their bytes, and can cut them.
pub struct Proxy {
    pub address: String,
    pub to_server: Arc<AtomicU64>,
    pub to_client: Arc<AtomicU64>,
    /// After so many bytes to the server, all connections are cut.
    pub cut_after: Arc<AtomicU64>,
}

impl Proxy {
    pub fn before(server: &str) -> Self {
        let server = server.strip_prefix("tcp:").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy {
            address: format!("tcp:{}", listener.local_addr().unwrap()),
            to_server: Arc::default(),
            to_client: Arc::default(),
            cut_after: Arc::new(AtomicU64::new(u64::MAX)),
        };
        let (to_server, to_client, cut_after) = (proxy.to_server.clone(), proxy.to_client.clone(), proxy.cut_after.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(onward) = TcpStream::connect(&server) else { continue };
                pass(client.try_clone().unwrap(), onward.try_clone().unwrap(), to_server.clone(), cut_after.clone());
                pass(onward, client, to_client.clone(), Arc::new(AtomicU64::new(u64::MAX)));
            }
        });
        proxy
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, count: Arc<AtomicU64>, cut_after: Arc<AtomicU64>) {
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if count.fetch_add(length as u64, Ordering::SeqCst) + length as u64 > cut_after.load(Ordering::SeqCst) {
                break;
            }
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
        let _ = from.shutdown(std::net::Shutdown::Both);
    });
}

/// Whether a process is there.
pub fn lives(process: i32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}
