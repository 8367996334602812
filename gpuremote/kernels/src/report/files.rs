//! Directories of results: which file holds what, by its name, and whether the files of a directory fit together.
//!
//! | name | holds |
//! |---|---|
//! | `[API-]SIZE-WAY.json` | all kernels of a size |
//! | `[API-]SIZE-KERNEL-WAY.json` | one kernel |
//! | `micro-WAY.json` | single calls and copies |
//! | `share-WAY-CLIENT.json` | one of several clients at a time |
//!
//! API is `cuda`, the default, or `opencl`. WAY is a [`Way`]. CLIENT is a number from 1.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::api::ApiKind;
use crate::cases::{Size, KERNELS};
use crate::machine::Machine;
use crate::measure::{KernelReport, Measurement};
use crate::micro::{MicroReport, Series};
use crate::share::ShareReport;

/// How a program reached the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// By the machine's own driver.
    Local,
    /// By a server on the same host and shared memory.
    Memory,
    /// By a server and a TCP connection.
    Tcp,
}

impl Way {
    /// All ways, local first.
    pub const ALL: [Way; 3] = [Way::Local, Way::Memory, Way::Tcp];
    /// The ways that are compared with local.
    pub const REMOTE: [Way; 2] = [Way::Memory, Way::Tcp];

    /// Returns the name in names of files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Memory => "memory",
            Self::Tcp => "tcp",
        }
    }

    /// Returns the name in tables.
    pub fn title(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Memory => "memory",
            Self::Tcp => "TCP",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == text)
    }
}

/// All results of a directory.
#[derive(Debug)]
pub struct Directory {
    /// The directory as given.
    pub path: PathBuf,
    /// Runs of kernels, one set for each API and size.
    pub kernels: Vec<KernelSet>,
    /// Single calls and copies.
    pub micro: Files<Way, MicroReport>,
    /// Clients that ran at the same time.
    pub shares: Files<(Way, u32), ShareReport>,
    /// JSON files with other names.
    pub unknown: Vec<String>,
}

/// Files of one kind.
#[derive(Debug)]
pub struct Files<K, R> {
    /// The files' content.
    pub reports: BTreeMap<K, R>,
    /// Names of the files that were read.
    pub names: Vec<String>,
    /// Names of files that would complete the set.
    pub missing: Vec<String>,
}

impl<K, R> Default for Files<K, R> {
    fn default() -> Self {
        Self { reports: BTreeMap::new(), names: Vec::new(), missing: Vec::new() }
    }
}

/// Runs of kernels through one API with problems of one size.
#[derive(Debug)]
pub struct KernelSet {
    /// The API.
    pub api: ApiKind,
    /// The size.
    pub size: Size,
    /// One row for each kernel and problem, in the order of [`KERNELS`].
    pub rows: Vec<KernelRow>,
    /// Names of the files that were read.
    pub names: Vec<String>,
    /// Names of files that would complete the set.
    pub missing: Vec<String>,
    /// Failures that the files report, each with its file.
    pub failures: Vec<String>,
    /// Where the measurements come from.
    pub origins: Vec<Origin>,
}

/// One kernel and problem.
#[derive(Debug)]
pub struct KernelRow {
    /// The kernel's name.
    pub kernel: String,
    /// The problem in words.
    pub problem: String,
    /// The measurements.
    pub by_way: BTreeMap<Way, Measurement>,
}

/// Where a result comes from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// How the program reached the device.
    pub way: Way,
    /// The device's and the driver's name.
    pub device: String,
    /// The program's host.
    pub machine: Option<Machine>,
}

impl Origin {
    fn new(way: Way, device: &str, machine: Option<&Machine>) -> Self {
        Self { way, device: device.to_string(), machine: machine.cloned() }
    }
}

/// What the name of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Kernels(ApiKind, Size, Option<&'static str>, Way),
    Micro(Way),
    Share(Way, u32),
}

impl Name {
    fn parse(name: &str) -> Option<Self> {
        let mut parts: Vec<&str> = name.strip_suffix(".json")?.split('-').collect();
        match parts.as_slice() {
            ["micro", way] => return Way::parse(way).map(Self::Micro),
            ["share", way, client] => return Some(Self::Share(Way::parse(way)?, client.parse().ok()?)),
            _ => {}
        }
        let api = ApiKind::ALL.into_iter().find(|api| api.name() == parts[0]);
        if api.is_some() {
            parts.remove(0);
        }
        let (size, kernel, way) = match parts.as_slice() {
            [size, way] => (size, None, way),
            [size, kernel, way] => (size, Some(KERNELS.iter().find(|known| known.name == *kernel)?.name), way),
            _ => return None,
        };
        let size = Size::ALL.into_iter().find(|known| known.name() == *size)?;
        Some(Self::Kernels(api.unwrap_or(ApiKind::Cuda), size, kernel, Way::parse(way)?))
    }
}

