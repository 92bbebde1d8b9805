//! Dials lanes, exchanges their greetings, and hands them to the `LaneService`, which decides the lanes to open.
//! `inbound` accepts the connections of lanes that the peer dials.

use super::conn::State;
use super::dial::tune;
use super::greeting::{Greeting, WELCOME_BYTES};
use super::sessions::PeerSession;
use super::stream::{Input, Stream};
use super::Control;
use crate::loss::{Cause, Failure, Loss};
use crate::peer::transport::{Candidate, ALL, EXPRESS};
use crate::peer::PathStatus;
use crate::route::FASTER;
use crate::session::machine::Role;
use crate::session::message::Message;
use crate::sys::fd::OwnedFd;
use crate::sys::tcp;
use crate::types::{LaneId, Monotonic, PeerId, SessionId, Transport};

impl Control {
    /// Opens lanes before a transfer needs them, if TCP is the best path or may soon be.
    pub(super) fn foresee_lanes(&mut self, peer: PeerId) {
        let Some(session) = self.sessions.get(&peer).filter(|session| session.conn.is_some()) else { return };
        if !self.context.config.transports.allows(Transport::Tcp) {
            return;
        }
        let statuses = || FASTER.iter().map(|transport| (*transport, session.peer.path_status(*transport)));
        let is_settled = |transport: Transport| session.paths_settled & transport.bit() != 0;
        let broke = statuses()
            .any(|(transport, status)| is_settled(transport) && matches!(status, PathStatus::Pending(_)));
        let is_best = statuses()
            .all(|(transport, status)| is_settled(transport) && !matches!(status, PathStatus::Open(..)));
        if broke {
            self.lanes.want(peer, ALL);
        } else if is_best {
            self.lanes.want(peer, EXPRESS);
        }
    }

    /// Returns whether a transfer that is submitted now finds a faster path or the express lane, or may not use TCP.
    pub(super) fn has_lane_it_needs(&self, peer: PeerId) -> bool {
        let Some(session) = self.sessions.get(&peer) else { return false };
        let is_faster = FASTER
            .iter()
            .any(|transport| matches!(session.peer.path_status(*transport), PathStatus::Open(..)));
        is_faster
            || !self.context.config.transports.allows(Transport::Tcp)
            || self.lanes.attached(peer, 0).is_some()
    }

    /// Asks the dialer of this session for lanes.
    pub(super) fn ask_for_lanes(&mut self, peer: PeerId, session_id: SessionId, kinds: u32) {
        if self.sessions.get(&peer).is_some_and(|session| session.session_id == session_id) {
            self.send(peer, Message::OpenLanes { kinds });
        }
    }

