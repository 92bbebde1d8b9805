//! The initiator's estimate of the target's clock. The estimate is never ahead of the true clock.
//!
//! Each frame from the peer carries its clock of leases at sending. The peer's clock has moved on when the frame
//! arrives, so `sample - now` is a lower bound of the offset between the clocks. The bound ages by `DRIFT`, the assumed
//! bound of the difference between the clocks' rates, so the estimate stays early. `tests/loom_models` compiles this
//! file against loom.

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

    /// Records that the peer's clock showed `peer_ns` at some moment before `now_ns` (both by their clocks of leases).
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
        let latest_ns = now_ns.max(sampled_ns);
        // The fresh bound ages too if another thread took a later sample since this one read its clock.
        let aged = |offset_ns: i64, since_ns| match latest_ns.saturating_sub(since_ns) {
            0 => offset_ns,
            age_ns => offset_ns.saturating_sub_unsigned(age_ns / DRIFT + 1),
        };
        let known_ns = self.offset_ns.load(Ordering::Relaxed);
        let offset_ns = match sampled_ns {
            Boottime::ZERO => fresh_ns,
            _ => aged(fresh_ns, now_ns).max(aged(known_ns, sampled_ns)),
        };
        self.offset_ns.store(offset_ns, Ordering::Relaxed);
        // Pairs with the Acquire in `not_after`: a thread that sees this sample's time sees its offset or a newer one.
        self.sampled_ns.store(latest_ns.ns(), Ordering::Release);
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
