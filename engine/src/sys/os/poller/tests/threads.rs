//! Several threads on one poller: changes, wakes and signals that meet a wait in progress.

use super::*;
use std::sync::atomic::AtomicU64;

over_both_kinds! {
    set_reaches_a_sleeping_wait add_reaches_a_sleeping_wait wakes_coalesce no_wake_is_lost
    loses_nothing_under_toggling the_waiting_thread_may_change a_signal_returns_nothing
}

fn set_reaches_a_sleeping_wait(poller: &Poller) {
    let (near, mut far) = pair();
    poller.add(near.as_raw_fd(), 1, NONE).unwrap();
    far.write_all(b"x").unwrap();
    let ready = while_asleep(poller, |_| poller.set(near.as_raw_fd(), 2, READ).unwrap());
    assert_eq!(only(&ready), (2, true, false, false));
}

fn add_reaches_a_sleeping_wait(poller: &Poller) {
    let (near, _far) = pair();
    let ready = while_asleep(poller, |_| poller.add(near.as_raw_fd(), 3, WRITE).unwrap());
    assert_eq!(only(&ready), (3, false, true, false));
}

fn wakes_coalesce(poller: &Poller) {
    (0..3).for_each(|_| poller.wake());
    let start_ns = monotonic_ns();
    assert!(wait(poller, LOST_NS).is_empty());
    assert!(monotonic_ns() - start_ns < LOST_NS);
    let start_ns = monotonic_ns();
    assert!(wait(poller, MS).is_empty());
    assert!(monotonic_ns() - start_ns >= MS, "a consumed wake came again");
    assert!(while_asleep(poller, |_| poller.wake()).is_empty());
}

/// Each round's wake lands before, while or after the waiter goes to sleep, as the scheduler has it.
fn no_wake_is_lost(poller: &Poller) {
    const ROUNDS: u64 = 5_000;
    let (asked, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                asked.store(round, Ordering::Relaxed); // visible with the wake
                poller.wake();
                while answered.load(Ordering::Acquire) < round {
                    thread::yield_now();
                }
            }
        });
        for round in 1..=ROUNDS {
            let start_ns = monotonic_ns();
            while asked.load(Ordering::Relaxed) < round {
                wait(poller, LOST_NS);
                assert!(monotonic_ns() - start_ns < LOST_NS, "lost the wake of round {round}");
            }
            answered.store(round, Ordering::Release);
        }
    });
}

/// Two threads switch interest off and on, a third writes; the waiting one must get every byte.
fn loses_nothing_under_toggling(poller: &Poller) {
    const BYTES: usize = 20_000;
    let mut pairs = [pair(), pair()];
    let [(first, first_far), (second, second_far)] = &mut pairs;
    let near = [&*first, &*second];
    for (token, stream) in (0..).zip(near) {
        poller.add(stream.as_raw_fd(), token, READ).unwrap();
    }
    thread::scope(|scope| {
        for (token, fd) in (0..).zip(near.map(AsRawFd::as_raw_fd)) {
            scope.spawn(move || {
                for toggle in 0..10_000 {
                    poller.set(fd, token, if toggle % 2 == 0 { NONE } else { READ }).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..BYTES {
                first_far.write_all(b"x").unwrap();
                second_far.write_all(b"x").unwrap();
            }
        });
        let mut received = [0; 2];
        while received != [BYTES; 2] {
            let ready = wait(poller, LOST_NS);
            assert!(!ready.is_empty(), "readiness lost after {received:?} bytes");
            for ready in ready {
                // WouldBlock is a readiness that the toggling made stale.
                let mut stream = near[ready.token as usize];
                received[ready.token as usize] += stream.read(&mut [0; 64]).unwrap_or(0);
            }
        }
    });
}

fn the_waiting_thread_may_change(poller: &Poller) {
    let (near, mut far) = pair();
    poller.add(near.as_raw_fd(), 1, READ).unwrap();
    for _ in 0..3 {
        assert!(wait(poller, 0).is_empty());
        let ready = while_asleep(poller, |_| far.write_all(b"x").unwrap());
        assert_eq!(only(&ready), (1, true, false, false));
        assert_eq!(only(&wait(poller, LOST_NS)), (1, true, false, false));
        (&near).read_exact(&mut [0]).unwrap();
        wait(poller, 0);
    }
}

fn a_signal_returns_nothing(poller: &Poller) {
    extern "C" fn ignore(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = ignore;
    // SAFETY: the handler does nothing, and no other test uses the signal.
    unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
    let start_ns = monotonic_ns();
    let ready = while_asleep(poller, |id| {
        // Until the thread is gone: it may have slept elsewhere when the first one came.
        // SAFETY: no pointers; `id` is, or was, a thread of this process.
        while unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, libc::SIGUSR2) } == 0 {
            thread::yield_now();
        }
    });
    assert!(ready.is_empty() && monotonic_ns() - start_ns < LOST_NS);
}
