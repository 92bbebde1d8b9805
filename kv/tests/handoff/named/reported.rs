//! Bugs that users of other handoffs reported, by the numbers of their issues: freed without a fence, counted for each
//! rank apart, an id that comes twice, a word that goes another way than its data. Each test has the order of events
//! that went wrong there.

use ferry::status::Error;
use ferry::Status;
use ferry_kv::handoff::wire::{Message, Take};
use ferry_kv::handoff::{End, Event, HandoffState, Mode, OfferSpec, TakeSpec};
use ferry_kv::layout::{Layer, Layout};

use super::rig::*;
use crate::caches::{layouts, Shape};

const A: u64 = 1;
const B: u64 = 2;

fn producer() -> Rig {
    greeted([A, B], [one(), one()])
}

/// A consumer of one rank; the layouts are those of its producers.
fn consumer(producers: &[Layout]) -> Rig {
    greeted(1.., producers.iter().cloned())
}

fn lost() -> Error {
    Error::new(Status::PeerLost, "gone")
}

/// vLLM 44238: the producer's lease was over, its blocks were freed, and a decoder read another prompt's keys from them.
#[test]
fn vllm_44238_a_lease_does_not_free_blocks_that_are_read() {
    let mut rig = producer();
    rig.offer(1, 1);
    rig.seal(1);
    rig.hear(peer(A), Message::Take(take(1, 5, false)));
    for number in 1..20 {
        rig.tick(number * LEASE / 4);
        rig.hear(peer(A), Message::Pong(1));
    }
    assert_eq!(rig.end_of(1), None, "the peer lives, and has not said that its READs are final");
    // The reader falls silent: the blocks are free when the engine has fenced it, not when the time is over.
    rig.tick(5 * LEASE + SILENCE);
    rig.tick(5 * LEASE + 2 * SILENCE);
    assert_eq!((rig.end_of(1), &rig.fences[..]), (None, &[peer(A)][..]));
    rig.lost(peer(A));
    assert_eq!(rig.end_of(1).map(|(end, _)| end), Some(End::PeerLost));
}

/// SGLang 32564: an abort freed the decoder's pages, the next request got them, and the first one's WRITE landed there.
#[test]
fn sglang_32564_a_cancelled_take_keeps_its_blocks_until_the_writes_into_them_are_final() {
    let (mut from, mut into) = (producer(), consumer(&tp(1)));
    from.offer(1, 1);
    from.seal(1);
    into.take(take_spec(1, 1, Mode::Push));
    let key = into.asked(peer(A));
    from.hear(peer(A), Message::Take(Take { key, ..take(1, key.take, true) }));
    into.cancel(1);
    let told = into.told(peer(A));
    assert!(matches!(told[..], [Message::Cancel { .. }]), "{told:?}");
    assert_eq!(into.end_of(1), None, "a WRITE may be under way");
    told.into_iter().for_each(|message| from.hear(peer(A), message));
    assert_eq!(from.told_end(peer(A)), None, "and is");
    from.moved(Err(Error::new(Status::Cancelled, "cancelled")));
    let (status, why) = from.told_end(peer(A)).expect("the WRITE is final");
    into.hear(peer(A), Message::Ended { key, status, why });
    assert_eq!(into.end_of(1), Some((End::Cancelled, Status::Cancelled)));
    assert_eq!(into.valid(1), (0, 4), "what the blocks hold is not defined");
}

/// vLLM 52516: heads that several ranks hold alike; the words of one rank were counted for another, and a cache that had
/// a part of its heads was ready.
#[test]
fn vllm_52516_the_data_of_one_rank_does_not_count_for_another() {
    let (ranks, idle) = with_idle();
    let mut rig = consumer(&ranks);
    rig.take(take_spec(1, ranks.len() as u64, Mode::Push));
    let key = rig.asked(peer(1));
    let all = || Message::Data { key, epoch: 0, work: work(0..3, 0..TOKENS) };
    let mut senders = (1..=ranks.len() as u64).filter(|rank| !idle.contains(&(*rank as u32 - 1)));
    let first = senders.next().unwrap();
    let others: Vec<u64> = senders.collect();
    assert!(!others.is_empty());
    // As many words as there are ranks that send.
    (0..=others.len()).for_each(|_| rig.hear(peer(first), all()));
    idle.iter().for_each(|rank| rig.hear(peer(1 + u64::from(*rank)), ended(key, Status::Ok)));
    assert_eq!((rig.end_of(1), rig.machine.status(id(1))), (None, HandoffState::Taking { valid_tokens: 0 }));
    for rank in others {
        assert_eq!(rig.end_of(1), None);
        rig.hear(peer(rank), all());
    }
    rig.pongs();
    assert_eq!(rig.end_of(1), Some((End::Received, Status::Ok)));
}

/// vLLM 56033: completions were counted over the ranks of pipeline stages, so some stages were told as all.
#[test]
fn vllm_56033_a_stage_that_is_complete_does_not_count_for_another() {
    let stages = layouts(Shape::plain(1, 2, 4), 0);
    let mut rig = consumer(&stages);
    rig.take(TakeSpec { tell_layers: true, ..take_spec(1, 2, Mode::Push) });
    let key = rig.asked(peer(A));
    let held = |stage: u64| {
        let of = |layer: &Layer| u64::from(layer.stage) == stage;
        let at = |found: Option<usize>| found.unwrap() as u32;
        let layers = &stages[0].layers;
        at(layers.iter().position(of))..at(layers.iter().rposition(of)) + 1
    };
    // As many words as there are stages.
    for _ in 0..2 {
        rig.hear(peer(B), Message::Data { key, epoch: 0, work: work(held(1), 0..TOKENS) });
    }
    assert!(rig.events.is_empty(), "the layers before are missing: {:?}", rig.events);
    assert_eq!(rig.machine.status(id(1)), HandoffState::Taking { valid_tokens: 0 });
    rig.hear(peer(A), Message::Data { key, epoch: 0, work: work(held(0), 0..TOKENS) });
    rig.pongs();
    assert_eq!(rig.end_of(1), Some((End::Received, Status::Ok)));
}

