//! The hub: creating and destroying queues, and the routing of events.

use super::*;
use crate::types::{PeerId, QueueId};

#[test]
fn create_checks_what_it_is_given() {
    let hub = hub();
    for (what, capacity) in [(0, 1), (16, 1), (WHAT_TRANSFERS | 1 << 31, 1), (1, 0), (1, (1 << 20) + 1)] {
        let refused = hub.create(what, capacity, 0).err().map(|error| error.status);
        assert_eq!(refused, Some(Status::Invalid), "{what} {capacity}");
    }
    for (what, capacity) in [(1, 1), (2, 1), (4, 1 << 20), (8, 1)] {
        let queue = hub.create(what, capacity, 0).unwrap();
        assert_eq!((queue.what(), hub.get(queue.handle()).unwrap().handle()), (what, queue.handle()));
    }
}

#[test]
fn handles_are_checked() {
    let hub = hub();
    let handle = hub.create(WHAT_TRANSFERS, 1, 0).unwrap().handle();
    let status = |handle| hub.get(handle).err().map(|error| error.status);
    let other = QueueId::from_raw;
    assert_eq!(status(QueueId::NONE), Some(Status::Invalid));
    assert_eq!(status(other(handle.raw() ^ 1 << 62)), Some(Status::Invalid));
    assert_eq!(status(other(handle.raw() ^ 1 << 48)), Some(Status::Stale), "another engine");
    assert_eq!(status(other(handle.raw() + 1)), Some(Status::Stale));
    assert_eq!(status(handle), None);
    hub.destroy(handle).unwrap();
    assert_eq!(status(handle), Some(Status::Stale));
    assert_eq!(hub.destroy(handle).unwrap_err().status, Status::Stale);
    assert_eq!(hub.set_callback(handle, None).unwrap_err().status, Status::Stale);
}

#[test]
fn one_queue_at_a_time_takes_notifications() {
    let hub = hub();
    let first = hub.create(WHAT_NOTIFICATIONS, 1, 0).unwrap();
    assert_eq!(hub.create(WHAT_NOTIFICATIONS | WHAT_PEERS, 1, 0).err().unwrap().status, Status::Busy);
    hub.create(WHAT_PEERS, 1, 0).unwrap();
    hub.destroy(first.handle()).unwrap();
    hub.create(WHAT_NOTIFICATIONS, 1, 0).unwrap();
}

#[test]
fn notifications_wait_for_a_subscriber_and_survive_it_in_order() {
    let hub = hub();
    (0..3).for_each(|n| hub.notification(notification(n)));
    let first = hub.create(WHAT_TRANSFERS | WHAT_NOTIFICATIONS, 1, 0).unwrap();
    let fd = first.eventfd();
    assert!(readable(fd, 0));
    hub.notification(notification(3));
    assert_eq!(drain(&first, 2).iter().map(number).collect::<Vec<_>>(), [0, 1]);
    submit(&first, 100);
    hub.notification(notification(4));
    hub.destroy(first.handle()).unwrap();
    assert!(!readable(fd, 0) && first.pending() == 0);
    hub.notification(notification(5));
    let second = hub.create(WHAT_NOTIFICATIONS, 1, 0).unwrap();
    hub.notification(notification(6));
    assert_eq!(numbers(&second), [2, 3, 4, 5, 6], "the transfer's event went with its queue");
}

#[test]
fn destroy_does_not_wait_for_events_to_come() {
    let hub = hub();
    let queue = hub.create(WHAT_TRANSFERS | WHAT_NOTIFICATIONS, 2, 0).unwrap();
    hub.notification(notification(0));
    queue.reserve().unwrap();
    assert_eq!(hub.destroy(queue.handle()).unwrap_err().status, Status::Busy);
    queue.push_reserved(transfer(1), || ());
    assert_eq!(numbers(&queue), [0, 1], "a refused destroy takes nothing away");
    queue.reserve().unwrap();
    queue.unreserve();
    hub.destroy(queue.handle()).unwrap();
}

