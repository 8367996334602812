//! The command line.

use std::os::fd::{BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;

use gpuremote_transport::Address;
use gpuremote_wire::TOKEN_BYTES;

use crate::bound::{Bound, Table, PLACES};
use crate::library::KINDS;

pub const HELP: &str = "\
nearmetal-gpu-server runs the GPU calls of clients on this host's GPUs, each client in a process of its own.

Usage: nearmetal-gpu-server --listen ADDRESS [FLAG...]

  --listen ADDRESS      unix:PATH (shared memory, for clients on this host) or tcp:HOST:PORT; may be repeated
  --token-file FILE     the token that clients must have: 64 hexadecimal digits (default: whoever reaches the server is a client)
  --tls DIR             by TCP, serve only who shows the certificate of --member; DIR has ca.crt, workload.crt and workload.key
  --member URI          the URI in that certificate
  --supervise           start a server that was killed again
  --cuda LIBRARY        CUDA's driver (default libcuda.so.1)
  --cublas LIBRARY      CUDA's libraries, likewise (default libcublas.so.13 and so on): they are loaded when a client needs them
  --opencl LIBRARY      OpenCL's loader, or a driver (default libOpenCL.so.1)
  --memory-mib N        GPU memory that each client may have, in MiB (default: all there is)
  --memory-together     all clients have that together
  --counts FILE         write to FILE each second what clients have done; goes with --memory-together
  --clients N           the most clients at a time (default 256)
  --help                print this
";

/// What the command line says.
#[derive(Clone, Debug)]
pub struct Options {
    pub listen: Vec<Address>,
    pub token: [u8; TOKEN_BYTES],
    pub token_file: Option<String>,
    /// Where the server's certificate is, and the URI in that of its clients.
    pub tls: Option<String>,
    pub member: Option<String>,
    /// Whether a process watches over the listener.
    pub supervise: bool,
    pub cuda: String,
    /// OpenCL's loader, or a driver.
    pub opencl: String,
    /// Files of CUDA's libraries, in the order of their kinds; none where it is the usual one.
    pub libraries: [Option<String>; KINDS.len()],
    /// GPU memory that each client may have, in bytes.
    pub memory_bytes: u64,
    /// Whether all clients have that together, and a client's place in the table of what each has: the number of an open file, and of the place.
    pub together: bool,
    pub place: Option<(RawFd, usize)>,
    /// The file that tells what clients have done.
    pub counts: Option<PathBuf>,
    /// The most clients at a time: each is a process with a context of the driver.
    pub clients: usize,
}

pub fn read(arguments: Vec<String>) -> Result<Options, String> {
    let mut options = Options {
        listen: Vec::new(),
        token: [0; TOKEN_BYTES],
        token_file: None,
        tls: None,
        member: None,
        supervise: false,
        cuda: "libcuda.so.1".into(),
        opencl: "libOpenCL.so.1".into(),
        libraries: [const { None }; KINDS.len()],
        memory_bytes: u64::MAX,
        together: false,
        place: None,
        counts: None,
        clients: 256,
    };
    let mut rest = arguments.into_iter();
    while let Some(argument) = rest.next() {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (argument, None),
        };
        let mut value = || value.clone().or_else(|| rest.next()).ok_or(format!("{flag} needs a value"));
        match flag.as_str() {
            "--listen" => options.listen.push(value()?.parse()?),
            "--tls" => options.tls = Some(value()?),
            "--member" => options.member = Some(value()?),
            "--supervise" => options.supervise = true,
            "--cuda" => options.cuda = value()?,
            "--opencl" => options.opencl = value()?,
            "--memory-mib" => {
                let text = value()?;
                let mib: u64 = text.parse().ok().filter(|&mib| mib > 0).ok_or(format!("--memory-mib {text}: write a number of MiB"))?;
                options.memory_bytes = mib.saturating_mul(1 << 20);
            }
            "--memory-together" => options.together = true,
            "--counts" => options.counts = Some(value()?.into()),
            "--place" => {
                let text = value()?;
                let place = text.split_once(':').and_then(|(file, place)| Some((file.parse().ok()?, place.parse().ok()?)));
                options.place = Some(place.filter(|&(_, place)| place < PLACES).ok_or(format!("--place {text}: it is for workers"))?);
            }
            "--clients" => {
                let text = value()?;
                options.clients = text
                    .parse()
                    .ok()
                    .filter(|&clients| (1..=PLACES).contains(&clients))
                    .ok_or(format!("--clients {text}: write a number of clients, at most {PLACES}"))?;
            }
            "--token-file" => {
                let path = value()?;
                let text = std::fs::read_to_string(&path).map_err(|error| format!("--token-file {path}: {error}"))?;
                options.token = gpuremote_wire::token_of_hex(text.trim())
                    .ok_or(format!("--token-file {path}: the file does not hold 64 hexadecimal digits"))?;
                options.token_file = Some(path);
            }
            library if library_kind(library).is_some() => {
                options.libraries[library_kind(library).expect("it was found")] = Some(value()?);
            }
            _ => return Err(format!("unknown flag {flag}; see --help")),
        }
    }
    if options.tls.is_some() != options.member.is_some() {
        return Err("--tls and --member go together: the one is this server's certificate, the other who its clients are".into());
    }
    if options.counts.is_some() && !options.together {
        return Err("--counts needs --memory-together: clients count in the table of what they have together".into());
    }
    Ok(options)
}

