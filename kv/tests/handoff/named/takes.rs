//! The consumer's side. Above 500 lines: the stories share the consumer at the top, and each is short.

use std::collections::BTreeSet;
use std::time::Duration;

use ferry::status::Error;
use ferry::types::Op;
use ferry::Status;
use ferry_kv::handoff::wire::Message;
use ferry_kv::handoff::{BlockList, End, Event, HandoffState, Mode, TakeSpec};
use ferry_kv::layout::Arrangement;

use super::rig::*;
use crate::caches::{cells, layouts, Shape};

const A: u64 = 1;
const B: u64 = 2;

/// A consumer of one rank, and producers of so many.
fn consumer(producers: u32) -> Rig {
    greeted(1.., tp(producers))
}

fn data(take: ferry_kv::handoff::wire::Key, layers: u32, tokens: u64) -> Message {
    Message::Data { key: take, epoch: 0, work: work(0..layers, 0..tokens) }
}

#[test]
fn a_take_ends_at_its_deadline() {
    let mut rig = consumer(1);
    let deadline = Some(Duration::from_nanos(50));
    rig.take(TakeSpec { deadline, ..take_spec(1, 1, Mode::Pull) });
    rig.take(take_spec(2, 1, Mode::Pull));
    let key = rig.asked(peer(A));
    assert_eq!(rig.tick(49), Some(50));
    assert_eq!(rig.end_of(1), None);
    rig.tick(50);
    assert_eq!((rig.end_of(1), rig.end_of(2)), (Some((End::Failed, Status::Timeout)), None));
    let told = rig.told(peer(A));
    assert!(matches!(told[..], [Message::Final { status: Status::Timeout, .. }]), "{told:?}, {key:?}");
}

#[test]
fn a_deadline_counts_from_the_latest_time() {
    let mut rig = consumer(1);
    rig.tick(1_000);
    let deadline = Some(Duration::from_nanos(50));
    rig.machine.take(TakeSpec { deadline, ..take_spec(1, 1, Mode::Pull) }, 7).unwrap();
    assert_eq!(rig.tick(1_001), Some(1_050));
}

#[test]
fn a_pull_is_received_when_all_was_read() {
    let (mut rig, key) = asking(one(), take_spec(1, 1, Mode::Pull));
    assert!(rig.posts.is_empty(), "nothing is granted");
    rig.hear(peer(A), update(key, 8));
    assert_eq!(rig.posts.len(), 1);
    rig.moved(Ok(()));
    assert_eq!(rig.machine.state(id(1)), HandoffState::Taking { valid_tokens: 8 });
    rig.hear(
        peer(A),
        Message::Update { key, epoch: 0, ready: vec![TOKENS; 3], added: vec![BlockList::default()] },
    );
    assert_eq!(rig.moved(Ok(())).op, Op::Read);
    assert_eq!((rig.end_of(1), rig.valid(1)), (Some((End::Received, Status::Ok)), (TOKENS, 0)));
    assert_eq!(rig.told(peer(A)), vec![done(key)]);
}

#[test]
fn a_push_is_received_when_this_side_has_counted_all() {
    let mut rig = consumer(2);
    rig.take(take_spec(1, 2, Mode::Push));
    let (key, same) = (rig.asked(peer(A)), rig.asked(peer(B)));
    assert_eq!(key, same);
    rig.hear(peer(A), data(key, 3, TOKENS));
    rig.hear(peer(A), data(key, 3, TOKENS));
    rig.hear(peer(B), data(key, 2, TOKENS));
    assert_eq!(rig.end_of(1), None);
    rig.hear(peer(B), Message::Data { key, epoch: 0, work: work(2..3, 4..TOKENS) });
    assert_eq!(rig.end_of(1), None);
    rig.hear(peer(B), Message::Data { key, epoch: 0, work: work(2..3, 0..4) });
    rig.pongs();
    assert_eq!(rig.end_of(1), Some((End::Received, Status::Ok)));
}

#[test]
fn an_id_that_has_ended_is_refused() {
    let mut rig = consumer(1);
    rig.take(take_spec(1, 1, Mode::Push));
    let error = rig.machine.take(take_spec(1, 1, Mode::Push), 0).unwrap_err();
    assert!(error.status == Status::Invalid && error.message.contains("in use"));
    let key = rig.asked(peer(A));
    rig.hear(peer(A), data(key, 3, TOKENS));
    let error = rig.machine.take(take_spec(1, 1, Mode::Push), 0).unwrap_err();
    assert!(error.status == Status::Invalid && error.message.contains("has ended (Received)"));
    for (number, status, what) in [(1, Status::Stale, "has ended"), (2, Status::Invalid, "is no take")] {
        let error = rig.machine.take_cancel(id(number), 0).unwrap_err();
        assert!(error.status == status && error.message.ends_with(what), "{error:?}");
    }
}

