//! The command line.

use std::path::PathBuf;

use nearmetal_gpu_kernels::api::ApiKind;
use nearmetal_gpu_kernels::cases::{Size, KERNELS};
use nearmetal_gpu_kernels::share::Load;

/// The text of `--help`.
pub const USAGE: &str = "\
Runs GPU kernels through OpenCL or the CUDA driver API, times every API call, and checks every result.

nearmetal-gpu-kernels --api opencl|cuda --size test|published|large [options]
nearmetal-gpu-kernels --list
nearmetal-gpu-kernels micro --api opencl|cuda [options]
nearmetal-gpu-kernels share --api opencl|cuda [options]
nearmetal-gpu-kernels report DIR... [--markdown FILE] [--svg FILE]

Options of all commands that use an API:
  --json FILE       write all measured data to FILE
  --library PATH    load this library instead of libOpenCL.so.1 or libcuda.so.1

Options of a run of kernels:
  --kernel NAME     run this kernel only; may be repeated
  --runs N          measured runs of each kernel after one warm-up (default 5)
  --calls           also print the calls of each kernel's last run
  --seed N          seed of the generated inputs (default 1)

micro measures single calls, launches and copies, and the host's own copies and loopback TCP:
  --largest-copy N  omit copies of more than N bytes (default 268435456)

share launches a fixed kernel in a loop and reports completed launches per second:
  --seconds S       how long to launch (default 10)
  --at UNIX_SECONDS when to begin, so that several clients begin together (default: now)
  --groups N        groups of 256 work-items per launch (default 1056)
  --rounds N        multiply-adds per work-item (default 100000)
  --depth N         launches in flight (default 2)
  --memory-until-refused
                    instead, allocate chunks of 64 MiB until the API refuses, and report the total
  --limit N         allocate at most N bytes (default: no limit)

report compares the files of --json in each DIR, named [opencl-]SIZE[-KERNEL]-WAY.json,
micro-WAY.json or share-WAY-CLIENT.json, where WAY is local, memory or tcp:
  --markdown FILE   write the tables to FILE (default: standard output)
  --svg FILE        draw the kernels' ratios to local

Exit status: 0 if all results are right, 1 after a wrong result or a failed call, 2 for a wrong command line.
";

/// What to do.
#[derive(Debug)]
pub enum Command {
    /// Print the usage.
    Help,
    /// Print kernels and sizes.
    List,
    /// Run kernels.
    Run(RunOptions),
    /// Measure single calls and copies of at most this many bytes.
    Micro(Target, usize),
    /// Launch a kernel in a loop.
    Share(Target, Load),
    /// Allocate until the API refuses, at most this many bytes.
    Memory(Target, u64),
    /// Compare results.
    Report(ReportOptions),
}

/// The API to use and where results go.
#[derive(Debug)]
pub struct Target {
    /// The API.
    pub api: ApiKind,
    /// The library to load instead of the API's default.
    pub library: Option<PathBuf>,
    /// The file for all measured data.
    pub json: Option<PathBuf>,
}

impl Target {
    /// Returns the library as given, for reports.
    pub fn library_name(&self) -> String {
        match &self.library {
            Some(path) => path.display().to_string(),
            None => self.api.default_library().to_string(),
        }
    }

    /// Writes `report` to the file of `--json`, if one is given.
    pub fn write_json(&self, report: &impl serde::Serialize) -> Result<(), Box<dyn std::error::Error>> {
        let Some(path) = &self.json else {
            return Ok(());
        };
        let mut text = serde_json::to_string_pretty(report)?;
        text.push('\n');
        std::fs::write(path, text).map_err(|error| format!("can't write {}: {error}", path.display()).into())
    }
}

/// Options of a run of kernels.
#[derive(Debug)]
pub struct RunOptions {
    /// API and library.
    pub target: Target,
    /// The problem size.
    pub size: Size,
    /// Kernels to run; empty for all.
    pub kernels: Vec<String>,
    /// Measured runs.
    pub runs: usize,
    /// Whether to print calls.
    pub calls: bool,
    /// Seed of the inputs.
    pub seed: u64,
}

