//! Announces this engine's regions to peers: all regions when a connection stands, then every region that is added
//! or removed. The loop works in turns: it sends one peer a bounded piece, then the next peer, and serves everything
//! else after ANNOUNCE_TURN_NS. The log is read at most once in ANNOUNCE_REST_NS, so that regions that are registered
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
    ANNOUNCE_BACKLOG_BYTES_MAX, ANNOUNCE_LOG_MAX, ANNOUNCE_REST_NS, ANNOUNCE_TURN_NS,
    ANNOUNCE_WORDS_BYTES_MAX, REGIONS_PER_MESSAGE,
};
use crate::region::remote::RemoteRegion;
use crate::region::{Region, RegionMap};
use crate::session::message::Message;
use crate::sys::{clock, socket};
use crate::types::{Monotonic, PeerId, Transport};
use std::collections::VecDeque;
use std::sync::Arc;

/// Length of the log at which entries that every peer has heard are removed; then again at twice the length left.
const TRIM_AT: usize = 4096;

#[derive(Clone, Copy)]
struct Change {
    region: u64,
    gone: bool,
}

/// The log of regions that were added and removed, and the peers to announce them to.
#[derive(Default)]
pub(super) struct News {
    log: VecDeque<Change>,
    /// The number of the first change in the log.
    first: u64,
    trim_at: usize,
    /// Peers that may have announcements waiting. Each is queued at most once: see `Hearing::is_in_turn`.
    turns: VecDeque<PeerId>,
    /// True if the log has grown since all peers were put into `turns`.
    is_new: bool,
    /// All peers are put into `turns` again at this time at the earliest.
    rests_until_ns: Monotonic,
}

impl News {
    /// Returns the number of the next change.
    fn end(&self) -> u64 {
        self.first + self.log.len() as u64
    }

    fn push(&mut self, regions: &[u64], gone: bool) {
        self.log.extend(regions.iter().map(|region| Change { region: *region, gone }));
        self.is_new = true;
    }

    /// Returns when the next turn of announcements is due.
    pub(super) fn next_ns(&self) -> Option<Monotonic> {
        match self.turns.is_empty() {
            true => self.is_new.then_some(self.rests_until_ns),
            false => Some(Monotonic::ZERO),
        }
    }
}

/// A transport's message that waits until the regions registered before it are announced.
struct Word {
    /// All changes with lower numbers are announced before the message.
    before: u64,
    bytes: usize,
    message: Message,
}

/// What was announced to a peer on its connection so far.
#[derive(Default)]
pub struct Hearing {
    /// The regions at the connection's beginning, and the address from which on they are still to be announced. None
    /// when all are announced and Ready is sent.
    rest: Option<(Arc<RegionMap>, u64)>,
    /// The highest `Region::order` among the regions at the connection's beginning.
    newest: u64,
    /// The number of the next change to announce.
    next: u64,
    words: VecDeque<Word>,
    words_bytes: usize,
    is_in_turn: bool,
}

/// The messages of one piece, before they are encoded.
#[derive(Default)]
struct Said {
    /// Regions that were added and not revoked. The transports' messages about them are sent first.
    came: Vec<Arc<Region>>,
    gone: Vec<u64>,
    words: Vec<Message>,
    /// True if this piece ends the regions of the connection's beginning; Ready follows.
    is_all: bool,
}

impl Hearing {
    /// Starts over on a new connection, with the regions of this moment.
    fn begin(&mut self, map: Arc<RegionMap>, end: u64) {
        let (newest, is_in_turn) = (map.newest(), self.is_in_turn);
        *self = Hearing { rest: Some((map, 0)), newest, next: end, is_in_turn, ..Hearing::default() };
    }

    fn is_up_to(&self, end: u64) -> bool {
        self.rest.is_none() && self.next == end && self.words.is_empty()
    }

