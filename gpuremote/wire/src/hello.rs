//! How a lane begins.

use crate::{Decoder, Encoder, Malformed, VERSION};

/// Length of a token, in bytes.
pub const TOKEN_BYTES: usize = 32;

/// The token that 64 hexadecimal digits write. None when they are something else.
pub fn token_of_hex(digits: &str) -> Option<[u8; TOKEN_BYTES]> {
    let mut token = [0; TOKEN_BYTES];
    if digits.len() != 2 * TOKEN_BYTES || !digits.is_ascii() {
        return None;
    }
    for (byte, pair) in token.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(token)
}

const MAGIC: &[u8; 4] = b"NMGP";

/// What a lane is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first lane of a new session.
    Session,
    /// Another lane of this session. Only who has the session's secret knows its number and token.
    Lane,
    /// A way beside the lanes of this session, for a part of large copies. It carries nothing but data.
    Stripe,
}

/// The client's first message on a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the lane is for.
    pub kind: Kind,
    /// The session's number; 0 for a new one.
    pub session: u64,
    /// For a new session the server's token, for another lane the session's own.
    pub token: [u8; TOKEN_BYTES],
}

impl Hello {
    /// Length of the message, in bytes.
    pub const BYTES: usize = 4 + 2 + 1 + 8 + TOKEN_BYTES;

    /// The message as it travels.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder.raw(MAGIC);
        encoder.u16(VERSION);
        encoder.u8(match self.kind {
            Kind::Session => 0,
            Kind::Lane => 1,
            Kind::Stripe => 2,
        });
        encoder.u64(self.session);
        encoder.raw(&self.token);
        encoder.bytes().to_vec()
    }

    /// Reads the message. It fails when it is none, or one of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        if decoder.take(4)? != MAGIC {
            return Err(Malformed("this is no client of remote GPUs"));
        }
        if decoder.u16()? != VERSION {
            return Err(Malformed("the client speaks another version of the protocol"));
        }
        let kind = match decoder.u8()? {
            0 => Kind::Session,
            1 => Kind::Lane,
            2 => Kind::Stripe,
            _ => return Err(Malformed("a lane is of an unknown kind")),
        };
        let hello = Hello { kind, session: decoder.u64()?, token: decoder.take(TOKEN_BYTES)?.try_into().expect("so many were taken") };
        decoder.finish()?;
        Ok(hello)
    }
}

/// The server's answer to a [`Hello`]. By a Unix socket it comes with the memory of the lane's rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Why the lane is refused; empty when it is not.
    pub refusal: String,
    /// The session's number.
    pub session: u64,
    /// The token for further lanes of this session.
    pub token: [u8; TOKEN_BYTES],
}

impl Welcome {
    const REASON_BYTES: usize = 128;

    /// Length of the message, in bytes.
    pub const BYTES: usize = 4 + 2 + 8 + TOKEN_BYTES + 1 + Self::REASON_BYTES;

    /// The message as it travels. A long reason is cut.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder.raw(MAGIC);
        encoder.u16(VERSION);
        encoder.u64(self.session);
        encoder.raw(&self.token);
        let reason = &self.refusal.as_bytes()[..self.refusal.len().min(Self::REASON_BYTES)];
        encoder.u8(reason.len() as u8);
        encoder.raw(reason);
        encoder.raw(&[0; Self::REASON_BYTES][reason.len()..]);
        encoder.bytes().to_vec()
    }

    /// Reads the message. It fails when it is none, or one of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        if decoder.take(4)? != MAGIC {
            return Err(Malformed("this is no server of remote GPUs"));
        }
        if decoder.u16()? != VERSION {
            return Err(Malformed("the server speaks another version of the protocol"));
        }
        let session = decoder.u64()?;
        let token = decoder.take(TOKEN_BYTES)?.try_into().expect("so many were taken");
        let length = usize::from(decoder.u8()?);
        let reason = decoder.take(Self::REASON_BYTES)?;
        decoder.finish()?;
        let reason = reason.get(..length).ok_or(Malformed("a reason is too long"))?;
        Ok(Welcome { refusal: String::from_utf8_lossy(reason).into_owned(), session, token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn greetings_survive_the_way(kind in 0usize..3, session: u64, token: [u8; TOKEN_BYTES], refusal in "[a-z ]{0,128}") {
            let hello = Hello { kind: [Kind::Session, Kind::Lane, Kind::Stripe][kind], session, token };
            prop_assert_eq!(hello.to_bytes().len(), Hello::BYTES);
            prop_assert_eq!(Hello::from_bytes(&hello.to_bytes()), Ok(hello));
            let welcome = Welcome { refusal, session, token };
            prop_assert_eq!(welcome.to_bytes().len(), Welcome::BYTES);
            prop_assert_eq!(Welcome::from_bytes(&welcome.to_bytes()), Ok(welcome));
        }

        #[test]
        fn any_bytes_are_a_greeting_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Hello::from_bytes(&bytes);
            let _ = Welcome::from_bytes(&bytes);
        }
    }
}
