//! The accepting side's half of the handshake (`mod.rs` has the picture; `dialer` is the other half).
//! Everything here works for strangers until an OPEN has verified, so it keeps little and computes less.

use super::hello::{Agreement, Hello, Mode, Role};
use super::key::Key;
use super::refusal::{HandshakeError, HandshakeResult, RefusalCode};
use super::wire::{self, Fields, FrameType, Frames};
use super::{identity, noise, Auth, Established, Identity, Local, Next, Nonce, Proof, Step};
use crate::session::channel::Channel;
use crate::status::Result;
use crate::types::Boottime;

/// Finds, and uses up, the same-user proof for a dialer's nonce; `ProofTable::take` behind a closure.
pub type Proofs<'a> = dyn FnMut(&Nonce) -> Option<Proof> + 'a;

/// One handshake. Any error ends it; every call after the end answers CLOSED.
#[derive(Debug)]
pub struct Acceptor {
    local: Local,
    frames: Frames,
    state: State,
}

#[derive(Debug)]
enum State {
    AwaitHello,
    AwaitOpen(Box<Negotiated>),
    AwaitConfirm(Box<Answered>),
    Over,
}

#[derive(Debug)]
struct Negotiated {
    hello: Hello,
    dialer: Hello,
    agreement: Agreement,
}

#[derive(Debug)]
struct Answered {
    channel: Channel,
    hash: [u8; 32],
    share: Key,
    peer: Identity,
    auth: Auth,
    version: u16,
}

impl Acceptor {
    /// INVALID if `local` can't be put on the wire.
    pub fn new(local: &Local) -> Result<Acceptor> {
        identity::check(local)?;
        Ok(Acceptor { local: local.clone(), frames: Frames::default(), state: State::AwaitHello })
    }

    /// Takes what was received, preamble included, in pieces of any size up to `INPUT_BYTES_MAX`. `proofs`
    /// is asked at most once in a handshake. `boottime_ns` is now.
    pub fn input(
        &mut self,
        bytes: &[u8],
        proofs: &mut Proofs,
        boottime_ns: Boottime,
    ) -> HandshakeResult<Step> {
        let result = self.advance(bytes, proofs, boottime_ns);
        if result.is_err() {
            self.state = State::Over;
        }
        result
    }

    /// After `Done`: bytes received behind the handshake, which are the channel's first.
    pub fn leftover(&mut self) -> Vec<u8> {
        self.frames.take()
    }

    #[cfg(test)]
    pub(super) fn buffered_capacity(&self) -> usize {
        self.frames.capacity()
    }

    fn advance(&mut self, bytes: &[u8], proofs: &mut Proofs, boottime_ns: Boottime) -> HandshakeResult<Step> {
        if matches!(self.state, State::Over) {
            return Err(HandshakeError::over());
        }
        self.frames.push(bytes)?;
        let mut output = Vec::new();
        while let Some((kind, fields)) = self.frames.next()? {
            let next = match (std::mem::replace(&mut self.state, State::Over), kind) {
                (_, FrameType::Refusal) => return Err(HandshakeError::received(&fields)),
                (State::AwaitHello, FrameType::Hello) => self.on_hello(&fields, &mut output)?,
                (State::AwaitOpen(negotiated), FrameType::Open) => {
                    self.on_open(*negotiated, &fields, proofs, boottime_ns, &mut output)?
                }
                (State::AwaitConfirm(answered), FrameType::Confirm) => {
                    on_confirm(*answered, &fields, &mut output)?
                }
                (_, kind) => return Err(HandshakeError::malformed(format!("{kind:?} frame out of turn"))),
            };
            if !matches!(next, Next::More) {
                return Ok(Step { output, next });
            }
        }
        Ok(Step { output, next: Next::More })
    }

    /// Answers with our HELLO even where nothing comes of it: from both, the dialer finds out for itself
    /// what is wrong (another version, no common way to authenticate, an engine that dialed itself).
    fn on_hello(&mut self, raw: &[u8], output: &mut Vec<u8>) -> HandshakeResult<Next> {
        let hello = Hello::new(&self.local, Role::Acceptor)?;
        let agreed = Hello::decode(raw).and_then(|dialer| Ok((hello.agree(&dialer)?, dialer)));
        let (agreement, dialer) = agreed.map_err(|error| error.after(hello.opening()))?;
        output.extend_from_slice(&hello.opening());
        self.state = State::AwaitOpen(Box::new(Negotiated { hello, dialer, agreement }));
        Ok(Next::More)
    }

    fn on_open(
        &mut self,
        negotiated: Negotiated,
        fields: &[u8],
        proofs: &mut Proofs,
        boottime_ns: Boottime,
        output: &mut Vec<u8>,
    ) -> HandshakeResult<Next> {
        let Negotiated { hello, dialer, agreement } = negotiated;
        let mode = fields.first().and_then(|number| Mode::from_number(*number));
        let Some(mode) = mode.filter(|mode| agreement.permits(*mode)) else {
            return Err(HandshakeError::malformed("OPEN in a mode that was not agreed"));
        };
        let proof = if mode == Mode::SameUser { proofs(&dialer.nonce) } else { None };
        let Some((psk, auth)) = noise::credentials(mode, &self.local, proof) else {
            let code = RefusalCode::SameUserFailed;
            return Err(HandshakeError::refuse(code, code.text()));
        };
        let mut noise = noise::start(Role::Acceptor, &hello, &dialer, mode, &psk)?;
        let payload = noise::read(&mut noise, &fields[1..], mode)?;
        let peer = identity::decode(&dialer, Fields(&payload));
        let peer = peer.ok_or_else(|| HandshakeError::malformed("OPEN is malformed"))?;

        let share = Key::random()?;
        let mut payload = share.bytes().to_vec();
        identity::encode(&self.local, boottime_ns, &mut payload);
        let mut answer = Vec::new();
        noise::write(&mut noise, &payload, &mut answer)?;
        wire::put_frame(output, FrameType::Answer, &answer);
        let (channel, hash) = noise::finish(noise)?;
        let version = agreement.version;
        self.state = State::AwaitConfirm(Box::new(Answered { channel, hash, share, peer, auth, version }));
        Ok(Next::More)
    }
}

fn on_confirm(answered: Answered, fields: &[u8], output: &mut Vec<u8>) -> HandshakeResult<Next> {
    let Answered { mut channel, hash, share, peer, auth, version } = answered;
    let confirmed = channel.decrypt(fields).ok().and_then(|payload| <[u8; 32]>::try_from(payload).ok());
    let dialer_share = confirmed.ok_or_else(|| HandshakeError::malformed("CONFIRM does not verify"))?;
    let (session_id, lane_key) = noise::session_keys(&hash, &Key::from(dialer_share), &share);
    let mut welcome = Vec::new();
    channel.encrypt(&[], &mut welcome)?;
    wire::put_frame(output, FrameType::Welcome, &welcome);
    let established = Established { peer, channel, session_id, lane_key, auth, version };
    Ok(Next::Done(Box::new(established)))
}
