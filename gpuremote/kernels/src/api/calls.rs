//! The log of API calls: how often each was made, how long the host spent in it, how much it copied.

use std::borrow::Cow;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// What a call copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transfer {
    /// Nothing.
    None,
    /// From host to device.
    ToDevice,
    /// From device to host.
    FromDevice,
    /// Within the device.
    OnDevice,
}

/// All calls of one function.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallTotal {
    /// The API function.
    pub name: Cow<'static, str>,
    /// What the function copies.
    pub transfer: Transfer,
    /// Number of calls.
    pub count: u64,
    /// Time on the host within these calls.
    pub total_s: f64,
    /// The longest call.
    pub longest_s: f64,
    /// Bytes copied.
    pub bytes: u64,
}

/// Calls by function, in the order of their first use.
#[derive(Clone, Debug, Default)]
pub struct CallLog {
    totals: Vec<CallTotal>,
}

impl CallLog {
    /// Makes a call that copies nothing and logs it.
    pub fn time<R>(&mut self, name: &'static str, call: impl FnOnce() -> R) -> R {
        self.time_copy(name, Transfer::None, 0, call)
    }

    /// Makes a call that copies `bytes` and logs it.
    pub fn time_copy<R>(&mut self, name: &'static str, transfer: Transfer, bytes: usize, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        let seconds = start.elapsed().as_secs_f64();
        let index = self.totals.iter().position(|total| total.name == name).unwrap_or_else(|| {
            self.totals.push(CallTotal { name: name.into(), transfer, count: 0, total_s: 0.0, longest_s: 0.0, bytes: 0 });
            self.totals.len() - 1
        });
        let total = &mut self.totals[index];
        total.count += 1;
        total.total_s += seconds;
        total.longest_s = total.longest_s.max(seconds);
        total.bytes += bytes as u64;
        result
    }

    /// Returns the calls logged so far and starts anew.
    pub fn take(&mut self) -> Vec<CallTotal> {
        std::mem::take(&mut self.totals)
    }
}
