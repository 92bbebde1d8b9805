//! The session with a peer: its state, its connection, and what the control loop remembers of it.

use crate::command::Reply;
use crate::complete::Fence;
use crate::control::conn::ControlConn;
use crate::control::names::Name;
use crate::peer::{LaneNumbers, Peer, Posted, SessionInfo};
use crate::session::handshake::Identity;
use crate::session::machine::Machine;
use crate::status::Status;
use crate::sys::map::HashMap;
use crate::types::{LaneId, Monotonic, PeerId, SessionId};
use std::net::SocketAddr;
use std::sync::Arc;

/// A peer and the state of its session. Removed when the session is given up and nothing waits for its records.
pub struct PeerSession {
    pub peer: Arc<Peer>,
    pub machine: Machine<Posted>,
    pub identity: Identity,
    pub session_id: SessionId,
    pub lane_key: [u8; 32],
    pub lane_numbers: Arc<LaneNumbers>,
    pub remote: SocketAddr,
    /// Where this side dials the session again. Empty if it does not know where the peer listens.
    pub dial_at: Vec<SocketAddr>,
    /// This side has dialed there, and this engine answered.
    pub was_reached: bool,
    /// The address given to `connect`; empty if the peer dialed us.
    pub dialed: String,
    /// The token of the control connection, while the connection stands.
    pub conn: Option<u64>,
    /// Callers of `connect` that wait for the session to be up.
    pub waiting: Vec<u64>,
    /// Earlier peer objects of this engine's incarnation. The peer's Ready confirms that their lanes are closed.
    pub predecessors: Vec<PeerId>,
    /// The peer's association id for us, which our next Start repeats.
    pub remote_association: u64,
    pub probes: Vec<(u64, Monotonic, Reply<u64>)>,
    pub closing: Vec<Reply<()>>,
    pub pidfd: Option<u64>,
    /// Lanes that are being closed (`Closed::Soon`); true if the peer asked for their fence on this connection.
    pub late_lanes: HashMap<LaneId, bool>,
    /// Why the session was given up, and the fence that holds for its records.
    pub ended: Option<(Status, Fence)>,
    /// The peer has said Bye, and the session ends when its lanes have received what arrived before.
    pub has_parted: bool,
    /// The application was told that the session is up.
    pub was_up: bool,
    /// Mask of the transports other than TCP that have reported whether a path exists.
    pub paths_settled: u64,
    /// True if a path broke for an unknown reason and the peer has not answered since.
    pub path_broken: bool,
    pub is_proven: bool,
    /// Lost peers whose engines were at the place or address of this one: other engines, unlike `predecessors`.
    pub forerunners: Vec<PeerId>,
}

impl PeerSession {
    /// Returns a session on this connection. `reached`: where this side dials it again, and whether this engine has
    /// answered there.
    pub fn new(
        peer: Arc<Peer>,
        machine: Machine<Posted>,
        (token, control): (u64, &ControlConn),
        (dial_at, was_reached): (Vec<SocketAddr>, bool),
        remote_association: u64,
    ) -> PeerSession {
        PeerSession {
            peer,
            machine,
            identity: control.identity.clone(),
            session_id: control.session_id,
            lane_key: control.lane_key,
            lane_numbers: Arc::default(),
            remote: control.remote,
            dial_at,
            was_reached,
            dialed: String::new(),
            conn: Some(token),
            waiting: Vec::new(),
            predecessors: Vec::new(),
            remote_association,
            probes: Vec::new(),
            closing: Vec::new(),
            pidfd: None,
            late_lanes: HashMap::default(),
            ended: None,
            has_parted: false,
            was_up: false,
            paths_settled: 0,
            path_broken: false,
            is_proven: control.is_proven,
            forerunners: Vec::new(),
        }
    }

    /// Moves the session to a new connection of the same engine.
    pub fn move_to(&mut self, token: u64, control: &ControlConn) {
        self.conn = Some(token);
        self.session_id = control.session_id;
        self.lane_key = control.lane_key;
        // `Sessions` has the place from the session's beginning, and the session's end removes that place.
        self.identity = Identity { place: self.identity.place, ..control.identity.clone() };
        self.is_proven = control.is_proven;
        if let Some(at) = control.dialed_at() {
            self.remote = at;
            (self.dial_at, self.was_reached) = (vec![at], true);
        }
    }

    /// Returns whether this is the session of this incarnation, and is not given up.
    pub fn is_of(&self, incarnation: u64) -> bool {
        self.identity.incarnation == incarnation && !self.machine.is_given_up()
    }

    /// Returns whether the session waits for a connection.
    pub fn is_down(&self) -> bool {
        self.conn.is_none() && !self.machine.is_given_up()
    }

    /// Returns whether nothing depends on a session that is given up.
    pub fn is_over(&self) -> bool {
        let is_idle = self.machine.is_idle() && self.late_lanes.is_empty();
        self.machine.is_given_up() && is_idle && self.peer.active() == 0
    }

    /// Returns the names under which callers of `connect` find the session.
    pub fn names(&self) -> Vec<Name> {
        if self.machine.is_given_up() {
            return Vec::new();
        }
        let dialed = (!self.dialed.is_empty()).then(|| Name::Given(self.dialed.clone()));
        let claimed = Name::Claimed(self.identity.address.clone(), self.remote.ip());
        dialed.into_iter().chain([claimed]).collect()
    }

    /// Returns what transports need to know of the session.
    pub fn session_info(&self, dialer: bool) -> SessionInfo {
        SessionInfo {
            peer: self.peer.clone(),
            dialer,
            session_id: self.session_id,
            remote: self.remote,
            key: self.lane_key,
            lane_numbers: self.lane_numbers.clone(),
        }
    }
}
