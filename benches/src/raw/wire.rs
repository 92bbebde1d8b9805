//! The data on the sockets and the control pipe of the raw reference.
//!
//! A data connection carries 64-byte headers; a WRITE's payload follows its header, a READ's payload comes back
//! without a header. Both ends know the layout, so no descriptor is sent: the reference has less work than any engine,
//! and so is a limit.

use std::io::{self, ErrorKind};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub const HEADER_BYTES: usize = 64;
const MAGIC: u32 = 0x5741_5246;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// First on each connection; `number` is the pair's token, which strangers don't know.
    Hello,
    Write,
    Read,
    /// The payload of a WRITE is in place.
    Done,
    /// The run has no more transfers.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    /// The transfer's number in the run.
    pub number: u64,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> io::Result<Header> {
        let kinds = [Kind::Hello, Kind::Write, Kind::Read, Kind::Done, Kind::End];
        match kinds.get(bytes[4] as usize) {
            Some(&kind) if bytes[..4] == MAGIC.to_le_bytes() => {
                let number = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
                Ok(Header { kind, number })
            }
            _ => Err(io::Error::new(ErrorKind::InvalidData, "not a header: the stream is out of step")),
        }
    }

    pub fn expect(self, kind: Kind) -> io::Result<Header> {
        if self.kind == kind {
            return Ok(self);
        }
        let text = format!("expected {kind:?}, received {:?}", self.kind);
        Err(io::Error::new(ErrorKind::InvalidData, text))
    }
}

/// The target's first line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Listening {
    pub port: u16,
}

/// The target's task in a run: serve this many connections, on this CPU if set.
#[derive(Debug, Serialize, Deserialize)]
pub struct Told {
    pub connections: usize,
    /// If `None`, the target sleeps at once.
    pub spin: Option<Duration>,
    pub cpu: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_and_garbage_does_not() {
        for kind in [Kind::Hello, Kind::Write, Kind::Read, Kind::Done, Kind::End] {
            let header = Header { kind, number: u64::MAX - 1 };
            assert_eq!(Header::decode(&header.encode()).expect("own header"), header);
        }
        let mut bytes = Header { kind: Kind::End, number: 0 }.encode();
        bytes[4] += 1;
        assert!(Header::decode(&bytes).is_err(), "a kind beyond the last");
        assert!(Header::decode(&[0; HEADER_BYTES]).is_err(), "no magic");
    }
}
