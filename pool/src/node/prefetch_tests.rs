use super::*;
use crate::index::NodeId;
use crate::limits::{REPAIRED_AT_ONCE, REPAIRS_MAX};
use crate::store::Store;
use crate::wire::{Hello, Load};

const OTHER: Option<NodeId> = Some(NodeId(7));

fn machine() -> Machine {
    let load = Load { capacity: 1 << 20, free: 1 << 20, is_draining: false };
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

/// A node that holds values of these lengths in its memory, and knows another node.
fn holding(lengths: &[u64]) -> (Machine, Vec<Digest>) {
    let mut machine = machine();
    let load = Load { capacity: 1 << 20, free: 1 << 20, is_draining: false };
    let other =
        Hello { scheme: 1, incarnation: 2, is_member: true, load, cluster: "c".into(), name: "other".into() };
    let digests: Vec<Digest> = (1..=lengths.len() as u8).map(|number| Digest([number; 32])).collect();
    for (digest, bytes) in digests.iter().zip(lengths) {
        let segments = vec![Segment { address: 4096, bytes: *bytes, region: 1 }];
        let keys = vec![Wanted { digest: *digest, checksum: Some(u64::from(digest.0[0])), segments }];
        machine.take_actions();
        machine.call(Ask::Put { keys, replicas: 1, preferred: None }, 0);
        let number = machine.take_actions().into_iter().find_map(|action| match action {
            crate::node::Action::Move { number, .. } => Some(number),
            _ => None,
        });
        machine.moved(number.expect("the value is copied"), &[], 0);
    }
    assert_eq!(machine.stats().objects, lengths.len() as u64);
    machine.heard(ferry::types::PeerId::from_raw(1), crate::wire::Message::Hello(other), 0);
    (machine, digests)
}

/// The next call of a drain.
fn next(prefetch: &mut Prefetch, machine: &mut Machine) -> Option<Ask> {
    prefetch.next(machine, Segment { address: 1 << 30, bytes: 1 << 20, region: 1 }, 0)
}

#[test]
fn a_drain_puts_values_elsewhere_and_drops_them_then() {
    let (mut machine, digests) = holding(&[100, 200, 300]);
    machine.drain(true, None, 0).unwrap();
    let (purpose, keys) = machine.next_own(0).unwrap();
    assert_eq!((purpose, &keys), (Purpose::Drain, &vec![digests[2], digests[1], digests[0]]));
    let mut prefetch = Prefetches::default().new_one(purpose, keys, false);
    let Some(Ask::Get { keys: got, checked }) = next(&mut prefetch, &mut machine) else { panic!("no get") };
    assert_eq!((got[0].segments[0].bytes, checked), (300, vec![true; 3]));
    let ok = |bytes| end(Outcome::Ok, bytes);
    // The second one fails, and stays.
    prefetch.take(&machine, &[ok(300), KeyEnd::of(Outcome::Failed), ok(100)]);
    let Some(Ask::Put { keys: put, preferred, .. }) = next(&mut prefetch, &mut machine) else {
        panic!("no put")
    };
    assert_eq!(put.iter().map(|it| it.digest).collect::<Vec<_>>(), [digests[2], digests[0]]);
    // The checksum is that of the first put, whatever became of the bytes on their way.
    assert_eq!(
        (put.iter().map(|it| it.checksum).collect::<Vec<_>>(), preferred),
        (vec![Some(3), Some(1)], None)
    );
    prefetch.take(&machine, &[ok(300), end(Outcome::Here, 0)]);
    assert_eq!(next(&mut prefetch, &mut machine), None);
    assert_eq!(machine.stats().objects, 3, "nothing went before it was elsewhere");
    machine.own_ended(purpose, &prefetch.digests, &prefetch.ends, 0);
    assert_eq!((machine.held(), machine.drained()), (vec![digests[1]], None));
    assert_eq!(machine.next_own(0), None);
    let drained = crate::node::Drained { moved: 1, here: 1, left: 1, copies: true };
    assert_eq!(machine.drained(), Some(drained));
}

#[test]
fn a_value_that_is_removed_while_it_is_moved_is_removed_elsewhere() {
    let (mut machine, digests) = holding(&[100, 200]);
    machine.drain(true, None, 0).unwrap();
    let (purpose, keys) = machine.next_own(0).unwrap();
    let mut prefetch = Prefetches::default().new_one(purpose, keys, false);
    let removal = |machine: &mut Machine, digest| {
        let asked = vec![NodeId::of("other").0];
        let message = crate::wire::Message::Remove { request: 9, removal: 5, asked, digests: vec![digest] };
        machine.heard(ferry::types::PeerId::from_raw(1), message, 0);
    };
    let removals_sent = |machine: &mut Machine| {
        let is_removal = |action: &crate::node::Action| match action {
            crate::node::Action::Send { message, .. } => message[0] == 12,
            _ => false,
        };
        machine.take_actions().iter().filter(|action| is_removal(action)).count()
    };
    next(&mut prefetch, &mut machine).expect("a get");
    prefetch.take(&machine, &[end(Outcome::Ok, 200), end(Outcome::Ok, 100)]);
    next(&mut prefetch, &mut machine).expect("a put");
    removal(&mut machine, digests[1]);
    prefetch.take(&machine, &[end(Outcome::Ok, 200), end(Outcome::Ok, 100)]);
    let removed = Ask::Remove { digests: vec![digests[1]] };
    assert_eq!(next(&mut prefetch, &mut machine), Some(removed));
    assert_eq!(next(&mut prefetch, &mut machine), None);
    machine.own_ended(purpose, &prefetch.digests, &prefetch.ends, 0);
    // A removal that comes later has missed the value as well: the other node hears it again, once.
    removals_sent(&mut machine);
    removal(&mut machine, digests[0]);
    assert_eq!(removals_sent(&mut machine), 1);
    removal(&mut machine, digests[0]);
    assert_eq!(removals_sent(&mut machine), 0);
}

#[test]
fn repairs_come_in_short_turns_behind_the_programs_prefetches_and_are_bounded() {
    let mut machine = machine();
    let mut all = Prefetches {
        scratch: Some(Segment { address: 4096, bytes: 4096, region: 1 }),
        ..Prefetches::default()
    };
    let digest = |number: usize| {
        let mut digest = Digest([7; 32]);
        digest.0[..8].copy_from_slice(&(number as u64).to_le_bytes());
        digest
    };
    for number in 0..REPAIRS_MAX + 3 {
        machine.owner.was_bad(digest(number));
    }
    let owner = machine.stats().owner;
    assert_eq!((owner.corrupt, owner.repairs_failed), (REPAIRS_MAX as u64 + 3, 3));
    all.add(vec![digest(5_000)], false);
    assert!(all.go_on(&mut machine, false, 0).is_empty());
    assert_eq!(all.queue.iter().map(|it| it.purpose).collect::<Vec<_>>(), [Purpose::Program]);
    // A removed value is not brought again.
    machine.call(Ask::Remove { digests: (0..REPAIRED_AT_ONCE).map(digest).collect() }, 0);
    let (mut over, mut turns) = (Vec::new(), 0);
    while let Some(ended) = machine.take_end() {
        if all.take(&machine, ended.call, &ended.keys).is_none() {
            continue;
        }
        over.extend(all.go_on(&mut machine, false, 0));
        turns += usize::from(all.call.is_some());
    }
    assert_eq!((over.len(), over[0].keys[0].outcome), (1, Outcome::Absent));
    // Nobody else has them, so all end quietly.
    assert_eq!(turns, (REPAIRS_MAX - REPAIRED_AT_ONCE) / REPAIRED_AT_ONCE);
    let owner = machine.stats().owner;
    assert_eq!((owner.repaired, owner.repairs_failed, machine.has_own_work()), (0, 3, false));
}

#[test]
fn the_nodes_own_work_takes_turns_with_the_programs_prefetches() {
    let mut machine = machine();
    let scratch = Some(Segment { address: 4096, bytes: 4096, region: 1 });
    let mut all = Prefetches { scratch, ..Prefetches::default() };
    all.add(vec![Digest([1; 32])], false);
    all.add(vec![Digest([2; 32])], false);
    let mut order = Vec::new();
    all.go_on(&mut machine, false, 0);
    machine.owner.was_bad(Digest([3; 32]));
    while let Some(ended) = machine.take_end() {
        order.extend(all.queue.front().map(|it| it.purpose));
        all.take(&machine, ended.call, &ended.keys).expect("a call of a prefetch");
        all.go_on(&mut machine, false, 0);
    }
    assert_eq!(order, [Purpose::Program, Purpose::Repair, Purpose::Program]);
}

#[test]
fn a_drain_whose_last_target_is_lost_ends_and_the_node_takes_puts_again() {
    let (mut machine, digests) = holding(&[100]);
    machine.drain(true, None, 0).unwrap();
    assert!(machine.is_draining());
    machine.lost(ferry::types::PeerId::from_raw(1), 0);
    assert_eq!(machine.next_own(0), None);
    let left = |machine: &Machine| machine.drained().map(|drained| drained.left);
    assert_eq!((left(&machine), machine.is_draining(), machine.held()), (Some(1), false, digests));
    // The caller had given up waiting: the next call tells how it ended, and only the one after it begins another.
    machine.drain(true, None, 0).unwrap();
    assert_eq!(machine.take_drained().map(|drained| drained.left), Some(1));
    assert!(machine.drain(true, None, 0).unwrap_err().message.contains("the only node"));
}

#[test]
fn what_a_prefetch_has_in_the_scratch_when_the_node_is_drained_is_not_put() {
    let (mut machine, _) = holding(&[]);
    let keys = [Digest([9; 32])];
    let (mut prefetch, _) = getting(&mut machine, &keys, &[end(Outcome::Length, 100)]);
    machine.drain(true, None, 0).unwrap();
    prefetch.take(&machine, &[end(Outcome::Ok, 100)]);
    assert_eq!(next(&mut prefetch, &mut machine), None);
    assert_eq!(prefetch.ends[0].map(|end| end.outcome), Some(Outcome::Full));
}

#[test]
fn without_memory_for_it_the_nodes_own_work_is_given_up_and_counted() {
    let (mut machine, digests) = holding(&[100]);
    machine.owner.was_bad(Digest([9; 32]));
    let all = Prefetches::default();
    assert!(all.lacks_scratch(&machine));
    machine.give_up_own_work();
    assert_eq!((machine.stats().owner.repairs_failed, all.lacks_scratch(&machine)), (1, false));
    machine.drain(true, None, 0).unwrap();
    assert!(all.lacks_scratch(&machine));
    machine.give_up_own_work();
    assert_eq!((machine.drained().map(|drained| drained.left), machine.held()), (Some(1), digests));
}

#[test]
fn a_drained_node_takes_no_put_not_even_of_what_it_has() {
    let (mut machine, digests) = holding(&[100]);
    let peer = ferry::types::PeerId::from_raw(1);
    let put = |machine: &mut Machine, digest| {
        machine.take_actions();
        let segments = vec![Segment { address: 4096, bytes: 100, region: 1 }];
        let keys = vec![Wanted { digest, checksum: None, segments }];
        machine.heard(peer, crate::wire::Message::Put { request: 1, keys }, 0);
        machine.take_actions().into_iter().find_map(|action| match action {
            crate::node::Action::Send { message, .. } => match crate::wire::Message::decode(&message) {
                Ok(crate::wire::Message::Answer { answers, .. }) => Some(answers[0].outcome),
                _ => None,
            },
            _ => None,
        })
    };
    assert_eq!(put(&mut machine, digests[0]), Some(Outcome::Here));
    machine.drain(true, None, 0).unwrap();
    assert_eq!(put(&mut machine, digests[0]), Some(Outcome::Full));
    assert_eq!(put(&mut machine, Digest([9; 32])), Some(Outcome::Full));
}

#[test]
fn a_drain_waits_for_a_put_that_came_before_it() {
    let (mut machine, _) = holding(&[]);
    let segments = vec![Segment { address: 4096, bytes: 100, region: 1 }];
    let keys = vec![Wanted { digest: Digest([9; 32]), checksum: Some(9), segments }];
    machine.take_actions();
    machine.call(Ask::Put { keys, replicas: 1, preferred: None }, 0);
    let number = machine.take_actions().into_iter().find_map(|action| match action {
        crate::node::Action::Move { number, .. } => Some(number),
        _ => None,
    });
    machine.drain(true, None, 0).unwrap();
    assert_eq!((machine.next_own(0), machine.drained()), (None, None));
    machine.moved(number.expect("the value is copied"), &[], 0);
    assert_eq!(machine.next_own(0), Some((Purpose::Drain, vec![Digest([9; 32])])));
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
