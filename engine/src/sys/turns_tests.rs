//! The driver of the threads' turns: when it calls a turn, when it asks the sleeper, and what a panic does.

use super::super::health::Health;
use super::super::poller::PollerKind;
use super::*;
use crate::command::Reply;
use crate::status::Status;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{channel, Sender};

const BOUND: Duration = Duration::from_secs(30);

/// Work whose turns are calls of a function.
struct Calls<F>(F, Option<Sender<&'static str>>);

impl<F: FnMut(Monotonic, &[Ready]) -> Next> Turns for Calls<F> {
    fn turn(&mut self, now: Monotonic, ready: &[Ready]) -> Next {
        (self.0)(now, ready)
    }

    fn abandon(self: Box<Self>) {
        self.1.iter().for_each(|told| told.send("abandoned").unwrap());
    }
}

fn calls<F: FnMut(Monotonic, &[Ready]) -> Next>(turn: F) -> Option<Calls<F>> {
    Some(Calls(turn, None))
}

/// A sleeper that never sleeps, records how long it was to sleep, and reports one descriptor.
#[derive(Default)]
struct Record(Mutex<Vec<Option<u64>>>);

impl Sleeper for Record {
    fn sleep(&self, ready: &mut Vec<Ready>, timeout_ns: Option<u64>) {
        self.0.lock().push(timeout_ns);
        ready.clear();
        ready.push(Ready { token: 7, readable: true, writable: false, hangup: false });
    }

    fn wake(&self) {}
}

/// Set when the thread is to work.
#[derive(Default)]
struct Flag(bool);

impl HasWork for Flag {
    fn has_work(&self) -> bool {
        self.0
    }
}

#[test]
fn each_answer_leads_to_its_sleep_and_over_ends_the_thread() {
    let record = Arc::new(Record::default());
    let (told, seen) = channel();
    let mut left = vec![
        Next::Over,
        Next::WhenWoken,
        Next::AFTER_A_LOOK,
        Next::Again,
        Next::At(Monotonic::NEVER),
        Next::Again,
    ];
    let mut before = Monotonic::ZERO;
    let thread = start("ferry-test", "testing", record.clone(), move || {
        calls(move |now, ready| {
            assert!(now >= before && now <= clock::monotonic_ns());
            before = clock::monotonic_ns();
            told.send(ready.len()).unwrap();
            left.pop().unwrap()
        })
    });
    thread.unwrap().join().unwrap();
    // Nothing is ready in the first turn and after `Again`: the sleeper was not asked.
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [0, 0, 1, 0, 1, 1]);
    let slept = record.0.lock();
    assert!(slept[0].is_some_and(|ns| ns > u64::MAX / 2), "{:?}", slept[0]);
    assert_eq!(slept[1..], [Some(0), None]);
}

/// A time that the turn itself has outlasted is over: the thread does not sleep longer by the length of its turns.
#[test]
fn the_time_of_a_turn_is_part_of_the_time_to_the_next() {
    let record = Arc::new(Record::default());
    let mut turns = 0;
    let thread = start("ferry-test", "testing", record.clone(), move || {
        calls(move |now, _| {
            turns += 1;
            while clock::monotonic_ns() <= now + 1_000_000 {}
            if turns == 2 {
                Next::Over
            } else {
                Next::At(now + 1_000_000)
            }
        })
    });
    thread.unwrap().join().unwrap();
    assert_eq!(record.0.lock()[..], [Some(0)]);
}

#[test]
fn a_turn_begins_on_time() {
    const PAUSE_NS: u64 = 5_000_000;
    let sleepers: [Arc<dyn Sleeper>; 2] =
        [Arc::new(Poller::new(PollerKind::Epoll).unwrap()), Arc::<Awaited<Flag>>::default()];
    for sleeper in sleepers {
        let (told, times) = channel();
        let thread = start("ferry-test", "testing", sleeper, move || {
            calls(move |now, _| told.send(now).map_or(Next::Over, |()| Next::At(now + PAUSE_NS)))
        });
        let times: Vec<Monotonic> = times.into_iter().take(5).collect();
        thread.unwrap().join().unwrap();
        // A sleep may end early for no reason, but not each of them.
        assert!(times[4] - times[0] >= 3 * PAUSE_NS, "{times:?}");
    }
}

