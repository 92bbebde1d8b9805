//! Blocks that leave a window, and states, of a sequence whose tokens are taken back.

use std::ops::Range;

use ferry::status::Error;
use ferry::Status;
use ferry_kv::handoff::wire::{Message, Take};
use ferry_kv::handoff::{Blocks, End, HandoffState, Mode, OfferSpec, TakeSpec};
use ferry_kv::layout::{GroupKind, Layout};

use super::rig::*;
use crate::caches::{layouts, Shape};

const A: u64 = 11;
const B: u64 = 12;

fn list(first_token: u64, ids: Range<u32>) -> Blocks {
    Blocks { first_token, ids: ids.collect() }
}

fn both() -> Vec<Blocks> {
    vec![list(0, 0..4), list(0, 10..14)]
}

/// A producer of two groups, the second one a window of 6 tokens or a state, that has offered four blocks of each.
fn producer(layout: &Layout) -> Rig {
    let mut rig = Rig::new(layout.clone());
    for number in [A, B] {
        rig.hello(peer(number), layout);
    }
    rig.offer_as(OfferSpec { blocks: both(), ..offer_spec(1, 2) });
    rig.sent.clear();
    rig
}

fn with_state() -> Layout {
    let shape = Shape { middle: Some(GroupKind::State), ..Shape::plain(1, 1, 4) };
    layouts(shape, 0).remove(0)
}

fn of_both(mode: Mode, tokens: u64) -> TakeSpec {
    TakeSpec { blocks: both(), tokens, ..take_spec(1, 1, mode) }
}

fn of_tokens(group: u64, number: u64, tokens: u64, is_push: bool) -> Message {
    // The lists of a push say which groups it wants.
    let (blocks, wanted) = if is_push { (both(), 0) } else { (Vec::new(), u64::MAX) };
    Message::Take(Take { group, tokens, wanted, blocks, ..take(1, number, is_push) })
}

impl Rig {
    fn free(&mut self, before: u64) -> u64 {
        let number = self.machine.offer_retract_window(id(1), 1, before, 0).unwrap();
        self.settle();
        number
    }

    fn is_free(&self, number: u64) -> bool {
        self.machine.is_retracted(id(1), number).unwrap()
    }
}

