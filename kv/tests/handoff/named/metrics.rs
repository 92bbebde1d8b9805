//! The counts, step by step.

use std::time::Duration;

use ferry::status::Error;
use ferry::Status;
use ferry_kv::handoff::wire::Message;
use ferry_kv::handoff::{Ends, HandoffId, Mode, Stats, TakeSpec};
use ferry_kv::plan::Strided;

use super::rig::*;

impl Rig {
    fn metrics(&self) -> Stats {
        self.machine.stats(self.now)
    }

    fn ends(&self) -> Ends {
        self.metrics().ends
    }
}

fn bytes(moves: &[Strided]) -> u64 {
    moves.iter().flat_map(Strided::requests).map(|piece| piece.bytes).sum()
}

/// All bytes of the sequence: three layers of two pairs, two heads and three elements.
const WHOLE: u64 = 3 * TOKENS * 2 * 2 * 3;

#[test]
fn a_lease_counts_from_the_seal_to_the_end() {
    let mut rig = Rig::new(one());
    rig.offer(1, 1);
    assert_eq!((rig.metrics().offers, rig.metrics().leased_blocks), (1, 0));
    rig.tick(10);
    rig.seal(1);
    rig.tick(50);
    rig.offer(2, 1);
    rig.seal(2);
    rig.tick(70);
    let metrics = rig.metrics();
    assert_eq!((metrics.offers, metrics.leased_blocks), (2, 8));
    assert_eq!(metrics.oldest_lease, Duration::from_nanos(60));
    // The oldest one is reclaimed; the other's lease ends.
    rig.machine.reclaim(1, 80);
    rig.settle();
    let metrics = rig.metrics();
    assert_eq!((metrics.offers, metrics.leased_blocks, metrics.oldest_lease.as_nanos()), (1, 4, 20));
    assert_eq!((metrics.ends.expired_pressure, metrics.ends.expired_lease), (1, 0));
    rig.tick(50 + LEASE);
    let metrics = rig.metrics();
    assert_eq!((metrics.offers, metrics.leased_blocks, metrics.oldest_lease.as_nanos()), (0, 0, 0));
    assert_eq!((metrics.ends.expired_pressure, metrics.ends.expired_lease), (1, 1));
    assert_eq!(metrics.ends.failed(), 0);
}

#[test]
fn a_push_counts_at_both_sides_when_it_is_there() {
    let (mut producer, mut consumer) = (Rig::new(one()), Rig::new(one()));
    producer.hello(peer(2), &one());
    consumer.hello(peer(1), &one());
    consumer.take(TakeSpec { taker: 0, ..take_spec(1, 1, Mode::Push) });
    let metrics = consumer.metrics();
    assert_eq!((metrics.takes, metrics.parts, metrics.transfers), (1, 1, 0));
    producer.hear(peer(2), Message::Take(take(1, 1, true)));
    assert_eq!((producer.metrics().takes_waiting, producer.metrics().parts), (1, 0));
    producer.offer(1, 1);
    assert_eq!((producer.metrics().takes_waiting, producer.metrics().parts), (0, 1));
    producer.ready(1, 0..1, TOKENS);
    assert_eq!((producer.metrics().transfers, producer.metrics().bytes_sent), (1, 0));
    let posted = producer.moved(Ok(()));
    let key = consumer.asked(peer(1));
    let Some(Message::Data { work, .. }) = producer.told(peer(2)).pop() else { panic!() };
    consumer.hear(peer(1), Message::Data { key, epoch: 0, work });
    assert_eq!(bytes(&posted.moves), WHOLE / 3);
    assert_eq!((producer.metrics().transfers, producer.metrics().bytes_sent), (0, WHOLE / 3));
    assert_eq!(consumer.metrics().bytes_received, WHOLE / 3);
    producer.ready(1, 1..3, TOKENS);
    let posted = producer.moved(Err(Error::new(Status::Unreachable, "no path")));
    assert_eq!(bytes(&posted.moves), 2 * WHOLE / 3);
    assert_eq!(producer.metrics().bytes_sent, WHOLE / 3, "what failed is not sent");
    assert_eq!(producer.ends().failed_with(Status::Unreachable), 1);
    assert_eq!((producer.ends().failed(), producer.ends().failed_with(Status::Timeout)), (1, 0));
    assert_eq!((producer.metrics().offers, producer.metrics().parts), (0, 0));
}

/// The producer counts a pull when its consumer has read everything, and only then.
#[test]
fn a_pull_counts_at_the_producer_by_its_final() {
    for (status, counted) in [(Status::Ok, WHOLE - WHOLE / 4), (Status::Timeout, 0)] {
        let mut rig = greeted([2], [one()]);
        rig.offer(1, 1);
        rig.seal(1);
        let take = ferry_kv::handoff::wire::Take { skip: TOKENS / 4, ..take(1, 1, false) };
        rig.hear(peer(2), Message::Take(take));
        assert_eq!((rig.metrics().bytes_sent, rig.metrics().parts), (0, 1));
        rig.hear(peer(2), final_with(key(1, 1), status));
        // The same once more counts nothing.
        rig.hear(peer(2), done(key(1, 1)));
        assert_eq!((rig.metrics().bytes_sent, rig.metrics().parts), (counted, 0), "{status}");
        assert_eq!(rig.ends().sent, u64::from(status == Status::Ok));
    }
}