/// In each round the thread is woken before, while or after it goes to sleep, as the scheduler has it.
#[test]
fn no_work_is_lost() {
    const ROUNDS: u32 = 2000;
    let flag = Arc::<Awaited<Flag>>::default();
    let poller = Arc::new(Poller::new(PollerKind::Epoll).unwrap());
    let (told, done) = channel();
    let both = told.clone();
    let state = flag.clone();
    let asleep_on_flag = start("ferry-test", "testing", flag.clone(), move || {
        calls(move |_, _| {
            if std::mem::take(&mut state.lock().0) {
                told.send(()).unwrap();
            }
            Next::WhenWoken
        })
    });
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let asleep_on_poller = start("ferry-test", "testing", poller.clone(), move || {
        calls(move |_, _| {
            if count.swap(0, Ordering::SeqCst) > 0 {
                both.send(()).unwrap();
            }
            Next::WhenWoken
        })
    });
    for _ in 0..ROUNDS {
        flag.lock().0 = true;
        flag.wake_one();
        done.recv_timeout(BOUND).expect("the wake of a state is lost");
        asked.store(1, Ordering::SeqCst);
        Sleeper::wake(&*poller);
        done.recv_timeout(BOUND).expect("the wake of a poller is lost");
    }
    // The threads sleep until the process ends.
    drop((asleep_on_flag, asleep_on_poller));
}

/// A panic in a turn breaks the engine. Its other threads end, whether they sleep or never do. Each abandons its work.
#[test]
fn a_turn_that_panics_breaks_the_engine() {
    let health = Health::new();
    let lock = Arc::new(Mutex::new(()));
    let (told, abandoned) = channel();
    let begun = Arc::new(AtomicU32::new(0));
    let may_panic = Arc::new(AtomicBool::new(false));
    let run = |kind: u32| {
        let (told, lock, begun, may_panic) = (told.clone(), lock.clone(), begun.clone(), may_panic.clone());
        let make = move || {
            let turn = move |_: Monotonic, _: &[Ready]| {
                begun.fetch_or(1 << kind, Ordering::SeqCst);
                let panics = kind == 0 && may_panic.load(Ordering::SeqCst);
                if panics {
                    let _guard = lock.lock();
                    panic!("in a turn");
                }
                match kind {
                    0 | 1 => Next::Again,
                    2 => Next::At(Monotonic::NEVER),
                    _ => Next::WhenWoken,
                }
            };
            Some(Calls(turn, Some(told)))
        };
        let sleeper: Arc<dyn Sleeper> = match kind {
            2 => Arc::new(Poller::new(PollerKind::Epoll).unwrap()),
            _ => Arc::<Awaited<Flag>>::default(),
        };
        health.within(|| start(format!("ferry-test-{kind}"), "testing a panic", sleeper, make)).unwrap()
    };
    let threads: Vec<_> = (0..4).map(run).collect();
    while begun.load(Ordering::SeqCst) != 0b1111 {
        std::thread::yield_now();
    }
    may_panic.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(abandoned.try_iter().count(), 4);
    let error = health.error();
    assert_eq!(error.status, Status::Panic);
    for part in ["ferry-test-0", "testing a panic", "in a turn"] {
        assert!(error.message.contains(part), "{error}");
    }
    health.wait_threads().unwrap();
}

/// Work that is abandoned may take the locks of its engine, which is broken by then.
#[test]
fn what_is_abandoned_may_lock() {
    struct Locks(Arc<Mutex<u32>>);
    impl Turns for Locks {
        fn turn(&mut self, _: Monotonic, _: &[Ready]) -> Next {
            let _guard = self.0.lock();
            panic!("under a lock");
        }

        fn abandon(self: Box<Self>) {
            *self.0.lock() += 1;
        }
    }
    let (health, lock) = (Health::new(), Arc::new(Mutex::new(0)));
    let own = lock.clone();
    let sleeper = Arc::new(Record::default());
    let thread = health.within(|| start("ferry-test", "testing", sleeper, move || Some(Locks(own))));
    thread.unwrap().join().unwrap();
    assert_eq!(*lock.lock(), 1);
    assert!(health.is_broken());
}

/// A caller that waits for work that is abandoned gets PANIC, also if the panic began outside locks.
#[test]
fn the_engine_is_broken_before_its_work_is_abandoned() {
    let health = Health::new();
    let (reply, answer) = Reply::<()>::pair();
    let turn = move |_: Monotonic, _: &[Ready]| -> Next { panic!("awaited: {}", reply.is_awaited()) };
    let sleeper = Arc::new(Record::default());
    let thread = health.within(|| start("ferry-test", "testing", sleeper, move || calls(turn)));
    thread.unwrap().join().unwrap();
    assert_eq!(answer.wait(None, "the work").unwrap_err().status, Status::Panic);
}

/// The work after a broken engine's end runs once, and a panic in it is not reported.
#[test]
fn a_thread_apart_works_on_after_the_engine() {
    let health = Health::new();
    let (told, heard) = channel();
    let sleeper = Arc::new(Record::default());
    let started = health.within(|| {
        start_apart(
            "ferry-test",
            "testing",
            sleeper,
            || calls(|_, _| panic!("the first turn")),
            move || {
                calls(move |_, _| {
                    told.send(()).unwrap();
                    panic!("the last turn");
                })
            },
        )
    });
    started.unwrap().join().unwrap();
    assert!(health.is_broken() && health.wait_over(Some(clock::now())).is_ok(), "over by now");
    assert_eq!(heard.try_iter().count(), 1);
}
