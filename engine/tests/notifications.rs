//! Notifications: bytes to the peer, alone or after data; in order, after the data is visible, never lost and never
//! more than the target has room for. Contract 10.

mod common;

use common::data::{contents, fill, pattern, Random};
use common::{engine, eventually, peer_of, request, wait_for_region, Pair, PATIENCE};
use ferry::limits::{CHANNELS_MAX, NOTIFY_BYTES_MAX, NOTIFY_CREDITS};
use ferry::notify::{Callback, EventBody, Queue, WHAT_NOTIFICATIONS};
use ferry::types::{Access, Op, PeerId, RegionId, Request};
use ferry::{
    Deadline, Engine, Memory, Notification, RegionOptions, State, Status, Transfer, TransferOptions,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};

const MIB: usize = 1 << 20;

fn memory(engine: &Engine, length: usize) -> Memory {
    engine.alloc(length, &RegionOptions::default()).unwrap()
}

fn notifying(bytes: &[u8]) -> TransferOptions<'_> {
    TransferOptions { notify: Some(bytes), deadline: Deadline::Never, ..TransferOptions::default() }
}

fn listen(engine: &Engine) -> Arc<Queue> {
    engine.queue(WHAT_NOTIFICATIONS, 1).unwrap()
}

/// Appends the notifications that have arrived, as (peer, bytes).
fn drain(queue: &Queue, into: &mut Vec<(PeerId, Box<[u8]>)>) {
    let mut events = Vec::new();
    queue.drain(&mut events, 1 << 20);
    for event in events {
        let EventBody::Notification { bytes, .. } = &event.body else { panic!("{event:?}") };
        into.push((event.peer, bytes.clone()));
    }
}

fn collect(queue: &Queue, count: usize) -> Vec<(PeerId, Box<[u8]>)> {
    let mut all = Vec::new();
    eventually("every notification comes", || {
        drain(queue, &mut all);
        all.len() >= count
    });
    assert_eq!(all.len(), count);
    all
}

#[test]
fn alone_with_every_valid_length() {
    let pair = Pair::new(&[]);
    let queue = listen(&pair.b);
    let lengths = [0, 1, 7, 1000, NOTIFY_BYTES_MAX - 1, NOTIFY_BYTES_MAX];
    for (tag, &length) in lengths.iter().enumerate() {
        pair.a.notify(pair.b_at_a, &pattern(tag as u32, length), Deadline::Default).unwrap();
    }
    for (tag, (peer, bytes)) in collect(&queue, lengths.len()).into_iter().enumerate() {
        assert_eq!((peer, &*bytes), (pair.a_at_b, &*pattern(tag as u32, lengths[tag])));
    }
    assert_eq!(pair.b.stats().unwrap().counts.notifications_received, lengths.len() as u64);
}

#[test]
fn one_byte_too_many_is_refused_before_anything_is_done() {
    let pair = Pair::new(&[]);
    let (local, remote) = (memory(&pair.a, 64), memory(&pair.b, 64));
    fill(&remote, 2);
    let long = vec![0; NOTIFY_BYTES_MAX + 1];
    assert_eq!(pair.a.notify(pair.b_at_a, &long, Deadline::Default).unwrap_err().status, Status::Limit);
    let write = [request(&local, 0, &remote, 0, 64)];
    let refused = pair.a.submit(pair.b_at_a, Op::Write, &write, &notifying(&long));
    assert_eq!(refused.err().unwrap().status, Status::Limit);
    let queue = listen(&pair.b);
    // The refused notification took no number: the next notification is not held up.
    pair.a.notify(pair.b_at_a, b"next", Deadline::Default).unwrap();
    assert_eq!(&*collect(&queue, 1)[0].1, b"next");
    assert_eq!(contents(&remote), pattern(2, 64));
}

#[test]
fn those_sent_before_anybody_listens_wait() {
    let pair = Pair::new(&[]);
    (0..100u64).for_each(|n| pair.a.notify(pair.b_at_a, &n.to_le_bytes(), Deadline::Default).unwrap());
    let all = collect(&listen(&pair.b), 100);
    assert!(all.iter().enumerate().all(|(n, (_, bytes))| **bytes == (n as u64).to_le_bytes()));
}

