//! Clocks. Virtual time is that of the world, in nanoseconds from its beginning. Each host has a monotonic clock and a
//! boottime clock of its own, which may drift from it; the functions here read those of the host of the running task.

use crate::process::HostId;
use crate::world::{point, try_with, with, World};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const BILLION: i128 = 1_000_000_000;
/// The time of day at which a boottime clock shows 0: 2030-01-01.
const DAY_ONE_S: u64 = 1_893_456_000;

/// A clock that shows `base` at virtual time `since`, and goes at 1 + `gain_ppb` / 10^9.
#[derive(Clone, Copy)]
struct Line {
    base: u64,
    since: u64,
    gain_ppb: i64,
}

impl Line {
    fn shows(&self, now: u64) -> u64 {
        if self.gain_ppb == 0 {
            return self.base + (now - self.since);
        }
        let elapsed = i128::from(now - self.since);
        self.base + (elapsed + elapsed * i128::from(self.gain_ppb) / BILLION) as u64
    }

    /// Returns the first virtual time at which the clock shows `shown`.
    fn when(&self, shown: u64) -> u64 {
        let local = shown.saturating_sub(self.base);
        if self.gain_ppb == 0 {
            return local.saturating_add(self.since);
        }
        let rate = BILLION + i128::from(self.gain_ppb);
        let elapsed = (i128::from(local) * BILLION + rate - 1) / rate;
        u64::try_from(elapsed).unwrap_or(u64::MAX).saturating_add(self.since)
    }

    /// Goes on from what the clock showed `at`.
    fn go_on(&mut self, at: u64, now: u64) {
        (self.base, self.since) = (self.shows(at), now);
    }
}

/// The clocks of a host. The raw one goes at the rate of the hardware, which drifts. The monotonic one, by which waits
/// end, is slewed besides. Both stand while the host is suspended; the boottime clocks go on.
pub(crate) struct HostClock {
    monotonic: Line,
    raw: Line,
    drift_ppb: i64,
    slew_ppb: i64,
    /// How far the boottime clocks are ahead, in nanoseconds.
    ahead: u64,
    pub suspended_at: Option<u64>,
}

impl HostClock {
    pub fn new(now: u64, base: u64, ahead: u64) -> HostClock {
        let line = Line { base, since: now, gain_ppb: 0 };
        HostClock { monotonic: line, raw: line, drift_ppb: 0, slew_ppb: 0, ahead, suspended_at: None }
    }

    pub fn monotonic(&self, now: u64) -> u64 {
        self.monotonic.shows(self.suspended_at.unwrap_or(now))
    }

    pub fn boottime(&self, now: u64) -> u64 {
        self.monotonic.shows(now) + self.ahead
    }

    fn raw(&self, now: u64) -> u64 {
        self.raw.shows(self.suspended_at.unwrap_or(now))
    }

    fn raw_boottime(&self, now: u64) -> u64 {
        self.raw.shows(now) + self.ahead
    }

    /// Returns the first virtual time at which the monotonic clock shows `shown`; None while the clock stands.
    pub fn when(&self, shown: u64) -> Option<u64> {
        self.suspended_at.is_none().then(|| self.monotonic.when(shown))
    }

    pub fn set_drift(&mut self, now: u64, drift_ppb: i64) {
        self.drift_ppb = drift_ppb;
        self.set_rates(now);
    }

    pub fn set_slew(&mut self, now: u64, slew_ppb: i64) {
        self.slew_ppb = slew_ppb;
        self.set_rates(now);
    }

    fn set_rates(&mut self, now: u64) {
        let slewed_ppb = self.drift_ppb + self.slew_ppb;
        assert!(self.drift_ppb.abs().max(slewed_ppb.abs()) < BILLION as i64, "a clock goes forward");
        assert!(self.suspended_at.is_none(), "a clock that stands does not drift");
        for (line, gain_ppb) in [(&mut self.monotonic, slewed_ppb), (&mut self.raw, self.drift_ppb)] {
            line.go_on(now, now);
            line.gain_ppb = gain_ppb;
        }
    }

    /// Moves the boottime clocks forward alone.
    pub fn leap(&mut self, ns: u64) {
        self.ahead += ns;
    }

    pub fn suspend(&mut self, now: u64) {
        self.suspended_at.get_or_insert(now);
    }

    pub fn wake_up(&mut self, now: u64) {
        if let Some(at) = self.suspended_at.take() {
            self.ahead += self.raw.shows(now) - self.raw.shows(at);
            self.monotonic.go_on(at, now);
            self.raw.go_on(at, now);
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

/// Returns CLOCK_MONOTONIC_RAW of this host.
pub fn raw_ns() -> u64 {
    point();
    with(|world| world.clock_here().raw(world.now))
}

/// Returns CLOCK_MONOTONIC_RAW of this host plus the time that the host was suspended.
pub fn raw_boottime_ns() -> u64 {
    point();
    with(|world| world.clock_here().raw_boottime(world.now))
}

/// Returns CLOCK_MONOTONIC of this host, as a program's read of it in the same breath as of another clock.
pub fn shown_ns() -> u64 {
    with(|world| world.clock_here().monotonic(world.now))
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
        assert_eq!((clock.raw(220), clock.raw_boottime(220)), (1_126, 2_286));
        // Slewed by a tenth: the hardware's rate stays, and waits follow the slewed clock.
        clock.set_drift(220, 0);
        clock.set_slew(220, 100_000_000);
        assert_eq!((clock.monotonic(320), clock.raw(320)), (1_236, 1_226));
        assert_eq!((clock.boottime(320), clock.raw_boottime(320)), (2_396, 2_386));
        assert_eq!(clock.when(1_236), Some(320));
        // A sleep is measured by the hardware.
        clock.suspend(320);
        clock.wake_up(420);
        assert_eq!((clock.boottime(420), clock.raw_boottime(420)), (2_496, 2_486));
    }
}
