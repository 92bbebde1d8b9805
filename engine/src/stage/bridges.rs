//! The bridges over which this engine's transfers cross to peers' devices (`bridge` has the picture), by peer and pair
//! of devices. `Bridges` alone changes the state of a bridge, and ends the thread of each.

use super::mapped::Pair;
use super::wire::BridgeSlotId;
use crate::device::{Piece, Worker};
use crate::limits::{BRIDGES_MAX, STAGE_SLOT_BYTES};
use crate::sys::lock::Mutex;
use crate::sys::map::{HashMap, HashSet};
use crate::types::{BridgeId, Op, PeerId};
use std::sync::Arc;

/// The largest page size of devices; memory of bridges is whole pages of it.
const PAGE_BYTES: u64 = 2 << 20;

/// Returns the bytes of `slots` slots, at either end.
pub fn bytes_of(slots: u32) -> u64 {
    (u64::from(slots) * STAGE_SLOT_BYTES).next_multiple_of(PAGE_BYTES)
}

pub struct Bridges {
    /// They outlast connections.
    all: HashMap<PeerId, HashMap<Pair, Bridge>>,
    /// The peers and threads of bridges, by bridge number.
    attached: HashMap<BridgeId, (PeerId, Arc<Worker>)>,
    /// Bridges that failed in use.
    broken: HashSet<BridgeId>,
    next: u64,
    /// The number of slots of each bridge.
    slots: u32,
}

/// The state of a bridge.
enum Bridge {
    /// The peer was asked for memory of its device.
    Asked(BridgeId),
    /// Memory of the device here is being attached to the peer's.
    Attaching(BridgeId, Attached),
    Open(Arc<Span>),
    /// The bridge could not be built: runs go through the hosts until the next connection.
    Refused,
    /// The bridge failed in use: runs go through the hosts until the peer is lost, so that at most one bridge's memory
    /// is kept for late writes.
    Broken,
}

impl Bridge {
    /// Returns whether the bridge outlasts the connection. The peer may not have received an EXPOSE, so ASKED does
    /// not.
    fn stands(&self) -> bool {
        matches!(self, Bridge::Attaching(..) | Bridge::Open(_) | Bridge::Broken)
    }

    fn id(&self) -> Option<BridgeId> {
        match self {
            Bridge::Asked(id) | Bridge::Attaching(id, _) => Some(*id),
            Bridge::Open(span) => Some(span.id),
            Bridge::Refused | Bridge::Broken => None,
        }
    }
}

/// The thread that moves data over a bridge. When dropped, it ends after the last move and releases the memory.
struct Attached(Arc<Worker>);

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// An open bridge.
struct Span {
    id: BridgeId,
    attached: Attached,
    /// The first slot's address, here and at the peer.
    local: u64,
    remote: u64,
    free: Mutex<Vec<u32>>,
}

/// A slot at each end, for one operation.
pub struct BridgeSlot {
    span: Arc<Span>,
    slot: u32,
}

impl BridgeSlot {
    fn take(span: &Arc<Span>) -> Option<BridgeSlot> {
        let slot = span.free.lock().pop()?;
        Some(BridgeSlot { span: span.clone(), slot })
    }

    /// Returns the address of the slot here.
    pub fn address(&self) -> u64 {
        self.span.local + u64::from(self.slot) * STAGE_SLOT_BYTES
    }

    pub fn id(&self) -> BridgeSlotId {
        BridgeSlotId { bridge: self.span.id, slot: self.slot }
    }

    /// Returns the thread that moves data between the two ends.
    pub fn worker(&self) -> Arc<Worker> {
        self.span.attached.0.clone()
    }

    pub fn piece(&self, op: Op, length: u64) -> Piece {
        let there = self.span.remote + u64::from(self.slot) * STAGE_SLOT_BYTES;
        let (to, from) = if op == Op::Write { (there, self.address()) } else { (self.address(), there) };
        Piece { to, from, length }
    }
}

impl Drop for BridgeSlot {
    fn drop(&mut self) {
        self.span.free.lock().push(self.slot);
    }
}

/// How an operation between two devices goes on.
pub enum Crossing {
    Slot(BridgeSlot),
    /// A slot, or an answer of the peer or of the device here, comes later.
    Wait,
    /// The peer is to be asked for memory for this bridge.
    Ask(BridgeId),
    /// The pair has no bridge.
    Refused,
    /// The peer has as many bridges as it may have.
    Full,
}

impl Bridges {
    pub fn new(slots: u32) -> Bridges {
        let (all, attached, broken) = Default::default();
        Bridges { all, attached, broken, next: 1, slots }
    }

