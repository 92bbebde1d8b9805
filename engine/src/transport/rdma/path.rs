//! The endpoints of a peer as one path. One thread at a time dispatches: each chain goes to the endpoint with room
//! that is expected to finish it first, with a penalty for devices far from the memory. A large transfer therefore
//! spreads over all devices in proportion to their speed, and a device that fails gets nothing more.

use super::endpoint::Endpoint;
use super::keys::{Keys, RegionKeys};
use super::locality::DETOUR_UNIT;
use super::memory::Pinned;
use super::wire::KeysOffer;
use crate::complete::Transfer;
use crate::notify::is_waking;
use crate::peer::outbox::Class;
use crate::peer::{After, Condition, Path, Peer};
use crate::region::{Region, Registry, RemoteMap};
use crate::sys::atomic::{AtomicBool, Ordering};
use crate::sys::clock;
use crate::sys::lock::{Mutex, RwLock};
use crate::sys::pause;
use crate::types::{Monotonic, Range, RegionId, Slice, Transport};
use std::sync::Arc;

/// Polls of the completion queues between two readings of the clock.
const CLOCK_ROUNDS: u32 = 8;
/// Chains that one thread posts before it checks whether another thread can continue.
const TURN_CHAINS: usize = 16;

pub struct RdmaPath {
    peer: Arc<Peer>,
    registry: Arc<Registry>,
    pub keys: Arc<Keys>,
    endpoints: RwLock<Arc<Vec<Arc<Endpoint>>>>,
    dispatch: Mutex<()>,
    /// Something was queued since the dispatcher last looked. Set before trying the lock, cleared under it.
    wanted: AtomicBool,
    /// The endpoints were given up because they were idle, and nothing has been queued since.
    given_up: AtomicBool,
    /// Wakes the service's thread, which then makes the endpoints again.
    call: Box<dyn Fn() + Send + Sync>,
    spin_ns: u64,
}

impl RdmaPath {
    pub fn new(
        peer: Arc<Peer>,
        registry: Arc<Registry>,
        spin_ns: u64,
        call: Box<dyn Fn() + Send + Sync>,
    ) -> RdmaPath {
        RdmaPath {
            peer,
            registry,
            keys: Arc::default(),
            endpoints: RwLock::default(),
            dispatch: Mutex::new(()),
            wanted: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            call,
            spin_ns,
        }
    }

