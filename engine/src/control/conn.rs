//! The kinds of connection that the control loop holds, and what each waits for.

use crate::control::greeting::Greeting;
use crate::control::stream::Stream;
use crate::limits::ANSWERS_UNWRITTEN_MAX;
use crate::loss::{Failure, Loss};
use crate::session::channel::Channel;
use crate::session::handshake::{Acceptor, Dialer, Identity, Nonce};
use crate::session::machine::Role;
use crate::session::order::Order;
use crate::types::PeerId;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Who asked for a dial.
pub enum Target {
    /// `connect`: the callers get the peer's handle. `asked`: how many fences the application had put up when the
    /// last of them came.
    New { address: String, asked: u64, waiting: Vec<u64> },
    /// A lost session, by its peer.
    Again { peer: PeerId },
}

/// A control connection that is authenticated; its session may still have to be found.
pub struct ControlConn {
    pub stream: Stream,
    pub channel: Channel,
    pub input: Vec<u8>,
    pub role: Role,
    pub identity: Identity,
    pub session_id: [u8; 16],
    pub lane_key: [u8; 32],
    pub remote: SocketAddr,
    pub pidfd: Option<OwnedFd>,
    /// Whether the other end has shown the secret, or to be our user.
    pub is_proven: bool,
    /// The session's peer, once the peer's Start has told which.
    pub peer: Option<PeerId>,
    /// For a dialer that has no session yet.
    pub target: Option<Target>,
    /// The peer object that we named in our Start.
    pub offered: Offered,
    /// What the peer said on this connection so far, as far as it bounds what may come.
    pub order: Order,
    pub answers: Answers,
    /// Why it can't be written to any more. What the peer has said until then is read yet.
    pub broken: Option<Failure>,
    /// Bytes that were read since.
    pub last_words: usize,
}

impl ControlConn {
    /// A failure of this connection, with its addresses.
    pub fn loss(&self, failure: Failure) -> Loss {
        let here = self.stream.local_address().map_or("?".into(), |address| address.to_string());
        Loss::new(failure, &format!("control connection, {here} to {}", self.remote))
    }
}

/// Answers that wait to be written: how many, and where in the stream the last one ends.
#[derive(Default)]
pub struct Answers {
    count: u32,
    end: u64,
}

impl Answers {
    /// Whether one more may be queued on a stream that was written so far.
    pub fn has_room(&mut self, written: u64) -> bool {
        if written >= self.end {
            self.count = 0;
        }
        self.count < ANSWERS_UNWRITTEN_MAX
    }

    /// One more ends here.
    pub fn add(&mut self, end: u64) {
        self.count += 1;
        self.end = end;
    }
}

/// What our Start said.
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    /// The peer that we would resume, its name and the remote side's name for us; zeros if none.
    pub peer: Option<PeerId>,
    pub association: u64,
    pub known: u64,
    pub fresh: u64,
}

pub enum State {
    /// Just accepted: the first bytes tell what it is.
    Fresh {
        stream: Stream,
        seen: Vec<u8>,
        remote: SocketAddr,
    },
    Accepting {
        stream: Stream,
        acceptor: Box<Acceptor>,
        remote: SocketAddr,
    },
    /// Refused: closes when the reason is written.
    Ending {
        stream: Stream,
    },
    Dialing(Box<Dialing>),
    /// Someone proves to be our user.
    ProofIn {
        stream: Stream,
        seen: Vec<u8>,
    },
    /// We prove to be the user of the engine that `dial` talks to.
    ProofOut {
        stream: Stream,
        dial: u64,
        seen: Vec<u8>,
    },
    Greeting {
        stream: Stream,
        peer: PeerId,
        greeting: Greeting,
        seen: Vec<u8>,
    },
    Control(Box<ControlConn>),
    /// Its session is over, and the last word waits for lanes to be closed.
    Parting(Box<ControlConn>),
}

impl State {
    /// Opened by somebody who has not proven anything yet.
    pub fn is_stranger(&self) -> bool {
        matches!(
            self,
            State::Fresh { .. } | State::Accepting { .. } | State::Ending { .. } | State::ProofIn { .. }
        )
    }
}

pub struct Dialing {
    pub stream: Stream,
    pub dialer: Dialer,
    pub target: Target,
    pub remote: SocketAddr,
    /// Addresses to try if this one does not answer.
    pub others: Vec<SocketAddr>,
    pub connected: bool,
    pub nonce: Option<Nonce>,
    pub pidfd: Option<OwnedFd>,
    /// When the last caller of `connect` stops waiting.
    pub deadline: Instant,
}

pub struct Conn {
    pub state: State,
    /// When it is closed if it has not got further; None once it carries a session.
    pub deadline: Option<Instant>,
}
