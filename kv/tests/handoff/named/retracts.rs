//! Tokens that a producer takes back: when its blocks are its own again, and what takers still have. Above 500 lines: the
//! stories share the rig and the helpers at the top, and each is short.

use ferry::status::Error;
use ferry::types::Op;
use ferry::Status;
use ferry_kv::handoff::limits::BLOCKS_MAX;
use ferry_kv::handoff::wire::{Key, Message, Take};
use ferry_kv::handoff::{Blocks, End, Event, HandoffState, Mode, TakeSpec};

use super::rig::*;
use crate::caches::{layouts, Shape};

const A: u64 = 11;
const B: u64 = 12;

fn producer() -> Rig {
    greeted([A, B], [one(), one()])
}

/// A producer, which has offered, and a consumer, which has taken: peers 1 and 2.
fn pair(mode: Mode, tell_layers: bool) -> Vec<Rig> {
    let mut rigs = vec![Rig::new(one()), Rig::new(one())];
    rigs[0].offer(1, 1);
    rigs[1].take(TakeSpec { tell_layers, ..take_spec(1, 1, mode) });
    deliver(&mut rigs);
    rigs
}

/// Who has the transfers.
fn mover(mode: Mode) -> usize {
    usize::from(mode == Mode::Pull)
}

fn all_moved(rigs: &mut [Rig], at: usize) {
    while !rigs[at].posts.is_empty() {
        moved(rigs, at, Ok(()));
        deliver(rigs);
    }
}

fn cancelled() -> Result<(), Error> {
    Err(Error::new(Status::Cancelled, "cancelled"))
}

fn status_of<T>(result: Result<T, Error>) -> Status {
    result.map_or_else(|error| error.status, |_| Status::Ok)
}

fn is_over(rig: &Rig, retract: u64) -> bool {
    rig.machine.is_retracted(id(1), retract).unwrap()
}

fn retract(number: u8, take: u64, epoch: u64, from: u64) -> Message {
    Message::Retract { key: key(number, take), epoch, from }
}

fn retracted(take: u64, epoch: u64) -> Message {
    Message::Retracted { key: key(1, take), epoch }
}

fn data(key: Key, epoch: u64, tokens: std::ops::Range<u64>) -> Message {
    Message::Data { key, epoch, work: work(0..3, tokens) }
}