/// vLLM 52234: a reference that was used already read the blocks anew, which had another prompt's keys by then: HTTP 200
/// with that prompt's answer.
#[test]
fn vllm_52234_an_id_that_has_ended_reads_nothing() {
    let mut from = producer();
    from.offer(1, 1);
    from.seal(1);
    from.hear(peer(A), Message::Take(take(1, 5, false)));
    from.hear(peer(A), done(key(1, 5)));
    assert_eq!(from.end_of(1), Some((End::Sent, Status::Ok)));
    // The same blocks belong to another prompt.
    from.offer(2, 1);
    from.seal(2);
    from.sent.clear();
    for is_push in [false, true] {
        from.hear(peer(B), Message::Take(take(1, 6, is_push)));
        assert_eq!(from.told_status(peer(B)), Some(Status::Stale));
    }
    assert!(from.posts.is_empty(), "nothing is written");
    // At the consumer, which had it.
    let mut into = consumer(&tp(1));
    into.take(take_spec(1, 1, Mode::Push));
    let key = into.asked(peer(A));
    into.hear(peer(A), Message::Data { key, epoch: 0, work: work(0..3, 0..TOKENS) });
    assert_eq!(into.end_of(1), Some((End::Received, Status::Ok)));
    let error = into.machine.take(take_spec(1, 1, Mode::Pull), 0).unwrap_err();
    assert!(error.status == Status::Invalid && error.message.contains("has ended"), "{error:?}");
}

/// vLLM 51637: a request id came twice; the second one's blocks were never freed.
#[test]
fn vllm_51637_an_id_that_is_offered_twice_is_refused_and_the_first_one_lives() {
    let mut rig = producer();
    rig.offer(1, 1);
    let again = OfferSpec { blocks: blocks(8..12), ..offer_spec(1, 1) };
    let error = rig.machine.offer(again.clone(), 0).unwrap_err();
    assert!(error.status == Status::Invalid && error.message.contains("in use"), "{error:?}");
    rig.seal(1);
    rig.hear(peer(A), Message::Take(take(1, 5, true)));
    let sent = rig.posts.iter().flat_map(|post| &post.moves).flat_map(|moves| &moves.pairs.source);
    assert!(
        sent.clone().count() > 0 && sent.clone().all(|block| *block < 4),
        "the first one's blocks are sent"
    );
    rig.all_moved();
    rig.hear(peer(A), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
    assert_eq!(rig.machine.offer(again, 0).unwrap_err().status, Status::Invalid);
}

/// vLLM 46283: the decoder and the prefiller both gave up; each waited for the other's word, and the blocks leaked.
#[test]
fn vllm_46283_both_sides_give_up_and_both_have_their_blocks() {
    for order in [[true, false], [false, true]] {
        let (mut from, mut into) = (producer(), consumer(&tp(1)));
        from.offer(1, 1);
        into.take(take_spec(1, 1, Mode::Push));
        let key = into.asked(peer(A));
        from.hear(peer(A), Message::Take(Take { key, ..take(1, key.take, true) }));
        from.sent.clear();
        for is_consumer in order {
            if is_consumer {
                into.machine.take_cancel(id(1), 0).unwrap()
            } else {
                from.machine.offer_cancel(id(1), 0).unwrap()
            }
        }
        into.settle();
        from.settle();
        // Their words cross.
        let (said, answered) = (into.told(peer(A)), from.told(peer(A)));
        said.into_iter().for_each(|message| from.hear(peer(A), message));
        answered.into_iter().for_each(|message| into.hear(peer(A), message));
        from.told(peer(A)).into_iter().for_each(|message| into.hear(peer(A), message));
        assert_eq!(from.end_of(1), Some((End::Cancelled, Status::Cancelled)));
        assert_eq!(into.end_of(1), Some((End::Cancelled, Status::Cancelled)));
    }
}

/// SGLang 28651: a prefiller was gone without a word, and each of twelve groups held its requests for 300 seconds.
#[test]
fn sglang_28651_all_takes_end_with_their_producer_and_the_next_ones_move() {
    let mut rig = consumer(&tp(1));
    for number in 1..=12 {
        rig.take(take_spec(number, 1, [Mode::Pull, Mode::Push][usize::from(number) % 2]));
    }
    let granted = key(12, rig.asked(peer(A)).take);
    rig.hear(peer(A), update(granted, TOKENS));
    rig.hello(peer(B), &one());
    rig.lost(peer(A));
    for number in 1..=11 {
        assert_eq!(rig.end_of(number).map(|(end, _)| end), Some(End::PeerLost), "{number}");
    }
    assert_eq!(rig.end_of(12), None, "its READ is under way");
    rig.moved(Err(lost()));
    assert_eq!(rig.end_of(12).map(|(end, _)| end), Some(End::PeerLost));
    assert_eq!(rig.events.iter().filter(|event| matches!(event, Event::Ended { .. })).count(), 12);
    // Another producer serves the next request, with the same blocks.
    let spec = TakeSpec { producers: vec![peer(B)], ..take_spec(13, 1, Mode::Pull) };
    rig.take(spec);
    let key = rig.asked(peer(B));
    rig.hear(peer(B), update(key, TOKENS));
    rig.moved(Ok(()));
    assert_eq!(rig.end_of(13), Some((End::Received, Status::Ok)));
}
