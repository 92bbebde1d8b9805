//! The owner alone: layouts, bounds, and what an asker that lies gets.

use super::*;
use crate::wire::Segment;

const BASE: u64 = 1 << 40;

fn digest(key: u8) -> Digest {
    Digest([key; 32])
}

fn wanted(key: u8, segments: &[(u64, u64)]) -> Wanted {
    let segment = |(address, bytes): &(u64, u64)| Segment { address: *address, bytes: *bytes, region: 3 };
    Wanted { digest: digest(key), checksum: None, segments: segments.iter().map(segment).collect() }
}

fn peer(number: u64) -> Asker {
    Some(PeerId::from_raw(number))
}

/// Puts a value, and returns the requests of its READ.
fn put(owner: &mut Owner, key: u8, segments: &[(u64, u64)]) -> Vec<Request> {
    owner.put(peer(1), 7, vec![wanted(key, segments)]);
    let Some(Effect::Move { number, requests, op: Op::Read, .. }) = owner.next_effect() else {
        panic!("no READ")
    };
    owner.moved(number, &[]);
    let Some(Effect::Sum { number, .. }) = owner.next_effect() else { panic!("no sum") };
    owner.summed(number, &[Some(5)]);
    let Some(Effect::Tell { number, .. }) = owner.next_effect() else { panic!("nothing came") };
    owner.told(number);
    assert!(matches!(owner.next_effect(), Some(Effect::Answer { request: 7, .. })));
    requests
}

#[test]
fn requests_cover_segments_and_pieces_that_are_cut_in_different_places() {
    let mut owner = Owner::new(Store::new(64 * 4, 64), BASE);
    put(&mut owner, 1, &[(0, 64)]);
    put(&mut owner, 2, &[(0, 64)]);
    put(&mut owner, 3, &[(0, 64)]);
    owner.remove(None, 0, &[digest(2)]);
    while owner.next_effect().is_some() {}
    // The second unit and the fourth one are free.
    let requests = put(&mut owner, 4, &[(1_000, 30), (2_000, 0), (3_000, 70)]);
    let mut laid: Vec<(u64, u64, u64)> =
        requests.iter().map(|it| (it.remote, it.local - BASE, it.length)).collect();
    laid.sort_unstable();
    assert_eq!(laid.iter().map(|(_, _, bytes)| bytes).sum::<u64>(), 100);
    assert_eq!(laid.iter().map(|(remote, ..)| *remote).collect::<Vec<_>>(), [1_000, 3_000, 3_034]);
    assert!(requests.iter().all(|it| it.remote_region == RegionId::from_raw(3)));
}

#[test]
fn a_put_of_what_the_index_does_not_know_yet_ends_when_it_does() {
    let mut owner = Owner::new(Store::new(64 * 4, 64), BASE);
    owner.put(peer(1), 1, vec![wanted(1, &[(0, 64)])]);
    let Some(Effect::Move { number, .. }) = owner.next_effect() else { panic!("no READ") };
    // One that comes while the value is written, and one that comes while the index is told.
    owner.put(peer(2), 2, vec![wanted(1, &[(0, 64)])]);
    owner.moved(number, &[]);
    let Some(Effect::Sum { number, .. }) = owner.next_effect() else { panic!("no sum") };
    owner.summed(number, &[Some(5)]);
    owner.put(peer(3), 3, vec![wanted(1, &[(0, 64)])]);
    let mut told = Vec::new();
    while let Some(effect) = owner.next_effect() {
        match effect {
            Effect::Tell { number, came } if came == [digest(1).fingerprint()] => told.push(number),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(told.len(), 3);
    told.iter().for_each(|number| owner.told(*number));
    let mut outcomes = Vec::new();
    while let Some(Effect::Answer { request, answers, .. }) = owner.next_effect() {
        outcomes.push((request, answers[0].outcome));
    }
    outcomes.sort_by_key(|(request, _)| *request);
    assert_eq!(outcomes, [(1, Outcome::Ok), (2, Outcome::Here), (3, Outcome::Here)]);
    // What the index knows is here at once.
    owner.put(peer(2), 4, vec![wanted(1, &[(0, 64)])]);
    assert!(matches!(owner.next_effect(), Some(Effect::Answer { request: 4, .. })));
}

#[test]
fn an_asker_with_too_many_requests_is_told_that_the_node_is_full() {
    let mut owner = Owner::new(Store::new(64 * 4, 64), BASE);
    for request in 0..=SERVED_OF_NODE_MAX as u64 {
        owner.put(peer(1), request, vec![wanted(1, &[(0, 64)])]);
    }
    let mut answers = Vec::new();
    while let Some(effect) = owner.next_effect() {
        if let Effect::Answer { request, answers: told, .. } = effect {
            answers.push((request, told[0].outcome));
        }
    }
    assert_eq!(answers, [(SERVED_OF_NODE_MAX as u64, Outcome::Full)]);
    // Another asker has a share of its own.
    owner.have(peer(2), 1, &[digest(1)]);
    assert!(
        matches!(owner.next_effect(), Some(Effect::Answer { answers, .. }) if answers[0].outcome == Outcome::Absent)
    );
}

#[test]
fn an_asker_whose_sum_is_wrong_stores_nothing() {
    let mut owner = Owner::new(Store::new(64 * 4, 64), BASE);
    owner.put(peer(1), 1, vec![Wanted { checksum: Some(4), ..wanted(1, &[(0, 64)]) }]);
    let Some(Effect::Move { number, .. }) = owner.next_effect() else { panic!("no READ") };
    owner.moved(number, &[]);
    // Sums and ends of transfers that are not known change nothing.
    owner.moved(number + 100, &[0]);
    owner.summed(number + 100, &[None]);
    let Some(Effect::Sum { number, .. }) = owner.next_effect() else { panic!("no sum") };
    owner.summed(number, &[Some(5)]);
    assert!(
        matches!(owner.next_effect(), Some(Effect::Answer { answers, .. }) if answers[0].outcome == Outcome::Corrupt)
    );
    assert_eq!(
        (owner.store.len(), owner.store.free_bytes(), owner.leftovers().map(|(_, count)| count)),
        (0, 256, [0; 8])
    );
}

/// Two readers doubt one copy. The repair has come before the second sum is taken.
#[test]
fn a_late_sum_does_not_cost_the_copy_that_came_since() {
    let mut owner = Owner::new(Store::new(64 * 4, 64), BASE);
    put(&mut owner, 1, &[(0, 64)]);
    let doubt = |owner: &mut Owner| {
        owner.doubt(&[digest(1)]);
        let Some(Effect::Sum { number, .. }) = owner.next_effect() else { panic!("no sum") };
        number
    };
    let (first, second) = (doubt(&mut owner), doubt(&mut owner));
    owner.summed(first, &[Some(6)]);
    assert_eq!((owner.store.find(&digest(1)), owner.counts.corrupt), (None, 1));
    while owner.next_effect().is_some() {}
    put(&mut owner, 1, &[(0, 64)]);
    owner.summed(second, &[Some(6)]);
    assert!(owner.store.find(&digest(1)).is_some() && owner.counts.corrupt == 1);
}