/// The producer's blocks that a transfer reads.
fn read_from(posted: &Posted) -> Vec<u32> {
    let mut ids: Vec<u32> = posted.moves.iter().flat_map(|moves| moves.pairs.source.clone()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[test]
fn preempted_in_the_second_chunk() {
    for mode in [Mode::Push, Mode::Pull] {
        let mut rigs = pair(mode, true);
        let at = mover(mode);
        rigs[0].ready(1, 0..3, 8);
        deliver(&mut rigs);
        all_moved(&mut rigs, at);
        // The second chunk is computed in the first layer, and under way.
        rigs[0].ready(1, 0..1, 16);
        deliver(&mut rigs);
        assert_eq!(rigs[at].posts.len(), 1);
        let number = rigs[0].retract(1, 6);
        deliver(&mut rigs);
        assert_eq!(rigs[at].cancels, [rigs[at].posts[0].post]);
        assert!(!is_over(&rigs[0], number), "{mode:?}: it is under way");
        moved(&mut rigs, at, cancelled());
        deliver(&mut rigs);
        assert!(is_over(&rigs[0], number), "{mode:?}");
        assert_eq!(rigs[1].machine.status(id(1)), HandoffState::Taking { valid_tokens: 6 });
        // Block 1 has token 5 and stays; block 2 and 3 were the caller's, and others follow.
        let blocks = vec![Blocks { first_token: 0, ids: vec![9, 2] }];
        rigs[0].machine.offer_extend(id(1), &blocks, 0).unwrap();
        rigs[0].seal(1);
        deliver(&mut rigs);
        assert_eq!(read_from(&rigs[at].posts[0]), [1, 2, 9], "{mode:?}");
        all_moved(&mut rigs, at);
        deliver(&mut rigs);
        assert_eq!(rigs[0].end_of(1), Some((End::Sent, Status::Ok)));
        assert_eq!((rigs[1].end_of(1), rigs[1].valid(1)), (Some((End::Received, Status::Ok)), (TOKENS, 0)));
    }
}

#[test]
fn a_read_that_is_in_flight_holds_a_retract() {
    let mut rigs = pair(Mode::Pull, false);
    rigs[0].ready(1, 0..3, TOKENS);
    deliver(&mut rigs);
    let number = rigs[0].retract(1, 8);
    deliver(&mut rigs);
    assert!(!is_over(&rigs[0], number));
    // It has read everything all the same: what was taken back does not count.
    moved(&mut rigs, 1, Ok(()));
    assert_eq!(rigs[1].machine.status(id(1)), HandoffState::Taking { valid_tokens: 8 });
    assert!(!is_over(&rigs[0], number), "the answer is on its way");
    deliver(&mut rigs);
    assert!(is_over(&rigs[0], number));
    assert_eq!((rigs[0].end_of(1), rigs[1].end_of(1), rigs[1].posts.len()), (None, None, 0));
}

#[test]
fn a_write_that_is_in_flight_holds_a_retract_and_its_tokens_do_not_count() {
    let mut rigs = pair(Mode::Push, false);
    rigs[0].ready(1, 0..3, 12);
    let number = rigs[0].retract(1, 8);
    deliver(&mut rigs);
    assert!(!is_over(&rigs[0], number));
    assert!(rigs[0].told(peer(2)).is_empty(), "RETRACT is behind the last WRITE");
    moved(&mut rigs, 0, Ok(()));
    deliver(&mut rigs);
    assert!(is_over(&rigs[0], number));
    assert_eq!(rigs[1].machine.status(id(1)), HandoffState::Taking { valid_tokens: 8 });
    assert_eq!((rigs[0].end_of(1), rigs[1].end_of(1)), (None, None));
    // The rest is written, and nothing twice.
    rigs[0].machine.offer_extend(id(1), &blocks(4..6), 0).unwrap();
    rigs[0].seal(1);
    assert_eq!(read_from(&rigs[0].posts[0]), [4, 5]);
    all_moved(&mut rigs, 0);
    assert_eq!(rigs[1].end_of(1), Some((End::Received, Status::Ok)));
}

/// Nothing of a stopped peer is known: its READs may go on.
#[test]
fn a_retract_against_a_stopped_peer_is_busy_and_frees_nothing() {
    let mut rig = producer();
    rig.offer(1, 2);
    rig.ready(1, 0..3, TOKENS);
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    rig.hear(peer(B), Message::Take(Take { group: 1, ..take(1, 6, false) }));
    let number = rig.retract(1, 8);
    rig.hear(peer(B), retracted(6, 1));
    assert!(!is_over(&rig, number));
    let (machine, now) = (&mut rig.machine, rig.now);
    let more = [
        machine.offer_extend(id(1), &blocks(8..9), now),
        machine.offer_ready(id(1), 0..3, 12, now),
        machine.offer_seal(id(1), 8, now),
    ];
    assert_eq!(more.map(status_of), [Status::Busy; 3]);
    assert_eq!(machine.offer_retract(id(1), 8, now).unwrap(), number, "it is the same that is asked again");
    let later = machine.offer_retract(id(1), 9, now).unwrap_err();
    assert!(later.status == Status::Invalid && later.message.contains("the tokens from 8 on"), "{later}");
    // The block is the offer's still.
    let memory = one().layers[0].memory.unwrap();
    let block = memory.address + 3 * memory.strides.block;
    rig.tick(SILENCE / 2);
    rig.hear(peer(B), Message::Pong(1));
    rig.tick(SILENCE);
    assert_eq!(rig.fences, [peer(A)]);
    rig.machine.not_fenced(peer(A));
    assert_eq!(rig.machine.unfenced_blocks(), 4, "those that were taken back, too");
    assert!(!is_over(&rig, number));
    let mut other = producer();
    std::mem::swap(&mut rig.machine, &mut other.machine);
    assert_eq!(other.machine.late_apply(&(block..block + 1), 0), 1);
    assert_eq!(status_of(other.machine.is_retracted(id(1), number)), Status::Stale);
}

#[test]
fn a_retract_is_over_when_the_silent_peer_is_fenced_and_the_others_go_on() {
    let mut rig = producer();
    rig.offer(1, 2);
    rig.ready(1, 0..3, TOKENS);
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    rig.hear(peer(B), Message::Take(Take { group: 1, ..take(1, 6, false) }));
    let number = rig.retract(1, 8);
    rig.sent.clear();
    rig.hear(peer(B), retracted(6, 1));
    // Before the others have answered, B is told anew what it may read: nothing of what was taken back.
    let update = Message::Update { key: key(1, 6), epoch: 1, ready: vec![8; 3], added: blocks(0..2) };
    assert_eq!(rig.told(peer(B)), [update]);
    rig.lost(peer(A));
    assert!(is_over(&rig, number));
    rig.machine.offer_extend(id(1), &blocks(2..4), 0).unwrap();
    rig.seal(1);
    let added = vec![Blocks { first_token: 8, ids: vec![2, 3] }];
    let update = Message::Update { key: key(1, 6), epoch: 1, ready: vec![TOKENS; 3], added };
    assert_eq!(rig.told(peer(B)), [update]);
    rig.hear(peer(B), done_in(1, key(1, 6)));
    assert_eq!(rig.end_of(1), Some((End::PeerLost, Status::PeerLost)));
}

/// A consumer has read everything, and says so while the producer takes it back.
#[test]
fn a_final_of_an_old_epoch_does_not_count() {
    for answer in [retracted(5, 1), done_in(1, key(1, 5))] {
        let mut rig = producer();
        rig.offer(1, 1);
        rig.seal(1);
        rig.hear(peer(A), Message::Take(take(1, 5, false)));
        rig.told(peer(A));
        let number = rig.retract(1, 8);
        assert_eq!(rig.told(peer(A)), [retract(1, 5, 1, 8)]);
        rig.hear(peer(A), done(key(1, 5)));
        assert!(!is_over(&rig, number) && rig.end_of(1).is_none());
        let is_final = matches!(answer, Message::Final { .. });
        rig.hear(peer(A), answer);
        assert!(is_over(&rig, number));
        rig.machine.offer_extend(id(1), &blocks(6..8), 0).unwrap();
        rig.seal(1);
        // A take that had ended has what it took; one that goes on has to read again.
        assert_eq!(rig.end_of(1).is_some(), is_final);
        rig.hear(peer(A), done(key(1, 5)));
        assert_eq!(rig.end_of(1).is_some(), is_final, "old");
        rig.hear(peer(A), done_in(1, key(1, 5)));
        assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
    }
}

#[test]
fn a_final_of_an_old_epoch_ends_a_part_that_is_struck() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.ready(1, 0..3, 8);
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    rig.retract(1, 4);
    rig.machine.offer_cancel(id(1), 0).unwrap();
    rig.hear(peer(A), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::Cancelled, Status::Cancelled)));
}

