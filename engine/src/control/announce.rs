//! Announces this engine's regions to peers: all regions when a connection stands, then every region that is added
//! or removed. The loop works in turns: it sends one peer a bounded piece, then the next peer, and serves everything
//! else after ANNOUNCE_TURN_NS. The log is read at most once in ANNOUNCE_PAUSE_NS, so that regions that are registered
//! one by one are announced together.
//!
//! ```text
//! connection stands ─▶ the regions of that moment, by address ─▶ Ready ─▶ the log, from that moment on
//! a region is added or removed ─▶ the log: a single log for all peers, each of which has its position in the log
//! ```
//! A region that was revoked meanwhile is not announced as added. A transport's message waits until all regions that
//! were registered before it are announced, because the message may name them.

use super::conn::{ControlConn, State};
use super::Control;
use crate::limits::{
    ANNOUNCE_BACKLOG_BYTES_MAX, ANNOUNCE_LOG_MAX, ANNOUNCE_PAUSE_NS, ANNOUNCE_TURN_NS,
    ANNOUNCE_WAITING_BYTES_MAX, REGIONS_PER_MESSAGE,
};
use crate::region::remote::RemoteRegion;
use crate::region::{Region, RegionMap};
use crate::session::message::Message;
use crate::sys::{clock, socket};
use crate::types::{Monotonic, PeerId, RegionId, Transport};
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

/// The log of regions that were added and removed, and the peers to announce them to.
#[derive(Default)]
pub(super) struct RegionLog {
    changes: VecDeque<Change>,
    /// The number of the first change in the log.
    first: u64,
    trim_at: usize,
    /// Peers that may have announcements waiting. Each is queued at most once: see `Announced::is_in_turn`.
    turns: VecDeque<PeerId>,
    /// True if the log has grown since all peers were put into `turns`.
    is_new: bool,
    /// All peers are put into `turns` again at this time at the earliest.
    paused_until_ns: Monotonic,
}

impl RegionLog {
    /// Returns the number of the next change.
    fn end(&self) -> u64 {
        self.first + self.changes.len() as u64
    }

    fn push(&mut self, regions: &[RegionId], gone: bool) {
        self.changes.extend(regions.iter().map(|region| Change { region: *region, gone }));
        self.is_new = true;
    }

    /// Returns when the next turn of announcements is due.
    pub(super) fn next_ns(&self) -> Option<Monotonic> {
        if self.turns.is_empty() {
            self.is_new.then_some(self.paused_until_ns)
        } else {
            Some(Monotonic::ZERO)
        }
    }
}

/// A transport's message that waits until the regions registered before it are announced.
struct WaitingMessage {
    /// All changes with lower numbers are announced before the message.
    before: u64,
    bytes: usize,
    message: Message,
}

/// What was announced to a peer on its connection so far.
#[derive(Default)]
pub struct Announced {
    /// The regions at the connection's beginning, and the address from which on they are still to be announced. None
    /// when all are announced and Ready is sent.
    initial: Option<(Arc<RegionMap>, u64)>,
    /// The highest `Region::order` among the regions at the connection's beginning.
    newest: u64,
    /// The number of the next change to announce.
    next: u64,
    waiting: VecDeque<WaitingMessage>,
    waiting_bytes: usize,
    is_in_turn: bool,
}

/// The messages of one piece, before they are encoded.
#[derive(Default)]
struct Piece {
    /// Regions that were added and not revoked. The transports' messages about them are sent first.
    came: Vec<Arc<Region>>,
    gone: Vec<RegionId>,
    messages: Vec<Message>,
    /// True if this piece ends the regions of the connection's beginning; Ready follows.
    is_all: bool,
}

impl Announced {
    /// Starts over on a new connection, with the regions of this moment.
    fn begin(&mut self, map: Arc<RegionMap>, end: u64) {
        let (newest, is_in_turn) = (map.newest(), self.is_in_turn);
        *self = Announced { initial: Some((map, 0)), newest, next: end, is_in_turn, ..Announced::default() };
    }

    fn is_up_to(&self, end: u64) -> bool {
        self.initial.is_none() && self.next == end && self.waiting.is_empty()
    }

