//! The half of a transport that exists once in an engine. It begins and ends with sessions. `path` has the other half.

use super::path::Path;
use super::{LaneNumbers, Peer, Posted};
use crate::command::Command;
use crate::loss::Loss;
use crate::status::Result;
use crate::sys::stream::Stream;
use crate::types::{Boottime, LaneId, Monotonic, PeerId, RegionId, SessionId, TransferId, Transport};
use std::net::SocketAddr;
use std::sync::Arc;

/// The result of closing a lane of a `TransportService`.
pub enum Closed {
    /// Nothing moves on the lane at this end any more. The records of the frames that it carried.
    Quiet(Vec<Posted>),
    /// Nothing new is posted on the lane, but its device, or a thread that moves memory for it, has not finished.
    /// `Command::LaneLost` follows when it has, and the next `close_lane` returns the other records. Until then the
    /// lane must not be reported as closed. Nothing moves for the records returned now.
    Soon(Vec<Posted>),
}

/// A transport that begins and ends with sessions, which `control` keeps. Implemented by each transport, called by the
/// control loop. No method waits for another process.
pub trait TransportService: Send + Sync {
    /// Starts the threads that the service needs before there is a session. Called once.
    fn start(self: Arc<Self>) -> Result<()> {
        Ok(())
    }
    /// A session is about to begin: starts the threads that sessions need, if they do not run. LIMIT, with the cause,
    /// when one cannot be started. Called by the control loop.
    fn prepare(&self) -> Result<()> {
        Ok(())
    }
    /// Ends the service's threads. All sessions have ended before.
    fn stop(&self) {}
    /// The engine is broken: lets no new access of a peer in. Takes no lock that a thread may have panicked under.
    fn shut(&self) {}
    /// The engine is broken and its threads have ended: closes each lane. True when nothing of the service moves on
    /// this side any more.
    fn bury(&self) -> bool {
        true
    }
    /// A session is up. The services of the two sides exchange messages by `Command::ServiceMessage`. Soon
    /// `Command::PathSettled` reports whether a path exists; it reports every later change, too.
    fn begin(&self, session_info: SessionInfo);
    /// Handles a message of the peer's service. False: the message violates the protocol or a limit, and the session
    /// must end; so does any message to a service that expects none.
    fn message(&self, _peer: PeerId, _body: &[u8]) -> bool {
        false
    }
    /// The peer's service does not establish a path, for the reason `why`. Returns false as `message` does.
    fn refused(&self, _peer: PeerId, _why: String) -> bool {
        false
    }
    /// The path to the peer needs its service: it has sent `Command::PathWants`.
    fn wanted(&self, _peer: PeerId) {}
    /// Returns the path from when it is settled until it ends, and the text on what makes it fast or slow.
    fn path(&self, peer: PeerId) -> Option<(Arc<dyn Path>, String)>;
    /// Returns the messages about newly registered regions (at a session's begin: all regions). They reach the peer's
    /// service before its engine learns of the regions, and before any later `Command::ServiceMessage`.
    fn regions_added(&self, _peer: PeerId, _ids: &[RegionId]) -> Vec<Vec<u8>> {
        Vec::new()
    }
    fn regions_removed(&self, _ids: &[RegionId]) {}
    /// Returns the lanes that carry unacknowledged frames of this transfer.
    fn lanes_carrying(&self, _peer: PeerId, _transfer: TransferId) -> Vec<LaneId> {
        Vec::new()
    }
    /// Closes a lane, or returns the records of a lane that has finished closing. None if no such lane exists.
    fn close_lane(&self, _peer: PeerId, _lane: LaneId) -> Option<Closed> {
        None
    }
    /// Ends the session's path: posts nothing more and admits no new access of the peer. Returns the lanes that it
    /// closed.
    fn end(&self, peer: PeerId) -> Vec<(LaneId, Closed)>;
    /// Stops watching the process of a peer that is permanently lost.
    fn forget(&self, _peer: PeerId) {}
    /// Nothing of a lost peer can land here any more, on any transport.
    fn all_quiet(&self, _peer: PeerId) {}
    /// Returns whether nothing of a peer whose session is over can land here any more. After an answer of false,
    /// `Command::TransportQuiet` reports the change to true.
    fn is_quiet(&self, _peer: PeerId) -> bool {
        true
    }
    /// Returns what of the peer is not quiet, as a sentence for people; None once it is.
    fn unrest(&self, _peer: PeerId) -> Option<String> {
        None
    }
}