/// The kind of CUDA's libraries that a flag names.
fn library_kind(flag: &str) -> Option<usize> {
    KINDS.iter().position(|kind| flag.strip_prefix("--") == Some(kind.name))
}

impl Options {
    /// The file of a kind of CUDA's libraries.
    pub fn library(&self, kind: usize) -> &str {
        self.libraries[kind].as_deref().unwrap_or(KINDS[kind].file)
    }

    /// What a worker needs to know of these.
    pub fn for_worker(&self) -> Vec<String> {
        let mut arguments = vec!["--cuda".to_owned(), self.cuda.clone(), "--opencl".to_owned(), self.opencl.clone()];
        for (kind, file) in KINDS.iter().zip(&self.libraries) {
            arguments.extend(file.iter().flat_map(|file| [format!("--{}", kind.name), file.clone()]));
        }
        if self.memory_bytes != u64::MAX {
            arguments.extend(["--memory-mib".to_owned(), (self.memory_bytes >> 20).to_string()]);
        }
        arguments
    }

    /// The bound of a client's memory.
    pub fn bound(&self) -> Result<Arc<Bound>, String> {
        Ok(Arc::new(match self.table()? {
            Some((table, place)) => Bound::shared(self.memory_bytes, table, place),
            None => Bound::alone(self.memory_bytes),
        }))
    }

    /// The table of what clients have and do, and a client's place in it; none where each has a bound of its own.
    pub fn table(&self) -> Result<Option<(Table, usize)>, String> {
        let Some((file, place)) = self.place else { return Ok(None) };
        // SAFETY: the server that started this process left the file open for it.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        let table = Table::map(&file).map_err(|error| format!("can't map what clients have of the memory: {error}"))?;
        Ok(Some((table, place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn flags_are_read_or_named() {
        let options = read(words("--listen unix:/a --listen=tcp:h:1 --memory-mib 2 --cuda x")).unwrap();
        assert_eq!((options.listen.len(), options.memory_bytes, options.cuda.as_str()), (2, 2 << 20, "x"));
        assert_eq!(read(options.for_worker()).unwrap().memory_bytes, 2 << 20);
        for (text, complaint) in [
            ("--listen", "needs a value"),
            ("--listen x", "unix:PATH"),
            ("--memory-mib 0", "number of MiB"),
            ("--clients 0", "number of clients"),
            ("--what", "unknown flag --what"),
            ("--counts /c", "--counts needs --memory-together"),
        ] {
            assert!(read(words(text)).unwrap_err().contains(complaint), "{text}");
        }
    }
}
