//! One peer as the service knows it: the devices it offered, the pairs of devices that have an endpoint and their
//! stages, and the regions it revokes. This file decides; `service` makes and closes endpoints.
//!
//! ```text
//! dialer    IDLE ─ CONNECT ─▶ ASKED ─ ACCEPT ─▶ PROBING ─ a READ came back ─▶ OPEN      ESTABLISHED ─▶
//! acceptor       CONNECT ─▶ ANSWERED ─ ESTABLISHED ─▶ OPEN
//! either         closed, refused or timed out ─▶ IDLE; the dialer tries again after a pause
//! ```
//! When neither side has posted anything for a while, both give up the endpoints (`idle`). New transfers then take
//! another path or wait until the dialer has made the endpoints again.

use super::device::Device;
use super::endpoint::Endpoint;
use super::path::RdmaPath;
use super::retries::Retries;
use super::topology::pair;
use super::wire::{DeviceOffer, Message, Side};
use super::Usable;
use crate::limits::{RDMA_ENDPOINTS_MAX, RDMA_MESSAGES_MAX, RDMA_REVOKES_MAX};
use crate::lists::take_where;
use crate::peer::SessionInfo;
use crate::sys::clock;
use crate::sys::map::HashMap;
use crate::types::{LaneId, Monotonic, RegionId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Time limit for one step of making an endpoint.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// A pair of devices: this engine's and the peer's, by number.
pub type Pair = (u8, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointStage {
    Asked,
    Probing,
    Answered,
    Open,
}

pub struct Entry {
    pub endpoint: Arc<Endpoint>,
    pub pair: Pair,
    pub own: Side,
    pub stage: EndpointStage,
    /// Applies to every stage except Open.
    pub deadline: Monotonic,
}

/// Regions that the peer revokes, each with a mark for every endpoint that may use their keys. Marks of one endpoint
/// never decrease, so an endpoint that has not passed its mark in the first entry has not passed any later one.
/// Entries are therefore answered in order, and only the first is checked, however many regions a peer revokes.
struct LettingGo<E>(VecDeque<(Vec<RegionId>, Marks<E>)>);

type Marks<E> = Vec<(E, u64)>;

impl<E> LettingGo<E> {
    /// Takes the leading entries whose marks every endpoint has passed.
    fn take(&mut self, is_past: impl Fn(&E, u64) -> bool) -> Vec<Vec<RegionId>> {
        let mut taken = Vec::new();
        while let Some((regions, marks)) = self.0.pop_front() {
            if !marks.iter().all(|(endpoint, mark)| is_past(endpoint, *mark)) {
                self.0.push_front((regions, marks));
                break;
            }
            taken.push(regions);
        }
        taken
    }
}

pub struct Session {
    pub session_info: SessionInfo,
    pub path: Arc<RdmaPath>,
    /// Messages from the peer that are not handled yet. `queue_message` bounds their number.
    pub inbox: VecDeque<Message>,
    /// The peer's devices, once the peer has offered them, and its reason why others are missing.
    theirs: Option<(Vec<DeviceOffer>, String)>,
    pub entries: HashMap<LaneId, Entry>,
    retries: Retries,
    /// The last error of each pair that was tried since the session began; empty if its endpoint opened.
    tried: HashMap<Pair, String>,
    /// Both sides know the result of the first attempts.
    pub is_settled: bool,
    begun: Monotonic,
    /// When the last endpoint was lost, if the peer had one.
    parted: Option<Monotonic>,
    /// How long to wait, from then on, for devices that are down.
    patience: Duration,
    /// Regions whose keys the peer was asked to give up, and when it was asked.
    pub asked: Vec<(Monotonic, RegionId)>,
    /// Regions that the peer revokes and that posted work may still use.
    acks: LettingGo<Arc<Endpoint>>,
    /// The sum of the endpoints' marks when it last changed, and the time of that change.
    posted: (u64, Monotonic),
    /// When the peer was last asked whether it is idle, too.
    idle_asked: Monotonic,
    /// The endpoints were given up, and are made again only when something is queued.
    given_up: bool,
}

impl Session {
    /// `parted`: when the last endpoint was lost, if an earlier session with this peer had one.
    pub fn new(
        session_info: SessionInfo,
        path: Arc<RdmaPath>,
        patience: Duration,
        parted: Option<Monotonic>,
    ) -> Session {
        Session {
            session_info,
            path,
            inbox: VecDeque::new(),
            theirs: None,
            entries: HashMap::default(),
            retries: Retries::default(),
            tried: HashMap::default(),
            is_settled: false,
            begun: clock::monotonic_ns(),
            parted,
            patience,
            asked: Vec::new(),
            acks: LettingGo(VecDeque::new()),
            posted: (0, clock::monotonic_ns()),
            idle_asked: clock::monotonic_ns(),
            given_up: false,
        }
    }

    /// Returns the regions whose keys the peer has kept for longer than `patience` since it was asked for them.
    pub fn overdue(&self, now: Monotonic, patience: Duration) -> Vec<RegionId> {
        let overdue = self.asked.iter().filter(|(since, _)| *since + patience <= now);
        overdue.map(|(_, region)| *region).collect()
    }

    /// Checks whether the peer may open an endpoint with this lane number, and takes the number. `patience`: as for
    /// `overdue`.
    pub fn admit(&self, lane: LaneId, theirs: &Side, patience: Duration) -> Usable<()> {
        if self.session_info.dialer || theirs.qps.len() < 2 {
            return Err("only the dialer asks for endpoints, and each has at least two queue pairs".into());
        }
        // This engine forgets the keys that the peer holds only when the peer has no endpoint left.
        if !self.overdue(clock::monotonic_ns(), patience).is_empty() {
            return Err("the peer keeps keys of regions that are being unregistered".into());
        }
        // Each endpoint costs queue pairs, and there are never more endpoints than pairs of devices.
        if self.entries.len() >= RDMA_ENDPOINTS_MAX {
            return Err(format!("there are {RDMA_ENDPOINTS_MAX} endpoints already, which is the most"));
        }
        if self.session_info.lane_numbers.take(lane) {
            Ok(())
        } else {
            Err(format!("lane {lane} was taken or fenced before"))
        }
    }

    /// True if nothing was posted here for `period`. Zero means never.
    pub fn note_idle(&mut self, now: Monotonic, period: Duration) -> bool {
        let posted = self.entries.values().map(|entry| entry.endpoint.mark()).sum();
        if posted != self.posted.0 {
            self.posted = (posted, now);
        }
        !period.is_zero() && !self.entries.is_empty() && self.posted.1 + period <= now
    }

    /// True if the dialer is to ask the peer whether it is idle, too. At most once per period.
    pub fn ask_idle(&mut self, now: Monotonic, period: Duration) -> bool {
        if !self.session_info.dialer || now < self.idle_asked + period {
            return false;
        }
        self.idle_asked = now;
        self.note_idle(now, period)
    }

    /// Marks the endpoints as given up until something is queued, and returns their lanes.
    pub fn give_up_idle(&mut self) -> Vec<LaneId> {
        self.given_up = true;
        self.retries.stop();
        self.path.note_given_up();
        self.entries.keys().copied().collect()
    }

    /// Asks for endpoints again. Returns true if they had been given up.
    pub fn wake(&mut self, ours: &[Arc<Device>]) -> bool {
        let were_given_up = std::mem::take(&mut self.given_up);
        if were_given_up {
            self.plan(ours);
        }
        were_given_up
    }

    /// True if something is queued while the endpoints are given up.
    pub fn is_wanted(&self) -> bool {
        self.given_up && self.path.is_wanted()
    }

    pub fn their_device(&self, index: u8) -> Option<&DeviceOffer> {
        self.theirs.as_ref()?.0.iter().find(|device| device.index == index)
    }

    /// Takes in the peer's new devices, and plans pairs anew. Returns the lanes whose device is gone.
    pub fn offered(&mut self, devices: Vec<DeviceOffer>, why: String, ours: &[Arc<Device>]) -> Vec<LaneId> {
        self.theirs = Some((devices, why));
        self.plan(ours);
        let gone = self.entries.iter().filter(|(_, entry)| self.their_device(entry.pair.1).is_none());
        gone.map(|(lane, _)| *lane).collect()
    }

    /// Decides which pairs there should be. Pairs without an endpoint are tried at once.
    pub fn plan(&mut self, ours: &[Arc<Device>]) {
        let Some((theirs, _)) = self.theirs.as_ref().filter(|_| self.session_info.dialer) else { return };
        let ours: Vec<DeviceOffer> = ours.iter().filter_map(|device| device.offer().ok()).collect();
        let wanted: Vec<Pair> =
            pair(&ours, theirs).into_iter().map(|(a, b)| (ours[a].index, theirs[b].index)).collect();
        let now = clock::monotonic_ns();
        self.retries.keep(&wanted);
        for pair in wanted.into_iter().filter(|_| !self.given_up) {
            if !self.entries.values().any(|entry| entry.pair == pair) {
                self.retries.now(pair, now);
            }
        }
    }

    /// Returns the pairs that are due to be tried.
    pub fn due(&self, now: Monotonic) -> Vec<Pair> {
        self.retries.due(now)
    }

    /// Adds an endpoint whose pair is being tried; `opened` or `failed` reports the result.
    pub fn add(&mut self, lane: LaneId, entry: Entry) {
        self.retries.begun(entry.pair);
        self.entries.insert(lane, entry);
    }

    /// Records a failed attempt, and schedules the next one.
    pub fn failed(&mut self, pair: Pair, why: String) {
        self.tried.insert(pair, why);
        if self.session_info.dialer && !self.given_up {
            self.retries.failed(pair, clock::monotonic_ns());
        }
    }

    /// Takes an endpoint out. The caller closes it.
    pub fn take(&mut self, lane: LaneId, why: &str) -> Option<Arc<Endpoint>> {
        let entry = self.entries.remove(&lane)?;
        self.failed(entry.pair, why.into());
        self.publish();
        Some(entry.endpoint)
    }

    pub fn take_all(&mut self) -> Vec<Arc<Endpoint>> {
        self.path.set(Vec::new());
        self.entries.drain().map(|(_, entry)| entry.endpoint).collect()
    }

    /// Opens an endpoint that works both ways. Ignored if the lane is not at this `stage`. An acceptor learns by this
    /// that the endpoints are wanted again.
    pub fn opened(&mut self, lane: LaneId, stage: EndpointStage) {
        if let Some(entry) = self.entries.get_mut(&lane).filter(|entry| entry.stage == stage) {
            entry.stage = EndpointStage::Open;
            self.given_up &= self.session_info.dialer;
            self.tried.insert(entry.pair, String::new());
            self.retries.opened(entry.pair);
        }
        self.publish();
    }

    /// Gives the path the open endpoints, in the order of this engine's devices.
    fn publish(&mut self) {
        let mut open: Vec<(u8, Arc<Endpoint>)> = self
            .entries
            .values()
            .filter(|entry| entry.stage == EndpointStage::Open)
            .map(|entry| (entry.pair.0, entry.endpoint.clone()))
            .collect();
        open.sort_by_key(|(device, _)| *device);
        self.parted = if open.is_empty() {
            self.parted.or_else(|| (!self.path.endpoints().is_empty()).then(clock::monotonic_ns))
        } else {
            None
        };
        self.path.set(open.into_iter().map(|(_, endpoint)| endpoint).collect());
    }

    /// Returns when the last endpoint was lost: now, if the session ends while endpoints are open or given up as idle.
    pub fn parted(&self) -> Option<Monotonic> {
        let open = self.given_up || self.entries.values().any(|entry| entry.stage == EndpointStage::Open);
        if open {
            Some(clock::monotonic_ns())
        } else {
            self.parted
        }
    }

    /// True if the dialer has tried each pair, so that both sides may proceed with the endpoints that exist.
    pub fn is_tried(&self) -> bool {
        let tried = |pair: &Pair| self.tried.contains_key(pair);
        self.session_info.dialer
            && self.theirs.is_some()
            && self.retries.pairs().all(tried)
            && self.entries.values().all(|entry| entry.stage == EndpointStage::Open || tried(&entry.pair))
    }

    /// Returns true, once, when devices that are down have been waited for long enough.
    pub fn give_up_parted(&mut self, now: Monotonic) -> bool {
        self.parted.take_if(|since| *since + self.patience <= now).is_some()
    }

    /// Returns why there is no endpoint, and whether there may be one soon; None if there is one.
    pub fn why_not(&self, ours: &[Arc<Device>]) -> Option<(String, bool)> {
        if self.entries.values().any(|entry| entry.stage == EndpointStage::Open) {
            return None;
        }
        let usable = ours.iter().any(|device| device.is_up());
        if !usable {
            let whys = ours.iter().filter_map(|device| device.address().err().map(String::from));
            return Some((whys.collect::<Vec<_>>().join("; "), self.parted.is_some()));
        }
        match &self.theirs {
            None => Some(("the peer has not announced its RDMA devices yet".into(), true)),
            Some((devices, why)) if devices.is_empty() => {
                Some((format!("at the peer: {why}"), self.parted.is_some()))
            }
            Some(_) if self.given_up => None,
            Some(_) => {
                let mut whys: Vec<&str> = self.tried.values().map(String::as_str).collect();
                whys.retain(|why| !why.is_empty());
                whys.sort_unstable();
                whys.dedup();
                Some((format!("no endpoint: {}", whys.join("; ")), true))
            }
        }
    }

    /// Describes the path for a person.
    pub fn how(&self) -> String {
        let open = self.entries.values().filter(|entry| entry.stage == EndpointStage::Open);
        if self.given_up {
            return "idle, made again when something is queued".into();
        }
        let mut names: Vec<String> = open
            .map(|entry| format!("{} to {}", entry.endpoint.device.name(), entry.endpoint.remote.name))
            .collect();
        names.sort_unstable();
        names.join(", ")
    }

    /// Queues a message. Returns false if too many messages from the peer are queued.
    pub fn queue_message(&mut self, message: Message) -> bool {
        self.inbox.push_back(message);
        self.inbox.len() <= RDMA_MESSAGES_MAX
    }

    /// Removes the regions that the peer was asked for, and returns them. The peer may still hold keys of any others.
    pub fn let_go(&mut self, regions: &[RegionId]) -> Vec<RegionId> {
        let answered = take_where(&mut self.asked, |(_, region)| regions.contains(region));
        answered.into_iter().map(|(_, region)| region).collect()
    }

    /// Removes the keys of regions that the peer revokes. Returns false if the peer revokes more than it can have.
    pub fn revoked(&mut self, regions: Vec<RegionId>) -> bool {
        self.path.remove_keys(&regions);
        // Taking the mark waits for a thread that is posting with these keys.
        let marks = self.entries.values().map(|entry| (entry.endpoint.clone(), entry.endpoint.mark()));
        self.acks.0.push_back((regions, marks.collect()));
        self.acks.0.len() <= RDMA_REVOKES_MAX
    }

    /// Returns the revoked regions that no posted work uses any more.
    pub fn take_acks(&mut self) -> Vec<Vec<RegionId>> {
        self.acks.take(|endpoint, mark| endpoint.is_past(mark))
    }

    /// Returns when to check this session again if no message arrives. `silence`: how long a peer may keep keys after
    /// it was asked for them. `idle`: how long unused endpoints are kept; zero means for ever.
    pub fn next_due(&self, now: Monotonic, silence: Duration, idle: Duration) -> Option<Monotonic> {
        if self.is_wanted() {
            return Some(now);
        }
        let asks = self.session_info.dialer && !idle.is_zero() && !self.entries.is_empty();
        let idle = asks.then_some(self.idle_asked + idle);
        let soon = now + Duration::from_millis(1);
        let probing = self.entries.values().any(|entry| entry.stage == EndpointStage::Probing);
        let acks = (probing || !self.acks.0.is_empty()).then_some(soon);
        let stages = self.entries.values().filter(|entry| entry.stage != EndpointStage::Open);
        let stages = stages.map(|entry| entry.deadline);
        let retries = self.retries.next();
        let asked = self.asked.iter().map(|(since, _)| *since + silence);
        let parted = self.parted.map(|since| since + self.patience);
        let settle = (!self.is_settled).then_some(self.begun + 2 * PATIENCE);
        acks.into_iter()
            .chain(idle)
            .chain(stages)
            .chain(retries)
            .chain(asked)
            .chain(parted)
            .chain(settle)
            .min()
    }

    /// True if the first attempts have taken too long, at either side.
    pub fn is_late(&self, now: Monotonic) -> bool {
        !self.is_settled && now >= self.begun + 2 * PATIENCE
    }

    /// Returns the lanes that did not reach their next stage in time.
    pub fn stuck(&self, now: Monotonic) -> Vec<LaneId> {
        let late = |entry: &Entry| entry.stage != EndpointStage::Open && entry.deadline <= now;
        self.entries.iter().filter(|(_, entry)| late(entry)).map(|(lane, _)| *lane).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Tag;
    use crate::peer::tests::{peer_with, session_with};
    use crate::region::Registry;
    use std::cell::Cell;

    /// A session with no endpoints. It needs no device.
    fn session(dialer: bool) -> Session {
        let peer = peer_with(7);
        let registry = Arc::new(Registry::new(Tag::from_random(1), None));
        let path = Arc::new(RdmaPath::new(peer.clone(), registry, 0, Box::new(|| {})));
        Session::new(session_with(peer, dialer), path, PATIENCE, None)
    }

    #[test]
    fn messages_that_are_not_handled_yet_are_bounded() {
        let mut session = session(false);
        assert!((0..RDMA_MESSAGES_MAX).all(|_| session.queue_message(Message::Idle)));
        assert!(!session.queue_message(Message::Idle), "one more than can wait");
        session.inbox.clear();
        assert!(session.queue_message(Message::Idle), "they were looked at");
    }

    #[test]
    fn a_peer_that_keeps_keys_for_too_long_gets_no_endpoint() {
        let mut session = session(false);
        let theirs = Side { mtu: 1024, reads_max: 1, qps: vec![(1, 1), (2, 2)] };
        let patience = Duration::from_secs(1);
        session.asked.push((clock::monotonic_ns(), RegionId::from_raw(1)));
        assert_eq!(session.admit(LaneId::from_raw(1), &theirs, patience), Ok(()));
        assert!(session.admit(LaneId::from_raw(2), &theirs, Duration::ZERO).is_err());
        session.asked.clear();
        assert_eq!(session.admit(LaneId::from_raw(2), &theirs, Duration::ZERO), Ok(()));
    }

    #[test]
    fn regions_that_a_peer_takes_back_are_bounded() {
        let mut session = session(false);
        assert!((0..RDMA_REVOKES_MAX as u64).all(|region| session.revoked(vec![RegionId::from_raw(region)])));
        assert!(!session.revoked(vec![RegionId::from_raw(0)]), "one more than can wait");
        assert_eq!(session.take_acks().len(), RDMA_REVOKES_MAX + 1);
        assert!(session.revoked(vec![RegionId::from_raw(0)]), "they were answered");
    }

    /// While the endpoints are given up no pair is tried, not even one whose last attempt failed. A pair that is
    /// due and not tried would be due at once, again and again.
    #[test]
    fn no_pair_is_due_while_the_endpoints_are_given_up() {
        let mut session = session(true);
        session.failed((0, 0), "it did not answer".into());
        let later = clock::monotonic_ns() + 2 * PATIENCE;
        assert_eq!(session.due(later), [(0, 0)]);
        session.give_up_idle();
        session.failed((0, 1), "the device is down".into());
        assert_eq!(session.due(later), []);
    }

    /// While one endpoint makes no progress, each call checks only the first entry, however many regions a peer
    /// revokes.
    #[test]
    fn what_is_let_go_of_is_answered_in_order_and_looked_at_once() {
        let mut acks = LettingGo(VecDeque::new());
        (0..RDMA_REVOKES_MAX as u64)
            .for_each(|at| acks.0.push_back((vec![RegionId::from_raw(at)], vec![(0, at), (1, at)])));
        let checks = Cell::new(0);
        let mut take = |past: [u64; 2]| {
            checks.set(0);
            let taken = acks.take(|endpoint: &usize, mark| {
                checks.set(checks.get() + 1);
                past[*endpoint] > mark
            });
            taken.concat()
        };
        assert_eq!(take([9000, 0]), []);
        assert_eq!(checks.get(), 2);
        assert_eq!(take([9000, 3]), [0, 1, 2].map(RegionId::from_raw));
        assert_eq!(checks.get(), 8);
        assert_eq!(take([9000, 9000]).len(), 8997);
    }
}