#[test]
fn a_pull_counts_at_the_consumer_by_its_reads() {
    let (mut rig, key) = asking(one(), take_spec(1, 1, Mode::Pull));
    rig.hear(peer(1), update(key, TOKENS));
    assert_eq!((rig.metrics().transfers, rig.metrics().bytes_received), (1, 0));
    rig.all_moved();
    assert_eq!((rig.metrics().transfers, rig.metrics().bytes_received), (0, WHOLE));
    assert_eq!((rig.ends().received, rig.metrics().takes, rig.metrics().parts), (1, 0, 0));
    assert_eq!(rig.metrics().bytes_sent, 0);
}

#[test]
fn each_end_has_its_counter() {
    let mut rig = Rig::new(one());
    rig.offer(1, 1);
    rig.machine.offer_cancel(id(1), 0).unwrap();
    assert_eq!(rig.ends().cancelled, 1);
    rig.hello(peer(1), &one());
    rig.take(take_spec(2, 1, Mode::Pull));
    rig.lost(peer(1));
    assert_eq!((rig.ends().peer_lost, rig.ends().failed()), (1, 0));
    rig.take(TakeSpec { deadline: Some(Duration::from_nanos(5)), ..take_spec(3, 1, Mode::Pull) });
    rig.tick(5);
    assert_eq!(rig.ends().failed_with(Status::Timeout), 1);
    rig.offer(4, 1);
    let at = one().layers[0].memory.unwrap().address;
    assert_eq!(rig.metrics().late_applies, 0);
    rig.machine.late_apply(&(at..at + 1), 6);
    rig.machine.late_apply(&(0..1), 6);
    assert_eq!((rig.metrics().late_applies, rig.ends().failed_with(Status::Corrupt)), (1, 1));
    let ends = rig.ends();
    assert_eq!((ends.sent, ends.received, ends.expired_lease, ends.expired_pressure), (0, 0, 0, 0));
}

/// Each line of the text has its number, its help and its type.
#[test]
fn the_text_has_every_number() {
    let mut rig = Rig::new(one());
    for number in 1..=3 {
        rig.offer(number, 1);
        rig.machine.offer_seal(HandoffId::from_bytes([number; 16]), TOKENS, 0).unwrap();
    }
    rig.machine.reclaim(1, 0);
    rig.offer(9, 1);
    rig.machine.offer_cancel(id(9), 0).unwrap();
    rig.take(TakeSpec { deadline: Some(Duration::from_nanos(5)), ..take_spec(8, 1, Mode::Pull) });
    rig.tick(1_500_000_000 - LEASE);
    let text = rig.metrics().prometheus();
    for line in [
        "# HELP ferry_kv_offers Offers that have not ended.\n# TYPE ferry_kv_offers gauge\nferry_kv_offers 2",
        "ferry_kv_takes 0",
        "ferry_kv_takes_waiting 0",
        "ferry_kv_parts 0",
        "ferry_kv_transfers 0",
        "ferry_kv_leased_blocks 8",
        "ferry_kv_oldest_lease_seconds 0.5",
        "ferry_kv_unfenced_blocks 0",
        "# TYPE ferry_kv_bytes_sent_total counter\nferry_kv_bytes_sent_total 0",
        "ferry_kv_bytes_received_total 0",
        "# TYPE ferry_kv_handoffs_total counter\nferry_kv_handoffs_total{end=\"sent\"} 0",
        "ferry_kv_handoffs_total{end=\"received\"} 0",
        "ferry_kv_handoffs_total{end=\"failed\"} 1",
        "ferry_kv_handoffs_total{end=\"cancelled\"} 1",
        "ferry_kv_handoffs_total{end=\"expired_lease\"} 0",
        "ferry_kv_handoffs_total{end=\"expired_pressure\"} 1",
        "ferry_kv_handoffs_total{end=\"peer_lost\"} 0",
        "# TYPE ferry_kv_failures_total counter\nferry_kv_failures_total{status=\"INVALID\"} 0",
        "ferry_kv_failures_total{status=\"TIMEOUT\"} 1",
        "ferry_kv_late_applies_total 0",
        "ferry_kv_timeline_overwritten_total 0",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line} is missing in\n{text}");
    }
    assert!(!text.contains("status=\"OK\"") && !text.contains("PENDING"), "{text}");
    let metrics = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(metrics, text.lines().filter(|line| line.starts_with("# HELP ")).count());
}

/// In an offer and a take that go on, parts that are over do not count, and are not counted again.
#[test]
fn parts_that_are_over_do_not_count() {
    let mut rig = greeted([2, 3], [one(), one()]);
    rig.offer(1, 2);
    rig.seal(1);
    rig.hear(peer(2), Message::Take(take(1, 1, false)));
    let second = ferry_kv::handoff::wire::Take { group: 1, ..take(1, 9, false) };
    rig.hear(peer(3), Message::Take(second));
    assert_eq!(rig.metrics().parts, 2);
    for _ in 0..2 {
        rig.hear(peer(2), done(key(1, 1)));
        assert_eq!((rig.metrics().parts, rig.metrics().bytes_sent), (1, WHOLE));
    }
    let ranks = tp(2);
    let mut rig = Rig::new(one());
    rig.hello(peer(1), &ranks[0]);
    rig.hello(peer(2), &ranks[1]);
    rig.take(take_spec(1, 2, Mode::Pull));
    assert_eq!(rig.metrics().parts, 2);
    let key = rig.asked(peer(1));
    rig.hear(peer(1), update(key, TOKENS));
    rig.all_moved();
    let metrics = rig.metrics();
    assert_eq!((metrics.takes, metrics.parts, metrics.bytes_received), (1, 1, WHOLE / 2));
}