#[test]
fn without_takers_a_retract_is_over_at_once_and_the_seal_is_open() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.seal(1);
    assert_eq!(rig.retract(1, 8), 1);
    assert!(is_over(&rig, 1));
    assert_eq!(rig.machine.status(id(1)), HandoffState::Offered { sealed: false, takers: 0 });
    assert_eq!(rig.tick(10 * LEASE), None, "and there is no lease");
    // Blocks 2 and 3 are free, 0 and 1 are not.
    for (first, status) in [(1, Status::Invalid), (3, Status::Ok)] {
        assert_eq!(status_of(rig.machine.offer_extend(id(1), &blocks(first..first + 1), 0)), status);
    }
    assert_eq!(status_of(rig.machine.offer_ready(id(1), 0..3, 8, 0)), Status::Invalid, "ready already");
    assert_eq!(status_of(rig.machine.offer_ready(id(1), 0..3, 13, 0)), Status::Invalid, "no block");
    // Twice, and to token 0.
    for (from, number) in [(8, 2), (0, 3), (0, 4)] {
        assert_eq!(rig.retract(1, from), number);
        assert!(is_over(&rig, number));
    }
    rig.machine.offer_extend(id(1), &blocks(0..4), 0).unwrap();
    rig.seal(1);
    assert!(rig.sent.is_empty());
    assert_eq!(status_of(rig.machine.offer_retract(id(2), 0, 0)), Status::Invalid);
}

#[test]
fn a_taker_that_comes_later_knows_nothing_of_it() {
    for is_push in [true, false] {
        let mut rig = producer();
        rig.offer(1, 1);
        rig.ready(1, 0..3, TOKENS);
        rig.retract(1, 5);
        rig.hear(peer(A), Message::Take(take(1, 5, is_push)));
        rig.machine.offer_extend(id(1), &blocks(7..9), 0).unwrap();
        rig.ready(1, 0..3, TOKENS);
        rig.seal_at(1, TOKENS);
        if is_push {
            // The first chunk, then all.
            assert_eq!(read_from(&rig.posts[0]), [0]);
            assert_eq!(read_from(&rig.posts[1]), [1, 7, 8]);
            rig.told(peer(A));
            rig.all_moved();
            assert_eq!(rig.told(peer(A)), [data(key(1, 5), 1, 0..4), data(key(1, 5), 1, 4..16)]);
        } else {
            let update = |ready, first_token, ids: Vec<u32>| {
                let added = vec![Blocks { first_token, ids }];
                Message::Update { key: key(1, 5), epoch: 1, ready: vec![ready; 3], added }
            };
            assert_eq!(rig.told(peer(A)), [update(5, 0, vec![0, 1]), update(16, 8, vec![7, 8])]);
        }
        rig.hear(peer(A), done_in(1, key(1, 5)));
        assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
    }
}

