//! Programs use CUDA's driver API of a server, through shared memory and by TCP, on the fake driver.

#![allow(clippy::macro_metavars_in_unsafe)] // The macro is for these programs alone.

#[path = "cuda/graphs.rs"]
mod graphs;
#[path = "cuda/launches.rs"]
mod launches;
#[path = "cuda/memory.rs"]
mod memory;
mod support;

use std::ffi::c_void;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;

use support::driver::Driver;
use support::{lives, program, role, wait, Proxy, Server};

/// CUDA_ERROR_DEVICE_UNAVAILABLE: what programs get when the server is lost.
const LOST: i32 = 46;
const OUT_OF_MEMORY: i32 = 2;
const INVALID_HANDLE: i32 = 400;

fn pointer<T>(value: &T) -> *const c_void {
    (value as *const T).cast()
}

/// Runs the test's program by shared memory, by TCP, and by TCP with stripes.
fn by_all_ways(server: &Server, test: &str) {
    for (address, stripes) in [(&server.unix, "1"), (&server.tcp, "1"), (&server.tcp, "3")] {
        let mut child = program(test, "program", address).env("NEARMETAL_GPU_STREAMS", stripes).spawn().unwrap();
        assert!(wait(&mut child).success(), "{test} by {address} with {stripes} stripes");
    }
    server.wait_until_idle();
}

#[test]
fn programs_compute_on_the_server() {
    if role().is_none() {
        return by_all_ways(&Server::start(&[]), "programs_compute_on_the_server");
    }
    let driver = Driver::open();
    driver.begin().unwrap();
    let (add, scale) = (driver.program("vector_add"), driver.program("scale"));
    // From one value to more than the rings hold, and not a multiple of anything.
    for count in [1usize, 1000, 16 << 10, 300_001, 5_000_003] {
        let values: Vec<f32> = (0..count).map(|i| (i % 4099) as f32).collect();
        let [a, b, sum] = [(); 3].map(|()| driver.allocate(4 * count));
        driver.write(a, &values);
        driver.write(b, &values);
        let n = count as u32;
        assert_eq!(driver.launch(add, count, 0, &[pointer(&sum), pointer(&a), pointer(&b), pointer(&n)]), 0);
        assert_eq!(driver.launch(scale, count, 0, &[pointer(&sum), pointer(&3f32), pointer(&n)]), 0);
        let result = driver.read(sum, count);
        assert!(result.iter().zip(&values).all(|(r, v)| *r == 6.0 * v), "{count} values");
        for address in [a, b, sum] {
            assert_eq!(cuda!(driver, cuMemFree_v2(address => u64)), 0);
        }
    }
}

