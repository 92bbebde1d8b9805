//! Words that no cache says: each is found, named and kept to the peer that says it.

use ferry::Status;
use ferry_kv::handoff::limits::BLOCKS_MAX;
use ferry_kv::handoff::wire::{Message, Take};
use ferry_kv::handoff::{BlockList, End, HandoffState, Mode, TakeSpec};

use super::rig::*;
use crate::caches::{layouts, Shape};

const GOOD: u64 = 1;
const BAD: u64 = 2;

/// A machine that offers to both and takes from both; returns the keys of its takes, of the bad peer's and the good
/// one's.
fn busy(mode: Mode) -> (Rig, [ferry_kv::handoff::wire::Key; 2]) {
    let mut rig = Rig::new(one());
    for number in [GOOD, BAD] {
        rig.hello(peer(number), &one());
    }
    for (number, from) in [(1, BAD), (2, GOOD)] {
        rig.offer(number, 1);
        rig.seal(number);
        rig.hear(peer(from), Message::Take(take(number, 5, false)));
    }
    let keys = [(3, BAD), (4, GOOD)].map(|(number, of)| {
        let mut spec = take_spec(number, 1, mode);
        spec.producers = vec![peer(of)];
        rig.take(spec);
        rig.asked(peer(of))
    });
    rig.sent.clear();
    (rig, keys)
}

/// The bad peer's handoffs end only when it is fenced, and those of the good one go on.
fn is_fenced_alone(rig: &mut Rig, good: ferry_kv::handoff::wire::Key, status: Status) {
    assert_eq!(rig.fences, [peer(BAD)]);
    assert_eq!(rig.told_status(peer(BAD)), Some(status), "of its pull");
    assert_eq!(rig.end_of(1), None, "it may still read");
    rig.lost(peer(BAD));
    assert_eq!(rig.end_of(1), Some((End::Failed, status)));
    assert_eq!(rig.end_of(3), Some((End::Failed, status)));
    assert_eq!(rig.told(peer(GOOD)), vec![]);
    rig.hear(peer(GOOD), done(key(2, 5)));
    rig.hear(peer(GOOD), Message::Data { key: good, epoch: 0, work: work(0..3, 0..TOKENS) });
    assert_eq!(rig.end_of(2), Some((End::Sent, Status::Ok)));
    assert_eq!(rig.end_of(4), Some((End::Received, Status::Ok)));
}

#[test]
fn bytes_that_are_no_message_fence_their_peer() {
    for bytes in [&[77u8][..], &[5, 1, 2], &[8, 0]] {
        let (mut rig, [_, good]) = busy(Mode::Push);
        rig.hear_bytes(peer(BAD), bytes);
        rig.hear_bytes(peer(BAD), bytes);
        assert_eq!(rig.end_of(3), None, "it may still write");
        is_fenced_alone(&mut rig, good, Status::Invalid);
    }
    let (mut rig, [_, good]) = busy(Mode::Push);
    rig.machine.notification(peer(BAD), &[], 0);
    rig.settle();
    is_fenced_alone(&mut rig, good, Status::Invalid);
}

#[test]
fn data_that_was_not_asked_for_fences_its_peer() {
    let (end, start) = (1, 9);
    let wrong = [
        work(0..3, 0..TOKENS + 1),
        work(3..4, 0..TOKENS),
        work(2..end, 0..TOKENS),
        work(0..3, 4..4),
        work(0..3, start..2),
        work(0..3, 0..u64::MAX),
    ];
    for wrong in wrong {
        let (mut rig, [bad, good]) = busy(Mode::Push);
        for start in [0, 6] {
            rig.hear(peer(BAD), Message::Data { key: bad, epoch: 0, work: work(0..3, start..start + 2) });
        }
        rig.hear(peer(BAD), Message::Data { key: bad, epoch: 0, work: wrong });
        is_fenced_alone(&mut rig, good, Status::Corrupt);
        assert_eq!(rig.valid(3), (2, 4), "what was wrong does not count");
    }
}

#[test]
fn data_of_a_take_that_reads_fences_its_peer() {
    let (mut rig, [bad, _]) = busy(Mode::Pull);
    rig.hear(peer(BAD), Message::Data { key: bad, epoch: 0, work: work(0..3, 0..TOKENS) });
    assert_eq!(rig.fences, [peer(BAD)]);
    assert_eq!(rig.end_of(3), Some((End::Failed, Status::Corrupt)), "nothing was read");
}

