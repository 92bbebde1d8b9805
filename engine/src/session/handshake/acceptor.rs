//! The accepting side of the handshake (`mod.rs` has the picture; `dialer` is the other side). Until an OPEN has
//! verified, the other end is not authenticated. So the acceptor keeps little state and computes little before.

use super::hello::{Agreement, Hello, Mode, Role};
use super::key::Key;
use super::refusal::{HandshakeError, HandshakeResult, RefusalCode};
use super::wire::{self, Fields, FrameType, Frames};
use super::{identity, noise, Auth, Established, HandshakeStep, Identity, Local, Next, Nonce, Proof};
use crate::session::channel::Channel;
use crate::status::Result;
use crate::types::Boottime;

/// Takes the same-user proof for a dialer's nonce: a closure around `ProofTable::take`.
pub type Proofs<'a> = dyn FnMut(&Nonce) -> Option<Proof> + 'a;

/// One handshake. Any error ends the handshake; every later call returns CLOSED.
#[derive(Debug)]
pub struct Acceptor {
    local: Local,
    frames: Frames,
    state: AcceptorState,
}

#[derive(Debug)]
enum AcceptorState {
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
}

impl Acceptor {
    /// Creates an acceptor. INVALID if `local` cannot be encoded.
    pub fn new(local: &Local) -> Result<Acceptor> {
        identity::check(local)?;
        Ok(Acceptor { local: local.clone(), frames: Frames::default(), state: AcceptorState::AwaitHello })
    }

    /// Takes received bytes, including the preamble, in pieces of any size up to `INPUT_BYTES_MAX`. `proofs` is called
    /// at most once in a handshake. `boottime_ns` is the current time.
    pub fn input(
        &mut self,
        bytes: &[u8],
        proofs: &mut Proofs,
        boottime_ns: Boottime,
    ) -> HandshakeResult<HandshakeStep> {
        let result = self.advance(bytes, proofs, boottime_ns);
        if result.is_err() {
            self.state = AcceptorState::Over;
        }
        result
    }

    /// Returns, after `Done`, the bytes received behind the handshake: the channel's first bytes.
    pub fn leftover(&mut self) -> Vec<u8> {
        self.frames.take()
    }

    #[cfg(test)]
    pub(super) fn buffered_capacity(&self) -> usize {
        self.frames.capacity()
    }

    fn advance(
        &mut self,
        bytes: &[u8],
        proofs: &mut Proofs,
        boottime_ns: Boottime,
    ) -> HandshakeResult<HandshakeStep> {
        if matches!(self.state, AcceptorState::Over) {
            return Err(HandshakeError::over());
        }
        self.frames.push(bytes)?;
        let mut output = Vec::new();
        while let Some((kind, fields)) = self.frames.next()? {
            let next = match (std::mem::replace(&mut self.state, AcceptorState::Over), kind) {
                (_, FrameType::Refusal) => return Err(HandshakeError::received(&fields)),
                (AcceptorState::AwaitHello, FrameType::Hello) => self.on_hello(&fields, &mut output)?,
                (AcceptorState::AwaitOpen(negotiated), FrameType::Open) => {
                    self.on_open(*negotiated, &fields, proofs, boottime_ns, &mut output)?
                }
                (AcceptorState::AwaitConfirm(answered), FrameType::Confirm) => {
                    on_confirm(*answered, &fields, &mut output)?
                }
                (_, kind) => return Err(HandshakeError::malformed(format!("{kind:?} frame out of turn"))),
            };
            if !matches!(next, Next::More) {
                return Ok(HandshakeStep { output, next });
            }
        }
        Ok(HandshakeStep { output, next: Next::More })
    }

    /// Answers with our HELLO, even if the handshake fails: from both HELLOs the dialer derives the reason (another
    /// version, no common authentication mode, an engine that dialed itself).
    fn on_hello(&mut self, raw: &[u8], output: &mut Vec<u8>) -> HandshakeResult<Next> {
        let hello = Hello::new(&self.local, Role::Acceptor)?;
        let agreed = Hello::decode(raw).and_then(|dialer| Ok((hello.agree(&dialer)?, dialer)));
        let (agreement, dialer) = agreed.map_err(|error| error.after(hello.opening()))?;
        output.extend_from_slice(&hello.opening());
        self.state = AcceptorState::AwaitOpen(Box::new(Negotiated { hello, dialer, agreement }));
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
        // Contract 16: the dialer may not weaken the mode that both HELLOs determine.
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
        self.state = AcceptorState::AwaitConfirm(Box::new(Answered { channel, hash, share, peer, auth }));
        Ok(Next::More)
    }
}

fn on_confirm(answered: Answered, fields: &[u8], output: &mut Vec<u8>) -> HandshakeResult<Next> {
    let Answered { mut channel, hash, share, peer, auth } = answered;
    let confirmed = channel.decrypt(fields).ok().and_then(|payload| <[u8; 32]>::try_from(payload).ok());
    let dialer_share = confirmed.ok_or_else(|| HandshakeError::malformed("CONFIRM does not verify"))?;
    let (session_id, lane_key) = noise::session_keys(&hash, &Key::from(dialer_share), &share);
    let mut welcome = Vec::new();
    channel.encrypt(&[], &mut welcome)?;
    wire::put_frame(output, FrameType::Welcome, &welcome);
    let established = Established { peer, channel, session_id, lane_key, auth };
    Ok(Next::Done(Box::new(established)))
}
