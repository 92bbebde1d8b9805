//! Refusals of handshakes: the reason codes of the wire format, and the error with its code and the bytes to send to
//! the other end. Used by `dialer`, `acceptor`, and the control loop, which refuses for reasons of its own
//! (DUPLICATE, TOO_MANY, FENCED, NO_ROOM).

use super::wire::{self, FrameType};
use crate::status::{Error, Status};
use crate::types::Incarnation;

/// Bytes of a refusal's text that are sent or read. Bounded, because the peer is not authenticated.
const TEXT_BYTES_MAX: usize = 200;

macro_rules! refusal_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $status:ident, $text:literal;)*) => {
        /// Reason codes. The numbers belong to the wire format and are never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum RefusalCode { $($(#[$doc])* $name = $number,)* }

        impl RefusalCode {
            #[cfg(test)]
            pub const ALL: &'static [RefusalCode] = &[$(RefusalCode::$name),*];
            pub fn from_number(number: u8) -> Option<RefusalCode> {
                match number { $($number => Some(RefusalCode::$name),)* _ => None }
            }
            /// Returns the reason as text, as it is sent.
            pub fn text(self) -> &'static str { match self { $(RefusalCode::$name => $text),* } }
            /// Returns the status that the refused side reports.
            pub fn status(self) -> Status { match self { $(RefusalCode::$name => Status::$status),* } }
        }
    };
}

refusal_codes! {
    BadSecret = 1, Refused, "the two ends have different secrets";
    /// One side requires more than the other offers; usually only one side has a secret.
    AuthRequired = 2, Refused, "the two ends have no way in common to authenticate each other";
    SameUserFailed = 3, Refused, "the two ends are not proven to run as the same user on the same host";
    /// A session between these two engines exists, or the other side dials one.
    Duplicate = 4, Refused, "the two engines have a session already, or are about to have one";
    TooMany = 5, Refused, "the peer has too many handshakes in progress";
    /// The acceptor has declared this incarnation of the dialer dead.
    Fenced = 6, Refused, "the peer has fenced this incarnation of the engine";
    Version = 7, Version, "the two ends have no version of the wire format in common";
    /// The input is not a handshake, or was altered in transit.
    Malformed = 8, Refused, "the handshake is malformed";
    /// The text names the thread and the reason.
    NoThread = 9, Limit, "a thread that sessions need cannot be started";
    /// The acceptor knows as many peers as it may. The text has the number.
    NoRoom = 10, Refused, "the peer knows as many peers as it may";
}

impl RefusalCode {
    /// Returns whether the reason is temporary, so that another try may succeed.
    pub fn passes(self) -> bool {
        use RefusalCode::{Duplicate, NoRoom, NoThread, TooMany};
        matches!(self, Duplicate | TooMany | NoThread | NoRoom)
    }
}

/// Returns the bytes of a refusal. They are valid until the acceptor has sent WELCOME: before an `Acceptor` exists,
/// between its steps, and instead of the output that came with its `Done`.
pub fn refusal(code: RefusalCode) -> Vec<u8> {
    refusal_with(code, code.text())
}

pub fn refusal_with(code: RefusalCode, text: &str) -> Vec<u8> {
    let text = &text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)];
    let mut body = vec![code as u8];
    body.extend_from_slice(text);
    // A refusal has its own preamble, so the sender need not know whether a preamble was sent before.
    let mut out = wire::preamble(wire::KIND_CONTROL).to_vec();
    wire::put_frame(&mut out, FrameType::Refusal, &body);
    out
}

/// The error of a failed handshake. Close the connection once `reply` is written.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct HandshakeError {
    /// REFUSED, VERSION, NOT_FERRY, CORRUPT, INVALID, LIMIT, CLOSED or SYSTEM.
    pub error: Error,
    /// The reason, received or sent; None if the connection ended without a reason.
    pub refusal: Option<RefusalCode>,
    /// Engine id and incarnation of the engine that refused, if it was authenticated before.
    pub by: Option<Incarnation>,
    /// Bytes to send before closing, so that the other side can report the reason; may be empty.
    pub reply: Vec<u8>,
}

pub type HandshakeResult<T> = std::result::Result<T, HandshakeError>;

impl HandshakeError {
    /// Returns the error for a refusal by this side. Code and text are sent to the other end.
    pub(super) fn refuse(code: RefusalCode, text: impl Into<String>) -> HandshakeError {
        let text = text.into();
        let reply = refusal_with(code, &text);
        let status = if code == RefusalCode::Malformed { Status::Corrupt } else { code.status() };
        HandshakeError { error: Error::new(status, text), refusal: Some(code), by: None, reply }
    }

    pub(super) fn malformed(text: impl Into<String>) -> HandshakeError {
        HandshakeError::refuse(RefusalCode::Malformed, text)
    }

    /// Returns the error for an end that does not speak this protocol. Nothing is sent to such an end.
    pub(super) fn not_ferry() -> HandshakeError {
        Error::new(Status::NotFerry, "something listens there but does not speak ferry").into()
    }

    /// Puts `output` before the refusal.
    pub(super) fn after(mut self, mut output: Vec<u8>) -> HandshakeError {
        output.append(&mut self.reply);
        self.reply = output;
        self
    }

    /// Returns the error for a refusal by the peer; `body` has the reason.
    pub(super) fn received(body: &[u8]) -> HandshakeError {
        let (number, text) = match body.split_first() {
            Some((&number, text)) => (number, &text[..text.len().min(TEXT_BYTES_MAX)]),
            None => (0, &[][..]),
        };
        let refusal = RefusalCode::from_number(number);
        // Escaped: the text is printed in logs and on terminals, and a third party may have written it.
        let text = String::from_utf8_lossy(text).escape_debug().to_string();
        let message = match refusal {
            Some(code) if text.is_empty() || text == code.text() => {
                format!("the peer refused the session: {}", code.text())
            }
            Some(code) => format!("the peer refused the session: {}: {text}", code.text()),
            None => format!("the peer refused the session with the unknown code {number}: {text}"),
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
            assert_eq!(received.error.message, format!("the peer refused the session: {}", code.text()));
        }
    }

    /// A refusal that carries more than its code says both, once, and this side's own error says the same.
    #[test]
    fn a_refusal_s_text_follows_the_reason_of_its_code() {
        let ours = HandshakeError::refuse(RefusalCode::NoRoom, "7 peers are known (peers_max)");
        assert_eq!(ours.error.message, "7 peers are known (peers_max)");
        let mut frames = wire::Frames::default();
        frames.push(&ours.reply).unwrap();
        let theirs = HandshakeError::received(&frames.next().unwrap().unwrap().1).error.message;
        let expected = "the peer refused the session: the peer knows as many peers as it may: 7 peers are known (peers_max)";
        assert_eq!(theirs, expected);
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
