//! `nearmetal-gpu-kernels`: runs and times GPU kernels through OpenCL or CUDA.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

mod arguments;

use arguments::{Command, ReportOptions, RunOptions, Target};
use nearmetal_gpu_kernels::api::{Api, Device};
use nearmetal_gpu_kernels::cases::{Size, KERNELS};
use nearmetal_gpu_kernels::machine::Machine;
use nearmetal_gpu_kernels::measure::{measure, KernelReport, Measurement};
use nearmetal_gpu_kernels::{memory, micro, report, share, table};

type AnyError = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let command = match arguments::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("nearmetal-gpu-kernels: {message}\nRun \"nearmetal-gpu-kernels --help\" for usage.");
            return ExitCode::from(2);
        }
    };
    let out = &mut std::io::stdout().lock();
    let result = match command {
        Command::Help => out.write_all(arguments::USAGE.as_bytes()).map_err(AnyError::from),
        Command::List => list(out).map_err(AnyError::from),
        Command::Run(options) => run(&options, out),
        Command::Micro(target, largest) => on_device(&target, out, |device| micro::run(device, largest)),
        Command::Share(target, load) => on_device(&target, out, |device| Ok(share::run(device, load)?)),
        Command::Memory(target, limit) => on_device(&target, out, |device| Ok(memory::allocate_until_refused(device, limit)?)),
        Command::Report(options) => compare(&options, out),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nearmetal-gpu-kernels: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list(out: &mut dyn Write) -> io::Result<()> {
    for kernel in KERNELS {
        writeln!(out, "{:<11} {}", kernel.name, kernel.summary)?;
        for size in Size::ALL {
            writeln!(out, "    {:<10} {}", size.name(), kernel.problems(size).join("; "))?;
        }
    }
    Ok(())
}

/// Measures all kernels asked for. A failure doesn't keep the others from running, and the file of `--json` has their data.
fn run(options: &RunOptions, out: &mut dyn Write) -> Result<(), AnyError> {
    let api = Api::load(options.target.api, options.target.library.as_deref())?;
    let mut report = KernelReport {
        api: options.target.api.name().into(),
        library: options.target.library_name(),
        size: options.size.name().into(),
        seed: options.seed,
        machine: Machine::read(),
        measurements: Vec::new(),
        failures: Vec::new(),
    };
    for kernel in KERNELS {
        if !options.kernels.is_empty() && !options.kernels.iter().any(|name| name == kernel.name) {
            continue;
        }
        for mut case in kernel.cases(options.size, options.seed) {
            match measure(&api, kernel.name, case.as_mut(), options.runs) {
                Ok(measurement) => {
                    print_measurement(out, &measurement, report.measurements.is_empty(), options.calls)?;
                    report.measurements.push(measurement);
                }
                Err(error) => {
                    let failure = format!("{} ({}): {error}", kernel.name, case.problem());
                    eprintln!("nearmetal-gpu-kernels: {failure}");
                    report.failures.push(failure);
                }
            }
        }
    }
    options.target.write_json(&report)?;
    match report.failures.len() {
        0 => Ok(()),
        count => Err(format!("{count} of {} measurements failed", count + report.measurements.len()).into()),
    }
}

fn print_measurement(out: &mut dyn Write, measurement: &Measurement, first: bool, calls: bool) -> io::Result<()> {
    if first {
        writeln!(out, "{}\n{}", measurement.device, table::heading())?;
    }
    writeln!(out, "{}", table::row(measurement))?;
    if calls {
        out.write_all(table::calls(measurement).as_bytes())?;
    }
    out.flush()
}

/// Writes tables and drawing of results. Nothing is written if a directory or file is wrong.
fn compare(options: &ReportOptions, out: &mut dyn Write) -> Result<(), AnyError> {
    let directories: Result<Vec<_>, _> = options.directories.iter().map(|path| report::files::Directory::read(path)).collect();
    let directories = directories?;
    let write = |path: &Path, text: String| std::fs::write(path, text).map_err(|error| format!("can't write {}: {error}", path.display()));
    if let Some(path) = &options.svg {
        write(path, report::svg(&directories).ok_or("no kernel has results by local and by memory or tcp, so there is nothing to draw")?)?;
    }
    let text = report::markdown(&directories);
    match &options.markdown {
        Some(path) => Ok(write(path, text)?),
        None => Ok(out.write_all(text.as_bytes())?),
    }
}

/// Opens a device, prints what `measure` reports and writes it to the file of `--json`.
fn on_device<R>(target: &Target, out: &mut dyn Write, measure: impl FnOnce(&mut dyn Device) -> Result<R, AnyError>) -> Result<(), AnyError>
where
    R: std::fmt::Display + serde::Serialize,
{
    let mut device = Api::load(target.api, target.library.as_deref())?.open()?;
    let report = measure(device.as_mut())?;
    device.close()?;
    write!(out, "{report}")?;
    target.write_json(&report)
}
