//! cuBLAS's front end, on a server with the fake driver and the fake cuBLAS.

use std::ffi::{c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use libloading::{Library, Symbol};

/// The parent's word to the part of this file that is a client.
const CLIENT: &str = "NEARMETAL_TEST_CLIENT";

/// Where Cargo puts what it builds.
fn built() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    executable.parent().unwrap().parent().unwrap().to_path_buf()
}

fn build() {
    static ONCE: Once = Once::new();
    ONCE.call_once(build_all);
}

fn build_all() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).arg("build").arg("--quiet");
    if built().ends_with("release") {
        cargo.arg("--release");
    }
    for package in ["gpuremote-server", "gpuremote-cuda", "gpuremote-cublas", "fakecuda", "fakecublas"] {
        cargo.args(["-p", package]);
    }
    assert!(cargo.status().unwrap().success());
}

/// A server that ends with its value.
struct Server(Child);

impl Server {
    fn start(address: &str, cublas: &Path) -> Self {
        let child = Command::new(built().join("nearmetal-gpu-server"))
            .args(["--listen", address])
            .arg("--cuda")
            .arg(built().join("libfakecuda.so"))
            .arg("--cublas")
            .arg(cublas)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Server(child)
    }

    /// Ends it, and returns what it has written to standard error.
    fn end(mut self) -> String {
        self.0.kill().unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut self.0.stderr.take().unwrap(), &mut text).unwrap();
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a client of this file with a server at this address: what the server and the client have written.
fn serve(address: &str, client: &str, cublas: &Path) -> (String, String) {
    build();
    let server = Server::start(address, cublas);
    wait_for(address);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["client", "--exact", "--nocapture"])
        .env(CLIENT, client)
        .env("NEARMETAL_GPU_SERVER", address)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    let server = server.end();
    assert!(output.status.success(), "{said}\n{server}");
    (server, said)
}

fn wait_for(address: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let answers = match address.split_once(':').unwrap() {
            ("unix", path) => std::os::unix::net::UnixStream::connect(path).is_ok(),
            (_, host) => std::net::TcpStream::connect(host).is_ok(),
        };
        if answers {
            return;
        }
        assert!(Instant::now() < deadline, "no server at {address}");
        std::thread::yield_now();
    }
}

fn unix() -> String {
    format!("unix:{}", std::env::temp_dir().join(format!("nearmetal-blas-{}.sock", std::process::id())).display())
}

#[test]
fn products_are_right_by_shared_memory() {
    serve(&unix(), "products", &built().join("libfakecublas.so"));
}

#[test]
fn products_are_right_by_tcp() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    serve(&format!("tcp:127.0.0.1:{port}"), "products", &built().join("libfakecublas.so"));
}

#[test]
fn a_missing_library_is_named_and_gives_a_status() {
    let (server, _) = serve(&(unix() + ".2"), "missing", Path::new("/nowhere/libcublas.so.13"));
    assert!(server.contains("can't load /nowhere/libcublas.so.13 as cublas"), "{server}");
}

/// Not a test by itself: what the tests run in a process of its own, whose libraries are the front ends.
#[test]
fn client() {
    match std::env::var(CLIENT).as_deref() {
        Ok("products") => products(),
        Ok("missing") => missing(),
        _ => {}
    }
}

/// The front ends, loaded as programs load them.
struct Fronts {
    cuda: Library,
    cublas: Library,
}

macro_rules! call {
    ($library:expr, $name:literal, $($type:ty: $argument:expr),* $(,)?) => {{
        let function: Symbol<unsafe extern "C" fn($($type),*) -> i32> = unsafe { $library.get($name.as_bytes()) }.unwrap();
        unsafe { function($($argument),*) }
    }};
}

macro_rules! ok {
    ($library:expr, $name:literal, $($rest:tt)*) => { assert_eq!(call!($library, $name, $($rest)*), 0, $name) };
}

impl Fronts {
    fn load() -> Self {
        let cuda = unsafe { Library::new(built().join("libcuda.so")) }.unwrap();
        let cublas = unsafe { Library::new(built().join("libcublas.so")) }.unwrap();
        ok!(cuda, "cuInit", u32: 0);
        let mut context = 0;
        ok!(cuda, "cuCtxCreate_v2", *mut u64: &mut context, u32: 0, i32: 0);
        Fronts { cuda, cublas }
    }

    fn device(&self, values: &[f32]) -> u64 {
        let mut address = 0;
        ok!(self.cuda, "cuMemAlloc_v2", *mut u64: &mut address, usize: size_of_val(values));
        ok!(self.cuda, "cuMemcpyHtoD_v2", u64: address, *const c_void: values.as_ptr().cast(), usize: size_of_val(values));
        address
    }

