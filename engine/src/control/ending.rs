//! Ends lanes, connections and sessions: releases the records of closed lanes, handles broken connections, and
//! removes peers that are given up, closed or fenced. `session::machine` decides; `beginning` begins the sessions.

use super::beginning::Actions;
use super::conn::{ConnState, ControlConn};
use super::Control;
use crate::command::Reply;
use crate::complete::Fence;
use crate::loss::{Cause, Failure, Loss};
use crate::notify::EventBody;
use crate::peer::transport::Parting;
use crate::peer::{PeerState, Posted, What};
use crate::session::message::Message;
use crate::status::{Error, Status};
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::sys::fd::OwnedFd;
use crate::sys::lock::Mutex;
use crate::sys::poller::Interest;
use crate::types::{LaneId, PeerId, TransferId};
use std::os::fd::AsRawFd;
use std::sync::Arc;

pub(super) const PROCESS_ENDED: &str = "the peer's process has ended";

impl Control {
    pub(super) fn watch_process(&mut self, peer: PeerId, pidfd: OwnedFd) {
        let token = self.token();
        if self.poller.add(pidfd.as_raw_fd(), token, Interest { read: true, write: false }).is_err() {
            return;
        }
        if let Some(session) = self.sessions.get_mut(peer) {
            if let Some(old) = session.pidfd.replace(token) {
                self.forget_process(old);
            }
        }
        self.pidfds.insert(token, (pidfd, peer));
    }

    fn forget_process(&mut self, token: u64) {
        if let Some((pidfd, _)) = self.pidfds.remove(&token) {
            self.poller.remove(pidfd.as_raw_fd(), token);
        }
    }

    pub(super) fn process_ended(&mut self, token: u64) {
        let peer = self.pidfds.get(&token).map(|(_, peer)| *peer);
        self.forget_process(token);
        if let Some(peer) = peer {
            self.lose(peer, Status::PeerLost, Some(Fence::Dead), Loss::of(Cause::Ended, PROCESS_ENDED));
        }
    }

    /// Closes the lanes on which a struck transfer is still posted: its time to drain is over.
    pub(super) fn drain_over(&mut self, peer: PeerId, transfer: TransferId) {
        // A transfer whose submit failed is not in the table.
        let Some(transfer) = self.context.transfers.get(transfer).ok().filter(|it| !it.is_final()) else {
            return;
        };
        let handle = transfer.handle;
        for lane in self.lanes_carrying(peer, handle) {
            self.lane_lost(
                peer,
                lane,
                Loss::of(Cause::Ours, "a transfer that was stopped did not end in time"),
            );
        }
        if let Some(session) = self.sessions.get_mut(peer).filter(|_| !transfer.is_final()) {
            session.machine.drain_on(clock::monotonic_ns(), handle);
        }
    }

    /// Closes a lane of any transport and fences its records. Does nothing if the lane was closed before.
    pub(super) fn lane_lost(&mut self, peer: PeerId, lane: LaneId, loss: Loss) {
        let is_late = self.sessions.get(peer).is_some_and(|it| it.late_lanes.contains_key(&lane));
        if let Some(closed) = self.close_lane(peer, lane) {
            self.lane_closed(peer, lane, closed, loss);
            if is_late {
                return;
            }
            // The peer ends a lane when the lease of a frame is over. If the estimate of the peer's clock is early by
            // more than a lease, that happens to every lane, and no frame brings a sample: only a Pong does.
            self.ping(peer, None);
        }
    }

    pub(super) fn release(&mut self, handle: PeerId, records: Vec<Posted>, fence: Fence) {
        let Some(peer) = self.sessions.get(handle).map(|session| session.peer.clone()) else { return };
        let mut after = peer.after();
        // Back to front: slices that are queued again keep their order.
        for posted in records.into_iter().rev() {
            match posted.what {
                What::Slices { transfer, range, notified, .. } => {
                    peer.release_run(&transfer, range, notified, fence, &mut after)
                }
                What::Notify(transfer) => peer.release_notification(&transfer, &mut after),
                What::Skip(sequence) => peer.release_skip(sequence),
            }
        }
        drop(after);
        peer.post_all();
    }

