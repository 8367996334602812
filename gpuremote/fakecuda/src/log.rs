//! The log of calls.

use crate::abi::{name_of, CUresult};
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;

fn file() -> Option<&'static File> {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = std::env::var_os("FAKE_CUDA_LOG")?;
        match OpenOptions::new().create(true).append(true).open(&path) {
            Ok(file) => Some(file),
            Err(error) => {
                eprintln!("fakecuda: can't write the log {path:?}: {error}");
                None
            }
        }
    })
    .as_ref()
}

/// Appends one line for a finished call, if a log is requested.
pub fn call(function: &str, arguments: &[(&str, &dyn Debug)], result: CUresult) {
    let Some(mut file) = file() else { return };
    let arguments: Vec<String> = arguments.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    let line = format!("{function}({}) = {}\n", arguments.join(", "), name_of(result));
    // One write, so that lines of several threads and processes don't mix. A failed write loses the line and nothing else.
    let _ = file.write_all(line.as_bytes());
}