#[test]
fn nothing_to_receive_is_received_without_a_transfer() {
    for mode in [Mode::Pull, Mode::Push] {
        let mut rig = consumer(1);
        let nothing = TakeSpec { blocks: vec![BlockList::default()], ..take_spec(1, 1, mode) };
        for spec in [nothing, TakeSpec { skip_tokens: TOKENS, ..take_spec(2, 1, mode) }] {
            let number = spec.id.bytes()[0];
            rig.take(spec);
            let key = rig.asked(peer(A));
            assert_eq!(rig.end_of(number), None, "{mode:?}: nobody has said that there is an offer");
            rig.hear(peer(A), update(key, TOKENS));
            assert_eq!(rig.end_of(number), Some((End::Received, Status::Ok)));
            assert_eq!(rig.valid(number), (TOKENS, 0));
        }
        assert!(rig.posts.is_empty());
    }
}

#[test]
fn a_rank_that_sends_nothing_is_awaited_and_says_so() {
    for mode in [Mode::Push, Mode::Pull] {
        let (ranks, idle) = with_idle();
        let mut rig = consumer(ranks.len() as u32);
        rig.take(take_spec(1, ranks.len() as u64, mode));
        let key = rig.asked(peer(1 + u64::from(idle[0])));
        let (last, others) = idle.split_last().unwrap();
        others.iter().for_each(|rank| rig.hear(peer(1 + u64::from(*rank)), ended(key, Status::Ok)));
        for rank in (0..ranks.len() as u32).filter(|rank| !idle.contains(rank)) {
            let from = peer(1 + u64::from(rank));
            match mode {
                Mode::Push => rig.hear(from, data(key, 3, TOKENS)),
                _ => rig.hear(from, update(key, TOKENS)),
            }
        }
        rig.all_moved();
        assert_eq!(rig.end_of(1), None);
        rig.told(peer(1 + u64::from(*last)));
        rig.hear(peer(1 + u64::from(*last)), ended(key, Status::Ok));
        rig.pongs();
        assert_eq!(rig.end_of(1), Some((End::Received, Status::Ok)));
    }
}

#[test]
fn producers_of_another_number_or_order_or_shape_are_refused() {
    let mut rig = consumer(2);
    let swapped = TakeSpec { producers: vec![peer(B), peer(A)], ..take_spec(1, 2, Mode::Push) };
    rig.take(swapped);
    rig.take(take_spec(2, 1, Mode::Push));
    for number in [1, 2] {
        assert_eq!(rig.end_of(number), Some((End::Failed, Status::Invalid)), "{number}");
    }
    // Rank 1 of four holds half of what rank 1 of two does.
    rig.hello(peer(3), &tp(4)[1]);
    rig.take(TakeSpec { producers: vec![peer(A), peer(3)], ..take_spec(3, 2, Mode::Push) });
    assert_eq!(rig.machine.state(id(3)), HandoffState::Ending, "{:?}", rig.events);
}

#[test]
fn a_failed_rank_strikes_the_take_and_its_sibling_is_cancelled() {
    let mut rig = consumer(2);
    rig.take(take_spec(1, 2, Mode::Push));
    let key = rig.asked(peer(A));
    rig.asked(peer(B));
    rig.hear(peer(A), data(key, 3, 8));
    rig.hear(peer(B), data(key, 3, 4));
    rig.hear(peer(A), ended(key, Status::NoMemory));
    assert!(matches!(rig.told(peer(B))[..], [Message::Cancel { status: Status::NoMemory, .. }]));
    assert_eq!(rig.end_of(1), None, "B may still write");
    rig.hear(peer(B), ended(key, Status::Cancelled));
    assert_eq!((rig.end_of(1), rig.valid(1)), (Some((End::Failed, Status::NoMemory)), (4, 3)));
}

