//! The stage's state of one peer.

use super::bridge::Bridge;
use super::bridge_target::Exposure;
use super::mapped::{MappingKey, Pair, Reach};
use super::ring::StagingSlot;
use super::serve::Served;
use crate::command::{Command, Commands};
use crate::peer::Peer;
use crate::sys::map::{HashMap, HashSet};
use crate::types::{BridgeId, MemoryKind, OperationId, RegionId, SessionId, TransferId, Transport};
use std::sync::Arc;
use std::task::Waker;

/// The stage's state of one peer; `Stage::sides` has it by handle.
pub struct StagedPeer {
    pub peer: Arc<Peer>,
    /// The current session, if any.
    pub session: Option<SessionId>,
    pub served: HashMap<OperationId, Served>,
    /// The wakers that report when one of these transfers is struck.
    pub watched: HashMap<TransferId, Waker>,
    /// The peer's memory that devices here reach, in the current session.
    pub reached: HashMap<MappingKey, Reach>,
    /// Regions that the peer wants to map, while its process is not yet known.
    pub borrowers: HashMap<RegionId, (MemoryKind, i32)>,
    /// Pairs of devices that reach each other. They outlast connections.
    pub bridges: HashMap<Pair, Bridge>,
    /// Memory here for the peer's bridges; None while it is being made.
    pub exposures: HashMap<BridgeId, Option<Arc<Exposure>>>,
    /// The number of requests to devices for such memory, including those for bridges no longer wanted.
    pub exposing: usize,
    /// Regions that devices are exporting for the peer.
    pub lending: HashSet<RegionId>,
    /// Encoded messages to send.
    pub out: Vec<u8>,
    /// Slots that the peer used when it was lost.
    pub lost_slots: Vec<StagingSlot>,
    pub lost: bool,
}

impl StagedPeer {
    pub fn new(peer: Arc<Peer>) -> StagedPeer {
        StagedPeer {
            peer,
            session: None,
            served: HashMap::default(),
            watched: HashMap::default(),
            reached: HashMap::default(),
            borrowers: HashMap::default(),
            bridges: HashMap::default(),
            exposures: HashMap::default(),
            exposing: 0,
            lending: HashSet::default(),
            out: Vec::new(),
            lost_slots: Vec::new(),
            lost: false,
        }
    }

    pub fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns whether a lost peer has nothing left here but perhaps operations of this side.
    pub fn is_over(&self) -> bool {
        self.lost && self.served.is_empty() && self.lost_slots.is_empty()
    }

    /// Sends the queued messages; drops them while there is no session.
    pub fn flush(&mut self, commands: &Commands) {
        if self.out.is_empty() {
            return;
        }
        let body = std::mem::take(&mut self.out);
        let Some(session_id) = self.session else { return };
        let (peer, transport, why) = (self.peer.handle, Transport::Staged, String::new());
        commands.push(Command::ServiceMessage { peer, session_id, transport, body, why });
    }
}
