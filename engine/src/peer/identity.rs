//! What is said of a peer from outside: who it is, how it stands, what was counted; and what it is given
//! of the engine that it belongs to.

use crate::command::Commands;
use crate::complete::{Table, Transfer};
use crate::handle::Tag;
use crate::notify::Hub;
use crate::peer::outbox::Class;
use crate::stats::Stats;
use crate::sys::clock;
use crate::types::Monotonic;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PeerState {
    Connecting = 0,
    Up = 1,
    /// The session is lost; the dialer tries to reach the peer again.
    Down = 2,
    /// Final: gone, replaced by a new incarnation, given up, or closed.
    Lost = 3,
}

/// Who the peer is; fixed for the life of the handle.
#[derive(Clone, Debug)]
pub struct PeerIdentity {
    pub engine_id: [u8; 16],
    pub incarnation: u64,
    /// "host:port" at which it can be dialed, "" if it does not listen.
    pub address: String,
    pub tag: Tag,
    pub same_host: bool,
    /// Where the first connection was: our end, and the peer's.
    pub hosts: (IpAddr, IpAddr),
    /// Payload of one frame at most, of what both ends take: no slice may be longer.
    pub frame_bytes_max: u32,
    /// TCP lanes, the express lane not counted, and READs on each of them that the peer serves at once.
    pub lanes_max: u32,
    pub reads_max: u32,
}

/// What a peer needs of the engine it belongs to.
#[derive(Clone)]
pub struct Surroundings {
    pub commands: Arc<Commands>,
    pub hub: Arc<Hub>,
    pub stats: Arc<Stats>,
    /// The engine's transfers, from which those that nobody holds are taken when they are final.
    pub transfers: Arc<Table<Transfer>>,
    pub lease_ns: u64,
    pub express_bytes_max: u64,
}

#[derive(Debug, Default)]
pub struct PeerStats {
    pub round_trip_ns: AtomicU64,
    pub sessions: AtomicU64,
    pub bytes_written: AtomicU64,
    pub bytes_read: AtomicU64,
    /// CLOCK_MONOTONIC time of the last submit of an EXPRESS transfer. A hint: no partner.
    conversed_ns: AtomicU64,
}

/// A conversation is over when nothing small was submitted for this long.
const CONVERSATION_NS: u64 = 5_000_000;

impl PeerStats {
    /// Takes note of a submit, and returns its class.
    pub fn submitted(&self, class: Class) -> Class {
        if class == Class::Express {
            self.conversed_ns.store(clock::monotonic_ns().ns(), Ordering::Relaxed);
        }
        class
    }

    /// Whether small transfers follow one another: bulk then leaves them room.
    pub fn converses(&self) -> bool {
        let last_ns = Monotonic::from_ns(self.conversed_ns.load(Ordering::Relaxed));
        clock::monotonic_ns().saturating_sub(last_ns) < CONVERSATION_NS
    }
}