/// Options of a comparison of results.
#[derive(Debug)]
pub struct ReportOptions {
    /// Directories with results.
    pub directories: Vec<PathBuf>,
    /// The file for the tables; `None` for standard output.
    pub markdown: Option<PathBuf>,
    /// The file for the drawing.
    pub svg: Option<PathBuf>,
}

/// Options as written, before a command takes those it knows.
struct Options {
    given: Vec<(String, Option<String>)>,
}

/// Options without a value.
const FLAGS: [&str; 4] = ["--help", "--list", "--calls", "--memory-until-refused"];

impl Options {
    fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut given = Vec::new();
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            if !name.starts_with("--") {
                return Err(format!("unexpected argument \"{name}\""));
            }
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name.to_string(), Some(value.to_string())),
                None if FLAGS.contains(&name.as_str()) => (name, None),
                None => {
                    let value = arguments.next().ok_or(format!("{name} needs a value"))?;
                    (name, Some(value))
                }
            };
            given.push((name, value));
        }
        Ok(Self { given })
    }

    fn flag(&mut self, name: &str) -> bool {
        let before = self.given.len();
        self.given.retain(|(given, _)| given != name);
        self.given.len() < before
    }

    fn values(&mut self, name: &str) -> Vec<String> {
        let (taken, rest) = std::mem::take(&mut self.given).into_iter().partition(|(given, _)| given == name);
        self.given = rest;
        let taken: Vec<(String, Option<String>)> = taken;
        taken.into_iter().filter_map(|(_, value)| value).collect()
    }

    fn value(&mut self, name: &str) -> Option<String> {
        self.values(name).pop()
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str) -> Result<Option<T>, String> {
        let Some(text) = self.value(name) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(format!("{name} needs a number, not \"{text}\"")),
        }
    }

    fn target(&mut self) -> Result<Target, String> {
        let api = match self.value("--api").as_deref() {
            Some("opencl") => ApiKind::OpenCl,
            Some("cuda") => ApiKind::Cuda,
            Some(other) => return Err(format!("unknown API \"{other}\": use --api opencl or --api cuda")),
            None => return Err("no API given: use --api opencl or --api cuda".to_string()),
        };
        Ok(Target { api, library: self.value("--library").map(PathBuf::from), json: self.value("--json").map(PathBuf::from) })
    }

    fn refuse_rest<T>(self, command: T) -> Result<T, String> {
        match self.given.first() {
            Some((name, _)) => Err(format!("option {name} is unknown or does not belong to this command")),
            None => Ok(command),
        }
    }
}

/// Parses the arguments after the program's name. Errors are one sentence for the terminal.
pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut arguments = arguments.peekable();
    let command = arguments.next_if(|first| !first.starts_with("--"));
    let mut directories = Vec::new();
    if command.as_deref() == Some("report") {
        directories.extend(std::iter::from_fn(|| arguments.next_if(|next| !next.starts_with("--"))).map(PathBuf::from));
    }
    let mut options = Options::read(arguments)?;
    if options.flag("--help") {
        return Ok(Command::Help);
    }
    let command = match command.as_deref() {
        Some("report") => parse_report(directories, &mut options)?,
        None if options.flag("--list") => Command::List,
        None => parse_run(&mut options)?,
        Some("micro") => {
            let largest = options.number("--largest-copy")?.unwrap_or(usize::MAX);
            Command::Micro(options.target()?, largest)
        }
        Some("share") if options.flag("--memory-until-refused") => {
            let limit = options.number("--limit")?.unwrap_or(u64::MAX);
            Command::Memory(options.target()?, limit)
        }
        Some("share") => parse_share(&mut options)?,
        Some(other) => return Err(format!("unknown command \"{other}\": use micro, share or report, or none to run kernels")),
    };
    options.refuse_rest(command)
}

fn parse_run(options: &mut Options) -> Result<Command, String> {
    let run = RunOptions {
        target: options.target()?,
        size: parse_size(options.value("--size"))?,
        kernels: parse_kernels(options.values("--kernel"))?,
        runs: options.number("--runs")?.unwrap_or(5),
        calls: options.flag("--calls"),
        seed: options.number("--seed")?.unwrap_or(1),
    };
    if run.runs == 0 {
        return Err("--runs needs at least 1".to_string());
    }
    Ok(Command::Run(run))
}

