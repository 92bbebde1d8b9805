//! A cache that is silent, one that is not open yet, and one that is closed: its engine is fenced only where its own
//! transfers may touch blocks of the other side. And a take that is refused.

use ferry::Status;
use ferry_kv::handoff::limits::SILENCES_TO_END;
use ferry_kv::handoff::wire::{Message, Take};
use ferry_kv::handoff::{End, HandoffState, Mode, OfferSpec, Owner, TakeSpec};

use super::rig::*;

const A: u64 = 1;
const B: u64 = 2;

fn rig() -> Rig {
    greeted([A, B], [one(), one()])
}

/// Lets a peer be silent for so long that it is asked and given up, while the other one answers.
fn falls_silent(rig: &mut Rig, heard: u64) {
    for at in [SILENCE / 2, SILENCE] {
        rig.hear(peer(heard), Message::Pong(1));
        rig.tick(rig.now + at);
    }
}

#[test]
fn a_take_waits_for_a_cache_that_is_not_open_and_its_engine_is_not_fenced() {
    for mode in [Mode::Push, Mode::Pull] {
        let mut rig = Rig::new(one());
        rig.take(take_spec(3, 1, mode));
        assert!(matches!(rig.told(peer(A))[..], [Message::Hello { .. }]));
        for half in 1..40 {
            rig.tick(half * SILENCE / 2);
            assert_eq!(std::mem::take(&mut rig.probes), [peer(A)]);
            rig.machine.engine_answered(peer(A), rig.now);
        }
        // Nothing is sent that would fill the peer's channel, which nobody reads.
        assert_eq!((rig.end_of(3), &rig.fences[..], &rig.sent[..]), (None, &[][..], &[][..]));
        rig.hello(peer(A), &one());
        let key = rig.asked(peer(A));
        if mode == Mode::Push {
            rig.hear(peer(A), Message::Data { key, epoch: 0, work: work(0..3, 0..TOKENS) });
        } else {
            rig.hear(peer(A), update(key, TOKENS));
            rig.all_moved();
        }
        assert_eq!(rig.end_of(3), Some((End::Received, Status::Ok)));
    }
}

#[test]
fn a_take_of_a_cache_that_never_opens_ends_by_its_deadline() {
    let mut rig = Rig::new(one());
    let mut spec = take_spec(3, 1, Mode::Push);
    spec.deadline = Some(std::time::Duration::from_nanos(5 * SILENCE));
    rig.take(spec);
    for at in [SILENCE, 2 * SILENCE, 3 * SILENCE, 4 * SILENCE, 5 * SILENCE - 1] {
        rig.tick(at);
        assert_eq!(rig.end_of(3), None);
        rig.machine.engine_answered(peer(A), at);
    }
    rig.tick(5 * SILENCE);
    assert_eq!((rig.end_of(3), &rig.fences[..]), (Some((End::Failed, Status::Timeout)), &[][..]));
}

/// Two producers: the engine of one answers probes, the other's is stopped or gone, and no take waits for that.
#[test]
fn a_take_from_an_engine_that_answers_no_probe_is_given_up() {
    for mode in [Mode::Push, Mode::Pull] {
        let mut rig = Rig::new(one());
        rig.take(take_spec(3, 1, mode));
        rig.take(TakeSpec { producers: vec![peer(B)], ..take_spec(4, 1, mode) });
        rig.tick(SILENCE / 2);
        assert_eq!(rig.probes, [peer(A), peer(B)]);
        rig.machine.engine_answered(peer(B), rig.now);
        rig.tick(SILENCE - 1);
        assert_eq!((rig.end_of(3), rig.end_of(4)), (None, None));
        rig.tick(SILENCE);
        assert_eq!((rig.end_of(3), rig.end_of(4)), (Some((End::PeerLost, Status::PeerLost)), None));
        assert!(rig.fences.is_empty());
    }
}

