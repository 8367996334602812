//! Single calls, launches in a row and copies, next to the local driver and to what the host can do without a device.

use std::collections::BTreeMap;

use super::estimate::{percentile_99, Digits, Estimate};
use super::files::{Files, Way};
use super::markdown::{self, Table, NONE};
use crate::micro::{MicroReport, Series};
use crate::table;

/// A synchronous call by shared memory takes at most this many microseconds more than with the local driver.
const TARGET_MEMORY_BEYOND_US: f64 = 15.0;
/// A synchronous call by TCP takes at most this many plain round trips more than with the local driver.
const TARGET_TCP_ROUND_TRIPS: f64 = 1.3;
/// An asynchronous call takes at most this many microseconds.
const TARGET_ASYNCHRONOUS_US: f64 = 1.0;
/// Copies have at least this rate, in percent of a plain copy or stream.
const TARGET_COPY_PERCENT: f64 = 90.0;

/// Calls that need no answer; the last is finished work per launch, which has no target.
const ASYNCHRONOUS: [(&str, bool); 3] =
    [("write of 4 bytes", true), ("each of 1000 launches, until submitted", true), ("each of 1000 launches, until finished", false)];
const ROUND_TRIP: &str = "TCP loopback round trip of 64 bytes";
const STREAM: &str = "TCP loopback stream, acknowledged at its end";
const PLAIN_COPY: &str = "copy in memory";

type Reports = BTreeMap<Way, MicroReport>;

/// Returns the section of single calls and copies. Rows without a local measurement are left out.
pub fn section(files: &Files<Way, MicroReport>) -> String {
    let mut text = String::from("\n### Single calls and copies\n\n");
    if files.reports.contains_key(&Way::Local) {
        text.push_str(&synchronous(&files.reports));
        text.push_str(&asynchronous(&files.reports));
        text.push_str(&copies(&files.reports));
    } else {
        text.push_str("No table: local measurements are missing.\n");
    }
    if !files.names.is_empty() {
        text.push_str(&markdown::sources(&files.names));
    }
    text.push_str(&markdown::missing(&files.missing));
    text
}

/// Returns the series of this name and number of bytes.
fn find<'a>(series: impl IntoIterator<Item = &'a Series>, name: &str, bytes: u64) -> Option<&'a Series> {
    series.into_iter().find(|series| series.name == name && series.bytes == bytes)
}

/// What the host can do without a device, measured with each way: the machine's load and clock may differ between these.
struct Baseline {
    /// The median measured together with the way, in seconds.
    own_s: f64,
    /// The least and the greatest median measured with any way, in seconds.
    range_s: (f64, f64),
}

impl Baseline {
    fn of(reports: &Reports, way: Way, name: &str, bytes: u64) -> Option<Self> {
        let medians = reports.iter().filter_map(|(way, report)| Some((*way, find(&report.host, name, bytes)?.spread_s.median)));
        let medians: BTreeMap<Way, f64> = medians.collect();
        let least = medians.values().copied().min_by(f64::total_cmp)?;
        let greatest = medians.values().copied().max_by(f64::total_cmp)?;
        Some(Self { own_s: *medians.get(&way)?, range_s: (least, greatest) })
    }
}

fn median_us(series: &Series) -> String {
    format!("{} ({})", Digits(series.spread_s.median * 1e6), Digits(percentile_99(&series.samples_s) * 1e6))
}

fn beyond(remote: &Series, local: &Series) -> Estimate {
    Estimate::of([&remote.samples_s, &local.samples_s], |[remote, local]| remote - local)
}

fn synchronous(reports: &Reports) -> String {
    let mut table = Table::new(&[
        "synchronous call",
        ">local us, median (p99)",
        ">memory us, median (p99)",
        ">memory beyond local us",
        "< 15",
        ">TCP us, median (p99)",
        ">TCP beyond local us",
        ">beyond local / round trip",
        "≤ 1.3",
    ]);
    for local in &reports[&Way::Local].latencies {
        if ASYNCHRONOUS.iter().any(|(name, _)| *name == local.name) {
            continue;
        }
        let remote = |way| reports.get(&way).and_then(|report| find(&report.latencies, &local.name, local.bytes));
        let mut cells = vec![local.name.clone(), median_us(local)];
        match remote(Way::Memory) {
            Some(memory) => {
                let beyond_us = beyond(memory, local).times(1e6);
                cells.extend([median_us(memory), beyond_us.to_string(), beyond_us.at_most(TARGET_MEMORY_BEYOND_US).to_string()]);
            }
            None => cells.extend([NONE; 3].map(str::to_string)),
        }
        match remote(Way::Tcp) {
            Some(tcp) => {
                let beyond_s = beyond(tcp, local);
                cells.extend([median_us(tcp), beyond_s.times(1e6).to_string()]);
                match Baseline::of(reports, Way::Tcp, ROUND_TRIP, 0) {
                    Some(baseline) => {
                        let trips = beyond_s.divided(baseline.own_s, baseline.range_s);
                        cells.extend([trips.to_string(), trips.at_most(TARGET_TCP_ROUND_TRIPS).to_string()]);
                    }
                    None => cells.extend([NONE; 2].map(str::to_string)),
                }
            }
            None => cells.extend([NONE; 4].map(str::to_string)),
        }
        table.row(cells);
    }
    let trips: Vec<String> = reports
        .iter()
        .filter_map(|(way, report)| Some(format!("{} {}", way.title(), Digits(find(&report.host, ROUND_TRIP, 0)?.spread_s.median * 1e6))))
        .collect();
    format!(
        "{}\nA round trip is one of 64 bytes by plain TCP over the loopback interface. Its median in us, measured with each way: {}. \
         The ratio takes the one measured with TCP, its interval all of them. Launch and finish, allocation and free are two calls each, \
         judged as one.\n\n",
        table.finish(),
        if trips.is_empty() { NONE.to_string() } else { trips.join(", ") }
    )
}

