//! The limits that a test can reach, and that what waits for room goes on.

use ferry::Status;
use ferry_kv::handoff::limits::{
    ANSWERS_BEFORE_PONG_MAX, ANSWERS_MAX, GREETINGS_MAX, IN_FLIGHT_OF_PART_MAX, IN_FLIGHT_OF_PEER_MAX,
    TAKERS_MAX, TOMBSTONE_NS, WAITING_MAX, WAITING_OF_PEER_MAX,
};
use ferry_kv::handoff::wire::{Key, Message, Take};
use ferry_kv::handoff::{End, HandoffId, HandoffState, Mode, OfferSpec, Owner};

use super::rig::*;

fn wide(number: u64) -> HandoffId {
    let mut bytes = [9; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    HandoffId::from_bytes(bytes)
}

fn waiting(number: u64) -> Message {
    Message::Take(Take { key: Key { id: wide(number), take: 5 }, ..take(0, 5, false) })
}

#[test]
fn takers_are_one_to_64() {
    let mut rig = Rig::new(one());
    for (takers, is_good) in [(0, false), (1, true), (TAKERS_MAX as u32, true), (65, false)] {
        let spec = OfferSpec { id: wide(takers.into()), ..offer_spec(0, takers) };
        let offered = rig.machine.offer(spec, 0);
        assert_eq!(offered.is_ok(), is_good, "{takers}");
    }
}

#[test]
fn takes_of_a_peer_that_wait_are_bounded_and_counted_back() {
    let mut rig = Rig::new(one());
    let most = WAITING_OF_PEER_MAX as u64;
    for number in 0..most {
        rig.hear(peer(1), waiting(number));
        if number < most - 1 {
            // The same again is not another one.
            rig.hear(peer(1), waiting(number.min(3)));
        }
    }
    assert_eq!(rig.told_end(peer(1)), None);
    rig.hear(peer(1), waiting(most));
    assert_eq!(rig.told_status(peer(1)), Some(Status::Limit));
    rig.hear(peer(2), waiting(most));
    assert_eq!(rig.told_end(peer(2)), None);
    // Room again: one is cancelled, one has its offer.
    rig.hear(peer(1), cancelling(Key { id: wide(0), take: 5 }));
    rig.offer_as(OfferSpec { id: wide(1), ..offer_spec(0, 1) });
    rig.sent.clear();
    for (number, status) in [(most + 1, None), (most + 2, None), (most + 3, Some(Status::Limit))] {
        rig.hear(peer(1), waiting(number));
        assert_eq!(rig.told_status(peer(1)), status);
    }
    rig.lost(peer(1));
    rig.hear(peer(1), waiting(most + 4));
    assert_eq!(rig.told_end(peer(1)), None, "a new session waits anew");
}

#[test]
fn takes_that_wait_are_bounded_together() {
    let mut rig = Rig::new(one());
    for number in 0..WAITING_MAX as u64 {
        rig.hear(peer(1 + number / WAITING_OF_PEER_MAX as u64), waiting(number));
    }
    assert_eq!(rig.sent, []);
    rig.hear(peer(100), waiting(1_000_000));
    assert_eq!(rig.told_status(peer(100)), Some(Status::Limit));
    rig.lost(peer(1));
    rig.hear(peer(100), waiting(1_000_000));
    assert_eq!(rig.told_end(peer(100)), None);
}

#[test]
fn a_part_has_four_writes_in_flight_and_the_rest_follow() {
    let mut rig = greeted([1], [one()]);
    rig.offer(1, 1);
    rig.hear(peer(1), Message::Take(take(1, 5, true)));
    // Each layer and block by itself, so that none move together.
    for tokens in [4, 8] {
        for layer in 0..3 {
            rig.machine.offer_ready(id(1), layer..layer + 1, tokens, 0).unwrap();
        }
    }
    rig.settle();
    rig.seal(1);
    let mut count = 0;
    while !rig.posts.is_empty() {
        assert!(rig.posts.len() <= IN_FLIGHT_OF_PART_MAX as usize);
        count += 1;
        assert!(count > 1 || rig.posts.len() == IN_FLIGHT_OF_PART_MAX as usize);
        rig.moved(Ok(()));
    }
    assert!(count > 4);
    rig.hear(peer(1), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
}

#[test]
fn a_part_has_four_reads_in_flight_and_the_rest_follow() {
    let (mut rig, key) = asking(one(), take_spec(1, 1, Mode::Pull));
    for ready in [[4, 0, 0], [4, 4, 0], [4, 4, 4], [8, 4, 4], [8, 8, 8], [16, 16, 16]] {
        let added = if ready[1] == 0 { blocks(0..4) } else { vec![Default::default()] };
        rig.hear(peer(1), Message::Update { key, epoch: 0, ready: ready.to_vec(), added });
    }
    assert_eq!(rig.posts.len(), IN_FLIGHT_OF_PART_MAX as usize);
    while !rig.posts.is_empty() {
        rig.moved(Ok(()));
        assert!(rig.posts.len() <= IN_FLIGHT_OF_PART_MAX as usize);
    }
    assert_eq!(rig.end_of(1), Some((End::Received, Status::Ok)));
}

#[test]
fn a_peer_has_64_transfers_in_flight_and_the_rest_follow() {
    let mut rig = Rig::new(spacious());
    rig.hello(peer(1), &one());
    rig.hello(peer(2), &one());
    for number in 1..=100 {
        if number % 2 == 0 {
            rig.offer(number, 1);
            rig.seal(number);
            rig.hear(peer(1), Message::Take(take(number, 5, true)));
        } else {
            rig.take(take_spec(number, 1, Mode::Pull));
            let key = rig.asked(peer(1));
            rig.hear(peer(1), update(key, TOKENS));
        }
    }
    assert_eq!(rig.posts.len(), IN_FLIGHT_OF_PEER_MAX as usize);
    rig.offer(200, 1);
    rig.seal(200);
    rig.hear(peer(2), Message::Take(take(200, 5, true)));
    let other = rig.posts.pop().unwrap();
    assert_eq!(other.peer, peer(2), "another peer has room of its own");
    while !rig.posts.is_empty() {
        rig.moved(Ok(()));
        assert!(rig.posts.len() <= IN_FLIGHT_OF_PEER_MAX as usize);
    }
    (1..=50).for_each(|half| rig.hear(peer(1), done(key(2 * half, 5))));
    assert!((1..=100).all(|number| rig.end_of(number).is_some()));
}

#[test]
fn news_wait_for_room_and_are_told_together() {
    let mut rig = greeted([1], [one()]);
    rig.holds_messages = true;
    rig.offer(1, 1);
    rig.hear(peer(1), Message::Take(take(1, 5, false)));
    rig.fill(peer(1));
    rig.told(peer(1));
    rig.machine.offer_ready(id(1), 0..3, 4, 0).unwrap();
    rig.ready(1, 0..3, 8);
    assert_eq!(rig.told(peer(1)), vec![], "no room");
    for _ in 0..3 {
        rig.machine.sent(peer(1), None, Ok(()), 0);
        rig.settle();
    }
    let news = rig.told(peer(1));
    assert!(matches!(&news[..], [Message::Update { ready, .. }] if *ready == [8, 8, 8]), "{news:?}");
}

#[test]
fn an_id_that_has_ended_is_free_again_after_ten_minutes() {
    let mut rig = Rig::new(one());
    rig.offer(1, 1);
    rig.machine.offer_cancel(id(1), 5).unwrap();
    rig.settle();
    rig.tick(TOMBSTONE_NS + 4);
    assert_eq!(rig.machine.status(id(1)), HandoffState::Ended(End::Cancelled));
    rig.tick(TOMBSTONE_NS + 5);
    assert_eq!(rig.machine.status(id(1)), HandoffState::Unknown);
}

#[test]
fn a_push_writes_nothing_while_its_messages_have_no_room() {
    let mut rig = greeted([1], [one()]);
    rig.offer(1, 1);
    rig.hear(peer(1), Message::Take(take(1, 5, true)));
    rig.holds_messages = true;
    rig.fill(peer(1));
    rig.seal(1);
    assert_eq!(rig.posts.len(), 0, "its DATA would have no room");
    rig.machine.sent(peer(1), None, Ok(()), 0);
    rig.settle();
    assert_eq!(rig.posts.len(), 1);
}

/// A peer that only asks is not answered for ever: neither memory nor the engine's room for messages is its own.
#[test]
fn answers_that_a_peer_does_not_take_are_bounded() {
    let of_nothing = |number: u64| Key { id: wide(number), take: 5 };
    let asks: [fn(Key) -> Message; 3] = [
        cancelling,
        |key| Message::Retract { key, epoch: 1, from: 0 },
        // A take of another incarnation of this cache.
        |key| Message::Take(Take { key, incarnation: INCARNATION + 1, ..take(0, 5, false) }),
    ];
    for ask in asks {
        let mut rig = Rig::new(one());
        rig.holds_messages = true;
        rig.hello(peer(1), &one());
        let greeted = rig.sent.len();
        (0..10_000).for_each(|number| rig.hear(peer(1), Message::Ping(number)));
        assert_eq!(rig.sent.len() - greeted, ANSWERS_BEFORE_PONG_MAX as usize);
        // There is room again, for the answer to the last one.
        rig.machine.sent(peer(1), Some(Owner::Answer), Ok(()), 0);
        rig.settle();
        assert_eq!(rig.sent.last(), Some(&(peer(1), Message::Pong(9_999))));
        rig.hear(peer(1), Message::Ping(1));
        assert_eq!(rig.sent.len() - greeted, ANSWERS_BEFORE_PONG_MAX as usize + 1);
        let more = u64::from(ANSWERS_MAX - ANSWERS_BEFORE_PONG_MAX);
        (0..more).for_each(|number| rig.hear(peer(1), ask(of_nothing(number))));
        assert_eq!((rig.sent.len() - greeted, &rig.fences[..]), (ANSWERS_MAX as usize + 1, &[][..]));
        (0..10).for_each(|number| rig.hear(peer(1), ask(of_nothing(number))));
        assert_eq!((rig.sent.len() - greeted, &rig.fences[..]), (ANSWERS_MAX as usize + 1, &[peer(1)][..]));
        // Another peer is answered.
        rig.hear(peer(2), Message::Ping(1));
        assert_eq!(rig.told(peer(2)), [Message::Pong(1)]);
    }
}

#[test]
fn greetings_that_a_peer_does_not_take_are_bounded() {
    let hello = |incarnation| {
        let layout = Box::new(one());
        Message::Hello { incarnation, regions: Vec::new(), layout }
    };
    let mut rig = Rig::new(one());
    rig.holds_messages = true;
    let most = u64::from(GREETINGS_MAX);
    (0..most).for_each(|incarnation| rig.hear(peer(1), hello(incarnation)));
    assert_eq!((rig.sent.len(), &rig.fences[..]), (most as usize, &[][..]));
    (most..2 * most).for_each(|incarnation| rig.hear(peer(1), hello(incarnation)));
    assert_eq!((rig.sent.len(), &rig.fences[..]), (most as usize, &[peer(1)][..]));
    // A peer of another version is told this one's as often, and does no harm.
    let mut other = hello(1).encode().unwrap();
    other[1] ^= 2;
    let mut rig = Rig::new(one());
    rig.holds_messages = true;
    (0..2 * most).for_each(|_| rig.hear_bytes(peer(1), &other));
    assert_eq!((rig.sent.len(), &rig.fences[..]), (most as usize, &[][..]));
    rig.machine.sent(peer(1), Some(Owner::Greeting), Ok(()), 0);
    (0..2).for_each(|_| rig.hear_bytes(peer(1), &other));
    assert_eq!(rig.sent.len(), most as usize + 1);
}

/// A layout is planned once, whatever its peer says meanwhile.
#[test]
fn a_hello_with_a_layout_that_is_known_needs_no_plans() {
    let mut rig = Rig::new(one());
    let [first, second] = [one(), tp(2).remove(0)];
    let has = |rig: &Rig| [&first, &second].map(|layout| rig.machine.has_plans(peer(1), layout));
    assert_eq!(has(&rig), [false, false]);
    rig.hello(peer(1), &first);
    assert_eq!(has(&rig), [true, false]);
    rig.hello(peer(1), &second);
    (0..100).for_each(|_| rig.hello(peer(1), &first));
    assert_eq!(has(&rig), [true, true]);
    // The same once more is no news, and gets no answer.
    rig.sent.clear();
    rig.hello(peer(1), &first);
    assert_eq!(rig.sent, []);
    rig.hear(peer(1), Message::Goodbye);
    assert_eq!(has(&rig), [true, false]);
    assert!(!rig.machine.has_plans(peer(2), &first));
}