    /// Closes a session's control connection and lanes. The machine goes to `Down`.
    pub(super) fn drop_connection(&mut self, peer: PeerId, loss: Loss) {
        let Some(session) = self.sessions.get_mut(peer) else { return };
        let Some(token) = session.conn.take() else { return };
        self.announcer.end(peer);
        session.machine.control_lost(clock::monotonic_ns());
        if !session.dial_at.is_empty() {
            session.machine.dial_too();
        }
        // A fence that was asked for on this connection is not answered any more.
        session.late_lanes.values_mut().for_each(|is_asked| *is_asked = false);
        session.peer.set_state(PeerState::Down);
        // A loss that this side caused is not reported: the application asked for it, or the connection is made anew
        // at once. The application does not know of a session that was never up.
        if session.was_up && loss.cause != Cause::Ours {
            let (status, os_error) = (loss.cause.status(), loss.os_error);
            session.peer.event(EventBody::PeerDown { status, os_error, why: loss.text.as_str().into() });
        }
        session.peer.note_loss(loss);
        self.context.stats.sessions_lost.fetch_add(1, Ordering::Relaxed);
        self.take(token);
        self.end_transports(peer);
        self.touch(peer);
    }

    /// Handles the end of a control connection.
    pub(super) fn control_ended(&mut self, mut control: ControlConn, failure: Failure) {
        let loss = control.loss(failure);
        match control.peer {
            Some(peer) => {
                drop(control);
                self.drop_connection(peer, loss);
            }
            None => {
                let status = match failure.status() {
                    Status::Corrupt => Status::Corrupt,
                    _ => Status::Unreachable,
                };
                let text = format!("the session ended before it began: {}", loss.text);
                let mut error = Error::new(status, text);
                error.os_error = loss.os_error;
                self.not_begun(&mut control, error);
            }
        }
    }

    /// Gives up a peer, for a reason known here. `fence`: the fence that holds for all its records, if known.
    pub(super) fn lose(&mut self, peer: PeerId, status: Status, fence: Option<Fence>, loss: Loss) {
        self.drop_connection(peer, loss);
        let mut actions = Actions::new();
        if let Some(session) = self.sessions.get_mut(peer) {
            session.ended = fence.map(|fence| (status, fence)).or(session.ended);
            session.machine.give_up(status, fence, &mut actions);
        }
        self.act(peer, actions);
    }

    pub(super) fn given_up(&mut self, handle: PeerId, status: Status) {
        let Some(session) = self.sessions.get_mut(handle) else { return };
        let peer = session.peer.clone();
        let conn = session.conn.take();
        self.announcer.end(handle);
        peer.set_lost(status);
        let (waiting, dial_at) = (std::mem::take(&mut session.waiting), session.dial_at.clone());
        for (_, _, reply) in session.probes.drain(..) {
            reply.send(Err(Error::new(status, "the peer is lost")));
        }
        if let Some(token) = session.pidfd.take() {
            self.forget_process(token);
        }
        if let Some(token) = conn {
            self.take(token);
        }
        self.sessions.disown(handle);
        self.end_transports(handle);
        let error = Error::new(status, "the peer was lost before its session was up");
        match status {
            Status::PeerLost => self.connect_again(waiting, dial_at, error),
            _ => self.dials.fail(waiting, &error),
        }
        // The sweep strikes the peer's transfers; then the application is told of the loss.
        self.sweeping.push_back(handle);
        self.report_lost(peer, status);
    }

    /// Fences a peer for the application. Replies when nothing of the peer can land here any more.
    pub(super) fn fence_peer(&mut self, peer: PeerId, reply: Reply<()>) {
        let mut fenced = vec![peer];
        if let Ok(known) = self.context.peers.get(peer) {
            // Contract 6: the incarnation is fenced. It may have connected anew since the handle's session ended.
            let theirs = (known.identity.engine_id, known.identity.incarnation);
            if let Err(full) = self.fenced.add(theirs) {
                return reply.send(Err(full));
            }
            let latest = self.sessions.of_engine(&theirs.0).filter(|latest| *latest != peer);
            let is_it = |latest: &PeerId| {
                self.sessions.get(*latest).is_some_and(|it| it.identity.incarnation == theirs.1)
            };
            fenced.extend(latest.filter(is_it));
            // A device may copy for an earlier session for long.
            fenced.extend(self.sessions.lost.draining_of(theirs).filter(|earlier| *earlier != peer));
        }
        // The last of them to be drained answers.
        let awaited = reply.with(|_| ());
        let reply = Arc::new(Mutex::new(Some(reply)));
        let answer = |reply: Arc<Mutex<Option<Reply<()>>>>, result| {
            if let Some(last) = Arc::into_inner(reply).and_then(|reply| reply.lock().take()) {
                last.send(result);
            }
        };
        for peer in fenced {
            if self.sessions.has(peer) {
                self.farewell(peer, Status::Refused, Loss::of(Cause::Ours, "the peer was fenced here"));
            }
            let reply = reply.clone();
            self.sessions.lost.answer_when_drained(peer, awaited.with(move |result| answer(reply, result)));
        }
        answer(reply, Ok(()));
    }

