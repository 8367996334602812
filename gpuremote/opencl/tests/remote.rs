//! Programs on a real server, whose OpenCL is PoCL. They load this library as any program does: through the ICD loader, which is told of no
//! other driver, in a process of their own.

mod programs;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// Where Cargo puts what it builds: the folder of this profile.
fn built() -> PathBuf {
    let this = std::env::current_exe().expect("this program has a path");
    this.parent().and_then(Path::parent).expect("tests lie in deps").to_owned()
}

/// Builds programs of other crates.
fn build(package: &str, program: &str) -> PathBuf {
    let folder = built();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", package]);
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("Cargo runs").success(), "{package} can't be built");
    folder.join(program)
}

/// A server, with a folder for its socket and the loader's list of drivers.
struct Server {
    process: Child,
    folder: PathBuf,
    addresses: [String; 2],
}

impl Server {
    fn start(name: &str, flags: &[&str]) -> Self {
        let program = build("gpuremote-server", "nearmetal-gpu-server");
        let folder = std::env::temp_dir().join(format!("nearmetal-opencl-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        let library = build("gpuremote-opencl", "libnearmetal_opencl.so");
        std::fs::write(folder.join("nearmetal.icd"), format!("{}\n", library.display())).expect("a file can be written");
        let socket = folder.join("socket");
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port is free").port();
        let addresses = [format!("unix:{}", socket.display()), format!("tcp:127.0.0.1:{port}")];
        let mut command = Command::new(program);
        for address in &addresses {
            command.args(["--listen", address]);
        }
        let process = command.args(flags).spawn().expect("the server starts");
        let begun = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() || !socket.exists() {
            assert!(begun.elapsed() < Duration::from_secs(10), "the server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Server { process, folder, addresses }
    }

    /// Runs a program whose only OpenCL is this server's.
    fn run(&self, address: &str, program: &mut Command) -> Output {
        program.env("OCL_ICD_VENDORS", &self.folder).env("NEARMETAL_GPU_SERVER", address);
        program.output().unwrap_or_else(|error| panic!("{program:?}: {error}"))
    }

    /// Runs a program over each transport. Returns what each wrote.
    fn run_by_all(&self, program: impl Fn() -> Command) -> Vec<String> {
        let by = |address: &String| {
            let output = self.run(address, &mut program());
            let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "over {address}: {}\n{out}\n{error}", output.status);
            out.into_owned()
        };
        self.addresses.iter().map(by).collect()
    }

    /// Runs a program that is an ignored test of this file.
    fn run_test(&self, name: &str) -> Vec<String> {
        self.run_by_all(|| {
            let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
            command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
            command
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // What can't be ended or removed any more is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn programs_run_over_both_transports() {
    let server = Server::start("programs", &[]);
    for name in programs::NAMES {
        for output in server.run_test(name) {
            assert!(output.contains("1 passed"), "{name} did not run:\n{output}");
        }
    }
}

#[test]
fn a_driver_needs_no_loader() {
    let server = Server::start("driver", &["--opencl", "libpocl.so.2"]);
    for output in server.run_test("programs::commands::vectors_are_added") {
        assert!(output.contains("1 passed"), "{output}");
    }
}

#[test]
fn what_kernels_print_reaches_the_program() {
    let server = Server::start("printf", &[]);
    for output in server.run_test("programs::commands::a_kernel_prints") {
        assert!(output.contains("item 3 of 4"), "{output}");
    }
}

#[test]
fn memory_is_bounded() {
    let server = Server::start("bound", &["--memory-mib", "16"]);
    for output in server.run_test("programs::memory::a_bound_of_16_mib_is_kept") {
        assert!(output.contains("1 passed"), "{output}");
    }
}

#[test]
fn clinfo_and_the_eight_kernels_run() {
    let server = Server::start("kernels", &[]);
    for output in server.run_by_all(|| Command::new("clinfo")) {
        assert!(output.contains("Platform Name") && output.contains("ICD loader properties"), "{output}");
    }
    let kernels = build("nearmetal-gpu-kernels", "nearmetal-gpu-kernels");
    let run = || {
        let mut command = Command::new(&kernels);
        command.args(["--api", "opencl", "--size", "test", "--runs", "1"]);
        command
    };
    for output in server.run_by_all(run) {
        assert!(output.contains("pathfinder"), "{output}");
    }
}

#[test]
fn without_a_server_there_is_no_platform() {
    let server = Server::start("absent", &[]);
    let output =
        Command::new("clinfo").env("OCL_ICD_VENDORS", &server.folder).env_remove("NEARMETAL_GPU_SERVER").output().expect("clinfo runs");
    assert!(String::from_utf8_lossy(&output.stdout).contains("Number of platforms                               0"), "{output:?}");
    let refused = server.run("tcp:127.0.0.1:1", &mut Command::new("clinfo"));
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(why.contains("can't open a session with the GPU server at tcp:127.0.0.1:1"), "{why}");
}
