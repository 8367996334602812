//! Shares of a device: launches per second of clients that run at the same time.

use std::collections::BTreeMap;

use super::estimate::Digits;
use super::files::{Files, Way};
use super::markdown::{self, Table};
use crate::share::ShareReport;

/// No client's rate deviates from the mean by more than this, in percent.
const TARGET_DEVIATION_PERCENT: f64 = 5.0;

/// Returns the largest deviation of a value from the mean of `values`, in percent of that mean; infinite if the mean is 0.
fn largest_deviation_percent(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    if mean == 0.0 {
        return f64::INFINITY;
    }
    values.iter().map(|value| ((value - mean) / mean).abs() * 100.0).fold(0.0, f64::max)
}

/// Returns the section of shares. A way whose clients are incomplete is left out.
pub fn section(files: &Files<(Way, u32), ShareReport>) -> String {
    let mut text = String::from("\n### Shares of clients that run at the same time\n\n");
    let mut ways: BTreeMap<Way, Vec<&ShareReport>> = BTreeMap::new();
    for ((way, _), report) in &files.reports {
        ways.entry(*way).or_default().push(report);
    }
    let complete = ways.values().map(Vec::len).max().unwrap_or(0);
    let mut table = Table::new(&[
        "way",
        ">clients",
        "launches per second of each client",
        ">all together",
        ">largest deviation from the mean %",
        "≤ 5",
        ">latest start ms",
        ">longest gap ms",
    ]);
    for (way, reports) in &ways {
        let expected = format!("share-{}-", way.name());
        if files.missing.iter().any(|name| name.starts_with(&expected)) {
            continue;
        }
        let rates: Vec<f64> = reports.iter().map(|report| report.per_second).collect();
        let deviation = largest_deviation_percent(&rates);
        let longest_ms = |value: fn(&ShareReport) -> f64| reports.iter().map(|report| value(report)).fold(0.0, f64::max) * 1e3;
        table.row([
            way.title().to_string(),
            reports.len().to_string(),
            rates.iter().map(|rate| Digits(*rate).to_string()).collect::<Vec<_>>().join(", "),
            Digits(rates.iter().sum()).to_string(),
            format!("{deviation:.2}"),
            if deviation <= TARGET_DEVIATION_PERCENT { "met" } else { "**missed**" }.to_string(),
            Digits(longest_ms(|report| report.late_s)).to_string(),
            Digits(longest_ms(|report| report.longest_gap_s)).to_string(),
        ]);
    }
    match files.reports.values().next() {
        Some(ShareReport { load, .. }) => {
            text.push_str(&table.finish());
            text.push_str(&format!(
                "\nEach client kept {} launches of {} groups of 256 work-items and {} rounds in flight for {} s. \
                 One run of {complete} clients, so the verdict has no interval.\n",
                load.depth, load.groups, load.rounds, load.seconds
            ));
            text.push_str(&markdown::sources(&files.names));
        }
        None => text.push_str("No table: measurements are missing.\n"),
    }
    text.push_str(&markdown::missing(&files.missing));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_that_of_the_client_farthest_from_the_mean() {
        assert_eq!(largest_deviation_percent(&[100.0, 100.0, 130.0, 70.0]), 30.0);
        assert_eq!(largest_deviation_percent(&[95.0; 8]), 0.0);
        assert_eq!(largest_deviation_percent(&[0.0, 0.0]), f64::INFINITY);
    }
}
