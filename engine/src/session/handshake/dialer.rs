//! The dialing side of the handshake (`mod.rs` has the picture; `acceptor` is the other side).

use super::hello::{Agreement, Hello, Mode, Role};
use super::key::Key;
use super::refusal::{HandshakeError, HandshakeResult, RefusalCode};
use super::wire::{self, Fields, FrameType, Frames};
use super::{identity, noise, Auth, Established, HandshakeStep, Local, Next, Proof};
use crate::status::{Error, Result};
use crate::types::{Boottime, Incarnation};

/// One handshake. Any error ends the handshake; every later call returns CLOSED.
#[derive(Debug)]
pub struct Dialer {
    local: Local,
    hello: Hello,
    frames: Frames,
    state: DialerState,
}

#[derive(Debug)]
enum DialerState {
    AwaitHello,
    /// The driver fetches the one-time key from the AF_UNIX socket.
    AwaitProof(Negotiated),
    AwaitAnswer(Box<Opened>),
    AwaitWelcome(Box<Established>),
    Over,
}

#[derive(Debug)]
struct Negotiated {
    acceptor: Hello,
    agreement: Agreement,
}

#[derive(Debug)]
struct Opened {
    noise: snow::HandshakeState,
    acceptor: Hello,
    mode: Mode,
    auth: Auth,
}

impl Dialer {
    /// Returns a handshake and its first bytes. INVALID if `local` cannot be encoded.
    pub fn start(local: &Local) -> Result<(Dialer, Vec<u8>)> {
        identity::check(local)?;
        let hello = Hello::new(local, Role::Dialer)?;
        let first = hello.opening();
        Ok((
            Dialer { local: local.clone(), hello, frames: Frames::default(), state: DialerState::AwaitHello },
            first,
        ))
    }

    /// Takes received bytes, in pieces of any size up to `INPUT_BYTES_MAX`. `boottime_ns` is the current time.
    pub fn input(&mut self, bytes: &[u8], boottime_ns: Boottime) -> HandshakeResult<HandshakeStep> {
        self.ending_on_error(|dialer| {
            if matches!(dialer.state, DialerState::Over) {
                return Err(HandshakeError::over());
            }
            dialer.frames.push(bytes)?;
            dialer.advance(Vec::new(), boottime_ns)
        })
    }

    /// Takes the result of `ProveSameUser`. Without a proof, the handshake continues only if both ends allow an
    /// unauthenticated session; else it ends as SameUserFailed. CLOSED if no proof was asked for.
    pub fn proof(&mut self, proof: Result<Proof>, boottime_ns: Boottime) -> HandshakeResult<HandshakeStep> {
        self.ending_on_error(|dialer| {
            let DialerState::AwaitProof(negotiated) = std::mem::replace(&mut dialer.state, DialerState::Over)
            else {
                return Err(HandshakeError::over());
            };
            let mut output = Vec::new();
            match proof {
                Ok(proof) => {
                    dialer.open(negotiated, Mode::SameUser, Some(proof), boottime_ns, &mut output)?
                }
                Err(_) if negotiated.agreement.unproven_allowed => {
                    dialer.open(negotiated, Mode::None, None, boottime_ns, &mut output)?
                }
                Err(cause) => return Err(unproven(cause)),
            }
            // A refusal may have arrived meanwhile.
            dialer.advance(output, boottime_ns)
        })
    }

    /// Returns the engine id and incarnation that the other end claims, once they are known. They may be unproven.
    pub fn other_end(&self) -> Option<Incarnation> {
        match &self.state {
            DialerState::AwaitHello | DialerState::Over => None,
            DialerState::AwaitProof(negotiated) => {
                Some((negotiated.acceptor.engine_id, negotiated.acceptor.incarnation))
            }
            DialerState::AwaitAnswer(opened) => {
                Some((opened.acceptor.engine_id, opened.acceptor.incarnation))
            }
            DialerState::AwaitWelcome(established) => {
                Some((established.peer.engine_id, established.peer.incarnation))
            }
        }
    }

    /// Returns, after `Done`, the bytes received behind the handshake: the channel's first bytes.
    pub fn leftover(&mut self) -> Vec<u8> {
        self.frames.take()
    }

    #[cfg(test)]
    pub(super) fn buffered_capacity(&self) -> usize {
        self.frames.capacity()
    }

    fn ending_on_error<T>(
        &mut self,
        step: impl FnOnce(&mut Dialer) -> HandshakeResult<T>,
    ) -> HandshakeResult<T> {
        let result = step(self);
        if result.is_err() {
            self.state = DialerState::Over;
        }
        result
    }

    fn advance(&mut self, mut output: Vec<u8>, boottime_ns: Boottime) -> HandshakeResult<HandshakeStep> {
        while let Some((kind, fields)) = self.frames.next()? {
            let next = self.frame(kind, &fields, boottime_ns, &mut output)?;
            if !matches!(next, Next::More) {
                return Ok(HandshakeStep { output, next });
            }
        }
        Ok(HandshakeStep { output, next: Next::More })
    }