#[test]
fn two_producers_have_epochs_of_their_own() {
    let mut rig = greeted(1.., tp(2));
    rig.take(take_spec(1, 2, Mode::Push));
    let take = rig.asked(peer(1));
    rig.hear(peer(1), data(take, 0, 0..12));
    rig.hear(peer(2), data(take, 3, 0..TOKENS));
    rig.sent.clear();
    rig.hear(peer(1), Message::Retract { key: take, epoch: 1, from: 8 });
    assert_eq!(rig.sent, [(peer(1), Message::Retracted { key: take, epoch: 1 })]);
    assert_eq!(rig.machine.status(id(1)), HandoffState::Taking { valid_tokens: 8 });
    // Data of the epoch that has ended does not count.
    rig.hear(peer(1), data(take, 0, 8..TOKENS));
    assert_eq!(rig.machine.status(id(1)), HandoffState::Taking { valid_tokens: 8 });
    rig.hear(peer(1), data(take, 1, 8..TOKENS));
    rig.pongs();
    assert_eq!((rig.end_of(1), rig.fences.len()), (Some((End::Received, Status::Ok)), 0));
}

/// The part of one producer is complete, but the take is not: the producer may take back what it sent.
#[test]
fn what_is_complete_of_one_producer_is_dropped_while_the_take_goes_on() {
    for mode in [Mode::Push, Mode::Pull] {
        let all = layouts(Shape::plain(1, 2, 4), 0).into_iter().chain(layouts(Shape::plain(1, 1, 4), 2));
        let mut rigs: Vec<Rig> = all.map(Rig::new).collect();
        rigs[..2].iter_mut().for_each(|rig| rig.offer(1, 1));
        rigs[2].take(take_spec(1, 2, mode));
        deliver(&mut rigs);
        rigs[0].ready(1, 0..3, TOKENS);
        deliver(&mut rigs);
        let at = if mode == Mode::Push { 0 } else { 2 };
        all_moved(&mut rigs, at);
        let number = rigs[0].retract(1, 4);
        assert!(!is_over(&rigs[0], number), "{mode:?}: the take may be there");
        deliver(&mut rigs);
        assert!(is_over(&rigs[0], number));
        rigs[1].seal(1);
        deliver(&mut rigs);
        all_moved(&mut rigs, if mode == Mode::Push { 1 } else { 2 });
        assert_eq!((rigs[1].end_of(1), rigs[2].end_of(1)), (None, None), "{mode:?}");
        rigs[0].machine.offer_extend(id(1), &blocks(5..8), 0).unwrap();
        rigs[0].seal(1);
        deliver(&mut rigs);
        assert_eq!(read_from(&rigs[at].posts[0]), [5, 6, 7], "{mode:?}");
        all_moved(&mut rigs, at);
        assert_eq!(rigs[2].end_of(1), Some((End::Received, Status::Ok)));
        deliver(&mut rigs);
        rigs[..2].iter().for_each(|rig| assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok))));
    }
}

#[test]
fn a_take_that_has_ended_keeps_what_it_has() {
    for mode in [Mode::Push, Mode::Pull] {
        let mut rigs = pair(mode, true);
        rigs[0].ready(1, 0..3, TOKENS);
        deliver(&mut rigs);
        all_moved(&mut rigs, mover(mode));
        deliver(&mut rigs);
        assert_eq!(rigs[1].end_of(1), Some((End::Received, Status::Ok)));
        assert_eq!(rigs[0].retract(1, 0), 1);
        assert!(is_over(&rigs[0], 1) && rigs[0].sent.is_empty(), "nobody is asked");
        rigs[0].seal_at(1, 0);
        assert_eq!(rigs[0].end_of(1), Some((End::Sent, Status::Ok)));
    }
}

