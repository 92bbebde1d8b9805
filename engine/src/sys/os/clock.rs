//! Clocks. Deadlines, timers and leases use CLOCK_MONOTONIC_RAW. A daemon that sets the time slews CLOCK_MONOTONIC and
//! CLOCK_BOOTTIME, by up to 8.3 % (chronyd) or 10 % and more (adjtimex); a lease tolerates 0.1 %. The engine reads
//! clocks only here, which `tests/imports.rs` checks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use crate::types::{Boottime, Monotonic, Shown};

/// The most that two readings in a row may differ. A sleep of the machine takes longer.
const NOISE_NS: u64 = 20_000;
/// The most attempts to measure the length of the sleep without an interruption.
const TRIES: usize = 64;

/// The time that the machine has slept, as it was found last, to within NOISE_NS.
static SLEPT_NS: AtomicU64 = AtomicU64::new(0);

/// Returns the time on CLOCK_MONOTONIC_RAW.
pub fn monotonic_ns() -> Monotonic {
    Monotonic::from_ns(read(libc::CLOCK_MONOTONIC_RAW))
}

/// Returns the time on CLOCK_MONOTONIC_RAW plus the time that the machine slept.
pub fn boottime_ns() -> Boottime {
    // In this order a thread that is preempted between the two readings returns an early time, never a future one.
    let awake_ns = read(libc::CLOCK_MONOTONIC_RAW);
    Boottime::from_ns(awake_ns + slept_ns())
}

/// Converts moments to CLOCK_MONOTONIC, by their distance from now. ZERO stays ZERO.
pub fn shown<const N: usize>(now: Monotonic, moments: [Monotonic; N]) -> [Shown; N] {
    let shown = Shown::from_ns(read(libc::CLOCK_MONOTONIC));
    moments.map(|moment| match moment {
        Monotonic::ZERO => Shown::ZERO,
        moment => shown.saturating_sub_ns(now.saturating_sub(moment)),
    })
}

/// Returns how long the machine has slept. CLOCK_BOOTTIME and CLOCK_MONOTONIC are slewed alike: their difference
/// changes only while the machine sleeps.
fn slept_ns() -> u64 {
    let known_ns = SLEPT_NS.load(Ordering::Relaxed);
    let awake_ns = read(libc::CLOCK_MONOTONIC);
    let found_ns = read(libc::CLOCK_BOOTTIME).saturating_sub(awake_ns);
    if found_ns.abs_diff(known_ns) < NOISE_NS {
        return known_ns;
    }
    slept_since_ns(known_ns)
}

/// Measures again: the machine has slept since, or this thread was preempted between two readings.
#[cold]
fn slept_since_ns(known_ns: u64) -> u64 {
    let measure = || {
        let before_ns = read(libc::CLOCK_MONOTONIC);
        let found_ns = read(libc::CLOCK_BOOTTIME).saturating_sub(before_ns);
        (read(libc::CLOCK_MONOTONIC) - before_ns, found_ns)
    };
    let is_exact = |(took_ns, _): &(u64, u64)| *took_ns < NOISE_NS / 2;
    let mut measured = (0..TRIES).map(|_| measure());
    let (_, found_ns) = measured.find(is_exact).unwrap_or_else(measure);
    if found_ns.abs_diff(known_ns) < NOISE_NS {
        return known_ns;
    }
    // The first thread to notice decides for all.
    let set = SLEPT_NS.compare_exchange(known_ns, found_ns, Ordering::Relaxed, Ordering::Relaxed);
    set.map_or_else(|other_ns| other_ns, |_| found_ns)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the duration of the call; the clock ids are constants
    // that every supported kernel knows, so the call cannot fail.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the time on the clock of `Instant`, for pauses and bounds that concern only this process.
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the time of day, for people to read.
pub fn wall() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock agrees with the kernel's; it may differ by NOISE_NS from that of another process on this host.
    #[test]
    fn the_clock_of_leases_has_the_rate_of_the_hardware_and_counts_sleep() {
        let (raw, boot) = (monotonic_ns().ns(), boottime_ns().ns());
        let monotonic = read(libc::CLOCK_MONOTONIC);
        let slept = read(libc::CLOCK_BOOTTIME) - monotonic;
        let later = boottime_ns().ns();
        assert!(boot.abs_diff(raw + slept) < 1_000_000_000 && later >= boot);
        // A machine that slept meanwhile, and one whose earlier sleep was counted twice.
        for known in [0, slept + 5_000_000_000] {
            SLEPT_NS.store(known, Ordering::Relaxed);
            assert!(slept_ns().abs_diff(slept) < NOISE_NS, "{known}");
        }
    }

    #[test]
    fn moments_are_shown_as_programs_read_them() {
        let before = read(libc::CLOCK_MONOTONIC);
        let now = monotonic_ns();
        let [none, earlier, then] = shown(now, [Monotonic::ZERO, now - 1_000, now]);
        assert!(none == Shown::ZERO && then - earlier == 1_000);
        assert!((before..=read(libc::CLOCK_MONOTONIC)).contains(&then.ns()));
    }
}