#[test]
fn pinned_memory_streams_and_events_work() {
    if role().is_none() {
        return by_all_ways(&Server::start(&[]), "pinned_memory_streams_and_events_work");
    }
    const COUNT: usize = 70_000;
    let driver = Driver::open();
    driver.begin().unwrap();
    let increment = driver.program("increment");
    let spin = driver.program("spin");
    let (mut stream, mut begin, mut end) = (0u64, 0u64, 0u64);
    assert_eq!(cuda!(driver, cuStreamCreate(&mut stream => *mut u64, 1 => u32)), 0);
    assert_eq!(cuda!(driver, cuEventCreate(&mut begin => *mut u64, 0 => u32)), 0);
    assert_eq!(cuda!(driver, cuEventCreate(&mut end => *mut u64, 0 => u32)), 0);
    let mut pinned: *mut u32 = std::ptr::null_mut();
    assert_eq!(cuda!(driver, cuMemHostAlloc(&mut pinned => *mut *mut u32, 4 * COUNT => usize, 0 => u32)), 0);
    let pinned = unsafe { std::slice::from_raw_parts_mut(pinned, COUNT) };
    let device = driver.allocate(4 * COUNT);
    for round in 0..5u32 {
        for (i, value) in pinned.iter_mut().enumerate() {
            *value = i as u32 + round;
        }
        let n = COUNT as u32;
        assert_eq!(cuda!(driver, cuEventRecord(begin => u64, stream => u64)), 0);
        let copied = cuda!(driver, cuMemcpyHtoDAsync_v2(device => u64, pinned.as_ptr() => *const u32, 4 * COUNT => usize, stream => u64));
        assert_eq!(copied, 0);
        assert_eq!(driver.launch(spin, 1, stream, &[pointer(&2000u32)]), 0);
        assert_eq!(driver.launch(increment, COUNT, stream, &[pointer(&device), pointer(&n)]), 0);
        let back = cuda!(driver, cuMemcpyDtoHAsync_v2(pinned.as_mut_ptr() => *mut u32, device => u64, 4 * COUNT => usize, stream => u64));
        assert_eq!(back, 0);
        assert_eq!(cuda!(driver, cuEventRecord(end => u64, stream => u64)), 0);
        assert_eq!(cuda!(driver, cuEventSynchronize(end => u64)), 0);
        assert!(pinned.iter().enumerate().all(|(i, value)| *value == i as u32 + round + 1), "round {round}");
        let mut milliseconds = 0f32;
        assert_eq!(cuda!(driver, cuEventElapsedTime(&mut milliseconds => *mut f32, begin => u64, end => u64)), 0);
        assert!(milliseconds >= 2.0, "2 ms were spent between the events, {milliseconds} ms were measured");
    }
    assert_eq!(cuda!(driver, cuMemFreeHost(pinned.as_mut_ptr() => *mut u32)), 0);
    assert_eq!(cuda!(driver, cuStreamDestroy_v2(stream => u64)), 0);
}

/// What one thread has asked for is done before what another asks for afterwards, whether or not the first waits for replies.
#[test]
fn calls_of_threads_keep_their_order() {
    if role().is_none() {
        return by_all_ways(&Server::start(&[]), "calls_of_threads_keep_their_order");
    }
    const COUNT: usize = 20_000;
    let driver = Driver::open();
    driver.begin().unwrap();
    let scale = driver.program("scale");
    let x = driver.allocate(4 * COUNT);
    let mut context = 0u64;
    assert_eq!(cuda!(driver, cuCtxGetCurrent(&mut context => *mut u64)), 0);
    thread::scope(|scope| {
        let (ask, asked) = mpsc::channel::<()>();
        let (done, finished) = mpsc::channel::<()>();
        let driver = &driver;
        scope.spawn(move || {
            let mut current = 1;
            assert_eq!(cuda!(driver, cuCtxGetCurrent(&mut current => *mut u64)), 0);
            assert_eq!(current, 0, "a new thread has no context");
            assert_eq!(cuda!(driver, cuCtxSetCurrent(context => u64)), 0);
            while asked.recv().is_ok() {
                assert_eq!(driver.launch(scale, COUNT, 0, &[pointer(&x), pointer(&2f32), pointer(&(COUNT as u32))]), 0);
                done.send(()).unwrap();
            }
        });
        for round in 0..50 {
            driver.write(x, &vec![round as f32; COUNT]);
            ask.send(()).unwrap();
            finished.recv().unwrap();
            assert!(driver.read(x, COUNT).iter().all(|value| *value == 2.0 * round as f32), "round {round}");
        }
        drop(ask);
    });
}

