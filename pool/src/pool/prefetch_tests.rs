use super::*;
use crate::index::NodeId;
use crate::store::Store;
use crate::wire::{Hello, Load};

const OTHER: Option<NodeId> = Some(NodeId(7));

fn machine() -> Machine {
    let load = Load { capacity: 1 << 20, free: 1 << 20 };
    let hello =
        Hello { scheme: 1, incarnation: 1, is_member: true, load, cluster: "c".into(), name: "me".into() };
    Machine::new(hello, Store::new(1 << 20, 4096), 0).unwrap()
}

fn end(outcome: Outcome, bytes: u64) -> KeyEnd {
    KeyEnd { outcome, bytes, node: OTHER }
}

/// A prefetch of these keys, whose lengths are known, gets them.
fn getting(machine: &mut Machine, keys: &[Digest], lengths: &[KeyEnd]) -> (Prefetch, Vec<Wanted>) {
    getting_prefix(machine, keys, lengths, false)
}

fn getting_prefix(
    machine: &mut Machine,
    keys: &[Digest],
    lengths: &[KeyEnd],
    is_prefix: bool,
) -> (Prefetch, Vec<Wanted>) {
    let scratch = Segment { address: 4096, bytes: 1 << 20, region: 1 };
    let mut all = Prefetches::default();
    all.add(keys.to_vec(), is_prefix);
    let mut prefetch = all.queue.pop_front().unwrap();
    assert!(matches!(prefetch.next(machine, scratch, 0), Some(Ask::Get { .. })));
    prefetch.take(machine, lengths);
    let Some(Ask::Get { keys, checked }) = prefetch.next(machine, scratch, 0) else { panic!("no get") };
    assert!(checked.iter().all(|is_checked| *is_checked));
    (prefetch, keys)
}

#[test]
fn a_value_that_is_removed_meanwhile_is_not_stored() {
    let mut machine = machine();
    let keys = [Digest([1; 32]), Digest([2; 32])];
    machine.call(Ask::Remove { digests: vec![keys[0]] }, 0);
    let lengths = [end(Outcome::Length, 100), end(Outcome::Length, 200)];
    let (mut prefetch, wanted) = getting(&mut machine, &keys, &lengths);
    let places: Vec<_> = wanted.iter().map(|it| (it.segments[0].address, it.segments[0].bytes)).collect();
    assert_eq!(places, [(4096, 100), (4196, 200)]);
    machine.call(Ask::Remove { digests: vec![keys[1]] }, 0);
    prefetch.take(&machine, &[end(Outcome::Ok, 100), end(Outcome::Ok, 200)]);
    assert_eq!(prefetch.ends, [None, Some(KeyEnd::of(Outcome::Absent))]);
    assert_eq!(prefetch.to_put.iter().map(|item| item.at).collect::<Vec<_>>(), [0]);
}

#[test]
fn each_key_has_the_reason_of_its_miss() {
    let mut machine = machine();
    let keys: Vec<Digest> = (1..=5).map(|nth| Digest([nth; 32])).collect();
    let lengths = [
        end(Outcome::Length, 100),
        KeyEnd::of(Outcome::Unknown),
        end(Outcome::Length, (1 << 20) + 1),
        end(Outcome::Length, 100),
        end(Outcome::Ok, 0),
    ];
    let (mut prefetch, wanted) = getting(&mut machine, &keys, &lengths);
    assert_eq!(wanted.iter().map(|it| it.segments.len()).collect::<Vec<_>>(), [1, 1, 0]);
    prefetch.take(&machine, &[end(Outcome::Length, 9), KeyEnd::of(Outcome::Corrupt), end(Outcome::Ok, 0)]);
    let ends = prefetch.ends.iter().map(|end| end.map(|end| end.outcome)).collect::<Vec<_>>();
    let expected = [Outcome::Evicted, Outcome::Unknown, Outcome::TooLong, Outcome::Corrupt];
    assert_eq!(ends[..4], expected.map(Some));
    assert_eq!(ends[4], None);
}