fn parse_share(options: &mut Options) -> Result<Command, String> {
    let load = Load {
        seconds: options.number("--seconds")?.unwrap_or(Load::DEFAULT.seconds),
        at_unix_s: options.number("--at")?,
        groups: options.number("--groups")?.unwrap_or(Load::DEFAULT.groups),
        rounds: options.number("--rounds")?.unwrap_or(Load::DEFAULT.rounds),
        depth: options.number("--depth")?.unwrap_or(Load::DEFAULT.depth),
    };
    if !(load.seconds > 0.0 && load.seconds <= 86_400.0) {
        return Err(format!("--seconds must be more than 0 and at most 86400, not {}", load.seconds));
    }
    if load.at_unix_s.is_some_and(|at| !at.is_finite()) {
        return Err("--at needs a time in seconds since 1970".to_string());
    }
    for (name, fits) in [
        ("--groups", (1..=1 << 20).contains(&load.groups)),
        ("--rounds", load.rounds >= 1),
        ("--depth", (1..=1 << 16).contains(&load.depth)),
    ] {
        if !fits {
            return Err(format!("{name} is out of range"));
        }
    }
    Ok(Command::Share(options.target()?, load))
}

fn parse_report(directories: Vec<PathBuf>, options: &mut Options) -> Result<Command, String> {
    if directories.is_empty() {
        return Err("report needs a directory with results before its options".to_string());
    }
    let mut file = |name| options.value(name).map(PathBuf::from);
    Ok(Command::Report(ReportOptions { directories, markdown: file("--markdown"), svg: file("--svg") }))
}

fn parse_size(text: Option<String>) -> Result<Size, String> {
    let text = text.ok_or("no size given: use --size test, published or large")?;
    Size::ALL.into_iter().find(|size| size.name() == text).ok_or(format!("unknown size \"{text}\": use test, published or large"))
}

fn parse_kernels(names: Vec<String>) -> Result<Vec<String>, String> {
    for name in &names {
        if !KERNELS.iter().any(|kernel| kernel.name == name) {
            let known: Vec<&str> = KERNELS.iter().map(|kernel| kernel.name).collect();
            return Err(format!("unknown kernel \"{name}\": use {}", known.join(", ")));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_string))
    }

    #[test]
    fn a_wrong_command_line_says_what_to_write() {
        for (line, part) in [
            ("", "use --api opencl or --api cuda"),
            ("--api vulkan --size test", "unknown API \"vulkan\""),
            ("--api cuda", "use --size test, published or large"),
            ("--api cuda --size huge", "unknown size \"huge\""),
            ("--api cuda --size test --kernel sort", "unknown kernel \"sort\": use backprop, bfs"),
            ("--api cuda --size test --runs 0", "--runs needs at least 1"),
            ("--api cuda --size test --runs many", "--runs needs a number, not \"many\""),
            ("--api cuda --size test --seconds 3", "--seconds is unknown or does not belong"),
            ("--api cuda --size", "--size needs a value"),
            ("bench --api cuda", "unknown command \"bench\""),
            ("share --api cuda --seconds -1", "--seconds must be more than 0"),
            ("share --api cuda --depth 0", "--depth is out of range"),
            ("report", "report needs a directory"),
            ("report a --api cuda", "--api is unknown or does not belong"),
        ] {
            let message = parsed(line).expect_err(line);
            assert!(message.contains(part), "{line}: got \"{message}\", want \"{part}\"");
        }
    }

    #[test]
    fn a_report_takes_several_directories() {
        let Ok(Command::Report(report)) = parsed("report a b --svg c.svg") else { panic!("the line is refused") };
        assert_eq!(report.directories, [PathBuf::from("a"), PathBuf::from("b")]);
        assert_eq!((report.markdown, report.svg), (None, Some(PathBuf::from("c.svg"))));
    }

    #[test]
    fn options_take_their_value_after_a_space_or_an_equals_sign() {
        let Ok(Command::Run(run)) = parsed("--api=opencl --size test --kernel nw --kernel=bfs --runs 3") else {
            panic!("the line is refused")
        };
        assert_eq!((run.target.api, run.size, run.runs), (ApiKind::OpenCl, Size::Test, 3));
        assert_eq!(run.kernels, ["nw", "bfs"]);
    }
}