/// A peer that had everything and was lost is not asked, whatever its next session is.
#[test]
fn a_taker_that_had_everything_and_is_lost_is_not_asked() {
    for is_push in [true, false] {
        let mut rig = producer();
        rig.offer(1, 2);
        rig.ready(1, 0..3, TOKENS);
        rig.hear(peer(A), Message::Take(take(1, 5, is_push)));
        rig.all_moved();
        if !is_push {
            rig.hear(peer(A), done(key(1, 5)));
        }
        rig.lost(peer(A));
        rig.hello(peer(A), &one());
        rig.sent.clear();
        let number = rig.retract(1, 8);
        assert!(is_over(&rig, number) && rig.sent.is_empty());
    }
}

#[test]
fn fewer_or_more_tokens_may_follow() {
    for (tokens, end) in [(12, Some((End::Failed, Status::Invalid))), (20, None)] {
        let mut rigs = pair(Mode::Push, false);
        rigs[0].seal(1);
        let number = rigs[0].retract(1, 8);
        moved(&mut rigs, 0, cancelled());
        deliver(&mut rigs);
        assert!(is_over(&rigs[0], number));
        rigs[0].machine.offer_extend(id(1), &blocks(4..7), 0).unwrap();
        rigs[0].ready(1, 0..3, tokens);
        rigs[0].seal_at(1, tokens);
        all_moved(&mut rigs, 0);
        deliver(&mut rigs);
        assert_eq!(rigs[1].end_of(1), end.or(Some((End::Received, Status::Ok))), "{tokens}");
    }
}

#[test]
fn layers_that_were_told_are_never_overwritten() {
    // In one case the first layer is told, in one the take did not ask, in one its tokens are not concerned.
    for (mode, tells, from, fails) in [
        (Mode::Push, true, 8, true),
        (Mode::Pull, true, 8, true),
        (Mode::Push, true, 15, true),
        (Mode::Push, true, TOKENS, false),
        (Mode::Pull, false, 8, false),
    ] {
        let mut rigs = pair(mode, tells);
        rigs[0].ready(1, 0..1, TOKENS);
        deliver(&mut rigs);
        all_moved(&mut rigs, mover(mode));
        assert_eq!(rigs[1].events.len(), usize::from(tells));
        let number = rigs[0].retract(1, from);
        deliver(&mut rigs);
        assert_eq!(
            rigs[1].end_of(1),
            fails.then_some((End::Failed, Status::Stale)),
            "{mode:?} {tells} {from}"
        );
        if fails {
            assert_eq!(rigs[1].valid(1).0, 0);
            assert_eq!(rigs[0].end_of(1).map(|(end, _)| end), Some(End::Failed));
            assert_eq!(status_of(rigs[0].machine.is_retracted(id(1), number)), Status::Stale);
        } else {
            assert!(is_over(&rigs[0], number));
        }
    }
}

#[test]
fn an_abort_ends_a_retract() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.seal(1);
    rig.hear(peer(A), Message::Take(take(1, 5, true)));
    rig.sent.clear();
    let number = rig.retract(1, 8);
    rig.abort(1);
    assert_eq!(status_of(rig.machine.is_retracted(id(1), number)), Status::Stale);
    assert_eq!(status_of(rig.machine.offer_retract(id(1), 8, 0)), Status::Stale);
    rig.moved(cancelled());
    assert_eq!(rig.end_of(1), Some((End::Cancelled, Status::Cancelled)));
    assert!(matches!(rig.told(peer(A))[..], [Message::Ended { .. }]), "no RETRACT follows");
    assert_eq!(status_of(rig.machine.offer_retract(id(1), 8, 0)), Status::Stale);
}

#[test]
fn a_cancel_crosses_a_retract() {
    for mode in [Mode::Push, Mode::Pull] {
        let mut rigs = pair(mode, false);
        rigs[0].ready(1, 0..3, 8);
        deliver(&mut rigs);
        rigs[0].retract(1, 4);
        rigs[1].cancel(1);
        while !rigs[mover(mode)].posts.is_empty() {
            moved(&mut rigs, mover(mode), cancelled());
        }
        deliver(&mut rigs);
        assert_eq!(rigs[1].end_of(1), Some((End::Cancelled, Status::Cancelled)), "{mode:?}");
        assert_eq!(rigs[0].end_of(1), Some((End::Failed, Status::Cancelled)), "{mode:?}");
    }
}

