//! Runs a case several times and keeps every time that was measured.

use std::borrow::Cow;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::api::calls::{CallTotal, Transfer};
use crate::api::{Api, Error};
use crate::cases::{Case, Deviation};
use crate::machine::Machine;

/// One run, from opening the device to freed buffers. Times are wall time on the host, in seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Initialization of the API, context, queue and program.
    pub setup_s: f64,
    /// From the first allocation through copies, launches and the result's copy to the last free.
    pub work_s: f64,
    /// `setup_s` + `work_s`.
    pub total_s: f64,
    /// The release of program, queue and context, which is not in `total_s`.
    pub close_s: f64,
    /// Calls during setup.
    pub setup_calls: Vec<CallTotal>,
    /// Calls during the work.
    pub work_calls: Vec<CallTotal>,
}

impl Run {
    /// Returns the number of calls during the work.
    pub fn call_count(&self) -> u64 {
        self.work_calls.iter().map(|call| call.count).sum()
    }

    /// Returns the seconds that the host spent in calls during the work.
    pub fn call_s(&self) -> f64 {
        self.work_calls.iter().map(|call| call.total_s).sum()
    }

    /// Returns bytes and seconds of copies in one direction.
    pub fn copied(&self, transfer: Transfer) -> (u64, f64) {
        let copies = self.work_calls.iter().filter(|call| call.transfer == transfer);
        copies.fold((0, 0.0), |(bytes, seconds), call| (bytes + call.bytes, seconds + call.total_s))
    }
}

/// Median and spread of a series.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Spread {
    /// The middle value, or the mean of the two middle values.
    pub median: f64,
    /// The least value.
    pub min: f64,
    /// The greatest value.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of `values`, which must not be empty.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        assert!(!values.is_empty(), "a spread needs values");
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Self { median, min: values[0], max: values[values.len() - 1] }
    }
}

/// All runs of a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// The kernel's name.
    pub kernel: Cow<'static, str>,
    /// The problem in words.
    pub problem: String,
    /// The device's and the driver's name.
    pub device: String,
    /// The worst deviation of all runs, each of which passed.
    pub deviation: Deviation,
    /// The first run, not part of the medians.
    pub warm_up: Run,
    /// The measured runs.
    pub runs: Vec<Run>,
    /// Setup of the measured runs, in seconds.
    pub setup_s: Spread,
    /// Work of the measured runs, in seconds.
    pub work_s: Spread,
    /// Setup and work of the measured runs, in seconds.
    pub total_s: Spread,
}

/// What `--json` writes for a run of kernels.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KernelReport {
    /// The API's name.
    pub api: Cow<'static, str>,
    /// The library as given, or the API's default.
    pub library: String,
    /// The name of the problem size.
    pub size: Cow<'static, str>,
    /// Seed of the inputs.
    pub seed: u64,
    /// The host, which older files lack.
    pub machine: Option<Machine>,
    /// Kernels whose results are right.
    pub measurements: Vec<Measurement>,
    /// Why kernels are missing from `measurements`.
    pub failures: Vec<String>,
}

/// Runs `case` once to warm up and `runs` times measured; each run opens the device anew and has its result checked.
pub fn measure(api: &Api, kernel: &'static str, case: &mut dyn Case, runs: usize) -> Result<Measurement, Error> {
    let mut description = String::new();
    let mut deviation = Deviation { relative: 0.0, tolerance: 0.0 };
    let mut all = Vec::with_capacity(runs + 1);
    for _ in 0..=runs {
        let (run, device) = run_once(api, case)?;
        let found = case.check()?;
        deviation.tolerance = found.tolerance;
        deviation.relative = deviation.relative.max(found.relative);
        description = device;
        all.push(run);
    }
    let warm_up = all.remove(0);
    Ok(Measurement {
        kernel: kernel.into(),
        problem: case.problem(),
        device: description,
        deviation,
        setup_s: Spread::of(all.iter().map(|run| run.setup_s)),
        work_s: Spread::of(all.iter().map(|run| run.work_s)),
        total_s: Spread::of(all.iter().map(|run| run.total_s)),
        warm_up,
        runs: all,
    })
}

fn run_once(api: &Api, case: &mut dyn Case) -> Result<(Run, String), Error> {
    let start = Instant::now();
    let mut device = api.open()?;
    device.load(case.program())?;
    // An API may put work of the setup off until it is waited for, which is no work of the kernel's.
    device.finish()?;
    let setup_s = start.elapsed().as_secs_f64();
    let setup_calls = device.calls().take();

    let start = Instant::now();
    case.run(device.as_mut())?;
    let work_s = start.elapsed().as_secs_f64();
    let work_calls = device.calls().take();

    let start = Instant::now();
    device.close()?;
    let run = Run { setup_s, work_s, total_s: setup_s + work_s, close_s: start.elapsed().as_secs_f64(), setup_calls, work_calls };
    Ok((run, device.description()))
}