fn asynchronous(reports: &Reports) -> String {
    let mut table = Table::new(&[
        "asynchronous call",
        ">local us, median (p99)",
        ">memory us, median (p99)",
        ">memory median us",
        "< 1",
        ">TCP us, median (p99)",
        ">TCP median us",
        "< 1",
    ]);
    for (name, judged) in ASYNCHRONOUS {
        let series = |way| {
            let report: &MicroReport = reports.get(&way)?;
            find(report.latencies.iter().chain(&report.launches), name, 0)
        };
        let Some(local) = series(Way::Local) else { continue };
        let mut cells = vec![name.to_string(), median_us(local)];
        for way in Way::REMOTE {
            match series(way) {
                Some(remote) => {
                    let call_us = Estimate::of([&remote.samples_s], |[median]| median).times(1e6);
                    let verdict = if judged { call_us.at_most(TARGET_ASYNCHRONOUS_US).to_string() } else { NONE.to_string() };
                    cells.extend([median_us(remote), call_us.to_string(), verdict]);
                }
                None => cells.extend([NONE; 3].map(str::to_string)),
            }
        }
        table.row(cells);
    }
    format!("{}\nSamples of launches are means of 1000 each.\n\n", table.finish())
}

fn copies(reports: &Reports) -> String {
    let mut table = Table::new(&[
        "copy",
        ">size",
        ">local GB/s",
        ">local % of memcpy",
        ">memory GB/s",
        ">memory % of local",
        ">memory % of memcpy",
        "≥ 90",
        ">TCP GB/s",
        ">TCP % of local",
        ">TCP % of stream",
        "≥ 90",
    ]);
    for local in &reports[&Way::Local].copies {
        if local.name.ends_with("until the call returns") {
            continue;
        }
        let pageable = !local.name.contains("pinned");
        let memcpy = Baseline::of(reports, Way::Local, PLAIN_COPY, local.bytes).filter(|_| pageable);
        let local_percent = memcpy.map_or(NONE.to_string(), |memcpy| of_baseline(local, &memcpy).to_string());
        let mut cells = vec![local.name.clone(), table::size(local.bytes), rate(local), local_percent];
        for (way, baseline) in [(Way::Memory, PLAIN_COPY), (Way::Tcp, STREAM)] {
            let Some(remote) = reports.get(&way).and_then(|report| find(&report.copies, &local.name, local.bytes)) else {
                cells.extend([NONE; 4].map(str::to_string));
                continue;
            };
            let of_local = Estimate::of([&local.samples_s, &remote.samples_s], |[local, remote]| local / remote * 100.0);
            cells.extend([rate(remote), of_local.to_string()]);
            // The device reads and writes pinned memory itself, so that the host's memcpy is no measure of it.
            if way == Way::Memory && !pageable {
                cells.extend([NONE; 2].map(str::to_string));
                continue;
            }
            match Baseline::of(reports, way, baseline, local.bytes) {
                Some(baseline) => {
                    let percent = of_baseline(remote, &baseline);
                    cells.extend([percent.to_string(), percent.at_least(TARGET_COPY_PERCENT).to_string()]);
                }
                None => cells.extend([NONE; 2].map(str::to_string)),
            }
        }
        table.row(cells);
    }
    format!(
        "{}\nPercentages compare rates, so that 100 is equally fast. memcpy and stream (plain TCP over the loopback interface, \
         acknowledged at its end) move as many bytes as the copy. A percentage takes the baseline measured with its way, its interval \
         those measured with all ways. Older results have a stream of 256 MiB only. The target for memory is for pageable memory: \
         the device accesses pinned memory without the host's memcpy.\n\n",
        table.finish()
    )
}

fn rate(series: &Series) -> String {
    Digits(series.bytes as f64 / series.spread_s.median / 1e9).to_string()
}

/// Returns the rate of `remote` in percent of the baseline's.
fn of_baseline(remote: &Series, baseline: &Baseline) -> Estimate {
    let per_s = Estimate::of([&remote.samples_s], |[median]| 100.0 / median);
    let (least_s, greatest_s) = baseline.range_s;
    per_s.divided(1.0 / baseline.own_s, (1.0 / greatest_s, 1.0 / least_s))
}