#[test]
fn a_retract_that_takes_back_more_overtakes_the_first() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.ready(1, 0..3, TOKENS);
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    rig.told(peer(A));
    let (first, second) = (rig.retract(1, 12), rig.retract(1, 3));
    assert_eq!(rig.told(peer(A)), [retract(1, 5, 1, 12), retract(1, 5, 2, 3)]);
    rig.hear(peer(A), retracted(5, 1));
    assert!(!is_over(&rig, first) && !is_over(&rig, second), "the answer to the first");
    rig.hear(peer(A), retracted(5, 2));
    assert!(is_over(&rig, first) && is_over(&rig, second));
    // Block 0 has token 2; the others are the caller's.
    rig.machine.offer_extend(id(1), &blocks(1..4), 0).unwrap();
    rig.machine.offer_ready(id(1), 0..3, 4, 0).unwrap();
    // The consumer's side of it.
    let (mut rig, key) = asking(one(), take_spec(1, 1, Mode::Pull));
    rig.hear(peer(1), update(key, TOKENS));
    for (epoch, from) in [(1, 12), (2, 3)] {
        rig.hear(peer(1), Message::Retract { key, epoch, from });
    }
    assert!(rig.told(peer(1)).is_empty());
    rig.moved(Ok(()));
    assert_eq!(rig.told(peer(1)), [Message::Retracted { key, epoch: 2 }]);
    assert_eq!(rig.machine.status(id(1)), HandoffState::Taking { valid_tokens: 3 });
}

#[test]
fn nothing_is_read_before_the_answer_to_a_retract() {
    let (mut rig, key) = asking(one(), take_spec(1, 1, Mode::Pull));
    for ready in [[4, 0, 0], [4, 4, 0], [4, 4, 4], [8, 4, 4], [8, 8, 4], [12, 12, 12]] {
        let added = if ready[1] == 0 { blocks(0..4) } else { vec![Blocks::default()] };
        rig.hear(peer(1), Message::Update { key, epoch: 0, ready: ready.to_vec(), added });
    }
    rig.hear(peer(1), Message::Retract { key, epoch: 1, from: 8 });
    for left in [3, 2, 1] {
        rig.moved(Ok(()));
        assert_eq!((rig.posts.len(), rig.told(peer(1)).len()), (left, 0));
    }
    rig.moved(Ok(()));
    assert_eq!(rig.told(peer(1)), [Message::Retracted { key, epoch: 1 }]);
    assert!(rig.posts.is_empty(), "nothing is granted");
    rig.hear(peer(1), Message::Update { key, epoch: 1, ready: vec![8; 3], added: blocks(0..2) });
    assert!(!rig.posts.is_empty(), "what was not taken back is read now");
    rig.all_moved();
    assert_eq!(rig.machine.status(id(1)), HandoffState::Taking { valid_tokens: 8 });
}

/// Blocks that replace others are not counted twice.
#[test]
fn a_million_blocks_may_be_granted_again() {
    let (mut rig, key) = asking(one(), take_spec(1, 1, Mode::Pull));
    for epoch in 0..3 {
        let added = blocks(0..BLOCKS_MAX as u32);
        rig.hear(peer(1), Message::Update { key, epoch, ready: vec![0; 3], added });
        rig.hear(peer(1), Message::Retract { key, epoch: epoch + 1, from: 0 });
    }
    assert_eq!(rig.machine.status(id(1)), HandoffState::Taking { valid_tokens: 0 });
}

#[test]
fn a_retract_waits_for_room_among_the_messages() {
    let mut rig = producer();
    rig.holds_messages = true;
    rig.offer(1, 1);
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    rig.fill(peer(A));
    rig.told(peer(A));
    for from in [8, 7, 6] {
        rig.retract(1, from);
    }
    assert_eq!(rig.told(peer(A)), []);
    for _ in 0..3 {
        rig.machine.sent(peer(A), None, Ok(()), 0);
        rig.settle();
    }
    assert_eq!(rig.told(peer(A)), [retract(1, 5, 3, 6)], "the last one, once");
}

#[test]
fn tokens_before_those_that_are_taken_back_go_on() {
    let mut rig = producer();
    rig.offer(1, 1);
    for tokens in [4, 8, 12] {
        rig.ready(1, 0..3, tokens);
    }
    rig.hear(peer(A), Message::Take(Take { tokens: 12, ..take(1, 5, true) }));
    rig.offer(2, 1);
    rig.ready(2, 0..3, 12);
    rig.hear(peer(A), Message::Take(take(2, 5, true)));
    let own = rig.posts[0].post;
    rig.retract(1, 12);
    assert!(rig.cancels.is_empty(), "all of it stays");
    rig.retract(1, 8);
    assert_eq!(rig.cancels, [own], "and that of another offer");
}

