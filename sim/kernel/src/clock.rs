//! Clocks. Virtual time is that of the world, in nanoseconds from its beginning. Each host has a monotonic clock and a
//! boottime clock of its own, which may drift from it; the functions here read those of the host of the running task.

use crate::process::HostId;
use crate::world::{point, try_with, with, World};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const BILLION: i128 = 1_000_000_000;
/// The time of day at the beginning of a world: 2030-01-01.
const DAY_ONE_S: u64 = 1_893_456_000;

/// The clocks of a host. The monotonic one shows `base` at virtual time `since`, and goes at 1 + `drift_ppb` / 10^9.
/// It stands while the host is suspended; the boottime clock goes on.
pub(crate) struct HostClock {
    base: u64,
    since: u64,
    drift_ppb: i64,
    /// What boottime is ahead.
    ahead: u64,
    pub suspended_at: Option<u64>,
}

impl HostClock {
    pub fn new(now: u64, base: u64, ahead: u64) -> HostClock {
        HostClock { base, since: now, drift_ppb: 0, ahead, suspended_at: None }
    }

    pub fn monotonic(&self, now: u64) -> u64 {
        self.base + self.passed(self.suspended_at.unwrap_or(now))
    }

    pub fn boottime(&self, now: u64) -> u64 {
        self.base + self.passed(now) + self.ahead
    }

    fn passed(&self, now: u64) -> u64 {
        if self.drift_ppb == 0 {
            return now - self.since;
        }
        let elapsed = i128::from(now - self.since);
        (elapsed + elapsed * i128::from(self.drift_ppb) / BILLION) as u64
    }

    /// Returns the first virtual time at which the monotonic clock shows `shown`; None while the clock stands.
    pub fn when(&self, shown: u64) -> Option<u64> {
        if self.suspended_at.is_some() {
            return None;
        }
        let local = shown.saturating_sub(self.base);
        if self.drift_ppb == 0 {
            return Some(local.saturating_add(self.since));
        }
        let local = i128::from(local);
        let rate = BILLION + i128::from(self.drift_ppb);
        let elapsed = (local * BILLION + rate - 1) / rate;
        Some(u64::try_from(elapsed).unwrap_or(u64::MAX).saturating_add(self.since))
    }

    pub fn set_drift(&mut self, now: u64, drift_ppb: i64) {
        assert!(drift_ppb.abs() < BILLION as i64, "a clock goes forward");
        assert!(self.suspended_at.is_none(), "a clock that stands does not drift");
        (self.base, self.since) = (self.monotonic(now), now);
        self.drift_ppb = drift_ppb;
    }

    /// Moves the boottime clock forward alone.
    pub fn leap(&mut self, ns: u64) {
        self.ahead += ns;
    }

    pub fn suspend(&mut self, now: u64) {
        self.suspended_at.get_or_insert(now);
    }

    pub fn wake_up(&mut self, now: u64) {
        if let Some(at) = self.suspended_at.take() {
            let (monotonic, boottime) = (self.base + self.passed(at), self.boottime(now));
            (self.base, self.since, self.ahead) = (monotonic, now, boottime - monotonic);
        }
    }
}

impl World {
    pub(crate) fn clock_of(&self, host: HostId) -> &HostClock {
        &self.hosts[host.0 as usize].clock
    }

    pub(crate) fn clock_here(&self) -> &HostClock {
        self.clock_of(self.processes[self.here().0 as usize].host)
    }
}

/// Returns the virtual time. No program can read it: it is for those that watch.
pub fn virtual_ns() -> u64 {
    try_with(|world| world.now).unwrap_or(0)
}

/// Returns CLOCK_MONOTONIC of this host.
pub fn monotonic_ns() -> u64 {
    point();
    with(|world| world.clock_here().monotonic(world.now))
}

/// Returns CLOCK_BOOTTIME of this host.
pub fn boottime_ns() -> u64 {
    point();
    with(|world| world.clock_here().boottime(world.now))
}

/// Returns the monotonic clock as an `Instant`. Only differences mean something: the origin is another in each run.
pub fn now() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now) + Duration::from_nanos(monotonic_ns())
}

/// Returns the time of day of this host.
pub fn wall() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(DAY_ONE_S) + Duration::from_nanos(boottime_ns())
}

/// Returns what the monotonic clock shows in `timeout` from now.
pub(crate) fn deadline(timeout: Duration) -> u64 {
    let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    with(|world| world.clock_here().monotonic(world.now).saturating_add(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_drifts_stands_and_says_when() {
        let mut clock = HostClock::new(0, 1_000, 50);
        clock.set_drift(0, 100_000_000);
        assert_eq!((clock.monotonic(100), clock.boottime(100)), (1_110, 1_160));
        assert_eq!(clock.when(1_110), Some(100));
        assert_eq!(clock.when(1_111), Some(101));
        assert!(clock.monotonic(101) >= 1_111);
        clock.suspend(100);
        assert_eq!((clock.monotonic(200), clock.boottime(200), clock.when(1_111)), (1_110, 1_270, None));
        clock.wake_up(200);
        assert_eq!((clock.monotonic(210), clock.boottime(210)), (1_121, 1_281));
        clock.set_drift(210, -500_000_000);
        assert_eq!((clock.monotonic(220), clock.when(1_126)), (1_126, Some(220)));
        clock.leap(1_000);
        assert_eq!((clock.monotonic(220), clock.boottime(220)), (1_126, 2_286));
    }
}