    /// Takes the next piece: as much as fits into one message of each kind.
    fn take(&mut self, region_log: &RegionLog, now: &RegionMap) -> Piece {
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
            self.take_changes(region_log, now, &mut piece);
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
    fn take_changes(&mut self, region_log: &RegionLog, now: &RegionMap, piece: &mut Piece) {
        self.next = self.next.max(region_log.first);
        let from = (self.next - region_log.first) as usize;
        let changes = || region_log.changes.range(from..);
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

impl Control {
    pub(super) fn note_added(&mut self, ids: &[RegionId]) {
        self.region_log.push(ids, false);
    }

    pub(super) fn note_removed(&mut self, ids: &[RegionId]) {
        self.each_service().for_each(|(_, service)| service.regions_removed(ids));
        self.region_log.push(ids, true);
    }

    /// Begins to announce our regions, and then Ready, on a new connection whose transports have begun.
    pub(super) fn announce_all(&mut self, peer: PeerId) {
        let (map, end) = (self.context.registry.snapshot(), self.region_log.end());
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.announced.begin(map, end);
            // The first piece goes out at once, before any other message.
            if self.announce_piece(peer) {
                self.queue_announcements(peer);
            }
        }
    }

    /// Queues a peer for announcements: its connection may have room again.
    pub(super) fn queue_announcements(&mut self, peer: PeerId) {
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        let announced = &mut session.announced;
        if !announced.is_up_to(self.region_log.end()) && !std::mem::replace(&mut announced.is_in_turn, true) {
            self.region_log.turns.push_back(peer);
        }
    }

    /// Runs one turn: sends each peer a piece, until everything is announced or the turn is over.
    pub(super) fn announce(&mut self) {
        let now_ns = clock::monotonic_ns();
        if self.region_log.is_new && self.region_log.paused_until_ns <= now_ns {
            (self.region_log.is_new, self.region_log.paused_until_ns) = (false, now_ns + ANNOUNCE_PAUSE_NS);
            let connected = self.sessions.iter_mut().filter(|(_, session)| session.conn.is_some());
            for (peer, session) in connected {
                if !std::mem::replace(&mut session.announced.is_in_turn, true) {
                    self.region_log.turns.push_back(*peer);
                }
            }
        }
        let until_ns = now_ns + ANNOUNCE_TURN_NS;
        while let Some(peer) = self.region_log.turns.pop_front() {
            let more = self.announce_piece(peer);
            if more {
                self.region_log.turns.push_back(peer);
            } else if let Some(session) = self.sessions.get_mut(&peer) {
                session.announced.is_in_turn = false;
            }
            if clock::monotonic_ns() >= until_ns {
                break;
            }
        }
        self.trim_log();
    }

    /// Sends one piece to a peer. Returns true if more is to be announced and the connection has room.
    fn announce_piece(&mut self, peer: PeerId) -> bool {
        let end = self.region_log.end();
        let Some(backlog) = self.control_of(peer).map(|control| control.stream.backlog()) else {
            return false;
        };
        let Some(session) = self.sessions.get_mut(&peer) else { return false };
        if session.announced.initial.is_some() && self.late.has(&session.identity.engine_id) {
            // Ready ends the regions, and says that no lane of an earlier connection is open: it must wait.
            return false;
        }
        if backlog > ANNOUNCE_BACKLOG_BYTES_MAX || session.announced.is_up_to(end) {
            // `control` queues the peer again (`queue_announcements`) when a full connection has made progress.
            return false;
        }
        let piece = session.announced.take(&self.region_log, &self.context.registry.snapshot());
        let more = !session.announced.is_up_to(end);
        let limits = if piece.is_all { session.peer.granted() } else { Vec::new() };
        let mut messages = Vec::new();
        let ids: Vec<RegionId> = piece.came.iter().map(|region| region.id).collect();
        if !ids.is_empty() {
            for (transport, service) in self.each_service() {
                let bodies = service.regions_added(peer, &ids).into_iter();
                messages.extend(bodies.map(|body| transport_message(transport, body, String::new())));
            }
            let listed = piece.came.iter().filter(|region| region.access.0 != 0 || !region.staging);
            messages.push(Message::RegionsAdd(listed.map(|region| described(region)).collect()));
        }
        if !piece.gone.is_empty() {
            messages.push(Message::RegionsRemove(piece.gone));
        }
        // A connection may have been lost with its grants. Ready has the limit of channel 0.
        messages.extend(limits.iter().skip(1).map(|limit| Message::Grant { limit: *limit }));
        messages.extend(limits.first().map(|limit| Message::Ready { notify_limit: *limit }));
        messages.extend(piece.messages);
        self.send_all(peer, messages);
        more
    }

    /// Sends one piece before a message that the peer may take as the end of the announcements. If few are waiting, the
    /// piece has them all.
    pub(super) fn announce_ahead(&mut self, peer: PeerId) {
        if !self.is_up_to_date(peer) {
            self.announce_piece(peer);
        }
    }

    /// Sends a transport's message to the peer, after the regions that it may name are announced.
    pub(super) fn queue_service_message(
        &mut self,
        peer: PeerId,
        transport: Transport,
        body: Vec<u8>,
        why: String,
    ) {
        // The messages of these transports name no regions, so they need not wait.
        let ahead = matches!(transport, Transport::Local | Transport::Tcp);
        if !ahead {
            self.announce_ahead(peer);
        }
        let bytes = body.len() + why.len() + size_of::<WaitingMessage>();
        let message = transport_message(transport, body, why);
        if ahead || self.is_up_to_date(peer) {
            self.send(peer, message);
            // Most of these messages are answers. A peer that asks without reading the answers is disconnected.
            if self.control_of(peer).is_some_and(|it| it.stream.backlog() > ANNOUNCE_WAITING_BYTES_MAX) {
                self.break_off(peer);
            }
            return;
        }
        let before = self.region_log.end();
        let Some(session) = self.sessions.get_mut(&peer).filter(|session| session.conn.is_some()) else {
            return;
        };
        let announced = &mut session.announced;
        announced.waiting_bytes += bytes;
        announced.waiting.push_back(WaitingMessage { before, bytes, message });
        let heaps_up = announced.waiting_bytes > ANNOUNCE_WAITING_BYTES_MAX;
        self.queue_announcements(peer);
        if heaps_up {
            self.break_off(peer);
        }
    }

    fn is_up_to_date(&self, peer: PeerId) -> bool {
        self.sessions.get(&peer).is_none_or(|session| session.announced.is_up_to(self.region_log.end()))
    }

    /// Removes changes that are announced to all peers. Disconnects peers that are too far behind: they do not read.
    fn trim_log(&mut self) {
        if self.region_log.changes.len() < self.region_log.trim_at.max(TRIM_AT) {
            return;
        }
        let connected = || self.sessions.iter().filter(|(_, session)| session.conn.is_some());
        let end = self.region_log.end();
        let lowest = connected().map(|(_, session)| session.announced.next).min().unwrap_or(end);
        let lowest = lowest.max(self.region_log.first);
        let behind = |announced: &Announced| end - announced.next > ANNOUNCE_LOG_MAX;
        let lost: Vec<PeerId> =
            connected().filter(|(_, session)| behind(&session.announced)).map(|(peer, _)| *peer).collect();
        self.region_log.changes.drain(..(lowest - self.region_log.first) as usize);
        self.region_log.first = lowest;
        self.region_log.trim_at = self.region_log.changes.len() * 2;
        lost.into_iter().for_each(|peer| self.break_off(peer));
    }

    pub(super) fn control_of(&mut self, peer: PeerId) -> Option<&mut ControlConn> {
        let token = self.sessions.get(&peer)?.conn?;
        match &mut self.conns.get_mut(&token)?.state {
            State::Control(control) => Some(control),
            _ => None,
        }
    }

    /// Shuts the connection down. The poller then reports the connection, and the loop closes it.
    pub(super) fn break_off(&mut self, peer: PeerId) {
        if let Some(control) = self.control_of(peer) {
            socket::shutdown(control.stream.fd());
        }
    }
}

pub(super) fn transport_message(transport: Transport, body: Vec<u8>, why: String) -> Message {
    Message::Transport { transport: transport as u8, why, body }
}

/// Returns the description of a region that peers receive.
fn described(region: &Region) -> RemoteRegion {
    RemoteRegion {
        id: region.id,
        order: region.order,
        address: region.address,
        length: region.length,
        access: region.access,
        name: region.name.clone(),
        location: region.location,
        staging: region.staging,
    }
}

#[cfg(feature = "internals")]
#[path = "announce_rig.rs"]
pub mod rig;

#[cfg(test)]
#[path = "announce_tests.rs"]
mod tests;
