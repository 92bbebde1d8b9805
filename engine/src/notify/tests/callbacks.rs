//! Callbacks: where they run, what they may do, and when they are gone.

use super::*;
use crate::status::Result;
use crate::sys::health::Health;
use crate::types::QueueId;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Barrier, Mutex};

/// A callback that forwards the number of each event.
fn sender() -> (Callback, Receiver<u64>) {
    let (sender, receiver) = channel();
    (Arc::new(move |event: &Event| sender.send(number(event)).unwrap()), receiver)
}

fn receive<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("the callback ran")
}

/// Runs `body` once on the callback thread, inside the callback of a queue of its own.
fn inside<T: Send + 'static>(hub: &Arc<Hub>, body: impl Fn(&Hub, QueueId) -> T + Send + Sync + 'static) -> T {
    let queue = hub.create(WHAT_TRANSFERS, 1, 0).unwrap();
    let (result, receiver): (Sender<T>, _) = channel();
    let (hub_inside, handle) = (hub.clone(), queue.handle());
    let callback: Callback = Arc::new(move |_| result.send(body(&hub_inside, handle)).unwrap());
    hub.set_callback(handle, Some(callback)).unwrap();
    submit(&queue, 0);
    receive(&receiver)
}

#[test]
fn events_come_in_order_those_before_it_was_set_first() {
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS, 100, 0).unwrap();
    let fd = queue.eventfd();
    (0..3).for_each(|n| submit(&queue, n));
    let (callback, receiver) = sender();
    hub.set_callback(queue.handle(), Some(callback)).unwrap();
    (3..100).for_each(|n| submit(&queue, n));
    assert_eq!((0..100).map(|_| receive(&receiver)).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    hub.set_callback(queue.handle(), None).unwrap();
    assert!(!readable(fd, 0), "nothing is left for a poller");
    submit(&queue, 100);
    assert_eq!(numbers(&queue), [100], "and without a callback it can be drained again");
}

#[test]
fn a_thread_knows_whether_it_is_inside() {
    let (hub, other) = (Arc::new(hub()), hub());
    let other = Arc::new(other);
    assert!(!hub.in_callback());
    let asked = other.clone();
    assert_eq!(inside(&hub, move |hub, _| (hub.in_callback(), asked.in_callback())), (true, false));
    hub.close(None);
}

#[test]
fn a_callback_may_push_drain_create_and_destroy() {
    let hub = Arc::new(hub());
    let statuses = inside(&hub, |hub, own| {
        let queue = hub.create(WHAT_TRANSFERS | WHAT_NOTIFICATIONS, 2, 0).unwrap();
        submit(&queue, 7);
        hub.notification(notification(8));
        assert_eq!(numbers(&queue), [7, 8]);
        let (callback, _receiver) = sender();
        hub.set_callback(queue.handle(), Some(callback)).unwrap();
        (hub.destroy(queue.handle()).is_ok(), hub.destroy(own).unwrap_err().status)
    });
    assert_eq!(statuses, (true, Status::Busy));
    hub.close(None);
}

#[test]
fn a_callback_feeds_its_own_queue_and_ends_itself() {
    let hub = Arc::new(hub());
    let queue = hub.create(WHAT_TRANSFERS, 2, 0).unwrap();
    let (done, receiver) = channel();
    let (hub_inside, queue_inside) = (hub.clone(), queue.clone());
    let callback: Callback = Arc::new(move |event| {
        submit(&queue_inside, number(event) + 1);
        if number(event) == 1000 {
            hub_inside.set_callback(queue_inside.handle(), None).unwrap();
            done.send(()).unwrap();
        }
    });
    hub.set_callback(queue.handle(), Some(callback)).unwrap();
    submit(&queue, 0);
    receive(&receiver);
    // Outside a callback, unsetting waits for the turn that is ending.
    hub.set_callback(queue.handle(), None).unwrap();
    assert_eq!(numbers(&queue), [1001], "the event after the last call waits");
}

#[test]
fn a_panic_ends_one_call_only() {
    let hub = hub();
    let queue = hub.create(WHAT_NOTIFICATIONS, 1, 0).unwrap();
    let (returned, (sender, receiver)) = (Arc::new(AtomicUsize::new(0)), channel());
    let callback: Callback = Arc::new(move |event| {
        if number(event) % 2 == 0 {
            // Not `panic!`: the hook would write into the test's output.
            std::panic::resume_unwind(Box::new("from the application"));
        }
        sender.send(number(event)).unwrap();
    });
    hub.set_callback(queue.handle(), Some(callback)).unwrap();
    (0..6).for_each(|n| hub.notification(Event { credit: credit(&returned), ..notification(n) }));
    assert_eq!([receive(&receiver), receive(&receiver), receive(&receiver)], [1, 3, 5]);
    hub.set_callback(queue.handle(), None).unwrap();
    assert_eq!(returned.load(Ordering::SeqCst), 6, "a credit goes back after a panic as well");
}

