//! A transport as an engine has it once: it begins and ends with sessions. `path` has what it is to one peer.

use super::path::Path;
use super::{LaneNumbers, Peer, Posted};
use crate::command::Command;
use crate::status::Result;
use crate::types::{PeerId, Transport};
use std::sync::Arc;

/// What became of a companion's lane that was to be closed.
pub enum Closed {
    /// It moves nothing any more on this side; what it carried.
    Quiet(Vec<Posted>),
    /// Nothing new begins on it, but its device is not through with it. `Command::LaneLost` comes when it is,
    /// and whoever closes it again has what it carried. Until then nobody may be told that it is closed.
    Soon,
}

/// A transport that comes and goes with sessions, which somebody else keeps: the same-host path, RDMA.
/// Implemented by transports, driven by the control loop. Nothing here waits for another process.
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
    fn is_still(&self) -> bool {
        true
    }
    /// A session stands. Each side's companion may tell the other's what it needs, by `Command::Tell`;
    /// `Command::PathSettled` tells, soon, what became of it, and again whenever that changes.
    fn begin(&self, session_info: SessionInfo);
    /// The other side's companion says something. False: no engine in good order says that, or as much of it, and
    /// the session is to end.
    fn message(&self, peer: PeerId, body: &[u8]) -> bool;
    /// The other side will not come, and says why. False as for `message`.
    fn refused(&self, peer: PeerId, why: String) -> bool;
    /// The path, once it is settled and as long as there is one; with what makes it fast or slow.
    fn path(&self, peer: PeerId) -> Option<(Arc<dyn Path>, String)>;
    /// Regions of this engine came, or are there as the session begins: what the other side's companion is to hear
    /// before its engine hears of them, and before it hears what is told by `Command::Tell` from then on.
    fn regions_added(&self, _peer: PeerId, _ids: &[u64]) -> Vec<Vec<u8>> {
        Vec::new()
    }
    fn regions_removed(&self, _ids: &[u64]) {}
    /// The lanes on which something of this transfer is posted.
    fn carriers(&self, _peer: PeerId, _transfer: u64) -> Vec<u32> {
        Vec::new()
    }
    /// Closes a lane, or hands over what one carried that has been closed since. None if there is no such lane.
    fn close_lane(&self, _peer: PeerId, _lane: u32) -> Option<Closed> {
        None
    }
    /// The session is over: nothing more is posted from here, and no new access of the peer is let in.
    /// The lanes that were closed for it.
    fn end(&self, peer: PeerId) -> Vec<(u32, Closed)>;
    /// The peer is lost for good: its process need not be watched any more.
    fn forget(&self, _peer: PeerId) {}
    /// Nothing of a lost peer can land here any more, whatever would have carried it.
    fn all_quiet(&self, _peer: PeerId) {}
    /// Whether nothing of a peer whose session is over can land here any more. `Command::TransportQuiet`
    /// comes when an answer of false becomes true.
    fn is_quiet(&self, _peer: PeerId) -> bool {
        true
    }
}

/// A companion's place beside the sessions: it, or why this engine has none.
#[derive(Clone)]
pub struct Installed {
    pub transport: Transport,
    pub service: std::result::Result<Arc<dyn TransportService>, String>,
}

/// A session, as a `TransportService` must know it.
pub struct SessionInfo {
    pub peer: Arc<Peer>,
    pub dialer: bool,
    pub session_id: [u8; 16],
    /// Known to the two engines alone.
    pub key: [u8; 32],
    /// Where the numbers of the session's lanes come from.
    pub lane_numbers: Arc<LaneNumbers>,
}

impl SessionInfo {
    /// Tells the other side's service something, or, with `why`, that there will be no path.
    pub fn tell(&self, transport: Transport, body: Vec<u8>, why: String) {
        let (peer, session_id) = (self.peer.handle, self.session_id);
        self.peer.around().commands.push(Command::Tell { peer, session_id, transport, body, why });
    }

    /// There is a path now, or there is none and will be none.
    pub fn settled(&self, transport: Transport, why: Option<String>) {
        let peer = self.peer.handle;
        self.peer.around().commands.push(Command::PathSettled { peer, transport, why, pending: false });
    }
}
