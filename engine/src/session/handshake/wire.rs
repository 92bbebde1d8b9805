//! Bytes of the handshake: the preamble of every ferry connection, the frames behind it, and the bounded buffer that
//! splits a stream into frames. Used by `hello`, `refusal`, `dialer` and `acceptor`.
//!
//! ```text
//! "FERRY\0" kind:u8 | length:u16 type:u8 fields | length:u16 type:u8 fields | ...
//! ```
//! A refusal always has its own preamble. This is unambiguous: "FE", read as a length, exceeds the length of every
//! handshake frame.

use super::refusal::{HandshakeError, HandshakeResult};
use crate::limits::HANDSHAKE_BYTES_MAX;
use crate::status::{Error, Status};

pub const MAGIC: [u8; 6] = *b"FERRY\0";
/// The kind of a connection: control (this handshake), or a data lane of an existing session.
pub const KIND_CONTROL: u8 = 1;
pub const KIND_LANE: u8 = 2;
/// The wire version that this engine speaks, and the oldest version that it accepts.
pub const WIRE_VERSION: u16 = 7;
pub const WIRE_VERSION_MIN: u16 = 7;
/// Bytes that one `input` may take. Input may include bytes that the peer sent behind the handshake.
pub const INPUT_BYTES_MAX: usize = 64 << 10;

const PREAMBLE_BYTES: usize = MAGIC.len() + 1;
const LENGTH_BYTES: usize = 2;
const BUFFER_BYTES_MAX: usize = INPUT_BYTES_MAX + PREAMBLE_BYTES + LENGTH_BYTES + HANDSHAKE_BYTES_MAX;
const _: () = assert!(u16::from_le_bytes([MAGIC[0], MAGIC[1]]) as usize > HANDSHAKE_BYTES_MAX);

/// The kind of an inbound connection, as far as its first bytes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    NeedMore,
    Control,
    Lane,
    NotFerry,
}

/// Returns the kind without consuming bytes: the handshake, or the lane, parses the preamble again. Returns NotFerry
/// at the first wrong byte, so that the engine does not wait for a stray client.
pub fn peek_kind(bytes: &[u8]) -> Peek {
    let seen = bytes.len().min(MAGIC.len());
    if bytes[..seen] != MAGIC[..seen] {
        return Peek::NotFerry;
    }
    match bytes.get(MAGIC.len()) {
        None => Peek::NeedMore,
        Some(&KIND_CONTROL) => Peek::Control,
        Some(&KIND_LANE) => Peek::Lane,
        Some(_) => Peek::NotFerry,
    }
}

pub fn preamble(kind: u8) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [kind; PREAMBLE_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes
}

/// First byte of a frame's body. HELLO and REFUSAL are plaintext and keep their meaning in every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameType {
    Hello = 1,
    /// Noise `psk, e`, from the dialer.
    Open = 2,
    /// Noise `e, ee`, from the acceptor.
    Answer = 3,
    /// The dialer's proof that it has the keys.
    Confirm = 4,
    /// The acceptor's confirmation that the session exists.
    Welcome = 5,
    Refusal = 255,
}