#[test]
fn data_in_too_many_ranges_fence_their_peer() {
    let mut rig = greeted([BAD], [one()]);
    let mut spec = take_spec(3, 1, Mode::Push);
    (spec.producers, spec.blocks, spec.tokens) = (vec![peer(BAD)], blocks(0..40), 160);
    rig.take(spec);
    let key = rig.asked(peer(BAD));
    for at in 0..64 {
        rig.hear(peer(BAD), Message::Data { key, epoch: 0, work: work(0..3, 2 * at..2 * at + 1) });
    }
    assert_eq!(rig.fences, []);
    rig.hear(peer(BAD), Message::Data { key, epoch: 0, work: work(0..3, 128..129) });
    assert_eq!(rig.fences, [peer(BAD)]);
}

#[test]
fn an_update_that_does_not_fit_ends_its_take() {
    let wrong: [(Vec<u64>, Vec<BlockList>); 4] = [
        (vec![TOKENS; 2], blocks(0..4)),
        (vec![TOKENS; 4], blocks(0..4)),
        (vec![TOKENS; 3], vec![]),
        (vec![TOKENS; 3], vec![BlockList::default(); 2]),
    ];
    for (ready, added) in wrong {
        let (mut rig, [bad, good]) = busy(Mode::Pull);
        rig.hear(peer(BAD), Message::Update { key: bad, epoch: 0, ready, added });
        assert_eq!(rig.end_of(3), Some((End::Failed, Status::Corrupt)));
        rig.hear(peer(BAD), update(bad, TOKENS));
        assert!(rig.posts.is_empty());
        rig.hear(peer(GOOD), update(good, TOKENS));
        rig.all_moved();
        assert_eq!(rig.end_of(4), Some((End::Received, Status::Ok)));
    }
}

#[test]
fn blocks_that_are_granted_are_bounded_and_those_of_the_peer() {
    let (mut rig, [bad, _]) = busy(Mode::Pull);
    let grant = |first, count| {
        let first_token = 4 * u64::from(first);
        let added = vec![BlockList { first_token, ids: (first..first + count).collect() }];
        Message::Update { key: bad, epoch: 0, ready: vec![0; 3], added }
    };
    rig.hear(peer(BAD), grant(0, 600_000));
    rig.hear(peer(BAD), grant(600_000, BLOCKS_MAX as u32 - 600_000));
    assert_eq!(rig.end_of(3), None);
    rig.hear(peer(BAD), grant(BLOCKS_MAX as u32, 1));
    assert_eq!(rig.end_of(3), Some((End::Failed, Status::Corrupt)));
    let (mut rig, [bad, _]) = busy(Mode::Pull);
    let added = blocks(61..65);
    rig.hear(peer(BAD), Message::Update { key: bad, epoch: 0, ready: vec![TOKENS; 3], added });
    assert_eq!(rig.end_of(3), Some((End::Failed, Status::Invalid)));
    assert!(rig.posts.is_empty());
}

#[test]
fn an_end_that_comes_too_early_is_corrupt() {
    for mode in [Mode::Push, Mode::Pull] {
        let (mut rig, [bad, _]) = busy(mode);
        rig.hear(peer(BAD), ended(bad, Status::Ok));
        assert_eq!(rig.end_of(3), Some((End::Failed, Status::Corrupt)), "{mode:?}");
        assert_eq!((rig.end_of(4), rig.valid(3)), (None, (0, 4)));
    }
}

#[test]
fn words_of_a_peer_about_anothers_take_change_nothing() {
    let (mut rig, [bad, good]) = busy(Mode::Pull);
    rig.hear(peer(BAD), update(good, TOKENS));
    rig.hear(peer(BAD), ended(good, Status::Cancelled));
    rig.hear(
        peer(GOOD),
        ended(ferry_kv::handoff::wire::Key { take: good.take + 9, ..good }, Status::NoMemory),
    );
    assert_eq!((rig.end_of(4), rig.posts.len()), (None, 0));
    rig.hear(peer(GOOD), ended(bad, Status::NoMemory));
    assert_eq!(rig.end_of(3), None);
}

