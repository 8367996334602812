//! Lanes carry any bytes, in any pieces, in order, and tell of the other side's end.

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;

use gpuremote_transport::{shared_rings, Lane, CHUNK_BYTES, RING_BYTES};
use proptest::prelude::*;

fn by_memory() -> (Lane, Lane) {
    let (one, other) = UnixStream::pair().unwrap();
    let rings = shared_rings().unwrap();
    (Lane::by_memory(&rings, one, false).unwrap(), Lane::by_memory(&rings, other, true).unwrap())
}

fn by_tcp() -> (Lane, Lane) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (Lane::by_tcp(client).unwrap(), Lane::by_tcp(server).unwrap())
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

/// Sends the pieces one way, each by one way of writing; the other side answers each with the same bytes.
fn echo(pair: (Lane, Lane), lengths: &[usize]) {
    let (mut client, mut server) = pair;
    thread::scope(|scope| {
        scope.spawn(|| {
            for &length in lengths {
                // Chunks are held for a while, as when a copy from them is under way.
                let mut received = Vec::with_capacity(length);
                let mut held = 0;
                while received.len() < length {
                    if held > RING_BYTES / 2 {
                        server.release(held);
                        held = 0;
                    }
                    let count = server.wait_readable(held).unwrap().min(length - received.len()).min(CHUNK_BYTES);
                    received.extend_from_slice(unsafe { std::slice::from_raw_parts(server.arrived(held, count), count) });
                    held += count;
                }
                server.release(held);
                let mut written = 0;
                while written < length {
                    let count = server.wait_writable(0).unwrap().min(length - written).min(CHUNK_BYTES);
                    unsafe { std::ptr::copy_nonoverlapping(received[written..].as_ptr(), server.space(0, count), count) };
                    server.publish(count);
                    server.flush().unwrap();
                    written += count;
                }
            }
        });
        for (i, &length) in lengths.iter().enumerate() {
            let sent = pattern(length, i as u8);
            if i % 2 == 0 {
                client.write(&sent).unwrap();
                client.flush().unwrap();
            } else {
                client.write_data(&sent).unwrap();
            }
            let mut back = vec![0; length];
            client.read(&mut back).unwrap();
            assert!(back == sent, "piece {i} of {length} bytes came back changed");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn bytes_arrive_in_order(lengths in proptest::collection::vec(prop_oneof![1usize..200, 1usize..200_000, 1_000_000usize..3_000_000], 1..12)) {
        echo(by_memory(), &lengths);
        echo(by_tcp(), &lengths);
    }
}

#[test]
fn more_than_a_ring_holds_passes() {
    echo(by_memory(), &[RING_BYTES * 3 + 17, RING_BYTES * 2 + 1]);
}

#[test]
fn the_end_of_the_other_side_is_seen_after_its_last_bytes() {
    for (mut client, mut server) in [by_memory(), by_tcp()] {
        client.write(b"last").unwrap();
        client.flush().unwrap();
        drop(client);
        let mut last = [0; 4];
        server.read(&mut last).unwrap();
        assert_eq!(&last, b"last");
        assert_eq!(server.read(&mut last).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
