//! Connects the transports to the sessions. A transport begins when a session's connection stands and ends with the
//! connection. `peer::TransportService` is the interface of a transport.

use super::announce;
use super::Control;
use crate::loss::{Cause, Loss};
use crate::notify::EventBody;
use crate::peer::transport::{ALL, EXPRESS};
use crate::peer::{Closed, PathStatus, Peer, TransportService};
use crate::route::FASTER;
use crate::status::{Result, Status};
use crate::types::{LaneId, PeerId, SessionId, TransferId, Transport};
use std::sync::Arc;

impl Control {
    pub(super) fn service(&self, transport: Transport) -> Option<&dyn TransportService> {
        if transport == Transport::Tcp {
            return Some(self.lanes.as_transport());
        }
        let beside = self.services.iter().find(|beside| beside.transport == transport)?;
        Some(&**beside.service.as_ref().ok()?)
    }

    pub(super) fn each_service(&self) -> impl Iterator<Item = (Transport, &dyn TransportService)> {
        self.services.iter().filter_map(|it| Some((it.transport, &**it.service.as_ref().ok()?)))
    }

    /// Returns every transport, TCP included.
    fn each_transport(&self) -> impl Iterator<Item = &dyn TransportService> {
        self.each_service().map(|(_, service)| service).chain([self.lanes.as_transport()])
    }

    /// Closes a lane of any transport. Returns None if no transport has the lane.
    pub(super) fn close_lane(&self, peer: PeerId, lane: LaneId) -> Option<Closed> {
        self.each_transport().find_map(|transport| transport.close_lane(peer, lane))
    }

    /// Prepares every transport for a new session, whose connection is authenticated.
    pub(super) fn prepare(&self) -> Result<()> {
        self.each_transport().try_for_each(|transport| transport.prepare())
    }

    /// Begins every transport for a session whose connection stands. If this engine lacks a transport, the peer is told
    /// not to wait for it.
    pub(super) fn begin_transports(&mut self, peer: PeerId, dialer: bool) {
        let Some(session) = self.sessions.get(peer) else { return };
        session.lane_numbers.begin(session.late_lanes.keys().copied());
        self.lanes.begin(session.session_info(dialer));
        for at in 0..self.services.len() {
            let Some(session) = self.sessions.get(peer) else { return };
            let beside = &self.services[at];
            match &beside.service {
                Ok(service) => service.begin(session.session_info(dialer)),
                Err(why) => {
                    let (transport, why) = (beside.transport, why.clone());
                    self.send(
                        peer,
                        announce::transport_message(transport, Vec::new(), format!("at the peer: {why}")),
                    );
                    self.path_settled(peer, transport, Some(why), false);
                }
            }
        }
    }

    /// Sends a transport's message to the peer, if the session is still the session that the message was meant for.
    pub(super) fn send_service_message(
        &mut self,
        peer: PeerId,
        session_id: SessionId,
        transport: Transport,
        body: Vec<u8>,
        why: String,
    ) {
        if self.sessions.is_current(peer, session_id) {
            self.queue_service_message(peer, transport, body, why);
        }
    }

    /// Passes a message of the peer's transport service to ours, or the peer's reason why no path is possible.
    pub(super) fn service_message(&mut self, peer: PeerId, transport: u8, why: String, body: Vec<u8>) {
        let Some(service) = self.service(Transport::from_number(transport as u32)) else { return };
        let taken = if why.is_empty() { service.message(peer, &body) } else { service.refused(peer, why) };
        if !taken {
            return self.misbehaved(peer);
        }
        // The service may have a timer now.
        self.touch(peer);
    }

    /// Lets a transport's service do what its path to the peer needs.
    pub(super) fn path_wants(&mut self, peer: PeerId, transport: Transport) {
        self.service(transport).into_iter().for_each(|service| service.wanted(peer));
        self.touch(peer);
    }

    /// Opens lanes before a transfer needs them, if TCP is the best path or may soon be.
    fn foresee_lanes(&mut self, peer: PeerId) {
        let Some(session) = self.sessions.get(peer).filter(|session| session.conn.is_some()) else { return };
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
        self.touch(peer);
    }

    /// Returns whether a transfer that is submitted now finds a faster path or the express lane, or may not use TCP.
    pub(super) fn has_lane_it_needs(&self, peer: PeerId) -> bool {
        let Some(session) = self.sessions.get(peer) else { return false };
        let is_faster = FASTER
            .iter()
            .any(|transport| matches!(session.peer.path_status(*transport), PathStatus::Open(..)));
        is_faster || !self.context.config.transports.allows(Transport::Tcp) || self.lanes.has_express(peer)
    }

