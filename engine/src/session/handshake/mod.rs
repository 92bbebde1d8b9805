//! The handshake of a control connection: bytes in, bytes out; no sockets and no clock. The control loop drives a
//! `Dialer` or an `Acceptor`, which returns the session's keys and `Channel`.
//!
//! ```text
//! dialer                                  acceptor
//!   HELLO   versions, id, nonce, offers  ->
//!                                        <-  HELLO
//!   [SameUser: one-time key over AF_UNIX, see proof.rs]
//!   OPEN    mode, Noise psk,e {identity} ->   a wrong secret ends here
//!                                        <-  ANSWER   Noise e,ee {share, identity}
//!   CONFIRM {share}                      ->   Done
//!                        Done            <-  WELCOME  {}, or a refusal
//! ```
//! Braces: encrypted. Both HELLOs determine the mode (`hello.rs`). HELLOs and mode are the Noise prologue, so a change
//! to either breaks OPEN. The nonces of the HELLOs make a recorded OPEN useless. The acceptor does no public-key
//! arithmetic before an OPEN has verified.
//!
//! WELCOME costs half a round trip. In return, the dialer's session exists only if the acceptor's does. Until WELCOME
//! is sent, the acceptor's driver may send `refusal(code)` instead, and the dialer learns the reason. The driver has a
//! deadline for each half-open connection; the handshake has none.

mod acceptor;
mod dialer;
mod hello;
mod identity;
mod key;
mod noise;
mod proof;
mod refusal;
pub mod wire;

#[cfg(test)]
pub(crate) mod tests;

pub use acceptor::Acceptor;
pub use dialer::Dialer;
pub use identity::Identity;
pub use key::{derive_secret, Key};
pub use proof::{Nonce, Proof, ProofTable};
pub use refusal::{refusal, refusal_with, HandshakeError, HandshakeResult, RefusalCode};
pub use wire::{peek_kind, preamble, Peek, KIND_LANE};

use super::channel::Channel;
use crate::sys::host::Process;
use crate::types::{EngineId, PlaceId, SessionId};

/// The data of this engine that handshakes send or use.
#[derive(Clone, Debug)]
pub struct Local {
    pub engine_id: EngineId,
    pub incarnation: u64,
    /// `host:port` that other engines can dial; may be empty. Printable ASCII, at most 255 bytes.
    pub address: String,
    /// The tag in this engine's handles.
    pub tag: u16,
    pub lanes_max: u32,
    pub frame_bytes_max: u32,
    pub reads_max: u32,
    pub notify_credits: u32,
    /// The socket where this engine answers same-user proofs (`sys::unix::listen_abstract`). Without this socket, an
    /// acceptor does not offer such proofs.
    pub unix_name: Option<Vec<u8>>,
    /// Where this engine listens, and its process: see `Identity`.
    pub place: Option<PlaceId>,
    pub process: Option<Process>,
    pub auth: AuthPolicy,
}

/// The authentication that this engine accepts: with a secret, only the secret; without a secret, a same-user proof.
/// A session with neither needs the permission of both ends.
#[derive(Clone, Debug, Default)]
pub struct AuthPolicy {
    /// From `derive_secret`.
    pub secret: Option<Key>,
    pub same_user: bool,
    pub allow_unauthenticated: bool,
}

/// The proof that authenticated the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    Secret,
    /// By the kernel's credentials of the AF_UNIX connection. `pid` 0: not visible from our pid namespace.
    SameUser {
        pid: i32,
        uid: u32,
    },
    /// Not at all; both ends allow that. The channel is encrypted, but the peer's identity is not proven.
    None,
}

/// An established session. Both ends have the same values, except `peer` and `auth`, which describe the other end.
#[derive(Debug)]
pub struct Established {
    pub peer: Identity,
    pub channel: Channel,
    pub session_id: SessionId,
    /// The key from which the keys of the session's lanes are derived.
    pub lane_key: Key,
    pub auth: Auth,
}

/// The driver's next step: write `output` (may be empty), then do `next`.
#[derive(Debug)]
#[must_use]
pub struct HandshakeStep {
    pub output: Vec<u8>,
    pub next: Next,
}

#[derive(Debug)]
pub enum Next {
    /// Wait for more input.
    More,
    /// Dialer only. Connect to this abstract socket, check that its owner is our user, write the nonce,
    /// read 32 key bytes (see `proof.rs`), and call `Dialer::proof` with the key or with the error.
    ProveSameUser { name: Vec<u8>, nonce: Nonce },
    /// The handshake has succeeded. Bytes behind the handshake are in `leftover`. At the acceptor, `output` is the
    /// WELCOME; to refuse the session instead, send `refusal(code)`.
    Done(Box<Established>),
}