/// WRITEs of all sizes, each with a notification: its receiver finds the bytes in place. The check runs in the event's
/// handler, as in an application.
#[test]
fn delivered_when_the_data_is_visible() {
    for settings in [&[][..], &[("express_bytes_max", "0")], &[("lanes", "4"), ("frame_bytes_max", "65536")]]
    {
        let pair = Pair::new(settings);
        let mut random = Random::new("visible");
        let sizes = [1, 64, 4096, 65_536, 65_537, MIB, 5 * MIB];
        let lengths: Vec<usize> =
            (0..60).map(|n| if n < 7 { sizes[n] } else { 1 + random.below(3 * MIB) }).collect();
        let total: usize = lengths.iter().sum();
        let (local, remote) = (memory(&pair.a, total), Arc::new(memory(&pair.b, total)));
        fill(&local, 5);
        let queue = listen(&pair.b);
        let (verdicts, seen) = channel();
        let (target, image) = (remote.clone(), pattern(5, total));
        let callback: Callback = Arc::new(move |event| {
            let EventBody::Notification { bytes, .. } = &event.body else { return };
            let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
            let (at, length) = (number(0), number(8));
            let mut found = vec![0; length];
            target.read(at, &mut found);
            verdicts.send((at, found == image[at..at + length])).unwrap();
        });
        pair.b.hub().unwrap().set_callback(queue.handle(), Some(callback)).unwrap();
        let mut at = 0;
        let transfers: Vec<_> = lengths
            .iter()
            .map(|&length| {
                let word = [(at as u64).to_le_bytes(), (length as u64).to_le_bytes()].concat();
                // In pieces, so that several frames on several lanes carry it.
                let piece = (length / 3).max(1);
                let requests: Vec<Request> = (0..length)
                    .step_by(piece)
                    .map(|from| request(&local, at + from, &remote, at + from, piece.min(length - from)))
                    .collect();
                let options = TransferOptions { no_coalesce: true, ..notifying(&word) };
                at += length;
                pair.a.submit(pair.b_at_a, Op::Write, &requests, &options).unwrap()
            })
            .collect();
        for transfer in &transfers {
            let result = transfer.wait(Some(PATIENCE)).unwrap();
            assert_eq!((result.state, result.notification), (State::Done, Notification::Delivered));
        }
        let mut next = 0;
        for &length in &lengths {
            let (at, in_place) = seen.recv_timeout(PATIENCE).unwrap();
            assert_eq!(at, next, "in order of submission");
            assert!(in_place, "{length} bytes at {at:#x} were announced before they were there");
            next += length;
        }
        pair.b.hub().unwrap().set_callback(queue.handle(), None).unwrap();
    }
}

/// From several threads, alone and with data of mixed sizes: each thread's notifications arrive in its order, none is
/// lost, none arrives twice.
#[test]
fn each_threads_notifications_come_in_its_order() {
    const THREADS: usize = 4;
    const EACH: usize = 150;
    let pair = Pair::new(&[]);
    let queue = listen(&pair.b);
    let (local, remote) = (memory(&pair.a, 8 * MIB), memory(&pair.b, 8 * MIB));
    let start = Barrier::new(THREADS);
    let seed = Random::new("threads").next();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pair, local, remote, start) = (&pair, &local, &remote, &start);
            scope.spawn(move || {
                let mut random = Random::seeded(seed + thread as u64);
                start.wait();
                let mut waiting = Vec::new();
                for number in 0..EACH {
                    let word = [(thread as u64).to_le_bytes(), (number as u64).to_le_bytes()].concat();
                    let length = [0, 1, 4096, 100_000, 2 * MIB][random.below(5)];
                    let op = if random.below(4) == 0 { Op::Read } else { Op::Write };
                    if length == 0 {
                        pair.a.notify(pair.b_at_a, &word, Deadline::Never).unwrap();
                        continue;
                    }
                    let at = thread * 2 * MIB;
                    let one = [request(local, at, remote, at, length)];
                    waiting.push(pair.a.submit(pair.b_at_a, op, &one, &notifying(&word)).unwrap());
                    if waiting.len() == 16 {
                        waiting.drain(..).for_each(|transfer| {
                            transfer.wait_done().unwrap();
                        });
                    }
                }
                waiting.into_iter().for_each(|transfer| {
                    transfer.wait_done().unwrap();
                });
            });
        }
    });
    let mut next = [0u64; THREADS];
    for (peer, bytes) in collect(&queue, THREADS * EACH) {
        assert_eq!(peer, pair.a_at_b);
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(number(8), next[number(0) as usize], "thread {}", number(0));
        next[number(0) as usize] += 1;
    }
}

