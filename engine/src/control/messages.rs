//! Sends messages on the control connection of a session, and carries out the messages that the peer sends.

use super::beginning::Actions;
use super::conn::ConnState;
use super::Control;
use crate::command::Reply;
use crate::lists::take_where;
use crate::loss::{Cause, Loss};
use crate::session::message::Message;
use crate::status::{Error, Status};
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::types::{LaneId, PeerId};

impl Control {
    pub(super) fn send(&mut self, peer: PeerId, message: Message) {
        self.send_all(peer, [message]);
    }

    /// Sends messages in this order, with as few system calls as possible.
    pub(super) fn send_all(&mut self, peer: PeerId, messages: impl IntoIterator<Item = Message>) {
        let Some(token) = self.sessions.conn(peer) else { return };
        let Some(ConnState::Control(control)) = self.conns.get_mut(&token).map(|conn| &mut conn.state) else {
            return;
        };
        let mut messages = messages.into_iter();
        let sealed = messages.try_for_each(|it| control.channel.seal(&it.encode(), control.stream.out()));
        if sealed.is_err() || control.stream.flush().is_err() {
            // The poller then reports the connection, and the loop closes it.
            crate::sys::socket::shutdown(control.stream.fd());
        }
    }

    /// Answers a message of the peer. Ends the session if too many answers wait, because the peer does not read them.
    pub(super) fn answer(&mut self, peer: PeerId, message: Message) {
        let Some(token) = self.sessions.conn(peer) else { return };
        if let Some(ConnState::Control(control)) = self.conns.get_mut(&token).map(|conn| &mut conn.state) {
            if !control.answers.make_room(control.stream.progress().0) {
                return self.misbehaved(peer);
            }
        }
        self.send(peer, message);
        if let Some(ConnState::Control(control)) = self.conns.get_mut(&token).map(|conn| &mut conn.state) {
            control.answers.add(control.stream.progress().1);
        }
    }

    pub(super) fn message(&mut self, peer: PeerId, mut message: Message) {
        let Some(session) = self.sessions.get_mut(peer) else { return };
        if !session.machine.expects(&message) {
            return self.misbehaved(peer);
        }
        let now_ns = clock::monotonic_ns();
        session.machine.heard(now_ns);
        match &mut message {
            Message::RegionsAdd(regions) => session.peer.remote.add(std::mem::take(regions)),
            Message::RegionsRemove(ids) => session.peer.remote.remove(ids),
            Message::Ping { nonce } => {
                self.announce_ahead(peer);
                let pong = Message::Pong { nonce: *nonce, clock_ns: clock::boottime_ns() };
                return self.answer(peer, pong);
            }
            Message::Pong { nonce, clock_ns } => {
                session.peer.clock.sample(*clock_ns, clock::boottime_ns());
                for (_, asked_ns, reply) in take_where(&mut session.probes, |(asked, _, _)| asked == nonce) {
                    session.peer.stats.round_trip_ns.store(now_ns - asked_ns, Ordering::Relaxed);
                    reply.send(Ok(now_ns - asked_ns));
                }
                session.peer.post_waiting();
            }
            Message::Fence { lane } => return self.fence(peer, *lane),
            Message::HasEnded { pid, started } => return self.tell_if_ended(peer, *pid, *started),
            Message::Ended { pid, started } => return self.ended(peer, *pid, *started),
            Message::Transport { transport, why, body } => {
                return self.service_message(peer, *transport, why.clone(), body.clone());
            }
            Message::Grant { limit } => {
                let channel_exists = session.peer.grant(*limit);
                if !channel_exists {
                    return self.misbehaved(peer);
                }
            }
            Message::Ready { notify_limit } => {
                session.peer.remote.settle();
                if !session.peer.grant(*notify_limit) {
                    return self.misbehaved(peer);
                }
                self.confirm_predecessors(peer);
            }
            Message::Bye { .. } => {
                return self.bye(peer);
            }
            _ => {}
        }
        let mut actions = Actions::new();
        if let Some(session) = self.sessions.get_mut(peer) {
            session.machine.message(now_ns, &message, &mut actions);
        }
        self.act(peer, actions);
        if matches!(message, Message::Pong { .. }) {
            self.path_mended(peer);
        }
    }

    /// Fences a lane for the peer: nothing of the lane can land here when the answer is sent. The fence also covers a
    /// lane that is not attached yet, because its greeting or its welcome is still in flight.
    fn fence(&mut self, peer: PeerId, lane: LaneId) {
        if let Some(session) = self.sessions.get(peer) {
            session.lane_numbers.fence(lane);
        }
        self.lanes.give_up(peer, lane);
        // Contract 3: the lane is closed before the fence is acknowledged.
        self.lane_lost(peer, lane, Loss::of(Cause::Closed, format!("the peer gave up lane {lane}")));
        if !self.answers_late(peer, lane) {
            self.answer(peer, Message::FenceAck { lane });
        }
    }

    /// Sends a new Ping on a new connection: a Ping of an earlier connection, or of a time without connection, gets no
    /// answer.
    pub(super) fn probe_again(&mut self, peer: PeerId) {
        let mut actions = Actions::new();
        let Some(session) = self.sessions.get_mut(peer).filter(|it| !it.probes.is_empty()) else { return };
        let now_ns = clock::monotonic_ns();
        let asked = session.machine.ping(now_ns, &mut actions);
        session.probes.iter_mut().for_each(|probe| (probe.0, probe.1) = asked);
        self.act(peer, actions);
    }

    pub(super) fn ask(&mut self, peer: PeerId) {
        if let Some(session) = self.sessions.get(peer) {
            session.peer.asked();
        }
        self.ping(peer, None);
    }

    pub(super) fn ping(&mut self, peer: PeerId, reply: Option<Reply<u64>>) {
        let mut actions = Actions::new();
        let now_ns = clock::monotonic_ns();
        match self.sessions.get_mut(peer).filter(|session| !session.machine.is_given_up()) {
            Some(session) => {
                let (nonce, asked_ns) = session.machine.ping(now_ns, &mut actions);
                session.probes.retain(|(_, _, reply)| reply.is_awaited());
                session.probes.extend(reply.map(|reply| (nonce, asked_ns, reply)));
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
