//! Tickets for sessions with a GPU server. A client that shows the certificate of the server's member, by mutual TLS, gets a ticket on that connection, and
//! opens its session with it on another. So no call and no copy is encrypted: whoever wants that encrypts the network.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, Stream};

/// Length of a ticket, in bytes.
pub const TICKET_BYTES: usize = 32;
/// The first byte of a TLS connection: a record of the handshake (RFC 8446, section 5.1). No greeting begins with it.
pub const FIRST_BYTE: u8 = 22;
/// The member's certificates, in their directory.
const AUTHORITY: &str = "ca.crt";
const CERTIFICATE: &str = "workload.crt";
const KEY: &str = "workload.key";
/// A ticket is used at once, or not at all.
const LIFE: Duration = Duration::from_secs(30);
/// So many tickets wait at most; the oldest is dropped for a further one.
const MOST: usize = 4096;

/// Why a certificate can't be used, or a peer's is refused.
#[derive(Debug)]
pub struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        io::Error::new(io::ErrorKind::PermissionDenied, refusal.0)
    }
}

/// What a side shows, and whom it trusts.
struct Identity {
    roots: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads a directory with `ca.crt`, `workload.crt` and `workload.key`.
    fn read(directory: &Path) -> Result<Self, Refusal> {
        let of = |name: &str, why: &dyn fmt::Display| Refusal(format!("{}: {why}", directory.join(name).display()));
        let certificates = |name: &str| -> Result<Vec<CertificateDer<'static>>, Refusal> {
            let file = File::open(directory.join(name)).map_err(|error| of(name, &error))?;
            CertificateDer::pem_reader_iter(BufReader::new(file)).collect::<Result<_, _>>().map_err(|error| of(name, &error))
        };
        let mut roots = RootCertStore::empty();
        for authority in certificates(AUTHORITY)? {
            roots.add(authority).map_err(|error| of(AUTHORITY, &error))?;
        }
        let key = File::open(directory.join(KEY)).map_err(|error| of(KEY, &error))?;
        let key = PrivateKeyDer::from_pem_reader(BufReader::new(key)).map_err(|error| of(KEY, &error))?;
        Ok(Identity { roots, chain: certificates(CERTIFICATE)?, key })
    }
}

fn wrong(error: impl fmt::Display) -> Refusal {
    Refusal(error.to_string())
}

/// Asks a server for a ticket. The stream is a new connection to the server, which must have a certificate for its address.
pub fn ask(mut stream: TcpStream, directory: &Path) -> io::Result<[u8; TICKET_BYTES]> {
    let identity = Identity::read(directory)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(wrong)?
        .with_root_certificates(identity.roots)
        .with_client_auth_cert(identity.chain, identity.key)
        .map_err(wrong)?;
    let server: IpAddr = stream.peer_addr()?.ip();
    let mut connection = ClientConnection::new(Arc::new(config), ServerName::from(server)).map_err(wrong)?;
    let mut ticket = [0; TICKET_BYTES];
    Stream::new(&mut connection, &mut stream).read_exact(&mut ticket)?;
    Ok(ticket)
}

/// The server's side: it gives tickets to one client only, and takes each once.
pub struct Office {
    directory: std::path::PathBuf,
    client: String,
    given: Mutex<HashMap<[u8; TICKET_BYTES], Instant>>,
}

impl Office {
    /// An office for the client whose certificate names it by this URI. The server's own certificate is in the directory.
    pub fn open(directory: &Path, client: &str) -> Result<Self, Refusal> {
        let office = Office { directory: directory.to_owned(), client: client.to_owned(), given: Mutex::default() };
        office.config().map(|_| office)
    }

    /// The certificate is read each time: it is renewed while the server runs.
    fn config(&self) -> Result<ServerConfig, Refusal> {
        let identity = Identity::read(&self.directory)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(identity.roots), Arc::clone(&provider)).build().map_err(wrong)?;
        ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(wrong)?
            .with_client_cert_verifier(clients)
            .with_single_cert(identity.chain, identity.key)
            .map_err(wrong)
    }

    /// Gives a ticket to a client that has begun a handshake.
    pub fn give(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut config = self.config()?;
        config.send_tls13_tickets = 0; // nothing is resumed
        let mut connection = ServerConnection::new(Arc::new(config)).map_err(wrong)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        self.check(connection.peer_certificates().and_then(|chain| chain.first()))?;
        let mut ticket = [0; TICKET_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut ticket)?;
        self.keep(ticket, Instant::now());
        let mut tls = Stream::new(&mut connection, &mut stream);
        tls.write_all(&ticket)?;
        tls.conn.send_close_notify();
        tls.flush()
    }

    fn check(&self, certificate: Option<&CertificateDer<'_>>) -> Result<(), Refusal> {
        let certificate = certificate.ok_or(Refusal("it shows no certificate".into()))?;
        let certificate = webpki::EndEntityCert::try_from(certificate).map_err(wrong)?;
        let named: Vec<&str> = certificate.valid_uri_names().collect();
        if named == [self.client.as_str()] {
            return Ok(());
        }
        Err(Refusal(format!("the certificate is that of {}, and not that of the member whose GPU this is", named.join(", "))))
    }

    fn keep(&self, ticket: [u8; TICKET_BYTES], now: Instant) {
        let mut given = self.given.lock().expect("no one panics with this lock");
        given.retain(|_, at| now.duration_since(*at) < LIFE);
        if given.len() >= MOST {
            let oldest = given.iter().min_by_key(|(_, at)| **at).map(|(ticket, _)| *ticket);
            oldest.and_then(|ticket| given.remove(&ticket));
        }
        given.insert(ticket, now);
    }

    /// Takes a ticket. It reports whether it was given, not too long ago, and not taken yet.
    pub fn take(&self, ticket: &[u8; TICKET_BYTES]) -> bool {
        self.take_at(ticket, Instant::now())
    }

    fn take_at(&self, ticket: &[u8; TICKET_BYTES], now: Instant) -> bool {
        let taken = self.given.lock().expect("no one panics with this lock").remove(ticket);
        taken.is_some_and(|at| now.duration_since(at) < LIFE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn office() -> Office {
        Office { directory: "/".into(), client: "x".into(), given: Mutex::default() }
    }

    #[test]
    fn a_ticket_ends_unused() {
        let (office, given) = (office(), Instant::now());
        office.keep([1; TICKET_BYTES], given);
        office.keep([2; TICKET_BYTES], given);
        assert!(office.take_at(&[1; TICKET_BYTES], given + LIFE - Duration::from_secs(1)));
        assert!(!office.take_at(&[2; TICKET_BYTES], given + LIFE));
    }

    #[test]
    fn tickets_that_nobody_takes_are_bounded() {
        let (office, start) = (office(), Instant::now());
        for n in 0..MOST as u64 + 8 {
            let mut ticket = [0; TICKET_BYTES];
            ticket[..8].copy_from_slice(&n.to_le_bytes());
            office.keep(ticket, start + Duration::from_micros(n));
        }
        assert_eq!(office.given.lock().unwrap().len(), MOST);
        assert!(!office.take_at(&[0; TICKET_BYTES], start), "the oldest was kept");
    }
}
