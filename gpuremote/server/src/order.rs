//! The order of a session's calls. Each has a ticket, and begins when all before it have begun and, unless they may take long, ended.
//!
//! A program whose threads wait for each other by its own means then finds its calls in the order in which it made them, as with a local driver.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// How often a lane looks for a ticket before it sleeps.
const SPINS: u32 = 2000;

/// The order of a session's calls.
#[derive(Default)]
pub struct Order {
    next: AtomicU64,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    moved: Condvar,
    closed: AtomicBool,
}

impl Order {
    /// Waits for a ticket's turn. False when it was already, or the session has ended.
    pub fn wait(&self, ticket: u64) -> bool {
        for _ in 0..SPINS {
            let next = self.next.load(Ordering::Acquire);
            if next >= ticket {
                return next == ticket;
            }
            std::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut guard = self.lock.lock().expect("no one panics with this lock");
        while self.next.load(Ordering::SeqCst) < ticket && !self.closed.load(Ordering::SeqCst) {
            guard = self.moved.wait_timeout(guard, Duration::from_millis(100)).expect("no one panics with this lock").0;
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.next.load(Ordering::SeqCst) == ticket
    }

    /// The next ticket's turn has come. Only who has the turn may call this.
    pub fn pass(&self) {
        self.next.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = self.lock.lock().expect("no one panics with this lock");
            self.moved.notify_all();
        }
    }

    /// No ticket's turn comes any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let _guard = self.lock.lock().expect("no one panics with this lock");
        self.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_have_their_turns_in_order() {
        let order = Order::default();
        let begun = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for lane in 0..4u64 {
                let (order, begun) = (&order, &begun);
                scope.spawn(move || {
                    for ticket in (lane..200).step_by(4) {
                        assert!(order.wait(ticket));
                        begun.lock().unwrap().push(ticket);
                        order.pass();
                    }
                });
            }
        });
        assert_eq!(*begun.lock().unwrap(), (0..200).collect::<Vec<_>>());
        assert!(!order.wait(3), "a ticket has one turn");
        order.close();
        assert!(!order.wait(1000), "a closed order has no more turns");
    }
}
