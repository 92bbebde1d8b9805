//! Queues of events: room, wake-ups and callbacks; and waiting without queues, by any number of threads, for one
//! transfer or for any of several.

mod common;

use common::{engine, eventually, request, Pair, PATIENCE};
use ferry::notify::{Callback, Event, EventBody, Queue, WHAT_NOTIFICATIONS, WHAT_PEERS, WHAT_TRANSFERS};
use ferry::types::{Op, Request};
use ferry::{Deadline, State, Status, Transfer, TransferOptions};
use std::collections::HashSet;
use std::os::fd::RawFd;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

fn reporting(queue: &Arc<Queue>, user_data: u64) -> TransferOptions<'static> {
    TransferOptions { queue: Some(queue.clone()), user_data, ..TransferOptions::default() }
}

fn user_data(event: &Event) -> u64 {
    match event.body {
        EventBody::Transfer { user_data, .. } => user_data,
        _ => panic!("{event:?}"),
    }
}

/// Polls for input; returns whether there is any.
fn readable(fd: RawFd, timeout: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    let count = unsafe { libc::poll(&mut poll, 1, timeout.as_millis() as i32) };
    count == 1 && poll.revents & libc::POLLIN != 0
}

#[test]
fn the_event_is_there_as_soon_as_the_transfer_is_final() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(MIB, MIB);
    let queue = pair.a.queue(WHAT_TRANSFERS, 1).unwrap();
    for round in 0..2000u64 {
        // Express transfers that the caller sends, express transfers that any thread sends, and bulk.
        let length = if round % 3 == 0 { 100_000 } else { 64 };
        let one = [request(&local, 0, &remote, 0, length)];
        let transfer = pair.a.submit(pair.b_at_a, Op::Write, &one, &reporting(&queue, round)).unwrap();
        if round % 2 == 0 {
            transfer.wait(Some(PATIENCE)).unwrap();
        } else {
            eventually("it is final", || transfer.state().is_final());
        }
        // The queue was full: a late event would be missing here and would take the next one's room.
        let mut events = Vec::new();
        assert_eq!(queue.drain(&mut events, 8), 1, "round {round}");
        let EventBody::Transfer { transfer: handle, user_data, status } = events[0].body else { panic!() };
        assert_eq!((handle, user_data, status), (transfer.handle(), round, Status::Ok));
        assert_eq!(events[0].peer, pair.b_at_a);
    }
    pair.a.hub().unwrap().destroy(queue.handle()).unwrap();
}

/// A thread that drains an event finds its transfer final, and may release it.
#[test]
fn the_transfer_is_final_as_soon_as_its_event_is_there() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(MIB, MIB);
    let queue = pair.a.queue(WHAT_TRANSFERS, 1).unwrap();
    for round in 0..2000 {
        let one = [request(&local, 0, &remote, 0, if round % 3 == 0 { 100_000 } else { 64 })];
        let core = pair.a.submit_core(pair.b_at_a, Op::Write, &one, &reporting(&queue, 1)).unwrap();
        let mut events = Vec::new();
        eventually("its event comes", || queue.drain(&mut events, 1) == 1);
        pair.a.release(core.handle).unwrap();
    }
}

#[test]
fn an_eventfd_is_readable_when_there_is_something_to_drain() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(MIB, MIB);
    let queue = pair.a.queue(WHAT_TRANSFERS, 1000).unwrap();
    let fd = queue.eventfd();
    assert!(!readable(fd, Duration::ZERO));
    let one = [request(&local, 0, &remote, 0, 4096)];
    let mut seen = HashSet::new();
    for round in 0..50u64 {
        let burst = 1 + round % 7;
        let transfers: Vec<Transfer> = (0..burst)
            .map(|n| pair.a.submit(pair.b_at_a, Op::Write, &one, &reporting(&queue, round * 10 + n)).unwrap())
            .collect();
        let mut events = Vec::new();
        while events.len() < burst as usize {
            assert!(readable(fd, PATIENCE), "{} of {burst} events", events.len());
            // Two at a time: a full drain does not arm, and the descriptor stays readable.
            while queue.drain(&mut events, 2) == 2 {
                assert!(readable(fd, Duration::ZERO), "a full drain may have left something");
            }
        }
        assert!(!readable(fd, Duration::ZERO));
        seen.extend(events.iter().map(user_data));
        drop(transfers);
    }
    assert_eq!(seen.len(), (0..50).map(|round| 1 + round % 7).sum::<u64>() as usize);
}