    /// Notes that the endpoints were given up. The service makes them again when something is queued.
    pub fn note_given_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
        self.peer.note_change();
    }

    /// True unless the endpoints were given up and nothing has been queued since.
    pub fn is_wanted(&self) -> bool {
        !self.given_up.load(Ordering::SeqCst)
    }

    /// Asks the service for endpoints if they were given up.
    fn want(&self) {
        if self.given_up.swap(false, Ordering::SeqCst) {
            self.peer.note_change();
            (self.call)();
        }
    }

    /// Adds keys. The keys decide which requests the path can carry.
    pub fn add_keys(&self, keys: KeysOffer) {
        self.keys.add(keys);
        self.peer.note_change();
    }

    pub fn remove_keys(&self, regions: &[RegionId]) {
        self.keys.remove(regions);
        self.peer.note_change();
    }

    pub fn endpoints(&self) -> Arc<Vec<Arc<Endpoint>>> {
        Arc::clone(&self.endpoints.read())
    }

    pub fn set(&self, endpoints: Vec<Arc<Endpoint>>) {
        *self.endpoints.write() = Arc::new(endpoints);
        self.peer.note_change();
    }

    /// Posts queued work while there is room. Returns at once if another thread is posting: that thread sees `wanted`.
    pub fn pump(&self, after: &mut After) {
        self.wanted.store(true, Ordering::SeqCst);
        let mut chains = 0;
        while self.wanted.load(Ordering::SeqCst) {
            let Some(turn) = self.dispatch.try_lock() else { return };
            self.wanted.store(false, Ordering::SeqCst);
            let endpoints = self.endpoints();
            if endpoints.is_empty() && [true, false].iter().any(|it| self.peer.has_work(Transport::Rdma, *it))
            {
                self.want();
            }
            // A caller that posts repeatedly settles its earlier chains here, so that no thread must be woken for
            // them. Work that this queues is posted below.
            endpoints.iter().filter(|endpoint| endpoint.watch.is_unwatched()).for_each(|it| {
                it.reap(after);
            });
            for endpoint in endpoints.iter().filter(|endpoint| endpoint.owes()) {
                endpoint.post(0, |_| None, after);
            }
            for express in [true, false] {
                while chains < TURN_CHAINS
                    && self.peer.has_work(Transport::Rdma, express)
                    && self.dispatch(&endpoints, express, after)
                {
                    chains += 1;
                }
            }
            // Work without room is posted by the thread that reaps next. Make sure that a thread will reap.
            if endpoints.iter().any(|it| it.device.is_ticking()) && self.peer.has_work(Transport::Rdma, true)
            {
                self.attend(after);
            }
            drop(turn);
            // Completions that this thread has reaped made room, and may have started other transfers: they are posted
            // here, within the bound. The flush of `after` would begin again for as long as there is work.
            if after.take(Transport::Rdma) {
                self.wanted.store(true, Ordering::SeqCst);
            }
            // Stop here, or a submitter would stay for as long as the transfer lasts. Chains in flight are reaped
            // after the lock is released, and the reaping thread continues.
            if chains >= TURN_CHAINS {
                if endpoints.iter().any(|endpoint| endpoint.watch.has_work()) {
                    return;
                }
                self.wanted.store(true, Ordering::SeqCst);
                chains = 0;
            }
        }
    }

    /// Drives RDMA for a task that waits on the thread that woke it. Its callers may already be reaping completions or
    /// receiving notifications, so that no other thread does: this thread does both until the end and never sleeps.
    fn drive_alone(&self, transfer: &Transfer, deadline_ns: Monotonic) {
        while !transfer.is_final() && clock::monotonic_ns() < deadline_ns {
            self.endpoints().iter().for_each(|endpoint| {
                endpoint.device.receive();
            });
            self.poll();
            pause::yield_now();
        }
    }

    /// Posts one chain. Returns false if nothing is queued or no endpoint has room.
    fn dispatch(&self, endpoints: &[Arc<Endpoint>], express: bool, after: &mut After) -> bool {
        // With one endpoint there is no choice to make.
        let front = (endpoints.len() > 1).then(|| self.peer.front(Transport::Rdma, express)).flatten();
        let (here, there) = front.map_or((None, None), |(slice, _)| self.ends_of(&slice));
        let may_wait = !express && front.is_some_and(|(_, alone)| alone);
        let pinned = here.as_deref().and_then(Pinned::of);
        // An endpoint without a measured rate counts as fast as the fastest.
        let fastest = endpoints.iter().map(|endpoint| endpoint.pace.rate()).max().unwrap_or(0);
        let candidates = endpoints.iter().map(|endpoint| {
            let own = if endpoint.pace.rate() == 0 { fastest } else { endpoint.pace.rate() };
            let near = pinned.map_or(0, |it| it.detour(endpoint.device.index));
            let far = there.as_ref().map_or(0, |it| it.detour(endpoint.remote.index as usize));
            Candidate {
                delay_ns: endpoint.pace.delay_with(own),
                detour: near.saturating_add(far),
                qp: endpoint.room(express),
                moves: !endpoint.is_broken() && endpoint.watch.has_work(),
            }
        });
        let Some((at, qp)) = choose(candidates, may_wait) else { return false };
        endpoints[at].post(qp, |limits| self.peer.pull(Transport::Rdma, express, limits), after)
    }

    /// Finds the memory at both ends of a slice, for the distances of the devices to it.
    fn ends_of(&self, slice: &Slice) -> (Option<Arc<Region>>, Option<Arc<RegionKeys>>) {
        let here = self.registry.snapshot().find(slice.local, 1).cloned();
        let there = match slice.region {
            RegionId::NONE => self.peer.remote.snapshot().find(slice.remote, 1).map(|region| region.id),
            id => Some(id),
        };
        (here, there.and_then(|id| self.keys.snapshot().get(id).cloned()))
    }
}

