//! Late lanes: lanes that were closed while their devices, or threads of this process, may still access memory. Until
//! they have finished, the peer is not told that such a lane is closed: the answer to its fence waits, and so do the
//! Ready, which confirms all lanes of earlier connections, and the Bye that ends the session. The session is not
//! removed before.

use super::conn::{ConnState, ControlConn};
use super::Control;
use crate::limits::{CONTROL_TURN_BYTES, FAREWELL_NS};
use crate::loss::Loss;
use crate::peer::Closed;
use crate::session::message::Message;
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::sys::stream::Input;
use crate::types::{LaneId, Monotonic, PeerId};
use std::time::Duration;

impl Control {
    /// Handles a lane that is closed, or becomes late because its device may still access memory.
    pub(super) fn lane_closed(&mut self, peer: PeerId, lane: LaneId, closed: Closed, loss: Loss) {
        let Some(session) = self.sessions.get(peer) else { return };
        let was_late = session.late_lanes.contains_key(&lane);
        // The first close recorded the reason.
        if !was_late {
            self.context.stats.lanes_lost.fetch_add(1, Ordering::Relaxed);
            session.peer.note_loss(loss);
        }
        let (records, is_asked) = match closed {
            Closed::Quiet(records) => (records, self.sessions.remove_late(peer, lane)),
            Closed::Soon(records) => {
                self.sessions.add_late(peer, lane);
                if records.is_empty() {
                    return;
                }
                (records, None)
            }
        };
        let Some(session) = self.sessions.get_mut(peer) else { return };
        let mut actions = Vec::new();
        session.machine.lane_lost(clock::monotonic_ns(), lane, records, &mut actions);
        let ended = session.ended.filter(|_| session.machine.is_given_up());
        if let Some((status, fence)) = ended.filter(|_| was_late) {
            // The fence of the session's other lanes holds for this lane too.
            session.machine.give_up(status, Some(fence), &mut actions);
        }
        if let Some(is_asked) = is_asked {
            self.late_lane_closed(peer, lane, is_asked);
        }
        self.act(peer, actions);
    }

    fn late_lane_closed(&mut self, peer: PeerId, lane: LaneId, is_asked: bool) {
        let Some(session) = self.sessions.get(peer) else { return };
        let (engine, is_last) = (session.identity.engine_id, session.late_lanes.is_empty());
        if is_asked {
            self.answer(peer, Message::FenceAck { lane });
        }
        if is_last {
            self.part(peer);
        }
        self.drained(peer);
        if let Some(current) = self.sessions.of_engine(&engine).filter(|_| !self.sessions.has_late(&engine)) {
            self.announcer.queue(current);
        }
    }

    /// Returns true if the peer's fence of this lane is answered later, because the lane is late.
    pub(super) fn answers_late(&mut self, peer: PeerId, lane: LaneId) -> bool {
        let late = self.sessions.get_mut(peer).and_then(|session| session.late_lanes.get_mut(&lane));
        late.map(|is_asked| *is_asked = true).is_some()
    }

    /// Sends the last message of a session that is over, now or when all its lanes are closed.
    pub(super) fn send_last(
        &mut self,
        peer: PeerId,
        token: u64,
        control: Box<ControlConn>,
        message: Message,
    ) {
        let is_late = self.sessions.get(peer).is_some_and(|session| !session.late_lanes.is_empty());
        let deadline = Some(self.handshake_deadline());
        self.insert(token, ConnState::Parting(control), deadline);
        self.partings.insert(peer, (token, message));
        if !is_late {
            self.part(peer);
        }
    }

    fn part(&mut self, peer: PeerId) {
        let Some((token, message)) = self.partings.remove(&peer) else { return };
        let Some(ConnState::Parting(mut control)) = self.take(token).map(|conn| conn.state) else { return };
        // On failure the connection just ends.
        if control.channel.seal(&message.encode(), control.stream.out()).is_ok() {
            let deadline = Some(clock::monotonic_ns() + Duration::from_nanos(FAREWELL_NS));
            self.ending(token, control.stream, false, deadline);
        }
    }

    /// Reads and discards input of a connection on which only the Bye is still to be sent.
    pub(super) fn parting(&mut self, token: u64, mut control: Box<ControlConn>, deadline: Option<Monotonic>) {
        let stands = control.stream.flush().is_ok();
        if let (true, Ok(Input::Bytes(_) | Input::Nothing)) =
            (stands, control.stream.read(CONTROL_TURN_BYTES))
        {
            self.insert(token, ConnState::Parting(control), deadline);
        }
    }
}

#[cfg(test)]
#[path = "late_lanes_tests.rs"]
mod tests;