    /// Takes the next piece: as much as fits into one message of each kind.
    fn take(&mut self, news: &News, now: &RegionMap) -> Said {
        let mut said = Said::default();
        if let Some((map, from)) = &mut self.rest {
            let part: Vec<_> = map.iter_from(*from).take(REGIONS_PER_MESSAGE).cloned().collect();
            said.is_all = part.len() < REGIONS_PER_MESSAGE;
            // No region ends above the highest address.
            part.last().iter().for_each(|last| *from = last.address + 1);
            said.came = part;
            if said.is_all {
                self.rest = None;
            }
        } else {
            self.take_changes(news, now, &mut said);
        }
        said.came.retain(|region| !region.is_revoked());
        let until = self.words_bytes.saturating_sub(ANNOUNCE_BACKLOG_BYTES_MAX);
        while self.rest.is_none() && self.words_bytes > until {
            if self.words.front().is_none_or(|word| word.before > self.next) {
                break;
            }
            let Some(word) = self.words.pop_front() else { break };
            self.words_bytes -= word.bytes;
            said.words.push(word.message);
        }
        said
    }

    /// Takes consecutive changes of the log that are all additions or all removals.
    fn take_changes(&mut self, news: &News, now: &RegionMap, said: &mut Said) {
        self.next = self.next.max(news.first);
        let from = (self.next - news.first) as usize;
        let changes = || news.log.range(from..);
        let Some(gone) = changes().next().map(|change| change.gone) else { return };
        for change in changes().take(REGIONS_PER_MESSAGE).take_while(|change| change.gone == gone) {
            self.next += 1;
            match now.get(change.region) {
                _ if gone => said.gone.push(change.region),
                Some(region) if region.order > self.newest => said.came.push(region.clone()),
                // The region was removed since, or was announced at the connection's beginning.
                _ => {}
            }
        }
    }
}

impl Control {
    pub(super) fn tell_added(&mut self, ids: &[u64]) {
        self.news.push(ids, false);
    }

    pub(super) fn tell_removed(&mut self, ids: &[u64]) {
        self.each_service().for_each(|(_, service)| service.regions_removed(ids));
        self.news.push(ids, true);
    }