/// An endpoint as a candidate for the next chain.
#[derive(Clone, Copy)]
struct Candidate {
    /// Nanoseconds until the chain would have left if the device were as near as possible to the memory at both ends.
    delay_ns: u64,
    detour: u8,
    /// The queue pair with room.
    qp: Option<usize>,
    /// True if chains in flight will free room without further action.
    moves: bool,
}

impl Candidate {
    fn cost(&self) -> u64 {
        self.delay_ns.saturating_add((self.delay_ns / DETOUR_UNIT).saturating_mul(self.detour.into()))
    }
}

/// Returns the endpoint with room that will finish one more chain first, and its queue pair. Returns None if no
/// endpoint has room. If `may_wait`, also returns None when a nearer endpoint without room would still finish the
/// chain sooner. Only large work that is queued alone may wait: otherwise it would fill the farther endpoint too.
/// Other work behind it may be near the farther endpoint, so it must not block that endpoint.
fn choose(mut candidates: impl Iterator<Item = Candidate> + Clone, may_wait: bool) -> Option<(usize, usize)> {
    let with_room = candidates.clone().enumerate().filter_map(|(at, it)| Some((at, it.qp?, it)));
    let (at, qp, best) = with_room.min_by_key(|(_, _, it)| (it.cost(), it.detour))?;
    let is_better = |it: Candidate| it.moves && it.detour < best.detour && it.cost() < best.cost();
    let waits = may_wait && candidates.any(is_better);
    (!waits).then_some((at, qp))
}

impl Path for RdmaPath {
    fn carries(&self, ranges: &[Range], known: &RemoteMap, alone: bool) -> bool {
        let endpoints = self.endpoints();
        let Some(endpoint) = endpoints.first() else { return false };
        let keys = self.keys.snapshot();
        let device = endpoint.remote.index as usize;
        ranges.iter().all(|range| {
            let id = match range.region {
                RegionId::NONE => known.find(range.remote, range.length).map(|region| region.id),
                id => Some(id),
            };
            match id.and_then(|id| keys.get(id)) {
                Some(region) => region.covers(device, range.remote, range.length),
                // The last path that is left reports an error for each request.
                None => alone,
            }
        })
    }

    fn post(&self, _class: Class, _submitted_ns: Option<Monotonic>, after: &mut After) {
        self.pump(after);
    }

    fn nudge(&self, after: &mut After) {
        self.pump(after);
    }

    fn drive(&self, transfer: &Transfer, deadline_ns: Monotonic) {
        if is_waking() {
            return self.drive_alone(transfer, deadline_ns);
        }
        let endpoints = self.endpoints();
        let watched: Vec<bool> = endpoints.iter().map(|endpoint| endpoint.watch.begin()).collect();
        let mut after = self.peer.after();
        let mut spin_end_ns = Monotonic::ZERO;
        let mut rounds = 0u32;
        while !transfer.is_final() {
            let settled: usize = endpoints.iter().map(|endpoint| endpoint.reap(&mut after)).sum();
            if settled > 0 {
                spin_end_ns = Monotonic::ZERO;
                // Even if this transfer is final: perhaps no other thread would post the work that waited for room.
                self.pump(&mut after);
                after.flush();
            }
            // Reading the clock may cost more than polling a completion queue.
            rounds = rounds.wrapping_add(1);
            if rounds % CLOCK_ROUNDS == 0 {
                let now_ns = clock::monotonic_ns();
                spin_end_ns = if spin_end_ns == Monotonic::ZERO {
                    now_ns.saturating_add(self.spin_ns)
                } else {
                    spin_end_ns
                };
                if now_ns >= spin_end_ns.min(deadline_ns) {
                    break;
                }
            }
            pause::spin();
        }
        transfer.attend();
        for (endpoint, ours) in endpoints.iter().zip(watched) {
            if ours {
                endpoint.unwatch(&mut after);
            }
        }
        // A thread that found these endpoints watched may have relied on this thread, which leaves now.
        self.attend(&mut after);
    }