#[test]
fn mistakes_get_the_apis_own_errors() {
    if role().is_none() {
        return by_all_ways(&Server::start(&["--memory-mib", "64"]), "mistakes_get_the_apis_own_errors");
    }
    let driver = Driver::open();
    driver.begin().unwrap();
    let (mut free, mut total) = (0usize, 0usize);
    assert_eq!(cuda!(driver, cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize)), 0);
    assert_eq!((free, total), (64 << 20, 64 << 20), "the client's bound is all the memory that it sees");
    let held = driver.allocate(60 << 20);
    let mut address = 0u64;
    assert_eq!(cuda!(driver, cuMemAlloc_v2(&mut address => *mut u64, 5usize << 20 => usize)), OUT_OF_MEMORY);
    assert_eq!(cuda!(driver, cuMemFree_v2(held => u64)), 0);
    let again = driver.allocate(64 << 20);
    assert_ne!(cuda!(driver, cuMemFree_v2(again + 8 => u64)), 0, "an address amid an allocation");

    let mut stream = 0u64;
    assert_eq!(cuda!(driver, cuStreamCreate(&mut stream => *mut u64, 0 => u32)), 0);
    assert_eq!(cuda!(driver, cuStreamDestroy_v2(stream => u64)), 0);
    assert_eq!(cuda!(driver, cuStreamSynchronize(stream => u64)), INVALID_HANDLE, "a stream that is destroyed");
    assert_eq!(cuda!(driver, cuStreamSynchronize(0x1234_5678 => u64)), INVALID_HANDLE, "what was never a stream");
    assert_eq!(cuda!(driver, cuMipmappedArrayDestroy()), 801, "a function that remote GPUs lack");

    let fail = driver.program("fail");
    assert_eq!(driver.launch(fail, 1, 0, &[]), 0, "nobody waits for a launch");
    assert_ne!(cuda!(driver, cuCtxSynchronize()), 0, "its failure is told later");
}

/// All data goes to the server and comes from it, and no driver is found by the program itself.
#[test]
fn all_data_is_on_the_wire() {
    const COUNT: usize = 1_000_000;
    if role().is_none() {
        let server = Server::start(&[]);
        let proxy = Proxy::before(&server.tcp);
        let mut child = program("all_data_is_on_the_wire", "program", &proxy.address).spawn().unwrap();
        assert!(wait(&mut child).success());
        for (direction, count) in [("to the server", &proxy.to_server), ("to the client", &proxy.to_client)] {
            let bytes = count.load(Ordering::SeqCst);
            assert!((4_000_000..4_100_000).contains(&bytes), "{bytes} bytes {direction} for data of 4,000,000");
        }
        assert!(server.driver_log().contains("cuLaunchKernel"), "the server's driver has seen the launch");
        return;
    }
    let driver = Driver::open();
    driver.begin().unwrap();
    let scale = driver.program("scale");
    let x = driver.allocate(4 * COUNT);
    driver.write(x, &vec![1.5; COUNT]);
    assert_eq!(driver.launch(scale, COUNT, 0, &[pointer(&x), pointer(&2f32), pointer(&(COUNT as u32))]), 0);
    assert!(driver.read(x, COUNT).iter().all(|value| *value == 3.0));
}

/// A network that is cut amid a copy, and a server process that is killed amid a program, end in an error of the API.
#[test]
fn a_lost_server_is_an_error_not_a_hang() {
    match role().as_deref() {
        None => {
            let server = Server::start(&[]);
            let proxy = Proxy::before(&server.tcp);
            proxy.cut_after.store(6_000_000, Ordering::SeqCst);
            let mut child = program("a_lost_server_is_an_error_not_a_hang", "copy", &proxy.address).spawn().unwrap();
            assert!(wait(&mut child).success(), "cut amid a copy");
            server.wait_until_idle();
            for address in [&server.unix, &server.tcp] {
                let mut child = program("a_lost_server_is_an_error_not_a_hang", "spin", address).spawn().unwrap();
                let begun = std::time::Instant::now();
                while !server.driver_log().contains("cuLaunchKernel") {
                    assert!(begun.elapsed() < support::PATIENCE, "the launch does not arrive");
                    thread::yield_now();
                }
                for worker in server.workers() {
                    unsafe { libc::kill(worker, libc::SIGKILL) };
                }
                assert!(wait(&mut child).success(), "killed amid a program, by {address}");
                server.wait_until_idle();
                std::fs::write(server.scratch.0.join("log"), "").unwrap();
            }
        }
        Some("copy") => {
            let driver = Driver::open();
            driver.begin().unwrap();
            let x = driver.allocate(20_000_000);
            let data = vec![1u8; 20_000_000];
            let status = cuda!(driver, cuMemcpyHtoD_v2(x => u64, data.as_ptr() => *const u8, data.len() => usize));
            let after = cuda!(driver, cuCtxSynchronize());
            assert!(status == LOST || status == 0, "{status}");
            assert_eq!(after, LOST);
            assert_eq!(cuda!(driver, cuCtxSynchronize()), LOST, "it stays lost");
        }
        Some(_) => {
            let driver = Driver::open();
            driver.begin().unwrap();
            let spin = driver.program("spin");
            assert_eq!(driver.launch(spin, 1, 0, &[pointer(&30_000_000u32)]), 0);
            assert_eq!(cuda!(driver, cuCtxSynchronize()), LOST);
        }
    }
}

