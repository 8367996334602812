//! Results as a table for people.

use std::fmt::Write;

use crate::api::calls::Transfer;
use crate::measure::{Measurement, Spread};

/// Returns the heading of [`row`]'s columns.
pub fn heading() -> String {
    format!(
        "{:<11} {:<38} {:>22} {:>22} {:>8} {:>9} {:>9} {:>9}",
        "kernel", "problem", "work ms (min..max)", "setup ms (min..max)", "calls", "in calls", "to dev", "from dev"
    )
}

/// Returns one line for a case: medians with the range of all measured runs.
pub fn row(measurement: &Measurement) -> String {
    let run = &measurement.runs[measurement.runs.len() - 1];
    format!(
        "{:<11} {:<38} {:>22} {:>22} {:>8} {:>6.1} ms {:>9} {:>9}",
        measurement.kernel,
        measurement.problem,
        milliseconds(&measurement.work_s),
        milliseconds(&measurement.setup_s),
        run.call_count(),
        Spread::of(measurement.runs.iter().map(|run| run.call_s())).median * 1e3,
        size(run.copied(Transfer::ToDevice).0),
        size(run.copied(Transfer::FromDevice).0),
    )
}

/// Returns a table of the calls of a case's last run, longest total first.
pub fn calls(measurement: &Measurement) -> String {
    let run = &measurement.runs[measurement.runs.len() - 1];
    let mut calls: Vec<_> = run.setup_calls.iter().chain(&run.work_calls).collect();
    calls.sort_by(|a, b| b.total_s.total_cmp(&a.total_s));
    let mut text = String::new();
    for call in calls {
        let _ = write!(
            text,
            "    {:<30} {:>8} calls {:>10.3} ms, {:>9.2} us each",
            call.name,
            call.count,
            call.total_s * 1e3,
            call.total_s * 1e6 / call.count as f64
        );
        if call.bytes > 0 {
            let _ = write!(text, ", {} at {:.2} GB/s", size(call.bytes), call.bytes as f64 / call.total_s / 1e9);
        }
        text.push('\n');
    }
    text
}

fn milliseconds(spread: &Spread) -> String {
    format!("{:.2} ({:.2}..{:.2})", spread.median * 1e3, spread.min * 1e3, spread.max * 1e3)
}

/// Returns a size with a binary unit.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB"] {
        if value < 1024.0 {
            let digits = usize::from(value.fract() != 0.0);
            return format!("{value:.digits$} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} GiB")
}
