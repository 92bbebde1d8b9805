//! Several calls of unregister for one region: one call takes it down, no call returns before that is over, and none
//! touches the region that follows in its slot.

use super::grants::{Grant, Grants, Use};
use super::holder::Holder;
use super::*;
use crate::handle::Tag;
use crate::sys::health::Health;
use crate::types::RegionId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const BOUND: Option<Duration> = Some(Duration::from_secs(30));
const ROUNDS: usize = 500;

fn register(registry: &Registry) -> RegionId {
    let spec = RegionSpec { address: 4096, length: 64, ..RegionSpec::default() };
    registry.register(&[spec]).unwrap()[0].id
}

fn status(result: Result<()>) -> Status {
    result.err().map_or(Status::Ok, |error| error.status)
}

/// Devices that deregister memory only when they are told to go on.
struct Slow {
    begun: Mutex<mpsc::Sender<()>>,
    go_on: Mutex<mpsc::Receiver<()>>,
    is_off: AtomicBool,
}

impl Holder for Slow {
    fn pin(&self, _specs: &[RegionSpec]) -> Result<Vec<Pin>> {
        Ok(Vec::new())
    }
    fn revoke(&self, _region: RegionId) {}
    fn revoke_if_unheld(&self, _region: RegionId, revoke: &mut dyn FnMut() -> bool) -> bool {
        revoke()
    }
    fn wait_unheld(&self, _region: RegionId, _deadline: Option<Instant>) -> bool {
        true
    }
    /// A second call finds nothing to do, as in a list of registrations.
    fn unpin(&self, _region: &Region) {
        if let Ok(go_on) = self.go_on.try_lock() {
            self.begun.lock().unwrap().send(()).unwrap();
            let _ = go_on.recv();
            self.is_off.store(true, Ordering::SeqCst);
        }
    }
}

#[test]
fn no_unregister_returns_while_another_takes_the_memory_off_devices() {
    let (begun, has_begun) = mpsc::channel();
    let (go_on, told) = mpsc::channel();
    let slow = Arc::new(Slow { begun: begun.into(), go_on: told.into(), is_off: AtomicBool::new(false) });
    let registry = Registry::new(Tag::from_random(77), None);
    registry.set_holder(slow.clone());
    let id = register(&registry);
    thread::scope(|scope| {
        // Dropped when the test fails, so that no thread waits for it then.
        let go_on = go_on;
        let first = scope.spawn(|| status(registry.unregister(id, None)));
        has_begun.recv().unwrap();
        for brief in [Duration::ZERO, Duration::from_millis(5)] {
            assert_eq!(status(registry.unregister(id, Some(brief))), Status::Busy);
        }
        // The memory still belongs to the devices: no other region may be registered there.
        let again = registry.register(&[RegionSpec { address: 4100, length: 1, ..RegionSpec::default() }]);
        assert_eq!(again.unwrap_err().status, Status::Overlap);
        let second =
            scope.spawn(|| (status(registry.unregister(id, None)), slow.is_off.load(Ordering::SeqCst)));
        go_on.send(()).unwrap();
        assert_eq!(first.join().unwrap(), Status::Ok);
        assert_eq!(second.join().unwrap(), (Status::Stale, true));
    });
    register(&registry);
}

/// Devices whose keys a peer holds until it releases them.
#[derive(Default)]
struct Keyed {
    has_keys: AtomicBool,
}

impl Holder for Keyed {
    fn pin(&self, _specs: &[RegionSpec]) -> Result<Vec<Pin>> {
        Ok(Vec::new())
    }
    fn revoke(&self, _region: RegionId) {}
    fn revoke_if_unheld(&self, _region: RegionId, revoke: &mut dyn FnMut() -> bool) -> bool {
        !self.has_keys.load(Ordering::SeqCst) && revoke()
    }
    fn wait_unheld(&self, _region: RegionId, _deadline: Option<Instant>) -> bool {
        !self.has_keys.load(Ordering::SeqCst)
    }
    fn unpin(&self, _region: &Region) {
        assert!(!self.has_keys.load(Ordering::SeqCst), "taken off devices while a peer reaches it");
    }
}

#[test]
fn memory_whose_keys_a_peer_has_is_in_use() {
    let keyed = Arc::new(Keyed::default());
    let registry = Registry::new(Tag::from_random(77), None);
    registry.set_holder(keyed.clone());
    let id = register(&registry);
    keyed.has_keys.store(true, Ordering::SeqCst);
    let region = registry.get(id).unwrap();
    assert_eq!(status(registry.unregister(id, Some(Duration::ZERO))), Status::Busy);
    assert!(!region.is_revoked(), "nothing has changed");
    assert_eq!(status(registry.unregister(id, Some(Duration::from_nanos(1)))), Status::Busy);
    assert!(region.is_revoked());
    keyed.has_keys.store(false, Ordering::SeqCst);
    registry.unregister(id, Some(Duration::ZERO)).unwrap();
}

