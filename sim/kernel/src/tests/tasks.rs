//! Tasks, time, and what a run tells.

use super::{seeded, Log};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::task::{self, spawn};
use crate::trace::Story;
use crate::{clock, local, process, process_local, run, scope, Options};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// Four tasks that add to a number and sleep.
fn busy(log: &Log) {
    let number = Rc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..4)
        .map(|nth| {
            let (number, log) = (number.clone(), log.clone());
            spawn(&format!("adder-{nth}"), move || {
                for _ in 0..50 {
                    let seen = number.fetch_add(1, Ordering::Relaxed);
                    crate::trace::event("add", &[seen], || format!("adds to {seen}"));
                    log.add(format!("{nth}"));
                    task::sleep(Duration::from_micros(crate::random_u64() % 500));
                }
            })
            .unwrap()
        })
        .collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
}

#[test]
fn a_seed_repeats_and_another_differs() {
    let told = |seed| {
        let log = Log::default();
        let options = Options { story: Story::Keep, ..Options::default() };
        let outcome = run(seed, options, || busy(&log)).check();
        (outcome.hash, outcome.steps, outcome.switches, outcome.end_ns, outcome.story, log.taken())
    };
    let seeds: Vec<_> = (0..20).map(told).collect();
    for (seed, first) in seeds.iter().enumerate() {
        assert_eq!(*first, told(seed as u64));
    }
    let mut hashes: Vec<u64> = seeds.iter().map(|told| told.0).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), seeds.len());
    assert!(seeds[0].4.contains("test/adder-1") && seeds[0].4.contains("adds to 17"), "{}", seeds[0].4);
}

/// The order of tasks that draw nothing and do not sleep.
#[test]
fn the_seed_decides_who_goes_first() {
    let order = |seed| {
        let log = Log::default();
        seeded(seed, || {
            let adders = (0..4).map(|nth| {
                let log = log.clone();
                spawn("adds", move || (0..5).for_each(|_| (crate::point(), log.add(format!("{nth}"))).1))
                    .unwrap()
            });
            adders.collect::<Vec<_>>().into_iter().for_each(|task| task.join().unwrap());
        })
        .check();
        log.taken().concat()
    };
    let mut orders: Vec<String> = (0..50).map(order).collect();
    orders.sort();
    orders.dedup();
    assert!(orders.len() > 20, "{orders:?}");
}

#[test]
fn a_story_does_not_change_a_run() {
    let hash = |story| run(3, Options { story, ..Options::default() }, || busy(&Log::default())).hash;
    assert_eq!(hash(Story::None), hash(Story::Keep));
}

#[test]
fn sleepers_wake_in_order_and_not_early() {
    for seed in 0..20 {
        let log = Log::default();
        let outcome = seeded(seed, || {
            let begun = clock::monotonic_ns();
            for ms in [70, 10, 50, 30] {
                let log = log.clone();
                let sleeper = move || {
                    task::sleep(ms * MS);
                    assert!(clock::monotonic_ns() - begun >= ms as u64 * 1_000_000);
                    log.add(format!("{ms}"));
                };
                spawn("sleeper", sleeper).unwrap();
            }
            task::sleep(400 * MS);
        });
        // Naps may put one behind another, but not for the sum of all.
        let mut order = log.taken();
        if outcome.naps == 0 {
            assert_eq!(order, ["10", "30", "50", "70"]);
        }
        order.sort();
        assert_eq!(order, ["10", "30", "50", "70"]);
        assert!(outcome.check().end_ns >= 400_000_000);
    }
}

#[test]
fn a_spin_ends_when_its_time_is_over() {
    let outcome = seeded(1, || {
        let until = clock::now() + 10 * MS;
        while clock::now() < until {
            task::spin();
        }
    });
    assert!(outcome.check().steps < 1_000_000);
}

#[test]
fn a_deadlock_is_told_with_who_waits_for_what() {
    let outcome = seeded(5, || {
        let [a, b] = [(); 2].map(|()| Rc::new(crate::sync::Mutex::new(())));
        let (first, second) = (a.clone(), b.clone());
        spawn("crosswise", move || {
            let _first = first.lock();
            task::sleep(MS);
            let _second = second.lock();
        })
        .unwrap();
        let _second = b.lock();
        task::sleep(MS);
        let _first = a.lock();
    });
    assert_eq!(outcome.failures, ["deadlock: test/body waits for a lock; test/crosswise waits for a lock"]);
}

