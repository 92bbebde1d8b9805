//! Several ranks of both sides: who ends how, when one of them fails.

use ferry::status::Error;
use ferry::Status;
use ferry_kv::handoff::wire::Message;
use ferry_kv::handoff::{End, Mode, Other};

use super::rig::*;
use crate::caches::{layouts, Shape};

const CONSUMERS: [usize; 2] = [2, 3];

/// Two producers, of a layer or two each, and two consumers, of a head each. Peer 1 is the first one.
fn two_and_two(mode: Mode) -> Vec<Rig> {
    let all = layouts(Shape::plain(1, 2, 4), 0).into_iter().chain(layouts(Shape::plain(2, 1, 4), 2));
    let mut rigs: Vec<Rig> = all.map(Rig::new).collect();
    for rig in &mut rigs[..2] {
        rig.offer(1, 1);
        rig.seal(1);
    }
    rigs[2..].iter_mut().for_each(|rig| rig.take(take_spec(1, 2, mode)));
    deliver(&mut rigs);
    // In the order of the peers.
    rigs.iter_mut().for_each(|rig| rig.posts.sort_by_key(|posted| posted.peer));
    rigs
}

fn ends(rigs: &[Rig]) -> Vec<Option<End>> {
    rigs.iter().map(|rig| rig.end_of(1).map(|(end, _)| end)).collect()
}

fn broken() -> Result<(), Error> {
    Err(Error::new(Status::Partial, "broken"))
}

#[test]
fn one_rank_has_received_and_its_sibling_fails_in_a_pull() {
    let mut rigs = two_and_two(Mode::Pull);
    let [good, bad] = CONSUMERS;
    while !rigs[good].posts.is_empty() {
        moved(&mut rigs, good, Ok(()));
    }
    deliver(&mut rigs);
    assert_eq!(ends(&rigs), [None, None, Some(End::Received), None]);
    assert_eq!(rigs[bad].posts.len(), 2, "one READ of each producer");
    moved(&mut rigs, bad, broken());
    deliver(&mut rigs);
    assert_eq!(ends(&rigs), [Some(End::Failed), None, Some(End::Received), None], "the other READ goes on");
    moved(&mut rigs, bad, Ok(()));
    deliver(&mut rigs);
    assert_eq!(ends(&rigs), [End::Failed, End::Failed, End::Received, End::Failed].map(Some));
    assert_eq!((rigs[good].valid(1), rigs[bad].valid(1)), ((TOKENS, 0), (0, 4)));
}

#[test]
fn one_rank_has_received_and_its_sibling_fails_in_a_push() {
    let mut rigs = two_and_two(Mode::Push);
    let [good, bad] = CONSUMERS;
    for producer in 0..2 {
        let to: Vec<u64> = rigs[producer].posts.iter().map(|posted| posted.peer.raw()).collect();
        assert_eq!(to, CONSUMERS.map(|at| at as u64 + 1));
        moved(&mut rigs, producer, Ok(()));
    }
    deliver(&mut rigs);
    assert_eq!(ends(&rigs), [None, None, Some(End::Received), None]);
    moved(&mut rigs, 0, broken());
    deliver(&mut rigs);
    assert_eq!(ends(&rigs), [Some(End::Failed), None, Some(End::Received), None], "the other WRITE goes on");
    moved(&mut rigs, 1, Ok(()));
    deliver(&mut rigs);
    assert_eq!(ends(&rigs), [End::Failed, End::Failed, End::Received, End::Failed].map(Some));
    assert_eq!((rigs[good].valid(1), rigs[bad].valid(1)), ((TOKENS, 0), (0, 4)));
}

#[test]
fn a_consumer_dies_after_one_of_two_producers_has_sent() {
    for mode in [Mode::Pull, Mode::Push] {
        let mut rigs = two_and_two(mode);
        // Consumer 2 has all, and consumer 3 has what the first producer sends.
        for at in 0..rigs.len() {
            let until = usize::from(mode == Mode::Push && at == 1 || mode == Mode::Pull && at == 3);
            while rigs[at].posts.len() > until {
                moved(&mut rigs, at, Ok(()));
            }
        }
        deliver(&mut rigs);
        assert_eq!(ends(&rigs), [None, None, Some(End::Received), None], "its take needs both producers");
        for producer in [0, 1] {
            rigs[producer].lost(peer(4));
        }
        if mode == Mode::Push {
            assert_eq!(ends(&rigs)[1], None, "a WRITE reads the blocks");
            moved(&mut rigs, 1, Err(Error::new(Status::PeerLost, "gone")));
        }
        let lost = Some(End::PeerLost);
        assert_eq!(ends(&rigs), [lost, lost, Some(End::Received), None]);
        let by = Some(Other { peer: peer(4), rank: 1 });
        assert_eq!(rigs[0].ended(1), ("rank 1 of the consumer is lost: it is gone".into(), by));
    }
}

#[test]
fn a_push_that_is_cancelled_before_any_token_is_answered_at_once() {
    let mut rig = greeted([1], [one()]);
    rig.offer(1, 2);
    rig.hear(peer(1), Message::Take(take(1, 5, true)));
    rig.sent.clear();
    rig.hear(peer(1), cancelling(key(1, 5)));
    assert_eq!(rig.told_status(peer(1)), Some(Status::Cancelled));
    rig.seal(1);
    assert!(rig.posts.is_empty());
    // Its answer is the same when it asks again.
    rig.hear(peer(1), cancelling(key(1, 5)));
    assert_eq!(rig.told_status(peer(1)), Some(Status::Cancelled));
}

#[test]
fn a_cancel_of_a_pull_is_answered_and_changes_nothing() {
    let mut rig = greeted([1], [one()]);
    rig.offer(1, 1);
    rig.hear(peer(1), Message::Take(take(1, 5, false)));
    rig.sent.clear();
    rig.hear(peer(1), cancelling(key(1, 5)));
    assert_eq!(rig.told_status(peer(1)), Some(Status::Cancelled));
    rig.seal(1);
    assert!(matches!(rig.told(peer(1))[..], [Message::Update { .. }]));
    assert_eq!(rig.end_of(1), None);
    rig.hear(peer(1), done(key(1, 5)));
    assert_eq!(rig.end_of(1), Some((End::Sent, Status::Ok)));
}