#[test]
fn values_that_the_scratch_has_no_room_for_come_in_the_next_turn() {
    let mut machine = machine();
    let keys = [Digest([1; 32]), Digest([2; 32])];
    let lengths = [end(Outcome::Length, 400_000), end(Outcome::Length, 700_000)];
    let (mut prefetch, wanted) = getting(&mut machine, &keys, &lengths);
    assert_eq!(wanted.iter().map(|it| it.digest).collect::<Vec<_>>(), keys[..1]);
    let scratch = Segment { address: 4096, bytes: 1 << 20, region: 1 };
    prefetch.take(&machine, &[end(Outcome::Ok, 400_000)]);
    let Some(Ask::Put { keys: put, .. }) = prefetch.next(&mut machine, scratch, 0) else { panic!("no put") };
    assert_eq!(put, wanted);
    prefetch.take(&machine, &[end(Outcome::Ok, 400_000)]);
    let Some(Ask::Get { keys: next, .. }) = prefetch.next(&mut machine, scratch, 0) else { panic!("no get") };
    assert_eq!((next.len(), next[0].digest, next[0].segments[0].address), (1, keys[1], 4096));
}

#[test]
fn nothing_of_a_prefix_is_stored_behind_a_value_that_could_not_be_got() {
    let mut machine = machine();
    let keys: Vec<Digest> = (1..=4).map(|nth| Digest([nth; 32])).collect();
    // The last one comes in a turn of its own.
    let lengths = [100, 100, 100, 1 << 20].map(|bytes| end(Outcome::Length, bytes));
    let (mut prefetch, wanted) = getting_prefix(&mut machine, &keys, &lengths, true);
    assert_eq!(wanted.len(), 3);
    let absent = KeyEnd::of(Outcome::Absent);
    prefetch.take(&machine, &[end(Outcome::Ok, 100), KeyEnd::of(Outcome::Evicted), end(Outcome::Ok, 100)]);
    assert_eq!(prefetch.to_put.iter().map(|item| item.at).collect::<Vec<_>>(), [0]);
    assert!(prefetch.to_bring.is_empty());
    assert_eq!(prefetch.ends, [None, Some(KeyEnd::of(Outcome::Evicted)), Some(absent), Some(absent)]);
}

#[test]
fn a_value_without_room_costs_no_other_one() {
    let mut machine = machine();
    let segments = vec![Segment { address: 4096, bytes: 4096, region: 1 }];
    let held = Wanted { digest: Digest([9; 32]), checksum: Some(1), segments };
    machine.call(Ask::Put { keys: vec![held.clone()], replicas: 1, preferred: None }, 0);
    let number = machine.take_actions().into_iter().find_map(|action| match action {
        crate::node::Action::Move { number, .. } => Some(number),
        _ => None,
    });
    machine.moved(number.expect("the value is copied"), &[], 0);
    let keys = [Digest([1; 32]), Digest([2; 32])];
    // All of the node's memory, of which eviction keeps a part free.
    let lengths = [end(Outcome::Length, 1 << 20), end(Outcome::Length, 100)];
    let (prefetch, wanted) = getting(&mut machine, &keys, &lengths);
    assert_eq!(prefetch.ends[0].map(|end| end.outcome), Some(Outcome::Full));
    assert_eq!(wanted.iter().map(|it| it.digest).collect::<Vec<_>>(), keys[1..]);
    assert!(machine.store().find(&held.digest).is_some(), "nothing was evicted in vain");
}

#[test]
fn a_batch_has_no_more_of_a_tenant_than_its_quota() {
    let tag = crate::key::TenantTag([9; 8]);
    let key = |nth, tag| Digest::tagged([nth; 32], tag);
    let mut store = Store::new(1 << 20, 4096);
    store.set_quotas(&[(tag, 3 * 4096)]);
    let mut machine = Machine::new(machine().me().clone(), store, 0).unwrap();
    let other = crate::key::TenantTag([8; 8]);
    let keys =
        [key(1, tag), key(2, tag), key(3, other), key(4, tag), key(5, tag), key(6, tag), key(7, other)];
    let lengths = [4096, 4096, 4096, 4097 * 3, 4096, 1, 4096].map(|bytes| end(Outcome::Length, bytes));
    let (prefetch, wanted) = getting(&mut machine, &keys, &lengths);
    let places: Vec<u8> = wanted.iter().map(|it| it.digest.0[0]).collect();
    assert_eq!(places, [1, 2, 3, 5, 7]);
    let ends = [3, 5].map(|at: usize| prefetch.ends[at].map(|end| end.outcome));
    assert_eq!(ends, [Some(Outcome::TooLong), Some(Outcome::Full)]);
}