    pub(super) fn path_settled(
        &mut self,
        peer: PeerId,
        transport: Transport,
        why: Option<String>,
        pending: bool,
    ) {
        let path = match (&why, self.service(transport)) {
            (None, Some(service)) => service.path(peer),
            _ => None,
        };
        let Some(session) = self.sessions.get_mut(peer).filter(|session| session.conn.is_some()) else {
            return;
        };
        session.paths_settled |= transport.bit();
        let object = session.peer.clone();
        object.set_path(
            transport,
            match (path, why) {
                (Some((path, how)), None) => PathStatus::Open(path, how),
                (_, Some(why)) if pending => PathStatus::Pending(why),
                (_, Some(why)) => PathStatus::Shut(why),
                // The path ended after it was reported; the report of its end follows.
                (None, None) => PathStatus::Pending("it has just ended".into()),
            },
        );
        self.foresee_lanes(peer);
        self.answer_connects(peer);
    }

    /// Handles a path that broke for an unknown reason. The session may be about to end, with the message of that end
    /// still in flight. So the peer is asked first. If it answers, the session is connected again, which makes a new
    /// path if possible (`path_mended`).
    pub(super) fn path_broken(&mut self, peer: PeerId, transport: Transport) {
        let Some(session) =
            self.sessions.get_mut(peer).filter(|session| session.paths_settled & transport.bit() != 0)
        else {
            return;
        };
        session.path_broken = true;
        let object = session.peer.clone();
        object.set_path(transport, PathStatus::Pending("it broke, and is being made again".into()));
        self.foresee_lanes(peer);
        self.ping(peer, None);
    }

    /// Connects the session again after a path broke: the peer has answered.
    pub(super) fn path_mended(&mut self, peer: PeerId) {
        if self.sessions.get(peer).is_some_and(|session| session.path_broken) {
            let text = "the session is connected anew, to make a broken path again";
            self.drop_connection(peer, Loss::of(Cause::Ours, text));
        }
    }

    /// Returns the lanes on which frames of this transfer are posted.
    pub(super) fn lanes_carrying(&self, peer: PeerId, transfer: TransferId) -> Vec<LaneId> {
        self.each_transport().flat_map(|transport| transport.lanes_carrying(peer, transfer)).collect()
    }

    /// Ends every path: the session is over, or its connection is lost.
    pub(super) fn end_transports(&mut self, peer: PeerId) {
        let Some(session) = self.sessions.get_mut(peer) else { return };
        session.paths_settled = 0;
        session.path_broken = false;
        let object = session.peer.clone();
        let mut lanes = Vec::new();
        for (transport, service) in self.each_service() {
            lanes.extend(service.end(peer));
            object.set_path(transport, PathStatus::Pending("the session is being established again".into()));
        }
        lanes.extend(self.lanes.end(peer));
        for (lane, closed) in lanes {
            self.lane_closed(peer, lane, closed, Loss::of(Cause::Ours, "the session's connection is over"));
        }
    }

    /// Reports a lost peer to the application as soon as nothing of the peer can land here any more.
    pub(super) fn report_lost(&mut self, peer: Arc<Peer>, why: Status) {
        let handle = peer.handle;
        for (transport, service) in self.each_service() {
            service.forget(handle);
            peer.set_path(transport, PathStatus::Shut("the peer is lost".into()));
        }
        self.lanes.forget(handle);
        self.sessions.lost.drain(peer, why);
        self.drained(handle);
    }

    /// Delivers the PeerLost event and the replies if the peer's transfers are struck and every transport is quiet.
    pub(super) fn drained(&mut self, peer: PeerId) {
        // The peer's transfers are struck first: their events come before the event of the loss.
        if self.sessions.lost.draining(peer).is_none_or(|draining| !draining.peer.is_swept()) {
            return;
        }
        if !self.each_transport().all(|transport| transport.is_quiet(peer)) {
            return;
        }
        let Some(draining) = self.sessions.lost.end_drain(peer) else { return };
        self.each_service().for_each(|(_, service)| service.all_quiet(peer));
        draining.peer.set_over();
        let loss = draining.peer.last_loss();
        let (os_error, why) = loss.map_or((0, String::new()), |loss| (loss.os_error, loss.text));
        draining.peer.event(EventBody::PeerLost { status: draining.why, os_error, why: why.into() });
        draining.waiting.into_iter().for_each(|reply| reply.send(Ok(())));
    }

    /// Returns the mask of all transports other than TCP, to compare with `paths_settled`.
    pub(super) fn services_mask(&self) -> u64 {
        self.services.iter().fold(0, |mask, beside| mask | beside.transport.bit())
    }
}

#[cfg(test)]
#[path = "transports_tests.rs"]
mod tests;
