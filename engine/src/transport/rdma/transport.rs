//! The service's interface to the control loop: begins and ends sessions, takes messages and regions, closes lanes.

use super::path::RdmaPath;
use super::service::RdmaService;
use super::session::Session;
use super::wire::Message;
use crate::peer::{Closed, Path, SessionInfo, TransportService};
use crate::types::{LaneId, PeerId, RegionId, TransferId};
use std::sync::Arc;

impl TransportService for RdmaService {
    fn start(self: Arc<Self>) -> crate::status::Result<()> {
        RdmaService::start(&self)
    }

    fn stop(&self) {
        RdmaService::stop(self);
    }

    fn begin(&self, session_info: SessionInfo) {
        let peer = session_info.peer.handle;
        let (poller, wanted) = (self.poller.clone(), self.wanted.clone());
        let call = Box::new(move || {
            wanted.lock().push(peer);
            poller.wake();
        });
        let path =
            RdmaPath::new(session_info.peer.clone(), self.registry.clone(), self.settings.spin_ns, call);
        let mut sessions = self.lock();
        let parted = sessions.parted.remove(&peer);
        let session = Session::new(session_info, Arc::new(path), self.settings.patience, parted);
        // The control loop asks for the regions' keys in turns, and sends this offer after them, so that the peer has
        // the keys before an endpoint exists.
        self.send(&session, &self.offer());
        sessions.all.begin(peer, session);
        drop(sessions);
        self.poller.wake();
    }

    fn message(&self, peer: PeerId, body: &[u8]) -> bool {
        let Ok(message) = Message::decode(body) else { return false };
        let mut sessions = self.lock();
        let Some(session) = sessions.all.get_mut(&peer) else { return true };
        let taken = match message {
            // Take keys in before the next message is read: that message may announce the region to submitters.
            Message::Keys(keys) => {
                session.path.add_keys(keys);
                return true;
            }
            Message::Revoke(regions) => session.revoked(regions),
            message => session.queue_message(message),
        };
        sessions.all.changed(peer);
        drop(sessions);
        self.poller.wake();
        taken
    }

    fn refused(&self, peer: PeerId, why: String) -> bool {
        let mut sessions = self.lock();
        let Some(session) = sessions.all.get_mut(&peer) else { return true };
        let taken = session.queue_message(Message::Offer { devices: Vec::new(), why });
        sessions.all.changed(peer);
        drop(sessions);
        self.poller.wake();
        taken
    }

    fn path(&self, peer: PeerId) -> Option<(Arc<dyn Path>, String)> {
        let sessions = self.lock();
        let session = sessions.all.get(&peer)?;
        session.why_not(&self.devices).is_none().then(|| {
            let path: Arc<dyn Path> = session.path.clone();
            (path, session.how())
        })
    }

    fn regions_added(&self, peer: PeerId, ids: &[RegionId]) -> Vec<Vec<u8>> {
        // Sessions begin and end on the calling thread, so a region revoked meanwhile finds the session to ask.
        if self.lock().all.get(&peer).is_none() {
            return Vec::new();
        }
        let map = self.registry.snapshot();
        let regions = ids.iter().filter_map(|id| map.get(*id));
        regions.flat_map(|region| self.keys_of(region, peer)).map(|message| message.encode()).collect()
    }

    fn lanes_carrying(&self, peer: PeerId, transfer: TransferId) -> Vec<LaneId> {
        let sessions = self.lock();
        let Some(session) = sessions.all.get(&peer) else { return Vec::new() };
        let carrying = session.entries.iter().filter(|(_, entry)| entry.endpoint.carries(transfer));
        carrying.map(|(lane, _)| *lane).collect()
    }

    fn close_lane(&self, peer: PeerId, lane: LaneId) -> Option<Closed> {
        let mut sessions = self.lock();
        if let Some(closed) = sessions.flushing.ask(peer, lane) {
            return Some(closed);
        }
        let session = sessions.all.get_mut(&peer)?;
        let why = session.entries.get(&lane)?.endpoint.why().to_owned();
        let endpoint = session.take(lane, &why)?;
        sessions.all.changed(peer);
        // The device may be at fault. The service checks its port, and tells all peers if the port is down.
        sessions.suspected.insert(endpoint.device.index);
        let closed = self.close(sessions, peer, vec![endpoint]).pop().map(|(_, closed)| closed);
        self.report_state(peer);
        self.poller.wake();
        closed
    }

    fn end(&self, peer: PeerId) -> Vec<(LaneId, Closed)> {
        let mut sessions = self.lock();
        let Some(mut session) = sessions.all.end(peer) else { return Vec::new() };
        // If the peer returns, its next session continues this wait for endpoints.
        if let Some(since) = session.parted() {
            sessions.parted.insert(peer, since);
        }
        self.close(sessions, peer, session.take_all())
    }

    fn forget(&self, peer: PeerId) {
        self.lock().parted.remove(&peer);
    }

    /// The peer is quiet once the queue pairs of all its endpoints are destroyed.
    fn is_quiet(&self, peer: PeerId) -> bool {
        !self.lock().flushing.has(peer)
    }

    fn unrest(&self, peer: PeerId) -> Option<String> {
        let left = self.lock().flushing.left_of(peer).count();
        (left > 0).then(|| format!("{left} of its RDMA endpoints are not destroyed yet"))
    }
}
