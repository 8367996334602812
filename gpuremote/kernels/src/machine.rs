//! The host on which results were measured.

use std::fmt;
use std::fs;

use serde::{Deserialize, Serialize};

/// Processors and operating system of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processors' model.
    pub processor: String,
    /// Logical processors that this process may use.
    pub processors: usize,
    /// Name and release of the operating system's kernel.
    pub system: String,
}

impl Machine {
    /// Returns this host's description from Linux's `/proc`, or `None` if that can't be read.
    pub fn read() -> Option<Self> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        Some(Self {
            processor: model(&fs::read_to_string("/proc/cpuinfo").ok()?).unwrap_or_else(|| std::env::consts::ARCH.to_string()),
            processors: std::thread::available_parallelism().ok()?.get(),
            system: format!("Linux {}", release.trim()),
        })
    }
}

/// Returns the first model in the text of `/proc/cpuinfo`, which some architectures lack.
fn model(cpuinfo: &str) -> Option<String> {
    cpuinfo.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "model name").then(|| value.trim().to_string())
    })
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} processors, {}", self.processor, self.processors, self.system)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_that_of_the_first_processor() {
        assert_eq!(model("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n").as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(model("processor\t: 0\nBogoMIPS\t: 50\n"), None);
    }
}