    fn host(&self, address: u64, count: usize) -> Vec<f32> {
        let mut values = vec![0.0; count];
        ok!(self.cuda, "cuMemcpyDtoH_v2", *mut c_void: values.as_mut_ptr().cast(), u64: address, usize: count * 4);
        values
    }
}

/// Columns of A (2 x 3) and B (3 x 2), one after another, and their product.
const A: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
const B: [f32; 6] = [1.0, 0.5, -1.0, 2.0, 1.0, 0.0];
const PRODUCT: [f32; 4] = [-2.5, -2.0, 5.0, 8.0];

fn sgemm(fronts: &Fronts, handle: u64, alpha: *const f32, beta: *const f32, lda: i32, (a, b, c): (u64, u64, u64)) -> i32 {
    call!(
        fronts.cublas, "cublasSgemm_v2",
        u64: handle, i32: 0, i32: 0, i32: 2, i32: 2, i32: 3,
        *const f32: alpha, u64: a, i32: lda, u64: b, i32: 3, *const f32: beta, u64: c, i32: 2
    )
}

fn products() {
    let fronts = Fronts::load();
    let (mut handle, mut stream) = (0, 0);
    ok!(fronts.cublas, "cublasCreate_v2", *mut u64: &mut handle);
    ok!(fronts.cuda, "cuStreamCreate", *mut u64: &mut stream, u32: 1);
    ok!(fronts.cublas, "cublasSetStream_v2", u64: handle, u64: stream);
    let memory = (fronts.device(&A), fronts.device(&B), fronts.device(&[1.0; 4]));

    assert_eq!(sgemm(&fronts, handle, &2.0, &1.0, 2, memory), 0);
    assert_eq!(fronts.host(memory.2, 4), PRODUCT.map(|value| 2.0 * value + 1.0));
    let mut dot = 0.0;
    ok!(fronts.cublas, "cublasSdot_v2", u64: handle, i32: 6, u64: memory.0, i32: 1, u64: memory.1, i32: 1, *mut f32: &mut dot);
    assert_eq!(dot, 12.0);

    ok!(fronts.cublas, "cublasSetPointerMode_v2", u64: handle, i32: 1);
    let scalars = fronts.device(&[1.0, 0.0, 0.0]);
    assert_eq!(sgemm(&fronts, handle, scalars as *const f32, (scalars + 4) as *const f32, 2, memory), 0);
    assert_eq!(fronts.host(memory.2, 4), PRODUCT);
    ok!(fronts.cublas, "cublasSdot_v2", u64: handle, i32: 3, u64: memory.0, i32: 2, u64: memory.1, i32: 1, *mut f32: (scalars + 8) as *mut f32);
    assert_eq!(fronts.host(scalars, 3)[2], 1.0 + 1.5 - 5.0);

    failures(&fronts, handle, memory);
    ok!(fronts.cublas, "cublasDestroy_v2", u64: handle);
    for none in [0, 0x1234] {
        assert_eq!(sgemm(&fronts, none, &1.0, &0.0, 2, memory), 1, "{none} is no handle");
    }
}

/// What nobody waits for is told later: as it is by the library itself, and as a failed launch by the driver.
fn failures(fronts: &Fronts, handle: u64, memory: (u64, u64, u64)) {
    ok!(fronts.cublas, "cublasSetPointerMode_v2", u64: handle, i32: 0);
    assert_eq!(sgemm(fronts, handle, &1.0, &0.0, 1, memory), 0);
    let mut dot = 0.0;
    let status =
        call!(fronts.cublas, "cublasSdot_v2", u64: handle, i32: 6, u64: memory.0, i32: 1, u64: memory.1, i32: 1, *mut f32: &mut dot);
    assert_eq!((status, dot), (7, 12.0), "the leading dimension was too small");
    assert_eq!(sgemm(fronts, handle, &1.0, &0.0, 1, memory), 0);
    assert_eq!(call!(fronts.cuda, "cuCtxSynchronize",), 719);
    assert_eq!(call!(fronts.cuda, "cuCtxSynchronize",), 0);
}

fn missing() {
    let fronts = Fronts::load();
    let mut handle = 0;
    assert_eq!(call!(fronts.cublas, "cublasCreate_v2", *mut u64: &mut handle), 1);
    assert_eq!(handle, 0);
}

#[test]
fn unknown_functions_of_the_library_are_refused_by_name() {
    build();
    let library = unsafe { Library::new(built().join("libcublas.so")) }.unwrap();
    let refused: Symbol<unsafe extern "C" fn() -> *const c_char> = unsafe { library.get(b"cublasXtCreate") }.unwrap();
    assert_eq!(unsafe { refused() } as i32, 15);
}