/// The target has room for NOTIFY_CREDITS; senders of more wait until its application takes some. Data still moves
/// meanwhile, and nothing is lost.
#[test]
fn senders_wait_for_credits() {
    let pair = Pair::new(&[]);
    let (local, remote) = (memory(&pair.a, 4096), memory(&pair.b, 4096));
    wait_for_region(&pair.a, pair.b_at_a, remote.region());
    let credits = NOTIFY_CREDITS as u64;
    let total = 3 * credits;
    let one = [request(&local, 0, &remote, 0, 8)];
    let words: Vec<[u8; 8]> = (0..total).map(u64::to_le_bytes).collect();
    let transfers: Vec<_> = words
        .iter()
        .map(|word| pair.a.submit(pair.b_at_a, Op::Write, &one, &notifying(word)).unwrap())
        .collect();
    // As many as there is room for are done; the data of the others has moved as well, by then or soon.
    let room = credits as usize - 1;
    assert_eq!(transfers[room].wait(Some(PATIENCE)).unwrap().notification, Notification::Delivered);
    let more = pair.a.submit(pair.b_at_a, Op::Write, &one, &TransferOptions::default()).unwrap();
    assert_eq!(more.wait(Some(PATIENCE)).unwrap().state, State::Done, "data needs no credits");
    let done = || transfers.iter().filter(|transfer| transfer.state().is_final()).count() as u64;
    // Data may be done in another order than it was submitted in, and its notification with it.
    eventually("all that there is room for is delivered", || done() == credits);
    std::thread::yield_now();
    assert_eq!(done(), credits, "nobody drained, so no more than the credits can be delivered");
    assert_eq!(pair.b.stats().unwrap().counts.notifications_received, credits);
    let queue = listen(&pair.b);
    let all = collect(&queue, total as usize);
    for (number, (_, bytes)) in all.iter().enumerate() {
        assert_eq!(**bytes, words[number]);
    }
    transfers.into_iter().for_each(|transfer| {
        transfer.wait_done().unwrap();
    });
}

/// A channel whose notifications nobody takes has used up its credits; the others go on, each in its order.
#[test]
fn a_channel_that_nobody_drains_holds_up_no_other() {
    let pair = Pair::new(&[]);
    let send = |channel: u16, number: u64| {
        let bytes = number.to_le_bytes();
        let options = TransferOptions { channel, ..notifying(&bytes) };
        pair.a.submit(pair.b_at_a, Op::Write, &[], &options).unwrap()
    };
    let credits = u64::from(NOTIFY_CREDITS);
    let flood: Vec<_> = (0..2 * credits).map(|number| send(1, number)).collect();
    let (zero, last) = (listen(&pair.b), channel_of(&pair.b, CHANNELS_MAX - 1));
    let others: Vec<_> =
        (0..2 * credits).flat_map(|number| [send(0, number), send(CHANNELS_MAX - 1, number)]).collect();
    let in_order = |queue: &Queue| {
        for (number, (_, bytes)) in collect(queue, 2 * credits as usize).into_iter().enumerate() {
            assert_eq!(*bytes, (number as u64).to_le_bytes());
        }
    };
    in_order(&zero);
    in_order(&last);
    Transfer::wait_all(&others, Some(PATIENCE)).unwrap();
    let done = || flood.iter().filter(|transfer| transfer.state() == State::Done).count() as u64;
    eventually("the flood has used its credits", || done() == credits);
    // The queue of a channel begins with what came before it.
    in_order(&channel_of(&pair.b, 1));
    Transfer::wait_all(&flood, Some(PATIENCE)).unwrap();
}

fn channel_of(engine: &Engine, channel: u16) -> Arc<Queue> {
    engine.channel_queue(WHAT_NOTIFICATIONS, 1, channel).unwrap()
}