/// The engine of a cache that is silent answers for itself alone.
#[test]
fn an_answer_to_a_probe_is_no_sign_of_life_of_a_cache() {
    let mut rig = rig();
    rig.take(take_spec(3, 1, Mode::Push));
    for at in [SILENCE / 2, SILENCE] {
        rig.hear(peer(B), Message::Pong(1));
        rig.machine.engine_answered(peer(A), rig.now);
        rig.tick(at);
    }
    assert_eq!((&rig.probes[..], &rig.fences[..]), (&[][..], &[peer(A)][..]));
}

#[test]
fn a_silent_producer_that_is_read_is_not_fenced() {
    let mut rig = rig();
    rig.take(take_spec(3, 1, Mode::Pull));
    let key = rig.asked(peer(A));
    rig.hear(peer(A), update(key, TOKENS));
    falls_silent(&mut rig, B);
    assert_eq!((rig.end_of(3), rig.cancels.len(), &rig.fences[..]), (None, 1, &[][..]));
    rig.moved(Err(ferry::status::Error::new(Status::Cancelled, "cancelled")));
    assert_eq!(rig.end_of(3), Some((End::PeerLost, Status::PeerLost)));
    assert!(matches!(
        rig.told(peer(A))[..],
        [Message::Ping(_), Message::Final { status: Status::PeerLost, .. }]
    ));
}

#[test]
fn a_silent_producer_that_writes_is_fenced() {
    let mut rig = rig();
    rig.take(take_spec(3, 1, Mode::Push));
    falls_silent(&mut rig, B);
    assert_eq!((rig.end_of(3), &rig.fences[..]), (None, &[peer(A)][..]));
    rig.lost(peer(A));
    assert_eq!(rig.end_of(3), Some((End::PeerLost, Status::PeerLost)));
}

/// An offer has two takers, of which one falls silent.
fn two_takers(is_push: bool) -> Rig {
    let mut rig = rig();
    rig.offer(1, 2);
    rig.ready(1, 0..3, 8);
    for (number, group) in [(A, 0), (B, 1)] {
        rig.hear(peer(number), Message::Take(Take { group, ..take(1, 5, is_push) }));
    }
    falls_silent(&mut rig, B);
    rig
}

#[test]
fn a_silent_consumer_that_is_written_to_is_not_fenced_and_the_other_one_is_served() {
    let mut rig = two_takers(true);
    assert_eq!((rig.cancels.len(), &rig.fences[..]), (1, &[][..]));
    let cancelled = || Err(ferry::status::Error::new(Status::Cancelled, "cancelled"));
    while let Some(posted) = rig.posts.first() {
        let result = if posted.peer == peer(A) { cancelled() } else { Ok(()) };
        rig.moved(result);
    }
    assert_eq!(rig.told_status(peer(A)), Some(Status::PeerLost));
    rig.seal(1);
    rig.all_moved();
    rig.hear(peer(B), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::PeerLost, Status::PeerLost)));
    assert!(rig.told(peer(B)).iter().any(|told| matches!(told, Message::Data { .. })));
}

#[test]
fn a_silent_consumer_that_reads_is_fenced() {
    assert_eq!(two_takers(false).fences, [peer(A)]);
}

/// Lets all peers answer for as long as a peer may take to end what it was asked to end. None is fenced before.
fn answers_and_does_not_end(rig: &mut Rig) {
    let begun = rig.now;
    while rig.now - begun < SILENCES_TO_END * SILENCE {
        assert_eq!(rig.fences, [], "after {}", rig.now - begun);
        [A, B].into_iter().for_each(|number| rig.hear(peer(number), Message::Pong(1)));
        rig.tick(rig.now + SILENCE / 4);
    }
}

