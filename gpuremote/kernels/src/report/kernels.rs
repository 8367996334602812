//! Kernels: how much longer their work takes than with the local driver.

use super::estimate::{Digits, Estimate};
use super::files::{KernelRow, KernelSet, Way};
use super::markdown::{self, Table, NONE};
use super::plot::{Group, Panel};
use crate::api::calls::Transfer;
use crate::api::ApiKind;
use crate::cases::Size;
use crate::measure::{Measurement, Run, Spread};
use crate::table;

/// The largest ratio to local that meets the target.
pub const TARGET_RATIO: f64 = 1.05;

const PUBLISHED: &str = "\
Published: a study of a remote API against local GPUs reports 7% more time on seven of these eight kernels and 128% more on \
needleman-wunsch (nw). Its devices, network and inputs differ from these.
";

/// Returns the published study's ratio to local for a kernel of the published size.
fn published_ratio(kernel: &str) -> f64 {
    match kernel {
        "nw" => 2.28,
        _ => 1.07,
    }
}

/// Returns the name of an API in headings.
fn title(api: ApiKind) -> &'static str {
    match api {
        ApiKind::OpenCl => "OpenCL",
        ApiKind::Cuda => "CUDA",
    }
}

/// Returns the ratio of a way's median work time to the local one.
fn ratio(row: &KernelRow, way: Way) -> Option<Estimate> {
    let works = |way| -> Option<Vec<f64>> { Some(row.by_way.get(&way)?.runs.iter().map(|run| run.work_s).collect()) };
    let (remote, local) = (works(way)?, works(Way::Local)?);
    Some(Estimate::of([&remote, &local], |[remote, local]| remote / local))
}

/// Returns the median share of copies between host and device in the time of a run's API calls, in percent.
fn copies_percent(measurement: &Measurement) -> Option<f64> {
    let share = |run: &Run| {
        let copies_s = run.copied(Transfer::ToDevice).1 + run.copied(Transfer::FromDevice).1;
        (run.call_s() > 0.0).then(|| copies_s / run.call_s() * 100.0)
    };
    let shares: Vec<f64> = measurement.runs.iter().filter_map(share).collect();
    (!shares.is_empty()).then(|| Spread::of(shares).median)
}

/// Returns the section of one API and size. Rows without a local measurement are left out.
pub fn section(set: &KernelSet) -> String {
    let published = set.size == Size::Published;
    let mut headings = vec!["kernel", "problem", ">calls", ">to device", ">from device", ">local work ms, median (min..max)"];
    headings.extend([">memory / local", "≤ 1.05", ">TCP / local", "≤ 1.05", ">copies in API time %: local, memory, TCP"]);
    if published {
        headings.push(">published / local");
    }
    let mut table = Table::new(&headings);
    let mut runs = Vec::new();
    for row in &set.rows {
        let Some(local) = row.by_way.get(&Way::Local) else { continue };
        runs.extend(row.by_way.values().map(|measurement| measurement.runs.len()));
        let run = &local.runs[local.runs.len() - 1];
        let work = Spread::of(local.runs.iter().map(|run| run.work_s * 1e3));
        let mut cells = vec![
            row.kernel.clone(),
            row.problem.clone(),
            run.call_count().to_string(),
            table::size(run.copied(Transfer::ToDevice).0),
            table::size(run.copied(Transfer::FromDevice).0),
            format!("{} ({}..{})", Digits(work.median), Digits(work.min), Digits(work.max)),
        ];
        for way in Way::REMOTE {
            match ratio(row, way) {
                Some(ratio) => cells.extend([ratio.to_string(), ratio.at_most(TARGET_RATIO).to_string()]),
                None => cells.extend([NONE.to_string(), NONE.to_string()]),
            }
        }
        let percent = |way| row.by_way.get(&way).and_then(copies_percent).map_or(NONE.to_string(), |percent| format!("{percent:.0}"));
        cells.push(Way::ALL.map(percent).join(", "));
        if published {
            cells.push(Digits(published_ratio(&row.kernel)).to_string());
        }
        table.row(cells);
    }
    let runs = match (runs.iter().min(), runs.iter().max()) {
        (Some(1), Some(1)) => "1 measured run each".to_string(),
        (Some(least), Some(most)) if least == most => format!("{least} measured runs each"),
        (Some(least), Some(most)) => format!("{least} to {most} measured runs each"),
        _ => "no kernel has a local measurement".to_string(),
    };
    let mut text = format!("\n### {}, size {}, {runs}\n\n{}\n", title(set.api), set.size.name(), table.finish());
    text.push_str(
        "Work is from the first allocation to the last free, without the setup of context and program. \
         Calls are those during the work; a copy's time includes its wait for kernels before it.\n",
    );
    if published {
        text.push_str(PUBLISHED);
    }
    text.push_str(&markdown::sources(&set.names));
    text.push_str(&markdown::missing(&set.missing));
    for failure in &set.failures {
        text.push_str(&format!("Failed: {failure}.\n"));
    }
    text
}

/// Returns the plot of one API and size, or `None` if no kernel has a ratio. `place` follows the title.
pub fn panel(set: &KernelSet, place: &str) -> Option<Panel> {
    let mut device = None;
    let groups: Vec<Group> = set
        .rows
        .iter()
        .filter_map(|row| {
            let local = row.by_way.get(&Way::Local)?;
            device = Some(local.device.clone());
            Some(Group {
                labels: vec![
                    row.kernel.clone(),
                    row.problem.split(',').next().unwrap_or_default().to_string(),
                    format!("local {} ms", Digits(Spread::of(local.runs.iter().map(|run| run.work_s)).median * 1e3)),
                ],
                bars: Way::REMOTE.map(|way| ratio(row, way)),
                published: (set.size == Size::Published).then(|| published_ratio(&row.kernel)),
            })
        })
        .collect();
    if groups.iter().all(|group| group.bars.iter().all(Option::is_none)) {
        return None;
    }
    let title = format!("{}, size {}: {}{place}", title(set.api), set.size.name(), device.unwrap_or_default());
    Some(Panel { title, groups })
}
