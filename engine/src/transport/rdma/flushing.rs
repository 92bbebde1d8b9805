//! Closed endpoints whose device has not flushed them yet. The control loop closes endpoints and waits only briefly.
//! The service checks the rest until their completions are reaped, destroys them, and asks the control loop to collect
//! their records. Until then no transfer on them is final, no fence is acknowledged, the peer's keys stay held, and
//! the peer is not quiet here.

use super::endpoint::Endpoint;
use super::service::RdmaService;
use super::sessions::Sessions;
use crate::command::Command;
use crate::peer::{Closed, Posted};
use crate::schedule::Schedule;
use crate::sys::clock;
use crate::sys::lock::MutexGuard;
use crate::sys::map::HashMap;
use crate::types::{LaneId, Monotonic, PeerId, RegionId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long the control loop waits for the completions that queue pairs in error owe. Devices flush in microseconds.
const FLUSH_NOW: Duration = Duration::from_millis(2);
/// How long flushing may take in all. Then the queue pairs are destroyed, which ends their work requests, too.
const FLUSH_PATIENCE: Duration = Duration::from_millis(500);
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A lane: its peer and its number.
type Key = (PeerId, LaneId);

struct Left {
    endpoint: Arc<Endpoint>,
    until: Monotonic,
    /// The control loop was told that the lane will be closed soon.
    is_asked: bool,
}

pub struct Flushing {
    endpoints: BTreeMap<Key, Left>,
    /// When the service checks each endpoint. Unset while the closing thread still waits for it.
    times: Schedule<Monotonic, Key>,
    /// Records of endpoints that have ended since, until the control loop collects them.
    records: HashMap<Key, Vec<Posted>>,
    /// Regions that a peer has given up meanwhile, by peer.
    let_go: HashMap<PeerId, Vec<RegionId>>,
}

impl Flushing {
    pub fn new() -> Flushing {
        Flushing {
            endpoints: BTreeMap::new(),
            times: Schedule::new(),
            records: HashMap::default(),
            let_go: HashMap::default(),
        }
    }

    /// True if closed endpoints of this peer still exist.
    pub fn has(&self, peer: PeerId) -> bool {
        self.left_of(peer).next().is_some()
    }

    /// Returns the closed endpoints of this peer that still exist.
    pub fn left_of(&self, peer: PeerId) -> impl Iterator<Item = LaneId> + '_ {
        let all = (peer, LaneId::NONE)..=(peer, LaneId::from_raw(u32::MAX));
        self.endpoints.range(all).map(|((_, lane), _)| *lane)
    }

    /// Returns the state of a lane that was left here: Soon, or Quiet with its records. None for any other lane.
    pub fn ask(&mut self, peer: PeerId, lane: LaneId) -> Option<Closed> {
        if let Some(left) = self.endpoints.get_mut(&(peer, lane)) {
            left.is_asked = true;
            return Some(Closed::Soon(Vec::new()));
        }
        self.records.remove(&(peer, lane)).map(Closed::Quiet)
    }

    pub fn next(&self) -> Option<Monotonic> {
        self.times.first()
    }

    /// Notes regions whose keys the peer has given up. Its closed endpoints could still use the keys.
    pub fn let_go(&mut self, peer: PeerId, regions: &[RegionId]) {
        self.let_go.entry(peer).or_default().extend(regions);
    }

    /// Enters endpoints that are being closed. Must be called before the sessions' lock is released.
    fn begin(&mut self, peer: PeerId, endpoints: &[Arc<Endpoint>]) {
        for endpoint in endpoints {
            let until = clock::monotonic_ns() + FLUSH_PATIENCE;
            let left = Left { endpoint: endpoint.clone(), until, is_asked: false };
            self.endpoints.insert((peer, endpoint.lane), left);
        }
    }

    fn take_due(&mut self, now: Monotonic) -> Vec<(Key, Arc<Endpoint>, bool)> {
        let due = self.times.take_due(now).into_iter();
        let left = due.filter_map(|key| self.endpoints.get(&key).map(|left| (key, left)));
        left.map(|(key, left)| (key, left.endpoint.clone(), left.until <= now)).collect()
    }
}

impl RdmaService {
    /// Closes endpoints that were just taken out of their session. Endpoints that flush quickly have ended when this
    /// returns.
    pub(super) fn close(
        &self,
        mut sessions: MutexGuard<'_, Sessions>,
        peer: PeerId,
        endpoints: Vec<Arc<Endpoint>>,
    ) -> Vec<(LaneId, Closed)> {
        sessions.flushing.begin(peer, &endpoints);
        // If other endpoints flush late already, don't wait again.
        let is_late = sessions.flushing.next().is_some();
        drop(sessions);
        endpoints.iter().for_each(|endpoint| endpoint.stop_posting());
        let patience = clock::monotonic_ns() + if is_late { Duration::ZERO } else { FLUSH_NOW };
        let close = |endpoint: Arc<Endpoint>| {
            let key = (peer, endpoint.lane);
            if !endpoint.flush(patience) {
                self.lock().flushing.times.set(key, Some(clock::monotonic_ns() + CHECK_INTERVAL));
                self.poller.wake();
                return (endpoint.lane, Closed::Soon(Vec::new()));
            }
            // Contract 3: a lane is Quiet only once its queue pairs are destroyed.
            let records = endpoint.end_close();
            let mut sessions = self.lock();
            if sessions.flushing.endpoints.remove(&key).is_some_and(|left| left.is_asked) {
                sessions.flushing.records.insert(key, records);
                self.give_up(peer, endpoint.lane);
                (endpoint.lane, Closed::Soon(Vec::new()))
            } else {
                (endpoint.lane, Closed::Quiet(records))
            }
        };
        let closed = endpoints.into_iter().map(close).collect();
        self.release_left(&mut self.lock(), peer);
        closed
    }

    /// Once the peer's last closed endpoint is gone, releases the keys that waited for that, and all of the peer's
    /// keys if its session has ended.
    fn release_left(&self, sessions: &mut Sessions, peer: PeerId) {
        if sessions.flushing.has(peer) {
            return;
        }
        let let_go = sessions.flushing.let_go.remove(&peer).unwrap_or_default();
        self.key_holders.release(&let_go, peer);
        if sessions.all.get(&peer).is_none() {
            self.key_holders.release_all(peer);
            // After the records: the transfers that they belong to end first.
            self.commands.push(Command::TransportQuiet { peer });
        }
    }

    /// Checks the endpoints that are due, and ends those that have flushed or whose time is over.
    pub(super) fn end_flushed(&self, now: Monotonic) {
        let due = self.lock().flushing.take_due(now);
        for ((peer, lane), endpoint, is_late) in due {
            if !endpoint.flush(now) && !endpoint.ends_late(is_late) {
                self.lock().flushing.times.set((peer, lane), Some(now + CHECK_INTERVAL));
                continue;
            }
            let records = endpoint.end_close();
            let mut sessions = self.lock();
            sessions.flushing.endpoints.remove(&(peer, lane));
            sessions.flushing.records.insert((peer, lane), records);
            self.give_up(peer, lane);
            self.release_left(&mut sessions, peer);
        }
    }
}