/// A page of the producer's memory never comes, so its WRITE is never final.
#[test]
fn a_producer_that_answers_and_does_not_end_a_cancelled_push_is_fenced() {
    let mut rig = rig();
    rig.take(take_spec(3, 1, Mode::Push));
    rig.take(TakeSpec { producers: vec![peer(B)], ..take_spec(4, 1, Mode::Push) });
    // A peer that is not asked to end takes its time.
    for _ in 0..2 * SILENCES_TO_END {
        [A, B].into_iter().for_each(|number| rig.hear(peer(number), Message::Pong(1)));
        rig.tick(rig.now + SILENCE / 2);
    }
    rig.machine.take_cancel(id(3), rig.now).unwrap();
    answers_and_does_not_end(&mut rig);
    assert_eq!((rig.end_of(3), &rig.fences[..]), (None, &[peer(A)][..]));
    rig.lost(peer(A));
    assert_eq!((rig.end_of(3), rig.end_of(4)), (Some((End::Cancelled, Status::Cancelled)), None));
}

#[test]
fn a_consumer_that_answers_and_does_not_end_its_reads_is_fenced() {
    for retracts in [false, true] {
        let mut rig = rig();
        rig.offer(1, 2);
        rig.ready(1, 0..3, TOKENS);
        rig.hear(peer(A), Message::Take(take(1, 5, false)));
        if retracts {
            rig.retract(1, 8);
        } else {
            rig.abort(1);
        }
        answers_and_does_not_end(&mut rig);
        assert_eq!((rig.end_of(1), &rig.fences[..]), (None, &[peer(A)][..]), "retracts: {retracts}");
        rig.lost(peer(A));
        let ended = (!retracts).then_some((End::Cancelled, Status::Cancelled));
        assert_eq!(rig.end_of(1), ended, "retracts: {retracts}");
    }
}

/// A retract does not ask it.
#[test]
fn a_silent_consumer_that_has_everything_is_given_up_without_a_fence() {
    let mut rig = rig();
    rig.offer(1, 2);
    rig.ready(1, 0..3, TOKENS);
    rig.hear(peer(A), Message::Take(take(1, 5, true)));
    rig.all_moved();
    falls_silent(&mut rig, B);
    assert_eq!(rig.fences, []);
    rig.sent.clear();
    for _ in 0..4 {
        falls_silent(&mut rig, B);
    }
    assert_eq!(rig.told(peer(A)), [], "nothing is expected of it");
    let number = rig.retract(1, 8);
    assert!(rig.machine.is_retracted(id(1), number).unwrap());
    assert_eq!(rig.machine.status(id(1)), HandoffState::Offered { sealed: false, takers: 1 });
}

#[test]
fn a_cache_that_closes_says_goodbye_once_to_those_that_know_it() {
    let mut rig = rig();
    rig.offer(1, 1);
    rig.holds_messages = true;
    rig.hear(peer(A), cancelling(key(9, 9)));
    assert!(!rig.machine.close(0), "its answer is not there");
    rig.settle();
    assert!(matches!(rig.told(peer(A))[..], [Message::Ended { .. }]));
    rig.machine.sent(peer(A), Some(Owner::Answer), Ok(()), 0);
    assert!(rig.machine.close(0) && rig.machine.close(0));
    rig.settle();
    assert_eq!(rig.told(peer(A)), [Message::Goodbye]);
    assert_eq!(rig.told(peer(B)), [Message::Goodbye]);
    assert!(rig.machine.close(0), "nobody is waited for");
}

#[test]
fn a_consumer_that_closed_after_it_had_everything_is_not_asked_and_not_fenced() {
    // The ends of messages may come behind what the peer says to them.
    for (is_push, holds_messages) in [(true, false), (true, true), (false, false)] {
        let mut rig = rig();
        rig.offer(1, 2);
        rig.ready(1, 0..3, TOKENS);
        rig.hear(peer(A), Message::Take(take(1, 5, is_push)));
        rig.holds_messages = holds_messages;
        rig.all_moved();
        rig.holds_messages = false;
        rig.hear(peer(A), done(key(1, 5)));
        rig.hear(peer(A), Message::Goodbye);
        rig.sent.clear();
        for _ in 0..4 {
            falls_silent(&mut rig, B);
        }
        assert_eq!((rig.told(peer(A)), &rig.fences[..]), (vec![], &[][..]));
        let number = rig.retract(1, 8);
        assert!(rig.machine.is_retracted(id(1), number).unwrap());
        rig.machine.offer_extend(id(1), &blocks(2..4), rig.now).unwrap();
        rig.hear(peer(B), Message::Take(Take { group: 1, ..take(1, 6, true) }));
        rig.seal(1);
        rig.all_moved();
        rig.hear(peer(B), done_in(1, key(1, 6)));
        assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
    }
}

