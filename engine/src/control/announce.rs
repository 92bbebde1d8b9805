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

use super::conn::{ConnState, ControlConn};
use super::Control;
use crate::limits::{ANNOUNCE_BACKLOG_BYTES_MAX, ANNOUNCE_TURN_NS, ANNOUNCE_WAITING_BYTES_MAX};
use crate::region::remote::RemoteRegion;
use crate::region::Region;
use crate::session::message::Message;
use crate::sys::{clock, socket};
use crate::types::{PeerId, RegionId, Transport};

impl Control {
    pub(super) fn note_added(&mut self, ids: &[RegionId]) {
        self.announcer.note(ids, false);
    }

    pub(super) fn note_removed(&mut self, ids: &[RegionId]) {
        self.each_service().for_each(|(_, service)| service.regions_removed(ids));
        self.announcer.note(ids, true);
    }

    /// Begins to announce our regions, and then Ready, on a new connection whose transports have begun.
    pub(super) fn announce_all(&mut self, peer: PeerId) {
        self.announcer.begin(peer, self.context.registry.snapshot());
        // The first piece goes out at once, before any other message.
        if self.announce_piece(peer) {
            self.announcer.queue(peer);
        }
    }

    /// Runs one turn: sends each peer a piece, until everything is announced or the turn is over.
    pub(super) fn announce(&mut self) {
        let now_ns = clock::monotonic_ns();
        self.announcer.begin_turns(now_ns);
        let until_ns = now_ns + ANNOUNCE_TURN_NS;
        while let Some(peer) = self.announcer.next_turn() {
            if self.announce_piece(peer) {
                self.announcer.queue(peer);
            }
            if clock::monotonic_ns() >= until_ns {
                break;
            }
        }
        self.announcer.trim().into_iter().for_each(|peer| self.break_off(peer));
    }

    /// Sends one piece to a peer. Returns true if more is to be announced and the connection has room.
    fn announce_piece(&mut self, peer: PeerId) -> bool {
        let Some(backlog) = self.control_of(peer).map(|control| control.stream.backlog()) else {
            return false;
        };
        let Some(session) = self.sessions.get(peer) else { return false };
        if self.announcer.is_beginning(peer) && self.sessions.has_late(&session.identity.engine_id) {
            // Ready ends the regions, and says that no lane of an earlier connection is open: it must wait.
            return false;
        }
        if backlog > ANNOUNCE_BACKLOG_BYTES_MAX {
            // `reading` queues the peer again when a full connection has made progress.
            return false;
        }
        let Some(piece) = self.announcer.take(peer, &self.context.registry.snapshot()) else { return false };
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
        !self.announcer.is_up_to_date(peer)
    }

    /// Sends one piece before a message that the peer may take as the end of the announcements. If few are waiting, the
    /// piece has them all.
    pub(super) fn announce_ahead(&mut self, peer: PeerId) {
        if !self.announcer.is_up_to_date(peer) {
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
        let bytes = body.len() + why.len();
        let message = transport_message(transport, body, why);
        if ahead || self.announcer.is_up_to_date(peer) {
            self.send(peer, message);
            // Most of these messages are answers. A peer that asks without reading the answers is disconnected.
            if self.control_of(peer).is_some_and(|it| it.stream.backlog() > ANNOUNCE_WAITING_BYTES_MAX) {
                self.break_off(peer);
            }
            return;
        }
        let heaps_up = self.announcer.hold(peer, message, bytes);
        self.announcer.queue(peer);
        if heaps_up {
            self.break_off(peer);
        }
    }

    pub(super) fn control_of(&mut self, peer: PeerId) -> Option<&mut ControlConn> {
        let token = self.sessions.get(peer)?.conn?;
        match &mut self.conns.get_mut(&token)?.state {
            ConnState::Control(control) => Some(control),
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
pub(super) fn described(region: &Region) -> RemoteRegion {
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
