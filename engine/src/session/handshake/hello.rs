//! HELLO, the plaintext first frame of each side, and the agreement of two HELLOs: a wire version and an
//! authentication mode. `noise` then binds both HELLOs and the mode into the keys. If a HELLO is altered in transit,
//! the two ends derive different keys, and the handshake fails.
//!
//! ```text
//! version_min:u16 version_max:u16 | engine_id:16 incarnation:u64 nonce:32 offers:u8 unix_name:u8+n
//! ```
//! The versions come first in every future wire version. Bytes behind the known fields belong to a later version; they
//! are ignored but authenticated.

use super::refusal::{HandshakeError, HandshakeResult, RefusalCode};
use super::wire::{self, Fields, FrameType, WIRE_VERSION, WIRE_VERSION_MIN};
use super::{key, Local};
use crate::status::{Error, Result};
use crate::sys::unix::is_proof_name;
use crate::types::EngineId;

/// The authentication modes that a side accepts: a bit set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offers(u8);

impl Offers {
    pub const SECRET: Offers = Offers(1);
    pub const SAME_USER: Offers = Offers(2);
    pub const NONE: Offers = Offers(4);

    fn has(self, other: Offers) -> bool {
        self.0 & other.0 != 0
    }
}

/// The authentication mode of a session. The numbers belong to the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mode {
    Secret = 1,
    SameUser = 2,
    None = 3,
}

impl Mode {
    pub fn from_number(number: u8) -> Option<Mode> {
        [Mode::Secret, Mode::SameUser, Mode::None].into_iter().find(|mode| *mode as u8 == number)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    pub mode: Mode,
    /// True if the mode is SameUser and both sides allow a session without proof. Ends on two hosts cannot prove
    /// SameUser, and neither end knows beforehand that the hosts differ.
    pub unproven_allowed: bool,
}

impl Agreement {
    /// Returns whether the dialer may open in `mode`.
    pub fn permits(&self, mode: Mode) -> bool {
        mode == self.mode || (self.unproven_allowed && mode == Mode::None)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Dialer,
    Acceptor,
}

#[derive(Clone, Debug)]
pub(super) struct Hello {
    versions: (u16, u16),
    pub engine_id: EngineId,
    pub incarnation: u64,
    /// New for each handshake. It is part of the prologue, so recorded messages cannot be used again. The dialer's
    /// nonce also identifies its same-user proof.
    pub nonce: [u8; 32],
    offers: Offers,
    pub unix_name: Option<Vec<u8>>,
    /// The encoded fields, for the prologue.
    pub raw: Vec<u8>,
}

impl Hello {
    pub fn new(local: &Local, role: Role) -> Result<Hello> {
        let mut offers = 0;
        if local.auth.secret.is_some() {
            offers |= Offers::SECRET.0;
        }
        // The proof uses the acceptor's socket; a dialer needs no socket of its own.
        if local.auth.same_user && (role == Role::Dialer || local.unix_name.is_some()) {
            offers |= Offers::SAME_USER.0;
        }
        if local.auth.allow_unauthenticated {
            offers |= Offers::NONE.0;
        }
        let mut hello = Hello {
            versions: (WIRE_VERSION_MIN, WIRE_VERSION),
            engine_id: local.engine_id,
            incarnation: local.incarnation,
            nonce: key::random()?,
            offers: Offers(offers),
            unix_name: local.unix_name.clone(),
            raw: Vec::new(),
        };
        hello.raw = hello.encode();
        Ok(hello)
    }

    /// Returns the preamble and the frame: the first bytes of this side.
    pub fn opening(&self) -> Vec<u8> {
        let mut out = wire::preamble(wire::KIND_CONTROL).to_vec();
        wire::put_frame(&mut out, FrameType::Hello, &self.raw);
        out
    }

    fn encode(&self) -> Vec<u8> {
        let name = self.unix_name.as_deref().unwrap_or_default();
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(&self.versions.0.to_le_bytes());
        out.extend_from_slice(&self.versions.1.to_le_bytes());
        out.extend_from_slice(&self.engine_id.0);
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.extend_from_slice(&self.nonce);
        out.push(self.offers.0);
        out.push(name.len() as u8);
        out.extend_from_slice(name);
        out
    }

    /// Decodes the peer's HELLO. VERSION if the version ranges have no version in common: the rest is not read then,
    /// because its layout may differ.
    pub fn decode(raw: &[u8]) -> HandshakeResult<Hello> {
        let mut fields = Fields(raw);
        let versions = fields.u16().zip(fields.u16());
        let versions = versions.ok_or_else(|| HandshakeError::malformed("HELLO is truncated"))?;
        common_version(versions)?;
        let hello = Hello::decode_rest(raw, versions, fields);
        let hello = hello.ok_or_else(|| HandshakeError::malformed("HELLO is truncated"))?;
        // The dialer connects to this name, so only the name of a proof socket is accepted.
        if !hello.unix_name.as_deref().is_none_or(is_proof_name) {
            return Err(HandshakeError::malformed(
                "HELLO names a socket that is not a proof socket of ferry",
            ));
        }
        Ok(hello)
    }