#[test]
fn peer_events_go_to_every_queue_that_takes_them() {
    let hub = hub();
    let queues = [WHAT_PEERS, WHAT_PEERS | WHAT_TRANSFERS, WHAT_TRANSFERS | WHAT_NOTIFICATIONS]
        .map(|what| hub.create(what, 1, 0).unwrap());
    for _ in 0..1000 {
        hub.peer_event(Event::new(PeerId::from_raw(3), EventBody::PeerUp { again: false }));
        hub.peer_event(Event::new(
            PeerId::from_raw(3),
            EventBody::PeerLost { status: Status::PeerLost, os_error: 0, why: "gone".into() },
        ));
    }
    hub.peer_event(Event::new(PeerId::from_raw(4), EventBody::PeerUp { again: false }));
    for queue in &queues[..2] {
        let events = drain(queue, usize::MAX);
        let lost = EventBody::PeerLost { status: Status::PeerLost, os_error: 0, why: "gone".into() };
        let got: Vec<_> = events.into_iter().map(|event| (event.peer, event.body)).collect();
        let (up, other) = (PeerId::from_raw(3), PeerId::from_raw(4));
        assert_eq!(
            got,
            [
                (up, EventBody::PeerUp { again: false }),
                (up, lost),
                (other, EventBody::PeerUp { again: false })
            ]
        );
    }
    assert_eq!(queues[2].pending(), 0);
}

/// A program that did not ask for the states of connections gets no event about them.
#[test]
fn states_of_connections_go_to_queues_that_take_them_and_to_no_others() {
    let hub = hub();
    let [peers, states, both] = [WHAT_PEERS, WHAT_PEER_STATES, WHAT_PEERS | WHAT_PEER_STATES]
        .map(|what| hub.create(what, 1, 0).unwrap());
    let down = EventBody::PeerDown { status: Status::Timeout, os_error: 0, why: "silent".into() };
    let (first, again) = (EventBody::PeerUp { again: false }, EventBody::PeerUp { again: true });
    let lost = EventBody::PeerLost { status: Status::Timeout, os_error: 0, why: "silent".into() };
    let mut seen: [Vec<EventBody>; 3] = Default::default();
    for body in [&first, &down, &again, &down, &lost] {
        hub.peer_event(Event::new(PeerId::from_raw(3), body.clone()));
        for (seen, queue) in seen.iter_mut().zip([&peers, &states, &both]) {
            seen.extend(drain(queue, 8).into_iter().map(|event| event.body));
        }
    }
    let expected: [&[EventBody]; 3] = [
        &[first.clone(), lost.clone()],
        &[down.clone(), again.clone(), down.clone()],
        &[first, down.clone(), again, down, lost],
    ];
    assert_eq!(seen.each_ref().map(Vec::as_slice), expected);
}

#[test]
fn a_credit_goes_back_once_and_only_when_the_event_is_taken() {
    let (hub, returned) = (hub(), Arc::new(AtomicUsize::new(0)));
    let count = || returned.load(Ordering::SeqCst);
    let send = |n| hub.notification(Event { credit: credit(&returned), ..notification(n) });
    (0..4).for_each(send);
    let queue = hub.create(WHAT_NOTIFICATIONS, 1, 0).unwrap();
    assert_eq!(count(), 0);
    let taken = drain(&queue, 2);
    assert_eq!(count(), 0, "the application is still looking at them");
    drop(taken);
    assert_eq!(count(), 2);
    hub.destroy(queue.handle()).unwrap();
    drop(queue);
    assert_eq!(count(), 2, "what waits keeps its credit");
    let queue = hub.create(WHAT_NOTIFICATIONS, 1, 0).unwrap();
    drop(drain(&queue, 1));
    assert_eq!(count(), 3);
    drop((hub, queue));
    assert_eq!(count(), 4);
}

#[test]
fn notifications_keep_their_order_while_subscribers_come_and_go() {
    const EVENTS: u64 = 3000;
    let hub = hub();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..EVENTS).for_each(|n| hub.notification(notification(n))));
        let mut next = 0;
        while next < EVENTS {
            let queue = hub.create(WHAT_NOTIFICATIONS, 1, 0).unwrap();
            for event in drain(&queue, 5) {
                assert_eq!(number(&event), next);
                next += 1;
            }
            hub.destroy(queue.handle()).unwrap();
        }
    });
}
