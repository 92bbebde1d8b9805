//! The end of a take from several producers: what is complete of one of them may be taken back while the others send, and
//! no take is RECEIVED with tokens of before and tokens of after.

use ferry::Status;
use ferry_kv::handoff::wire::{Key, Message};
use ferry_kv::handoff::{End, HandoffState, Mode};

use super::rig::*;

const A: u64 = 1;
const B: u64 = 2;
const RECEIVED: Option<(End, Status)> = Some((End::Received, Status::Ok));
const LOST: Option<(End, Status)> = Some((End::PeerLost, Status::PeerLost));

/// A take from two producers, of which the first has sent everything.
fn half_complete(mode: Mode) -> (Rig, Key) {
    let mut rig = greeted(1.., tp(2));
    rig.take(take_spec(1, 2, mode));
    let key = rig.asked(peer(A));
    sends(&mut rig, mode, key, A, 0);
    rig.sent.clear();
    (rig, key)
}

/// A producer sends everything, in this epoch.
fn sends(rig: &mut Rig, mode: Mode, key: Key, number: u64, epoch: u64) {
    let message = match mode {
        Mode::Push => Message::Data { key, epoch, work: work(0..3, 0..TOKENS) },
        _ => Message::Update { key, epoch, ready: vec![TOKENS; 3], added: blocks(0..4) },
    };
    rig.hear(peer(number), message);
    rig.all_moved();
}

#[test]
fn a_producer_that_is_lost_before_the_last_part_is_complete_ends_the_take() {
    for mode in [Mode::Push, Mode::Pull] {
        let (mut rig, key) = half_complete(mode);
        rig.lost(peer(A));
        if mode == Mode::Push {
            // The WRITEs of the other one end first.
            assert!(matches!(rig.told(peer(B)).last(), Some(Message::Cancel { .. })));
            rig.hear(peer(B), ended(key, Status::Cancelled));
        }
        assert_eq!(rig.end_of(1), LOST, "{mode:?}");
    }
}

#[test]
fn the_producer_of_the_earlier_part_is_asked_at_the_end() {
    for mode in [Mode::Push, Mode::Pull] {
        let (mut rig, key) = half_complete(mode);
        sends(&mut rig, mode, key, B, 0);
        assert_eq!(rig.told(peer(A)), [Message::Ping(1)], "{mode:?}");
        assert!(!rig.told(peer(B)).contains(&Message::Ping(1)), "{mode:?}");
        assert_eq!(
            (rig.end_of(1), rig.machine.status(id(1))),
            (None, HandoffState::Taking { valid_tokens: TOKENS })
        );
        // It had taken tokens back: its part is not complete any more, and now the other one is the earlier.
        rig.hear(peer(A), Message::Retract { key, epoch: 1, from: 8 });
        rig.hear(peer(A), Message::Pong(1));
        assert_eq!(
            (rig.end_of(1), rig.machine.status(id(1))),
            (None, HandoffState::Taking { valid_tokens: 8 })
        );
        rig.sent.clear();
        sends(&mut rig, mode, key, A, 1);
        assert_eq!(rig.end_of(1), None, "{mode:?}");
        rig.pongs();
        assert_eq!(rig.end_of(1), RECEIVED, "{mode:?}");
    }
}

#[test]
fn the_answer_to_an_earlier_ping_or_to_none_does_not_count() {
    let (mut rig, key) = half_complete(Mode::Push);
    sends(&mut rig, Mode::Push, key, B, 0);
    assert_eq!(rig.told(peer(A)), [Message::Ping(1)]);
    rig.hear(peer(A), Message::Retract { key, epoch: 1, from: 8 });
    sends(&mut rig, Mode::Push, key, A, 1);
    rig.hear(peer(B), Message::Retract { key, epoch: 1, from: 8 });
    sends(&mut rig, Mode::Push, key, B, 1);
    assert_eq!(rig.told(peer(A)).last(), Some(&Message::Ping(2)));
    for number in [1, 3, u64::MAX] {
        rig.hear(peer(A), Message::Pong(number));
        assert_eq!(rig.end_of(1), None, "{number}");
    }
    rig.hear(peer(A), Message::Pong(2));
    assert_eq!(rig.end_of(1), RECEIVED);
}

#[test]
fn an_earlier_producer_that_does_not_answer_is_given_up() {
    let (mut rig, key) = half_complete(Mode::Push);
    sends(&mut rig, Mode::Push, key, B, 0);
    for at in 1..3 {
        rig.hear(peer(B), Message::Ping(at));
        rig.tick(at * SILENCE / 2);
    }
    assert_eq!((rig.end_of(1), &rig.fences[..]), (LOST, &[][..]));
}

/// A cache that is closed has ended its offers: what it sent stays, and its session may end.
#[test]
fn a_producer_that_said_goodbye_is_not_asked() {
    for asked in [false, true] {
        let (mut rig, key) = half_complete(Mode::Push);
        if asked {
            sends(&mut rig, Mode::Push, key, B, 0);
            assert_eq!(rig.end_of(1), None);
        }
        rig.hear(peer(A), Message::Goodbye);
        if !asked {
            rig.lost(peer(A));
            assert_eq!(rig.end_of(1), None);
            sends(&mut rig, Mode::Push, key, B, 0);
        }
        assert_eq!((rig.end_of(1), rig.fences.len()), (RECEIVED, 0), "{asked}");
    }
}

/// Once a taker is given up, nobody waits for its answer to a retract: it learns that, whenever it hears again.
#[test]
fn a_silent_taker_that_had_everything_is_told_that_it_is_given_up() {
    let mut rig = greeted([A], [one()]);
    rig.offer(1, 2);
    rig.ready(1, 0..3, TOKENS);
    rig.hear(peer(A), Message::Take(take(1, 5, true)));
    rig.all_moved();
    rig.sent.clear();
    for half in 1..3 {
        rig.tick(half * SILENCE / 2);
    }
    assert_eq!(rig.told_end(peer(A)).map(|(status, _)| status), Some(Status::PeerLost));
    let number = rig.retract(1, 8);
    assert!(rig.machine.is_retracted(id(1), number).unwrap() && rig.fences.is_empty());
}

/// The consumer's side of it.
#[test]
fn a_take_that_a_producer_gave_up_ends() {
    for mode in [Mode::Push, Mode::Pull] {
        let (mut rig, key) = half_complete(mode);
        rig.hear(peer(A), ended(key, Status::PeerLost));
        if mode == Mode::Push {
            rig.hear(peer(B), ended(key, Status::Cancelled));
        }
        assert_eq!(rig.end_of(1), LOST, "{mode:?}");
    }
}