#[test]
fn another_version_ends_its_handoffs_without_a_fence() {
    let hello = Message::Hello { incarnation: 7, regions: Vec::new(), layout: Box::new(one()) };
    let mut bytes = hello.encode().unwrap();
    bytes[1] ^= 2;
    let mut rig = Rig::new(one());
    rig.take(take_spec(3, 1, Mode::Push));
    let mut other = take_spec(4, 1, Mode::Push);
    other.producers = vec![peer(9)];
    rig.take(other);
    rig.hear_bytes(peer(1), &bytes);
    assert_eq!(rig.end_of(3), Some((End::Failed, Status::Version)));
    assert_eq!((rig.fences.len(), rig.end_of(4)), (0, None));
    // A peer that has said the first word learns this version; one that was greeted knows it.
    assert!(matches!(rig.told(peer(1))[..], [Message::Hello { .. }]));
    rig.hear_bytes(peer(8), &bytes);
    assert!(matches!(rig.told(peer(8))[..], [Message::Hello { .. }]));
    // The next take asks again.
    rig.take(take_spec(5, 1, Mode::Push));
    assert!(matches!(rig.told(peer(1))[..], [Message::Hello { .. }]));
    rig.hear_bytes(peer(1), &bytes);
    assert_eq!(rig.told(peer(1)), vec![]);
    assert_eq!(rig.end_of(5), Some((End::Failed, Status::Version)));
}

#[test]
fn a_take_that_is_not_its_peers_is_refused() {
    let mut rig = Rig::new(one());
    rig.offer(1, 64);
    rig.hear(peer(BAD), Message::Take(take(1, 5, false)));
    assert_eq!(rig.told_status(peer(BAD)), Some(Status::Invalid), "no layout");
    rig.hello(peer(BAD), &one());
    let wrong = [
        Take { rank: 1, ..take(1, 5, false) },
        Take { skip: TOKENS + 1, ..take(1, 5, false) },
        Take { blocks: blocks(61..65), ..take(1, 5, true) },
        Take { blocks: vec![], ..take(1, 5, true) },
    ];
    for wrong in wrong {
        rig.hear(peer(BAD), Message::Take(wrong));
        assert_eq!(rig.told_status(peer(BAD)), Some(Status::Invalid));
    }
    assert_eq!(rig.fences, []);
}

/// Reads that a peer claims are counted turn by turn, up to what it was told, whatever it has asked for.
#[test]
fn a_pull_of_more_tokens_than_there_are_is_counted_up_to_what_was_told() {
    let turns = layouts(Shape { pcp: 2, ..Shape::plain(1, 1, 4) }, 0).remove(0);
    // It has every second token, each of three layers, two pairs, two heads and three elements.
    for (skip, counted) in [(0, TOKENS / 2), (TOKENS, 0), (u64::MAX - 1, 0)] {
        let mut rig = greeted([BAD], [turns.clone()]);
        rig.offer(1, 1);
        rig.ready(1, 0..3, TOKENS);
        rig.hear(peer(BAD), Message::Take(Take { skip, tokens: u64::MAX, ..take(1, 5, false) }));
        rig.hear(peer(BAD), done(key(1, 5)));
        assert_eq!(rig.machine.stats(0).bytes_sent, counted * 3 * 2 * 2 * 3, "{skip}");
    }
}

#[test]
fn a_silent_peer_is_asked_and_then_fenced_once() {
    let (mut rig, _) = busy(Mode::Push);
    rig.hear(peer(GOOD), Message::Ping(1));
    assert_eq!(rig.told(peer(GOOD)), vec![Message::Pong(1)]);
    // Asked after half of the time, fenced after the other half.
    assert_eq!(rig.tick(SILENCE / 2 - 1), Some(SILENCE / 2));
    assert_eq!(rig.sent, []);
    rig.tick(SILENCE / 2);
    assert_eq!(rig.told(peer(GOOD)), vec![Message::Ping(1)]);
    assert_eq!(rig.told(peer(BAD)), vec![Message::Ping(1)]);
    rig.hear(peer(GOOD), Message::Pong(1));
    rig.tick(SILENCE - 1);
    assert_eq!(rig.fences, []);
    rig.tick(SILENCE);
    rig.tick(SILENCE + 1);
    assert_eq!(rig.fences, [peer(BAD)]);
    assert_eq!(rig.machine.unfenced_blocks(), 0);
    rig.machine.not_fenced(peer(BAD));
    assert!(rig.machine.unfenced_blocks() > 0);
    rig.hear(peer(GOOD), Message::Pong(1));
    rig.tick(2 * SILENCE);
    assert_eq!(rig.fences, [peer(BAD), peer(BAD)]);
    rig.hear(peer(BAD), Message::Pong(1));
    assert_eq!(rig.machine.unfenced_blocks(), 0);
}

