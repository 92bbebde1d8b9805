//! Polling before sleeping: bounded, off when the setting says so, and harmless where it cannot help. The tests use
//! the engines' counters and CPU time, not the clock: the machine may be busy.

mod common;

use common::data::{check, contents, fill, pattern};
use common::process::{cpu_time, cpu_time_idle, thread_cpu_time};
use common::{config, request, Pair, Settings};
use ferry::types::Transport;
use ferry::{Engine, TransferOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const EXCHANGES: u32 = 300;
const BYTES: usize = 4 << 10;
/// The waiter, and a worker at each end before and after the message, with room for scheduling.
const SPINS_PER_EXCHANGE_MAX: u64 = 8;

/// The tests run one at a time: CPU time is the whole process's.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens an engine whose threads may run on the CPUs that the calling thread may use now.
fn open(settings: Settings) -> Engine {
    let mut config = config(settings);
    // The lanes' threads and waiters poll here, whatever transport the other tests run over.
    config.set("transports", Transport::Tcp.name()).unwrap();
    Engine::open(config).unwrap()
}

/// Sends small synchronous WRITEs, each checked. Returns how often both ends polled, and how often in vain.
fn converse(pair: &Pair) -> (u64, u64) {
    let (local, remote) = pair.memories(BYTES, BYTES);
    let before = spins(pair);
    for exchange in 1..=EXCHANGES {
        fill(&local, exchange);
        let one = [request(&local, 0, &remote, 0, BYTES)];
        pair.a.write(pair.b_at_a, &one, &TransferOptions::default()).unwrap();
        check("the WRITE", &contents(&remote), &pattern(exchange, BYTES));
    }
    let after = spins(pair);
    (after.0 - before.0, after.1 - before.1)
}

fn spins(pair: &Pair) -> (u64, u64) {
    let counts = [&pair.a, &pair.b].map(|engine| engine.stats().unwrap().counts);
    (counts[0].spins + counts[1].spins, counts[0].spins_vain + counts[1].spins_vain)
}

fn allowed() -> Vec<usize> {
    // SAFETY: all zeroes is the empty set; the kernel fills it, and every number asked for is below its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

/// Restricts the calling thread, and threads that it starts later, to these CPUs.
fn restrict_to(cpus: &[usize]) {
    // SAFETY: all zeroes is the empty set; the numbers came out of one, so they are below its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|&cpu| libc::CPU_SET(cpu, &mut set));
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

#[test]
fn zero_never_polls() {
    let _alone = alone();
    for more in [("express_bytes_max", "65536"), ("express_bytes_max", "0")] {
        let settings = [("spin_us", "0"), more];
        assert_eq!(converse(&Pair::of(open(&settings), open(&settings))), (0, 0), "{more:?}");
    }
}

/// A thread that kept its CPU while it polls would poll until the end, because the other end could not answer.
#[test]
fn ends_that_share_a_cpu_make_way_for_each_other() {
    let _alone = alone();
    let all = allowed();
    restrict_to(&all[..1]);
    let settings = [("spin_us", "1000")];
    let pair = Pair::of(open(&settings), open(&settings));
    let (spins, vain) = (0..4).map(|_| converse(&pair)).fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    restrict_to(&all);
    assert!(vain < 4 * u64::from(EXCHANGES) / 10, "{spins} spins, {vain} in vain");
}

#[test]
fn ends_on_two_cpus_poll_and_then_sleep() {
    let _alone = alone();
    let all = allowed();
    if all.len() < 2 {
        println!("SKIPPED: there is one CPU");
        return;
    }
    let settings = [("spin_us", "1000")];
    restrict_to(&all[1..2]);
    let b = open(&settings);
    restrict_to(&all[..1]);
    let pair = Pair::of(open(&settings), b);
    let (spins, vain) = converse(&pair);
    restrict_to(&all);
    assert!(spins > 0 && vain <= spins, "{spins} spins, {vain} in vain");
    assert!(spins <= u64::from(EXCHANGES) * SPINS_PER_EXCHANGE_MAX, "{spins} spins");
    // A polling thread would take all of a CPU. The lesser of two, in case the first includes the end of the exchange.
    let period = Duration::from_millis(300);
    let least = cpu_time_idle(period).min(cpu_time_idle(period));
    assert!(least < period / 10, "idle engines took {least:?} of {period:?}");
}

/// With more busy threads than CPUs every exchange still ends, and polling takes no more than its bound.
#[test]
fn a_busy_machine_is_not_made_busier() {
    let _alone = alone();
    let settings = [("spin_us", "50")];
    let pair = Pair::of(open(&settings), open(&settings));
    let stop = AtomicBool::new(false);
    let before = cpu_time();
    let (spins, busy) = std::thread::scope(|scope| {
        let hog = || {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            thread_cpu_time()
        };
        let hogs: Vec<_> = (0..allowed().len() + 2).map(|_| scope.spawn(hog)).collect();
        let (spins, _) = converse(&pair);
        stop.store(true, Ordering::Relaxed);
        (spins, hogs.into_iter().map(|hog| hog.join().unwrap()).sum::<Duration>())
    });
    let ours = (cpu_time() - before).saturating_sub(busy);
    assert!(spins <= u64::from(EXCHANGES) * SPINS_PER_EXCHANGE_MAX, "{spins} spins");
    // An exchange costs some tens of microseconds beside its spins, in a build without optimisation more.
    let bound = Duration::from_micros(50 * spins) + EXCHANGES * Duration::from_millis(1);
    assert!(ours < bound, "{ours:?} with {spins} spins, of at most {bound:?}");
}