/// The kinds of lanes of a `LaneService`, as bits: slot 0, and all other slots.
pub const EXPRESS: u32 = 1;
pub const BULK: u32 = 2;
pub const ALL: u32 = EXPRESS | BULK;

/// The bit of the control loop's tokens that are those of a `LaneService`.
pub const LANE_TOKENS: u64 = 1 << 63;

/// A transport whose lanes are connections to the engine's only listener, which `control` has. It dials its lanes
/// itself; `control` polls their connections, and hands over those that greet as lanes. Called by the control loop.
pub trait LaneService: TransportService {
    fn as_transport(&self) -> &dyn TransportService;
    /// Adds a peer without lanes.
    fn add(&self, peer: Arc<Peer>);
    /// Requests lanes of these kinds whenever the session is up.
    fn want(&self, peer: PeerId, kinds: u32);
    /// Returns whether small transfers find a lane.
    fn has_express(&self, peer: PeerId) -> bool;
    /// Attaches a connection that a peer has opened with this greeting, or closes it. Returns the peer of the lane that
    /// was attached.
    fn greeted(&self, stream: Stream, greeting: &[u8]) -> Option<PeerId>;
    /// Handles an event of a connection that the service has dialed, whose token has the bit LANE_TOKENS. Returns the
    /// peer of the lane that was attached.
    fn event(&self, token: u64) -> Option<PeerId>;
    /// Ends the dial of a lane, if there is one: the lane is fenced and can no longer be attached.
    fn give_up(&self, peer: PeerId, lane: LaneId);
    /// Returns when to call `timer` next for this peer.
    fn next_timer(&self, peer: PeerId) -> Option<Monotonic>;
    fn timer(&self, peer: PeerId, now_ns: Monotonic);
    /// Returns lanes with frames in flight that have received nothing since `since_ns`.
    fn stuck(&self, peer: PeerId, since_ns: Boottime) -> Vec<(LaneId, Loss)>;
    /// Returns whether work waits for a lane that is not attached.
    fn lacks_lane(&self, peer: PeerId) -> bool;
    /// Makes workers send or receive the last bytes of lanes that are about to be closed on purpose. Meanwhile
    /// `close_lane` returns Soon. False: there is nothing to wait for.
    fn part(&self, peer: PeerId, how: Parting) -> bool;
    fn is_parting(&self, peer: PeerId) -> bool;
    /// Replaces each thread that is in the same call as at the last look. True while a thread works.
    fn watch(&self) -> bool;
}

/// The last work on a lane before it is closed on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// The answers to frames that were received are sent, so that the initiator learns the outcome of its frames.
    Sends = 1,
    /// The bytes that have arrived are received: the peer has closed the lane.
    Receives = 2,
}

/// A transport's service, or why this engine has none.
#[derive(Clone)]
pub struct Installed {
    pub transport: Transport,
    pub service: std::result::Result<Arc<dyn TransportService>, String>,
}

/// A session, as a `TransportService` sees it.
pub struct SessionInfo {
    pub peer: Arc<Peer>,
    pub dialer: bool,
    pub session_id: SessionId,
    /// The peer's address, as this side dialed or accepted it.
    pub remote: SocketAddr,
    /// A secret of the two engines.
    pub key: [u8; 32],
    /// The source of lane numbers of the session.
    pub lane_numbers: Arc<LaneNumbers>,
}

impl SessionInfo {
    /// Tells the other side's service something, or, with `why`, that there will be no path.
    pub fn send(&self, transport: Transport, body: Vec<u8>, why: String) {
        let (peer, session_id) = (self.peer.handle, self.session_id);
        self.peer.engine().commands.push(Command::ServiceMessage { peer, session_id, transport, body, why });
    }

    /// There is a path now, or there is none and will be none.
    pub fn settled(&self, transport: Transport, why: Option<String>) {
        let peer = self.peer.handle;
        self.peer.engine().commands.push(Command::PathSettled { peer, transport, why, pending: false });
    }
}