/// A client that is killed leaves nothing, and another one does not notice.
#[test]
fn a_killed_client_leaves_nothing() {
    match role().as_deref() {
        None => {
            let server = Server::start(&["--memory-mib", "200"]);
            for address in [&server.unix, &server.tcp] {
                let mut other = program("a_killed_client_leaves_nothing", "works", address).spawn().unwrap();
                let mut client = program("a_killed_client_leaves_nothing", "copies", address).spawn().unwrap();
                let begun = std::time::Instant::now();
                while server.driver_log().matches("cuMemcpyHtoDAsync_v2").count() < 20 {
                    assert!(begun.elapsed() < support::PATIENCE, "no copies arrive");
                    thread::yield_now();
                }
                let workers = server.workers();
                client.kill().unwrap();
                client.wait().unwrap();
                assert!(wait(&mut other).success(), "the other client, by {address}");
                server.wait_until_idle();
                assert!(!workers.is_empty() && workers.iter().all(|worker| !lives(*worker)));
                std::fs::write(server.scratch.0.join("log"), "").unwrap();
            }
        }
        Some("copies") => {
            let driver = Driver::open();
            driver.begin().unwrap();
            let x = driver.allocate(100 << 20);
            loop {
                driver.write(x, &vec![1.0; 10 << 20]);
            }
        }
        Some(_) => {
            let driver = Driver::open();
            driver.begin().unwrap();
            let increment = driver.program("increment");
            let x = driver.allocate(4 * 1000);
            assert_eq!(cuda!(driver, cuMemsetD32_v2(x => u64, 0 => u32, 1000 => usize)), 0);
            for _ in 0..2000 {
                assert_eq!(driver.launch(increment, 1000, 0, &[pointer(&x), pointer(&1000u32)]), 0);
            }
            let values = driver.read(x, 1000);
            assert!(values.iter().all(|value| value.to_bits() == 2000));
        }
    }
}

/// Streams call functions of the program, in their order, and wait for them.
#[test]
fn streams_call_the_programs_functions() {
    if role().is_none() {
        return by_all_ways(&Server::start(&[]), "streams_call_the_programs_functions");
    }
    unsafe extern "C" fn note(data: *mut c_void) {
        let order = &*data.cast::<std::sync::Mutex<Vec<u32>>>();
        let mut order = order.lock().unwrap();
        let next = order.len() as u32;
        order.push(next);
    }
    let driver = Driver::open();
    driver.begin().unwrap();
    let mut stream = 0u64;
    assert_eq!(cuda!(driver, cuStreamCreate(&mut stream => *mut u64, 1 => u32)), 0);
    let order = std::sync::Mutex::new(Vec::<u32>::new());
    for _ in 0..10 {
        let called =
            cuda!(driver, cuLaunchHostFunc(stream => u64, note => unsafe extern "C" fn(*mut c_void), pointer(&order) => *const c_void));
        assert_eq!(called, 0);
    }
    assert_eq!(cuda!(driver, cuStreamSynchronize(stream => u64)), 0);
    assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
}

