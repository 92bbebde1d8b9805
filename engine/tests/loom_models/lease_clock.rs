//! The estimate of the peer's clock is never ahead, whatever a thread sees of a sample that another takes.

use crate::explore;
use crate::types::Boottime;
use lease::LeaseClock;
use loom::sync::Arc;
use loom::thread;

#[allow(dead_code)]
#[path = "../../src/peer/lease.rs"]
mod lease;

const SECOND: u64 = 1_000_000_000;
/// The peer's clock is slow by as much as the estimate allows for.
const SLOW: u64 = 499;
/// As short as a sample of 20 seconds' age allows: an offset that is taken for newer than it is shows.
const LEASE: u64 = SECOND / 2;

fn at(seconds: u64) -> Boottime {
    Boottime::from_ns(seconds * SECOND)
}

/// Returns what the peer's clock shows when ours shows this.
fn peer_at(seconds: u64) -> Boottime {
    Boottime::from_ns(100 * SECOND + seconds * SECOND - seconds * SECOND / SLOW)
}

fn known() -> Arc<LeaseClock> {
    let clock = LeaseClock::new(LEASE);
    clock.sample(peer_at(10), at(10));
    Arc::new(clock)
}

fn assert_early(clock: &LeaseClock, seconds: u64) {
    let not_after = clock.not_after(at(seconds)).expect("the sample is young enough");
    assert!(not_after <= peer_at(seconds).saturating_add(LEASE), "the lease would end too late");
}

#[test]
fn a_sample_is_never_seen_with_an_older_offset() {
    explore(|| {
        let clock = known();
        let reader = thread::spawn({
            let clock = Arc::clone(&clock);
            move || assert_early(&clock, 30)
        });
        clock.sample(peer_at(30), at(30));
        reader.join().unwrap();
        assert_early(&clock, 30);
    });
}

#[test]
fn samples_of_two_threads_leave_one_of_theirs() {
    explore(|| {
        let clock = known();
        let earlier = thread::spawn({
            let clock = Arc::clone(&clock);
            move || clock.sample(peer_at(20), at(20))
        });
        clock.sample(peer_at(30), at(30));
        earlier.join().unwrap();
        assert_early(&clock, 30);
    });
}
