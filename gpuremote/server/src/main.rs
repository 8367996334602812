//! `nearmetal-gpu-server` runs the GPU calls of clients, each in a process of its own.

mod bound;
mod counts;
mod cuda;
mod handles;
mod library;
mod listen;
mod opencl;
mod options;
mod order;
mod output;
mod supervise;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = if arguments.first().is_some_and(|first| first == listen::WORKER) {
        arguments.remove(0);
        options::read(arguments).and_then(|options| worker::run(&options))
    } else if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print!("{}", options::HELP);
        Ok(())
    } else {
        options::read(arguments.clone()).and_then(|options| match options.supervise {
            true => supervise::run(arguments),
            false => listen::run(&options),
        })
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nearmetal-gpu-server: {error}");
            ExitCode::FAILURE
        }
    }
}
