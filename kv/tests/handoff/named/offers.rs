//! The producer's side. Above 500 lines: the stories share the rig and the helpers at the top, and each is short.

use std::time::Duration;

use ferry::status::Error;
use ferry::types::Op;
use ferry::Status;
use ferry_kv::handoff::wire::{Message, Take};
use ferry_kv::handoff::{Address, Blocks, End, Event, Handoff, HandoffState, OfferSpec, Owner};

use super::rig::*;
use crate::caches::{layouts, Shape};

const A: u64 = 11;
const B: u64 = 12;
const C: u64 = 13;

fn producer() -> Rig {
    greeted([A, B, C], [one(), one(), one()])
}

/// A producer of one rank, whose consumers are `A` and `B`: ranks 0 and 1 of a group.
fn producer_of_two() -> Rig {
    greeted([A, B, C], [tp(2), tp(1)].concat())
}

fn failed() -> Error {
    Error::new(Status::Partial, "broken")
}

#[test]
fn a_lease_runs_from_the_seal_and_ends_an_offer_that_nobody_takes() {
    let mut rig = producer();
    rig.offer(1, 1);
    assert_eq!(rig.tick(10 * LEASE), None, "nothing waits for the time before the seal");
    rig.seal(1);
    assert_eq!(rig.tick(11 * LEASE - 1), Some(11 * LEASE));
    assert_eq!(rig.end_of(1), None);
    rig.tick(11 * LEASE);
    assert_eq!(rig.end_of(1), Some((End::Expired, Status::Timeout)));
}

#[test]
fn a_lease_ends_an_offer_when_one_of_two_ranks_never_takes() {
    let mut rig = producer_of_two();
    rig.offer(1, 1);
    rig.seal(1);
    rig.hear(peer(A), Message::Take(take(1, 5, true)));
    rig.all_moved();
    rig.tick(LEASE);
    assert_eq!(rig.end_of(1), Some((End::Expired, Status::Timeout)));
}

#[test]
fn a_lease_does_not_end_an_offer_whose_takers_are_there() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.seal(1);
    rig.hear(peer(A), Message::Take(take(1, 5, true)));
    rig.tick(2 * LEASE);
    assert_eq!(rig.end_of(1), None);
    rig.all_moved();
    assert_eq!(rig.end_of(1), None, "the take has not ended");
    rig.hear(peer(A), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
}

#[test]
fn a_group_that_has_failed_is_not_awaited() {
    let mut rig = producer_of_two();
    rig.offer(1, 2);
    rig.seal(1);
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    rig.hear(peer(C), Message::Take(Take { group: 1, ..take(1, 6, false) }));
    rig.hear(peer(A), final_with(key(1, 5), Status::Cancelled));
    rig.sent.clear();
    rig.tick(2 * LEASE);
    assert_eq!((rig.end_of(1), rig.told_end(peer(C))), (None, None), "the other group goes on");
    rig.hear(peer(C), done(key(1, 6)));
    assert_eq!(rig.end_of(1), Some((End::Failed, Status::Cancelled)));
}

#[test]
fn an_offer_is_sent_after_the_seal_and_when_all_ranks_of_all_takers_have_it() {
    let mut rig = producer_of_two();
    rig.offer(1, 2);
    rig.machine.offer_ready(id(1), 0..3, TOKENS, 0).unwrap();
    for (at, group, rank) in [(A, 0, 0), (B, 0, 1), (C, 1, 0)] {
        assert_eq!(rig.end_of(1), None);
        rig.hear(peer(at), Message::Take(Take { group, rank, ..take(1, 5, true) }));
        rig.all_moved();
        rig.hear(peer(at), done(key(1, 5)));
    }
    assert_eq!(rig.end_of(1), None, "not sealed");
    rig.seal_at(1, TOKENS);
    assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
}

#[test]
fn an_offer_whose_consumer_is_not_told_of_the_last_write_is_not_sent() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.hear(peer(A), Message::Take(take(1, 5, true)));
    rig.seal(1);
    rig.holds_messages = true;
    rig.all_moved();
    assert_eq!(rig.end_of(1), None, "all is written, and nobody is told");
    let data_of = Owner::Part(Address { of: Handoff::Offer(id(1)), group: 0, rank: 0 });
    let lost = Err(Error::new(Status::PeerLost, "it is gone"));
    rig.machine.sent(peer(A), Some(data_of), lost, 0);
    rig.settle();
    assert_eq!(rig.end_of(1), Some((End::PeerLost, Status::PeerLost)));
}