#[test]
fn a_full_queue_refuses_and_loses_nothing() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64, 64);
    let queue = pair.a.queue(WHAT_TRANSFERS, 4).unwrap();
    let one = [request(&local, 0, &remote, 0, 64)];
    let submit = |n| pair.a.submit(pair.b_at_a, Op::Write, &one, &reporting(&queue, n));
    let transfers: Vec<Transfer> = (0..4).map(|n| submit(n).unwrap()).collect();
    assert_eq!(submit(9).err().unwrap().status, Status::Limit);
    transfers.iter().for_each(|transfer| {
        transfer.wait(Some(PATIENCE)).unwrap();
    });
    assert_eq!(submit(9).err().unwrap().status, Status::Limit, "final, but not drained");
    let mut events = Vec::new();
    assert_eq!(queue.drain(&mut events, 1), 1);
    submit(4).unwrap().wait(Some(PATIENCE)).unwrap();
    assert_eq!(submit(9).err().unwrap().status, Status::Limit);
    queue.drain(&mut events, 100);
    let mut seen: Vec<u64> = events.iter().map(user_data).collect();
    seen.sort();
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    // The refused submits left nothing behind.
    assert_eq!(pair.a.stats().unwrap().counts.transfers_submitted, 5);
    local.free(Some(common::at_once())).map_err(|(_, error)| error).unwrap();
}

#[test]
fn a_submit_that_fails_gives_its_room_back() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64, 64);
    let queue = pair.a.queue(WHAT_TRANSFERS, 1).unwrap();
    let bad = [Request { length: 0, ..request(&local, 0, &remote, 0, 64) }];
    let good = [request(&local, 0, &remote, 0, 64)];
    for _ in 0..3 {
        assert!(pair.a.submit(pair.b_at_a, Op::Write, &bad, &reporting(&queue, 0)).is_err());
    }
    pair.b.close(Some(PATIENCE)).unwrap();
    eventually("the peer is known to be lost", || {
        let refused = pair.a.submit(pair.b_at_a, Op::Write, &good, &reporting(&queue, 0));
        let mut events = Vec::new();
        match refused {
            Err(error) => {
                assert_eq!(error.status, Status::PeerLost);
                true
            }
            Ok(transfer) => {
                assert!(transfer.wait(Some(PATIENCE)).unwrap().state.is_final());
                assert_eq!(queue.drain(&mut events, 1), 1);
                false
            }
        }
    });
    pair.a.hub().unwrap().destroy(queue.handle()).unwrap();
}

/// A callback submits from inside, as a pipeline would; waiting or closing there is BUSY (contract 13).
#[test]
fn callbacks_submit_and_do_not_wait() {
    const STEPS: u64 = 500;
    let pair = Arc::new(Pair::new(&[]));
    let (local, remote) = pair.memories(MIB, MIB);
    let one = [request(&local, 0, &remote, 0, 4096)];
    let queue = pair.a.queue(WHAT_TRANSFERS, 16).unwrap();
    let (sender, receiver) = channel();
    // Weak, or the callback would keep its own queue alive.
    let (inner, target) = (Arc::downgrade(&pair), Arc::downgrade(&queue));
    let callback: Callback = Arc::new(move |event| {
        let (Some(pair), Some(queue)) = (inner.upgrade(), target.upgrade()) else { return };
        let step = user_data(event);
        let mut wrong = Vec::new();
        let next = pair.a.submit(pair.b_at_a, Op::Write, &one, &reporting(&queue, step + 1));
        match next {
            Ok(transfer) if step < STEPS => {
                if !transfer.state().is_final() {
                    let waited = transfer.wait(None).map_err(|error| error.status);
                    if waited != Err(Status::Busy) && !transfer.state().is_final() {
                        wrong.push(format!("wait: {waited:?}"));
                    }
                }
                if let Err(error) = transfer.wait(Some(Duration::ZERO)) {
                    if error.status != Status::Timeout {
                        wrong.push(format!("poll: {error}"));
                    }
                }
            }
            Ok(_) => {}
            Err(error) => wrong.push(format!("submit: {error}")),
        }
        match pair.a.close(Some(PATIENCE)) {
            Err(error) if error.status == Status::Busy => {}
            other => wrong.push(format!("close: {other:?}")),
        }
        if step == STEPS || !wrong.is_empty() {
            let _ = sender.send(wrong);
        }
    });
    pair.a.hub().unwrap().set_callback(queue.handle(), Some(callback)).unwrap();
    let first = [request(&local, 0, &remote, 0, 4096)];
    drop(pair.a.submit(pair.b_at_a, Op::Write, &first, &reporting(&queue, 0)).unwrap());
    assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), Vec::<String>::new());
    pair.a.hub().unwrap().set_callback(queue.handle(), None).unwrap();
    pair.a.close(Some(PATIENCE)).unwrap();
}

