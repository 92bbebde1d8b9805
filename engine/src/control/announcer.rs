//! The log of regions that were added and removed, and what was announced of it to each peer. `Announcer` decides who
//! has a turn and what the next piece is. `announce` sends the pieces.

use crate::limits::{
    ANNOUNCE_BACKLOG_BYTES_MAX, ANNOUNCE_LOG_MAX, ANNOUNCE_PAUSE_NS, ANNOUNCE_WAITING_BYTES_MAX,
    REGIONS_PER_MESSAGE,
};
use crate::region::{Region, RegionMap};
use crate::session::message::Message;
use crate::sys::map::{HashMap, HashSet};
use crate::types::{Monotonic, PeerId, RegionId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Length of the log at which changes that are announced to all peers are removed. The next removal is due at twice
/// the length that is left, if that is more.
const TRIM_AT: usize = 4096;

#[derive(Clone, Copy)]
struct Change {
    region: RegionId,
    gone: bool,
}

/// The regions that were added and removed.
#[derive(Default)]
struct RegionLog {
    changes: VecDeque<Change>,
    /// The number of the first change in the log.
    first: u64,
    trim_at: usize,
}

impl RegionLog {
    /// Returns the number of the next change.
    fn end(&self) -> u64 {
        self.first + self.changes.len() as u64
    }
}

/// The log of regions, and what was announced of it to each connected peer.
#[derive(Default)]
pub struct Announcer {
    log: RegionLog,
    peers: HashMap<PeerId, Announced>,
    /// Peers that may have announcements waiting, each at most once: see `queued`.
    turns: VecDeque<PeerId>,
    queued: HashSet<PeerId>,
    /// True if the log has grown since all peers were put into `turns`.
    is_new: bool,
    /// All peers are put into `turns` again at this time at the earliest.
    paused_until_ns: Monotonic,
}

impl Announcer {
    /// Notes that regions were added, or are gone.
    pub fn note(&mut self, regions: &[RegionId], gone: bool) {
        self.log.changes.extend(regions.iter().map(|region| Change { region: *region, gone }));
        self.is_new = true;
    }

    /// Begins to announce to a peer on a new connection: the regions of this moment, then what the log notes.
    pub fn begin(&mut self, peer: PeerId, map: Arc<RegionMap>) {
        let (newest, next) = (map.newest(), self.log.end());
        self.peers.insert(peer, Announced { initial: Some((map, 0)), newest, next, ..Announced::default() });
    }

    /// Ends with the peer's connection.
    pub fn end(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
    }

    /// Returns whether the regions of the connection's beginning are being announced, which Ready ends.
    pub fn is_beginning(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|announced| announced.initial.is_some())
    }

    /// Returns whether everything is announced to the peer, or the peer is not connected.
    pub fn is_up_to_date(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_none_or(|announced| announced.is_up_to(self.log.end()))
    }

    /// Gives the peer a turn if anything waits to be announced to it.
    pub fn queue(&mut self, peer: PeerId) {
        if !self.is_up_to_date(peer) && self.queued.insert(peer) {
            self.turns.push_back(peer);
        }
    }

    /// Gives each peer a turn if regions were added or removed, unless the last time was less than ANNOUNCE_PAUSE_NS
    /// ago.
    pub fn begin_turns(&mut self, now_ns: Monotonic) {
        if self.is_new && self.paused_until_ns <= now_ns {
            (self.is_new, self.paused_until_ns) = (false, now_ns + ANNOUNCE_PAUSE_NS);
            let fresh = self.peers.keys().copied().filter(|peer| self.queued.insert(*peer));
            self.turns.extend(fresh);
        }
    }

    /// Returns the next peer that has a turn.
    pub fn next_turn(&mut self) -> Option<PeerId> {
        let peer = self.turns.pop_front()?;
        self.queued.remove(&peer);
        Some(peer)
    }

    /// Returns when the next turn is due.
    pub fn next_ns(&self) -> Option<Monotonic> {
        if self.turns.is_empty() {
            self.is_new.then_some(self.paused_until_ns)
        } else {
            Some(Monotonic::ZERO)
        }
    }

    /// Takes the next piece for a peer: as much as fits into one message of each kind. None if nothing waits. `now`:
    /// this engine's regions.
    pub fn take(&mut self, peer: PeerId, now: &RegionMap) -> Option<Piece> {
        let announced = self.peers.get_mut(&peer)?;
        (!announced.is_up_to(self.log.end())).then(|| announced.take(&self.log, now))
    }

    /// Holds a message back until all regions that are registered now are announced to the peer. `bytes`: the length of
    /// its contents. Returns whether too much is held back: the peer does not read.
    pub fn hold(&mut self, peer: PeerId, message: Message, bytes: usize) -> bool {
        let before = self.log.end();
        let Some(announced) = self.peers.get_mut(&peer) else { return false };
        let bytes = bytes + size_of::<WaitingMessage>();
        announced.waiting_bytes += bytes;
        announced.waiting.push_back(WaitingMessage { before, bytes, message });
        announced.waiting_bytes > ANNOUNCE_WAITING_BYTES_MAX
    }

    /// Removes changes that are announced to all peers. Returns the peers that are too far behind: they do not read.
    pub fn trim(&mut self) -> Vec<PeerId> {
        if self.log.changes.len() < self.log.trim_at.max(TRIM_AT) {
            return Vec::new();
        }
        self.trim_now();
        let end = self.log.end();
        let behind = self.peers.iter().filter(|(_, announced)| end - announced.next > ANNOUNCE_LOG_MAX);
        behind.map(|(peer, _)| *peer).collect()
    }

    fn trim_now(&mut self) {
        let next = self.peers.values().map(|announced| announced.next).min();
        let lowest = next.unwrap_or(self.log.end()).max(self.log.first);
        self.log.changes.drain(..(lowest - self.log.first) as usize);
        self.log.first = lowest;
        self.log.trim_at = self.log.changes.len() * 2;
    }
}

