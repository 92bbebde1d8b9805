//! The recording, step by step, and that there is none while it is off.

use ferry::status::Error;
use ferry::Status;
use ferry_kv::handoff::limits::TIMELINE_ENTRIES_MAX;
use ferry_kv::handoff::wire::{Message, Take};
use ferry_kv::handoff::{End, Entry, Mode, Moved, TakeSpec, What};

use super::rig::*;

/// The machine's time 0.
const ORIGIN: u64 = 5_000_000;

fn recording() -> Rig {
    let mut rig = Rig::new(one());
    rig.machine.record(100, ORIGIN).unwrap();
    rig
}

impl Rig {
    /// Returns what is recorded from this number on, and when.
    fn recorded(&self, first: u64) -> Vec<(u64, What)> {
        let entries = self.machine.recorded(first, usize::MAX);
        entries.into_iter().map(|entry| (entry.end_ns - ORIGIN, entry.what)).collect()
    }
}

fn moved(transfer: u64, of: u64, layers: std::ops::Range<u32>, tokens: std::ops::Range<u64>) -> Moved {
    // Two pairs, two heads and three elements of a byte.
    let bytes = (layers.end - layers.start) as u64 * (tokens.end - tokens.start) * 12;
    Moved { transfer, peer: peer(of), layers, tokens, bytes }
}

#[test]
fn a_push_of_a_producer() {
    let mut rig = recording();
    rig.hello(peer(2), &one());
    rig.tick(1);
    rig.offer(1, 1);
    rig.hear(peer(2), Message::Take(take(1, 1, true)));
    rig.tick(2);
    rig.machine.offer_ready(id(1), 0..2, 8, 2).unwrap();
    rig.settle();
    rig.tick(3);
    rig.moved(Ok(()));
    rig.tick(4);
    rig.machine.offer_ready(id(1), 2..3, 8, 4).unwrap();
    rig.settle();
    rig.machine.offer_seal(id(1), TOKENS, 4).unwrap();
    rig.tick(5);
    rig.moved(Err(Error::new(Status::Corrupt, "bad")));
    let first = rig.recorded(0).iter().position(|(_, what)| matches!(what, What::Posted(_))).unwrap();
    let What::Posted(Moved { transfer, .. }) = rig.recorded(0)[first].1 else { panic!() };
    let ready = |layers, tokens| What::Ready { layers, tokens };
    let (one, two) = (moved(transfer, 2, 0..2, 0..8), moved(transfer + 1, 2, 2..3, 0..8));
    let expected = [
        (1, What::Offered),
        (2, ready(0..2, 8)),
        (2, What::Posted(one.clone())),
        (3, What::Final(one, Status::Ok)),
        (4, ready(2..3, 8)),
        (4, What::Posted(two.clone())),
        (4, What::Sealed { tokens: TOKENS }),
        (5, What::Final(two, Status::Corrupt)),
        (5, What::Ended(End::Failed, Status::Corrupt)),
    ];
    assert_eq!(rig.recorded(0), expected);
    let entries = rig.machine.recorded(3, 1);
    let [Entry { number: 3, begin_ns, id: 0x0101_0101, .. }] = entries[..] else { panic!("{entries:?}") };
    assert_eq!(begin_ns, ORIGIN + 2, "a transfer begins when it is posted");
}

#[test]
fn a_pull_is_granted_at_both_sides() {
    let mut producer = recording();
    producer.hello(peer(2), &one());
    producer.offer(1, 1);
    producer.hear(peer(2), Message::Take(Take { skip: 4, ..take(1, 1, false) }));
    producer.seal(1);
    producer.hear(peer(2), done(key(1, 1)));
    let granted = |of| What::Granted { peer: peer(of) };
    let what: Vec<What> = producer.recorded(0).into_iter().map(|(_, what)| what).collect();
    let ready = What::Ready { layers: 0..3, tokens: TOKENS };
    let sealed = What::Sealed { tokens: TOKENS };
    let sent = What::Ended(End::Sent, Status::Ok);
    assert_eq!(what, [What::Offered, granted(2), ready, granted(2), sealed, sent]);

    let mut consumer = recording();
    consumer.hello(peer(1), &one());
    consumer.take(TakeSpec { tell_layers: true, ..take_spec(1, 1, Mode::Pull) });
    let key = consumer.asked(peer(1));
    consumer.hear(peer(1), update(key, TOKENS));
    consumer.tick(9);
    let transfer = moved(consumer.posts[0].post.0, 1, 0..3, 0..TOKENS);
    consumer.all_moved();
    let expected = [
        (0, What::Taken),
        (0, granted(1)),
        (0, What::Posted(transfer.clone())),
        (9, What::Final(transfer, Status::Ok)),
        (9, What::Layers(3)),
        (9, What::Ended(End::Received, Status::Ok)),
    ];
    assert_eq!(consumer.recorded(0), expected);
}

