//! `nearmetal-gpu-kernels`: runs and times GPU kernels through OpenCL or CUDA.

use std::process::ExitCode;

mod arguments;

use arguments::{Command, RunOptions, Target};
use nearmetal_gpu_kernels::api::{Api, Device};
use nearmetal_gpu_kernels::cases::{Size, KERNELS};
use nearmetal_gpu_kernels::measure::{measure, Measurement};
use nearmetal_gpu_kernels::{memory, micro, report, share};

type AnyError = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let command = match arguments::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("nearmetal-gpu-kernels: {message}\nRun \"nearmetal-gpu-kernels --help\" for usage.");
            return ExitCode::from(2);
        }
    };
    let result = match command {
        Command::Help => {
            print!("{}", arguments::USAGE);
            Ok(())
        }
        Command::List => {
            list();
            Ok(())
        }
        Command::Run(options) => run(&options),
        Command::Micro(target, largest) => on_device(&target, |device| micro::run(device, largest)),
        Command::Share(target, load) => on_device(&target, |device| Ok(share::run(device, load)?)),
        Command::Memory(target, limit) => on_device(&target, |device| Ok(memory::allocate_until_refused(device, limit)?)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nearmetal-gpu-kernels: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    for kernel in KERNELS {
        println!("{:<11} {}", kernel.name, kernel.summary);
        for size in Size::ALL {
            println!("    {:<10} {}", size.name(), kernel.problems(size).join("; "));
        }
    }
}

/// What `--json` writes.
#[derive(serde::Serialize)]
struct Report<'a> {
    api: &'static str,
    library: String,
    size: &'static str,
    seed: u64,
    measurements: &'a [Measurement],
}

fn run(options: &RunOptions) -> Result<(), AnyError> {
    let api = Api::load(options.target.api, options.target.library.as_deref())?;
    let mut measurements = Vec::new();
    for kernel in KERNELS {
        if !options.kernels.is_empty() && !options.kernels.iter().any(|name| name == kernel.name) {
            continue;
        }
        for mut case in kernel.cases(options.size, options.seed) {
            let measurement = measure(&api, kernel.name, case.as_mut(), options.runs)
                .map_err(|error| format!("{} ({}): {error}", kernel.name, case.problem()))?;
            if measurements.is_empty() {
                println!("{}\n{}", measurement.device, report::heading());
            }
            println!("{}", report::row(&measurement));
            if options.calls {
                print!("{}", report::calls(&measurement));
            }
            measurements.push(measurement);
        }
    }
    options.target.write_json(&Report {
        api: options.target.api.name(),
        library: options.target.library_name(),
        size: options.size.name(),
        seed: options.seed,
        measurements: &measurements,
    })
}

/// Opens a device, prints what `measure` reports and writes it to the file of `--json`.
fn on_device<R>(target: &Target, measure: impl FnOnce(&mut dyn Device) -> Result<R, AnyError>) -> Result<(), AnyError>
where
    R: std::fmt::Display + serde::Serialize,
{
    let mut device = Api::load(target.api, target.library.as_deref())?.open()?;
    let report = measure(device.as_mut())?;
    device.close()?;
    print!("{report}");
    target.write_json(&report)
}
