//! The properties of a peer: its identity, state and counters; and the parts of its engine that it uses.

use crate::command::Commands;
use crate::complete::{Table, Transfer};
use crate::handle::Tag;
use crate::notify::Hub;
use crate::stats::Stats;
use crate::sys::atomic::{AtomicU64, Ordering};
use crate::sys::clock;
use crate::sys::pages::Pages;
use crate::types::{EngineId, Monotonic, TransferId};
use std::net::IpAddr;
use std::sync::Arc;

crate::types::display_as_debug!(PeerState);

/// How the session with a peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PeerState {
    Connecting = 0,
    Up = 1,
    /// The session is lost; the dialer tries to reach the peer again.
    Down = 2,
    /// Final: the peer is gone, replaced by a new incarnation, given up, or closed.
    Lost = 3,
}

/// The peer's identity; fixed for the life of the handle.
#[derive(Clone, Debug)]
pub struct PeerIdentity {
    pub engine_id: EngineId,
    pub incarnation: u64,
    /// "host:port" to dial; "" if the peer does not listen.
    pub address: String,
    pub tag: Tag,
    /// The peer has proven, in the handshake, that it runs as the same user on this host. `Peer::same_host` also knows
    /// of the same-host path's proof.
    pub same_host: bool,
    /// The addresses of the first connection: this end's and the peer's.
    pub hosts: (IpAddr, IpAddr),
    /// The smaller of both ends' limits on the payload of a frame. No slice is longer.
    pub frame_bytes_max: u32,
    /// The number of TCP lanes without the express lane, and the READs that the peer serves at once on each lane.
    pub lanes_max: u32,
    pub reads_max: u32,
}

impl PeerIdentity {
    /// Whether the two addresses say that the traffic stays within this host. Proves nothing: a proxy or a tunnel on
    /// this host has such an address too.
    pub fn is_near(&self) -> bool {
        let (ours, theirs) = self.hosts;
        theirs.is_loopback() || ours == theirs
    }
}

/// The parts of its engine that a peer uses.
#[derive(Clone)]
pub struct EngineParts {
    pub commands: Arc<Commands>,
    pub hub: Arc<Hub>,
    pub stats: Arc<Stats>,
    /// Small transfers to and from all peers.
    pub conversation: Arc<Conversation>,
    /// The engine's transfers. A transfer whose handle was dropped leaves the table when it is final.
    pub transfers: Arc<Table<TransferId, Transfer>>,
    pub lease_ns: u64,
    pub express_bytes_max: u64,
    /// The pages of this process.
    pub pages: Arc<Pages>,
}

#[derive(Debug, Default)]
pub struct PeerStats {
    pub round_trip_ns: AtomicU64,
    pub sessions: AtomicU64,
    /// Small transfers to this peer. Bulk lanes to it post less at a time meanwhile.
    pub conversation: Conversation,
}

/// Small transfers that follow one another closely: the time of the last EXPRESS transfer that has data. A hint: pairs
/// with nothing.
#[derive(Debug, Default)]
pub struct Conversation(AtomicU64);

/// A conversation ends when there was no small transfer for about this long.
const CONVERSATION_NS: u64 = 5_000_000;

impl Conversation {
    /// Records a small transfer. Stores rarely, so that concurrent submitters do not contend for the cache line.
    pub fn extend(&self) {
        self.extend_to(clock::monotonic_ns());
    }

    /// Records a small transfer, which belongs to both conversations.
    pub fn extend_both(&self, other: &Conversation) {
        let now = clock::monotonic_ns();
        self.extend_to(now);
        other.extend_to(now);
    }

    pub fn extend_to(&self, now: Monotonic) {
        if now.saturating_sub(self.last()) > CONVERSATION_NS / 64 {
            self.0.store(now.ns(), Ordering::Relaxed);
        }
    }

    pub fn goes_on(&self) -> bool {
        clock::monotonic_ns().saturating_sub(self.last()) < CONVERSATION_NS
    }

    fn last(&self) -> Monotonic {
        Monotonic::from_ns(self.0.load(Ordering::Relaxed))
    }
}