#[test]
fn what_arrives_of_a_push_is_recorded() {
    let mut rig = recording();
    rig.hello(peer(1), &one());
    rig.take(take_spec(1, 1, Mode::Push));
    let key = rig.asked(peer(1));
    rig.tick(3);
    rig.hear(peer(1), Message::Data { key, epoch: 0, work: work(0..3, 0..8) });
    rig.hear(peer(1), Message::Data { key, epoch: 0, work: work(0..3, 8..TOKENS) });
    let arrived = |tokens| (3, What::Arrived(moved(0, 1, 0..3, tokens)));
    let end = What::Ended(End::Received, Status::Ok);
    assert_eq!(rig.recorded(0), [(0, What::Taken), arrived(0..8), arrived(8..TOKENS), (3, end)]);
}

#[test]
fn new_entries_overwrite_the_oldest() {
    let mut rig = Rig::new(one());
    rig.machine.record(3, ORIGIN).unwrap();
    for layer in 0..5 {
        assert_eq!(rig.machine.metrics(0).timeline_overwritten, u64::from(layer).saturating_sub(3));
        rig.machine.mark(id(1), 7, layer, 10..20 + u64::from(layer)).unwrap();
    }
    let entries = rig.machine.recorded(0, 2);
    let seen: Vec<_> =
        entries.iter().map(|it| (it.number, it.begin_ns, it.end_ns, it.what.clone())).collect();
    let mark = |layer| What::Mark { kind: 7, layer };
    assert_eq!(seen, [(2, 10, 22, mark(2)), (3, 10, 23, mark(3))]);
    assert_eq!(rig.machine.recorded(4, 9)[0].number, 4);
    assert!(rig.machine.recorded(5, 9).is_empty() && rig.machine.recorded(u64::MAX, 9).is_empty());
    assert_eq!(rig.machine.metrics(0).timeline_overwritten, 2);
    // A new recording begins anew; what was overwritten stays counted.
    rig.machine.record(3, ORIGIN).unwrap();
    rig.offer(1, 1);
    assert_eq!(rig.machine.recorded(0, 9)[0].number, 0);
    assert_eq!(rig.machine.metrics(0).timeline_overwritten, 2);
}

/// The cache's lock is held during a read, so the last entries of a long recording cost no more than the first ones.
#[test]
fn a_read_takes_as_long_wherever_it_begins() {
    const ENTRIES: usize = 1 << 18;
    let mut rig = Rig::new(one());
    rig.machine.record(ENTRIES, ORIGIN).unwrap();
    // Half of them are overwritten.
    for at in 0..ENTRIES as u64 * 3 / 2 {
        rig.machine.mark(id(1), 7, 0, at..at).unwrap();
    }
    let first = ENTRIES as u64 / 2;
    // The shortest time of many is without what else runs on this machine.
    let shortest = |number: u64| {
        let read = |_| {
            let began = std::time::Instant::now();
            let entries = rig.machine.recorded(number, 4);
            let took = began.elapsed();
            assert!(entries.iter().map(|entry| entry.number).eq(number..number + 4));
            took
        };
        (0..32).map(read).min().unwrap()
    };
    let (of_first, of_last) = (shortest(first), shortest(first + ENTRIES as u64 - 4));
    assert!(
        of_last < of_first.max(std::time::Duration::from_micros(1)) * 50,
        "{of_last:?}, and the first ones {of_first:?}"
    );
}

#[test]
fn what_is_wrong_is_named_and_nothing_is_recorded_while_it_is_off() {
    let mut rig = Rig::new(one());
    rig.offer(1, 1);
    rig.machine.mark(id(1), 1, 0, 5..5).unwrap();
    assert!(rig.machine.recorded(0, 9).is_empty());
    let refused = rig.machine.record(0, 0).unwrap_err();
    assert_eq!(refused.message, "entries_max: 0 is not 1 to 1048576");
    assert!(rig.machine.record(TIMELINE_ENTRIES_MAX + 1, 0).is_err());
    rig.machine.record(TIMELINE_ENTRIES_MAX, 0).unwrap();
    let refused = rig.machine.mark(id(1), 1, 0, std::ops::Range { start: 6, end: 5 }).unwrap_err();
    assert_eq!(refused.message, "end_ns: 5 is before begin_ns, 6");
    rig.offer(2, 1);
    assert_eq!(rig.machine.recorded(0, 9).len(), 1);
    rig.machine.stop_recording();
    rig.offer(3, 1);
    assert!(rig.machine.recorded(0, 9).is_empty());
}

/// A transfer that was posted before the recording began has no beginning to tell.
#[test]
fn a_recording_that_begins_in_the_middle_tells_what_it_saw() {
    let mut rig = greeted([2], [one()]);
    rig.offer(1, 1);
    rig.hear(peer(2), Message::Take(take(1, 1, true)));
    rig.seal(1);
    rig.machine.record(9, ORIGIN).unwrap();
    rig.all_moved();
    rig.hear(peer(2), done(key(1, 1)));
    assert_eq!(rig.recorded(0), [(0, What::Ended(End::Sent, Status::Ok))]);
}
