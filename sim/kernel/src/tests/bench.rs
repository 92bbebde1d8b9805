//! The cost of points, switches and locks: `cargo test --release -p ferry-sim-kernel --lib bench -- --ignored
//! --nocapture`.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::Mutex;
use crate::task::{spawn, yield_now};
use crate::{point, run, Options};
use std::rc::Rc;

const ROUNDS: u64 = 2_000_000;

/// The time that this thread has had on a CPU: others may keep the machine busy.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` lives on this stack for the duration of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Prints the nanoseconds of one round.
fn measure(what: &str, tasks: u64, one_in: u32, round: impl Fn() + Copy + 'static) {
    let options = Options {
        switch_one_in: Some(one_in),
        naps_ppm: Some(0),
        steps_max: u64::MAX,
        time_max_ns: u64::MAX,
        ..Options::default()
    };
    let mut ns = 0u64;
    let outcome = run(1, options, || {
        let begun = cpu_ns();
        let all = move || (0..ROUNDS / tasks).for_each(|_| round());
        let others: Vec<_> = (1..tasks).map(|_| spawn("round", all).unwrap()).collect();
        all();
        others.into_iter().for_each(|other| other.join().unwrap());
        ns = cpu_ns() - begun;
    })
    .check();
    let per_switch = ns / outcome.switches;
    println!(
        "{what:<24} {tasks:>2} tasks  {:>6.1} ns a round  {per_switch:>9} ns a switch",
        ns as f64 / ROUNDS as f64
    );
}

thread_local! {
    static NUMBER: Rc<AtomicU64> = Rc::default();
    static LOCK: Rc<Mutex<u64>> = Rc::default();
}

#[test]
#[ignore = "a measurement"]
fn costs() {
    let never = u32::MAX;
    measure("point", 1, never, point);
    measure("point, 1 in 16", 40, 16, point);
    measure("switch", 2, 1, point);
    measure("switch", 40, 1, point);
    measure("yield", 40, 256, yield_now);
    measure("atomic add", 1, never, || {
        NUMBER.with(|number| number.fetch_add(1, Ordering::Relaxed));
    });
    measure("lock and unlock", 1, never, || LOCK.with(|lock| *lock.lock() += 1));
    measure("lock, wanted by all", 2, 16, || LOCK.with(|lock| *lock.lock() += 1));
    measure("lock, wanted by all", 40, 16, || LOCK.with(|lock| *lock.lock() += 1));
}