/// Inside a callback every call that would wait is refused at once, and has done nothing.
#[test]
fn a_call_that_would_wait_is_busy_in_a_callback() {
    let pair = Arc::new(Pair::new(&[]));
    let (local, remote) = pair.memories(4096, 4096);
    let one = [request(&local, 0, &remote, 0, 64)];
    // The other end takes no notifications: the last one waits.
    pair.use_up_credits();
    let forever =
        TransferOptions { notify: Some(b"more"), deadline: Deadline::Never, ..TransferOptions::default() };
    let waiting = pair.a.submit_core(pair.b_at_a, Op::Write, &one, &forever).unwrap();
    let (sender, receiver) = channel();
    let (inner, pending) = (Arc::downgrade(&pair), waiting.clone());
    let empty = pair.a.queue(WHAT_PEERS, 1).unwrap();
    let callback: Callback = Arc::new(move |_| {
        let Some(pair) = inner.upgrade() else { return };
        let before = pair.a.stats().unwrap().counts.transfers_submitted;
        let (shortly, plain) = (Some(Duration::from_millis(1)), TransferOptions::default());
        let statuses = [
            pair.a.wait(&pending, shortly).err(),
            pair.a.wait_any(std::slice::from_ref(&pending), shortly).err(),
            pair.a.wait_all(std::slice::from_ref(&pending), shortly).err(),
            pair.a.wait_event(&empty, shortly).err(),
            pair.a.write(pair.b_at_a, &one, &plain).err(),
            pair.a.read(pair.b_at_a, &one, &plain).err(),
            pair.a.notify(pair.b_at_a, b"word", Deadline::After(Duration::from_millis(1))).err(),
            pair.a.close(shortly).err(),
        ];
        let statuses = statuses.map(|error| error.map(|error| error.status));
        let submitted = pair.a.stats().unwrap().counts.transfers_submitted - before;
        let _ = sender.send((statuses, submitted));
    });
    let queue = pair.a.queue(WHAT_TRANSFERS, 16).unwrap();
    pair.a.hub().unwrap().set_callback(queue.handle(), Some(callback)).unwrap();
    drop(pair.a.submit(pair.b_at_a, Op::Write, &one, &reporting(&queue, 0)).unwrap());
    assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), ([Some(Status::Busy); 8], 0));
    pair.a.hub().unwrap().set_callback(queue.handle(), None).unwrap();
    pair.a.cancel(&waiting).unwrap();
}

#[test]
fn peers_come_and_go_as_events() {
    let (a, b) = (engine(&[]), engine(&[]));
    let queues = [a.queue(WHAT_PEERS, 8).unwrap(), b.queue(WHAT_PEERS, 8).unwrap()];
    a.connect_async(b.address(), Some(PATIENCE), &queues[0], 77).unwrap();
    let mut events = [Vec::new(), Vec::new()];
    let count =
        |events: &[Event], what: fn(&EventBody) -> bool| events.iter().filter(|e| what(&e.body)).count();
    eventually("both see the other", || {
        queues.iter().zip(&mut events).for_each(|(queue, events)| {
            queue.drain(events, 16);
        });
        let up = |events: &[Event]| count(events, |body| *body == EventBody::PeerUp { again: false }) == 1;
        let connected =
            EventBody::PeerConnect { user_data: 77, status: Status::Ok, os_error: 0, why: "".into() };
        up(&events[0]) && up(&events[1]) && events[0].iter().any(|event| event.body == connected)
    });
    b.close(Some(PATIENCE)).unwrap();
    eventually("the end is told", || {
        queues[0].drain(&mut events[0], 16);
        count(&events[0], |body| matches!(body, EventBody::PeerLost { .. })) == 1
    });
    let peer = events[0].iter().find(|event| event.body == EventBody::PeerUp { again: false }).unwrap().peer;
    assert!(events[0].iter().all(|event| event.peer == peer), "{events:?}");
    // The listener is gone.
    a.connect_async(b.address(), Some(PATIENCE), &queues[0], 78).unwrap();
    let expected = a.connect(b.address(), Some(PATIENCE)).unwrap_err();
    eventually("the failure is told", || {
        queues[0].drain(&mut events[0], 16);
        events[0].iter().any(|event| match &event.body {
            EventBody::PeerConnect { user_data: 78, status, os_error, why } => {
                assert_eq!((*status, *os_error), (Status::Unreachable, libc::ECONNREFUSED));
                assert_eq!((expected.status, expected.os_error), (*status, *os_error));
                assert_eq!(**why, *expected.message);
                true
            }
            _ => false,
        })
    });
}