/// Two takes come before the offer, and A gives its own up while it waits.
fn given_up_before_the_offer(is_push: bool) -> Rig {
    let mut rig = producer();
    rig.hear(peer(A), Message::Take(take(1, 5, is_push)));
    rig.hear(peer(B), Message::Take(Take { group: 1, ..take(1, 5, is_push) }));
    let gives_up = if is_push { cancelling(key(1, 5)) } else { final_with(key(1, 5), Status::Cancelled) };
    rig.hear(peer(A), gives_up);
    assert_eq!(rig.told_end(peer(A)).is_some(), is_push, "a cancel is answered");
    rig
}

#[test]
fn a_take_that_is_given_up_before_its_offer_counts_as_a_taker_that_failed() {
    for is_push in [true, false] {
        let mut rig = given_up_before_the_offer(is_push);
        rig.offer(1, 2);
        assert_eq!(rig.machine.status(id(1)), HandoffState::Offered { sealed: false, takers: 2 });
        assert_eq!(rig.end_of(1), None, "the other one goes on");
        rig.hear(peer(B), final_with(key(1, 5), Status::Cancelled));
        rig.hear(peer(B), cancelling(key(1, 5)));
        rig.settle();
        assert_eq!(rig.end_of(1), Some((End::Failed, Status::Cancelled)), "no lease is waited for");
    }
}

#[test]
fn an_offer_whose_only_taker_gave_up_ends_at_once_and_others_are_told() {
    let mut rig = producer();
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    rig.hear(peer(A), final_with(key(1, 5), Status::Timeout));
    rig.offer(1, 1);
    rig.settle();
    assert_eq!(rig.end_of(1), Some((End::Failed, Status::Timeout)));
    rig.hear(peer(B), Message::Take(Take { group: 1, ..take(1, 6, true) }));
    assert_eq!(rig.told_status(peer(B)), Some(Status::Stale));
}

#[test]
fn who_says_to_have_read_what_was_not_granted_is_not_trusted() {
    let mut rig = producer();
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    rig.hear(peer(A), done(key(1, 5)));
    assert_eq!(rig.fences, [peer(A)]);
    rig.offer(1, 1);
    assert_eq!(rig.machine.status(id(1)), HandoffState::Offered { sealed: false, takers: 0 });
}

#[test]
fn one_that_waits_comes_before_one_that_gave_up() {
    let mut rig = given_up_before_the_offer(false);
    rig.offer(1, 1);
    assert_eq!(rig.machine.status(id(1)), HandoffState::Offered { sealed: false, takers: 1 });
    assert_eq!(rig.end_of(1), None, "B takes the only place");
}

#[test]
fn a_peer_that_may_not_take_ends_no_offer_by_giving_up_before_it() {
    let mut rig = given_up_before_the_offer(false);
    rig.offer_as(OfferSpec { only: vec![peer(B)], lease: Duration::ZERO, ..offer_spec(1, 2) });
    assert_eq!(rig.machine.status(id(1)), HandoffState::Offered { sealed: false, takers: 1 }, "B alone");
}

#[test]
fn a_take_of_more_tokens_than_are_sealed_fails_before_and_after_the_seal() {
    let mut rig = producer();
    rig.offer(1, 2);
    rig.hear(peer(A), Message::Take(Take { tokens: 17, ..take(1, 5, false) }));
    rig.hear(peer(B), Message::Take(Take { tokens: 16, group: 1, ..take(1, 5, false) }));
    assert_eq!(rig.told_end(peer(A)), None);
    rig.seal(1);
    assert_eq!(rig.told_status(peer(A)), Some(Status::Invalid));
    assert_eq!(rig.told_end(peer(B)), None);
    rig.offer(2, 1);
    rig.seal(2);
    rig.hear(peer(A), Message::Take(Take { tokens: 17, ..take(2, 6, false) }));
    assert_eq!(rig.told_status(peer(A)), Some(Status::Invalid));
    assert_eq!(rig.end_of(2), Some((End::Failed, Status::Invalid)), "a refusal ends its taker");
}