#[test]
fn a_channel_that_does_not_exist_is_refused() {
    let pair = Pair::new(&[]);
    let options = TransferOptions { channel: CHANNELS_MAX, ..notifying(b"word") };
    let refused = pair.a.submit(pair.b_at_a, Op::Write, &[], &options).err().unwrap();
    assert_eq!(refused.to_string(), "INVALID: options.channel: 16 is not 0 to 15");
    let refused = pair.b.channel_queue(WHAT_NOTIFICATIONS, 1, CHANNELS_MAX).err().unwrap();
    assert_eq!(refused.to_string(), "INVALID: channel: 16 is not 0 to 15");
    let taken = channel_of(&pair.b, 2);
    let refused = pair.b.channel_queue(WHAT_NOTIFICATIONS, 1, 2).err().unwrap();
    assert_eq!(refused.to_string(), "BUSY: another queue takes the notifications of channel 2");
    // Without a notification there is nothing to send, and a READ sends none.
    let nothing = TransferOptions::default();
    for (op, options) in [(Op::Write, &nothing), (Op::Read, &notifying(b"word"))] {
        let refused = pair.a.submit(pair.b_at_a, op, &[], options).err().unwrap();
        assert!(refused.status == Status::Invalid && refused.message.starts_with("requests:"), "{refused}");
    }
    drop(taken);
}

/// A thread that notifies blocks while there are no credits, and continues when there are.
#[test]
fn a_blocked_sender_goes_on_when_the_target_drains() {
    let pair = Pair::new(&[]);
    let sent = AtomicUsize::new(0);
    let total = NOTIFY_CREDITS as usize * 2 + 10;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..total as u64 {
                pair.a.notify(pair.b_at_a, &number.to_le_bytes(), Deadline::Never).unwrap();
                sent.fetch_add(1, Ordering::SeqCst);
            }
        });
        eventually("all credits are used", || sent.load(Ordering::SeqCst) == NOTIFY_CREDITS as usize);
        let all = collect(&listen(&pair.b), total);
        assert!(all.iter().enumerate().all(|(n, (_, bytes))| **bytes == (n as u64).to_le_bytes()));
    });
    assert_eq!(sent.load(Ordering::SeqCst), total);
}

/// A notification that waits for a credit at its deadline is NOT_SENT; its number is skipped.
#[test]
fn a_deadline_without_credits_is_not_sent() {
    let pair = Pair::new(&[]);
    let credits = NOTIFY_CREDITS as usize;
    (0..credits).for_each(|_| pair.a.notify(pair.b_at_a, b"fill", Deadline::Default).unwrap());
    let soon = Deadline::After(std::time::Duration::from_millis(20));
    let error = pair.a.notify(pair.b_at_a, b"late", soon).unwrap_err();
    assert_eq!(error.status, Status::Timeout);
    let reason =
        "the notification was not sent before the deadline: 1024 notifications of channel 0 wait at the \
                  peer; its program takes none (a queue of notifications takes them)";
    assert_eq!(error.message, reason);
    // The data of a WRITE arrives, its notification does not. Another channel has credits of its own.
    let (local, remote) = pair.memories(64, 64);
    let one = [request(&local, 0, &remote, 0, 64)];
    let options = TransferOptions { notify: Some(b"late"), deadline: soon, ..TransferOptions::default() };
    let error = pair.a.write(pair.b_at_a, &one, &options).unwrap_err();
    assert_eq!((error.status, error.message.as_str()), (Status::Timeout, reason));
    let channel = TransferOptions { channel: 1, deadline: Deadline::Default, ..options.clone() };
    pair.a.write(pair.b_at_a, &one, &channel).unwrap();
    let submitted = pair.a.submit(pair.b_at_a, Op::Write, &one, &options).unwrap();
    eventually("the deadline", || submitted.state() == State::TimedOut);
    let queue = listen(&pair.b);
    collect(&queue, credits);
    let error = submitted.wait_done().unwrap_err();
    assert_eq!(error.message, reason, "also when the peer takes notifications by now");
    pair.a.notify(pair.b_at_a, b"after", Deadline::Default).unwrap();
    assert_eq!(&*collect(&queue, 1)[0].1, b"after");
}