#[test]
fn queues_do_not_take_each_others_events() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64, 64);
    let one = [request(&local, 0, &remote, 0, 64)];
    let (mine, other) = (pair.a.queue(WHAT_TRANSFERS, 8).unwrap(), pair.a.queue(WHAT_TRANSFERS, 8).unwrap());
    let words = pair.b.queue(WHAT_NOTIFICATIONS | WHAT_PEERS, 8).unwrap();
    assert_eq!(pair.b.queue(WHAT_NOTIFICATIONS, 8).err().unwrap().status, Status::Busy);
    let refused = pair.b.submit(pair.a_at_b, Op::Write, &one, &reporting(&words, 1));
    assert!(refused.is_err(), "a queue that takes no transfers");
    let with_word = TransferOptions { notify: Some(b"word"), ..reporting(&mine, 5) };
    pair.a.submit(pair.b_at_a, Op::Write, &one, &with_word).unwrap().wait_done().unwrap();
    let mut events = Vec::new();
    assert_eq!((mine.drain(&mut events, 8), other.drain(&mut events, 8)), (1, 0));
    assert_eq!(words.drain(&mut events, 8), 1);
    assert!(matches!(events[1].body, EventBody::Notification { .. }));
}

#[test]
fn wait_any_names_one_that_is_final() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64 * MIB, 64 * MIB);
    let long = [request(&local, 0, &remote, 0, 64 * MIB)];
    let short = [request(&local, 0, &remote, 0, 100_000)];
    assert_eq!(pair.a.wait_any(&[], None).unwrap_err().status, Status::Invalid);
    let submit = |requests: &[Request]| {
        pair.a.submit_core(pair.b_at_a, Op::Write, requests, &TransferOptions::default()).unwrap()
    };
    for _ in 0..20 {
        let mut open = vec![submit(&long), submit(&short), submit(&short), submit(&short[..1])];
        if !open[0].is_final() {
            let none = pair.a.wait_any(&open[..1], Some(Duration::from_nanos(1)));
            assert!(none.is_ok() || none.is_err_and(|error| error.status == Status::Timeout));
        }
        while !open.is_empty() {
            let index = pair.a.wait_any(&open, Some(PATIENCE)).unwrap();
            let core = open.swap_remove(index);
            assert_eq!(core.result().unwrap().state, State::Done);
            pair.a.release(core.handle).unwrap();
        }
    }
}

#[test]
fn wait_all_ends_with_the_last_and_tells_the_first_that_is_not_done() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(16 * MIB, 16 * MIB);
    assert_eq!(Transfer::wait_all(&[], None).unwrap_err().status, Status::Invalid);
    let submit = |length: usize, options: &TransferOptions| {
        pair.a.submit(pair.b_at_a, Op::Write, &[request(&local, 0, &remote, 0, length)], options).unwrap()
    };
    for _ in 0..20 {
        let all = [16 * MIB, 64, 100_000, 64].map(|length| submit(length, &TransferOptions::default()));
        Transfer::wait_all(&all, Some(PATIENCE)).unwrap();
        assert!(all.iter().all(|transfer| transfer.state() == State::Done));
    }
    // The other end takes no notifications: the third waits for room, and the fourth behind it.
    pair.use_up_credits();
    let with_word =
        |deadline| TransferOptions { notify: Some(b"word"), deadline, ..TransferOptions::default() };
    let late = with_word(Deadline::After(Duration::from_millis(20)));
    let all =
        [submit(64, &TransferOptions::default()), submit(64, &with_word(Deadline::Never)), submit(64, &late)];
    all[0].wait(Some(PATIENCE)).unwrap();
    let pending = Transfer::wait_all(&all, Some(Duration::from_nanos(1))).unwrap_err();
    assert_eq!((pending.status, pending.request_index), (Status::Timeout, Some(1)));
    all[1].cancel().unwrap();
    let error = Transfer::wait_all(&all, Some(PATIENCE)).unwrap_err();
    assert_eq!(error.status, Status::Cancelled, "{error}");
    let states = all.map(|transfer| transfer.state());
    assert_eq!(states, [State::Done, State::Cancelled, State::TimedOut]);
}