#[test]
fn an_id_that_has_ended_is_refused() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.abort(1);
    assert_eq!(rig.end_of(1), Some((End::Cancelled, Status::Cancelled)));
    rig.hear(peer(A), Message::Take(take(1, 5, true)));
    let (status, why) = rig.told_end(peer(A)).unwrap();
    assert!(status == Status::Stale && why.contains("the producer aborted the offer"), "{why}");
    assert_eq!(rig.machine.offer(offer_spec(1, 1), 0).unwrap_err().status, Status::Invalid);
    let error = rig.machine.offer_cancel(id(1), 0).unwrap_err();
    assert_eq!(error.status, Status::Stale);
    assert_eq!(rig.machine.status(id(1)), HandoffState::Ended(End::Cancelled));
}

#[test]
fn a_repeated_take_is_the_same_and_another_number_is_refused() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.seal(1);
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    assert_eq!(rig.told_end(peer(A)), None);
    rig.hear(peer(A), Message::Take(take(1, 6, false)));
    assert_eq!(rig.told_status(peer(A)), Some(Status::Invalid));
    rig.hear(peer(B), Message::Take(take(1, 5, false)));
    assert_eq!(rig.told_status(peer(B)), Some(Status::Invalid), "the number is A's");
    rig.hear(peer(B), Message::Take(Take { group: 1, ..take(1, 5, false) }));
    assert_eq!(rig.told_status(peer(B)), Some(Status::Limit), "there is one taker");
    rig.hear(peer(A), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
}

#[test]
fn an_offer_for_some_peers_refuses_others() {
    let mut rig = producer();
    rig.offer_as(OfferSpec { only: vec![peer(A)], ..offer_spec(1, 1) });
    rig.hear(peer(B), Message::Take(take(1, 5, false)));
    assert_eq!(rig.told_status(peer(B)), Some(Status::Refused));
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    assert_eq!(rig.told_end(peer(A)), None);
}

