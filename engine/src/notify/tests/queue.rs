//! One queue: reservations, order, and the arm and drain contract as poll(2) sees it.

use super::*;
use crate::types::PeerId;

/// So long that only a lost wake-up exceeds it.
const FOREVER_MS: i32 = 60_000;

#[test]
fn room_is_reserved_exactly() {
    let hub = hub();
    for capacity in [1, 2, 7] {
        let queue = hub.create(WHAT_TRANSFERS, capacity, 0).unwrap();
        for _ in 0..capacity {
            queue.reserve().unwrap();
        }
        let full = || assert_eq!(queue.reserve().unwrap_err().status, Status::Limit);
        full();
        queue.unreserve();
        queue.reserve().unwrap();
        full();
        queue.push_reserved(transfer(0), || ());
        full();
        assert_eq!(numbers(&queue), [0]);
        queue.reserve().unwrap();
        full();
    }
}

#[test]
fn only_a_live_queue_for_transfers_reserves() {
    let hub = hub();
    let peers = hub.create(WHAT_PEERS | WHAT_NOTIFICATIONS, 1, 0).unwrap();
    assert_eq!(peers.reserve().unwrap_err().status, Status::Invalid);
    let queue = hub.create(WHAT_TRANSFERS, 1, 0).unwrap();
    hub.destroy(queue.handle()).unwrap();
    assert_eq!(queue.reserve().unwrap_err().status, Status::Stale);
    assert_eq!(drain(&queue, 1).len(), 0);
}

#[test]
fn notifications_take_no_room_from_transfers() {
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS | WHAT_NOTIFICATIONS, 1, 0).unwrap();
    (0..10).for_each(|n| hub.notification(notification(n)));
    submit(&queue, 10);
    assert_eq!(queue.reserve().unwrap_err().status, Status::Limit);
    assert_eq!((queue.pending(), numbers(&queue)), (11, (0..=10).collect()));
    queue.reserve().unwrap();
}

#[test]
fn one_write_an_edge_and_armed_by_a_short_drain() {
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS, 8, 0).unwrap();
    let fd = queue.eventfd();
    assert!(!readable(fd, 0));
    (0..3).for_each(|n| submit(&queue, n));
    assert!(readable(fd, 0));
    assert_eq!(writes(fd), 1, "only the first event to an empty queue writes");

    assert_eq!(drain(&queue, 0).len(), 0);
    assert_eq!(drain(&queue, 2).len(), 2);
    assert!(readable(fd, 0), "there is more");
    assert_eq!(drain(&queue, 1).len(), 1);
    assert!(readable(fd, 0), "the caller has not been told that there is no more");
    submit(&queue, 3);
    assert_eq!(writes(fd), 1, "not armed: not written again");
    assert_eq!(numbers(&queue), [3]);
    assert!(!readable(fd, 0), "armed");
    submit(&queue, 4);
    assert!(readable(fd, 0) && writes(fd) == 1);
}

#[test]
fn an_eventfd_asked_for_late_knows_what_came_before() {
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS, 8, 0).unwrap();
    submit(&queue, 0);
    let fd = queue.eventfd();
    assert!(readable(fd, 0));
    assert_eq!(queue.eventfd(), fd);
    assert_eq!((writes(fd), numbers(&queue)), (1, vec![0]));
    assert!(!readable(queue.eventfd(), 0), "asking again does not raise an empty queue's");
}

/// Four threads push; one thread polls and drains in small steps, as an event loop does. Every poll that returns
/// readable is followed by a drain with events, no event is lost or out of its thread's order, and in the end the
/// eventfd is not readable.
#[test]
fn no_event_is_lost_and_no_wake_up_is_idle_under_concurrent_producers() {
    const PRODUCERS: u64 = 4;
    const EVENTS: u64 = 20_000;
    const CAPACITY: usize = 64;
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS | WHAT_NOTIFICATIONS, CAPACITY, 0).unwrap();
    let fd = queue.eventfd();
    std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let (queue, hub) = (&queue, &hub);
            scope.spawn(move || {
                for n in 0..EVENTS {
                    let number = producer << 32 | n;
                    if n % 4 == 3 {
                        hub.notification(notification(number));
                        continue;
                    }
                    while queue.reserve().is_err() {
                        std::thread::yield_now();
                    }
                    queue.push_reserved(transfer(number), || ());
                }
            });
        }
        let (mut next, mut total, mut out) = ([0; PRODUCERS as usize], 0, Vec::new());
        while total < PRODUCERS * EVENTS {
            assert!(readable(fd, FOREVER_MS), "lost wake-up after {total} events");
            let mut first = true;
            loop {
                let count = queue.drain(&mut out, 7);
                assert!(count > 0 || !first, "readable with nothing to drain");
                first = false;
                for event in out.drain(..) {
                    let (producer, n) = ((number(&event) >> 32) as usize, number(&event) & 0xffff_ffff);
                    assert_eq!(n, next[producer], "producer {producer}");
                    next[producer] += 1;
                    total += 1;
                }
                if count < 7 {
                    break;
                }
            }
        }
    });
    assert!(!readable(fd, 0) && queue.pending() == 0);
}

#[test]
fn concurrent_reservations_never_exceed_the_capacity() {
    const CAPACITY: usize = 3;
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS, CAPACITY, 0).unwrap();
    let held = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..20_000 {
                    if queue.reserve().is_err() {
                        continue;
                    }
                    assert!(held.fetch_add(1, Ordering::SeqCst) < CAPACITY);
                    held.fetch_sub(1, Ordering::SeqCst);
                    match round % 2 {
                        0 => queue.unreserve(),
                        _ => {
                            queue.push_reserved(transfer(round), || ());
                            assert!(queue.pending() <= CAPACITY);
                            drain(&queue, 1);
                        }
                    }
                }
            });
        }
    });
    drain(&queue, CAPACITY);
    (0..CAPACITY).for_each(|_| queue.reserve().unwrap());
    assert_eq!(queue.reserve().unwrap_err().status, Status::Limit);
}

#[test]
fn a_connect_takes_room_in_the_queue_it_was_given() {
    let hub = hub();
    let queue = hub.create(WHAT_PEERS, 1, 0).unwrap();
    queue.reserve_connect().unwrap();
    assert_eq!(queue.reserve_connect().unwrap_err().status, Status::Limit);
    assert_eq!(hub.destroy(queue.handle()).unwrap_err().status, Status::Busy);
    queue.push_reserved(
        Event::new(
            PeerId::NONE,
            EventBody::PeerConnect {
                user_data: 9,
                status: Status::Refused,
                os_error: 0,
                why: "wrong".into(),
            },
        ),
        || (),
    );
    assert_eq!(queue.reserve_connect().unwrap_err().status, Status::Limit);
    assert_eq!(queue.drain(&mut Vec::new(), 2), 1);
    queue.reserve_connect().unwrap();
    queue.unreserve();
    let transfers = hub.create(WHAT_TRANSFERS, 1, 0).unwrap();
    assert_eq!(transfers.reserve_connect().unwrap_err().status, Status::Invalid);
}