/// An idle rank sends nothing, so that it has nothing to take back.
#[test]
fn a_rank_that_sends_nothing_tells_of_no_retract() {
    let (ranks, idle) = with_idle();
    let mut rig = Rig::new(ranks[idle[0] as usize].clone());
    rig.hello(peer(A), &one());
    rig.offer(1, 1);
    rig.hear(peer(A), Message::Take(take(1, 5, true)));
    rig.sent.clear();
    let number = rig.retract(1, 0);
    assert!(is_over(&rig, number) && rig.sent.is_empty());
}

#[test]
fn words_about_epochs_that_no_cache_says_fence_their_peer() {
    // A consumer's words: answers that nobody waits for, and epochs that have not begun.
    for (words, is_fenced) in [
        (retracted(5, 0), true),
        (retracted(5, 1), true),
        (done_in(1, key(1, 5)), true),
        (retracted(6, 1), false),
        (done(key(1, 6)), false),
    ] {
        let mut rig = producer();
        rig.offer(1, 1);
        rig.hear(peer(A), Message::Take(take(1, 5, false)));
        rig.hear(peer(A), words.clone());
        assert_eq!(rig.fences, vec![peer(A); usize::from(is_fenced)], "{words:?}");
    }
    // A producer's words: an epoch that does not follow, and data of one that has not begun.
    for wrong in [retract(1, 1, 3, 4), retract(1, 1, 2, 4), data(key(1, 1), 4, 0..4)] {
        let mut rig = greeted([1], [one()]);
        rig.take(take_spec(1, 1, Mode::Push));
        let take = rig.asked(peer(1)).take;
        let wrong = match wrong {
            Message::Retract { epoch, from, .. } => retract(1, take, epoch, from),
            _ => data(key(1, take), 4, 0..4),
        };
        rig.hear(peer(1), data(key(1, take), 2, 0..4));
        rig.hear(peer(1), retract(1, take, 3, 4));
        assert!(rig.fences.is_empty());
        rig.hear(peer(1), wrong);
        assert_eq!(rig.fences, [peer(1)]);
    }
}

#[test]
fn grants_of_another_epoch_or_without_a_retract_are_corrupt() {
    let grant = |key, epoch, ready, first_token, ids: Vec<u32>| {
        let added = vec![Blocks { first_token, ids }];
        Message::Update { key, epoch, ready: vec![ready; 3], added }
    };
    for (epoch, ready, first_token) in [(0, 12, 12), (2, 12, 12), (1, 4, 12), (1, 12, 8), (1, 12, 11)] {
        let (mut rig, key) = asking(one(), take_spec(1, 1, Mode::Pull));
        rig.hear(peer(1), grant(key, 0, TOKENS, 0, vec![0, 1, 2, 3]));
        rig.moved(Ok(()));
        // A take that is complete is over; another one is not.
        assert_eq!(rig.end_of(1), Some((End::Received, Status::Ok)));
        rig.take(take_spec(2, 1, Mode::Pull));
        let key = rig.asked(peer(1));
        rig.hear(peer(1), grant(key, 0, 12, 0, vec![0, 1, 2]));
        rig.moved(Ok(()));
        rig.hear(peer(1), Message::Retract { key, epoch: 1, from: 8 });
        rig.hear(peer(1), grant(key, 1, 8, 0, vec![0, 1, 7]));
        assert_eq!(rig.end_of(2), None);
        rig.hear(peer(1), grant(key, epoch, ready, first_token, vec![9, 8]));
        assert_eq!(rig.end_of(2), Some((End::Failed, Status::Corrupt)), "{epoch} {ready} {first_token}");
        assert_eq!(rig.valid(2).0, 8);
    }
    // A grant before the answer.
    let (mut rig, key) = asking(one(), take_spec(1, 1, Mode::Pull));
    rig.hear(peer(1), grant(key, 0, TOKENS, 0, vec![0, 1, 2, 3]));
    rig.hear(peer(1), Message::Retract { key, epoch: 1, from: 8 });
    rig.hear(peer(1), grant(key, 1, TOKENS, 8, vec![9, 8]));
    rig.moved(Ok(()));
    assert_eq!(rig.end_of(1), Some((End::Failed, Status::Corrupt)));
}

