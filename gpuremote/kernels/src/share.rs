//! What share of a device one client gets: launches of a fixed kernel per second, next to other clients that do the same.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::api::{Device, Error, Grid};
use crate::machine::Machine;
use crate::program;

const COMPUTE: usize = 1;
const GROUP: usize = 256;
const FACTOR: f32 = 0.999;

/// The kernel and how it is launched.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Load {
    /// How long to launch, in seconds.
    pub seconds: f64,
    /// When to begin, in seconds since 1970; `None` for at once. Clients that are to compete get the same time.
    pub at_unix_s: Option<f64>,
    /// Groups of 256 work-items.
    pub groups: usize,
    /// Dependent multiply-adds per work-item.
    pub rounds: i32,
    /// Launches that may be queued or running at a time.
    pub depth: usize,
}

impl Load {
    /// About one millisecond per launch on a GPU of 132 multiprocessors, which 1056 groups fill once.
    pub const DEFAULT: Load = Load { seconds: 10.0, at_unix_s: None, groups: 1056, rounds: 100_000, depth: 2 };
}

/// What completed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShareReport {
    /// The device's and the driver's name.
    pub device: String,
    /// The host, which older files lack.
    pub machine: Option<Machine>,
    /// The kernel and how it was launched.
    pub load: Load,
    /// How long after `at_unix_s` the first launch was, in seconds; setup takes place before.
    pub late_s: f64,
    /// Launches that completed within `load.seconds`.
    pub completed: u64,
    /// `completed` per second.
    pub per_second: f64,
    /// Launches that completed in each whole or last part of a second.
    pub by_second: Vec<u64>,
    /// The longest time between two completions, in seconds.
    pub longest_gap_s: f64,
}

/// Launches the kernel until `load.seconds` after its start.
pub fn run(device: &mut dyn Device, load: Load) -> Result<ShareReport, Error> {
    device.load(&program::MICRO)?;
    let sink = device.allocate(4)?;
    let grid = Grid::line(load.groups, GROUP);
    let arguments = [sink.into(), load.rounds.into(), FACTOR.into()];
    device.launch(COMPUTE, grid, &arguments)?;
    device.finish()?;

    let late_s = load.at_unix_s.map_or(0.0, wait_until);
    let start = Instant::now();
    let mut by_second = vec![0; load.seconds.ceil().max(1.0) as usize];
    let mut last_s = 0.0;
    let mut longest_gap_s: f64 = 0.0;
    let mut queued = VecDeque::new();
    loop {
        while queued.len() < load.depth {
            device.launch(COMPUTE, grid, &arguments)?;
            queued.push_back(device.mark()?);
        }
        if let Some(oldest) = queued.pop_front() {
            device.wait(oldest)?;
        }
        let now_s = start.elapsed().as_secs_f64();
        longest_gap_s = longest_gap_s.max(now_s - last_s);
        last_s = now_s;
        if now_s > load.seconds {
            break;
        }
        let last = by_second.len() - 1;
        by_second[(now_s as usize).min(last)] += 1;
    }
    for marker in queued {
        device.wait(marker)?;
    }
    device.free(sink)?;
    let completed: u64 = by_second.iter().sum();
    Ok(ShareReport {
        device: device.description(),
        machine: Machine::read(),
        load,
        late_s,
        completed,
        per_second: completed as f64 / load.seconds,
        by_second,
        longest_gap_s,
    })
}

/// Sleeps until `unix_s` and returns how many seconds too late that was.
fn wait_until(unix_s: f64) -> f64 {
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = unix_s - now.as_secs_f64();
        if left <= 0.0 {
            return -left;
        }
        std::thread::sleep(Duration::from_secs_f64(left.min(1.0)));
    }
}

impl std::fmt::Display for ShareReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.device)?;
        writeln!(
            f,
            "{} launches completed in {} s: {:.2} per second, longest gap {:.2} ms, first launch {:.2} ms after its time",
            self.completed,
            self.load.seconds,
            self.per_second,
            self.longest_gap_s * 1e3,
            self.late_s * 1e3
        )?;
        writeln!(f, "by second: {:?}", self.by_second)
    }
}
