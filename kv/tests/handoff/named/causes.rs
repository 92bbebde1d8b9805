//! Who ended a handoff: all ranks hear the same name, and no offer is SENT of which a take did not get everything.

use ferry::Status;
use ferry_kv::handoff::wire::Message;
use ferry_kv::handoff::{End, Event, Mode, OfferSpec, Other, TakeSpec};

use super::rig::*;
use crate::caches::{layouts, Shape};

const CONSUMER: usize = 2;

/// Two ranks of a producer, and a consumer of one, whose engines have addresses. The peers are 1, 2 and 3.
fn two_and_one() -> Vec<Rig> {
    let all = layouts(Shape::plain(2, 1, 4), 0).into_iter().chain(layouts(Shape::plain(1, 1, 4), 2));
    let mut rigs: Vec<Rig> = all.map(Rig::new).collect();
    for rig in &mut rigs {
        for (number, name) in (1..).zip(["p0:1", "p1:1", "c0:1"]) {
            rig.machine.set_name(peer(number), name.into());
        }
    }
    rigs
}

fn offered(mode: Mode) -> Vec<Rig> {
    let mut rigs = two_and_one();
    for rig in &mut rigs[..CONSUMER] {
        rig.offer(1, 1);
        rig.seal(1);
    }
    rigs[CONSUMER].take(take_spec(1, 2, mode));
    deliver(&mut rigs);
    rigs
}

/// The transfers of one rank of the producer, or into its part of the take, are done.
fn sends(rigs: &mut [Rig], mode: Mode, rank: usize) {
    let at = if mode == Mode::Push { rank } else { CONSUMER };
    rigs[at].posts.sort_by_key(|posted| posted.peer != peer(rank as u64 + 1));
    while rigs[at]
        .posts
        .first()
        .is_some_and(|posted| mode == Mode::Push || posted.peer == peer(rank as u64 + 1))
    {
        moved(rigs, at, Ok(()));
    }
    deliver(rigs);
}

const LOST: Option<(End, Status)> = Some((End::PeerLost, Status::PeerLost));

#[test]
fn a_rank_that_has_sent_all_is_not_sent_if_another_rank_dies() {
    for mode in [Mode::Push, Mode::Pull] {
        let mut rigs = offered(mode);
        sends(&mut rigs, mode, 0);
        assert_eq!(rigs[0].end_of(1), None, "{mode:?}: the take has not ended");
        rigs[CONSUMER].machine.peer_lost(peer(2), "127.0.0.1:5 to 127.0.0.1:6: reset", 0);
        rigs[CONSUMER].settle();
        while !rigs[CONSUMER].posts.is_empty() {
            moved(&mut rigs, CONSUMER, Err(ferry::status::Error::new(Status::PeerLost, "gone")));
        }
        rigs[1].sent.clear();
        deliver(&mut rigs[..]);
        assert_eq!((rigs[CONSUMER].end_of(1), rigs[0].end_of(1)), (LOST, LOST), "{mode:?}");
        let lost = "rank 1 of the producer (p1:1) is lost: 127.0.0.1:5 to 127.0.0.1:6: reset";
        assert_eq!(rigs[CONSUMER].ended(1), (lost.into(), Some(Other { peer: peer(2), rank: 1 })));
        // No connection of another process is in the text.
        let told = "rank 0 of the consumer (c0:1) ended its take: it lost rank 1 of the producer (p1:1)";
        assert_eq!(rigs[0].ended(1), (told.into(), Some(Other { peer: peer(3), rank: 0 })));
    }
}

#[test]
fn a_rank_that_is_sending_hears_who_died() {
    for mode in [Mode::Push, Mode::Pull] {
        let mut rigs = offered(mode);
        rigs[1].abort(1);
        deliver(&mut rigs);
        // The words of the rank that ends its offer come first.
        while let Some(at) = rigs.iter().rposition(|rig| !rig.posts.is_empty()) {
            moved(&mut rigs, at, Err(ferry::status::Error::new(Status::Cancelled, "cancelled")));
            deliver(&mut rigs);
        }
        let why = "rank 1 of the producer (p1:1) ended its offer: the producer aborted the offer";
        assert_eq!(rigs[CONSUMER].ended(1), (why.into(), Some(Other { peer: peer(2), rank: 1 })), "{mode:?}");
        let (told, by) = rigs[0].ended(1);
        assert_eq!(told, format!("rank 0 of the consumer (c0:1) ended its take: {why}"), "{mode:?}");
        assert_eq!(
            (by, rigs[0].end_of(1)),
            (Some(Other { peer: peer(3), rank: 0 }), Some((End::Failed, Status::Cancelled)))
        );
    }
}

#[test]
fn all_ranks_are_sent_when_the_take_has_everything() {
    for mode in [Mode::Push, Mode::Pull] {
        let mut rigs = offered(mode);
        for rank in [0, 1] {
            assert_eq!(rigs[0].end_of(1), None, "{mode:?}");
            sends(&mut rigs, mode, rank);
        }
        for (rig, end) in rigs.iter().zip([End::Sent, End::Sent, End::Received]) {
            assert_eq!(rig.end_of(1), Some((end, Status::Ok)), "{mode:?}");
            assert_eq!(rig.ended(1), (String::new(), None));
        }
    }
}

