//! Calls that nobody waits for are gathered, so that many travel in one packet. A thread sends what no caller has sent by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::lane::ClientLane;

/// How long calls may wait for company: longer than it takes to write the next call, far shorter than a round trip between hosts and back.
const GATHER: Duration = Duration::from_micros(20);
/// How many times in a row there must be nothing to send before the thread sleeps until it is needed.
const IDLE_LOOKS: u32 = 50;

#[derive(Default)]
struct Shared {
    lanes: Mutex<Vec<Weak<Mutex<ClientLane>>>>,
    sleeps: AtomicBool,
}

/// The thread, which ends with the process.
pub(crate) struct Flusher {
    shared: Arc<Shared>,
    thread: Thread,
}

impl Flusher {
    pub(crate) fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let handle = thread::Builder::new().name("gpu-flusher".into()).spawn(move || run(&of_thread))?;
        Ok(Flusher { shared, thread: handle.thread().clone() })
    }

    pub(crate) fn add(&self, lane: &Arc<Mutex<ClientLane>>) {
        let mut lanes = self.shared.lanes.lock().expect("no one panics with this lock");
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(lane));
    }

    /// There is something to send.
    pub(crate) fn nudge(&self) {
        if self.shared.sleeps.load(Ordering::SeqCst) && self.shared.sleeps.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

fn run(shared: &Shared) {
    let mut idle = 0;
    loop {
        if flush(shared) {
            idle = 0;
        } else {
            idle += 1;
        }
        if idle < IDLE_LOOKS {
            thread::sleep(GATHER);
            continue;
        }
        shared.sleeps.store(true, Ordering::SeqCst);
        // What was put before the thread said that it sleeps had nobody to nudge.
        if flush(shared) {
            shared.sleeps.store(false, Ordering::SeqCst);
        }
        while shared.sleeps.load(Ordering::SeqCst) {
            thread::park();
        }
        idle = 0;
    }
}

fn flush(shared: &Shared) -> bool {
    let mut sent = false;
    let lanes: Vec<_> = shared.lanes.lock().expect("no one panics with this lock").iter().filter_map(Weak::upgrade).collect();
    for lane in lanes {
        // Whoever holds the lane sends it on by itself, or will soon have put more.
        let Ok(mut lane) = lane.try_lock() else {
            sent = true;
            continue;
        };
        if lane.data().unsent() > 0 {
            sent = true;
            // The lane's next user meets the same error, and tells it.
            let _ = lane.flush();
        }
    }
    sent
}