/// The cache's thread sleeps while a fence lasts.
#[test]
fn a_fence_that_lasts_is_not_looked_at_all_the_time() {
    let (mut rig, _) = busy(Mode::Push);
    rig.tick(SILENCE / 2);
    rig.tick(SILENCE);
    assert_eq!(rig.fences, [peer(GOOD), peer(BAD)]);
    for later in [2 * SILENCE, 3 * SILENCE] {
        assert_eq!(rig.tick(later), Some(later + SILENCE / 2));
    }
    assert_eq!(rig.fences.len(), 2);
}

/// A peer of which nothing was expected may be silent: what is expected of the peer now has all of its time.
#[test]
fn silence_before_a_handoff_does_not_count() {
    let half = SILENCE / 2;
    let mut rig = Rig::new(one());
    [1, 2].into_iter().for_each(|number| rig.hello(peer(number), &one()));
    // The handoff with peer 2 makes the machine look.
    rig.take(TakeSpec { producers: vec![peer(2)], ..take_spec(1, 1, Mode::Push) });
    rig.tick(half - 1);
    rig.take(take_spec(2, 1, Mode::Pull));
    rig.sent.clear();
    rig.tick(half);
    assert_eq!((rig.told(peer(1)), rig.told(peer(2))), (vec![], vec![Message::Ping(1)]));
    rig.hear(peer(2), Message::Pong(1));
    rig.tick(2 * half);
    assert_eq!(
        (rig.told(peer(1)), &rig.fences[..]),
        (vec![Message::Ping(1)], &[][..]),
        "it was not asked yet"
    );
    // A question that was open when the last handoff ended is no question of the next one.
    let key = |rig: &mut Rig, number| {
        rig.sent.clear();
        rig.take(take_spec(number, 1, Mode::Push));
        rig.asked(peer(1))
    };
    rig.cancel(2);
    assert!(rig.end_of(2).is_some());
    rig.hear(peer(2), Message::Pong(1));
    rig.tick(10 * SILENCE);
    rig.hear(peer(2), Message::Pong(1));
    key(&mut rig, 3);
    rig.tick(10 * SILENCE + half);
    assert_eq!((rig.told(peer(1)), &rig.fences[..]), (vec![Message::Ping(2)], &[][..]), "it is asked first");
    rig.hear(peer(2), Message::Pong(1));
    rig.tick(11 * SILENCE);
    assert_eq!(rig.fences, [peer(1)]);
}

/// Caches of one engine follow each other, at both ends: the later one hears the rest of a message that it has not begun
/// to hear, or the beginning of a message whose rest nobody says.
#[test]
fn half_a_message_of_a_predecessor_is_passed_over() {
    let message = Message::Take(take(1, 5, true)).encode().unwrap();
    let all = ferry_kv::messages::parts(&message, 20);
    assert!(all.len() > 3);
    for (from, to) in [(1, all.len()), (all.len() - 1, all.len()), (0, 1), (0, all.len() - 1)] {
        let mut rig = greeted([1], [one()]);
        rig.offer(1, 1);
        for part in &all[from..to] {
            rig.machine.notification(peer(1), part, 0);
        }
        rig.settle();
        assert_eq!(
            rig.machine.state(id(1)),
            HandoffState::Offered { sealed: false, takers: 0 },
            "{from}..{to}"
        );
        rig.hear(peer(1), Message::Take(take(1, 6, true)));
        assert_eq!(
            rig.machine.state(id(1)),
            HandoffState::Offered { sealed: false, takers: 1 },
            "{from}..{to}"
        );
        assert!(rig.fences.is_empty(), "{from}..{to}");
    }
}

/// A transfer that the fence ends is lost with the peer, whatever the engine calls it.
#[test]
fn a_write_that_the_fence_ends_is_lost_with_its_peer() {
    let mut rig = greeted([1], [one()]);
    rig.offer(1, 1);
    rig.seal(1);
    rig.hear(peer(1), Message::Take(take(1, 5, true)));
    // The peer may write the blocks of this take, so its silence is fenced.
    rig.take(take_spec(2, 1, Mode::Push));
    rig.tick(SILENCE / 2);
    rig.tick(SILENCE);
    assert_eq!((rig.posts.len(), &rig.fences[..]), (1, &[peer(1)][..]));
    rig.moved(Err(ferry::status::Error::new(Status::Unreachable, "no path")));
    assert_eq!(rig.end_of(1), Some((End::PeerLost, Status::PeerLost)));
}
