//! Endpoints whose device is not through with them when they are closed. The control loop, which closes them, waits for
//! a moment only; the rest is the service's: it looks at them until what they owe is reaped, destroys them, and has
//! the control loop come for what they carried. Until then nothing of that is final, the peer is told of no end, its
//! keys stay held, and it is not quiet here.

use super::endpoint::Endpoint;
use super::service::Service;
use super::sessions::Sessions;
use crate::command::Command;
use crate::peer::{Closed, Posted};
use crate::schedule::Schedule;
use crate::sys::clock;
use crate::sys::lock::MutexGuard;
use crate::types::PeerId;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the control loop waits for the completions that queue pairs in error owe. Devices flush in microseconds.
const FLUSH_NOW: Duration = Duration::from_millis(2);
/// How long they may take in all. A queue pair that owes some yet is destroyed, which ends it, too.
const FLUSH_PATIENCE: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(1);

/// A lane: its peer, and its number.
type Key = (PeerId, u32);

struct Left {
    endpoint: Arc<Endpoint>,
    until: Instant,
    /// Somebody was told that it is gone soon.
    is_asked: bool,
}

pub struct Flushing {
    endpoints: BTreeMap<Key, Left>,
    /// When the service looks at them; not while who closes them does.
    times: Schedule<Instant, Key>,
    /// What those carried that are gone since.
    records: HashMap<Key, Vec<Posted>>,
    /// Regions whose keys a peer has let go of meanwhile: by peer.
    let_go: HashMap<PeerId, Vec<u64>>,
}

impl Flushing {
    pub fn new() -> Flushing {
        Flushing {
            endpoints: BTreeMap::new(),
            times: Schedule::new(),
            records: HashMap::new(),
            let_go: HashMap::new(),
        }
    }

    /// Whether some of this peer are not gone yet.
    pub fn has(&self, peer: PeerId) -> bool {
        self.endpoints.range((peer, 0)..=(peer, u32::MAX)).next().is_some()
    }

    /// What has become of a lane, if it was left here.
    pub fn ask(&mut self, peer: PeerId, lane: u32) -> Option<Closed> {
        if let Some(left) = self.endpoints.get_mut(&(peer, lane)) {
            left.is_asked = true;
            return Some(Closed::Soon);
        }
        self.records.remove(&(peer, lane)).map(Closed::Quiet)
    }

    pub fn next(&self) -> Option<Instant> {
        self.times.first()
    }

    /// The peer holds these keys no more, and endpoints through which it could use them go.
    pub fn let_go(&mut self, peer: PeerId, regions: &[u64]) {
        self.let_go.entry(peer).or_default().extend(regions);
    }

    /// These are being closed. To be called before nobody else knows of them.
    fn begin(&mut self, peer: PeerId, endpoints: &[Arc<Endpoint>]) {
        for endpoint in endpoints {
            let until = clock::now() + FLUSH_PATIENCE;
            let left = Left { endpoint: endpoint.clone(), until, is_asked: false };
            self.endpoints.insert((peer, endpoint.lane), left);
        }
    }

    fn take_due(&mut self, now: Instant) -> Vec<(Key, Arc<Endpoint>, bool)> {
        let due = self.times.take_due(now).into_iter();
        let left = due.filter_map(|key| self.endpoints.get(&key).map(|left| (key, left)));
        left.map(|(key, left)| (key, left.endpoint.clone(), left.until <= now)).collect()
    }
}

impl Service {
    /// Closes endpoints side by side, which have just been taken out of the sessions. What their devices are through
    /// with at once is over when this returns.
    pub(super) fn close(
        &self,
        mut sessions: MutexGuard<'_, Sessions>,
        peer: PeerId,
        endpoints: Vec<Arc<Endpoint>>,
    ) -> Vec<(u32, Closed)> {
        sessions.leaving.begin(peer, &endpoints);
        // Waited for once, for all that are late.
        let is_late = sessions.leaving.next().is_some();
        drop(sessions);
        endpoints.iter().for_each(|endpoint| endpoint.begin_close());
        let patience = clock::now() + if is_late { Duration::ZERO } else { FLUSH_NOW };
        let close = |endpoint: Arc<Endpoint>| {
            let key = (peer, endpoint.lane);
            if !endpoint.flush(patience) {
                self.lock().leaving.times.set(key, Some(clock::now() + LOOK));
                self.poller.wake();
                return (endpoint.lane, Closed::Soon);
            }
            let records = endpoint.end_close();
            let mut sessions = self.lock();
            match sessions.leaving.endpoints.remove(&key).is_some_and(|left| left.is_asked) {
                true => {
                    sessions.leaving.records.insert(key, records);
                    self.give_up(peer, endpoint.lane);
                    (endpoint.lane, Closed::Soon)
                }
                false => (endpoint.lane, Closed::Quiet(records)),
            }
        };
        let closed = endpoints.into_iter().map(close).collect();
        self.release_left(&mut self.lock(), peer);
        closed
    }

    /// Once no endpoint of the peer is left that was closed, keys that wait for that are released, whoever closed the
    /// last one; and all of them if its session is over.
    fn release_left(&self, sessions: &mut Sessions, peer: PeerId) {
        if sessions.leaving.has(peer) {
            return;
        }
        let let_go = sessions.leaving.let_go.remove(&peer).unwrap_or_default();
        self.key_holders.release(&let_go, peer);
        if !sessions.all.contains_key(&peer) {
            self.key_holders.release_all(peer);
            // After the records: what they belong to ends first.
            self.commands.push(Command::TransportQuiet { peer });
        }
    }

    /// Looks at those that were left, and ends those whose devices are through with them.
    pub(super) fn end_leaving(&self, now: Instant) {
        let due = self.lock().leaving.take_due(now);
        for ((peer, lane), endpoint, is_late) in due {
            if !endpoint.flush(now) && !endpoint.ends_late(is_late) {
                self.lock().leaving.times.set((peer, lane), Some(now + LOOK));
                continue;
            }
            let records = endpoint.end_close();
            let mut sessions = self.lock();
            sessions.leaving.endpoints.remove(&(peer, lane));
            sessions.leaving.records.insert((peer, lane), records);
            self.give_up(peer, lane);
            self.release_left(&mut sessions, peer);
        }
    }
}
