//! A thread's way to the server.

use std::io;

use gpuremote_transport::Lane;
use gpuremote_wire::{Call, Decoder, Encoder, Malformed, Reply};

/// A thread's way to the server: it writes calls and reads replies.
pub struct ClientLane {
    lane: Lane,
    message: Encoder,
    values: Vec<u8>,
}

impl ClientLane {
    pub(crate) fn new(lane: Lane) -> Self {
        ClientLane { lane, message: Encoder::default(), values: Vec::new() }
    }

    /// Writes a call, and leaves it to others to send it.
    pub fn put(
        &mut self,
        api: u8,
        function: u16,
        replies: bool,
        ticket: impl FnOnce() -> u64,
        arguments: impl FnOnce(&mut Encoder),
    ) -> io::Result<()> {
        self.message.clear();
        self.message.raw(&[0; Call::BYTES]);
        arguments(&mut self.message);
        let length = self.message.bytes().len() - Call::BYTES;
        if length > gpuremote_wire::MAX_ARGUMENT_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the arguments of a call are too long"));
        }
        let call = Call { length: length as u32, function, api, replies, ticket: ticket() };
        self.message.set(0, &call.to_bytes());
        self.lane.write(self.message.bytes())
    }

    /// Sends what was put.
    pub fn flush(&mut self) -> io::Result<()> {
        self.lane.flush()
    }

    /// Waits for the reply to the last call. Its values are read by [`ClientLane::values`].
    pub fn reply(&mut self) -> io::Result<Reply> {
        let mut header = [0; Reply::BYTES];
        self.lane.read(&mut header)?;
        let reply = Reply::from_bytes(&header)?;
        self.values.resize(reply.length as usize, 0);
        self.lane.read(&mut self.values)?;
        Ok(reply)
    }

    /// The values of the last reply.
    pub fn values(&self) -> &[u8] {
        &self.values
    }

    /// Decodes the values of the last reply.
    pub fn decode<T>(&self, decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, Malformed>) -> io::Result<T> {
        let mut decoder = Decoder::new(&self.values);
        let value = decode(&mut decoder)?;
        decoder.finish()?;
        Ok(value)
    }

    /// The bytes' own way, for data that is copied.
    pub fn data(&mut self) -> &mut Lane {
        &mut self.lane
    }
}

impl Drop for ClientLane {
    /// A thread that ends may have gathered calls, for which the calls of all others wait in turn.
    fn drop(&mut self) {
        // A lost server is told of by the next call.
        let _ = self.lane.flush();
    }
}