/// A transport's message that waits until the regions registered before it are announced.
struct WaitingMessage {
    /// All changes with lower numbers are announced before the message.
    before: u64,
    bytes: usize,
    message: Message,
}

/// The state of the announcements to a peer on its connection.
#[derive(Default)]
struct Announced {
    /// The regions at the connection's beginning, and the address from which on they are still to be announced. None
    /// when all are announced and Ready is sent.
    initial: Option<(Arc<RegionMap>, u64)>,
    /// The highest `Region::order` among the regions at the connection's beginning.
    newest: u64,
    /// The number of the next change to announce.
    next: u64,
    waiting: VecDeque<WaitingMessage>,
    waiting_bytes: usize,
}

/// The messages of one piece, before they are encoded.
#[derive(Default)]
pub struct Piece {
    /// Regions that were added and not revoked. The transports' messages about them are sent first.
    pub came: Vec<Arc<Region>>,
    pub gone: Vec<RegionId>,
    /// Messages that were held back.
    pub messages: Vec<Message>,
    /// True if this piece ends the regions of the connection's beginning; Ready follows.
    pub is_all: bool,
}

impl Announced {
    fn is_up_to(&self, end: u64) -> bool {
        self.initial.is_none() && self.next == end && self.waiting.is_empty()
    }

    /// Takes the next piece: as much as fits into one message of each kind.
    fn take(&mut self, log: &RegionLog, now: &RegionMap) -> Piece {
        let mut piece = Piece::default();
        if let Some((map, from)) = &mut self.initial {
            let part: Vec<_> = map.iter_from(*from).take(REGIONS_PER_MESSAGE).cloned().collect();
            piece.is_all = part.len() < REGIONS_PER_MESSAGE;
            // No region ends above the highest address.
            part.last().iter().for_each(|last| *from = last.address + 1);
            piece.came = part;
            if piece.is_all {
                self.initial = None;
            }
        } else {
            self.take_changes(log, now, &mut piece);
        }
        piece.came.retain(|region| !region.is_revoked());
        let until = self.waiting_bytes.saturating_sub(ANNOUNCE_BACKLOG_BYTES_MAX);
        while self.initial.is_none() && self.waiting_bytes > until {
            if self.waiting.front().is_none_or(|waiting| waiting.before > self.next) {
                break;
            }
            let Some(waiting) = self.waiting.pop_front() else { break };
            self.waiting_bytes -= waiting.bytes;
            piece.messages.push(waiting.message);
        }
        piece
    }

    /// Takes consecutive changes of the log that are all additions or all removals.
    fn take_changes(&mut self, log: &RegionLog, now: &RegionMap, piece: &mut Piece) {
        self.next = self.next.max(log.first);
        let from = (self.next - log.first) as usize;
        let changes = || log.changes.range(from..);
        let Some(gone) = changes().next().map(|change| change.gone) else { return };
        for change in changes().take(REGIONS_PER_MESSAGE).take_while(|change| change.gone == gone) {
            self.next += 1;
            match now.get(change.region) {
                _ if gone => piece.gone.push(change.region),
                Some(region) if region.order > self.newest => piece.came.push(region.clone()),
                // The region was removed since, or was announced at the connection's beginning.
                _ => {}
            }
        }
    }
}

#[cfg(feature = "internals")]
#[path = "announcer_rig.rs"]
pub mod rig;

#[cfg(test)]
#[path = "announcer_tests.rs"]
mod tests;
