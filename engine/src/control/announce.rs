//! Tells peers which regions this engine has: all of them when a connection stands, and what comes and goes from
//! then on. In turns: the loop tells one peer a little, then the next, and after a while looks after everything
//! else before it goes on. Between two looks at the log there is a rest, so that what comes one by one is told
//! together.
//!
//! ```text
//! connection stands ─▶ the regions of that moment, by address ─▶ Ready ─▶ the log, from that moment on
//! a region comes or goes ─▶ the log: one for all peers, each of which has its place in it
//! ```
//! What was revoked since is not told to have come, so nothing is announced after its end. What a companion says waits
//! for what was registered before it: it may name that.

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

/// The log is looked at for what all have heard when it is so long, and again when it is twice as long.
const TRIM_AT: usize = 4096;

#[derive(Clone, Copy)]
struct Change {
    region: u64,
    gone: bool,
}

/// What came and went, and who is to hear of it.
#[derive(Default)]
pub(super) struct News {
    log: VecDeque<Change>,
    /// The number of the first change in the log.
    first: u64,
    trim_at: usize,
    /// Peers that may have something to hear, in turn; each at most once: see `Hearing::is_in_turn`.
    turns: VecDeque<PeerId>,
    /// Something came into the log since all peers were put there.
    is_new: bool,
    /// Until then they are not put there again.
    rests_until_ns: Monotonic,
}

impl News {
    /// The number of the next change.
    fn end(&self) -> u64 {
        self.first + self.log.len() as u64
    }

    fn push(&mut self, regions: &[u64], gone: bool) {
        self.log.extend(regions.iter().map(|region| Change { region: *region, gone }));
        self.is_new = true;
    }

    /// When there is something to tell next.
    pub(super) fn next_ns(&self) -> Option<Monotonic> {
        match self.turns.is_empty() {
            true => self.is_new.then_some(self.rests_until_ns),
            false => Some(Monotonic::ZERO),
        }
    }
}

/// A companion's word that waits for what was registered before it.
struct Word {
    /// The number of the first change that need not be told before it.
    before: u64,
    bytes: usize,
    message: Message,
}

/// How much of the news one peer has heard on its connection.
#[derive(Default)]
pub struct Hearing {
    /// The regions that there were when the connection began, and from which address on they are to be told. None:
    /// they are, and Ready is said.
    rest: Option<(Arc<RegionMap>, u64)>,
    /// The `Region::order` of the last that is told so.
    newest: u64,
    /// The number of the next change to be told.
    next: u64,
    words: VecDeque<Word>,
    words_bytes: usize,
    is_in_turn: bool,
}

/// What is said in one go.
#[derive(Default)]
struct Said {
    /// Came, and not gone since: what services hear of, in their own words, before the rest is said.
    came: Vec<Arc<Region>>,
    gone: Vec<u64>,
    words: Vec<Message>,
    /// These were all that there were.
    is_all: bool,
}

impl Hearing {
    /// A connection stands: these are the regions.
    fn begin(&mut self, map: Arc<RegionMap>, end: u64) {
        let (newest, is_in_turn) = (map.newest(), self.is_in_turn);
        *self = Hearing { rest: Some((map, 0)), newest, next: end, is_in_turn, ..Hearing::default() };
    }

    fn is_up_to(&self, end: u64) -> bool {
        self.rest.is_none() && self.next == end && self.words.is_empty()
    }

    /// Takes what is to be said next, as much as goes into one message of each kind.
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

    /// A run of the log that is all of one kind.
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
                // It has gone since, or was told when the connection began.
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

    /// The connection of a session stands, and its services have begun: tell our regions, then Ready.
    pub(super) fn tell_all(&mut self, peer: PeerId) {
        let (map, end) = (self.context.registry.snapshot(), self.news.end());
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.hearing.begin(map, end);
            // A few are told before anything else is said.
            if self.tell_some(peer) {
                self.hear_on(peer);
            }
        }
    }

    /// The peer's connection may take more.
    pub(super) fn hear_on(&mut self, peer: PeerId) {
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        let hearing = &mut session.hearing;
        if !hearing.is_up_to(self.news.end()) && !std::mem::replace(&mut hearing.is_in_turn, true) {
            self.news.turns.push_back(peer);
        }
    }

    /// One turn: tells peers, a little each, until all have heard everything or the turn is over.
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

    /// Tells one peer what goes into one message. True if there is more, and its connection takes more.
    fn tell_some(&mut self, peer: PeerId) -> bool {
        let end = self.news.end();
        let Some(backlog) = self.control_of(peer).map(|control| control.stream.backlog()) else {
            return false;
        };
        let Some(session) = self.sessions.get_mut(&peer) else { return false };
        if session.hearing.rest.is_some() && self.late.has(&session.identity.engine_id) {
            // Ready is at the end of it, and says that no lane of earlier connections is left.
            return false;
        }
        if backlog > ANNOUNCE_BACKLOG_BYTES_MAX || session.hearing.is_up_to(end) {
            // `control` says when a full connection has taken something.
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

    /// Before something that may be taken for the end of the news: if they are few, it is.
    pub(super) fn tell_a_little(&mut self, peer: PeerId) {
        if !self.has_heard(peer) {
            self.tell_some(peer);
        }
    }

    /// A companion's word to the other side's. What it says of may not have been announced yet; then it waits.
    pub(super) fn say_to_transport(
        &mut self,
        peer: PeerId,
        transport: Transport,
        body: Vec<u8>,
        why: String,
    ) {
        // A same-host path says where it listens, and nothing of regions: it goes ahead.
        let ahead = transport == Transport::Local;
        if !ahead {
            self.tell_a_little(peer);
        }
        let bytes = body.len() + why.len() + size_of::<Word>();
        let message = transport_message(transport, body, why);
        if ahead || self.has_heard(peer) {
            self.say(peer, message);
            // Most of them are answers, and who asks without end need not read any.
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

    /// Forgets what all have heard. Who is too far behind does not read, and loses its connection.
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

    /// The loop sees the broken connection as soon as it looks at it again.
    pub(super) fn break_off(&mut self, peer: PeerId) {
        if let Some(control) = self.control_of(peer) {
            socket::shutdown(control.stream.fd());
        }
    }
}

pub(super) fn transport_message(transport: Transport, body: Vec<u8>, why: String) -> Message {
    Message::Transport { transport: transport as u8, why, body }
}

/// A region as a peer is told of it.
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
