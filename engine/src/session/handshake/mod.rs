//! The handshake of a control connection: bytes in, bytes out; no sockets and no clock inside. The
//! control loop drives a `Dialer` or an `Acceptor`, and gets a session's keys and `Channel` from it.
//!
//! ```text
//! dialer                                  acceptor
//!   HELLO   versions, id, nonce, offers  ->
//!                                        <-  HELLO
//!   [SameUser: one-time key over AF_UNIX, see proof.rs]
//!   OPEN    mode, Noise psk,e {identity} ->   a wrong secret ends here
//!                                        <-  ANSWER   Noise e,ee {share, identity}
//!   CONFIRM {share}                      ->   Done
//!                        Done            <-  WELCOME  {}, or a refusal after all
//! ```
//! Braces: encrypted. The mode follows from both HELLOs (`hello.rs`); HELLOs and mode are the Noise
//! prologue, so a change to either breaks OPEN. The HELLOs' nonces make a recorded OPEN useless, and the
//! acceptor does no public-key arithmetic before an OPEN has verified.
//!
//! WELCOME costs half a round trip and buys certainty: the dialer's session exists only if the acceptor's
//! does. Up to then the driver may send `refusal(code)` instead, at any moment, and the dialer learns why.
//! There is no deadline in here; the driver has one for each half-open connection.

mod acceptor;
mod dialer;
mod hello;
mod identity;
mod key;
mod noise;
mod proof;
mod refusal;
mod wire;

#[cfg(test)]
pub(crate) mod tests;

pub use acceptor::Acceptor;
pub use dialer::Dialer;
pub use identity::Identity;
pub use key::{derive_secret, Key, SECRET_BYTES_MIN};
pub use proof::{Nonce, Proof, ProofTable};
pub use refusal::{refusal, refusal_with, HandshakeError, HandshakeResult, RefusalCode};
pub use wire::{
    peek_kind, preamble, Peek, INPUT_BYTES_MAX, KIND_CONTROL, KIND_LANE, MAGIC, WIRE_VERSION,
    WIRE_VERSION_MIN,
};

use super::channel::Channel;
use crate::sys::host::Process;

/// This engine, as handshakes present it.
#[derive(Clone, Debug)]
pub struct Local {
    pub engine_id: [u8; 16],
    pub incarnation: u64,
    /// `host:port` that others can dial; may be empty. Printable ASCII, at most 255 bytes.
    pub address: String,
    /// The tag in this engine's handles.
    pub tag: u16,
    pub lanes_max: u32,
    pub frame_bytes_max: u32,
    pub reads_max: u32,
    pub notify_credits: u32,
    /// Where this engine answers same-user proofs (`sys::unix::listen_abstract`); without it an acceptor
    /// does not offer them.
    pub unix_name: Option<Vec<u8>>,
    /// Where this engine listens, and the process that it is in: see `Identity`.
    pub place: Option<[u8; 16]>,
    pub process: Option<Process>,
    pub auth: AuthPolicy,
}

/// What this engine accepts. With a secret, nothing less; without, a same-user proof; sessions without
/// either only if both ends allow them.
#[derive(Clone, Debug, Default)]
pub struct AuthPolicy {
    /// From `derive_secret`.
    pub secret: Option<Key>,
    pub same_user: bool,
    pub allow_unauthenticated: bool,
}

/// How the peer proved itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    Secret,
    /// By the kernel's word on the AF_UNIX connection. `pid` 0: not visible from our pid namespace.
    SameUser {
        pid: i32,
        uid: u32,
    },
    /// Not at all; both ends allow that. The channel is still encrypted, to whoever it may be.
    None,
}

/// A session, equal at both ends but for the perspective.
#[derive(Debug)]
pub struct Established {
    pub peer: Identity,
    pub channel: Channel,
    pub session_id: [u8; 16],
    /// From which the keys of the session's lanes are derived.
    pub lane_key: Key,
    pub auth: Auth,
    /// The wire version agreed on.
    pub version: u16,
}

/// What the driver does next: write `output` (may be empty), then see `next`.
#[derive(Debug)]
#[must_use]
pub struct Step {
    pub output: Vec<u8>,
    pub next: Next,
}

#[derive(Debug)]
pub enum Next {
    /// Bring more input.
    More,
    /// Dialer only. Connect to this abstract socket, check that its owner is our user, write the nonce,
    /// read 32 key bytes (see `proof.rs`), and call `Dialer::proof` with them or with what went wrong.
    ProveSameUser { name: Vec<u8>, nonce: Nonce },
    /// Over, well. Bytes behind the handshake wait in `leftover`. At the acceptor, `output` is what tells
    /// the dialer so; to turn it down after all, send `refusal(code)` instead.
    Done(Box<Established>),
}