impl FrameType {
    fn from_number(number: u8) -> Option<FrameType> {
        use FrameType::*;
        [Hello, Open, Answer, Confirm, Welcome, Refusal].into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Appends a frame. The callers bound `fields`.
pub(super) fn put_frame(out: &mut Vec<u8>, kind: FrameType, fields: &[u8]) {
    let length = 1 + fields.len();
    assert!(length <= HANDSHAKE_BYTES_MAX, "a handshake frame of {length} bytes");
    out.extend_from_slice(&(length as u16).to_le_bytes());
    out.push(kind as u8);
    out.extend_from_slice(fields);
}

/// Splits the bytes of a stream into frames.
#[derive(Debug, Default)]
pub(super) struct Frames {
    buffer: Vec<u8>,
    preamble_seen: bool,
}

impl Frames {
    /// Appends input. LIMIT if the driver passes more than `INPUT_BYTES_MAX` at once, or keeps passing input while the
    /// dialer waits for a proof.
    pub fn push(&mut self, bytes: &[u8]) -> HandshakeResult<()> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES_MAX {
            return Err(Error::new(Status::Limit, "more handshake input than a handshake can need").into());
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the next frame's type and fields, or None until the frame is complete.
    pub fn next(&mut self) -> HandshakeResult<Option<(FrameType, Vec<u8>)>> {
        if !self.skip_preamble()? {
            return Ok(None);
        }
        let Some((&header, rest)) = self.buffer.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u16::from_le_bytes(header) as usize;
        if !(1..=HANDSHAKE_BYTES_MAX).contains(&length) {
            let text = format!("handshake frame of {length} bytes; 1 to {HANDSHAKE_BYTES_MAX} are allowed");
            return Err(HandshakeError::malformed(text));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let Some(kind) = FrameType::from_number(body[0]) else {
            return Err(HandshakeError::malformed(format!("handshake frame of unknown type {}", body[0])));
        };
        let fields = body[1..].to_vec();
        self.buffer.drain(..LENGTH_BYTES + length);
        Ok(Some((kind, fields)))
    }

    /// Takes the bytes behind the last frame.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    /// Removes a preamble at the front. Returns false until the first preamble is complete, or while a later preamble
    /// is not.
    fn skip_preamble(&mut self) -> HandshakeResult<bool> {
        if self.preamble_seen && !self.buffer.starts_with(&MAGIC[..LENGTH_BYTES]) {
            return Ok(true);
        }
        match peek_kind(&self.buffer) {
            Peek::NeedMore => Ok(false),
            Peek::Control => {
                self.buffer.drain(..PREAMBLE_BYTES);
                self.preamble_seen = true;
                Ok(true)
            }
            Peek::Lane | Peek::NotFerry if self.preamble_seen => {
                Err(HandshakeError::malformed("handshake frame of impossible length"))
            }
            Peek::Lane | Peek::NotFerry => Err(HandshakeError::not_ferry()),
        }
    }

    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }
}

/// Fields of a frame, read from the front. Every method returns None past the end.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (&array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(array)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads bytes whose number precedes them as a u8.
    pub fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.u8()? as usize;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_connection_is_told_by_its_first_seven_bytes() {
        assert_eq!(peek_kind(b""), Peek::NeedMore);
        assert_eq!(peek_kind(b"FERRY\0"), Peek::NeedMore);
        assert_eq!(peek_kind(&preamble(KIND_CONTROL)), Peek::Control);
        assert_eq!(peek_kind(b"FERRY\0\x02 and more"), Peek::Lane);
        for stray in [&b"G"[..], b"FERRY\x01", b"FERRY\0\0", b"FERRY\0\x03", b"\x16\x03\x01"] {
            assert_eq!(peek_kind(stray), Peek::NotFerry, "{stray:?}");
        }
    }

    fn frames(bytes: &[u8]) -> Frames {
        let mut frames = Frames::default();
        frames.push(&preamble(KIND_CONTROL)).unwrap();
        frames.push(bytes).unwrap();
        frames
    }

    #[test]
    fn lengths_are_checked_before_the_bytes_arrive() {
        let longest = (HANDSHAKE_BYTES_MAX as u16).to_le_bytes();
        assert!(frames(&longest).next().unwrap().is_none());
        for refused in [0, HANDSHAKE_BYTES_MAX as u16 + 1, u16::MAX] {
            let error = frames(&refused.to_le_bytes()).next().unwrap_err();
            assert_eq!(error.error.status, Status::Corrupt, "{refused}");
        }
        let mut whole = Vec::new();
        put_frame(&mut whole, FrameType::Open, &[9; HANDSHAKE_BYTES_MAX - 1]);
        whole.extend_from_slice(b"rest");
        let mut frames = frames(&whole);
        assert_eq!(frames.next().unwrap().unwrap(), (FrameType::Open, vec![9; HANDSHAKE_BYTES_MAX - 1]));
        assert_eq!(frames.take(), b"rest");
    }

    #[test]
    fn the_buffer_has_a_bound() {
        let mut frames = Frames::default();
        frames.push(&vec![0; BUFFER_BYTES_MAX]).unwrap();
        assert_eq!(frames.push(&[0]).unwrap_err().error.status, Status::Limit);
    }
}
