//! What the host does without a device: copies within its memory and a TCP connection to itself.

use std::hint::black_box;
use std::io::{Error, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use super::{sample, Series};

const MESSAGE_BYTES: usize = 64;
const ROUND_TRIPS: usize = 2000;
const STREAM_WRITE_BYTES: usize = 1 << 20;

/// Measures copies of `sizes` (bytes, samples) within memory and as TCP streams over the loopback interface, and round trips there.
pub fn baselines(sizes: &[(usize, usize)]) -> Result<Vec<Series>, Error> {
    let mut series = Vec::new();
    for &(bytes, samples) in sizes {
        let source = vec![1u8; bytes];
        let mut destination = vec![2u8; bytes];
        let copies = sample(2, samples, || {
            destination.copy_from_slice(black_box(&source));
            black_box(&mut destination);
            Ok::<(), Error>(())
        })?;
        series.push(Series::new("copy in memory", bytes, copies));
    }
    series.push(round_trips()?);
    for &(bytes, samples) in sizes {
        series.push(stream(bytes, samples)?);
    }
    Ok(series)
}

/// Connects to a thread that serves the connection with `serve`.
fn connect(
    serve: impl FnOnce(TcpStream) -> Result<(), Error> + Send + 'static,
) -> Result<(TcpStream, JoinHandle<Result<(), Error>>), Error> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok((client, std::thread::spawn(move || serve(server))))
}

/// Closes the connection and returns the serving thread's result.
fn disconnect(client: TcpStream, server: JoinHandle<Result<(), Error>>) -> Result<(), Error> {
    drop(client);
    server.join().unwrap_or_else(|_| Err(Error::other("the loopback server panicked")))
}

fn round_trips() -> Result<Series, Error> {
    let (mut client, server) = connect(|mut server| {
        let mut message = [0; MESSAGE_BYTES];
        // The client ends the exchange by closing the connection.
        while server.read_exact(&mut message).is_ok() {
            server.write_all(&message)?;
        }
        Ok(())
    })?;
    let mut message = [0; MESSAGE_BYTES];
    let samples = sample(100, ROUND_TRIPS, || {
        client.write_all(&message)?;
        client.read_exact(&mut message)
    })?;
    disconnect(client, server)?;
    Ok(Series::new("TCP loopback round trip of 64 bytes", 0, samples))
}

/// Sends `bytes`, at most or a multiple of [`STREAM_WRITE_BYTES`], and waits until the other end has them.
fn stream(bytes: usize, samples: usize) -> Result<Series, Error> {
    let (mut client, server) = connect(move |mut server| {
        let mut part = vec![0; STREAM_WRITE_BYTES];
        let mut received = 0;
        loop {
            let length = server.read(&mut part)?;
            if length == 0 {
                return Ok(());
            }
            received += length;
            if received == bytes {
                received = 0;
                server.write_all(&[1])?;
            }
        }
    })?;
    // The same part again, so that reading the source from memory doesn't slow the stream down.
    let part = vec![1; bytes.min(STREAM_WRITE_BYTES)];
    let samples = sample(1, samples, || {
        for _ in 0..bytes / part.len() {
            client.write_all(&part)?;
        }
        client.read_exact(&mut [0])
    })?;
    disconnect(client, server)?;
    Ok(Series::new("TCP loopback stream, acknowledged at its end", bytes, samples))
}