#[test]
fn a_struck_push_waits_for_its_producer_or_the_loss_of_that() {
    for is_lost in [false, true] {
        let (mut rig, key) = asking(one(), take_spec(1, 1, Mode::Push));
        rig.cancel(1);
        assert!(matches!(rig.told(peer(A))[..], [Message::Cancel { status: Status::Cancelled, .. }]));
        assert_eq!((rig.end_of(1), rig.machine.state(id(1))), (None, HandoffState::Ending));
        if is_lost {
            rig.lost(peer(A))
        } else {
            rig.hear(peer(A), ended(key, Status::Cancelled))
        }
        assert_eq!((rig.end_of(1), rig.valid(1)), (Some((End::Cancelled, Status::Cancelled)), (0, 4)));
    }
}

#[test]
fn a_cancelled_pull_cancels_its_reads_alone_and_waits_for_them() {
    let mut rig = consumer(2);
    rig.take(take_spec(1, 2, Mode::Pull));
    let key = rig.asked(peer(A));
    rig.hear(peer(A), update(key, TOKENS));
    rig.hear(peer(B), update(key, TOKENS));
    rig.take(take_spec(2, 2, Mode::Pull));
    let other = rig.asked(peer(A));
    rig.hear(peer(A), update(other, TOKENS));
    rig.sent.clear();
    let own: Vec<_> = rig.posts[..2].iter().map(|posted| posted.post).collect();
    rig.cancel(1);
    assert_eq!(rig.cancels, own);
    assert_eq!((rig.end_of(1), rig.sent.len()), (None, 0));
    rig.moved(Ok(()));
    assert!(matches!(rig.told(peer(A))[..], [Message::Final { status: Status::Cancelled, .. }]));
    rig.moved(Err(Error::new(Status::Cancelled, "cancelled")));
    assert_eq!(rig.end_of(1), Some((End::Cancelled, Status::Cancelled)));
    assert_eq!(rig.end_of(2), None);
}

#[test]
fn a_lost_producer_ends_the_take_when_its_reads_are_final() {
    let (mut rig, key) = asking(one(), take_spec(1, 1, Mode::Pull));
    rig.hear(peer(A), update(key, TOKENS));
    rig.lost(peer(A));
    assert_eq!((rig.end_of(1), rig.cancels.len()), (None, 1));
    rig.moved(Err(Error::new(Status::PeerLost, "gone")));
    assert_eq!(rig.end_of(1), Some((End::PeerLost, Status::PeerLost)));
    assert!(rig.told(peer(A)).is_empty());
}

#[test]
fn a_take_whose_producer_is_lost_before_its_hello_ends() {
    let mut rig = Rig::new(one());
    rig.take(take_spec(1, 2, Mode::Push));
    rig.lost(peer(B));
    assert_eq!(rig.end_of(1), None, "B was not asked");
    rig.hello(peer(A), &tp(2)[0]);
    rig.lost(peer(B));
    assert_eq!(rig.end_of(1), None, "A may write");
    let key = rig.asked(peer(A));
    rig.hear(peer(A), ended(key, Status::Cancelled));
    assert_eq!(rig.end_of(1), Some((End::PeerLost, Status::PeerLost)));
}

#[test]
fn what_one_producer_sends_goes_on_while_another_is_greeted() {
    let mut rig = Rig::new(one());
    rig.take(take_spec(1, 2, Mode::Push));
    rig.hello(peer(A), &tp(2)[0]);
    let key = rig.asked(peer(A));
    rig.hear(peer(A), data(key, 3, TOKENS));
    assert_eq!(rig.end_of(1), None);
    rig.hello(peer(B), &tp(2)[1]);
    assert_eq!(rig.asked(peer(B)), key);
    rig.hear(peer(B), data(key, 3, TOKENS));
    rig.pongs();
    assert_eq!(rig.end_of(1), Some((End::Received, Status::Ok)));
}

#[test]
fn layers_are_told_once_and_coalesce() {
    let (mut rig, key) = asking(one(), TakeSpec { tell_layers: true, ..take_spec(1, 1, Mode::Push) });
    let layer = |layer: u32| {
        Message::Data { key, epoch: 0, work: work(layer..layer + 1, 0..TOKENS) }.encode().unwrap()
    };
    let part = |layer_| ferry_kv::messages::parts(&layer(layer_), 100).remove(0);
    rig.machine.notification(peer(A), &part(1), 0);
    assert!(!rig.machine.has_events(), "layer 0 is missing");
    rig.machine.notification(peer(A), &part(0), 0);
    rig.settle();
    assert_eq!(rig.events, [Event::Layers { id: id(1), layers: 2 }]);
    rig.events.clear();
    rig.machine.notification(peer(A), &part(0), 0);
    assert!(!rig.machine.has_events(), "nothing new");
    rig.machine.notification(peer(A), &part(2), 0);
    rig.settle();
    assert_eq!(rig.events[0], Event::Layers { id: id(1), layers: 3 });
    assert_eq!(rig.end_of(1), Some((End::Received, Status::Ok)));
}