/// A take that is refused by the consumer itself, or given up, before all of its producers' HELLOs have come: the offers do
/// not wait for it until their lease is over.
#[test]
fn a_take_that_cannot_be_made_ends_the_offers_of_all_ranks() {
    let mut rigs = two_and_one();
    let mut other = rigs.remove(CONSUMER).machine.layout().as_ref().clone();
    other.key.model = "another".into();
    rigs.push(Rig::new(other));
    rigs[0].offer(1, 1);
    rigs[CONSUMER].take(take_spec(1, 2, Mode::Push));
    deliver(&mut rigs);
    assert_eq!(rigs[CONSUMER].end_of(1), Some((End::Failed, Status::Invalid)));
    assert_eq!(rigs[0].end_of(1), Some((End::Failed, Status::Invalid)));
    // The take was there before the offer.
    rigs[1].offer(1, 1);
    assert_eq!(rigs[1].end_of(1), Some((End::Failed, Status::Invalid)));
    let (why, by) = rigs[0].ended(1);
    assert!(why.contains("model differs") && by == Some(Other { peer: peer(3), rank: 0 }), "{why}");
}

#[test]
fn a_take_that_was_not_asked_for_yet_is_given_up_at_the_producer_too() {
    for has_offer in [true, false] {
        let mut rigs = two_and_one();
        rigs[CONSUMER].take(take_spec(1, 2, Mode::Pull));
        rigs[CONSUMER].cancel(1);
        assert_eq!(rigs[CONSUMER].end_of(1), Some((End::Cancelled, Status::Cancelled)));
        rigs[..CONSUMER].iter_mut().filter(|_| has_offer).for_each(|rig| rig.offer(1, 1));
        deliver(&mut rigs);
        rigs[..CONSUMER].iter_mut().filter(|_| !has_offer).for_each(|rig| rig.offer(1, 1));
        for rig in &rigs[..CONSUMER] {
            assert_eq!(rig.end_of(1), Some((End::Failed, Status::Cancelled)), "{has_offer}");
        }
    }
}

/// Seed 500010: a retract crosses the end of a take that was not asked for before.
#[test]
fn a_retract_that_crosses_a_take_that_was_given_up_is_answered() {
    let mut rigs = two_and_one();
    rigs[CONSUMER].take(take_spec(1, 2, Mode::Push));
    // Rank 0 is asked, and rank 1 has not said HELLO.
    let hello = rigs[0].machine.layout().as_ref().clone();
    rigs[CONSUMER].hello(peer(1), &hello);
    let key = rigs[CONSUMER].asked(peer(1));
    rigs[CONSUMER].cancel(1);
    assert_eq!(rigs[CONSUMER].end_of(1), None, "rank 0 may write");
    rigs[CONSUMER].hear(peer(2), Message::Retract { key, epoch: 1, from: 8 });
    assert!(rigs[CONSUMER].fences.is_empty());
    let told = rigs[CONSUMER].told(peer(2));
    assert!(
        matches!(told.last(), Some(Message::Final { epoch: 1, status: Status::Cancelled, .. })),
        "{told:?}"
    );
}

/// Nor does it end the offer of a peer that may not take.
#[test]
fn who_may_not_take_ends_no_offer_by_giving_up() {
    let mut rigs = two_and_one();
    for rig in &mut rigs[..CONSUMER] {
        rig.offer_as(OfferSpec { only: vec![peer(9)], ..offer_spec(1, 1) });
    }
    rigs[CONSUMER].take(take_spec(1, 2, Mode::Pull));
    rigs[CONSUMER].cancel(1);
    deliver(&mut rigs);
    rigs[..CONSUMER].iter().for_each(|rig| assert_eq!(rig.end_of(1), None));
}

/// The tokens that a cache has sent stay when it closes, though its offer does not wait for the end of the take.
#[test]
fn a_producer_that_has_sent_all_may_close() {
    for mode in [Mode::Push, Mode::Pull] {
        let mut rigs = offered(mode);
        sends(&mut rigs, mode, 0);
        rigs[0].machine.close(0);
        rigs[0].settle();
        deliver(&mut rigs);
        assert!(rigs[0].machine.close(0), "{mode:?}: nothing is under way");
        rigs[0].settle();
        deliver(&mut rigs);
        assert_eq!(
            (rigs[0].end_of(1), rigs[CONSUMER].end_of(1)),
            (Some((End::Cancelled, Status::Closed)), None)
        );
        sends(&mut rigs, mode, 1);
        assert_eq!(rigs[CONSUMER].end_of(1), Some((End::Received, Status::Ok)), "{mode:?}");
        assert_eq!(rigs[1].end_of(1), Some((End::Sent, Status::Ok)), "{mode:?}");
    }
}

#[test]
fn layers_that_were_told_are_told_as_they_are_when_a_take_fails() {
    let (mut rig, key) = asking(one(), TakeSpec { tell_layers: true, ..take_spec(1, 1, Mode::Push) });
    rig.hear(peer(1), Message::Data { key, epoch: 0, work: work(0..2, 0..TOKENS) });
    assert_eq!(rig.events, [Event::Layers { id: id(1), layers: 2 }]);
    rig.lost(peer(1));
    // Whole blocks have the third layer too, so none is to be trusted as a whole.
    assert_eq!((rig.end_of(1), rig.valid(1)), (LOST, (0, 4)));
}