#[test]
fn only_the_session_that_took_may_cancel_or_say_that_it_is_done() {
    let mut rig = producer();
    rig.offer(1, 2);
    rig.seal(1);
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    rig.hear(peer(B), Message::Take(Take { group: 1, ..take(1, 5, true) }));
    for message in [done(key(1, 5)), cancelling(key(1, 5))] {
        rig.hear(peer(C), message);
    }
    // These have the right peer, and a number that is not its own.
    rig.hear(peer(A), done(key(1, 6)));
    rig.hear(peer(B), cancelling(key(1, 6)));
    assert!(rig.cancels.is_empty());
    rig.all_moved();
    rig.hear(peer(B), done(key(1, 5)));
    assert_eq!(rig.end_of(1), None, "A has not read");
    rig.hear(peer(A), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
}

#[test]
fn another_incarnation_is_stale_and_learns_the_present_one() {
    let mut rig = Rig::new(one());
    rig.offer(1, 1);
    rig.hear(peer(A), Message::Take(Take { incarnation: 99, ..take(1, 5, false) }));
    let told = rig.told(peer(A));
    let greets = |message: &Message| matches!(message, Message::Hello { incarnation: INCARNATION, .. });
    let refuses = |message: &Message| matches!(message, Message::Ended { status: Status::Stale, .. });
    assert!(told.iter().any(greets) && told.iter().any(refuses), "{told:?}");
}

#[test]
fn a_cache_that_was_opened_anew_is_greeted_again() {
    let mut rig = Rig::new(one());
    let hello = |incarnation| Message::Hello { incarnation, regions: Vec::new(), layout: Box::new(one()) };
    for (incarnation, greets) in [(1, true), (1, false), (2, true)] {
        rig.hear(peer(A), hello(incarnation));
        assert_eq!(rig.told(peer(A)).len(), usize::from(greets));
    }
}

#[test]
fn nothing_to_send_is_sent_without_a_transfer() {
    let mut rig = producer();
    for (number, skip, lists) in [(1, 0, vec![Blocks::default()]), (2, TOKENS, blocks(0..4))] {
        rig.offer(number, 1);
        rig.seal(number);
        rig.hear(peer(A), Message::Take(Take { skip, blocks: lists, ..take(number, 5, true) }));
        rig.hear(peer(A), done(key(number, 5)));
        assert_eq!(rig.end_of(number), Some((End::Sent, Status::Ok)));
    }
    assert!(rig.posts.is_empty());
}

#[test]
fn tokens_that_two_ranks_do_not_share_are_told_without_a_transfer() {
    let shape = Shape { pcp: 2, turn: 2, ..Shape::plain(1, 1, 2) };
    let mut rig = Rig::new(layouts(shape, 0).remove(1));
    rig.hello(peer(A), &one());
    rig.offer(1, 1);
    rig.told(peer(A));
    rig.hear(peer(A), Message::Take(Take { tokens: 6, ..take(1, 5, true) }));
    // The other rank has the tokens 0, 1, 4 and 5.
    for tokens in [4, 6] {
        rig.ready(1, 0..3, tokens);
    }
    assert_eq!(rig.posts.len(), 1);
    assert_eq!(rig.told(peer(A)), [Message::Data { key: key(1, 5), epoch: 0, work: work(0..3, 4..6) }]);
    rig.all_moved();
    rig.seal_at(1, 6);
    rig.hear(peer(A), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
}

#[test]
fn a_group_that_is_not_needed_may_lie_between_others() {
    let mut rig = Rig::new(mixed());
    rig.hello(peer(A), &mixed());
    let both = [blocks(0..4), blocks(0..4)].concat();
    rig.offer_as(OfferSpec { blocks: both, ..offer_spec(1, 1) });
    let some = [blocks(0..4), vec![Blocks::default()]].concat();
    rig.hear(peer(A), Message::Take(Take { blocks: some, ..take(1, 5, true) }));
    rig.seal(1);
    assert_eq!(rig.end_of(1), None);
    rig.all_moved();
    rig.hear(peer(A), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
}

/// But its offer is no more sent than those of the ranks that send.
#[test]
fn a_rank_that_sends_nothing_says_so_at_once() {
    let (ranks, idle) = with_idle();
    for (is_push, status) in [(true, Status::Ok), (false, Status::Ok), (true, Status::PeerLost)] {
        let mut rig = Rig::new(ranks[idle[0] as usize].clone());
        rig.hello(peer(A), &one());
        rig.offer(1, 1);
        rig.seal(1);
        assert_eq!(rig.end_of(1), None);
        rig.told(peer(A));
        rig.hear(peer(A), Message::Take(take(1, 5, is_push)));
        assert_eq!(rig.told_end(peer(A)), Some((Status::Ok, String::new())));
        assert_eq!(rig.end_of(1), None);
        rig.hear(peer(A), final_with(key(1, 5), status));
        let end = if status == Status::Ok { End::Sent } else { End::PeerLost };
        assert_eq!(rig.end_of(1), Some((end, status)));
    }
}

#[test]
fn layers_are_ready_in_order_and_within_the_blocks_and_the_seal() {
    let mut rig = producer();
    rig.offer(1, 1);
    let mut ready = |layers, tokens| rig.machine.offer_ready(id(1), layers, tokens, 0).map_err(|e| e.status);
    assert_eq!(ready(1..2, 4), Err(Status::Invalid), "layer 0 comes first");
    assert_eq!(ready(0..1, 8), Ok(()));
    assert_eq!(ready(0..1, 8), Err(Status::Invalid), "twice");
    assert_eq!(ready(1..2, 9), Err(Status::Invalid), "before the layer below");
    assert_eq!(ready(1..3, 8), Ok(()));
    assert_eq!(ready(0..1, 9), Ok(()));
    assert_eq!(ready(0..3, 17), Err(Status::Invalid), "beyond the blocks");
    assert_eq!(ready(0..4, 16), Err(Status::Invalid), "no such layer");
    assert_eq!(ready(1..1, 16), Err(Status::Invalid), "no layer");
    assert_eq!(rig.machine.offer_seal(id(1), 8, 0).map_err(|e| e.status), Err(Status::Invalid));
    rig.machine.offer_seal(id(1), 12, 0).unwrap();
    assert_eq!(rig.machine.offer_seal(id(1), 12, 0).map_err(|e| e.status), Err(Status::Invalid));
    let mut ready = |layers, tokens| rig.machine.offer_ready(id(1), layers, tokens, 0).map_err(|e| e.status);
    assert_eq!(ready(0..3, 13), Err(Status::Invalid), "beyond the seal");
    assert_eq!(ready(0..3, 12), Ok(()));
    let more = rig.machine.offer_extend(id(1), &blocks(4..5), 0);
    assert_eq!(more.map_err(|e| e.status), Err(Status::Invalid), "sealed");
}

#[test]
fn blocks_are_within_the_layout_and_there_once() {
    let mut rig = producer();
    let list = |first_token, ids: Vec<u32>| Blocks { first_token, ids };
    let bad = [
        vec![],
        vec![list(0, vec![0]), list(0, vec![])],
        vec![list(0, vec![64])],
        vec![list(0, vec![3, 4, 3])],
        vec![list(2, vec![3])],
    ];
    for blocks in bad {
        let spec = OfferSpec { blocks, ..offer_spec(1, 1) };
        assert_eq!(rig.machine.offer(spec, 0).map_err(|e| e.status), Err(Status::Invalid));
    }
    rig.offer(1, 1);
    for more in [blocks(3..5), blocks(64..65), vec![]] {
        let more = rig.machine.offer_extend(id(1), &more, 0);
        assert_eq!(more.map_err(|e| e.status), Err(Status::Invalid));
    }
    rig.machine.offer_extend(id(1), &blocks(63..64), 0).unwrap();
    rig.machine.offer_ready(id(1), 0..3, 20, 0).unwrap();
}

#[test]
fn a_pull_is_told_what_is_new() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    let says = |ready: [u64; 3], added: Vec<Blocks>| {
        vec![Message::Update { key: key(1, 5), epoch: 0, ready: ready.to_vec(), added }]
    };
    assert_eq!(rig.told(peer(A)), says([0; 3], blocks(0..4)), "the grant");
    rig.machine.offer_extend(id(1), &blocks(8..9), 0).unwrap();
    rig.settle();
    assert_eq!(rig.told(peer(A)), vec![], "blocks alone are no news");
    rig.ready(1, 0..2, 20);
    assert_eq!(rig.told(peer(A)), says([20, 20, 0], vec![Blocks { first_token: 16, ids: vec![8] }]));
}

#[test]
fn a_pull_that_is_over_or_struck_is_told_nothing_more() {
    let mut rig = producer();
    rig.offer(1, 3);
    for (group, from) in [(0, A), (1, B), (2, C)] {
        // A pull is never written to, whatever it says.
        let blocks = blocks(0..4);
        let tokens = if from == B { 20 } else { TOKENS };
        rig.hear(peer(from), Message::Take(Take { group, blocks, tokens, ..take(1, 5, false) }));
    }
    rig.hear(peer(A), done(key(1, 5)));
    rig.sent.clear();
    rig.seal_at(1, TOKENS);
    assert_eq!(rig.told_status(peer(B)), Some(Status::Invalid));
    rig.ready(1, 0..3, TOKENS);
    assert_eq!((rig.told(peer(A)), rig.told(peer(B))), (vec![], vec![]));
    assert!(matches!(rig.told(peer(C))[..], [Message::Update { .. }]));
    assert!(rig.posts.is_empty());
}

#[test]
fn a_struck_push_waits_for_its_writes_and_cancels_those_alone() {
    let mut rig = producer();
    for (number, group, from) in [(1, 0, A), (1, 1, B), (2, 0, A)] {
        if group == 0 {
            rig.offer(number, 2);
            rig.machine.offer_ready(id(number), 0..3, TOKENS, 0).unwrap();
        }
        rig.hear(peer(from), Message::Take(Take { group, ..take(number, 5, true) }));
    }
    let all: Vec<_> = rig.posts.iter().map(|posted| posted.post).collect();
    assert!(all.len() == 3 && rig.posts.iter().all(|posted| posted.op == Op::Write));
    rig.hear(peer(A), cancelling(key(1, 5)));
    assert_eq!(rig.cancels, all[..1]);
    assert_eq!(rig.told_end(peer(A)), None, "a write is under way");
    rig.moved(Err(Error::new(Status::Cancelled, "cancelled")));
    assert_eq!(rig.told_status(peer(A)), Some(Status::Cancelled));
    rig.abort(1);
    assert_eq!(rig.cancels, all[..2]);
    assert_eq!((rig.end_of(1), rig.machine.status(id(1))), (None, HandoffState::Ending));
    let error = rig.machine.offer_ready(id(1), 0..3, TOKENS, 0).unwrap_err();
    assert_eq!(error.status, Status::Stale);
    rig.hear(peer(C), Message::Take(Take { group: 0, rank: 0, ..take(1, 9, false) }));
    assert_eq!(rig.told_status(peer(C)), Some(Status::Cancelled), "nobody takes any more");
    rig.moved(Ok(()));
    assert_eq!(rig.end_of(1), Some((End::Cancelled, Status::Cancelled)));
    assert_eq!(rig.end_of(2), None);
}

#[test]
fn a_struck_pull_keeps_the_blocks_until_its_final_or_its_peers_end() {
    for is_lost in [false, true] {
        let mut rig = producer();
        rig.offer(1, 1);
        rig.seal(1);
        rig.hear(peer(A), Message::Take(take(1, 5, false)));
        rig.abort(1);
        assert_eq!(rig.told_status(peer(A)), Some(Status::Cancelled));
        rig.hear(peer(A), cancelling(key(1, 5)));
        assert_eq!(rig.end_of(1), None, "it may still read");
        if is_lost {
            rig.lost(peer(A))
        } else {
            rig.hear(peer(A), done(key(1, 5)))
        }
        assert_eq!(rig.end_of(1), Some((End::Cancelled, Status::Cancelled)));
    }
}

#[test]
fn a_lost_peer_ends_its_part_when_its_writes_are_final_and_no_other() {
    let mut rig = producer();
    rig.offer(1, 2);
    rig.seal(1);
    rig.hear(peer(A), Message::Take(take(1, 5, true)));
    rig.hear(peer(B), Message::Take(Take { group: 1, ..take(1, 5, true) }));
    rig.sent.clear();
    rig.lost(peer(A));
    assert_eq!(rig.cancels, [rig.posts[0].post]);
    let at = rig.posts.remove(1);
    rig.machine.moved(at.post, Ok(()), 0);
    rig.settle();
    rig.hear(peer(B), done(key(1, 5)));
    assert_eq!(rig.end_of(1), None, "a write to the lost peer reads the blocks");
    rig.moved(Err(failed()));
    assert_eq!(rig.end_of(1), Some((End::PeerLost, Status::PeerLost)));
    assert!(rig.told(peer(A)).is_empty(), "a lost peer is not told");
}

#[test]
fn a_write_that_fails_ends_its_part() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.seal(1);
    rig.hear(peer(A), Message::Take(take(1, 5, true)));
    rig.moved(Err(failed()));
    assert_eq!(rig.told_status(peer(A)), Some(Status::Partial));
    assert_eq!(rig.end_of(1), Some((End::Failed, Status::Partial)));
}

#[test]
fn a_rank_that_has_failed_fails_its_sibling_that_has_all() {
    for other in [false, true] {
        let mut rig = producer_of_two();
        rig.offer(1, 1);
        rig.seal(1);
        rig.hear(peer(A), Message::Take(take(1, 5, false)));
        rig.hear(peer(B), Message::Take(Take { rank: 1, ..take(1, 6, false) }));
        let (good, bad) = if other { ((B, 6), (A, 5)) } else { ((A, 5), (B, 6)) };
        rig.hear(peer(good.0), done(key(1, good.1)));
        assert_eq!(rig.end_of(1), None);
        rig.hear(peer(bad.0), final_with(key(1, bad.1), Status::Corrupt));
        assert_eq!(rig.end_of(1), Some((End::Failed, Status::Corrupt)));
    }
}

#[test]
fn a_taker_that_fails_disturbs_no_other_group() {
    let mut rig = producer();
    rig.offer(1, 2);
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    rig.hear(peer(B), Message::Take(Take { group: 1, ..take(1, 5, false) }));
    rig.told(peer(B));
    rig.lost(peer(A));
    assert_eq!((rig.end_of(1), rig.told(peer(B))), (None, vec![]));
    rig.seal(1);
    assert!(matches!(rig.told(peer(B))[..], [Message::Update { .. }]));
    rig.hear(peer(B), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::PeerLost, Status::PeerLost)));
}