    fn frame(
        &mut self,
        kind: FrameType,
        fields: &[u8],
        boottime_ns: Boottime,
        output: &mut Vec<u8>,
    ) -> HandshakeResult<Next> {
        match (std::mem::replace(&mut self.state, DialerState::Over), kind) {
            // The refusal is plaintext. A third party that can forge a refusal could also close the connection, so
            // trusting the refusal adds no risk.
            (DialerState::AwaitWelcome(established), FrameType::Refusal) => {
                let by = Some((established.peer.engine_id, established.peer.incarnation));
                Err(HandshakeError { by, ..HandshakeError::received(fields) })
            }
            (_, FrameType::Refusal) => Err(HandshakeError::received(fields)),
            (DialerState::AwaitHello, FrameType::Hello) => self.on_hello(fields, boottime_ns, output),
            (DialerState::AwaitAnswer(opened), FrameType::Answer) => self.on_answer(*opened, fields, output),
            (DialerState::AwaitWelcome(established), FrameType::Welcome) => on_welcome(established, fields),
            (_, kind) => Err(HandshakeError::malformed(format!("{kind:?} frame out of turn"))),
        }
    }

    fn on_hello(&mut self, raw: &[u8], boottime_ns: Boottime, output: &mut Vec<u8>) -> HandshakeResult<Next> {
        let acceptor = Hello::decode(raw)?;
        let agreement = self.hello.agree(&acceptor)?;
        let name = acceptor.unix_name.clone();
        let negotiated = Negotiated { acceptor, agreement };
        if agreement.mode != Mode::SameUser {
            self.open(negotiated, agreement.mode, None, boottime_ns, output)?;
            return Ok(Next::More);
        }
        let Some(name) = name else {
            return Err(HandshakeError::malformed("HELLO offers a same-user proof but names no socket"));
        };
        self.state = DialerState::AwaitProof(negotiated);
        Ok(Next::ProveSameUser { name, nonce: self.hello.nonce })
    }

    fn open(
        &mut self,
        negotiated: Negotiated,
        mode: Mode,
        proof: Option<Proof>,
        boottime_ns: Boottime,
        output: &mut Vec<u8>,
    ) -> HandshakeResult<()> {
        let acceptor = negotiated.acceptor;
        let (psk, auth) = noise::credentials(mode, &self.local, proof)
            .ok_or_else(|| Error::invalid("no key to open with"))?;
        let mut noise = noise::start(Role::Dialer, &self.hello, &acceptor, mode, &psk)?;
        let mut payload = Vec::new();
        identity::encode(&self.local, boottime_ns, &mut payload);
        let mut fields = vec![mode as u8];
        noise::write(&mut noise, &payload, &mut fields)?;
        wire::put_frame(output, FrameType::Open, &fields);
        self.state = DialerState::AwaitAnswer(Box::new(Opened { noise, acceptor, mode, auth }));
        Ok(())
    }

    fn on_answer(&mut self, opened: Opened, fields: &[u8], output: &mut Vec<u8>) -> HandshakeResult<Next> {
        let Opened { mut noise, acceptor, mode, auth } = opened;
        let payload = noise::read(&mut noise, fields, mode)?;
        let mut payload = Fields(&payload);
        let answer = payload.array().zip(identity::decode(&acceptor, payload));
        let (acceptor_share, peer) =
            answer.ok_or_else(|| HandshakeError::malformed("ANSWER is malformed"))?;
        let (mut channel, hash) = noise::finish(noise)?;
        let share = Key::random()?;
        let mut confirmation = Vec::new();
        channel.encrypt(share.bytes(), &mut confirmation)?;
        wire::put_frame(output, FrameType::Confirm, &confirmation);
        let (session_id, lane_key) = noise::session_keys(&hash, &share, &Key::from(acceptor_share));
        let established = Established { peer, channel, session_id, lane_key, auth };
        self.state = DialerState::AwaitWelcome(Box::new(established));
        Ok(Next::More)
    }
}

fn on_welcome(mut established: Box<Established>, fields: &[u8]) -> HandshakeResult<Next> {
    match established.channel.decrypt(fields) {
        Ok(payload) if payload.is_empty() => Ok(Next::Done(established)),
        _ => Err(HandshakeError::malformed("WELCOME does not verify")),
    }
}

/// Returns the refusal for a missing proof. Only the caller's error has the cause.
fn unproven(cause: Error) -> HandshakeError {
    let code = RefusalCode::SameUserFailed;
    let mut refused = HandshakeError::refuse(code, code.text());
    refused.error.os_error = cause.os_error;
    refused.error.message = format!("{}: {}", code.text(), cause.message);
    refused
}