impl Directory {
    /// Reads all results in `path`. Errors name the file and what is wrong with it; a directory without results is an error too.
    pub fn read(path: &Path) -> Result<Self, String> {
        let can_not_read = |error: std::io::Error| format!("can't read {}: {error}", path.display());
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path).map_err(can_not_read)? {
            let name = entry.map_err(can_not_read)?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".json") {
                names.push(name);
            }
        }
        names.sort();
        Self::from_texts(path, names, |name| {
            let file = path.join(name);
            std::fs::read_to_string(&file).map_err(|error| format!("can't read {}: {error}", file.display()))
        })
    }

    /// Interprets files that `text` reads.
    pub(super) fn from_texts(path: &Path, names: Vec<String>, text: impl Fn(&str) -> Result<String, String>) -> Result<Self, String> {
        let mut directory =
            Self { path: path.to_path_buf(), kernels: Vec::new(), micro: Files::default(), shares: Files::default(), unknown: Vec::new() };
        let mut found: Vec<(ApiKind, Size, Vec<KernelFile>)> = Vec::new();
        for name in names {
            let file = path.join(&name).display().to_string();
            match Name::parse(&name) {
                None => directory.unknown.push(name),
                Some(Name::Kernels(api, size, kernel, way)) => {
                    let report: KernelReport = decode(&file, &text(&name)?)?;
                    check_kernels(&report, api, size, kernel).map_err(|message| format!("{file}: {message}"))?;
                    let file = KernelFile { name, kernel, way, report };
                    match found.iter_mut().find(|(known, of_size, _)| (*known, *of_size) == (api, size)) {
                        Some((_, _, files)) => files.push(file),
                        None => found.push((api, size, vec![file])),
                    }
                }
                Some(Name::Micro(way)) => {
                    let report: MicroReport = decode(&file, &text(&name)?)?;
                    check_micro(&report).map_err(|message| format!("{file}: {message}"))?;
                    directory.micro.reports.insert(way, report);
                    directory.micro.names.push(name);
                }
                Some(Name::Share(way, client)) => {
                    directory.shares.reports.insert((way, client), decode(&file, &text(&name)?)?);
                    directory.shares.names.push(name);
                }
            }
        }
        let first = |api: ApiKind, size: Size| (api != ApiKind::Cuda, Size::ALL.iter().position(|known| *known == size));
        found.sort_by_key(|(api, size, _)| first(*api, *size));
        for (api, size, files) in found {
            directory.kernels.push(KernelSet::of(api, size, files).map_err(|message| format!("{}: {message}", path.display()))?);
        }
        if directory.kernels.is_empty() && directory.micro.names.is_empty() && directory.shares.names.is_empty() {
            return Err(format!(
                "{} has no results: files are expected to be named SIZE-KERNEL-WAY.json, opencl-SIZE-WAY.json, micro-WAY.json or \
                 share-WAY-CLIENT.json, where WAY is local, memory or tcp",
                path.display()
            ));
        }
        directory.micro.missing = Way::ALL
            .iter()
            .filter(|way| !directory.micro.reports.contains_key(way))
            .map(|way| format!("micro-{}.json", way.name()))
            .collect();
        directory.shares.missing = missing_shares(&directory.shares.reports);
        directory.check_origins()?;
        check_loads(&directory.shares.reports).map_err(|message| format!("{}: {message}", path.display()))?;
        Ok(directory)
    }

    /// Returns the origin of each measurement.
    pub fn origins(&self) -> Vec<Origin> {
        let kernels = self.kernels.iter().flat_map(|set| set.origins.iter().cloned());
        kernels.chain(self.micro_origins()).chain(self.share_origins()).collect()
    }

    fn micro_origins(&self) -> impl Iterator<Item = Origin> + '_ {
        let origin = |(way, report): (&Way, &MicroReport)| Origin::new(*way, &report.device, report.machine.as_ref());
        self.micro.reports.iter().map(origin)
    }

    fn share_origins(&self) -> impl Iterator<Item = Origin> + '_ {
        let origin = |((way, _), report): (&(Way, u32), &ShareReport)| Origin::new(*way, &report.device, report.machine.as_ref());
        self.shares.reports.iter().map(origin)
    }

    /// Refuses results of different devices or drivers, which can't be compared. APIs name the driver differently.
    fn check_origins(&self) -> Result<(), String> {
        let mut groups: Vec<Vec<Origin>> = self.kernels.iter().map(|set| set.origins.clone()).collect();
        groups.push(self.micro_origins().collect());
        groups.push(self.share_origins().collect());
        for group in groups {
            if let Some(other) = group.iter().find(|origin| origin.device != group[0].device) {
                return Err(format!(
                    "{} mixes results of \"{}\" and of \"{}\": use a directory for each device and driver",
                    self.path.display(),
                    group[0].device,
                    other.device
                ));
            }
        }
        Ok(())
    }
}

struct KernelFile {
    name: String,
    kernel: Option<&'static str>,
    way: Way,
    report: KernelReport,
}