#[test]
fn blocks_that_were_added_let_a_push_go_on() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.hear(peer(A), Message::Take(Take { tokens: 20, blocks: blocks(0..5), ..take(1, 5, true) }));
    rig.ready(1, 0..3, 16);
    rig.all_moved();
    rig.machine.offer_extend(id(1), &blocks(4..5), 0).unwrap();
    rig.settle();
    assert!(rig.posts.is_empty());
    rig.ready(1, 0..3, 20);
    rig.seal_at(1, 20);
    assert_eq!(rig.end_of(1), None);
    rig.moved(Ok(()));
    rig.hear(peer(A), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
}

#[test]
fn the_time_does_not_go_back() {
    let mut rig = producer();
    rig.tick(5 * LEASE);
    rig.now = 0;
    rig.offer(1, 1);
    rig.seal(1);
    assert_eq!(rig.tick(0), Some(6 * LEASE));
    assert_eq!(rig.end_of(1), None);
}

#[test]
fn reclaim_ends_the_oldest_offers_that_are_sealed_and_not_taken() {
    let mut rig = producer();
    for number in [4, 3, 2, 1] {
        rig.now += 1;
        rig.offer(number, 1);
        if number != 2 {
            rig.seal(number);
        }
    }
    rig.hear(peer(A), Message::Take(take(4, 5, false)));
    assert_eq!(rig.machine.reclaim(0, 5), 0);
    assert_eq!(rig.machine.reclaim(3, 5), 4);
    rig.settle();
    let ends = [1, 2, 3, 4].map(|number| rig.end_of(number).is_some());
    assert_eq!(ends, [false, false, true, false]);
    assert_eq!(rig.end_of(3), Some((End::Expired, Status::Limit)));
    assert_eq!(rig.machine.reclaim(9, 5), 4);
    rig.settle();
    assert_eq!((rig.end_of(2), rig.end_of(4)), (None, None));
}

