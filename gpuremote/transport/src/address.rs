//! Where a server listens.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A server's address: `unix:PATH` or `tcp:HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket on this host. Calls go through shared memory.
    Unix(PathBuf),
    /// A host, by name or IP address, and a port.
    Tcp(String),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no address of a GPU server: write unix:PATH or tcp:HOST:PORT");
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Address::Unix(path.into())),
            Some(("tcp", host)) if host.rsplit_once(':').is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok()) => {
                Ok(Address::Tcp(host.to_owned()))
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(host) => write!(f, "tcp:{host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused() {
        for text in ["unix:/run/gpu.sock", "tcp:10.0.0.1:7070", "tcp:[::1]:7070"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "tcp:host", "tcp::1", "tcp:host:x", "udp:host:1"] {
            assert!(text.parse::<Address>().unwrap_err().contains("tcp:HOST:PORT"), "{text}");
        }
    }
}