/// ORDERED transfers behind one that waits for a credit: one whose deadline is first, and one that fails with the first.
#[test]
fn transfers_behind_a_notification_that_nobody_takes_say_so() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64, 64);
    let one = [request(&local, 0, &remote, 0, 64)];
    pair.use_up_credits();
    let submit = |notify, deadline| {
        let options = TransferOptions { ordered: true, notify, deadline, ..TransferOptions::default() };
        pair.a.submit(pair.b_at_a, Op::Write, &one, &options).unwrap()
    };
    let first = submit(Some(&b"x"[..]), Deadline::Never);
    let soon = Deadline::After(std::time::Duration::from_millis(20));
    let error = submit(None, soon).wait_done().unwrap_err();
    let turn = "1 of 1 requests failed, the first with TIMEOUT; it waited for an earlier ORDERED transfer to the peer, \
                which has not ended";
    assert_eq!((error.status, error.message.as_str()), (Status::Timeout, turn));
    eventually("the failed transfer is forgotten", || {
        pair.a.peer_info(pair.b_at_a).unwrap().transfers_active == 1
    });
    let behind = submit(None, Deadline::Never);
    first.cancel().unwrap();
    let error = behind.wait_done().unwrap_err();
    let failed =
        "1 of 1 requests failed, the first with CANCELLED; an earlier ORDERED transfer to the peer failed";
    assert_eq!((error.status, error.message.as_str()), (Status::Cancelled, failed));
    let cancelled = first.wait_done().unwrap_err();
    assert_eq!(cancelled.message, "the peer did not confirm the notification: CANCELLED");
}

/// A check planned for the deadline of a transfer that has ended meanwhile finds the next deadline.
#[test]
fn a_deadline_behind_that_of_something_that_has_ended_is_met() {
    let pair = Pair::new(&[("progress_timeout_ms", "600000")]);
    let (local, remote) = pair.memories(64, 64);
    let one = [request(&local, 0, &remote, 0, 64)];
    pair.use_up_credits();
    let submit = |ms| {
        let deadline = Deadline::After(std::time::Duration::from_millis(ms));
        let options = TransferOptions { deadline, ..notifying(b"late") };
        pair.a.submit(pair.b_at_a, Op::Write, &one, &options).unwrap()
    };
    let (early, late) = (submit(100), submit(300));
    early.cancel().unwrap();
    assert_eq!(early.wait(Some(PATIENCE)).unwrap().status, Status::Cancelled);
    assert_eq!(late.wait(Some(PATIENCE)).unwrap().status, Status::Timeout);
}

/// Transfers that fail in part or whole, small and large, deliver no notification, and hold up nothing.
#[test]
fn failed_transfers_are_not_announced_and_later_ones_are() {
    let pair = Pair::new(&[]);
    let queue = listen(&pair.b);
    let (local, remote) = (memory(&pair.a, 4 * MIB), memory(&pair.b, 4 * MIB));
    let read_only =
        RegionOptions { access: Access::REMOTE_READ, name: "read only".into(), ..Default::default() };
    let closed = pair.b.alloc(4 * MIB, &read_only).unwrap();
    fill(&closed, 3);
    let beyond = remote.address() + remote.length() as u64;
    for length in [16, 4096, 3 * MIB] {
        let good = request(&local, 0, &remote, 0, length);
        let bad = Request { remote: beyond, remote_region: RegionId::NONE, ..good };
        for requests in [vec![bad], vec![good, bad], vec![bad, good]] {
            let failing = pair.a.submit(pair.b_at_a, Op::Write, &requests, &notifying(b"no")).unwrap();
            let following = pair.a.submit(pair.b_at_a, Op::Write, &[good], &notifying(b"yes")).unwrap();
            pair.a.notify(pair.b_at_a, b"alone", Deadline::Never).unwrap();
            let result = failing.wait(Some(PATIENCE)).unwrap();
            let partial = if requests.len() == 1 { Status::NotRegistered } else { Status::Partial };
            assert_eq!((result.status, result.notification), (partial, Notification::NotSent));
            assert_eq!(following.wait(Some(PATIENCE)).unwrap().notification, Notification::Delivered);
            let heard: Vec<_> = collect(&queue, 2).into_iter().map(|(_, bytes)| bytes).collect();
            assert_eq!(heard, [b"yes".as_slice().into(), b"alone".as_slice().into()]);
        }
    }
    // Unregistered without the initiator's knowledge, so that the target refuses: missing access does the same, when
    // no region is named and the initiator's list does not show it.
    assert_eq!(contents(&closed), pattern(3, 4 * MIB));
}

