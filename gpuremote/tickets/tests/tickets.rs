//! Tickets between real sockets, with certificates that openssl makes as a cluster's authority does.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io, thread};

use gpuremote_tickets::{ask, Office};

const MEMBER: &str = "nearmetal://workload/u1/u1.c-0.1";

fn openssl(arguments: &[&str]) {
    let ran = Command::new("openssl").args(arguments).output().expect("openssl runs");
    assert!(ran.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// A directory that ends with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpuremote-tickets-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// An authority of a cluster.
    fn authority(&self, name: &str) {
        let (key, certificate) = (self.file(&format!("{name}.key")), self.file(&format!("{name}.crt")));
        let request =
            ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=authority"];
        openssl(&[&request[..], &["-keyout", &key, "-out", &certificate]].concat());
    }

    /// The directory of who is named, with a certificate of the authority.
    fn identity(&self, authority: &str, name: &str, names: &str) -> PathBuf {
        let folder = self.0.join(name);
        fs::create_dir_all(&folder).unwrap();
        let at = |file: &str| folder.join(file).to_str().unwrap().to_owned();
        let request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=x"];
        let by = ["-CA", &self.file(&format!("{authority}.crt")), "-CAkey", &self.file(&format!("{authority}.key"))];
        let names = format!("subjectAltName={names}");
        let of = ["-addext", &names, "-addext", "basicConstraints=critical,CA:FALSE", "-addext", "extendedKeyUsage=clientAuth,serverAuth"];
        openssl(&[&request[..], &by, &of, &["-keyout", &at("workload.key"), "-out", &at("workload.crt")]].concat());
        fs::copy(self.0.join(format!("{authority}.crt")), folder.join("ca.crt")).unwrap();
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Gives tickets at an address, until the test ends.
fn serve(directory: &Path) -> (Arc<Office>, String) {
    let office = Arc::new(Office::open(directory, MEMBER).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let giving = Arc::clone(&office);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let _ = giving.give(stream);
        }
    });
    (office, address)
}

fn ticket(address: &str, directory: &Path) -> io::Result<[u8; 32]> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    ask(stream, directory)
}

#[test]
fn a_member_gets_a_ticket_that_is_good_once() {
    let folder = Folder::new("once");
    folder.authority("ca");
    let (office, address) = serve(&folder.identity("ca", "server", "IP:127.0.0.1"));
    let member = folder.identity("ca", "member", &format!("URI:{MEMBER},DNS:c-0"));
    let first = ticket(&address, &member).unwrap();
    let second = ticket(&address, &member).unwrap();
    assert_ne!(first, second);
    assert!(office.take(&first) && office.take(&second));
    assert!(!office.take(&first), "a ticket was taken twice");
    assert!(!office.take(&[0; 32]), "a ticket was taken that nobody gave");
}

#[test]
fn nobody_else_gets_a_ticket() {
    let folder = Folder::new("others");
    folder.authority("ca");
    folder.authority("stranger");
    let (_, address) = serve(&folder.identity("ca", "server", "IP:127.0.0.1"));
    let member = format!("URI:{MEMBER}");
    let beside = folder.identity("ca", "beside", "URI:nearmetal://workload/u1/u1.c-1.1");
    let both = folder.identity("ca", "both", &format!("URI:nearmetal://workload/u1/u1.c-1.1,{member}"));
    let unnamed = folder.identity("ca", "unnamed", "DNS:c-0");
    let stranger = folder.identity("stranger", "other", &member);
    fs::copy(folder.0.join("ca.crt"), stranger.join("ca.crt")).unwrap();
    for who in [beside, both, unnamed, stranger] {
        assert!(ticket(&address, &who).is_err(), "{} got a ticket", who.display());
    }
}

#[test]
fn a_server_without_a_certificate_for_its_address_is_shown_nothing_of_use() {
    let folder = Folder::new("impostor");
    folder.authority("ca");
    let (_, address) = serve(&folder.identity("ca", "server", "IP:127.0.0.2"));
    let member = folder.identity("ca", "member", &format!("URI:{MEMBER}"));
    let why = ticket(&address, &member).unwrap_err().to_string();
    assert!(why.contains("not valid for name"), "{why}");
}

#[test]
fn what_is_no_handshake_ends() {
    let folder = Folder::new("noise");
    folder.authority("ca");
    let (_, address) = serve(&folder.identity("ca", "server", "IP:127.0.0.1"));
    let mut stream = TcpStream::connect(&address).unwrap();
    io::Write::write_all(&mut stream, &[22, 3, 1, 255, 255, 0, 0]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.len() < 64, "{} bytes came back", answer.len());
}

#[test]
fn what_is_missing_of_a_certificate_is_named() {
    let folder = Folder::new("missing");
    let why = Office::open(&folder.0, MEMBER).err().unwrap().to_string();
    assert!(why.contains("ca.crt"), "{why}");
}