/// As `reclaim`, but by the seal: the oldest first, and no offer that is taken or open.
#[test]
fn a_seal_that_leases_too_many_blocks_ends_the_oldest_offers() {
    let mut rig = producer();
    rig.machine.set_leased_blocks_max(8);
    for number in [4, 3, 2, 1] {
        rig.now += 1;
        rig.offer(number, 1);
    }
    rig.now = 10;
    for number in [4, 3] {
        rig.now += 1;
        rig.seal(number);
    }
    rig.hear(peer(A), Message::Take(take(4, 5, false)));
    rig.now += 1;
    rig.seal(2);
    assert_eq!(
        [1, 2, 3, 4].map(|number| rig.end_of(number)),
        [None; 4],
        "8 are leased, 4 are taken, 4 are open"
    );
    // A retract opens an offer that was sealed, and with its two blocks less it is leased again.
    rig.retract(2, 8);
    rig.now += 1;
    rig.seal(1);
    assert_eq!(rig.end_of(3), None);
    rig.seal_at(2, 8);
    assert_eq!([1, 2, 4].map(|number| rig.end_of(number)), [None; 3]);
    assert_eq!(rig.end_of(3), Some((End::Expired, Status::Limit)));
    let why = rig.events.iter().find_map(|event| match event {
        Event::Ended { why, .. } => Some(why.as_str()),
        _ => None,
    });
    assert_eq!(why, Some("the cache leases more blocks than its leased_blocks_max (PRESSURE)"));
    // Aborted and expired ones are not counted any more, and one that alone is too large ends at once.
    rig.machine.offer_cancel(id(1), rig.now).unwrap();
    rig.offer(5, 1);
    rig.now += 1;
    rig.seal(5);
    assert_eq!((rig.end_of(2), rig.end_of(5)), (None, None), "6 are leased");
    rig.machine.set_leased_blocks_max(3);
    rig.offer(6, 1);
    rig.now += 1;
    rig.seal(6);
    let limit = Some((End::Expired, Status::Limit));
    assert_eq!([2, 5, 6].map(|number| rig.end_of(number)), [limit; 3]);
    assert_eq!(rig.end_of(4), None);
}

#[test]
fn close_ends_what_is_open_and_answers_what_waits() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    rig.hear(peer(B), Message::Take(take(9, 5, false)));
    rig.sent.clear();
    assert!(!rig.machine.close(0));
    rig.settle();
    assert_eq!(rig.told_status(peer(A)), Some(Status::Closed));
    assert_eq!(rig.told_status(peer(B)), Some(Status::Closed));
    assert!(!rig.machine.close(0), "A may read");
    rig.hear(peer(A), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::Cancelled, Status::Closed)));
    assert!(rig.machine.close(0));
}
