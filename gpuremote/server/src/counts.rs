//! What clients have done, for whoever runs the server: how many calls, how many were waited for, and how long they took.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What one client has done so far. It lies in the table that clients share with the listener; times are in nanoseconds.
#[derive(Default)]
#[repr(C)]
pub struct Tally {
    calls: AtomicU64,
    waits: AtomicU64,
    busy: AtomicU64,
    /// The least time between an answer and the next call of its lane; 0: there was none.
    wait: AtomicU64,
}

impl Tally {
    /// Counts a call for whose answer nobody waits.
    pub fn call(&self) {
        self.calls.fetch_add(1, Relaxed);
    }

    /// Counts a call that was waited for, and how long the server worked on it.
    pub fn answered(&self, busy: Duration) {
        self.calls.fetch_add(1, Relaxed);
        self.waits.fetch_add(1, Relaxed);
        self.busy.fetch_add(nanoseconds(busy), Relaxed);
    }

    /// Notes how long it was from an answer to the next call.
    pub fn called_again(&self, after: Duration) {
        let after = nanoseconds(after).max(1);
        let _ = self.wait.fetch_update(Relaxed, Relaxed, |least| (least == 0 || after < least).then_some(after));
    }

    /// What it has come to.
    pub fn counts(&self) -> Counts {
        Counts {
            calls: self.calls.load(Relaxed),
            waits: self.waits.load(Relaxed),
            busy: self.busy.load(Relaxed),
            wait: self.wait.load(Relaxed),
        }
    }

    /// Forgets all, for the next client.
    pub fn clear(&self) {
        for number in [&self.calls, &self.waits, &self.busy, &self.wait] {
            number.store(0, Relaxed);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The sum of what clients have done. A client may have written anything into its tally, so sums end at what fits into a signed number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub calls: u64,
    pub waits: u64,
    pub busy: u64,
    pub wait: u64,
}

const MOST: u64 = i64::MAX as u64;

impl Counts {
    /// These and others.
    pub fn and(self, other: Counts) -> Counts {
        let sum = |a: u64, b: u64| a.saturating_add(b).min(MOST);
        let calls = sum(self.calls, other.calls);
        let wait = match (self.wait, other.wait) {
            (0, wait) | (wait, 0) => wait,
            (one, another) => one.min(another),
        };
        Counts { calls, waits: sum(self.waits, other.waits).min(calls), busy: sum(self.busy, other.busy), wait: wait.min(MOST) }
    }

    /// Reads what [`Counts::write`] wrote; what can't be read counts for nothing.
    pub fn read(path: &Path) -> Counts {
        let mut counts = Counts::default();
        for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
            let Some((name, number)) = line.split_once(' ').and_then(|(name, number)| Some((name, number.parse().ok()?))) else { continue };
            match name {
                "calls" => counts.calls = number,
                "waits" => counts.waits = number,
                "busy_ns" => counts.busy = number,
                "wait_ns" => counts.wait = number,
                _ => {}
            }
        }
        Counts::default().and(counts)
    }

    /// Writes them to a file, whole or not at all: lines of a name and a number.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = String::new();
        for (name, number) in [("calls", self.calls), ("waits", self.waits), ("busy_ns", self.busy), ("wait_ns", self.wait)] {
            let _ = writeln!(text, "{name} {number}");
        }
        let next = path.with_extension("next");
        std::fs::write(&next, text)?;
        std::fs::rename(&next, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_of_all_calls_and_go_on_from_a_file() {
        let tally = Tally::default();
        tally.call();
        tally.answered(Duration::from_nanos(500));
        tally.called_again(Duration::from_nanos(90));
        tally.called_again(Duration::from_nanos(70));
        tally.called_again(Duration::from_nanos(80));
        let counts = tally.counts();
        assert_eq!(counts, Counts { calls: 2, waits: 1, busy: 500, wait: 70 });
        let path = std::env::temp_dir().join(format!("gpuremote-counts-{}", std::process::id()));
        counts.write(&path).unwrap();
        assert_eq!(Counts::read(&path), counts);
        assert_eq!(counts.and(Counts { calls: 1, waits: 1, busy: 1, wait: 0 }), Counts { calls: 3, waits: 2, busy: 501, wait: 70 });
        tally.clear();
        assert_eq!(tally.counts().and(counts), counts);
        std::fs::write(&path, "calls many\nwaits 3\n\nbusy_ns 18446744073709551615\nx 1\n").unwrap();
        assert_eq!(Counts::read(&path), Counts { calls: 0, waits: 0, busy: MOST, wait: 0 });
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Counts::read(&path), Counts::default());
    }

    #[test]
    fn what_a_client_writes_into_its_tally_stays_within_bounds() {
        let wild = Counts { calls: u64::MAX, waits: u64::MAX, busy: u64::MAX, wait: u64::MAX };
        assert_eq!(wild.and(wild), Counts { calls: MOST, waits: MOST, busy: MOST, wait: MOST });
        assert_eq!(Counts::default().and(Counts { waits: 9, ..Counts::default() }).waits, 0, "no more waits than calls");
    }
}
