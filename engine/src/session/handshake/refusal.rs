//! Why a handshake ended: the reason codes of the wire, and the error that carries one together with
//! what the other end should still be told. Used by `dialer`, `acceptor`, and by the control loop, which
//! may refuse for reasons of its own (DUPLICATE, TOO_MANY, FENCED).

use super::wire::{self, FrameType};
use crate::status::{Error, Status};

/// Bytes of a refusal's text that are looked at; the peer is not authenticated when it says why.
const TEXT_BYTES_MAX: usize = 200;

macro_rules! refusal_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $status:ident, $text:literal;)*) => {
        /// Reason codes; the numbers are the wire's and are never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum RefusalCode { $($(#[$doc])* $name = $number,)* }

        impl RefusalCode {
            pub const ALL: &'static [RefusalCode] = &[$(RefusalCode::$name),*];
            pub fn from_number(number: u8) -> Option<RefusalCode> {
                match number { $($number => Some(RefusalCode::$name),)* _ => None }
            }
            /// The reason in words, as it is sent.
            pub fn text(self) -> &'static str { match self { $(RefusalCode::$name => $text),* } }
            /// What the side that was refused reports.
            pub fn status(self) -> Status { match self { $(RefusalCode::$name => Status::$status),* } }
        }
    };
}

refusal_codes! {
    BadSecret = 1, Refused, "wrong secret";
    /// One side wants more than the other can offer; usually only one of them has a secret.
    AuthRequired = 2, Refused, "authentication required";
    SameUserFailed = 3, Refused, "not proven to be the same user on the same host";
    /// A session between these two engines exists, or is being made from the other side.
    Duplicate = 4, Refused, "duplicate session";
    TooMany = 5, Refused, "too many handshakes in progress";
    /// The acceptor has declared this incarnation of the dialer dead.
    Fenced = 6, Refused, "this incarnation has been fenced";
    Version = 7, Version, "no wire version in common";
    /// What arrived is not a handshake, or was altered on the way.
    Malformed = 8, Refused, "malformed handshake";
    /// The text says which, and why.
    NoThread = 9, Limit, "a thread that sessions need cannot be started";
}

impl RefusalCode {
    /// Whether another try may find it otherwise.
    pub fn passes(self) -> bool {
        matches!(self, RefusalCode::Duplicate | RefusalCode::TooMany | RefusalCode::NoThread)
    }
}

/// The bytes that refuse, valid at any point where the acceptor has not yet announced the session: before
/// an `Acceptor` exists, between its steps, and instead of the output that came with its `Done`.
pub fn refusal(code: RefusalCode) -> Vec<u8> {
    refusal_with(code, code.text())
}

pub fn refusal_with(code: RefusalCode, text: &str) -> Vec<u8> {
    let text = &text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)];
    let mut body = vec![code as u8];
    body.extend_from_slice(text);
    // With its own preamble, so that the sender need not know whether one went out before.
    let mut out = wire::preamble(wire::KIND_CONTROL).to_vec();
    wire::put_frame(&mut out, FrameType::Refusal, &body);
    out
}

/// A handshake that is over without a session. Close the connection once `reply` is written.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct HandshakeError {
    /// REFUSED, VERSION, NOT_FERRY, CORRUPT, INVALID, LIMIT, CLOSED or SYSTEM.
    pub error: Error,
    /// The reason, received or sent; None where the connection ended without one.
    pub refusal: Option<RefusalCode>,
    /// Who refused, where it had proven itself before: engine id and incarnation.
    pub by: Option<([u8; 16], u64)>,
    /// What to send before closing so that the other side can say why; may be empty.
    pub reply: Vec<u8>,
}

pub type HandshakeResult<T> = std::result::Result<T, HandshakeError>;

impl HandshakeError {
    /// This side refuses: the other one is told code and text.
    pub(super) fn refuse(code: RefusalCode, text: impl Into<String>) -> HandshakeError {
        let text = text.into();
        let reply = refusal_with(code, &text);
        let status = if code == RefusalCode::Malformed { Status::Corrupt } else { code.status() };
        HandshakeError { error: Error::new(status, text), refusal: Some(code), by: None, reply }
    }

    pub(super) fn malformed(text: impl Into<String>) -> HandshakeError {
        HandshakeError::refuse(RefusalCode::Malformed, text)
    }

    /// The other end doesn't speak this protocol, so nothing is said to it.
    pub(super) fn not_ferry() -> HandshakeError {
        Error::new(Status::NotFerry, "the other end is not a ferry engine").into()
    }

    /// Something goes out ahead of the refusal.
    pub(super) fn after(mut self, mut output: Vec<u8>) -> HandshakeError {
        output.append(&mut self.reply);
        self.reply = output;
        self
    }

    /// The peer refused; `body` is its reason.
    pub(super) fn received(body: &[u8]) -> HandshakeError {
        let (number, text) = match body.split_first() {
            Some((&number, text)) => (number, &text[..text.len().min(TEXT_BYTES_MAX)]),
            None => (0, &[][..]),
        };
        let refusal = RefusalCode::from_number(number);
        // Escaped: this ends up in logs and on terminals, and anyone on the way may have written it.
        let text = String::from_utf8_lossy(text).escape_debug().to_string();
        let message = match refusal {
            Some(code) if text.is_empty() || text == code.text() => format!("peer refused: {}", code.text()),
            Some(code) => format!("peer refused: {}: {text}", code.text()),
            None => format!("peer refused with unknown code {number}: {text}"),
        };
        let status = refusal.map_or(Status::Refused, RefusalCode::status);
        HandshakeError { error: Error::new(status, message), refusal, by: None, reply: Vec::new() }
    }

    pub(super) fn over() -> HandshakeError {
        Error::new(Status::Closed, "this handshake is over").into()
    }
}

impl From<Error> for HandshakeError {
    fn from(error: Error) -> HandshakeError {
        HandshakeError { error, refusal: None, by: None, reply: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_the_wire() {
        for &code in RefusalCode::ALL {
            let bytes = refusal(code);
            let mut frames = wire::Frames::default();
            frames.push(&bytes).unwrap();
            let (kind, body) = frames.next().unwrap().unwrap();
            assert_eq!(kind, FrameType::Refusal);
            let received = HandshakeError::received(&body);
            assert_eq!(received.refusal, Some(code));
            assert_eq!(received.error.status, code.status());
            assert!(received.error.message.contains(code.text()));
        }
    }

    #[test]
    fn strange_refusals_are_still_refusals() {
        assert_eq!(HandshakeError::received(&[]).error.status, Status::Refused);
        let odd = HandshakeError::received(&[250, 0x1b, b'[', 0xff]);
        assert_eq!((odd.error.status, odd.refusal), (Status::Refused, None));
        assert!(!odd.error.message.contains('\x1b'));
        let long = HandshakeError::received(&[1; 1000]);
        assert!(long.error.message.len() < 8 * TEXT_BYTES_MAX);
    }
}