#[test]
fn a_retract_of_a_take_that_is_unknown_is_answered() {
    let mut rig = greeted([1], [one()]);
    rig.take(take_spec(1, 1, Mode::Pull));
    let known = rig.asked(peer(1));
    rig.cancel(1);
    rig.told(peer(1));
    for (key, status) in [(known, Status::Cancelled), (key(9, 4), Status::Ok)] {
        rig.hear(peer(1), Message::Retract { key, epoch: 7, from: 0 });
        let told = rig.told(peer(1));
        let [Message::Final { key: of, epoch: 7, status: as_told, .. }] = told[..] else {
            panic!("{told:?}")
        };
        assert_eq!((of, as_told), (key, status));
    }
    assert!(rig.fences.is_empty());
}

/// A take that ends waits for its producer; the retract that crosses its CANCEL needs no answer of its own.
#[test]
fn a_take_that_is_ending_answers_for_what_it_has_let_go() {
    let mut rig = greeted(1.., tp(2));
    rig.take(take_spec(1, 2, Mode::Push));
    let key = rig.asked(peer(1));
    rig.hear(peer(1), data(key, 0, 0..TOKENS));
    rig.cancel(1);
    rig.sent.clear();
    for from in [1, 2] {
        rig.hear(peer(from), Message::Retract { key, epoch: 1, from: 4 });
    }
    // The first had everything and was not cancelled; the second has CANCEL before it.
    let why = "the consumer cancelled the take".to_string();
    let told = Message::Final { key, epoch: 1, status: Status::Cancelled, why };
    assert_eq!(rig.sent, [(peer(1), told)]);
    rig.hear(peer(2), ended(key, Status::Cancelled));
    assert_eq!(rig.end_of(1), Some((End::Cancelled, Status::Cancelled)));
}

#[test]
fn a_push_that_had_everything_may_say_that_its_take_is_over() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.ready(1, 0..3, TOKENS);
    rig.hear(peer(A), Message::Take(take(1, 5, true)));
    rig.all_moved();
    let number = rig.retract(1, 8);
    rig.hear(peer(A), done(key(1, 5)));
    assert!(!is_over(&rig, number), "it may have been told of nothing yet");
    rig.hear(peer(A), done_in(1, key(1, 5)));
    assert!(is_over(&rig, number));
}

/// A WRITE reads the blocks, whatever the consumer says.
#[test]
fn who_says_to_have_received_what_is_not_written_is_not_trusted() {
    for is_retracted in [false, true] {
        let mut rig = producer();
        rig.offer(1, 1);
        rig.ready(1, 0..3, TOKENS);
        rig.hear(peer(A), Message::Take(take(1, 5, true)));
        assert_eq!(rig.posts[0].op, Op::Write);
        if is_retracted {
            let number = rig.retract(1, 8);
            rig.hear(peer(A), done_in(1, key(1, 5)));
            assert!(!is_over(&rig, number), "nobody was told of the epoch");
        }
        rig.hear(peer(A), done(key(1, 5)));
        assert_eq!((rig.fences.len(), rig.cancels.len()), if is_retracted { (0, 1) } else { (1, 1) });
        rig.moved(cancelled());
        assert_eq!(rig.end_of(1).is_some(), !is_retracted);
    }
}

#[test]
fn layers_are_told_anew_of_a_take_that_was_told_none() {
    let mut rigs = pair(Mode::Push, true);
    rigs[0].ready(1, 0..3, 12);
    deliver(&mut rigs);
    all_moved(&mut rigs, 0);
    rigs[0].retract(1, 4);
    deliver(&mut rigs);
    rigs[0].machine.offer_extend(id(1), &blocks(1..4), 0).unwrap();
    rigs[0].ready(1, 0..1, TOKENS);
    deliver(&mut rigs);
    assert!(rigs[1].events.is_empty());
    all_moved(&mut rigs, 0);
    assert_eq!(rigs[1].events, [Event::Layers { id: id(1), layers: 1 }]);
}

/// Only what was cancelled is moved again: what fails while tokens are taken back ends the take.
#[test]
fn a_transfer_that_fails_while_tokens_are_taken_back_ends_its_take() {
    for mode in [Mode::Push, Mode::Pull] {
        let mut rigs = pair(mode, false);
        let at = mover(mode);
        rigs[0].ready(1, 0..3, TOKENS);
        deliver(&mut rigs);
        rigs[0].retract(1, 8);
        deliver(&mut rigs);
        moved(&mut rigs, at, Err(Error::new(Status::Unreachable, "no path")));
        deliver(&mut rigs);
        let failed = Some((End::Failed, Status::Unreachable));
        assert_eq!([rigs[0].end_of(1), rigs[1].end_of(1)], [failed; 2], "{mode:?}");
    }
}
