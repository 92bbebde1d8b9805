//! A queue and its eventfd: a program that sleeps until the eventfd is readable, and drains, gets every event.

use crate::rig::*;
use ferry::internals::handle::Tag;
use ferry::internals::notify::{create, hub, push, wait_for_event};
use ferry::notify::{Event, EventBody, Hub, Queue, WHAT_TRANSFERS};
use ferry::types::{PeerId, TransferId};
use ferry::Status;
use ferry_sim_kernel::poller::{poll, Interest};
use ferry_sim_kernel::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::rc::Rc;
use std::sync::Arc;

struct Rig {
    hub: Hub,
    queue: Arc<Queue>,
    published: AtomicU64,
}

fn event(nth: u64) -> Event {
    let transfer = TransferId::from_raw(nth);
    let body = EventBody::Transfer { transfer, user_data: nth, status: Status::Ok };
    Event { peer: PeerId::from_raw(1), body, credit: None }
}

fn rig(capacity: usize) -> Rc<Rig> {
    let hub = hub(Tag::from_random(1));
    let queue = create(&hub, WHAT_TRANSFERS, capacity).unwrap();
    Rc::new(Rig { hub, queue, published: AtomicU64::new(0) })
}

impl Rig {
    fn push(&self, nth: u64) {
        push(&self.queue, event(nth), || {
            self.published.fetch_add(1, Relaxed);
        })
        .unwrap();
    }
}

/// A thread that ends transfers pushes two events, the program drains one at a time whenever the eventfd is readable.
/// It never sleeps with an event in the queue.
#[test]
fn a_program_that_polls_the_eventfd_gets_every_event() {
    explore(3, || {
        let rig = rig(4);
        let pushes = start(&rig, "pushes", |rig| {
            rig.push(1);
            rig.push(2);
        });
        let fd = rig.queue.eventfd();
        let mut events = Vec::new();
        while events.len() < 2 {
            let readable = Interest { read: true, write: false };
            assert!(!poll(&[(fd, readable)], None).unwrap().is_empty());
            rig.queue.drain(&mut events, 1);
            assert!(rig.published.load(Relaxed) >= events.len() as u64, "an event before its state");
        }
        join([pushes]);
        rig.queue.drain(&mut events, 1);
        assert_eq!(events.len(), 2);
    });
}

/// Two threads sleep until there is an event while another thread pushes two. Each gets one: no wake-up is lost.
#[test]
fn threads_that_sleep_get_every_event() {
    explore(2, || {
        let rig = rig(4);
        let sleeps = |rig: &Rig| {
            assert_eq!(wait_for_event(&rig.queue).unwrap().len(), 1);
            assert!(rig.published.load(Relaxed) >= 1, "an event before its state");
        };
        let sleepers = [start(&rig, "first", sleeps), start(&rig, "second", sleeps)];
        rig.push(1);
        rig.push(2);
        join(sleepers);
        assert_eq!(rig.queue.pending(), 0);
    });
}

/// A thread sleeps, an event comes, and the queue is destroyed. The thread gets the event, or learns the end.
#[test]
fn a_thread_that_sleeps_learns_that_the_queue_is_gone() {
    explore(3, || {
        let rig = rig(4);
        let sleeps = start(&rig, "sleeps", |rig| {
            let first = wait_for_event(&rig.queue);
            let ends = match first {
                Ok(events) => {
                    assert_eq!(events.len(), 1);
                    wait_for_event(&rig.queue)
                }
                end => end,
            };
            assert_eq!(ends.unwrap_err().status, Status::Stale);
        });
        rig.push(1);
        rig.hub.destroy(rig.queue.handle()).unwrap();
        join([sleeps]);
    });
}
