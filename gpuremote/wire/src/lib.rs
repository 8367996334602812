//! The messages of remote GPU calls. Nothing here reads or writes anything: it turns values into bytes and back.
//!
//! A client opens a *session*, which is one process on the server, and in it a *lane* for each of its threads. A lane carries calls one way
//! and replies the other way, in order. All integers are little-endian and unaligned.

mod hello;
mod values;

pub use hello::{token_of_hex, Hello, Kind, Welcome, TOKEN_BYTES};
pub use values::{Decoder, Encoder, Malformed};

/// Version of the protocol. Client and server must have the same one.
pub const VERSION: u16 = 1;

/// The most bytes that the arguments of a call, or the values of a reply, may take. Data that is copied is not among them.
pub const MAX_ARGUMENT_BYTES: usize = 1 << 20;

/// The header of a call: 16 bytes, before its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Length of the arguments, in bytes.
    pub length: u32,
    /// The function's number in its API's description.
    pub function: u16,
    /// The API's number, of its description. 0 are the session's own calls.
    pub api: u8,
    /// Whether the client waits for a reply.
    pub replies: bool,
    /// Position among all calls of the session, from 0: calls begin in this order, whichever lane they come by.
    pub ticket: u64,
}

impl Call {
    /// Length of the header, in bytes.
    pub const BYTES: usize = 16;

    /// The header as it travels.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.function.to_le_bytes());
        bytes[6] = self.api;
        bytes[7] = self.replies.into();
        bytes[8..16].copy_from_slice(&self.ticket.to_le_bytes());
        bytes
    }

    /// Reads a header. It fails when the arguments would be longer than [`MAX_ARGUMENT_BYTES`] or a flag is unknown.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        let call = Call {
            length: decoder.u32()?,
            function: decoder.u16()?,
            api: decoder.u8()?,
            replies: match decoder.u8()? {
                0 => false,
                1 => true,
                _ => return Err(Malformed("a call has unknown flags")),
            },
            ticket: decoder.u64()?,
        };
        if call.length as usize > MAX_ARGUMENT_BYTES {
            return Err(Malformed("the arguments of a call are too long"));
        }
        Ok(call)
    }
}

/// The header of a reply: 16 bytes, before its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Length of the values, in bytes.
    pub length: u32,
    /// What the function returned: a status of its API.
    pub status: i32,
    /// The first status other than success of this lane's earlier calls without a reply, since the last reply. 0: none.
    pub deferred: i32,
    /// Bytes of output of GPU programs (`printf`) that wait to be taken.
    pub output_bytes: u32,
}

impl Reply {
    /// Length of the header, in bytes.
    pub const BYTES: usize = 16;

    /// The header as it travels.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.status.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.deferred.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.output_bytes.to_le_bytes());
        bytes
    }

    /// Reads a header. It fails when the values would be longer than [`MAX_ARGUMENT_BYTES`].
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        let reply = Reply { length: decoder.u32()?, status: decoder.i32()?, deferred: decoder.i32()?, output_bytes: decoder.u32()? };
        if reply.length as usize > MAX_ARGUMENT_BYTES {
            return Err(Malformed("the values of a reply are too long"));
        }
        Ok(reply)
    }
}

/// The parts of a copy that stripes carry: offset and length of each, in bytes. There are at most as many as stripes.
pub fn pieces(bytes: usize, stripes: usize) -> impl Iterator<Item = (usize, usize)> {
    /// Parts begin at pages, which are copied fastest.
    const GRAIN: usize = 4096;
    let piece = bytes.div_ceil(stripes.max(1)).next_multiple_of(GRAIN);
    (0..bytes).step_by(piece.max(1)).map(move |offset| (offset, piece.min(bytes - offset)))
}

/// The most stripes that a copy may have.
pub const MOST_STRIPES: usize = 16;

/// Calls of the session itself (API 0).
pub mod session_calls {
    /// API number of these calls.
    pub const API: u8 = 0;
    /// Does nothing, and replies: its round trip is the least that a call takes.
    pub const ECHO: u16 = 0;
    /// Takes the output of GPU programs: replies with bytes.
    pub const TAKE_OUTPUT: u16 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_survive_the_way(length in 0u32..=MAX_ARGUMENT_BYTES as u32, function: u16, api: u8, replies: bool, ticket: u64, status: i32, deferred: i32) {
            let call = Call { length, function, api, replies, ticket };
            prop_assert_eq!(Call::from_bytes(&call.to_bytes()), Ok(call));
            let reply = Reply { length, status, deferred, output_bytes: function.into() };
            prop_assert_eq!(Reply::from_bytes(&reply.to_bytes()), Ok(reply));
        }

        #[test]
        fn pieces_are_all_of_a_copy(bytes in 0usize..10_000_000, stripes in 1usize..=MOST_STRIPES) {
            let pieces: Vec<_> = pieces(bytes, stripes).collect();
            prop_assert!(pieces.len() <= stripes);
            let mut end = 0;
            for (offset, length) in pieces {
                prop_assert_eq!(offset, end);
                prop_assert!(length > 0);
                end += length;
            }
            prop_assert_eq!(end, bytes);
        }

        #[test]
        fn any_bytes_are_a_header_or_refused(bytes: [u8; 16]) {
            if let Ok(call) = Call::from_bytes(&bytes) {
                prop_assert!(call.length as usize <= MAX_ARGUMENT_BYTES);
            }
            let _ = Reply::from_bytes(&bytes);
        }
    }
}