    /// Dials a lane of this session.
    pub(super) fn open_lane(&mut self, peer: PeerId, session_id: SessionId, slot: u32, lane: LaneId) {
        let is_it = |session: &&PeerSession| session.session_id == session_id && session.conn.is_some();
        let Some(session) = self.sessions.get(&peer).filter(is_it) else { return };
        let greeting = Greeting { session_id: session.session_id, lane, slot };
        let (bytes, remote) = (greeting.encode(&session.lane_key), session.remote);
        let token = self.token();
        let buffer_bytes = self.context.config.socket_buffer_bytes as usize;
        let opened = tcp::dial(remote, buffer_bytes).and_then(|socket| {
            let mut stream = Stream::new(socket, token, &self.poller, true)?;
            stream.out().extend_from_slice(&bytes);
            Ok(stream)
        });
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.greetings.insert(lane, token);
        }
        match opened {
            Ok(stream) => {
                let deadline = Some(self.handshake_deadline());
                self.insert(token, State::Greeting { stream, peer, greeting, seen: Vec::new() }, deadline);
            }
            Err(error) => self.lane_not_opened(peer, &greeting, Failure::system("connecting", &error)),
        }
    }

    /// Handles a lane that could not be opened. The `LaneService` tries another lane later.
    pub(super) fn lane_not_opened(&mut self, peer: PeerId, greeting: &Greeting, failure: Failure) {
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        session.greetings.remove(&greeting.lane);
        let loss = Loss::new(failure, &format!("TCP lane {}, to {}", greeting.lane, session.remote));
        self.lanes.not_opened(peer, greeting.slot, loss);
        // Another engine may listen there now, while the control connection to the old engine is silent. Only an
        // unanswered Ping shows that. The check of a waiting transfer would send a Ping, but perhaps none waits.
        self.ping(peer, None);
        // The session's alarm ends the pause before the next attempt.
        self.touch(peer);
    }

    /// Closes the connection of this lane if its greeting is in flight. The lane can no longer be attached.
    pub(super) fn forget_greeting(&mut self, peer: PeerId, lane: LaneId) {
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        let Some(token) = session.greetings.remove(&lane) else { return };
        if let Some(State::Greeting { greeting, .. }) = self.take(token).map(|conn| conn.state) {
            let failure = Failure::new(Cause::Closed, "the peer gave up the lane");
            self.lane_not_opened(peer, &greeting, failure);
        }
    }

    /// Closes the lanes that have greeted but are not attached: the session's connection is over.
    pub(super) fn end_greetings(&mut self, peer: PeerId) {
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        for token in std::mem::take(&mut session.greetings).into_values() {
            self.take(token);
        }
    }

    pub(super) fn greeting(
        &mut self,
        token: u64,
        mut stream: Stream,
        peer: PeerId,
        greeting: Greeting,
        mut seen: Vec<u8>,
        deadline: Option<Monotonic>,
    ) {
        let is_awaited = |session: &&PeerSession| session.greetings.get(&greeting.lane) == Some(&token);
        let Some(session) = self.sessions.get(&peer).filter(is_awaited) else { return };
        let key = session.lane_key;
        let read = match stream.flush(&self.poller) {
            Ok(()) => stream.read(WELCOME_BYTES - seen.len()),
            // A socket that is not connected yet blocks or returns ENOTCONN. A refused connection is an error below.
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(Input::Nothing),
            Err(error) => Err(error),
        };
        match read {
            Ok(Input::Bytes(bytes)) => seen.extend_from_slice(&bytes),
            Ok(Input::Nothing) => {}
            Ok(Input::End) => {
                let failure = Failure::new(Cause::Closed, "the peer closed the connection");
                return self.lane_not_opened(peer, &greeting, failure);
            }
            Err(error) => {
                return self.lane_not_opened(peer, &greeting, Failure::system("connecting", &error))
            }
        }
        let Ok(welcome) = <[u8; WELCOME_BYTES]>::try_from(seen.as_slice()) else {
            return self.insert(token, State::Greeting { stream, peer, greeting, seen }, deadline);
        };
        if !greeting.is_welcome(&key, &welcome) {
            let failure = Failure::new(Cause::Forged, "the MAC of the welcome is wrong");
            return self.lane_not_opened(peer, &greeting, failure);
        }
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.greetings.remove(&greeting.lane);
        }
        let socket = stream.release();
        self.attach(peer, greeting, socket);
    }

    /// Attaches a lane whose greeting is complete to its session, if the session still accepts the lane.
    pub(super) fn attach(&mut self, peer: PeerId, greeting: Greeting, socket: OwnedFd) {
        let Greeting { lane, slot, .. } = greeting;
        let Some(session) = self.sessions.get(&peer) else { return };
        let dialed = session.machine.role() == Role::Dialer;
        if !self.takes(session, &greeting) {
            if dialed {
                let failure = Failure::new(Cause::Ours, "the session has ended or the lane is fenced");
                self.lane_not_opened(peer, &greeting, failure);
            }
            return;
        }
        tune(&socket, session.peer.identity.is_near(), &self.context);
        if let Some(older) = self.lanes.attached(peer, slot) {
            // The peer lost the older lane, and this engine has not noticed.
            let text = "the peer replaced the lane by another lane";
            self.lane_lost(peer, older, Loss::of(Cause::Closed, text));
        }
        if self.lanes.attach(peer, Candidate { lane, slot, socket }) {
            self.answer_connects(peer);
        } else if dialed {
            let failure = Failure::new(Cause::System, "watching the socket");
            self.lane_not_opened(peer, &greeting, failure);
        }
    }

    /// Returns whether a lane with this greeting may be attached.
    pub(super) fn takes(&self, session: &PeerSession, greeting: &Greeting) -> bool {
        session.conn.is_some()
            && session.session_id == greeting.session_id
            && session.lane_numbers.is_free(greeting.lane)
            && self.lanes.takes(session.peer.handle, greeting.lane, greeting.slot)
    }
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
