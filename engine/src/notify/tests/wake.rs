//! Threads and tasks that wait until a queue has an event.

use super::*;
use crate::limits::EVENT_TASKS_MAX;
use crate::status::{Error, Result};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{channel, Sender};
use std::sync::Mutex;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn soon() -> Option<Instant> {
    Instant::now().checked_add(PATIENCE)
}

/// The engine goes on.
fn on() -> Result<()> {
    Ok(())
}

fn asleep(queue: &Queue, threads: usize) {
    let end = Instant::now() + PATIENCE;
    while queue.inner.lock().sleepers < threads {
        assert!(Instant::now() < end, "no thread sleeps");
        std::thread::yield_now();
    }
}

/// The waker of a task that says its number.
struct Task(Mutex<Sender<usize>>, usize);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.lock().unwrap().send(self.1).unwrap();
    }
}

#[test]
fn a_sleeping_thread_gets_the_event_or_learns_why_there_is_none() {
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS, 8, 0).unwrap();
    let none = queue.wait_for_events(8, on, Some(Instant::now())).unwrap_err();
    assert_eq!((none.status, queue.inner.lock().sleepers), (Status::Timeout, 0));
    let closed = AtomicBool::new(false);
    let over =
        || if closed.load(Ordering::SeqCst) { Err(Error::new(Status::Closed, "closed")) } else { Ok(()) };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| queue.wait_for_events(8, over, soon()).unwrap());
        asleep(&queue, 1);
        submit(&queue, 5);
        assert_eq!(thread.join().unwrap().iter().map(number).collect::<Vec<_>>(), [5]);
        // An end wakes as well, and comes behind the last event.
        let thread = scope.spawn(|| queue.wait_for_events(1, over, soon()));
        asleep(&queue, 1);
        closed.store(true, Ordering::SeqCst);
        queue.rouse();
        assert_eq!(thread.join().unwrap().unwrap_err().status, Status::Closed);
        submit(&queue, 6);
        assert_eq!(number(&queue.wait_for_events(1, over, None).unwrap()[0]), 6);
        assert_eq!(queue.wait_for_events(1, over, None).unwrap_err().status, Status::Closed);
        closed.store(false, Ordering::SeqCst);
        let thread = scope.spawn(|| queue.wait_for_events(1, over, soon()));
        asleep(&queue, 1);
        hub.destroy(queue.handle()).unwrap();
        assert_eq!(thread.join().unwrap().unwrap_err().status, Status::Stale);
    });
}

/// A wait that empties the queue arms the eventfd, as a drain does.
#[test]
fn a_wait_and_a_poller_do_not_deceive_each_other() {
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS, 8, 0).unwrap();
    let fd = queue.eventfd();
    submit(&queue, 1);
    assert!(readable(fd, 0));
    assert_eq!(queue.wait_for_events(8, on, None).unwrap().len(), 1);
    assert!(!readable(fd, 0), "the events are taken");
    submit(&queue, 2);
    assert!(readable(fd, 0), "and the next one is told");
    hub.rouse();
    assert!(
        queue.wait_for_events(1, on, None).is_ok()
            && queue.wait_for_events(1, on, Some(Instant::now())).is_err()
    );
    assert!(readable(fd, 0), "an end is told");
    assert_eq!(queue.drain(&mut Vec::new(), 8), 0);
    assert!(readable(fd, 0), "also to a poller that drained when the engine was about to end");
    let other = hub.create(WHAT_TRANSFERS, 8, 0).unwrap();
    hub.rouse();
    assert!(readable(other.eventfd(), 0), "and to one that asks for the descriptor afterwards");
}

#[test]
fn each_event_goes_to_one_sleeper_and_none_is_lost() {
    const EVENTS: u64 = 20_000;
    const SLEEPERS: usize = 3;
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS, 64, 0).unwrap();
    let end = AtomicBool::new(false);
    let over = || if end.load(Ordering::SeqCst) { Err(Error::new(Status::Closed, "closed")) } else { Ok(()) };
    let mut found: Vec<u64> = std::thread::scope(|scope| {
        let sleepers: Vec<_> = (0..SLEEPERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut found = Vec::new();
                    while let Ok(events) = queue.wait_for_events(2, over, soon()) {
                        assert!((1..=2).contains(&events.len()));
                        found.extend(events.iter().map(number));
                    }
                    found
                })
            })
            .collect();
        for event in 0..EVENTS {
            while queue.reserve().is_err() {
                std::thread::yield_now();
            }
            queue.push_reserved(transfer(event), || ());
        }
        end.store(true, Ordering::SeqCst);
        queue.rouse();
        sleepers.into_iter().flat_map(|sleeper| sleeper.join().unwrap()).collect()
    });
    found.sort_unstable();
    assert!(found.into_iter().eq(0..EVENTS));
}

#[test]
fn a_task_is_woken_by_each_event_that_it_waits_for_and_by_the_end() {
    let hub = hub();
    hub.start_waking().unwrap();
    let queue = hub.create(WHAT_TRANSFERS, 8, 0).unwrap();
    let (sender, receiver) = channel();
    let task = |number| Waker::from(Arc::new(Task(Mutex::new(sender.clone()), number)));
    let woken = || receiver.recv_timeout(PATIENCE).expect("the task is woken");
    let waker = task(0);
    let future = queue.next_future();
    for event in 0..100 {
        assert!(queue.poll(future, &waker, on).is_none() && queue.poll(future, &waker, on).is_none());
        submit(&queue, event);
        assert_eq!(woken(), 0);
        assert_eq!(number(&queue.poll(future, &waker, on).unwrap().unwrap()), event);
    }
    // A future that has its event waits no more, and neither does one that was dropped.
    assert!(queue.inner.lock().tasks.is_empty());
    assert!(queue.poll(future, &waker, on).is_none());
    queue.forget(future);
    assert!(queue.inner.lock().tasks.is_empty());
    // The last waker of a future counts.
    assert!(queue.poll(future, &waker, on).is_none() && queue.poll(future, &task(7), on).is_none());
    hub.rouse();
    assert_eq!(woken(), 7);
    assert!(queue.poll(future, &waker, on).is_none());
    hub.destroy(queue.handle()).unwrap();
    assert_eq!(woken(), 0);
    assert_eq!(queue.poll(future, &waker, on).unwrap().unwrap_err().status, Status::Stale);
    assert!(receiver.try_recv().is_err() && queue.inner.lock().tasks.is_empty());
}

/// Beyond the bound a task is refused: woken to wait again, tasks would wake each other without an end.
#[test]
fn as_many_tasks_wait_for_a_queue_as_the_limit_says() {
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS, 8, 0).unwrap();
    let futures: Vec<_> = (0..EVENT_TASKS_MAX).map(|_| queue.next_future()).collect();
    futures.iter().for_each(|future| assert!(queue.poll(*future, Waker::noop(), on).is_none()));
    let one_more = queue.next_future();
    let full = queue.poll(one_more, Waker::noop(), on).unwrap().unwrap_err();
    assert_eq!((full.status, &*full.message), (Status::Limit, "1024 tasks wait for events of the queue"));
    assert!(queue.poll(futures[0], Waker::noop(), on).is_none(), "those that wait may poll again");
    queue.forget(futures[9]);
    assert!(queue.poll(one_more, Waker::noop(), on).is_none());
}