/// Whoever has no token, and whoever speaks nonsense, is turned away; the server and its clients go on.
#[test]
fn strangers_are_turned_away() {
    if role().is_some() {
        let driver = Driver::open();
        let expected = std::env::var("GPUREMOTE_EXPECTED").unwrap().parse().unwrap();
        assert_eq!(driver.begin().err().unwrap_or(0), expected);
        return;
    }
    let folder = support::Scratch::new();
    let [token, wrong] = ["1f", "2e"].map(|byte| {
        let path = folder.0.join(byte);
        std::fs::write(&path, format!("{}\n", byte.repeat(32))).unwrap();
        path
    });
    let server = Server::start(&["--token-file", token.to_str().unwrap()]);
    let try_with = |address: &str, file: Option<&std::path::Path>, expected: i32| {
        let mut command = program("strangers_are_turned_away", "program", address);
        command.env("GPUREMOTE_EXPECTED", expected.to_string());
        if let Some(file) = file {
            command.env("NEARMETAL_GPU_TOKEN_FILE", file);
        }
        assert!(wait(&mut command.spawn().unwrap()).success(), "{address} {file:?}");
    };
    let host = server.tcp.strip_prefix("tcp:").unwrap();
    for address in [&server.unix, &server.tcp] {
        try_with(address, Some(&wrong), LOST);
        try_with(address, None, LOST);
        for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 200], b"NMGP"] {
            TcpStream::connect(host).unwrap().write_all(nonsense).unwrap();
        }
        try_with(address, Some(&token), 0);
    }
    server.wait_until_idle();
}

/// No more clients than the operator allows; when one leaves, another may come.
#[test]
fn clients_are_bounded() {
    const TEST: &str = "clients_are_bounded";
    if let Some(role) = role() {
        let driver = Driver::open();
        let begun = driver.begin();
        if role == "one too many" {
            assert_eq!(begun, Err(LOST));
            return;
        }
        begun.unwrap();
        if role == "holds" {
            // The test ends this program when it has seen what it wants.
            std::fs::write(std::env::var("GPUREMOTE_BEGUN").unwrap(), "").unwrap();
            thread::park_timeout(support::PATIENCE);
        }
        return;
    }
    let server = Server::start(&["--clients", "1"]);
    let begun = server.scratch.0.join("begun");
    let mut first = program(TEST, "holds", &server.unix).env("GPUREMOTE_BEGUN", &begun).spawn().unwrap();
    let since = std::time::Instant::now();
    while !begun.exists() {
        assert!(since.elapsed() < support::PATIENCE, "the first client does not begin");
        thread::yield_now();
    }
    assert!(wait(&mut program(TEST, "one too many", &server.tcp).spawn().unwrap()).success());
    first.kill().unwrap();
    first.wait().unwrap();
    // The listener hears of the end of a client's process a moment after that has ended.
    while !wait(&mut program(TEST, "works", &server.tcp).spawn().unwrap()).success() {
        assert!(since.elapsed() < support::PATIENCE, "nobody may come after the first client has left");
    }
}

/// The server tells in a file what clients did, also of those that have ended, and goes on from there when it is started again.
#[test]
fn what_clients_did_is_told_in_a_file() {
    const TEST: &str = "what_clients_did_is_told_in_a_file";
    if role().is_some() {
        let driver = Driver::open();
        driver.begin().unwrap();
        let address = driver.allocate(4);
        driver.write(address, &[1f32]);
        for _ in 0..20 {
            assert_eq!(driver.read(address, 1), [1f32]);
        }
        return;
    }
    let folder = support::Scratch::new();
    let file = folder.0.join("counts");
    let flags = ["--memory-mib", "64", "--memory-together", "--counts", file.to_str().unwrap()];
    let number = |name: &str| -> u64 {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok()).next().unwrap_or(0)
    };
    let mut before = 0;
    for _ in 0..2 {
        let server = Server::start(&flags);
        let since = std::time::Instant::now();
        for address in [&server.unix, &server.tcp] {
            assert!(wait(&mut program(TEST, "program", address).spawn().unwrap()).success());
            let wanted = before + 20;
            while number("waits ") < wanted {
                assert!(since.elapsed() < support::PATIENCE, "{} calls were waited for, want {wanted}", number("waits "));
                thread::yield_now();
            }
            before = number("waits ");
        }
        assert!(number("calls ") > before, "{} calls, of which {before} were waited for", number("calls "));
        assert!(number("busy_ns ") > 0 && number("wait_ns ") > 0);
    }
}