#[test]
fn a_wait_for_an_event_ends_with_the_event_and_with_the_engine() {
    let pair = Pair::new(&[]);
    let queue = pair.b.queue(WHAT_NOTIFICATIONS | WHAT_PEERS, 8).unwrap();
    let next = |timeout| pair.b.wait_event(&queue, timeout).map(|event| event.body);
    let word = EventBody::Notification { channel: 0, bytes: Box::from(*b"word") };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| loop {
            match next(Some(PATIENCE)).unwrap() {
                EventBody::PeerUp { .. } => {}
                other => return other,
            }
        });
        pair.a.notify(pair.b_at_a, b"word", Deadline::Default).unwrap();
        assert_eq!(thread.join().unwrap(), word);
        assert_eq!(next(Some(Duration::from_millis(1))).unwrap_err().status, Status::Timeout);
        assert_eq!(next(Some(Duration::ZERO)).unwrap_err().status, Status::Timeout);
        pair.a.notify(pair.b_at_a, b"word", Deadline::Default).unwrap();
        let thread = scope.spawn(|| [(); 3].map(|()| next(Some(PATIENCE))));
        pair.b.close(Some(PATIENCE)).unwrap();
        let ends = thread.join().unwrap().map(|end| end.map_err(|error| error.status));
        assert_eq!(ends[0], Ok(word.clone()));
        // Closing tells that the peer is lost, or nothing; then the engine is over.
        assert_eq!(ends[2], Err(Status::Closed));
    });
}

/// Many threads on one transfer: some wait for it, some wait for any of several, some only look.
#[test]
fn many_wait_for_one_transfer() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(8 * MIB, 8 * MIB);
    for length in [64, 4096, 8 * MIB] {
        for _ in 0..10 {
            let start = Barrier::new(17);
            let one = [request(&local, 0, &remote, 0, length)];
            let options = TransferOptions::default();
            let core = pair.a.submit_core(pair.b_at_a, Op::Write, &one, &options).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..16 {
                    let (pair, core, start) = (&pair, &core, &start);
                    scope.spawn(move || {
                        start.wait();
                        let result = match thread % 4 {
                            0 => {
                                let list = [core.clone()];
                                assert_eq!(pair.a.wait_any(&list, Some(PATIENCE)).unwrap(), 0);
                                pair.a.wait(core, Some(Duration::ZERO)).unwrap()
                            }
                            1 => {
                                eventually("it is final", || pair.a.wait(core, Some(Duration::ZERO)).is_ok());
                                core.result().unwrap()
                            }
                            2 => pair.a.wait(core, None).unwrap(),
                            _ => pair.a.wait(core, Some(PATIENCE)).unwrap(),
                        };
                        assert_eq!(result.state, State::Done);
                    });
                }
                start.wait();
            });
            pair.a.release(core.handle).unwrap();
        }
    }
}

/// The thread that drives a lane for its own transfer settles others' transfers too, and hands the lane back.
#[test]
fn threads_wait_for_small_transfers_of_their_own_at_once() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64 << 10, 64 << 10);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (pair, local, remote) = (&pair, &local, &remote);
            scope.spawn(move || {
                let one = [request(local, thread * 4096, remote, thread * 4096, 4096)];
                for _ in 0..300 {
                    let core = pair
                        .a
                        .submit_core(pair.b_at_a, Op::Write, &one, &TransferOptions::default())
                        .unwrap();
                    assert_eq!(pair.a.wait(&core, Some(PATIENCE)).unwrap().state, State::Done);
                    pair.a.release(core.handle).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_wait_that_is_too_short_changes_nothing() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64, 64);
    // The thread blocks for certain.
    let transfer = pair.held(&[request(&local, 0, &remote, 0, 64)]);
    for timeout in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(30)] {
        let before = Instant::now();
        assert_eq!(transfer.wait(Some(timeout)).unwrap_err().status, Status::Timeout);
        assert!(before.elapsed() >= timeout);
        assert_eq!((transfer.state(), transfer.result()), (State::Pending, None));
    }
    let queue = pair.b.queue(WHAT_NOTIFICATIONS, 1).unwrap();
    // Taken events are dropped here, which returns their credits.
    eventually("there are credits again", || queue.drain(&mut Vec::new(), 512) < 512);
    assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
}
