//! Compares results of runs with a local driver with results by shared memory and by TCP.
//!
//! [`files`] reads directories of results by the names of their files, [`kernels`], [`calls`] and [`shares`] derive one Markdown
//! table each, [`plot`] draws the kernels' ratios as SVG, and [`estimate`] has the statistics.
//! Each directory is a report of its own: results are only compared with results of the same directory.

use std::fmt::Write;

pub mod calls;
pub mod estimate;
pub mod files;
pub mod kernels;
pub mod markdown;
pub mod plot;
pub mod shares;
#[cfg(test)]
mod tests;

use files::{Directory, Way};

/// Returns the report of all `directories` as Markdown.
pub fn markdown(directories: &[Directory]) -> String {
    let mut text = String::from("# Remote GPU calls next to a local driver\n");
    for directory in directories {
        let _ = write!(text, "\n## Results in `{}`\n\n{}", directory.path.display(), machines(directory));
        for set in &directory.kernels {
            text.push_str(&kernels::section(set));
        }
        text.push_str(&calls::section(&directory.micro));
        text.push_str(&shares::section(&directory.shares));
        if !directory.unknown.is_empty() {
            let _ = write!(
                text,
                "\nJSON files that are not part of this report, by their names: {}.\n",
                markdown::code_list(&directory.unknown)
            );
        }
    }
    let _ = write!(text, "\n## How to read the tables\n\n{NOTES}{}\n", estimate::METHOD);
    text
}

/// Returns the kernels' ratios to the local driver as SVG, or `None` if no kernel has one.
pub fn svg(directories: &[Directory]) -> Option<String> {
    let mut panels = Vec::new();
    for directory in directories {
        let place = if directories.len() > 1 { format!(", {}", directory.path.display()) } else { String::new() };
        panels.extend(directory.kernels.iter().filter_map(|set| kernels::panel(set, &place)));
    }
    (!panels.is_empty()).then(|| plot::draw(&panels))
}

const NOTES: &str = "\
Local is the machine's own driver, memory is a server on the same host by shared memory, and TCP is a server by a TCP connection.
A verdict is \"met\" or \"missed\" if the whole interval is on one side of the target, else \"unclear\".
It is \"no spread\" if there are too few samples for an interval.
";

/// Returns the list of devices, drivers and hosts, each with the ways that were measured there.
fn machines(directory: &Directory) -> String {
    let mut places: Vec<(String, Vec<Way>)> = Vec::new();
    for origin in directory.origins() {
        let machine = origin.machine.as_ref().map_or("host not recorded".to_string(), ToString::to_string);
        let place = format!("{}; {machine}", origin.device);
        match places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, ways)) if ways.contains(&origin.way) => {}
            Some((_, ways)) => ways.push(origin.way),
            None => places.push((place, vec![origin.way])),
        }
    }
    let mut text = String::new();
    for (place, mut ways) in places {
        ways.sort();
        let ways: Vec<&str> = ways.into_iter().map(Way::title).collect();
        let _ = writeln!(text, "- {place} ({})", ways.join(", "));
    }
    text
}
