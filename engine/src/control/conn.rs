//! The connections of the control loop: their states, and the data that each state needs.

use crate::control::dial::Failed;
use crate::control::dials::Target;
use crate::limits::ANSWERS_UNWRITTEN_MAX;
use crate::loss::{Failure, Loss};
use crate::session::channel::Channel;
use crate::session::handshake::{Acceptor, Auth, Dialer, Established, Identity, Nonce};
use crate::session::machine::Role;
use crate::session::order::Order;
use crate::sys::fd::OwnedFd;
use crate::sys::stream::Stream;
use crate::types::{Monotonic, PeerId, SessionId};
use std::net::SocketAddr;

/// A control connection whose handshake is over. Its session may not be found yet.
pub struct ControlConn {
    pub stream: Stream,
    pub channel: Channel,
    pub input: Vec<u8>,
    pub role: Role,
    pub identity: Identity,
    pub session_id: SessionId,
    pub lane_key: [u8; 32],
    pub remote: SocketAddr,
    pub pidfd: Option<OwnedFd>,
    /// True if the other end has proven the shared secret, or that it runs as our user.
    pub is_proven: bool,
    /// The peer has proven that it runs on this host.
    pub same_host: bool,
    /// The session's peer, once the peer's Start has arrived.
    pub peer: Option<PeerId>,
    /// The purpose of the dial, while the connection has no session.
    pub target: Option<Target>,
    /// The contents of our Start.
    pub offered: Offered,
    /// Checks the order of the peer's messages on this connection.
    pub order: Order,
    pub answers: Answers,
    /// Why nothing can be written any more. Messages that the peer sent before are still read.
    pub broken: Option<Failure>,
    /// Bytes that were read since `broken` was set.
    pub bytes_since_broken: usize,
}

impl ControlConn {
    /// `input` came behind the handshake. The other end is given by its address and, on this host, its process. A
    /// dialer has a target.
    pub fn new(
        stream: Stream,
        input: Vec<u8>,
        established: Established,
        offered: Offered,
        (remote, pidfd): (SocketAddr, Option<OwnedFd>),
        target: Option<Target>,
    ) -> ControlConn {
        let Established { peer: identity, channel, session_id, lane_key, auth } = established;
        ControlConn {
            stream,
            channel,
            input,
            role: if target.is_some() { Role::Dialer } else { Role::Acceptor },
            offered,
            identity,
            session_id,
            lane_key: *lane_key.bytes(),
            remote,
            pidfd,
            is_proven: auth != Auth::None,
            same_host: matches!(auth, Auth::SameUser { .. }),
            peer: None,
            target,
            order: Order::default(),
            answers: Answers::default(),
            broken: None,
            bytes_since_broken: 0,
        }
    }

    /// Returns where this side dialed; None if the peer dialed.
    pub fn dialed_at(&self) -> Option<SocketAddr> {
        (self.role == Role::Dialer).then_some(self.remote)
    }

    /// Returns a failure of this connection as a loss, with the connection's addresses.
    pub fn loss(&self, failure: Failure) -> Loss {
        let here = self.stream.local_address().map_or("?".into(), |address| address.to_string());
        Loss::new(failure, &format!("control connection, {here} to {}", self.remote))
    }
}

/// Answers that wait to be written: their count, and the position in the stream where the last answer ends.
#[derive(Default)]
pub struct Answers {
    count: u32,
    end: u64,
}

impl Answers {
    /// Returns whether another answer may be queued. `written`: bytes of the stream written so far.
    pub fn make_room(&mut self, written: u64) -> bool {
        if written >= self.end {
            self.count = 0;
        }
        self.count < ANSWERS_UNWRITTEN_MAX
    }

    /// Counts an answer that ends at this position.
    pub fn add(&mut self, end: u64) {
        self.count += 1;
        self.end = end;
    }
}

/// The contents of our Start.
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    /// The peer whose session we offer to resume. `association` is our id for that peer, `known` the peer's id for us;
    /// both are 0 if nothing is offered. `fresh` is the id of a new association.
    pub peer: Option<PeerId>,
    pub association: u64,
    pub known: u64,
    pub fresh: u64,
    /// The id of that session's latest connection when the Start was sent.
    pub session_id: Option<SessionId>,
}

pub enum ConnState {
    /// Just accepted: the first bytes decide between a handshake and a lane.
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
    /// The last bytes are written or wait to be: a refusal, or the Bye of a session. Open until the peer ends it.
    Ending {
        stream: Stream,
        is_refused: bool,
    },
    Dialing(Box<Dialing>),
    /// Another process proves that it runs as our user.
    ProofIn {
        stream: Stream,
        seen: Vec<u8>,
    },
    /// We prove to the engine that `dial` is connected to that we run as its user.
    ProofOut {
        stream: Stream,
        dial: u64,
        seen: Vec<u8>,
    },
    Control(Box<ControlConn>),
    /// The session is over, and its last message waits until all lanes are closed.
    Parting(Box<ControlConn>),
}

impl ConnState {
    /// Returns true for a connection that another process opened and that is not authenticated.
    pub fn is_stranger(&self) -> bool {
        matches!(
            self,
            ConnState::Fresh { .. }
                | ConnState::Accepting { .. }
                | ConnState::Ending { is_refused: true, .. }
                | ConnState::ProofIn { .. }
        )
    }
}

pub struct Dialing {
    pub stream: Stream,
    pub dialer: Dialer,
    pub target: Target,
    pub remote: SocketAddr,
    /// Addresses to try if the dial fails at `remote`.
    pub others: Vec<SocketAddr>,
    /// The failures of the addresses before `remote`.
    pub failed: Failed,
    pub connected: bool,
    pub nonce: Option<Nonce>,
    pub pidfd: Option<OwnedFd>,
    /// When the last caller of `connect` stops waiting.
    pub deadline: Monotonic,
}

pub struct Conn {
    pub state: ConnState,
    /// When the connection is closed unless its state has advanced. None once the connection carries a session.
    pub deadline: Option<Monotonic>,
}
