//! Tests of `waiter` with real threads. `tests/loom_models` covers the orders that real threads rarely meet.

use super::waiter::{wait_any, Waiter};
use super::Wakers;
use std::sync::atomic::{AtomicBool, AtomicUsize as Count, Ordering};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

/// Counts its wake-ups.
#[derive(Default)]
struct Woken(Count);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn task() -> (Arc<Woken>, Waker) {
    let woken = Arc::<Woken>::default();
    (woken.clone(), woken.into())
}

fn woken(woken: &Woken) -> usize {
    woken.0.load(Ordering::SeqCst)
}

#[test]
fn ready_beats_a_deadline_that_has_passed() {
    let (waiter, past) = (Waiter::new(), Some(Instant::now()));
    assert!(waiter.wait_until(|| true, past));
    assert!(!waiter.wait_until(|| false, past));
    let soon = Instant::now() + Duration::from_millis(2);
    assert!(!waiter.wait_until(|| false, Some(soon)));
    assert!(Instant::now() >= soon && waiter.is_idle());
}

/// Tasks are left to the thread that notifies, and a panic of a task ends where the task is woken.
#[test]
fn tasks_are_woken_when_the_last_lock_is_gone() {
    use crate::notify::is_waking;
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            assert!(is_waking());
            panic!("an executor's own");
        }
    }
    let waiter = Waiter::new();
    for wakes in [Wakers::wake as fn(&mut Wakers), |wakers| drop(std::mem::take(wakers))] {
        let (count, waker) = task();
        waiter.register_own(&Arc::new(Panics).into());
        waiter.register_own(&waker);
        let mut wakers = Wakers::default();
        waiter.notify_all(&mut wakers);
        assert_eq!(woken(&count), 0);
        wakes(&mut wakers);
        assert_eq!((woken(&count), is_waking()), (1, false));
        assert!(waiter.is_idle());
    }
}

/// Two threads take turns through two waiters. A lost wake-up would hang the test.
#[test]
fn threads_take_turns_without_losing_one() {
    const TURNS: usize = 20_000;
    let (waiters, turn) = ([Waiter::new(), Waiter::new()], Count::new(0));
    std::thread::scope(|scope| {
        for own in 0..2 {
            let (waiters, turn) = (&waiters, &turn);
            scope.spawn(move || {
                for round in 0..TURNS {
                    let mine = 2 * round + own;
                    assert!(waiters[own].wait_until(|| turn.load(Ordering::Acquire) == mine, None));
                    turn.store(mine + 1, Ordering::Release);
                    waiters[1 - own].notify_all(&mut Wakers::default());
                }
            });
        }
    });
    assert!(waiters.iter().all(Waiter::is_idle));
}

#[test]
fn every_waiter_is_woken() {
    for _ in 0..200 {
        let (waiter, ready) = (Waiter::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(waiter.wait_until(|| ready.load(Ordering::Acquire), None)));
            }
            ready.store(true, Ordering::Release);
            waiter.notify_all(&mut Wakers::default());
        });
        assert!(waiter.is_idle());
    }
}

#[test]
fn a_task_is_registered_once_and_woken_once() {
    let (waiter, (counted, waker)) = (Waiter::new(), task());
    (0..3).for_each(|_| waiter.register_own(&waker));
    waiter.notify_all(&mut Wakers::default());
    waiter.notify_all(&mut Wakers::default());
    assert_eq!(woken(&counted), 1);
    assert!(waiter.is_idle());
}

/// An executor may poll with another waker each time. Kept together, they would grow or wake each other without an end.
#[test]
fn of_a_future_only_the_last_waker_is_woken() {
    let (waiter, (own, ours)) = (Waiter::new(), task());
    waiter.register_own(&ours);
    let tasks: Vec<_> = (0..100).map(|_| task()).collect();
    tasks.iter().for_each(|(_, waker)| waiter.register(waker));
    assert!(tasks.iter().all(|(counted, _)| woken(counted) == 0));
    waiter.notify_all(&mut Wakers::default());
    let counts: Vec<usize> = tasks.iter().map(|(counted, _)| woken(counted)).collect();
    assert_eq!((counts.iter().sum::<usize>(), counts[99], woken(&own)), (1, 1, 1));
    assert!(waiter.is_idle());
}

#[test]
fn a_future_that_was_dropped_is_not_woken_and_leaves_nothing_behind() {
    let (waiter, (counted, waker)) = (Waiter::new(), task());
    waiter.register(&waker);
    waiter.forget();
    waiter.forget();
    assert!(waiter.is_idle() && Arc::strong_count(&counted) == 2, "the test's own two");
    waiter.notify_all(&mut Wakers::default());
    assert_eq!(woken(&counted), 0);
}

#[test]
fn a_waker_that_panics_harms_no_other() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("from an executor"));
        }
    }
    let (waiter, (counted, waker)) = (Waiter::new(), task());
    waiter.register_own(&Arc::new(Panics).into());
    waiter.register_own(&waker);
    waiter.notify_all(&mut Wakers::default());
    assert_eq!(woken(&counted), 1);
}

#[test]
fn wait_any_says_which_and_leaves_nothing_behind() {
    let waiters = [Waiter::new(), Waiter::new(), Waiter::new()];
    let ready = [const { AtomicBool::new(false) }; 3];
    let find = || ready.iter().position(|flag| flag.load(Ordering::Acquire));
    assert_eq!(wait_any(&waiters, find, Some(Instant::now())), None);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ready[1].store(true, Ordering::Release);
            waiters[1].notify_all(&mut Wakers::default());
        });
        // The same transfer may be named twice.
        assert_eq!(wait_any(waiters.iter().chain(&waiters), find, None), Some(1));
    });
    assert!(waiters.iter().all(Waiter::is_idle));
}

/// Threads make many transfers ready in any order; two threads take each transfer as it becomes ready.
#[test]
fn wait_any_misses_none_of_many() {
    const MANY: usize = 500;
    let waiters: Vec<Waiter> = (0..MANY).map(|_| Waiter::new()).collect();
    let ready: Vec<AtomicBool> = (0..MANY).map(|_| AtomicBool::new(false)).collect();
    std::thread::scope(|scope| {
        for part in 0..2 {
            let (waiters, ready) = (&waiters, &ready);
            scope.spawn(move || {
                for index in (part..MANY).step_by(2) {
                    ready[index].store(true, Ordering::Release);
                    waiters[index].notify_all(&mut Wakers::default());
                }
            });
            scope.spawn(move || {
                let mut left: Vec<usize> = (0..MANY).collect();
                while !left.is_empty() {
                    let find = || left.iter().position(|&index| ready[index].load(Ordering::Acquire));
                    let found = wait_any(left.iter().map(|&index| &waiters[index]), find, None);
                    left.swap_remove(found.unwrap());
                }
            });
        }
    });
    assert!(waiters.iter().all(Waiter::is_idle));
}
