//! Tests of `lease` on one thread. `tests/loom_models` has its threads.

use super::lease::LeaseClock;
use crate::types::Boottime;

const SECOND: u64 = 1_000_000_000;

fn at(ns: u64) -> Boottime {
    Boottime::from_ns(ns)
}

#[test]
fn the_estimate_is_early_and_ages() {
    let clock = LeaseClock::new(2 * SECOND);
    assert_eq!(clock.not_after(at(SECOND)), None, "nothing is known before the first sample");
    clock.sample(at(100 * SECOND), at(10 * SECOND));
    let fresh = clock.not_after(at(10 * SECOND)).unwrap();
    assert!(fresh <= at(102 * SECOND) && fresh > at(101 * SECOND + 900_000_000));
    // 100 s later the peer shows at least 199.8 s.
    let aged = clock.not_after(at(110 * SECOND)).unwrap();
    assert_eq!(aged - fresh, 100 * SECOND - 100 * SECOND / 499);
}

/// Our clock gains 0.1 % and the peer's loses 0.1 %: both are as wrong as they may be. A frame that is posted long
/// after the sample is refused when our clock shows the end of the lease.
#[test]
fn two_clocks_that_are_wrong_in_opposite_directions_end_the_lease_in_time() {
    let (lease, passed) = (3 * SECOND, 100 * SECOND);
    let (gains, loses) = (|ns: u64| ns + ns / 1000, |ns: u64| ns - ns / 1000);
    let (here, there) = (|ns| at(SECOND + gains(ns)), |ns| at(9 * SECOND + loses(ns)));
    let clock = LeaseClock::new(lease);
    clock.sample(there(0), here(0));
    let not_after = clock.not_after(here(passed)).unwrap();
    // Our clock shows the lease's end a little before that much time has passed.
    let over = passed + lease - lease / 1000;
    assert!(there(over) > not_after, "the peer still applies a frame whose lease is over");
}

#[test]
fn an_old_frame_read_late_takes_nothing_from_what_was_known() {
    let clock = LeaseClock::new(SECOND);
    clock.sample(at(100 * SECOND), at(10 * SECOND));
    // Sent a moment later, read only 50 s after that: we were stopped.
    clock.sample(at(100 * SECOND + 1), at(60 * SECOND));
    let not_after = clock.not_after(at(60 * SECOND)).unwrap();
    assert!(not_after > at(150 * SECOND + SECOND * 8 / 10), "{not_after} has expired before it is sent");
    assert!(not_after < at(151 * SECOND));
}

/// The peer chooses the value of its clock.
#[test]
fn a_clock_at_its_end_is_no_sum_beyond_it() {
    for peer_ns in [u64::MAX, u64::MAX - SECOND / 2, 0] {
        let clock = LeaseClock::new(SECOND);
        clock.sample(at(peer_ns), at(10 * SECOND));
        assert!(clock.not_after(at(10 * SECOND)).is_some(), "{peer_ns}");
    }
}

#[test]
fn a_sample_too_old_is_refused_at_the_bound() {
    let clock = LeaseClock::new(SECOND);
    clock.sample(at(SECOND), at(SECOND));
    let bound = SECOND / 8 * 499;
    assert!(clock.not_after(at(SECOND + bound)).is_some());
    assert!(clock.not_after(at(SECOND + bound + 1000)).is_none());
}

#[test]
fn a_slow_peer_clock_still_ends_the_lease_in_time() {
    // True time runs 1 s per second; the peer's clock loses 0.1 %. A frame posted at t must be
    // refused from t + lease on.
    let (lease, posted) = (3 * SECOND, 50 * SECOND);
    let clock = LeaseClock::new(lease);
    clock.sample(Boottime::ZERO, Boottime::ZERO);
    clock.sample(at(20 * SECOND - 20 * SECOND / 1000), at(20 * SECOND));
    let not_after = clock.not_after(at(posted)).unwrap();
    let peer_at_end = (posted + lease) - (posted + lease) / 1000;
    assert!(peer_at_end >= not_after.ns());
}

/// The peer's clock is slow, so that its offset falls. A thread that stood still after it had read its clock brings the
/// offset of ten seconds ago.
#[test]
fn a_sample_that_a_later_one_overtook_ages() {
    let there = |seconds: u64| at(100 * SECOND + seconds * SECOND - seconds * SECOND / 499);
    let clock = LeaseClock::new(SECOND);
    clock.sample(there(30), at(30 * SECOND));
    let before = clock.not_after(at(30 * SECOND)).unwrap();
    clock.sample(there(20), at(20 * SECOND));
    let after = clock.not_after(at(30 * SECOND)).unwrap();
    assert!(after <= before, "ahead by {} ns", after.ns() - before.ns());
    assert_eq!(clock.age_ns(at(30 * SECOND)), 0, "the later sample's time stays");
}
