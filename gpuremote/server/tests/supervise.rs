//! A server that a supervisor keeps running.

use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// The only child of a process, once there is one and it is not that one.
fn child_of(process: &Child, other_than: Option<i32>) -> i32 {
    let file = format!("/proc/{0}/task/{0}/children", process.id());
    await_some("a listener", || {
        let child = std::fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        (Some(child) != other_than).then_some(child)
    })
}

fn await_some<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_listener_that_is_killed_is_started_again() {
    let socket = std::env::temp_dir().join(format!("gpuremote-supervise-{}", std::process::id()));
    let mut supervisor = Command::new(env!("CARGO_BIN_EXE_nearmetal-gpu-server"))
        .args(["--supervise", "--listen", &format!("unix:{}", socket.display())])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let listens = || UnixStream::connect(&socket).ok().map(drop);
    await_some("the first listener", listens);
    let mut last = None;
    for _ in 0..2 {
        let listener = child_of(&supervisor, last);
        // SAFETY: the process is the supervisor's child, which nobody else waits for.
        assert_eq!(unsafe { libc::kill(listener, libc::SIGKILL) }, 0);
        last = Some(listener);
        child_of(&supervisor, last);
        await_some("another listener", listens);
    }
    let listener = child_of(&supervisor, last);
    // SAFETY: the process is this test's child, which was not waited for.
    assert_eq!(unsafe { libc::kill(supervisor.id() as i32, libc::SIGTERM) }, 0);
    assert!(supervisor.wait().unwrap().success());
    // SAFETY: signal 0 touches nothing.
    await_some("the end of the listener", || (unsafe { libc::kill(listener, 0) } != 0).then_some(()));
    let _ = std::fs::remove_file(&socket);
}