#[test]
fn a_group_that_is_not_needed_may_lie_between_others() {
    let some = [blocks(0..4), vec![BlockList::default()]].concat();
    let (mut rig, key) = asking(mixed(), TakeSpec { blocks: some, ..take_spec(1, 1, Mode::Pull) });
    let added = [blocks(0..4), blocks(0..4)].concat();
    rig.hear(peer(A), Message::Update { key, epoch: 0, ready: vec![TOKENS; 3], added });
    assert_eq!(rig.end_of(1), None);
    rig.all_moved();
    assert_eq!((rig.end_of(1), rig.valid(1)), (Some((End::Received, Status::Ok)), (TOKENS, 0)));
}

#[test]
fn a_window_that_begins_above_token_0_is_read_from_there() {
    let window = |first_token, ids: std::ops::Range<u32>| BlockList { first_token, ids: ids.collect() };
    let ours = [blocks(0..4), vec![window(4, 10..13)]].concat();
    let theirs = [blocks(4..8), vec![window(8, 20..22)]].concat();
    let (mut rig, key) = asking(mixed(), TakeSpec { blocks: ours.clone(), ..take_spec(1, 1, Mode::Pull) });
    rig.hear(peer(A), Message::Update { key, epoch: 0, ready: vec![TOKENS; 3], added: theirs.clone() });
    let requests = rig.posts.iter().flat_map(|posted| posted.moves.iter().flat_map(|moves| moves.requests()));
    let moved: BTreeSet<(u64, u64)> =
        requests.flat_map(|it| (0..it.bytes).map(move |at| (it.source + at, it.target + at))).collect();
    // The window is the last 6 tokens, and the group of the other layers is whole.
    let places = |lists: &[BlockList]| {
        let all = cells(&mixed(), lists, 0..TOKENS, 0).into_iter();
        let all = all.filter(|cell| cell.group == 0 || cell.token >= TOKENS - 6);
        all.map(|cell| cell.address).collect::<Vec<u64>>()
    };
    let expected: BTreeSet<(u64, u64)> = places(&theirs).into_iter().zip(places(&ours)).collect();
    assert_eq!(moved, expected);
    rig.all_moved();
    assert_eq!((rig.end_of(1), rig.valid(1)), (Some((End::Received, Status::Ok)), (TOKENS, 0)));
}

#[test]
fn all_layers_of_nothing_are_complete() {
    let mut rig = consumer(1);
    let spec = TakeSpec { skip_tokens: TOKENS, tell_layers: true, ..take_spec(1, 1, Mode::Pull) };
    rig.take(spec);
    assert_eq!(rig.events, [Event::Layers { id: id(1), layers: 3 }]);
}

#[test]
fn layers_that_were_not_seen_are_told_in_one_event() {
    let (mut rig, key) = asking(one(), TakeSpec { tell_layers: true, ..take_spec(1, 1, Mode::Push) });
    for layer in 0..2 {
        let message =
            Message::Data { key, epoch: 0, work: work(layer..layer + 1, 0..TOKENS) }.encode().unwrap();
        rig.machine.notification(peer(A), &ferry_kv::messages::parts(&message, 100)[0], 0);
    }
    rig.settle();
    assert_eq!(rig.events, [Event::Layers { id: id(1), layers: 2 }]);
}

#[test]
fn wrong_arguments_of_a_take_are_refused() {
    let mut rig = consumer(1);
    let spec = || take_spec(1, 1, Mode::Pull);
    let far = vec![BlockList { first_token: u64::MAX - 3, ids: vec![0, 1, 2, 3] }];
    let bad = [
        TakeSpec { skip_tokens: TOKENS + 1, ..spec() },
        TakeSpec { tokens: TOKENS + 1, ..spec() },
        TakeSpec { blocks: far, ..spec() },
        TakeSpec { blocks: vec![BlockList { first_token: 4, ids: vec![0, 1, 2] }], ..spec() },
        TakeSpec { producers: Vec::new(), ..spec() },
        TakeSpec { blocks: Vec::new(), ..spec() },
        TakeSpec { blocks: blocks(61..65), ..spec() },
    ];
    for (at, spec) in bad.into_iter().enumerate() {
        assert_eq!(rig.machine.take(spec, 0).map_err(|e| e.status), Err(Status::Invalid), "{at}");
    }
}