#[test]
fn a_take_that_was_not_asked_for_waits_for_the_successor_of_a_cache_that_closed() {
    let mut rig = Rig::new(one());
    rig.take(take_spec(3, 1, Mode::Push));
    assert!(matches!(rig.told(peer(A))[..], [Message::Hello { .. }]));
    rig.hear(peer(A), Message::Goodbye);
    assert!(matches!(rig.told(peer(A))[..], [Message::Hello { .. }]), "the successor reads this one");
    rig.hello(peer(A), &one());
    let key = rig.asked(peer(A));
    // A take that was asked for ends with the cache.
    rig.hear(peer(A), ended(key, Status::Closed));
    rig.hear(peer(A), Message::Goodbye);
    assert_eq!((rig.end_of(3), &rig.fences[..]), (Some((End::Failed, Status::Closed)), &[][..]));
    // The next one begins anew.
    rig.told(peer(A));
    rig.take(take_spec(4, 1, Mode::Push));
    assert!(matches!(rig.told(peer(A))[..], [Message::Hello { .. }]));
}

/// The blocks of the offer are free at once, not when its lease is over.
#[test]
fn a_take_that_the_offer_cannot_serve_ends_its_taker() {
    for comes_early in [false, true] {
        let mut rig = rig();
        let refused = Message::Take(Take { skip: TOKENS + 1, ..take(1, 5, false) });
        if comes_early {
            rig.hear(peer(A), refused.clone());
        }
        rig.offer(1, 1);
        if !comes_early {
            rig.seal(1);
            rig.hear(peer(A), refused);
        }
        assert_eq!(rig.told_status(peer(A)), Some(Status::Invalid));
        assert_eq!(rig.end_of(1), Some((End::Failed, Status::Invalid)));
    }
}

#[test]
fn a_refused_take_leaves_the_other_takers_to_the_offer() {
    let mut rig = rig();
    rig.offer(1, 2);
    rig.hear(peer(A), Message::Take(Take { skip: TOKENS + 1, ..take(1, 5, true) }));
    rig.hear(peer(B), Message::Take(Take { group: 1, ..take(1, 5, true) }));
    // A second take of a rank that is being served harms nobody.
    rig.hear(peer(A), Message::Take(Take { group: 1, ..take(1, 7, true) }));
    assert_eq!(rig.end_of(1), None);
    rig.seal(1);
    rig.all_moved();
    assert!(rig.told(peer(B)).iter().any(|told| matches!(told, Message::Data { .. })));
    rig.hear(peer(B), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::Failed, Status::Invalid)), "with why the first one was refused");
    // Alone, the one that was served is what counts.
    rig.offer(2, 1);
    rig.hear(peer(B), Message::Take(take(2, 5, true)));
    rig.hear(peer(A), Message::Take(take(2, 7, true)));
    rig.seal(2);
    rig.all_moved();
    rig.hear(peer(B), done(key(2, 5)));
    assert_eq!(rig.end_of(2), Some((End::Sent, Status::Ok)));
}

#[test]
fn who_may_not_take_ends_no_offer() {
    let mut rig = rig();
    rig.offer_as(OfferSpec { only: vec![peer(B)], ..offer_spec(1, 1) });
    rig.hear(peer(A), Message::Take(Take { skip: TOKENS + 1, ..take(1, 5, true) }));
    assert_eq!(rig.told_status(peer(A)), Some(Status::Refused));
    rig.hear(peer(B), Message::Take(take(1, 5, true)));
    rig.seal(1);
    rig.all_moved();
    rig.hear(peer(B), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
}
