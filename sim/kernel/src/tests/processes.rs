//! Hosts and processes, their clocks, and registered memory.

use super::{seeded, Log};
use crate::memory::{self, Access};
use crate::task::{self, spawn};
use crate::{clock, process, run, Options};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

struct Tells(Log, &'static str);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.add(self.1);
    }
}

#[test]
fn a_killed_process_never_runs_again_and_drops_nothing() {
    for seed in 0..30 {
        let log = Log::default();
        seeded(seed, || {
            let victim = process::host("a").start("victim");
            let tells = |what| Tells(log.clone(), what);
            let (held, own, later) = (tells("held"), log.clone(), log.clone());
            let busy = victim.spawn("busy", move || {
                let _held = held;
                loop {
                    task::yield_now();
                    own.add("runs");
                }
            });
            let sleeps = victim.spawn("sleeps", move || {
                task::sleep(50 * MS);
                later.add("late");
            });
            task::sleep(5 * MS);
            victim.kill();
            assert!(!victim.is_alive() && log.taken().iter().all(|said| said == "runs"));
            let error = busy.unwrap().join().unwrap_err();
            assert_eq!(error.downcast_ref::<&str>(), Some(&"the task was killed"));
            assert!(sleeps.unwrap().is_finished());
            task::sleep(100 * MS);
            assert!(victim.spawn("more", || ()).is_err());
        })
        .check();
        assert_eq!(log.taken(), Vec::<String>::new());
    }
}

#[test]
fn a_task_that_kills_its_own_process_goes_no_further() {
    for seed in 0..30 {
        let log = Log::default();
        seeded(seed, || {
            let victim = process::host("a").start("victim");
            let own = log.clone();
            let task = victim.spawn("ends it", move || {
                process::current().kill();
                own.add("lives");
            });
            assert!(task.unwrap().join().is_err());
            victim.kill();
        })
        .check();
        assert_eq!(log.taken(), Vec::<String>::new());
    }
}

#[test]
fn a_kill_that_was_planned_comes_while_the_victim_is_busy() {
    for seed in 0..30 {
        seeded(seed, || {
            let victim = process::host("a").start("victim");
            victim.kill_after(3 * MS);
            let busy = victim.spawn("busy", || loop {
                task::spin();
            });
            assert!(busy.unwrap().join().is_err());
            assert!(clock::virtual_ns() >= 3_000_000);
        })
        .check();
    }
}

#[test]
fn a_stopped_process_rests_until_it_is_resumed() {
    for seed in 0..30 {
        let log = Log::default();
        seeded(seed, || {
            let stopped = process::host("a").start("stopped");
            let own = log.clone();
            let runs = stopped.spawn("runs", move || loop {
                task::sleep(MS);
                own.add("runs");
            });
            task::sleep(10 * MS);
            stopped.stop();
            log.taken();
            task::sleep(100 * MS);
            assert_eq!(log.taken(), Vec::<String>::new());
            stopped.resume();
            task::sleep(200 * MS);
            assert!(!log.taken().is_empty());
            drop(runs);
        })
        .check();
    }
}

#[test]
fn a_suspended_host_stands_and_its_boottime_goes_on() {
    seeded(7, || {
        let host = process::host("a");
        let process = host.start("sleeper");
        let task = process.spawn("sleeps", || {
            let (monotonic, boottime) = (clock::monotonic_ns(), clock::boottime_ns());
            task::sleep(100 * MS);
            (clock::monotonic_ns() - monotonic, clock::boottime_ns() - boottime)
        });
        task::sleep(50 * MS);
        host.suspend();
        task::sleep(1000 * MS);
        host.wake_up();
        let (monotonic, boottime) = task.unwrap().join().unwrap();
        assert!((100_000_000..350_000_000).contains(&monotonic), "{monotonic}");
        assert!(boottime >= monotonic + 900_000_000, "{boottime}");
        assert!(clock::virtual_ns() >= 1_090_000_000);
    })
    .check();
}

#[test]
fn a_drift_moves_waits_that_are_under_way() {
    let options = Options { naps_ppm: Some(0), ..Options::default() };
    let body = || {
        let host = process::host("fast");
        let sleeps = host.start("sleeper").spawn("sleeps", || {
            let shown = clock::monotonic_ns();
            task::sleep(1000 * MS);
            assert!(clock::monotonic_ns() - shown >= 1_000_000_000);
        });
        task::sleep(100 * MS);
        host.set_drift_ppm(500_000);
        sleeps.unwrap().join().unwrap();
        let ms = clock::virtual_ns() / 1_000_000;
        assert!((695..710).contains(&ms), "{ms}");
    };
    run(1, options, body).check();
}

#[test]
fn hosts_and_processes_are_told_apart() {
    seeded(1, || {
        let (a, b) = (process::host("a"), process::host("b"));
        assert!(a.boot() != b.boot() && a.address() != b.address());
        let (first, second) = (a.start("x"), a.start("x"));
        assert!(first.pid() != second.pid() && second.started_ns() >= first.started_ns());
        first.kill();
        assert_eq!(a.processes(), [second]);
        let known = process::host_with_clocks("known", 1_000_000, 5_000_000).start("x");
        let shown =
            known.spawn("looks", || (clock::monotonic_ns(), clock::boottime_ns())).unwrap().join().unwrap();
        assert!(shown.0 >= 1_000_000 && shown.1 >= 5_000_000 && shown.1 - shown.0 < 5_000_000);
    })
    .check();
}

#[test]
fn a_process_without_threads_left_gets_eagain() {
    seeded(1, || {
        let poor = process::host("a").start("poor");
        poor.fail_spawns_after(Some(1));
        let errors = poor.spawn("first", || spawn("second", || ()).map(drop)).unwrap().join().unwrap();
        assert_eq!(errors.unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        poor.fail_spawns_after(None);
        assert!(poor.spawn("third", || ()).is_ok());
    })
    .check();
}

#[test]
fn accesses_to_ranges_are_told_with_their_part() {
    let seen: Rc<RefCell<Vec<Access>>> = Rc::default();
    let own = seen.clone();
    let observer = Box::new(move |access: &Access| own.borrow_mut().push(access.clone()));
    let options = Options { observer: Some(observer), ..Options::default() };
    let body = || {
        task::sleep(MS);
        let owner = process::host("a").start("owner");
        let range = memory::register(owner, 7, 1000, 100);
        memory::register(owner, 8, 1050, 10);
        memory::accessed(owner, 990, 20, true, "test");
        memory::accessed(owner, 1040, 20, false, "test");
        memory::accessed(owner, 1100, 1, true, "test");
        memory::accessed(process::current(), 1000, 1, true, "test");
        memory::unregister(range);
        memory::accessed(owner, 1000, 10, true, "test");
    };
    run(1, options, body).check();
    let seen = seen.take();
    let told: Vec<_> = seen.iter().map(|it| (it.label, it.offset, it.length, it.write)).collect();
    assert_eq!(told, [(7, 0, 10, true), (7, 40, 20, false), (8, 0, 10, false)]);
    assert!(seen.iter().all(|it| it.by == "test" && it.actor != it.process && it.ns > 0));
}