#[test]
fn auto_pulls_on_the_same_host_and_is_pushed_to_from_others() {
    for is_here in [true, false] {
        let mut rig = consumer(1);
        rig.machine.set_here(peer(A), is_here);
        rig.take(take_spec(1, 1, Mode::Auto));
        let told = rig.told(peer(A));
        let [Message::Take(take)] = &told[..] else { panic!("{told:?}") };
        assert_eq!((take.is_push, take.blocks.is_empty()), (!is_here, is_here));
    }
}

#[test]
fn close_cancels_takes_and_waits_for_their_ends() {
    let (mut rig, key) = asking(one(), take_spec(1, 1, Mode::Push));
    assert!(!rig.machine.close(0));
    rig.settle();
    assert_eq!(rig.end_of(1), None);
    rig.hear(peer(A), ended(key, Status::Cancelled));
    assert_eq!(rig.end_of(1), Some((End::Cancelled, Status::Closed)));
    assert!(rig.machine.close(0));
}

#[test]
fn an_engine_that_has_ended_ends_everything() {
    let mut rig = Rig::new(spacious());
    rig.hello(peer(A), &one());
    rig.sent.clear();
    // More than the peer has room for: the ends of some would begin others.
    for number in 1..=70 {
        rig.take(take_spec(number, 1, Mode::Pull));
        let key = rig.asked(peer(A));
        rig.hear(peer(A), update(key, TOKENS));
    }
    assert_eq!(rig.posts.len(), 64);
    rig.machine.engine_closed(0);
    rig.settle();
    for number in 1..=70 {
        let (end, _) = rig.end_of(number).expect("ends");
        assert!([End::Failed, End::PeerLost, End::Cancelled].contains(&end));
    }
    assert!(rig.machine.close(0));
}

/// Blocks that are not written, because their tokens are skipped, may be in many takes.
#[test]
fn no_two_takes_write_one_block() {
    let mut rig = consumer(1);
    rig.take(TakeSpec { skip_tokens: 4, ..take_spec(1, 1, Mode::Push) });
    let refused = |rig: &mut Rig, spec: TakeSpec| rig.machine.take(spec, 0).unwrap_err().to_string();
    let again = |ids| TakeSpec { blocks: blocks(ids), tokens: 4, ..take_spec(2, 1, Mode::Pull) };
    let text = "INVALID: blocks[0]: block 3 is written by another take that has not ended";
    assert_eq!(refused(&mut rig, again(3..4)), text);
    rig.take(again(0..1));
    rig.take(TakeSpec { skip_tokens: 4, tokens: 4, ..take_spec(3, 1, Mode::Pull) });
    assert_eq!(rig.machine.state(id(3)), HandoffState::Taking { valid_tokens: 4 });
    // They are free with the end of their take, and not before.
    rig.cancel(1);
    assert_eq!(refused(&mut rig, TakeSpec { id: id(4), ..again(3..4) }), text);
    rig.lost(peer(A));
    assert!(rig.end_of(1).is_some());
    rig.take(TakeSpec { id: id(4), ..again(3..4) });
}

/// Bytes of an earlier transfer that land late are told for the blocks that they touch, and for no others.
#[test]
fn late_bytes_fail_the_handoffs_that_have_the_block() {
    let layout = one();
    let at = |layer: usize, block: u64| {
        let memory = layout.layers[layer].memory.unwrap();
        memory.address + block * memory.strides.block
    };
    let block = layout.layers[0].memory.unwrap().strides.block;
    let mut rig = Rig::new(one());
    rig.take(take_spec(1, 1, Mode::Push));
    rig.take(TakeSpec { blocks: blocks(4..8), ..take_spec(2, 1, Mode::Push) });
    rig.offer(3, 1);
    assert_eq!(rig.machine.late_apply(&(at(0, 8)..at(0, 8) + 1), rig.now), 0);
    assert_eq!(rig.machine.late_apply(&(at(2, 4) + block - 1..at(2, 4) + block), rig.now), 1);
    rig.settle();
    assert_eq!(
        [1, 2, 3].map(|number| rig.end_of(number)),
        [None, Some((End::Failed, Status::Corrupt)), None]
    );
    assert_eq!(rig.machine.late_apply(&(at(1, 0)..at(1, 0) + 1), rig.now), 2);
    rig.settle();
    let failed = Some((End::Failed, Status::Corrupt));
    assert_eq!([rig.end_of(1), rig.end_of(3)], [failed, failed]);
}