    fn decode_rest(raw: &[u8], versions: (u16, u16), mut fields: Fields<'_>) -> Option<Hello> {
        Some(Hello {
            versions,
            engine_id: EngineId(fields.array()?),
            incarnation: fields.u64()?,
            nonce: fields.array()?,
            offers: Offers(fields.u8()?),
            unix_name: fields.short().map(|name| (!name.is_empty()).then(|| name.to_vec()))?,
            raw: raw.to_vec(),
        })
    }

    /// Returns the agreement of our HELLO and the peer's. Both ends reach the same result. INVALID if the peer is this
    /// engine itself.
    pub fn agree(&self, theirs: &Hello) -> HandshakeResult<Agreement> {
        if (self.engine_id, self.incarnation) == (theirs.engine_id, theirs.incarnation) {
            return Err(Error::invalid(
                "the address leads back to this engine itself; its own_peer needs no connection",
            )
            .into());
        }
        let (ours, theirs) = (self.offers, theirs.offers);
        let Some(mode) = choose(ours, theirs) else {
            // The text must be true at either end.
            let text = if ours.has(Offers::SECRET) || theirs.has(Offers::SECRET) {
                "one end has a secret, and the other has none"
            } else {
                "neither end has a secret, and not both offer to prove that they run as the same user"
            };
            return Err(HandshakeError::refuse(RefusalCode::AuthRequired, text));
        };
        let unproven_allowed = mode == Mode::SameUser && ours.has(Offers::NONE) && theirs.has(Offers::NONE);
        Ok(Agreement { mode, unproven_allowed })
    }
}

/// Returns the strongest mode that both sides accept. A side with a secret accepts less only if both ends are
/// configured to allow sessions without proof.
fn choose(a: Offers, b: Offers) -> Option<Mode> {
    let both = Offers(a.0 & b.0);
    let either = Offers(a.0 | b.0);
    if both.has(Offers::SECRET) {
        Some(Mode::Secret)
    } else if both.has(Offers::SAME_USER) && !either.has(Offers::SECRET) {
        Some(Mode::SameUser)
    } else {
        both.has(Offers::NONE).then_some(Mode::None)
    }
}

fn common_version((min, max): (u16, u16)) -> HandshakeResult<u16> {
    let version = max.min(WIRE_VERSION);
    if min <= max && version >= min.max(WIRE_VERSION_MIN) {
        return Ok(version);
    }
    // The text must be true at either end.
    let text = format!(
        "one end speaks the wire versions {min} to {max}, the other {WIRE_VERSION_MIN} to {WIRE_VERSION}"
    );
    Err(HandshakeError::refuse(RefusalCode::Version, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    #[test]
    fn the_strongest_common_mode_is_chosen_and_a_secret_is_never_given_up_silently() {
        for a in 0..8u8 {
            for b in 0..8u8 {
                let (a, b) = (Offers(a), Offers(b));
                let mode = choose(a, b);
                assert_eq!(mode, choose(b, a));
                let secrets = (a.has(Offers::SECRET), b.has(Offers::SECRET));
                let none = a.has(Offers::NONE) && b.has(Offers::NONE);
                let same_user = a.has(Offers::SAME_USER) && b.has(Offers::SAME_USER);
                let expected = match secrets {
                    (true, true) => Some(Mode::Secret),
                    (false, false) if same_user => Some(Mode::SameUser),
                    _ => none.then_some(Mode::None),
                };
                assert_eq!(mode, expected, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn version_ranges_meet_or_are_both_named() {
        let ours = WIRE_VERSION;
        assert_eq!(common_version((ours, ours)).unwrap(), ours);
        assert_eq!(common_version((0, ours + 6)).unwrap(), ours);
        for range in [(ours + 1, ours + 6), (0, 0), (ours - 1, ours - 1), (ours, ours - 1)] {
            let error = common_version(range).unwrap_err();
            assert_eq!(error.error.status, Status::Version);
            assert!(error.error.message.contains(&format!("{} to {}", range.0, range.1)));
            assert!(error.error.message.contains(&format!("{WIRE_VERSION_MIN} to {ours}")));
        }
    }

    #[test]
    fn a_later_version_may_say_more_in_its_hello() {
        let local = super::super::tests::support::local(1);
        let mut raw = Hello::new(&local, Role::Dialer).unwrap().raw;
        raw[2..4].copy_from_slice(&9u16.to_le_bytes());
        raw.extend_from_slice(b"fields that are unknown here");
        let hello = Hello::decode(&raw).unwrap();
        assert_eq!((hello.versions, &hello.unix_name), ((WIRE_VERSION_MIN, 9), &local.unix_name));
        assert_eq!(hello.raw, raw, "but the prologue covers them");
    }

    #[test]
    fn a_hello_is_whole_and_names_only_proof_sockets() {
        let raw = Hello::new(&super::super::tests::support::local(1), Role::Dialer).unwrap().raw;
        for length in 0..raw.len() {
            assert_eq!(Hello::decode(&raw[..length]).unwrap_err().error.status, Status::Corrupt);
        }
        let mut other = raw.clone();
        *other.last_mut().unwrap() = b'/';
        assert_eq!(Hello::decode(&other).unwrap_err().error.status, Status::Corrupt);
    }
}
