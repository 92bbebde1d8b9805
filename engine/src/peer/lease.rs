//! The initiator's estimate of the target's clock. The estimate is never ahead of the true clock.
//!
//! Each frame from the peer carries its CLOCK_BOOTTIME at sending. The peer's clock has moved on when the frame
//! arrives, so `sample - now` is a lower bound of the offset between the clocks. The bound ages by `DRIFT`, the assumed
//! bound of the difference between the clocks' rates, so the estimate stays early.

use crate::sys::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use crate::types::Boottime;

/// Assumed bound of the difference between the rates of two clocks. Each is wrong by at most 1/1000, in either
/// direction: 1.001 / 0.999 is a little more than 1 + 1/500.
const DRIFT: u64 = 499;

#[derive(Debug)]
pub struct LeaseClock {
    lease_ns: u64,
    /// The peer's clock minus ours at `sampled_ns`. Written before `sampled_ns`, read after it.
    offset_ns: AtomicI64,
    sampled_ns: AtomicU64,
    /// Set while a thread takes a sample. Other threads skip theirs: a sample of the same moment is as good.
    sampling: AtomicBool,
}

impl LeaseClock {
    pub fn new(lease_ns: u64) -> LeaseClock {
        LeaseClock {
            lease_ns,
            offset_ns: AtomicI64::new(0),
            sampled_ns: AtomicU64::new(0),
            sampling: AtomicBool::new(false),
        }
    }

    /// Records that the peer's clock showed `peer_ns` at some moment before `now_ns` (both CLOCK_BOOTTIME).
    ///
    /// If a frame waited long in a socket, because one of the two processes was stopped, the aged old bound is better
    /// than its sample. The higher of the two lower bounds stays. Otherwise a process that wakes up to old
    /// acknowledgements would post only frames whose lease is already over.
    pub fn sample(&self, peer_ns: Boottime, now_ns: Boottime) {
        // Pairs with the store at the end.
        if self.sampling.swap(true, Ordering::Acquire) {
            return;
        }
        let fresh_ns = peer_ns.ns().wrapping_sub(now_ns.ns()) as i64;
        let sampled_ns = Boottime::from_ns(self.sampled_ns.load(Ordering::Relaxed));
        let early_ns = now_ns.saturating_sub(sampled_ns) / DRIFT;
        let aged_ns = self.offset_ns.load(Ordering::Relaxed).saturating_sub_unsigned(early_ns + 1);
        let offset_ns = if sampled_ns == Boottime::ZERO { fresh_ns } else { fresh_ns.max(aged_ns) };
        self.offset_ns.store(offset_ns, Ordering::Relaxed);
        // Pairs with the Acquire in `not_after`: a thread that sees this sample's time sees its offset or a newer one.
        self.sampled_ns.store(now_ns.max(sampled_ns).ns(), Ordering::Release);
        self.sampling.store(false, Ordering::Release);
    }

    /// Contract 4: returns the moment on the peer's clock after which a frame posted now must not be applied. By any
    /// clock the lease is over at `now_ns` plus the lease at the latest. None: the last sample is too old, and the peer
    /// must be asked.
    pub fn not_after(&self, now_ns: Boottime) -> Option<Boottime> {
        let sampled_ns = Boottime::from_ns(self.sampled_ns.load(Ordering::Acquire));
        let early_ns = now_ns.saturating_sub(sampled_ns) / DRIFT;
        if sampled_ns == Boottime::ZERO || early_ns > self.lease_ns / 8 {
            return None;
        }
        let peer_now_ns =
            now_ns.ns().wrapping_add_signed(self.offset_ns.load(Ordering::Relaxed)).saturating_sub(early_ns);
        // The lease also runs on the peer's clock, which may be slow by the same bound. Twice the bound is taken off.
        let lease_ns = self.lease_ns - self.lease_ns / (DRIFT / 2);
        Some(Boottime::from_ns(peer_now_ns).saturating_add(lease_ns))
    }

    /// Returns how long ago the last sample was taken; since the beginning of the clock if there was none.
    pub fn age_ns(&self, now_ns: Boottime) -> u64 {
        now_ns.saturating_sub(Boottime::from_ns(self.sampled_ns.load(Ordering::Acquire)))
    }

    pub fn lease_ns(&self) -> u64 {
        self.lease_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