    /// Begins to announce our regions, and then Ready, on a new connection whose transports have begun.
    pub(super) fn tell_all(&mut self, peer: PeerId) {
        let (map, end) = (self.context.registry.snapshot(), self.news.end());
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.hearing.begin(map, end);
            // The first piece goes out at once, before any other message.
            if self.tell_some(peer) {
                self.hear_on(peer);
            }
        }
    }

    /// Queues a peer for announcements: its connection may have room again.
    pub(super) fn hear_on(&mut self, peer: PeerId) {
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        let hearing = &mut session.hearing;
        if !hearing.is_up_to(self.news.end()) && !std::mem::replace(&mut hearing.is_in_turn, true) {
            self.news.turns.push_back(peer);
        }
    }

    /// Runs one turn: sends each peer a piece, until everything is announced or the turn is over.
    pub(super) fn announce(&mut self) {
        let now_ns = clock::monotonic_ns();
        if self.news.is_new && self.news.rests_until_ns <= now_ns {
            (self.news.is_new, self.news.rests_until_ns) = (false, now_ns + ANNOUNCE_REST_NS);
            let connected = self.sessions.iter_mut().filter(|(_, session)| session.conn.is_some());
            for (peer, session) in connected {
                if !std::mem::replace(&mut session.hearing.is_in_turn, true) {
                    self.news.turns.push_back(*peer);
                }
            }
        }
        let until_ns = now_ns + ANNOUNCE_TURN_NS;
        while let Some(peer) = self.news.turns.pop_front() {
            let more = self.tell_some(peer);
            if more {
                self.news.turns.push_back(peer);
            } else if let Some(session) = self.sessions.get_mut(&peer) {
                session.hearing.is_in_turn = false;
            }
            if clock::monotonic_ns() >= until_ns {
                break;
            }
        }
        self.trim_log();
    }

    /// Sends one piece to a peer. Returns true if more is to be announced and the connection has room.
    fn tell_some(&mut self, peer: PeerId) -> bool {
        let end = self.news.end();
        let Some(backlog) = self.control_of(peer).map(|control| control.stream.backlog()) else {
            return false;
        };
        let Some(session) = self.sessions.get_mut(&peer) else { return false };
        if session.hearing.rest.is_some() && self.late.has(&session.identity.engine_id) {
            // Ready ends the regions, and says that no lane of an earlier connection is open: it must wait.
            return false;
        }
        if backlog > ANNOUNCE_BACKLOG_BYTES_MAX || session.hearing.is_up_to(end) {
            // `control` queues the peer again (`hear_on`) when a full connection has made progress.
            return false;
        }
        let said = session.hearing.take(&self.news, &self.context.registry.snapshot());
        let more = !session.hearing.is_up_to(end);
        let ready = said.is_all.then(|| Message::Ready { notify_limit: session.peer.granted() });
        let mut messages = Vec::new();
        let ids: Vec<u64> = said.came.iter().map(|region| region.id).collect();
        if !ids.is_empty() {
            for (transport, service) in self.each_service() {
                let words = service.regions_added(peer, &ids).into_iter();
                messages.extend(words.map(|body| transport_message(transport, body, String::new())));
            }
            let told = said.came.iter().filter(|region| region.access.0 != 0 || !region.staging);
            messages.push(Message::RegionsAdd(told.map(|region| described(region)).collect()));
        }
        if !said.gone.is_empty() {
            messages.push(Message::RegionsRemove(said.gone));
        }
        messages.extend(ready);
        messages.extend(said.words);
        self.say_all(peer, messages);
        more
    }

    /// Sends one piece before a message that the peer may take as the end of the announcements. If few are waiting, the
    /// piece has them all.
    pub(super) fn tell_a_little(&mut self, peer: PeerId) {
        if !self.has_heard(peer) {
            self.tell_some(peer);
        }
    }

    /// Sends a transport's message to the peer, after the regions that it may name are announced.
    pub(super) fn say_to_transport(
        &mut self,
        peer: PeerId,
        transport: Transport,
        body: Vec<u8>,
        why: String,
    ) {
        // Messages of the same-host path name no regions, so they need not wait.
        let ahead = transport == Transport::Local;
        if !ahead {
            self.tell_a_little(peer);
        }
        let bytes = body.len() + why.len() + size_of::<Word>();
        let message = transport_message(transport, body, why);
        if ahead || self.has_heard(peer) {
            self.say(peer, message);
            // Most of these messages are answers. A peer that asks without reading the answers is disconnected.
            if self.control_of(peer).is_some_and(|it| it.stream.backlog() > ANNOUNCE_WORDS_BYTES_MAX) {
                self.break_off(peer);
            }
            return;
        }
        let before = self.news.end();
        let Some(session) = self.sessions.get_mut(&peer).filter(|session| session.conn.is_some()) else {
            return;
        };
        let hearing = &mut session.hearing;
        hearing.words_bytes += bytes;
        hearing.words.push_back(Word { before, bytes, message });
        let heaps_up = hearing.words_bytes > ANNOUNCE_WORDS_BYTES_MAX;
        self.hear_on(peer);
        if heaps_up {
            self.break_off(peer);
        }
    }

    fn has_heard(&self, peer: PeerId) -> bool {
        self.sessions.get(&peer).is_none_or(|session| session.hearing.is_up_to(self.news.end()))
    }

    /// Removes changes that are announced to all peers. Disconnects peers that are too far behind: they do not read.
    fn trim_log(&mut self) {
        if self.news.log.len() < self.news.trim_at.max(TRIM_AT) {
            return;
        }
        let connected = || self.sessions.iter().filter(|(_, session)| session.conn.is_some());
        let end = self.news.end();
        let heard = connected().map(|(_, session)| session.hearing.next).min().unwrap_or(end);
        let heard = heard.max(self.news.first);
        let behind = |hearing: &Hearing| end - hearing.next > ANNOUNCE_LOG_MAX;
        let lost: Vec<PeerId> =
            connected().filter(|(_, session)| behind(&session.hearing)).map(|(peer, _)| *peer).collect();
        self.news.log.drain(..(heard - self.news.first) as usize);
        self.news.first = heard;
        self.news.trim_at = self.news.log.len() * 2;
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
        address: region.address,
        length: region.length,
        access: region.access,
        name: region.name.clone(),
        location: region.location,
        staging: region.staging,
    }
}

#[cfg(test)]
#[path = "announce_tests.rs"]
mod tests;
