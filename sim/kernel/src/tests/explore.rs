//! Whether every schedule is tried, and each once.

use super::Log;
use crate::explore::{explore, Bounds, Explored};
use crate::run::fail;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Condvar, Mutex};
use crate::task::{self, spawn, yield_now};
use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;

const WIDE: Bounds = Bounds { preemptions_max: 2, schedules_max: 100_000 };

/// Runs two tasks of this body and waits for both.
fn two(body: impl Fn(usize) + 'static) {
    let body = Rc::new(body);
    let tasks = [0, 1].map(|nth| {
        let body = body.clone();
        spawn(&format!("task-{nth}"), move || body(nth)).unwrap()
    });
    tasks.into_iter().for_each(|task| task.join().unwrap());
}

/// Returns why the exploration failed.
fn failure(body: impl Fn()) -> String {
    let failed = catch_unwind(AssertUnwindSafe(|| explore(WIDE, body))).expect_err("no schedule has failed");
    *failed.downcast::<String>().unwrap()
}

/// Two tasks of three accesses each. A preemption at each place of each, both ways round, and no order twice.
#[test]
fn each_order_is_tried_and_their_number_grows_with_the_preemptions() {
    let orders = |preemptions_max| {
        let seen = Log::default();
        let explored = explore(Bounds { preemptions_max, ..WIDE }, || {
            let (log, number) = (Log::default(), Rc::new(AtomicU64::new(0)));
            let inner = log.clone();
            two(move |nth| {
                for _ in 0..3 {
                    number.load(Relaxed);
                    inner.add(nth.to_string());
                }
            });
            seen.add(log.taken().concat());
        });
        let mut orders = BTreeMap::new();
        seen.taken().into_iter().for_each(|order| *orders.entry(order).or_insert(0) += 1);
        assert_eq!(orders.values().sum::<u64>(), explored.schedules);
        orders.into_keys().collect::<Vec<_>>()
    };
    // Without a preemption a task runs to its end.
    assert_eq!(orders(0), ["000111", "111000"]);
    // Five preemptions reach each of the 20 orders of three and three.
    let all = orders(5);
    assert_eq!(all.len(), 20);
    let [one, two] = [1, 2].map(orders);
    assert!(orders(0).iter().all(|order| one.contains(order)) && one.iter().all(|order| two.contains(order)));
    assert!(2 < one.len() && one.len() < two.len() && two.len() < 20, "{one:?} {two:?}");
}

#[test]
fn an_update_that_is_not_atomic_is_lost_in_some_schedule() {
    let count = |atomic: bool| {
        move || {
            let number = Rc::new(AtomicU64::new(0));
            let shared = number.clone();
            two(move |_| {
                if atomic {
                    shared.fetch_add(1, Relaxed);
                } else {
                    shared.store(shared.load(Relaxed) + 1, Relaxed);
                }
            });
            if number.load(Relaxed) != 2 {
                fail("an update is lost");
            }
        }
    };
    assert!(explore(WIDE, count(true)).schedules > 10);
    assert!(failure(count(false)).contains("an update is lost"));
}

#[test]
fn locks_in_two_orders_are_a_deadlock_in_some_schedule() {
    let told = failure(|| {
        let locks = [Mutex::new(()), Mutex::new(())];
        two(move |nth| {
            let _first = locks[nth].lock();
            let _second = locks[1 - nth].lock();
        });
    });
    assert!(told.contains("deadlock"), "{told}");
}

/// A thread that looks before it takes the lock sleeps for ever if the other one is in between.
#[test]
fn a_wake_up_between_a_look_and_the_sleep_is_lost_in_some_schedule() {
    struct Door(Mutex<bool>, Condvar);
    let program = |under_the_lock: bool| {
        move || {
            let door = Rc::new(Door(Mutex::new(false), Condvar::new()));
            two(move |nth| {
                if nth == 0 {
                    *door.0.lock() = true;
                    door.1.notify_all();
                    return;
                }
                if !under_the_lock && *door.0.lock() {
                    return;
                }
                let mut open = door.0.lock();
                while !(under_the_lock && *open) {
                    open = door.1.wait(open);
                    if !under_the_lock {
                        return;
                    }
                }
            });
        }
    };
    explore(WIDE, program(true));
    assert!(failure(program(false)).contains("deadlock"));
}

/// A loop that polls gives way to what it waits for, in each schedule.
#[test]
fn a_task_that_yields_lets_the_others_go_on() {
    let Explored { schedules, steps_max } = explore(WIDE, || {
        let number = Rc::new(AtomicU64::new(0));
        let shared = number.clone();
        let waits = spawn("waits", move || {
            while shared.load(Relaxed) == 0 {
                yield_now();
            }
        });
        number.store(1, Relaxed);
        task::yield_now();
        waits.unwrap().join().unwrap();
    });
    assert!(schedules > 3 && steps_max < 1_000, "{schedules} schedules, {steps_max} steps");
}

#[test]
fn a_program_that_is_too_long_is_told() {
    let few = Bounds { schedules_max: 5, ..WIDE };
    let number = || Rc::new(AtomicU64::new(0));
    let failed = catch_unwind(AssertUnwindSafe(|| {
        explore(few, || {
            let number = number();
            two(move |_| {
                number.load(Relaxed);
            });
        })
    }));
    assert!(failed.unwrap_err().downcast::<String>().unwrap().contains("more than 5 schedules"));
}