    fn poll(&self) {
        let mut after = self.peer.after();
        let settled: usize = self.endpoints().iter().map(|endpoint| endpoint.reap(&mut after)).sum();
        if settled > 0 {
            self.pump(&mut after);
        }
    }

    fn attend(&self, after: &mut After) {
        let endpoints = self.endpoints();
        endpoints.iter().filter(|it| it.watch.has_work()).for_each(|it| it.ensure_watched(after));
    }

    fn condition(&self) -> Condition {
        match (self.endpoints().is_empty(), self.is_wanted()) {
            (false, _) => Condition::Works,
            (true, true) => Condition::Broken,
            (true, false) => Condition::Idle,
        }
    }

    fn rouse(&self) {
        self.want();
    }

    fn lanes(&self) -> usize {
        self.endpoints().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Candidate = Candidate { delay_ns: 1000, detour: 0, qp: Some(1), moves: false };

    /// A candidate with this many chains in flight, of eight at most; `detour` is in quarters.
    fn with(chains: u64, detour: u8) -> Candidate {
        let (delay_ns, qp) = ((chains + 1) * 1000, Some(1).filter(|_| chains < 8));
        Candidate { delay_ns, detour, qp, moves: chains > 0 }
    }

    fn chosen(all: &[Candidate], may_wait: bool) -> Option<usize> {
        choose(all.iter().copied(), may_wait).map(|(at, _)| at)
    }

    #[test]
    fn among_equals_the_one_with_the_least_to_do() {
        assert_eq!(chosen(&[with(0, 0), with(0, 0)], true), Some(0));
        assert_eq!(chosen(&[with(3, 0), with(2, 0)], true), Some(1));
        // An endpoint without room is not chosen, however fast it is.
        assert_eq!(chosen(&[Candidate { delay_ns: 1, ..with(8, 0) }, with(7, 0)], true), Some(1));
        assert_eq!(chosen(&[with(8, 0), with(8, 0)], true), None);
        assert_eq!(chosen(&[], true), None);
        let all = [Candidate { qp: None, ..FREE }, Candidate { qp: Some(2), ..FREE }];
        assert_eq!(choose(all.iter().copied(), false), Some((1, 2)));
    }

    #[test]
    fn the_nearer_one_unless_it_is_much_busier() {
        for (chains, expected) in [(0, 1), (3, 1), (4, 0)] {
            assert_eq!(chosen(&[with(0, 12), with(chains, 0)], true), Some(expected), "{chains}");
        }
        // A nearer endpoint without room is waited for while it would still finish sooner.
        assert_eq!(chosen(&[with(1, 12), with(8, 0)], true), Some(0));
        assert_eq!(chosen(&[with(2, 12), with(8, 0)], true), None);
        // Host memory on the other NUMA node is near enough for both endpoints to be used at once.
        assert_eq!(chosen(&[with(6, 1), with(8, 0)], true), Some(0));
    }

    #[test]
    fn only_a_chain_that_may_wait_waits_for_room_that_comes() {
        assert_eq!(chosen(&[with(2, 12), with(8, 0)], false), Some(0));
        assert_eq!(chosen(&[with(2, 12), Candidate { moves: false, ..with(8, 0) }], true), Some(0));
    }

    #[test]
    fn the_longest_delays_have_a_cost() {
        let endless = Candidate { delay_ns: u64::MAX / 2, detour: u8::MAX, ..FREE };
        assert_eq!(endless.cost(), u64::MAX);
    }
}
