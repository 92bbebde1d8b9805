//! The encrypted control channel of an established session: seals messages into frames and opens frames. `handshake`
//! creates the channel; the control loop owns the socket and the receive buffer.
//!
//! On the wire a message is a u16 (little-endian) length and that many bytes of ciphertext. The length is not
//! encrypted, but a changed length makes the tag wrong. The cipher's counter authenticates the order of messages, so
//! a replayed, dropped or reordered message is detected like an altered message.

use crate::status::{Error, Result, Status};

/// Largest message in bytes, before sealing. With the tag its length fits into a u16.
pub const CHANNEL_MESSAGE_MAX: usize = 60_000;
const LENGTH_BYTES: usize = 2;
const TAG_BYTES: usize = 16;

/// One end of the channel. Not shared between threads: counters advance with each message, and sealed frames must be
/// written in the order of sealing.
pub struct Channel {
    transport: snow::TransportState,
    /// Set by the first message that did not verify. The bytes after such a message are not trusted, even if they
    /// would decrypt.
    corrupt: bool,
}

impl Channel {
    pub(crate) fn new(transport: snow::TransportState) -> Channel {
        Channel { transport, corrupt: false }
    }

    /// Returns true if a message did not verify.
    pub fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// Appends the frame of one message to `out`. LIMIT, with `out` unchanged, for a message longer than
    /// `CHANNEL_MESSAGE_MAX`: the caller must split such messages.
    pub fn seal(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> Result<()> {
        if plaintext.len() > CHANNEL_MESSAGE_MAX {
            let length = plaintext.len();
            let text =
                format!("control message of {length} bytes; at most {CHANNEL_MESSAGE_MAX} are allowed");
            return Err(Error::new(Status::Limit, text));
        }
        let start = out.len();
        let length = (plaintext.len() + TAG_BYTES) as u16;
        out.extend_from_slice(&length.to_le_bytes());
        self.encrypt(plaintext, out).inspect_err(|_| out.truncate(start))
    }

    /// Takes one message from the front of `input`, or None if its frame is not complete. CORRUPT, now and in all later
    /// calls, if a message does not verify; the session must end then.
    ///
    /// Moves the rest of the buffer to its front. For many small messages in one buffer use `open_next`.
    #[cfg(feature = "internals")]
    pub fn open(&mut self, input: &mut Vec<u8>) -> Result<Option<Vec<u8>>> {
        Ok(self.open_next(input)?.map(|(plaintext, consumed)| {
            input.drain(..consumed);
            plaintext
        }))
    }

    /// Like `open`, but leaves the buffer as it is and also returns how many bytes the message took.
    pub fn open_next(&mut self, input: &[u8]) -> Result<Option<(Vec<u8>, usize)>> {
        if self.corrupt {
            return Err(corrupt("the control channel is corrupt"));
        }
        let Some((&header, rest)) = input.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u16::from_le_bytes(header) as usize;
        // Checked on the header alone: the caller must not wait for, or allocate, an impossible number of bytes.
        if !(TAG_BYTES..=CHANNEL_MESSAGE_MAX + TAG_BYTES).contains(&length) {
            self.corrupt = true;
            return Err(corrupt(format!("control frame of impossible length {length}")));
        }
        let Some(ciphertext) = rest.get(..length) else { return Ok(None) };
        Ok(Some((self.decrypt(ciphertext)?, LENGTH_BYTES + length)))
    }

    /// Appends the ciphertext without a length. The last frames of the handshake carry such a ciphertext.
    pub(super) fn encrypt(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        out.resize(start + plaintext.len() + TAG_BYTES, 0);
        let written = self.transport.write_message(plaintext, &mut out[start..]);
        // Fails only if the 64-bit counter is exhausted, which takes longer than any session lasts.
        written
            .map_err(|failed| Error::new(Status::Closed, format!("sealing a control message: {failed}")))?;
        Ok(())
    }

    pub(super) fn decrypt(&mut self, ciphertext: &[u8]) -> Result<Vec<u8>> {
        let mut plaintext = vec![0; ciphertext.len()];
        match self.transport.read_message(ciphertext, &mut plaintext) {
            Ok(length) => {
                plaintext.truncate(length);
                Ok(plaintext)
            }
            Err(_) => {
                self.corrupt = true;
                Err(corrupt("a control message did not verify"))
            }
        }
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("corrupt", &self.corrupt).finish_non_exhaustive()
    }
}

fn corrupt(text: impl Into<String>) -> Error {
    Error::new(Status::Corrupt, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::handshake::tests::support::channels;
    use proptest::prelude::*;

    fn status(result: Result<Option<Vec<u8>>>) -> Status {
        result.unwrap_err().status
    }

    #[test]
    fn messages_cross_in_order_at_their_limits() {
        let (mut a, mut b) = channels();
        let messages =
            [vec![], vec![7], (0..CHANNEL_MESSAGE_MAX).map(|i| (i * 7 % 251) as u8).collect::<Vec<_>>()];
        let mut wire = Vec::new();
        for message in &messages {
            a.seal(message, &mut wire).unwrap();
        }
        let before = wire.len();
        let long = a.seal(&vec![0; CHANNEL_MESSAGE_MAX + 1], &mut wire).unwrap_err();
        assert_eq!((long.status, wire.len()), (Status::Limit, before));
        for message in &messages {
            assert_eq!(b.open(&mut wire).unwrap().as_ref(), Some(message));
        }
        assert_eq!((b.open(&mut wire).unwrap(), wire.len()), (None, 0));
    }

    #[test]
    fn an_incomplete_frame_waits_and_is_left_in_the_buffer() {
        let (mut a, mut b) = channels();
        let mut wire = Vec::new();
        a.seal(b"regions", &mut wire).unwrap();
        let mut input = Vec::new();
        for &byte in &wire[..wire.len() - 1] {
            input.push(byte);
            assert_eq!(b.open(&mut input).unwrap(), None);
        }
        input.push(wire[wire.len() - 1]);
        assert_eq!(b.open(&mut input).unwrap().as_deref(), Some(&b"regions"[..]));
    }

    #[test]
    fn any_flipped_bit_is_corrupt_or_leaves_the_frame_incomplete() {
        let (mut a, _) = channels();
        let mut wire = Vec::new();
        a.seal(b"grant", &mut wire).unwrap();
        for bit in 0..wire.len() * 8 {
            let (mut a, mut b) = channels();
            let mut altered = Vec::new();
            a.seal(b"grant", &mut altered).unwrap();
            altered[bit / 8] ^= 1 << (bit % 8);
            match b.open(&mut altered) {
                Ok(opened) => assert!(opened.is_none() && bit < 16, "bit {bit} went unnoticed"),
                Err(error) => assert_eq!(error.status, Status::Corrupt),
            }
        }
    }

    #[test]
    fn replay_and_reordering_are_corrupt_and_stay_so() {
        let (mut a, mut b) = channels();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        a.seal(b"first", &mut first).unwrap();
        a.seal(b"second", &mut second).unwrap();
        assert_eq!(status(b.open(&mut second.clone())), Status::Corrupt);
        // The right message comes too late: the stream was altered.
        assert_eq!(status(b.open(&mut first.clone())), Status::Corrupt);

        let (mut a, mut b) = channels();
        let mut wire = Vec::new();
        a.seal(b"once", &mut wire).unwrap();
        b.open(&mut wire.clone()).unwrap();
        assert_eq!(status(b.open(&mut wire)), Status::Corrupt);
    }

    #[test]
    fn an_impossible_length_is_refused_on_its_header() {
        for length in [0, 15, CHANNEL_MESSAGE_MAX as u16 + 17, u16::MAX] {
            let (_, mut b) = channels();
            assert_eq!(status(b.open(&mut length.to_le_bytes().to_vec())), Status::Corrupt, "{length}");
        }
        for length in [16, CHANNEL_MESSAGE_MAX as u16 + 16] {
            let (_, mut b) = channels();
            assert_eq!(b.open(&mut length.to_le_bytes().to_vec()).unwrap(), None);
        }
    }

    proptest! {
        #![proptest_config(crate::cases::most(64))]
        #[test]
        fn no_input_panics_or_opens(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let (_, mut b) = channels();
            let mut input = bytes.clone();
            if let Ok(opened) = b.open(&mut input) {
                prop_assert!(opened.is_none() && input == bytes);
            }
        }
    }
}
