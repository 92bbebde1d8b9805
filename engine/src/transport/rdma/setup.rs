//! How the two services make an endpoint: CONNECT, ACCEPT, a READ that comes back, ESTABLISHED (`session` has the
//! picture). Runs on the service's thread, and makes queue pairs under no lock.

use super::endpoint::{Endpoint, Parts};
use super::service::RdmaService;
use super::session::{EndpointStage, Entry, Pair, Session, PATIENCE};
use super::wire::{Message, Side};
use super::Usable;
use crate::peer::Closed;
use crate::status::reason;
use crate::sys::clock;
use crate::types::{LaneId, PeerId, SessionId};

impl RdmaService {
    fn make(&self, peer: PeerId, id: SessionId, (lane, pair, qps): (LaneId, Pair, u32)) -> Usable<Entry> {
        let device = self.devices.get(pair.0 as usize).ok_or("no such device")?.clone();
        device.address()?;
        let parts = self
            .with(peer, id, |session| {
                Some(Parts {
                    lane,
                    device: device.clone(),
                    remote: session.their_device(pair.1)?.clone(),
                    peer: session.session_info.peer.clone(),
                    keys: session.path.keys.clone(),
                    registry: self.registry.clone(),
                    commands: self.commands.clone(),
                    qps,
                })
            })
            .flatten()
            .ok_or("the device was not offered")?;
        let endpoint =
            Endpoint::new(parts).map_err(|error| format!("{}: {}", device.name(), reason(&error)))?;
        let own = endpoint.side(crate::sys::random_u64() as u32 & 0xff_ffff)?;
        Ok(Entry {
            endpoint,
            pair,
            own,
            stage: EndpointStage::Asked,
            deadline: clock::monotonic_ns() + PATIENCE,
        })
    }

    /// The dialer's first step: makes its end, and sends CONNECT.
    pub(super) fn ask(&self, peer: PeerId, id: SessionId, pair: Pair) {
        let Some(lane) = self.with(peer, id, |session| session.session_info.lane_numbers.draw()) else {
            return;
        };
        match self.make(peer, id, (lane, pair, self.settings.qps)) {
            Ok(entry) => {
                self.with(peer, id, |session| {
                    if !session.session_info.lane_numbers.take(lane) {
                        return session
                            .failed(pair, format!("the peer fenced lane {lane} before it was opened"));
                    }
                    let side = entry.own.clone();
                    self.send(session, &Message::Connect { lane, own: pair.0, other: pair.1, side });
                    session.add(lane, entry);
                });
            }
            Err(why) => drop(self.with(peer, id, |session| session.failed(pair, why))),
        }
    }

    /// The acceptor's step: makes and connects its end, and sends ACCEPT or REFUSE.
    pub(super) fn answer(&self, peer: PeerId, id: SessionId, lane: LaneId, pair: Pair, theirs: Side) {
        let admitted = self.with(peer, id, |session| session.admit(lane, &theirs, self.silence()));
        let Some(admitted) = admitted else { return };
        // Failures of pairs that can't exist are not kept: a peer could name 65,536 of them.
        let is_pair = |session: &Session| {
            usize::from(pair.0) < self.devices.len() && session.their_device(pair.1).is_some()
        };
        // As many bulk queue pairs as both ends want, and one express queue pair.
        let qps = self.settings.qps.min((theirs.qps.len() as u32).saturating_sub(1));
        let made = admitted.and_then(|()| self.make(peer, id, (lane, pair, qps)));
        let connected = made.and_then(|entry| {
            entry.endpoint.connect(&entry.own, &theirs)?;
            Ok(Entry {
                stage: EndpointStage::Answered,
                deadline: clock::monotonic_ns() + 2 * PATIENCE,
                ..entry
            })
        });
        self.with(peer, id, |session| match connected {
            Ok(entry) => {
                self.send(session, &Message::Accept { lane, side: entry.own.clone() });
                session.add(lane, entry);
            }
            Err(why) => {
                self.send(session, &Message::Refuse { lane, why: format!("at the peer: {why}") });
                if is_pair(session) {
                    session.failed(pair, why);
                }
            }
        });
    }

    /// The dialer's second step: connects its end, and probes whether the other end answers.
    pub(super) fn accepted(&self, peer: PeerId, id: SessionId, lane: LaneId, theirs: Side) {
        let found = self.with(peer, id, |session| {
            let entry = session.entries.get_mut(&lane).filter(|entry| entry.stage == EndpointStage::Asked)?;
            entry.stage = EndpointStage::Probing;
            entry.deadline = clock::monotonic_ns() + PATIENCE;
            Some((entry.endpoint.clone(), entry.own.clone()))
        });
        let Some((endpoint, own)) = found.flatten() else { return };
        match endpoint.connect(&own, &theirs) {
            Ok(()) => endpoint.probe(),
            Err(why) => self.close_quietly(peer, id, lane, &why),
        }
    }

    /// Closes an endpoint that never carried anything.
    pub(super) fn close_quietly(&self, peer: PeerId, id: SessionId, lane: LaneId, why: &str) {
        let mut sessions = self.lock();
        let session = sessions.all.get_mut(&peer).filter(|session| session.session_info.session_id == id);
        let unused = session
            .filter(|it| it.entries.get(&lane).is_some_and(|entry| entry.stage != EndpointStage::Open));
        let Some(endpoint) = unused.and_then(|session| session.take(lane, why)) else { return };
        if let Some((lane, Closed::Soon(_))) = self.close(sessions, peer, vec![endpoint]).pop() {
            self.give_up(peer, lane); // the control loop collects its records
        }
    }
}
