//! Runs the Noise handshake (NNpsk0): its prologue, its pre-shared key, and the session's keys. `snow` and `blake3`
//! have the primitives; this file only chooses their inputs. Used by `dialer` and `acceptor`.

use super::hello::{Hello, Mode, Role};
use super::key::Key;
use super::refusal::{HandshakeError, HandshakeResult, RefusalCode};
use super::{Auth, Local, Proof};
use crate::limits::HANDSHAKE_BYTES_MAX;
use crate::session::channel::Channel;
use crate::status::{Error, Result, Status};
use crate::sys::random;
use crate::types::SessionId;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"ferry session handshake 1";
/// The pre-shared key of a session without proof. Protects against passive eavesdroppers, proves nothing.
const NO_KEY: [u8; 32] = [0; 32];

/// Returns the pre-shared key of `mode` and the proof that it stands for. None if the secret or the proof is missing.
pub(super) fn credentials(mode: Mode, local: &Local, proof: Option<Proof>) -> Option<(Key, Auth)> {
    match mode {
        Mode::Secret => Some((local.auth.secret.clone()?, Auth::Secret)),
        Mode::SameUser => proof.map(|proof| (proof.key, Auth::SameUser { pid: proof.pid, uid: proof.uid })),
        Mode::None => Some((Key::from(NO_KEY), Auth::None)),
    }
}

/// Starts the Noise handshake. The prologue is the dialer's HELLO, the acceptor's HELLO and the mode: if the two ends
/// saw different ones, the first message does not decrypt.
pub(super) fn start(
    role: Role,
    ours: &Hello,
    theirs: &Hello,
    mode: Mode,
    psk: &Key,
) -> Result<snow::HandshakeState> {
    let (dialer, acceptor) = if role == Role::Dialer { (ours, theirs) } else { (theirs, ours) };
    let mut prologue = PROLOGUE.to_vec();
    for raw in [&dialer.raw, &acceptor.raw] {
        prologue.extend_from_slice(&(raw.len() as u16).to_le_bytes());
        prologue.extend_from_slice(raw);
    }
    prologue.push(mode as u8);
    let params = PATTERN.parse().map_err(failed)?;
    let builder = snow::Builder::with_resolver(params, random::resolver())
        .prologue(&prologue)
        .and_then(|b| b.psk(0, psk.bytes()));
    let builder = builder.map_err(failed)?;
    match role {
        Role::Dialer => builder.build_initiator().map_err(failed),
        Role::Acceptor => builder.build_responder().map_err(failed),
    }
}

/// Appends the next handshake message.
pub(super) fn write(noise: &mut snow::HandshakeState, payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let mut message = [0; HANDSHAKE_BYTES_MAX];
    let length = noise.write_message(payload, &mut message).map_err(failed)?;
    out.extend_from_slice(&message[..length]);
    Ok(())
}

/// Returns the payload of the peer's handshake message. A message that does not decrypt was made with another key or
/// for another handshake. Noise cannot distinguish the two, so the error names the likelier cause.
pub(super) fn read(noise: &mut snow::HandshakeState, message: &[u8], mode: Mode) -> HandshakeResult<Vec<u8>> {
    let mut payload = vec![0; message.len()];
    match noise.read_message(message, &mut payload) {
        Ok(length) => payload.truncate(length),
        Err(_) => {
            return Err(match mode {
                Mode::Secret => HandshakeError::refuse(RefusalCode::BadSecret, RefusalCode::BadSecret.text()),
                Mode::SameUser => HandshakeError::refuse(
                    RefusalCode::SameUserFailed,
                    "the same-user key does not fit this handshake",
                ),
                Mode::None => HandshakeError::malformed("the handshake was altered in transit"),
            })
        }
    }
    Ok(payload)
}

/// Returns the channel of a finished handshake, and the hash of all its messages.
pub(super) fn finish(noise: snow::HandshakeState) -> Result<(Channel, [u8; 32])> {
    let mut hash = [0; 32];
    hash.copy_from_slice(noise.get_handshake_hash());
    Ok((Channel::new(noise.into_transport_mode().map_err(failed)?), hash))
}

/// Derives the session id and the lane key. The shares were encrypted under the ephemeral keys, so the results are as
/// secret as those keys. The hash binds the results to this handshake.
pub(super) fn session_keys(hash: &[u8; 32], dialer: &Key, acceptor: &Key) -> (SessionId, Key) {
    let material: [&[u8]; 3] = [hash, dialer.bytes(), acceptor.bytes()];
    let id = Key::derive("ferry 2026 session handshake: session id", &material);
    let lane_key = Key::derive("ferry 2026 session handshake: lane key", &material);
    let mut session_id = SessionId::default();
    session_id.0.copy_from_slice(&id.bytes()[..16]);
    (session_id, lane_key)
}

/// Converts an error that the peer did not cause: no random bytes, or wrong use of the library.
fn failed(cause: snow::Error) -> Error {
    Error::new(Status::System, format!("noise: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::local;
    use super::*;

    /// Two handshakes with the same hellos and key still have keys of their own.
    #[test]
    fn each_handshake_draws_its_key() {
        let hello = |n, role| Hello::new(&local(n), role).unwrap();
        let (ours, theirs) = (hello(1, Role::Dialer), hello(2, Role::Acceptor));
        let first_message = || {
            let mut noise = start(Role::Dialer, &ours, &theirs, Mode::None, &Key::from(NO_KEY)).unwrap();
            let mut message = Vec::new();
            write(&mut noise, b"", &mut message).unwrap();
            message
        };
        let (one, other) = (first_message(), first_message());
        assert_eq!(one.len(), other.len());
        // The public key comes first.
        assert_ne!(one[..32], other[..32]);
    }
}
