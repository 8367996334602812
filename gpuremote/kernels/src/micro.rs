//! The cost of single API calls and of copies, next to what the host alone can do.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::api::{Buffer, Device, Error, Grid};
use crate::machine::Machine;
use crate::measure::Spread;
use crate::program;

pub mod host;

const EMPTY: usize = 0;
/// Samples of a call's latency, and how many calls precede them.
const CALLS: usize = 1000;
const WARM_UP: usize = 50;
/// Launches in a row, and how often this is measured.
const LAUNCHES: usize = 1000;
const BURSTS: usize = 20;

/// Sizes of copies in bytes, each with the number of samples.
pub const COPIES: [(usize, usize); 5] = [(4 << 10, 500), (64 << 10, 300), (1 << 20, 100), (16 << 20, 20), (256 << 20, 5)];

/// All samples of one quantity.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    /// What was measured.
    pub name: String,
    /// Bytes moved per sample; 0 for a latency.
    pub bytes: u64,
    /// Median and range in seconds.
    pub spread_s: Spread,
    /// Samples in seconds, in the order of measurement.
    pub samples_s: Vec<f64>,
}

impl Series {
    fn new(name: impl Into<String>, bytes: usize, samples_s: Vec<f64>) -> Self {
        Self { name: name.into(), bytes: bytes as u64, spread_s: Spread::of(samples_s.iter().copied()), samples_s }
    }
}

/// All measurements of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MicroReport {
    /// The device's and the driver's name.
    pub device: String,
    /// The host, which older files lack.
    pub machine: Option<Machine>,
    /// Calls that wait for an answer, and others timed alone.
    pub latencies: Vec<Series>,
    /// Launches of an empty kernel in a row, in seconds per launch.
    pub launches: Vec<Series>,
    /// Copies between host and device.
    pub copies: Vec<Series>,
    /// What the host does without a device.
    pub host: Vec<Series>,
}

/// Measures through `device`, then the host's own baselines. Copies take the sizes up to `largest_copy_bytes`.
pub fn run(device: &mut dyn Device, largest_copy_bytes: usize) -> Result<MicroReport, Box<dyn std::error::Error>> {
    device.load(&program::MICRO)?;
    let sizes: Vec<(usize, usize)> = COPIES.into_iter().filter(|(bytes, _)| *bytes <= largest_copy_bytes).collect();
    Ok(MicroReport {
        latencies: latencies(device)?,
        launches: launches(device)?,
        copies: copies(device, &sizes)?,
        host: host::baselines(&sizes)?,
        device: device.description(),
        machine: Machine::read(),
    })
}

/// Returns `count` samples of a step's seconds after `warm_up` unmeasured ones.
fn sample<E>(warm_up: usize, count: usize, mut step: impl FnMut() -> Result<(), E>) -> Result<Vec<f64>, E> {
    for _ in 0..warm_up {
        step()?;
    }
    (0..count)
        .map(|_| {
            let start = Instant::now();
            step()?;
            Ok(start.elapsed().as_secs_f64())
        })
        .collect()
}

fn latencies(device: &mut dyn Device) -> Result<Vec<Series>, Error> {
    let buffer = device.allocate(4)?;
    let mut word = [0u8; 4];
    device.write(buffer, &word)?;
    let read = sample(WARM_UP, CALLS, || device.read(buffer, &mut word))?;
    let write = sample(WARM_UP, CALLS, || device.write(buffer, &[0; 4]))?;
    device.finish()?;
    let finish = sample(WARM_UP, CALLS, || device.finish())?;
    let poll = sample(WARM_UP, CALLS, || device.poll())?;
    let launch = sample(WARM_UP, CALLS, || {
        device.launch(EMPTY, Grid::line(1, 1), &[buffer.into()])?;
        device.finish()
    })?;
    let allocate = sample(WARM_UP, CALLS / 10, || {
        let scratch = device.allocate(1 << 20)?;
        device.free(scratch)
    })?;
    device.free(buffer)?;
    Ok(vec![
        Series::new("read of 4 bytes", 0, read),
        Series::new("write of 4 bytes", 0, write),
        Series::new("finish of an idle queue", 0, finish),
        Series::new("poll of an idle queue", 0, poll),
        Series::new("launch of an empty kernel and finish", 0, launch),
        Series::new("allocation of 1 MiB and free", 0, allocate),
    ])
}