/// The blocks of the window or state that a transfer reads.
fn window_of(posts: &[Posted]) -> Vec<u32> {
    let layers = posts.iter().flat_map(|posted| &posted.moves);
    let mut ids: Vec<u32> =
        layers.flat_map(|moves| moves.pairs.source.clone()).filter(|id| *id >= 10).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[test]
fn a_window_block_is_freed_at_layer_n() {
    for is_push in [true, false] {
        let mut rig = producer(&mixed());
        rig.hear(peer(A), of_tokens(0, 5, TOKENS, is_push));
        rig.ready(1, 0..3, 10);
        // The next chunk has come to the second layer, and no token of it needs block 10 any more.
        rig.ready(1, 0..1, TOKENS);
        let before = rig.told(peer(A));
        let number = rig.free(10);
        assert!(rig.is_free(number), "nobody needs it");
        assert_eq!(rig.fences.len() + rig.cancels.len(), 0);
        // Token 8 and 9 are in block 12, which stays. Block 10 may be the sequence's again.
        let more = [list(0, 0..0), list(0, 10..11)];
        assert!(rig.machine.offer_extend(id(1), &more, 0).is_ok());
        rig.ready(1, 1..3, TOKENS);
        if is_push {
            assert_eq!(window_of(&rig.posts), [12, 13]);
            rig.all_moved();
            rig.hear(peer(A), done(key(1, 5)));
        } else {
            assert!(matches!(&before[0], Message::Update { added, .. } if added[1] == list(0, 10..14)));
            let told = rig.told(peer(A));
            let news = |message: &Message| match message {
                Message::Update { added, .. } => added[1].clone(),
                _ => panic!("{message:?}"),
            };
            assert_eq!(told.iter().map(news).collect::<Vec<_>>(), [list(16, 10..11)]);
            rig.hear(peer(A), done(key(1, 5)));
        }
        rig.seal_at(1, TOKENS);
        assert_eq!(rig.end_of(1), None, "another taker");
        // A taker that comes now is told of what is left.
        rig.hear(peer(B), of_tokens(1, 6, TOKENS, false));
        let told = rig.told(peer(B));
        assert!(matches!(&told[..], [Message::Update { added, epoch: 1, .. }]
            if added[1] == Blocks { first_token: 8, ids: vec![12, 13, 10] }));
        rig.hear(peer(B), done_in(1, key(1, 6)));
        assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
    }
}

#[test]
fn a_take_that_needs_what_was_freed_fails_alone() {
    for is_push in [true, false] {
        let mut rig = producer(&mixed());
        // The window of 9 tokens begins at token 3.
        for (group, from, tokens) in [(0, A, 9), (1, B, 10)] {
            rig.hear(peer(from), of_tokens(group, 5, tokens, is_push));
        }
        rig.ready(1, 0..3, 8);
        rig.all_moved();
        rig.sent.clear();
        let number = rig.free(4);
        assert!(is_push == rig.is_free(number), "a pull says when it is over");
        let (status, why) = rig.told_end(peer(A)).unwrap_or((Status::Ok, String::new()));
        assert_eq!(status, Status::Stale);
        assert_eq!(why, "the offer lacks blocks of the window of group 1 that the take needs");
        assert_eq!(rig.told(peer(B)), []);
        rig.hear(peer(A), Message::Final { key: key(1, 5), epoch: 0, status: Status::Stale, why });
        assert!(rig.is_free(number));
    }
}

#[test]
fn a_write_of_the_window_is_awaited() {
    let mut rig = producer(&mixed());
    rig.hear(peer(A), of_tokens(0, 5, 9, true));
    rig.ready(1, 0..2, 9);
    let number = rig.free(8);
    assert!(!rig.is_free(number) && window_of(&rig.posts) == [10, 11, 12]);
    assert_eq!(rig.free(8), number, "asked again");
    // The blocks are not the caller's, and the offer goes on.
    let taken = |first| vec![list(0, 0..0), list(0, first..first + 1)];
    assert!(rig.machine.offer_extend(id(1), &taken(10), 0).is_err());
    assert!(rig.machine.offer_extend(id(1), &taken(14), 0).is_ok());
    rig.ready(1, 0..2, TOKENS);
    rig.moved(Ok(()));
    assert!(rig.is_free(number), "the third layer has no window");
    assert_eq!(rig.end_of(1), None);
    assert!(rig.machine.offer_extend(id(1), &taken(10), 0).is_ok());
}

#[test]
fn a_read_of_the_window_is_awaited_until_its_final() {
    let mut rig = producer(&mixed());
    rig.hear(peer(A), of_tokens(0, 5, 9, false));
    rig.ready(1, 0..2, 9);
    let number = rig.free(8);
    rig.ready(1, 2..3, 9);
    assert!(!rig.is_free(number), "all layers of the window were told");
    rig.hear(peer(A), done(key(1, 5)));
    assert!(rig.is_free(number));
}

#[test]
fn only_windows_are_freed_and_only_blocks_that_are_before() {
    let mut rig = producer(&mixed());
    for (group, what) in [(0, "group: 0 is no window"), (2, "group: 2 is no window")] {
        let error = rig.machine.offer_retract_window(id(1), group, 4, 0).unwrap_err();
        assert!(error.status == Status::Invalid && error.message.starts_with(what), "{error}");
    }
    assert_eq!(rig.free(3), 0, "token 3 is in block 10");
    assert_eq!(rig.free(4), 1);
    assert_eq!(rig.free(1), 1);
    // The rest begins at token 4: 10 tokens are the fewest whose window it has.
    let ready = |rig: &mut Rig, tokens| rig.machine.offer_ready(id(1), 0..3, tokens, 0).map_err(|e| e.status);
    assert_eq!((ready(&mut rig, 9), ready(&mut rig, 10)), (Err(Status::Invalid), Ok(())));
    assert_eq!(rig.free(u64::MAX), 2);
    let more = vec![list(0, 0..0), list(0, 10..14)];
    rig.machine.offer_extend(id(1), &more, 0).unwrap();
    assert_eq!(ready(&mut rig, 16), Err(Status::Invalid), "the list goes on at token 16");
}

#[test]
fn a_window_that_was_freed_is_offered_again_from_where_the_tokens_are_taken_back() {
    let mut rig = producer(&mixed());
    rig.ready(1, 0..3, TOKENS);
    rig.free(10);
    rig.hear(peer(A), of_tokens(0, 5, TOKENS, false));
    rig.told(peer(A));
    rig.retract(1, 6);
    rig.hear(peer(A), Message::Retracted { key: key(1, 5), epoch: 2 });
    rig.told(peer(A));
    // The list begins at token 4 now, or later, where the first blocks do.
    let mut offered = |first_token| {
        let more = vec![list(0, 4..6), list(first_token, 20..23)];
        rig.machine.offer_extend(id(1), &more, 0).map_err(|error| error.status)
    };
    assert_eq!((offered(6), offered(8)), (Err(Status::Invalid), Ok(())));
    rig.ready(1, 0..3, TOKENS);
    let told = rig.told(peer(A));
    let added = vec![list(8, 4..6), list(8, 20..23)];
    assert_eq!(told, [Message::Update { key: key(1, 5), epoch: 2, ready: vec![TOKENS; 3], added }]);
}

#[test]
fn a_state_goes_with_its_last_token() {
    for (from, goes) in [(8, true), (11, true), (12, false)] {
        let mut rig = producer(&with_state());
        rig.hear(peer(A), of_tokens(0, 5, TOKENS, false));
        rig.ready(1, 0..3, 12);
        rig.told(peer(A));
        rig.retract(1, from);
        rig.hear(peer(A), Message::Retracted { key: key(1, 5), epoch: 1 });
        let told = rig.told(peer(A));
        let [_, Message::Update { ready, .. }] = &told[..] else { panic!("{told:?}") };
        assert_eq!(ready[..], [from, if goes { 0 } else { from }, from]);
        let kept = from.div_ceil(4) as u32;
        let more = vec![list(0, kept..4), list(0, if goes { 20..24 } else { 20..20 })];
        rig.machine.offer_extend(id(1), &more, 0).unwrap();
        rig.ready(1, 0..3, TOKENS);
        let told = rig.told(peer(A));
        let [Message::Update { added, .. }] = &told[..] else { panic!("{told:?}") };
        assert_eq!(added[1].ids, if goes { vec![20, 21, 22, 23] } else { vec![] }, "{from}");
    }
}

/// A row that moves as a whole is complete or not.
#[test]
fn a_window_is_dropped_as_a_whole() {
    let (mut rig, key) = asking(mixed(), of_both(Mode::Push, TOKENS));
    for (layers, end) in [(0..2, TOKENS), (2..3, 12)] {
        rig.hear(peer(1), Message::Data { key, epoch: 0, work: work(layers, 0..end) });
    }
    let valid = |rig: &Rig| match rig.machine.status(id(1)) {
        HandoffState::Taking { valid_tokens } => valid_tokens,
        state => panic!("{state:?}"),
    };
    assert_eq!(valid(&rig), 12);
    rig.hear(peer(1), Message::Retract { key, epoch: 1, from: TOKENS });
    assert_eq!(valid(&rig), 12, "all of it stays");
    rig.hear(peer(1), Message::Retract { key, epoch: 2, from: 10 });
    assert_eq!(valid(&rig), 0);
}

/// A consumer reads a state again from the blocks that it was told last.
#[test]
fn a_consumer_reads_a_state_again() {
    let (mut rig, key) = asking(with_state(), of_both(Mode::Pull, 12));
    let grant = |epoch, added| Message::Update { key, epoch, ready: vec![12; 3], added };
    rig.hear(peer(1), Message::Update { key, epoch: 0, ready: vec![12, 12, 8], added: both() });
    rig.all_moved();
    rig.hear(peer(1), Message::Retract { key, epoch: 1, from: 8 });
    assert_eq!(rig.told(peer(1)), [Message::Retracted { key, epoch: 1 }]);
    rig.hear(peer(1), grant(1, vec![list(8, 6..8), list(0, 20..24)]));
    assert_eq!(window_of(&rig.posts), [20, 21, 22, 23]);
    rig.all_moved();
    assert_eq!(rig.end_of(1), Some((End::Received, Status::Ok)));
}

/// A state that nothing was taken back of may be given up all the same: it is not read before it is told anew.
#[test]
fn a_state_is_not_read_between_a_retract_and_the_next_grant() {
    let (mut rig, key) = asking(with_state(), of_both(Mode::Pull, 8));
    rig.hear(peer(1), Message::Update { key, epoch: 0, ready: vec![8, 4, 0], added: both() });
    rig.all_moved();
    rig.hear(peer(1), Message::Retract { key, epoch: 1, from: 8 });
    assert!(rig.posts.is_empty());
    let added = vec![list(0, 0..2), Blocks::default()];
    rig.hear(peer(1), Message::Update { key, epoch: 1, ready: vec![8, 0, 8], added });
    assert!(window_of(&rig.posts).is_empty() && rig.posts.len() == 1);
}

#[test]
fn a_take_that_comes_when_its_window_blocks_are_freed_is_stale_and_ends_its_taker() {
    for is_push in [true, false] {
        let mut rig = producer(&mixed());
        rig.ready(1, 0..3, TOKENS);
        let number = rig.free(10);
        assert!(rig.is_free(number));
        for taker in [3, 3] {
            rig.hear(peer(A), of_tokens(taker, taker, 9, is_push));
            let (status, why) = rig.told_end(peer(A)).unwrap();
            assert!(
                status == Status::Stale && why.contains("lacks blocks of the window of group 1"),
                "{why}"
            );
        }
        assert!(rig.posts.is_empty());
        // The other place of the offer is free, and the whole sequence does not need those blocks.
        rig.hear(peer(A), of_tokens(6, 6, TOKENS, is_push));
        assert_eq!(rig.told_end(peer(A)), None);
        assert_eq!(rig.end_of(1), None);
        rig.hear(peer(A), of_tokens(7, 7, TOKENS, is_push));
        assert_eq!(rig.told_status(peer(A)), Some(Status::Limit));
    }
}

/// A taker had the window, its first block was freed, and then the sequence is taken back behind it.
#[test]
fn a_window_block_that_was_freed_cannot_be_handed_over_again() {
    for is_push in [true, false] {
        for (from, goes_on, end) in [(9, true, Status::Stale), (9, false, Status::Ok), (12, true, Status::Ok)]
        {
            let mut rig = producer(&mixed());
            rig.ready(1, 0..3, TOKENS);
            rig.hear(peer(A), of_tokens(0, 5, 12, is_push));
            rig.all_moved();
            let number = rig.free(8);
            assert_eq!(rig.is_free(number), is_push, "the taker has it, and a pull says so at its end");
            rig.machine.offer_retract(id(1), from, 0).unwrap();
            rig.settle();
            rig.told(peer(A));
            rig.hear(
                peer(A),
                if goes_on { Message::Retracted { key: key(1, 5), epoch: 2 } } else { done_in(2, key(1, 5)) },
            );
            let told = rig.told_end(peer(A)).map_or(Status::Ok, |told| told.0);
            assert_eq!(told, end, "from {from}, goes on: {goes_on}, push: {is_push}");
            assert!(rig.posts.is_empty());
        }
    }
}

/// Tokens that are taken back are computed again, in other blocks; tokens before them that were freed are not.
#[test]
fn a_window_block_that_was_freed_and_taken_back_is_offered_to_those_who_come_later() {
    for is_push in [true, false] {
        let stale = Some(Status::Stale);
        for (from, frees_more, end) in
            [(6, false, None), (6, true, None), (7, false, stale), (7, true, stale)]
        {
            let mut rig = producer(&mixed());
            rig.ready(1, 0..3, TOKENS);
            rig.free(8);
            let number = rig.retract(1, from);
            assert!(rig.is_free(number));
            // The list begins at token 4 now, and has nothing before that.
            assert!(!frees_more || rig.free(4) == number);
            // The window of 12 tokens begins at token 6.
            rig.hear(peer(A), of_tokens(0, 5, 12, is_push));
            assert_eq!(rig.told_status(peer(A)), end, "{from}, {frees_more}, {is_push}");
        }
    }
}

/// Seed 1006664: the taker had all of this rank, and goes on with others. Its window's first block was freed, and then its
/// tokens were taken back; the window is offered again from a later block on.
#[test]
fn a_window_that_begins_later_than_it_was_taken_back_ends_those_that_need_more() {
    for is_push in [true, false] {
        for (resumes, end) in [(4, None), (8, Some(Status::Stale))] {
            let mut rig = producer(&mixed());
            rig.hear(peer(A), of_tokens(0, 5, 12, is_push));
            rig.ready(1, 0..3, TOKENS);
            rig.all_moved();
            let number = rig.free(8);
            assert_eq!(rig.is_free(number), is_push);
            let number = rig.retract(1, 6);
            rig.hear(peer(A), Message::Retracted { key: key(1, 5), epoch: 2 });
            assert!(rig.is_free(number));
            assert_eq!(rig.told_end(peer(A)), None, "token 6 is computed again");
            let more = [list(0, 20..22), list(resumes, 20..23)];
            rig.machine.offer_extend(id(1), &more, 0).unwrap();
            rig.ready(1, 0..3, TOKENS);
            assert_eq!(rig.told_status(peer(A)), end, "from {resumes}, push: {is_push}");
            assert_eq!(rig.posts.is_empty(), !is_push || end.is_some());
            // A taker that comes now needs the same.
            rig.hear(peer(B), of_tokens(1, 6, 12, is_push));
            assert_eq!(rig.told_status(peer(B)), end, "from {resumes}, push: {is_push}");
        }
    }
}

/// Nothing of an epoch that has ended is read: not the blocks before those that the next one tells, either.
#[test]
fn what_was_granted_before_a_retract_is_not_read_after_it() {
    let (mut rig, key) = asking(mixed(), of_both(Mode::Pull, 12));
    rig.hear(peer(1), Message::Update { key, epoch: 0, ready: vec![8; 3], added: both() });
    rig.all_moved();
    rig.hear(peer(1), Message::Retract { key, epoch: 1, from: 6 });
    assert_eq!(rig.told(peer(1)), [Message::Retracted { key, epoch: 1 }]);
    assert!(rig.posts.is_empty());
    // The window of 12 tokens begins at token 6, and no block of before has the tokens from 6 on.
    let added = vec![list(0, 4..7), list(8, 20..22)];
    rig.hear(peer(1), Message::Update { key, epoch: 1, ready: vec![12; 3], added });
    assert_eq!(window_of(&rig.posts), []);
    rig.all_moved();
    assert_eq!(rig.end_of(1), Some((End::Failed, Status::Invalid)));
}

/// A taker that reads its window holds the blocks that were freed; tokens that are taken back let go of these, too, and
/// the taker waits for what is computed again.
#[test]
fn a_window_that_is_being_read_does_not_hold_tokens_that_are_taken_back() {
    for is_push in [true, false] {
        let mut rig = producer(&mixed());
        rig.hear(peer(A), of_tokens(0, 5, 12, is_push));
        rig.ready(1, 0..3, 12);
        let window = rig.free(8);
        assert!(!rig.is_free(window));
        let number = rig.retract(1, 6);
        if is_push {
            rig.moved(Err(Error::new(Status::Cancelled, "cancelled")));
        }
        assert!(!rig.is_free(window) && !rig.is_free(number), "{is_push}");
        rig.hear(peer(A), Message::Retracted { key: key(1, 5), epoch: 2 });
        assert!(rig.is_free(window) && rig.is_free(number), "{is_push}");
        assert_eq!(rig.told_end(peer(A)), None);
        // It goes on, and what is freed of the new blocks is awaited as before.
        let more = [list(0, 20..22), list(4, 20..23)];
        rig.machine.offer_extend(id(1), &more, 0).unwrap();
        rig.ready(1, 0..3, 12);
        let window = rig.free(8);
        assert!(!rig.is_free(window), "{is_push}");
        if is_push {
            rig.all_moved()
        } else {
            rig.hear(peer(A), done_in(2, key(1, 5)));
        }
        assert!(rig.is_free(window), "{is_push}");
    }
}

/// The producer never had what lies before the list, and a retract to before that computes it from the token on.
#[test]
fn a_window_that_begins_late_serves_no_take_that_needs_more() {
    for is_push in [true, false] {
        let stale = Some(Status::Stale);
        // The window of 12 tokens begins at token 6, and that of 14 at token 8.
        for (retracts_to, tokens, end) in
            [(None, 12, stale), (None, 14, None), (Some(7), 12, stale), (Some(6), 12, None)]
        {
            let mut rig = Rig::new(mixed());
            rig.hello(peer(A), &mixed());
            let blocks = vec![list(0, 0..4), list(8, 10..12)];
            rig.offer_as(OfferSpec { blocks, ..offer_spec(1, 2) });
            rig.sent.clear();
            if let Some(from) = retracts_to {
                rig.retract(1, from);
                let more = [list(0, 20..22), list(4, 20..23)];
                rig.machine.offer_extend(id(1), &more, 0).unwrap();
            }
            rig.hear(peer(A), of_tokens(0, 5, tokens, is_push));
            let told = rig.told_status(peer(A));
            assert_eq!(told, end, "{retracts_to:?}, {tokens} tokens, push: {is_push}");
            // A take that does not want the window lacks nothing.
            let blocks = if is_push { vec![list(0, 0..4), list(0, 0..0)] } else { Vec::new() };
            let unneeding = Take { group: 1, tokens, wanted: 1, blocks, ..take(1, 6, is_push) };
            rig.hear(peer(A), Message::Take(unneeding));
            assert_eq!(rig.told_end(peer(A)), None);
        }
    }
}

/// An offer that is sealed and not taken holds no lease of what was freed.
#[test]
fn a_window_block_that_was_freed_is_not_leased() {
    let mut rig = producer(&mixed());
    rig.ready(1, 0..3, TOKENS);
    rig.machine.offer_seal(id(1), TOKENS, 0).unwrap();
    assert_eq!(rig.machine.metrics(0).leased_blocks, 8);
    rig.free(10);
    assert_eq!(rig.machine.metrics(0).leased_blocks, 6);
    assert_eq!(rig.machine.reclaim(1, 0), 6, "those that the offer has");
    assert_eq!(rig.machine.metrics(0).leased_blocks, 0);
}
