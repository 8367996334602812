//! The supervisor: it keeps a listener running, and is the first process of a container, where it takes in what others leave.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A listener that ran for so long is started at once when it ends.
const SETTLED: Duration = Duration::from_secs(10);
/// The pauses between others.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

static ASKED_TO_END: AtomicBool = AtomicBool::new(false);

extern "C" fn note_end(_: libc::c_int) {
    ASKED_TO_END.store(true, Ordering::SeqCst);
}

/// Runs listeners with these arguments, one after the other, until it is asked to end.
pub fn run(arguments: Vec<String>) -> Result<(), String> {
    let arguments: Vec<String> = arguments.into_iter().filter(|argument| argument != "--supervise").collect();
    // SAFETY: the handler stores a flag. Without SA_RESTART, it ends a wait.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note_end as *const () as usize;
        libc::sigaction(libc::SIGTERM, &action, std::ptr::null_mut());
        libc::sigaction(libc::SIGINT, &action, std::ptr::null_mut());
    }
    let mut pause = FIRST_PAUSE;
    while !ASKED_TO_END.load(Ordering::SeqCst) {
        let started = Instant::now();
        let listener =
            Command::new("/proc/self/exe").args(&arguments).spawn().map_err(|error| format!("can't start a listener: {error}"))?;
        let id = listener.id() as libc::pid_t;
        await_end(id);
        if ASKED_TO_END.load(Ordering::SeqCst) {
            // SAFETY: the process is a child that was not waited for, unless it has ended by itself.
            unsafe { libc::kill(id, libc::SIGKILL) };
            break;
        }
        eprintln!("nearmetal-gpu-server: the listener ended, and is started again");
        pause = if started.elapsed() >= SETTLED { FIRST_PAUSE } else { pause };
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Ok(())
}

/// Waits for the end of the listener, or of this process, and takes in all other children: what a listener left.
fn await_end(listener: libc::pid_t) {
    loop {
        let mut status = 0;
        // SAFETY: the status is this function's own.
        let ended = unsafe { libc::waitpid(-1, &mut status, 0) };
        if ended == listener || ended < 0 && (ASKED_TO_END.load(Ordering::SeqCst) || errno() == libc::ECHILD) {
            return;
        }
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