/// Each byte of a block counts: of keys and values, and of each head and token.
#[test]
fn a_late_byte_anywhere_in_a_block_fails_its_handoff() {
    for arrangement in [Arrangement::PairBlockTokenHead, Arrangement::BlockHeadPairToken] {
        let layout = layouts(Shape { arrangement, ..Shape::plain(1, 1, 4) }, 0).remove(0);
        let mut rig = Rig::new(layout.clone());
        rig.take(TakeSpec { blocks: blocks(4..8), ..take_spec(1, 1, Mode::Push) });
        let failed = |ids| {
            let all = cells(&layout, &blocks(ids), 0..TOKENS, 1).into_iter().map(|cell| cell.address);
            let fails = |at| rig.machine.clone().late_apply(&(at..at + 1), 0);
            all.map(fails).collect::<BTreeSet<usize>>()
        };
        assert_eq!(failed(4..8).into_iter().collect::<Vec<_>>(), [1], "{arrangement:?}");
        for others in [0..4, 8..12] {
            assert_eq!(failed(others).into_iter().collect::<Vec<_>>(), [0], "{arrangement:?}");
        }
    }
}

/// Data that had arrived may be what the late bytes have overwritten.
#[test]
fn nothing_of_a_take_is_valid_after_late_bytes() {
    let first = one().layers[0].memory.unwrap().address;
    for is_ending in [false, true] {
        let (mut rig, key) = asking(one(), take_spec(1, 1, Mode::Push));
        rig.hear(peer(A), data(key, 3, 8));
        if is_ending {
            rig.machine.take_cancel(id(1), rig.now).unwrap();
        }
        assert_eq!(rig.machine.late_apply(&(first..first + 1), rig.now), 1);
        rig.settle();
        assert_eq!(rig.end_of(1), None, "A may still write");
        rig.hear(peer(A), ended(key, Status::Cancelled));
        let end =
            if is_ending { (End::Cancelled, Status::Cancelled) } else { (End::Failed, Status::Corrupt) };
        assert_eq!((rig.end_of(1), rig.valid(1)), (Some(end), (0, 4)), "is ending: {is_ending}");
    }
}

/// A producer whose own memory is harmed may have sent what is wrong. Skipped tokens are not the producer's.
#[test]
fn nothing_is_valid_of_a_producer_whose_memory_is_corrupt() {
    for mode in [Mode::Push, Mode::Pull] {
        for (status, valid) in [(Status::Corrupt, (4, 3)), (Status::NoMemory, (8, 2))] {
            let (mut rig, key) = asking(one(), TakeSpec { skip_tokens: 4, ..take_spec(1, 1, mode) });
            match mode {
                Mode::Push => {
                    rig.hear(peer(A), Message::Data { key, epoch: 0, work: work(0..3, 4..8) });
                }
                _ => rig.hear(peer(A), update(key, 8)),
            }
            rig.all_moved();
            rig.hear(peer(A), ended(key, status));
            assert_eq!((rig.end_of(1), rig.valid(1)), (Some((End::Failed, status)), valid), "{mode:?}");
        }
    }
}

/// Harmed twice: the second harm, of the producer's memory alone, makes nothing valid that the first one harmed.
#[test]
fn a_second_harm_does_not_mend_the_first() {
    let first = one().layers[0].memory.unwrap().address;
    let (mut rig, key) = asking(one(), TakeSpec { skip_tokens: 4, ..take_spec(1, 1, Mode::Push) });
    rig.hear(peer(A), Message::Data { key, epoch: 0, work: work(0..3, 4..8) });
    assert_eq!(rig.machine.late_apply(&(first..first + 1), rig.now), 1);
    rig.hear(peer(A), ended(key, Status::Corrupt));
    assert_eq!((rig.end_of(1), rig.valid(1)), (Some((End::Failed, Status::Corrupt)), (0, 4)));
}

/// None of the producers is asked for signs of life when the take has ended.
#[test]
fn nothing_is_expected_of_the_producers_of_a_take_that_has_ended() {
    let mut rig = consumer(2);
    rig.take(take_spec(1, 2, Mode::Pull));
    for number in [A, B] {
        let key = rig.asked(peer(number));
        rig.hear(peer(number), update(key, TOKENS));
    }
    rig.all_moved();
    rig.pongs();
    assert_eq!(rig.end_of(1), Some((End::Received, Status::Ok)));
    rig.sent.clear();
    for at in 1..9 {
        rig.tick(at * SILENCE / 2);
    }
    assert_eq!((rig.sent.len(), rig.fences.len()), (0, 0));
}