/// A cancelled transfer's number is skipped, whether or not some of it was posted. The number of a transfer whose
/// deadline was over before it was queued is skipped, too.
#[test]
fn cancelled_and_late_transfers_hold_up_nothing() {
    let pair = Pair::new(&[]);
    let queue = listen(&pair.b);
    let (local, remote) = (memory(&pair.a, 32 * MIB), memory(&pair.b, 32 * MIB));
    let long = [request(&local, 0, &remote, 0, 32 * MIB)];
    let short = [request(&local, 0, &remote, 0, 64)];
    let mut delivered = HashMap::new();
    for round in 0..200u64 {
        let word = round.to_le_bytes();
        let late =
            TransferOptions { deadline: Deadline::After(std::time::Duration::ZERO), ..notifying(&word) };
        let transfer = match round % 4 {
            0 => pair.a.submit(pair.b_at_a, Op::Write, &long, &notifying(&word)).unwrap(),
            1 => pair.a.submit(pair.b_at_a, Op::Write, &short, &notifying(&word)).unwrap(),
            2 => pair.a.submit(pair.b_at_a, Op::Read, &long[..1], &late).unwrap(),
            _ => pair.a.submit(pair.b_at_a, Op::Write, &short, &late).unwrap(),
        };
        if round % 4 < 2 {
            transfer.cancel().unwrap();
        }
        let result = transfer.wait(Some(PATIENCE)).unwrap();
        let sent = result.notification == Notification::Delivered;
        assert_eq!(sent, result.state == State::Done, "{result:?}");
        assert!(sent || result.notification == Notification::NotSent, "{result:?}");
        delivered.insert(round, sent);
    }
    pair.a.notify(pair.b_at_a, &u64::MAX.to_le_bytes(), Deadline::Default).unwrap();
    let expected = delivered.values().filter(|sent| **sent).count();
    let heard = collect(&queue, expected + 1);
    assert_eq!(*heard[expected].1, u64::MAX.to_le_bytes());
    for (_, bytes) in &heard[..expected] {
        assert!(delivered[&u64::from_le_bytes((**bytes).try_into().unwrap())]);
    }
}

/// Every peer has its own order and its own credits.
#[test]
fn one_silent_application_holds_up_no_other_peer() {
    let (hub, quiet, busy) = (engine(&[]), engine(&[]), engine(&[]));
    let to_quiet = hub.connect(quiet.address(), Some(PATIENCE)).unwrap();
    let to_busy = hub.connect(busy.address(), Some(PATIENCE)).unwrap();
    let queue = listen(&busy);
    let stuck: Vec<_> = (0..NOTIFY_CREDITS + 5)
        .map(|_| {
            let (local, remote) = (memory(&hub, 8), memory(&quiet, 8));
            let one = [request(&local, 0, &remote, 0, 8)];
            // The memories are freed again by the time the transfer is dropped below.
            wait_for_region(&hub, to_quiet, remote.region());
            (hub.submit(to_quiet, Op::Write, &one, &notifying(b"quiet")).unwrap(), local, remote)
        })
        .collect();
    let waiting = || stuck.iter().filter(|(transfer, ..)| !transfer.state().is_final()).count();
    eventually("the credits are used up", || waiting() == 5);
    for number in 0..3 * u64::from(NOTIFY_CREDITS) {
        hub.notify(to_busy, &number.to_le_bytes(), Deadline::Default).unwrap();
        let heard = collect(&queue, 1);
        assert_eq!((heard[0].0, &*heard[0].1), (peer_of(&busy, &hub), &number.to_le_bytes()[..]));
    }
    assert_eq!(waiting(), 5);
    collect(&listen(&quiet), stuck.len());
    stuck.iter().for_each(|(transfer, ..)| {
        transfer.wait(Some(PATIENCE)).unwrap();
    });
}