fn launches(device: &mut dyn Device) -> Result<Vec<Series>, Error> {
    let buffer = device.allocate(4)?;
    let mut submitted = Vec::with_capacity(BURSTS);
    let mut finished = Vec::with_capacity(BURSTS);
    for burst in 0..=BURSTS {
        let start = Instant::now();
        for _ in 0..LAUNCHES {
            device.launch(EMPTY, Grid::line(1, 1), &[buffer.into()])?;
        }
        let submitted_s = start.elapsed().as_secs_f64();
        device.finish()?;
        let finished_s = start.elapsed().as_secs_f64();
        // The first burst warms up.
        if burst > 0 {
            submitted.push(submitted_s / LAUNCHES as f64);
            finished.push(finished_s / LAUNCHES as f64);
        }
    }
    device.free(buffer)?;
    Ok(vec![
        Series::new("each of 1000 launches, until submitted", 0, submitted),
        Series::new("each of 1000 launches, until finished", 0, finished),
    ])
}

fn copies(device: &mut dyn Device, sizes: &[(usize, usize)]) -> Result<Vec<Series>, Error> {
    let mut series = Vec::new();
    for &(bytes, samples) in sizes {
        let buffer = device.allocate(bytes)?;
        // Written pages, since a fresh page costs a fault at its first use.
        let mut pageable = vec![1u8; bytes];
        copies_of(device, buffer, &mut pageable, "pageable", samples, &mut series)?;
        if let Some(mut pinned) = device.allocate_pinned(bytes)? {
            pinned.bytes_mut().fill(1);
            copies_of(device, buffer, pinned.bytes_mut(), "pinned", samples, &mut series)?;
            device.free_pinned(pinned)?;
        }
        device.free(buffer)?;
    }
    Ok(series)
}

/// A write counts until the device has the data: the call alone may return once the host's memory can be reused.
fn copies_of(
    device: &mut dyn Device,
    buffer: Buffer,
    memory: &mut [u8],
    kind: &str,
    samples: usize,
    series: &mut Vec<Series>,
) -> Result<(), Error> {
    let bytes = memory.len();
    let returned = sample(2, samples, || device.write(buffer, memory))?;
    device.finish()?;
    let finished = sample(2, samples, || {
        device.write(buffer, memory)?;
        device.finish()
    })?;
    let read = sample(2, samples, || device.read(buffer, memory))?;
    series.push(Series::new(format!("to device, {kind}, until the call returns"), bytes, returned));
    series.push(Series::new(format!("to device, {kind}, until finished"), bytes, finished));
    series.push(Series::new(format!("from device, {kind}"), bytes, read));
    Ok(())
}

impl std::fmt::Display for MicroReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.device)?;
        for (title, series) in
            [("calls", &self.latencies), ("launches", &self.launches), ("copies", &self.copies), ("host alone", &self.host)]
        {
            writeln!(f, "{title}")?;
            for line in series {
                writeln!(f, "  {line}")?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Spread { median, min, max } = self.spread_s;
        write!(f, "{:<46}", self.name)?;
        if self.bytes > 0 {
            write!(f, " {:>8}", crate::table::size(self.bytes))?;
        } else {
            write!(f, " {:>8}", "")?;
        }
        write!(f, " {:>11.2} us ({:.2}..{:.2})", median * 1e6, min * 1e6, max * 1e6)?;
        if self.bytes > 0 {
            write!(f, ", {:.2} GB/s", self.bytes as f64 / median / 1e9)?;
        }
        Ok(())
    }
}