    /// Returns the largest number of slots of a bridge.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Takes a slot of the bridge between these devices, or begins the bridge.
    pub fn cross(&mut self, peer: PeerId, pair: Pair, is_connected: bool) -> Crossing {
        let bridges = self.all.get(&peer);
        match bridges.and_then(|bridges| bridges.get(&pair)) {
            Some(Bridge::Asked(_) | Bridge::Attaching(..)) => Crossing::Wait,
            Some(Bridge::Refused | Bridge::Broken) => Crossing::Refused,
            Some(Bridge::Open(span)) => BridgeSlot::take(span).map_or(Crossing::Wait, Crossing::Slot),
            None if bridges.is_some_and(|bridges| bridges.len() >= BRIDGES_MAX) => Crossing::Full,
            None if is_connected => {
                let id = BridgeId::from_raw(self.next);
                self.next += 1;
                self.all.entry(peer).or_default().insert(pair, Bridge::Asked(id));
                Crossing::Ask(id)
            }
            None => Crossing::Wait,
        }
    }

    fn find(&mut self, peer: PeerId, id: BridgeId) -> Option<(Pair, &mut Bridge)> {
        let found = self.all.get_mut(&peer)?.iter_mut().find(|(_, bridge)| bridge.id() == Some(id));
        found.map(|(pair, bridge)| (*pair, bridge))
    }

    /// Returns the devices of a bridge, and whether the peer was asked for its memory and has not answered.
    pub fn pair(&mut self, peer: PeerId, id: BridgeId) -> Option<(Pair, bool)> {
        self.find(peer, id).map(|(pair, bridge)| (pair, matches!(bridge, Bridge::Asked(_))))
    }

    pub fn is_attaching(&self, peer: PeerId, id: BridgeId) -> bool {
        let is_so = |bridge: &Bridge| matches!(bridge, Bridge::Attaching(of, _) if *of == id);
        self.all.get(&peer).is_some_and(|bridges| bridges.values().any(is_so))
    }

    /// Notes the thread that attaches the device here.
    pub fn attach(&mut self, peer: PeerId, id: BridgeId, worker: Arc<Worker>) {
        self.attached.insert(id, (peer, worker.clone()));
        if let Some((_, bridge)) = self.find(peer, id) {
            *bridge = Bridge::Attaching(id, Attached(worker));
        }
    }

    /// Opens a bridge that was attaching, with these addresses of its first slots and this number of slots.
    pub fn open(&mut self, peer: PeerId, id: BridgeId, (local, remote, slots): (u64, u64, u32)) {
        let Some((_, bridge)) = self.find(peer, id) else { return };
        if let Bridge::Attaching(_, attached) = std::mem::replace(bridge, Bridge::Refused) {
            let free = Mutex::new((0..slots).rev().collect());
            *bridge = Bridge::Open(Arc::new(Span { id, attached, local, remote, free }));
        }
    }

    /// Lets the pair of a bridge go through the hosts, and returns it.
    pub fn refuse(&mut self, peer: PeerId, id: BridgeId) -> Option<Pair> {
        let is_broken = self.broken.contains(&id);
        let (pair, bridge) = self.find(peer, id)?;
        *bridge = if is_broken { Bridge::Broken } else { Bridge::Refused };
        Some(pair)
    }

    /// Notes that a bridge failed in use: its memory stays until the peer is lost.
    pub fn note_broken(&mut self, id: BridgeId) {
        self.broken.insert(id);
    }

    /// Takes a bridge out of use: its memory is released after its last move.
    pub fn retire(&mut self, peer: PeerId, id: BridgeId) {
        if let Some(bridges) = self.all.get_mut(&peer) {
            bridges.retain(|_, bridge| bridge.id() != Some(id));
        }
    }

    /// Notes the end of a bridge's thread. Returns false if data may still be written to the peer's memory.
    pub fn detached(&mut self, id: BridgeId) -> bool {
        if self.broken.contains(&id) {
            return false;
        }
        if let Some((_, worker)) = self.attached.remove(&id) {
            worker.stop();
        }
        true
    }

    /// Returns the bridges whose memory the peer must keep.
    pub fn kept(&self, peer: PeerId) -> Vec<BridgeId> {
        self.attached.iter().filter(|(_, (of, _))| *of == peer).map(|(id, _)| *id).collect()
    }

    /// Forgets bridges that do not outlast a connection of the peer.
    pub fn disconnected(&mut self, peer: PeerId) {
        if let Some(bridges) = self.all.get_mut(&peer) {
            bridges.retain(|_, bridge| bridge.stands());
        }
    }

    /// Forgets all bridges of a lost peer.
    pub fn forget(&mut self, peer: PeerId) {
        self.all.remove(&peer);
        let broken = &mut self.broken;
        self.attached.retain(|id, (of, _)| *of != peer || !broken.remove(id));
    }

    /// Ends the threads of all bridges.
    pub fn end(&mut self) {
        self.all.clear();
        std::mem::take(&mut self.attached).into_values().for_each(|(_, worker)| worker.quit());
    }
}