impl KernelSet {
    fn of(api: ApiKind, size: Size, files: Vec<KernelFile>) -> Result<Self, String> {
        let mut set =
            Self { api, size, rows: Vec::new(), names: Vec::new(), missing: Vec::new(), failures: Vec::new(), origins: Vec::new() };
        set.missing = missing_kernels(api, size, &files);
        let seed = files[0].report.seed;
        for file in files {
            if file.report.seed != seed {
                return Err(format!("{} has inputs of seed {}, {} of seed {seed}", file.name, file.report.seed, set.names[0]));
            }
            set.failures.extend(file.report.failures.iter().map(|failure| format!("`{}`: {failure}", file.name)));
            for measurement in file.report.measurements {
                set.origins.push(Origin::new(file.way, &measurement.device, file.report.machine.as_ref()));
                let (kernel, problem) = (measurement.kernel.to_string(), measurement.problem.clone());
                let index = set.rows.iter().position(|row| row.kernel == kernel && row.problem == problem).unwrap_or_else(|| {
                    set.rows.push(KernelRow { kernel, problem, by_way: BTreeMap::new() });
                    set.rows.len() - 1
                });
                let row = &mut set.rows[index];
                if row.by_way.insert(file.way, measurement).is_some() {
                    return Err(format!("{} measures {} ({}) once more", file.name, row.kernel, row.problem));
                }
            }
            set.names.push(file.name);
        }
        set.rows.sort_by_key(|row| KERNELS.iter().position(|kernel| kernel.name == row.kernel));
        Ok(set)
    }
}

fn decode<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("{file} is no result as its name says: {error}"))
}

fn check_kernels(report: &KernelReport, api: ApiKind, size: Size, kernel: Option<&str>) -> Result<(), String> {
    if report.api != api.name() || report.size != size.name() {
        return Err(format!("holds API {} and size {}, its name says {} and {}", report.api, report.size, api.name(), size.name()));
    }
    for measurement in &report.measurements {
        if kernel.is_some_and(|kernel| kernel != measurement.kernel) {
            return Err(format!("holds kernel {}, unlike its name", measurement.kernel));
        }
        if measurement.runs.is_empty() {
            return Err(format!("kernel {} has no measured run", measurement.kernel));
        }
        if let Some(run) = measurement.runs.iter().find(|run| !(run.work_s > 0.0 && run.work_s.is_finite())) {
            return Err(format!("kernel {} has a run of {} s", measurement.kernel, run.work_s));
        }
    }
    Ok(())
}

fn check_micro(report: &MicroReport) -> Result<(), String> {
    let all: [&[Series]; 4] = [&report.latencies, &report.launches, &report.copies, &report.host];
    for series in all.into_iter().flatten() {
        if series.samples_s.is_empty() {
            return Err(format!("\"{}\" has no samples", series.name));
        }
        if let Some(sample) = series.samples_s.iter().find(|sample| !(**sample > 0.0 && sample.is_finite())) {
            return Err(format!("\"{}\" has a sample of {sample} s", series.name));
        }
    }
    Ok(())
}

/// Clients that are compared must launch the same.
fn check_loads(reports: &BTreeMap<(Way, u32), ShareReport>) -> Result<(), String> {
    let load = |report: &ShareReport| (report.load.seconds.to_bits(), report.load.groups, report.load.rounds, report.load.depth);
    let Some((first, want)) = reports.iter().next() else {
        return Ok(());
    };
    match reports.iter().find(|(_, report)| load(report) != load(want)) {
        None => Ok(()),
        Some((other, _)) => Err(format!("{} and {} have different loads", share_name(*first), share_name(*other))),
    }
}

fn share_name((way, client): (Way, u32)) -> String {
    format!("share-{}-{client}.json", way.name())
}

/// Each way is expected to have the clients that any way has.
fn missing_shares(reports: &BTreeMap<(Way, u32), ShareReport>) -> Vec<String> {
    let last = reports.keys().map(|(_, client)| *client).max();
    let Some(last) = last else {
        return Way::ALL.iter().map(|way| format!("share-{}-CLIENT.json", way.name())).collect();
    };
    let keys = Way::ALL.into_iter().flat_map(|way| (1..=last).map(move |client| (way, client)));
    keys.filter(|key| !reports.contains_key(key)).map(share_name).collect()
}

/// Each file is expected for all ways, and all kernels if the files are of one kernel each.
fn missing_kernels(api: ApiKind, size: Size, files: &[KernelFile]) -> Vec<String> {
    let prefix = match api {
        ApiKind::Cuda => String::new(),
        ApiKind::OpenCl => format!("{}-", api.name()),
    };
    let mut expected: BTreeSet<Option<&str>> = files.iter().map(|file| file.kernel).collect();
    if !expected.contains(&None) {
        expected.extend(KERNELS.iter().map(|kernel| Some(kernel.name)));
    }
    let mut missing = Vec::new();
    for kernel in expected {
        for way in Way::ALL {
            if !files.iter().any(|file| file.kernel == kernel && file.way == way) {
                let kernel = kernel.map_or(String::new(), |kernel| format!("-{kernel}"));
                missing.push(format!("{prefix}{}{kernel}-{}.json", size.name(), way.name()));
            }
        }
    }
    missing
}