#[test]
fn unsetting_returns_after_the_running_call_and_leaves_nothing_of_it() {
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS, 2, 0).unwrap();
    for destroy in [false, true] {
        let (started, release, ended) =
            (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)), AtomicBool::new(false));
        let ended = Arc::new(ended);
        let callback: Callback = {
            let (started, release, ended) = (started.clone(), release.clone(), ended.clone());
            Arc::new(move |_| {
                started.wait();
                release.wait();
                ended.store(true, Ordering::SeqCst);
            })
        };
        hub.set_callback(queue.handle(), Some(callback.clone())).unwrap();
        submit(&queue, 0);
        started.wait();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if destroy {
                    hub.destroy(queue.handle()).unwrap()
                } else {
                    hub.set_callback(queue.handle(), None).unwrap()
                }
                assert!(ended.load(Ordering::SeqCst), "returned before the call had ended");
                assert_eq!(Arc::strong_count(&callback), 1, "something still holds the callback");
            });
            release.wait();
        });
    }
}

#[test]
fn no_call_begins_after_unsetting_has_returned() {
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS, 1 << 10, 0).unwrap();
    let (may_run, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut drained = 0;
    for round in 0..2000 {
        let callback: Callback = {
            let (may_run, calls) = (may_run.clone(), calls.clone());
            Arc::new(move |_| {
                calls.fetch_add(1, Ordering::SeqCst);
                // Reported by a count that is far too high, because an assertion here would be caught.
                if !may_run.load(Ordering::SeqCst) {
                    calls.fetch_add(1 << 30, Ordering::SeqCst);
                }
            })
        };
        may_run.store(true, Ordering::SeqCst);
        hub.set_callback(queue.handle(), Some(callback)).unwrap();
        submit(&queue, round);
        hub.set_callback(queue.handle(), None).unwrap();
        may_run.store(false, Ordering::SeqCst);
        drained += drain(&queue, 16).len();
    }
    assert_eq!(calls.load(Ordering::SeqCst) + drained, 2000, "every event went to exactly one taker");
}

#[test]
fn callbacks_of_several_queues_run_one_at_a_time() {
    const EVENTS: u64 = 2000;
    let hub = hub();
    let (running, most, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), channel());
    let last = Arc::new(Mutex::new(done.0));
    let queues = [(); 3].map(|()| hub.create(WHAT_TRANSFERS, EVENTS as usize, 0).unwrap());
    for queue in &queues {
        let (running, most, last) = (running.clone(), most.clone(), last.clone());
        let callback: Callback = Arc::new(move |event| {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            running.fetch_sub(1, Ordering::SeqCst);
            if number(event) == EVENTS - 1 {
                last.lock().unwrap().send(()).unwrap();
            }
        });
        hub.set_callback(queue.handle(), Some(callback)).unwrap();
    }
    std::thread::scope(|scope| {
        for queue in &queues {
            scope.spawn(|| (0..EVENTS).for_each(|n| submit(queue, n)));
        }
    });
    (0..3).for_each(|_| receive(&done.1));
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

#[test]
fn after_close_queues_can_only_be_drained() {
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS, 4, 0).unwrap();
    let (callback, receiver) = sender();
    hub.set_callback(queue.handle(), Some(callback.clone())).unwrap();
    submit(&queue, 0);
    receive(&receiver);
    hub.close(None);
    hub.close(None);
    assert_eq!(Arc::strong_count(&callback), 1);
    submit(&queue, 1);
    assert_eq!(numbers(&queue), [1]);
    assert_eq!(hub.set_callback(queue.handle(), Some(callback)).unwrap_err().status, Status::Closed);
    hub.set_callback(queue.handle(), None).unwrap();
    assert_eq!(hub.create(WHAT_TRANSFERS, 1, 0).err().unwrap().status, Status::Closed);
}

#[test]
fn closing_inside_a_callback_does_not_wait_for_itself() {
    let hub = Arc::new(hub());
    assert!(inside(&hub, |hub, _| {
        hub.close(None);
        hub.in_callback()
    }));
    // Outside a callback, the call waits, and the thread is gone afterwards.
    hub.close(None);
}

#[test]
fn the_last_reference_may_go_inside_a_callback() {
    let hub = Arc::new(hub());
    let queue = hub.create(WHAT_TRANSFERS, 1, 0).unwrap();
    let last = Arc::new(Mutex::new(Some(hub.clone())));
    let (done, receiver) = channel();
    let callback: Callback = Arc::new(move |_| {
        drop(last.lock().unwrap().take());
        done.send(()).unwrap();
    });
    hub.set_callback(queue.handle(), Some(callback)).unwrap();
    drop(hub);
    submit(&queue, 0);
    receive(&receiver);
}

/// The thread that stops in a broken engine may have been about to serve the queue again.
#[test]
fn a_queue_whose_callback_ran_when_the_engine_broke_is_served_again() {
    let (hub, health) = (hub(), Health::new());
    hub.set_health(health.clone());
    let queue = hub.create(WHAT_TRANSFERS, 8, 0).unwrap();
    let (told, heard) = channel();
    let [begun, broken] = [(); 2].map(|()| Arc::new(Barrier::new(2)));
    let (has_begun, is_broken) = (begun.clone(), broken.clone());
    let callback: Callback = Arc::new(move |event: &Event| {
        if number(event) == 0 {
            has_begun.wait();
            is_broken.wait();
        }
        told.send(number(event)).unwrap();
    });
    hub.set_callback(queue.handle(), Some(callback)).unwrap();
    submit(&queue, 0);
    begun.wait();
    let bug = || -> Result<()> { std::panic::resume_unwind(Box::new("a bug")) };
    assert_eq!(health.call("a test", bug).unwrap_err().status, Status::Panic);
    submit(&queue, 1);
    hub.reschedule();
    broken.wait();
    assert_eq!([receive(&heard), receive(&heard)], [0, 1]);
    hub.close(None);
}