    pub(super) fn close_peer(&mut self, peer: PeerId, reply: Reply<()>) {
        if !self.sessions.has(peer) {
            return reply.send(Ok(()));
        }
        self.farewell(peer, Status::Closed, Loss::of(Cause::Ours, "the peer was closed here"));
        match self.sessions.get_mut(peer) {
            Some(session) => {
                session.closing.retain(Reply::is_awaited);
                session.closing.push(reply)
            }
            None => reply.send(Ok(())),
        }
        self.touch(peer);
    }

    /// Ends the session of a peer that violated the protocol. The peer is authenticated: connecting again would not
    /// help.
    pub(super) fn misbehaved(&mut self, peer: PeerId) {
        let text = "the peer sent a message that the protocol does not allow";
        self.farewell(peer, Status::Corrupt, Loss::of(Cause::Damaged, text));
    }

    /// Handles the peer's Bye. The peer closed its lanes before it sent the Bye, and its last acknowledgements have
    /// arrived: once the workers have received them, closing our lanes confirms everything.
    pub(super) fn bye(&mut self, peer: PeerId) {
        if self.lanes.part(peer, Parting::Receives) {
            let Some(session) = self.sessions.get_mut(peer) else { return };
            session.has_parted = true;
            // The peer sends nothing after its Bye. If it connects again meanwhile, this session ends at once.
            if let Some(token) = session.conn {
                self.take(token);
            }
            return self.touch(peer);
        }
        self.lose(
            peer,
            Status::PeerLost,
            Some(Fence::Confirmed),
            Loss::of(Cause::Closed, "the peer ended the session"),
        );
    }

    /// Handles a worker's report that the last bytes of a lane are sent or received, so that the lane can be closed.
    pub(super) fn lane_parted(&mut self, peer: PeerId, lane: LaneId) {
        let Some(session) = self.sessions.get(peer) else { return };
        if session.late_lanes.contains_key(&lane) {
            self.lane_lost(peer, lane, Loss::of(Cause::Ours, "the session is over"));
        }
        if !self.lanes.is_parting(peer) {
            self.end_parted(peer);
        }
    }

    /// Ends the session of a peer that has said Bye, if it has not ended yet.
    pub(super) fn end_parted(&mut self, peer: PeerId) {
        let session = self.sessions.get_mut(peer).filter(|session| session.has_parted);
        if session.map(|session| session.has_parted = false).is_some() {
            self.lose(
                peer,
                Status::PeerLost,
                Some(Fence::Confirmed),
                Loss::of(Cause::Closed, "the peer ended the session"),
            );
        }
    }

    /// Ends a session on purpose. The lanes are closed before the Bye is sent.
    pub(super) fn farewell(&mut self, peer: PeerId, status: Status, loss: Loss) {
        self.lanes.part(peer, Parting::Sends);
        if let Some(session) = self.sessions.get_mut(peer) {
            // No fence is asked for any more: the Bye confirms all lanes.
            session.machine.control_lost(clock::monotonic_ns());
        }
        // The peer takes a Bye as CONFIRMED, so the lanes must be closed before it is sent.
        self.end_transports(peer);
        let token = self.sessions.conn(peer);
        let conn = token.and_then(|token| Some((token, self.take(token)?.state)));
        self.lose(peer, status, None, loss);
        if let Some((token, ConnState::Control(control))) = conn {
            self.send_last(peer, token, control, Message::Bye { status: status as i32 });
        }
    }
}