#[test]
fn steps_and_time_are_bounded() {
    let few = Options { steps_max: 10_000, ..Options::default() };
    let outcome = run(1, few, || loop {
        task::yield_now();
    });
    assert!(outcome.failures[0].contains("10000 steps: test/body runs"), "{:?}", outcome.failures);
    let short = Options { time_max_ns: 1_000_000_000, ..Options::default() };
    let outcome = run(1, short, || task::sleep(2000 * MS));
    assert!(outcome.failures[0].contains("1000 ms of virtual time"), "{:?}", outcome.failures);
}

#[test]
fn a_panic_is_told_to_who_joins_and_fails_the_run() {
    let outcome = seeded(1, || {
        let task = spawn("panics", || std::panic::resume_unwind(Box::new("on purpose"))).unwrap();
        assert_eq!(task.join().unwrap_err().downcast_ref::<&str>(), Some(&"on purpose"));
        assert_eq!(spawn("returns", || 7).unwrap().join().unwrap(), 7);
    });
    assert_eq!(outcome.failures, ["test/panics panicked: on purpose"]);
}

/// A task that waits while it unwinds lets others run, which do not unwind.
#[test]
fn others_do_not_unwind_with_a_task_that_does() {
    struct Sleeps;
    impl Drop for Sleeps {
        fn drop(&mut self) {
            assert!(task::panicking());
            task::sleep(MS);
            assert!(task::panicking());
        }
    }
    let seen = Rc::new(Cell::new(0));
    let outcome = seeded(1, || {
        let seen = seen.clone();
        spawn("other", move || {
            for _ in 0..4 {
                assert!(!task::panicking());
                seen.set(seen.get() + u32::from(std::thread::panicking()));
                task::sleep(MS / 5);
            }
        })
        .unwrap();
        let unwinds = || {
            let _sleeps = Sleeps;
            std::panic::resume_unwind(Box::new("on purpose"));
        };
        let _ = spawn("unwinds", unwinds).unwrap().join();
    });
    assert_eq!(outcome.failures, ["test/unwinds panicked: on purpose"]);
    assert!(seen.get() > 0);
}

#[test]
fn an_unpark_is_kept_for_the_next_park_and_ends_one() {
    for seed in 0..50 {
        seeded(seed, || {
            let task = spawn("parks", || {
                task::park();
                let begun = clock::monotonic_ns();
                task::park_timeout(MS);
                assert!(clock::monotonic_ns() - begun >= 1_000_000);
            })
            .unwrap();
            task.thread().unpark();
            task.join().unwrap();
        })
        .check();
    }
}

#[test]
fn a_scope_waits_for_tasks_that_borrow() {
    for seed in 0..20 {
        let mut values = [1, 2, 3];
        seeded(seed, || {
            let sum: u64 = scope::scope(|scope| {
                let add = |value: &'static str| move || value.len() as u64;
                let three = scope.spawn("three", add("abc")).unwrap();
                for value in &mut values {
                    scope.spawn("doubles", move || *value *= 2).unwrap();
                }
                three.join().unwrap()
            });
            assert_eq!(sum, 3);
        })
        .check();
        assert_eq!(values, [2, 4, 6]);
    }
}

#[test]
fn variables_belong_to_a_task_or_a_process() {
    local! {
        static OWN: Cell<u32> = Cell::new(1);
    }
    process_local! {
        static SHARED: Cell<u32> = Cell::new(1);
    }
    let grow = || {
        OWN.set(OWN.get() + 1);
        SHARED.with(|shared| shared.set(shared.get() + 1));
        (OWN.get(), SHARED.with(Cell::get))
    };
    seeded(1, || {
        assert_eq!(grow(), (2, 2));
        assert_eq!(spawn("same process", grow).unwrap().join().unwrap(), (2, 3));
        let other = process::host("b").start("other");
        assert_eq!(other.spawn("other process", grow).unwrap().join().unwrap(), (2, 2));
        assert_eq!(grow(), (3, 4));
    })
    .check();
    // No world outlives its run, and outside there is one of each.
    assert_eq!((grow(), grow()), ((2, 2), (3, 3)));
}

#[test]
fn values_of_a_task_are_dropped_when_it_ends() {
    struct Tells(Log);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.add("dropped");
        }
    }
    local! {
        static HELD: std::cell::RefCell<Option<Tells>> = std::cell::RefCell::new(None);
    }
    let log = Log::default();
    seeded(1, || {
        let held = Tells(log.clone());
        spawn("holds", move || HELD.with_borrow_mut(|place| *place = Some(held))).unwrap().join().unwrap();
        assert_eq!(log.taken(), ["dropped"]);
    })
    .check();
}
