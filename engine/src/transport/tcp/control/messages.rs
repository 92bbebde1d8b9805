//! What the two ends of a session say to each other on its control connection, and what a message of the peer's
//! has done here.

use super::conn::State;
use super::sessions::Actions;
use super::Control;
use crate::command::Reply;
use crate::complete::Fence;
use crate::limits::REGIONS_PER_MESSAGE;
use crate::region::remote::RemoteRegion;
use crate::session::message::Message;
use crate::status::{Error, Status};
use crate::sys::clock;
use std::sync::atomic::Ordering;

impl Control {
    pub(super) fn say(&mut self, peer: u64, message: Message) {
        let Some(token) = self.sessions.get(&peer).and_then(|session| session.conn) else { return };
        let Some(State::Control(control)) = self.conns.get_mut(&token).map(|conn| &mut conn.state) else {
            return;
        };
        let sealed = control.channel.seal(&message.encode(), control.stream.out());
        if sealed.is_err() || control.stream.flush(&self.poller).is_err() {
            // The loop sees the broken connection as soon as it looks at it again.
            crate::sys::socket::shutdown(control.stream.fd());
        }
    }

    pub(super) fn say_regions(&mut self, peer: u64, ids: &[u64]) {
        let map = self.context.registry.snapshot();
        for part in ids.chunks(REGIONS_PER_MESSAGE) {
            let regions: Vec<RemoteRegion> = part
                .iter()
                .filter_map(|id| map.get(*id))
                .filter(|region| !region.is_revoked() && (region.access.0 != 0 || !region.staging))
                .map(|region| RemoteRegion {
                    id: region.id,
                    address: region.address,
                    length: region.length,
                    access: region.access,
                    name: region.name.clone(),
                    location: region.location,
                    staging: region.staging,
                })
                .collect();
            self.say(peer, Message::RegionsAdd(regions));
        }
    }

    fn connected_peers(&self) -> Vec<u64> {
        self.sessions.iter().filter(|(_, session)| session.conn.is_some()).map(|(peer, _)| *peer).collect()
    }

    pub(super) fn tell_added(&mut self, ids: &[u64]) {
        for peer in self.connected_peers() {
            let words: Vec<_> = self
                .each_companion()
                .flat_map(|(transport, companion)| {
                    companion.regions_added(peer, ids).into_iter().map(move |word| (transport, word))
                })
                .collect();
            for (transport, word) in words {
                self.say_beside(peer, transport, word, String::new());
            }
            self.say_regions(peer, ids);
        }
    }

    pub(super) fn tell_removed(&mut self, ids: &[u64]) {
        self.each_companion().for_each(|(_, companion)| companion.regions_removed(ids));
        for peer in self.connected_peers() {
            for part in ids.chunks(REGIONS_PER_MESSAGE) {
                self.say(peer, Message::RegionsRemove(part.to_vec()));
            }
        }
    }

    /// Answers a message of the peer's. Who lets answers pile up does not read them.
    fn answer(&mut self, peer: u64, message: Message) {
        let Some(token) = self.sessions.get(&peer).and_then(|session| session.conn) else { return };
        if let Some(State::Control(control)) = self.conns.get_mut(&token).map(|conn| &mut conn.state) {
            if !control.answers.has_room(control.stream.progress().0) {
                return self.misbehaved(peer);
            }
        }
        self.say(peer, message);
        if let Some(State::Control(control)) = self.conns.get_mut(&token).map(|conn| &mut conn.state) {
            control.answers.add(control.stream.progress().1);
        }
    }

    pub(super) fn message(&mut self, peer: u64, message: Message) {
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        if !session.machine.expects(&message) {
            return self.misbehaved(peer);
        }
        let now_ns = clock::monotonic_ns();
        match &message {
            Message::RegionsAdd(regions) => session.peer.remote.add(regions.clone()),
            Message::RegionsRemove(ids) => session.peer.remote.remove(ids),
            Message::Ping { nonce } => {
                let pong = Message::Pong { nonce: *nonce, clock_ns: clock::boottime_ns() };
                return self.answer(peer, pong);
            }
            Message::Pong { nonce, clock_ns } => {
                session.peer.clock.sample(*clock_ns, clock::boottime_ns());
                for (_, asked_ns, reply) in session.probes.extract_if(.., |(asked, _, _)| asked == nonce) {
                    session.peer.stats.round_trip_ns.store(now_ns - asked_ns, Ordering::Relaxed);
                    reply.send(Ok(now_ns - asked_ns));
                }
                session.peer.post_all();
            }
            Message::Fence { lane } => return self.fence(peer, *lane),
            Message::HasEnded { pid, started } => return self.has_ended(peer, *pid, *started),
            Message::Ended { pid, started } => return self.ended(peer, *pid, *started),
            Message::Beside { transport, why, body } => {
                return self.companion_said(peer, *transport, why.clone(), body.clone());
            }
            Message::Grant { limit } => session.peer.grant(*limit),
            Message::Ready { notify_limit } => {
                session.peer.remote.settle();
                session.peer.grant(*notify_limit);
                self.confirm_predecessors(peer);
            }
            Message::Bye { .. } => {
                // The peer closed its lanes before it said so: what it answered last is here, and when
                // ours go now nothing is in doubt.
                session.lanes.values().for_each(|lane| lane.take_the_rest());
                return self.lose(peer, Status::PeerLost, Some(Fence::Confirmed));
            }
            _ => {}
        }
        let mut actions = Actions::new();
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.machine.message(now_ns, &message, &mut actions);
        }
        self.act(peer, actions);
        if matches!(message, Message::Pong { .. }) {
            self.companion_mended(peer);
        }
    }

    /// The peer asks that nothing of this lane can land here any more: neither from it as it stands, nor when it is
    /// attached later, because its welcome or its greeting is still on the way.
    fn fence(&mut self, peer: u64, lane: u32) {
        self.forget_greeting(peer, lane);
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        session.refuse_lane(lane);
        if let Some(attached) = session.lanes.get(&lane).cloned() {
            self.lane_lost(peer, &attached);
        }
        self.companion_lane_lost(peer, lane);
        self.answer(peer, Message::FenceAck { lane });
    }

    pub(super) fn ping(&mut self, peer: u64, reply: Option<Reply<u64>>) {
        let mut actions = Actions::new();
        let now_ns = clock::monotonic_ns();
        match self.sessions.get_mut(&peer).filter(|session| !session.machine.is_given_up()) {
            Some(session) => {
                let nonce = session.machine.ping(now_ns, &mut actions);
                if let Some(reply) = reply {
                    session.probes.push((nonce, now_ns, reply));
                }
            }
            None => {
                if let Some(reply) = reply {
                    reply.send(Err(Error::new(Status::PeerLost, "the peer is lost")));
                }
            }
        }
        self.act(peer, actions);
    }
}