/// With processes of this host: their gates are found by the slot, which the next region gets.
fn shared() -> (Registry, Arc<Grants>, Arc<Grant>) {
    let grants = Arc::new(Grants::new().unwrap());
    let (_tally, fd) = grants.admit(7).unwrap();
    let grant = Arc::new(Grant::new(grants.board(), &fd).unwrap());
    (Registry::new(Tag::from_random(77), Some(grants.clone())), grants, grant)
}

#[test]
fn no_process_enters_a_region_that_is_unregistered() {
    let (registry, _grants, grant) = shared();
    for timeout in [Some(Duration::ZERO), BOUND, None] {
        let id = register(&registry);
        drop(grant.enter(id).unwrap());
        registry.unregister(id, timeout).unwrap();
        assert!(grant.enter(id).is_err(), "after unregister with {timeout:?}");
    }
    // No process enters a region that is revoked and still in use, either.
    let id = register(&registry);
    let inside = grant.stay(id, Use::Copy).unwrap();
    assert_eq!(status(registry.unregister(id, Some(Duration::from_nanos(1)))), Status::Busy);
    assert!(grant.enter(id).is_err());
    drop(inside);
    registry.unregister(id, Some(Duration::ZERO)).unwrap();
}

/// Everything happens between the call's look for the region and its first step.
#[test]
fn a_late_call_does_not_shut_the_next_region_in_the_slot() {
    let (registry, _grants, grant) = shared();
    let id = register(&registry);
    let region = registry.get(id).unwrap();
    registry.unregister(id, None).unwrap();
    let next = register(&registry);
    assert_eq!(registry.get(next).unwrap().index(), region.index());
    registry.revoke(&region);
    drop(grant.enter(next).expect("nobody has unregistered it"));
}

#[test]
fn a_second_unregister_does_not_shut_the_next_region_in_the_slot() {
    let (registry, _grants, grant) = shared();
    let both = Barrier::new(2);
    let mut id = register(&registry);
    for round in 0..ROUNDS {
        // With and without a look first; the call that gets OK registers again at once.
        let timeout = if round % 2 == 0 { BOUND } else { Some(Duration::from_millis(1)) };
        let race = || {
            both.wait();
            registry.unregister(id, timeout).map(|()| register(&registry))
        };
        let (first, second) = thread::scope(|scope| {
            let second = scope.spawn(race);
            (race(), second.join().unwrap())
        });
        let fresh: Vec<RegionId> =
            [&first, &second].into_iter().filter_map(|it| it.as_ref().ok()).copied().collect();
        assert_eq!(fresh.len(), 1, "{first:?} {second:?}");
        drop(grant.enter(fresh[0]).unwrap_or_else(|error| panic!("round {round}: {error}")));
        id = fresh[0];
    }
}

#[test]
fn a_waiter_for_a_region_does_not_wait_for_the_next_in_its_slot() {
    let (registry, _grants, grant) = shared();
    let mut waited = 0;
    for _ in 0..200 {
        let id = register(&registry);
        let region = registry.get(id).unwrap();
        let inside = grant.stay(id, Use::Copy).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| status(registry.unregister(id, BOUND)));
            while !region.is_revoked() {
                thread::yield_now();
            }
            drop(inside);
            if status(registry.unregister(id, BOUND)) == Status::Ok {
                let next = register(&registry);
                let _inside = grant.stay(next, Use::Copy).unwrap();
                waited += 1;
                assert_eq!(waiter.join().unwrap(), Status::Stale);
                drop(_inside);
                registry.unregister(next, BOUND).unwrap();
            }
        });
    }
    assert!(waited > 0, "the waiter was always first");
}

/// Nobody leaves the region any more: the thread that is inside has ended by the panic, or waits for an engine that is
/// over.
#[test]
fn an_unregister_that_waits_ends_when_the_engine_breaks() {
    let registry = Registry::new(Tag::from_random(78), None);
    let id = register(&registry);
    let region = registry.get(id).unwrap();
    assert!(region.enter());
    let health = Health::new();
    let brief = Some(Duration::from_secs(10));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| status(health.call("unregistering", || registry.unregister(id, brief))));
        while !region.is_revoked() {
            thread::yield_now();
        }
        let broken = health.call("testing", || -> Result<()> { panic!("planted by a test") });
        assert_eq!(status(broken), Status::Panic);
        assert_eq!(waiter.join().unwrap(), Status::Panic);
    });
    region.leave();
}
