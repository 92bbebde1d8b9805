//! A test for each rule of the table: when it may say no, what it forgets, whom it tells of a removed key.

use super::super::Members;
use super::*;
use ferry::Status;

const MINUTES_10: u64 = 600_000_000_000;

fn cluster(names: &[&str]) -> Members {
    Members::new(names.iter().map(|name| (String::from(*name), 1))).unwrap()
}

fn owner(name: &str, incarnation: u64) -> Owner {
    Owner { node: NodeId::of(name), incarnation }
}

fn whole(table: &Table, fingerprints: &[u64], number: u32, last: bool) -> Part<'static> {
    let fingerprints = fingerprints.to_vec().leak();
    Part { inventory: 1, number, last, members: table.index.stamp(), since: None, fingerprints }
}

/// Sends all that an owner holds.
fn complete(table: &mut Table, owner: Owner, fingerprints: &[u64]) {
    let part = whole(table, fingerprints, 0, true);
    table.part(owner, &part).unwrap();
}

/// A table of "a" in a cluster of "a" and "b", both complete, with "b" holding 1 and 2.
fn settled() -> Table {
    let mut table = Table::new(NodeId::of("a"), &cluster(&["a", "b"]));
    table.join(owner("a", 1)).unwrap();
    table.join(owner("b", 1)).unwrap();
    complete(&mut table, owner("a", 1), &[]);
    complete(&mut table, owner("b", 1), &[1, 2]);
    table
}

fn answer(table: &Table, fingerprint: u64) -> Answer {
    table.lookup(&[fingerprint]).unwrap()[0]
}

fn holders(table: &Table, fingerprint: u64) -> Vec<NodeId> {
    table.owners(fingerprint).nodes().to_vec()
}

fn is_stale<T>(result: ferry::status::Result<T>) -> bool {
    result.is_err_and(|error| error.status == Status::Stale)
}

fn sweep(table: &mut Table) {
    (0..10_000).find(|_| !table.sweep(1)).expect("a sweep ends");
}

fn digest(first: u64, rest: u8) -> Digest {
    let mut bytes = [rest; 32];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    Digest(bytes)
}

#[test]
fn no_is_said_only_while_every_node_is_complete() {
    let mut table = Table::new(NodeId::of("a"), &cluster(&["a", "b"]));
    assert_eq!(answer(&table, 9), Answer::Unknown, "nobody has joined");
    table.join(owner("a", 1)).unwrap();
    complete(&mut table, owner("a", 1), &[5]);
    assert_eq!(answer(&table, 9), Answer::Unknown, "b has not joined");
    table.join(owner("b", 1)).unwrap();
    assert_eq!(answer(&table, 9), Answer::Unknown, "b has sent nothing");
    assert_eq!(table.lacking().collect::<Vec<_>>(), [NodeId::of("b")]);
    let part = whole(&table, &[1], 0, false);
    table.part(owner("b", 1), &part).unwrap();
    assert_eq!(answer(&table, 9), Answer::Unknown, "b has sent a part");
    assert_eq!(holders(&table, 1), [NodeId::of("b")]);
    let part = whole(&table, &[2], 1, true);
    table.part(owner("b", 1), &part).unwrap();
    assert_eq!(answer(&table, 9), Answer::No);
    assert_eq!(holders(&table, 2), [NodeId::of("b")]);
    table.set_members(&cluster(&["a", "b", "c"]));
    assert_eq!(answer(&table, 9), Answer::Unknown, "c is new");
    table.set_members(&cluster(&["a", "b"]));
    assert!(matches!(answer(&table, 1), Answer::Owners(_)));
}

#[test]
fn a_lost_session_is_doubt_and_its_entries_are_hints() {
    let mut table = settled();
    assert_eq!(answer(&table, 9), Answer::No);
    table.lose_session(NodeId::of("b"));
    assert_eq!(answer(&table, 9), Answer::Unknown);
    assert_eq!(holders(&table, 1), [NodeId::of("b")]);
    let part = whole(&table, &[2], 0, false);
    table.part(owner("b", 1), &part).unwrap();
    assert_eq!(holders(&table, 1), [NodeId::of("b")], "a hint until the inventory is complete");
    let part = whole(&table, &[], 1, true);
    table.part(owner("b", 1), &part).unwrap();
    assert_eq!(answer(&table, 1), Answer::No, "b no longer holds it");
    assert_eq!(holders(&table, 2), [NodeId::of("b")]);
}

/// An owner that sends everything again has lost messages, although this side has not lost the session.
#[test]
fn a_whole_inventory_that_begins_is_doubt() {
    let mut table = settled();
    let part = whole(&table, &[2], 0, false);
    table.part(owner("b", 1), &part).unwrap();
    assert_eq!(answer(&table, 9), Answer::Unknown);
    assert_eq!(holders(&table, 1), [NodeId::of("b")]);
}

#[test]
fn an_interrupted_inventory_begins_again() {
    let mut table = settled();
    table.lose_session(NodeId::of("b"));
    for (number, inventory) in [(1, 1), (2, 1), (2, 2), (1, 3)] {
        let part = whole(&table, &[7], 0, false);
        table.part(owner("b", 1), &part).unwrap();
        let part = Part { inventory, ..whole(&table, &[8], number, true) };
        if (number, inventory) == (1, 1) {
            table.lose_session(NodeId::of("b"));
        }
        assert!(is_stale(table.part(owner("b", 1), &part)), "{number} {inventory}");
        // The part that was due before the break is not due after it.
        assert!(is_stale(table.part(owner("b", 1), &whole(&table, &[8], 1, true).clone())));
        assert_eq!(answer(&table, 9), Answer::Unknown);
        assert_eq!(holders(&table, 1), [NodeId::of("b")], "the hints of the first inventory");
    }
    complete(&mut table, owner("b", 1), &[3]);
    assert_eq!(
        table.lookup(&[1, 7, 9]).unwrap(),
        [Answer::No; 3],
        "neither the old nor the interrupted one's"
    );
    assert_eq!(holders(&table, 3), [NodeId::of("b")]);
}

#[test]
fn adds_and_removes_during_an_inventory_keep_their_order() {
    let mut table = settled();
    table.lose_session(NodeId::of("b"));
    let part = whole(&table, &[2, 3], 0, false);
    table.part(owner("b", 1), &part).unwrap();
    table.remove(owner("b", 1), &[1, 3]).unwrap();
    assert!(holders(&table, 1).is_empty(), "of the hints too");
    table.add(owner("b", 1), &[4]).unwrap();
    let part = whole(&table, &[5], 1, true);
    table.part(owner("b", 1), &part).unwrap();
    assert_eq!([1, 2, 3, 4, 5].map(|at| table.owners(at).nodes().len()), [0, 1, 0, 1, 1]);
    assert_eq!(answer(&table, 3), Answer::No);
}

#[test]
fn another_incarnation_is_another_owner() {
    let mut table = settled();
    table.join(owner("b", 1)).unwrap();
    assert_eq!(holders(&table, 1), [NodeId::of("b")], "joined twice");
    table.join(owner("b", 2)).unwrap();
    assert!(holders(&table, 1).is_empty());
    assert_eq!(answer(&table, 1), Answer::Unknown);
    assert!(is_stale(table.add(owner("b", 1), &[1])));
    assert!(is_stale(table.remove(owner("b", 1), &[1])));
    let part = whole(&table, &[1], 0, true);
    assert!(is_stale(table.part(owner("b", 1), &part)));
    assert_eq!(table.owner(NodeId::of("b")), Some(owner("b", 2)));
    assert_eq!(table.join(owner("z", 1)).unwrap_err().status, Status::Invalid);
    table.forget(NodeId::of("b"));
    assert!(is_stale(table.add(owner("b", 2), &[1])));
}

#[test]
fn a_forgotten_owner_is_gone_at_once_and_its_slot_is_used_after_the_sweep() {
    let mut table = settled();
    let many: Vec<u64> = (0..1000).map(|at| at << 40 | at).collect();
    table.add(owner("b", 1), &many).unwrap();
    let slot = table.standings[&NodeId::of("b")].slot;
    table.forget(NodeId::of("b"));
    assert!(many.iter().all(|&at| table.owners(at).nodes().is_empty()));
    assert_eq!(table.entries(), 1002);
    table.join(owner("b", 2)).unwrap();
    assert_ne!(table.standings[&NodeId::of("b")].slot, slot, "its entries are there yet");
    assert!(table.owners(1).nodes().is_empty());
    table.sweep(1);
    assert!((900..1002).contains(&table.entries()), "one bucket: {}", table.entries());
    // A second owner that dies while the first is swept.
    table.add(owner("b", 2), &many[..600]).unwrap();
    table.forget(NodeId::of("b"));
    sweep(&mut table);
    assert_eq!((table.entries(), table.buckets.count()), (0, 1));
    assert!(table.slots.iter().filter(|slot| slot.of == Of::Nobody).count() == table.free.len());
    table.join(owner("b", 3)).unwrap();
    assert!(table.slots.len() <= 5, "slots are used again: {:?}", table.slots);
    assert!(table.owners(1).nodes().is_empty());
}

#[test]
fn slots_have_bounds_and_run_out_with_a_name() {
    let mut table = settled();
    let restart = |table: &mut Table, incarnation| {
        table.join(owner("b", incarnation)).and_then(|()| table.add(owner("b", incarnation), &[1]))
    };
    (2..13).for_each(|incarnation| drop(restart(&mut table, incarnation).unwrap()));
    let error = restart(&mut table, 13).unwrap_err();
    assert!(error.status == Status::Busy && error.message.contains("12 earlier inventories"), "{error}");
    table.join(owner("a", 2)).expect("another node has its own bound");
    sweep(&mut table);
    restart(&mut table, 13).unwrap();

    let mut table = settled();
    let error = (0..70_000).find_map(|at| {
        let name = format!("node-{at}");
        table.set_members(&cluster(&["a", &name]));
        table.join(owner(&name, 1)).and_then(|()| table.add(owner(&name, 1), &[1])).err()
    });
    let error = error.unwrap();
    assert!(error.status == Status::Limit && error.message.starts_with("owner slots: "), "{error}");
    assert_eq!(answer(&table, 1), Answer::Unknown);
    sweep(&mut table);
    table.join(owner("a", 2)).unwrap();
}

#[test]
fn batches_and_the_table_have_bounds() {
    let mut table = settled();
    let b = owner("b", 1);
    let batch = vec![0; BATCH_FINGERPRINTS_MAX + 1];
    let is_limit =
        |error: Error| error.status == Status::Limit && error.message.starts_with("fingerprints: ");
    assert!(is_limit(table.lookup(&batch).unwrap_err()));
    assert!(is_limit(table.add(b, &batch).unwrap_err()));
    assert!(is_limit(table.remove(b, &batch).unwrap_err()));
    let part = whole(&table, &batch, 0, true);
    assert!(is_limit(table.part(b, &part).unwrap_err()));
    assert!(table.lookup(&batch[1..]).is_ok());
    table.entries_max = 4;
    table.add(b, &[3, 4]).unwrap();
    assert_eq!(answer(&table, 9), Answer::No);
    let error = table.add(b, &[5]).unwrap_err();
    assert!(error.status == Status::Limit && error.message.starts_with("entries of the index: "), "{error}");
    assert_eq!(answer(&table, 5), Answer::Unknown, "b holds what did not fit");
    assert_eq!(table.lacking().collect::<Vec<_>>(), [NodeId::of("b")]);
}

#[test]
fn a_fingerprint_has_several_owners_each_once() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut table = Table::new(NodeId::of("a"), &cluster(&names));
    for name in names {
        table.join(owner(name, 1)).unwrap();
        table.add(owner(name, 1), &[1, 1]).unwrap();
    }
    assert_eq!((table.entries(), holders(&table, 1).len()), (6, 4));
    table.remove(owner("a", 1), &[1]).unwrap();
    table.remove(owner("b", 1), &[1]).unwrap();
    table.remove(owner("c", 1), &[1, 1]).unwrap();
    assert_eq!(holders(&table, 1).len(), 3);
    // An owner whose inventory runs has the key in two slots.
    let part = whole(&table, &[1], 0, false);
    table.part(owner("d", 1), &part).unwrap();
    assert_eq!((table.entries(), holders(&table, 1).len()), (4, 3));
}

/// Two clusters that differ in one index member, of which this node is one in both; fingerprints by their homes.
struct Change {
    me: NodeId,
    before: Members,
    after: Members,
    kept: u64,
    gained: u64,
    lost: u64,
    never: u64,
}

fn change() -> Change {
    let names = ["a", "b", "c", "d"];
    let (before, after) = (cluster(&names[..3]), cluster(&[names[0], names[1], names[3]]));
    let me = NodeId::of("a");
    let find = |was: bool, is: bool| {
        let fits = |at: &u64| (before.index().is_home(me, *at), after.index().is_home(me, *at)) == (was, is);
        (1..10_000).find(fits).unwrap()
    };
    let (kept, gained, lost, never) =
        (find(true, true), find(false, true), find(true, false), find(false, false));
    Change { me, before, after, kept, gained, lost, never }
}

#[test]
fn after_a_change_of_the_index_members_only_what_is_new_is_unknown() {
    let change = change();
    let mut table = Table::new(change.me, &change.before);
    for name in ["a", "b", "c"] {
        table.join(owner(name, 1)).unwrap();
        complete(&mut table, owner(name, 1), &[]);
    }
    table.add(owner("b", 1), &[change.lost]).unwrap();
    let asked = [change.kept, change.gained, change.never];
    assert_eq!(table.lookup(&asked).unwrap(), [Answer::No, Answer::Unknown, Answer::Unknown]);
    table.set_members(&change.after);
    assert_eq!(table.lookup(&asked).unwrap(), [Answer::Unknown; 3], "d has sent nothing");
    table.join(owner("d", 1)).unwrap();
    complete(&mut table, owner("d", 1), &[]);
    assert_eq!(table.lookup(&asked).unwrap(), [Answer::No, Answer::Unknown, Answer::Unknown]);
    let since = Some(change.before.index().stamp());
    assert_eq!(*table.settled(), *change.before.index());
    for (name, holds) in [("a", &[][..]), ("b", &[change.gained][..])] {
        assert_eq!(answer(&table, change.gained), Answer::Unknown);
        // A sweep before all is complete takes nothing that either list has here.
        table.add(owner("d", 1), &[change.never, change.gained]).unwrap();
        table.start_sweep();
        sweep(&mut table);
        assert!(holders(&table, change.gained).contains(&NodeId::of("d")));
        table.remove(owner("d", 1), &[change.gained]).unwrap();
        let part = Part { since, ..whole(&table, holds, 0, true) };
        table.part(owner(name, 1), &part).unwrap();
    }
    assert_eq!(holders(&table, change.gained), [NodeId::of("b")]);
    table.remove(owner("b", 1), &[change.gained]).unwrap();
    assert_eq!(table.lookup(&asked).unwrap(), [Answer::No, Answer::No, Answer::Unknown]);
    // A key of which this node is no home any more is unknown, and swept.
    assert_eq!(table.entries(), 1);
    sweep(&mut table);
    assert_eq!((table.entries(), answer(&table, change.lost)), (0, Answer::Unknown));
}

#[test]
fn only_what_was_complete_is_continued() {
    let change = change();
    let mut table = Table::new(change.me, &change.before);
    for name in ["a", "b", "c"] {
        table.join(owner(name, 1)).unwrap();
    }
    complete(&mut table, owner("a", 1), &[]);
    table.set_members(&change.after);
    let since = Some(change.before.index().stamp());
    let gained = |name: &str, since| {
        let part = Part { since, ..whole(&table, &[], 0, true) };
        (owner(name, 1), part)
    };
    let (a, other, b) = (gained("a", since), gained("a", Some(5)), gained("b", since));
    assert!(is_stale(table.part(other.0, &other.1)), "since another list");
    assert!(is_stale(table.part(b.0, &b.1)), "b was not complete before");
    table.part(a.0, &a.1).unwrap();
    complete(&mut table, owner("b", 1), &[]);
    table.join(owner("d", 1)).unwrap();
    assert_eq!(answer(&table, change.kept), Answer::Unknown);
    complete(&mut table, owner("d", 1), &[]);
    assert_eq!(answer(&table, change.gained), Answer::No);
    // Two changes: an owner that took no part in the first is complete for neither.
    table.set_members(&change.before);
    table.set_members(&change.after);
    let since = Some(change.before.index().stamp());
    let part = Part { since, ..whole(&table, &[], 0, true) };
    assert!(is_stale(table.part(owner("a", 1), &part)));
    // An inventory from before both does not go on.
    let part = whole(&table, &[], 0, false);
    table.part(owner("a", 1), &part).unwrap();
    table.set_members(&change.before);
    table.set_members(&change.after);
    let part = whole(&table, &[], 1, true);
    assert!(is_stale(table.part(owner("a", 1), &part)));
    for name in ["a", "b"] {
        complete(&mut table, owner(name, 1), &[]);
    }
    // A lost session: what was complete before the change is not any more.
    table.set_members(&change.before);
    table.lose_session(NodeId::of("b"));
    let since = Some(change.after.index().stamp());
    let part = Part { since, ..whole(&table, &[], 0, true) };
    assert!(is_stale(table.part(owner("b", 1), &part)));
}

#[test]
fn an_owner_that_announces_for_other_index_members_is_doubt() {
    let change = change();
    let mut table = Table::new(change.me, &change.before);
    for name in ["a", "b", "c"] {
        table.join(owner(name, 1)).unwrap();
        complete(&mut table, owner(name, 1), &[]);
    }
    let (before, after) = (change.before.index().stamp(), change.after.index().stamp());
    let ahead = Part { members: after, since: Some(before), ..whole(&table, &[change.gained], 0, true) };
    assert!(is_stale(table.part(owner("b", 1), &ahead)));
    assert_eq!(answer(&table, change.kept), Answer::Unknown, "b may send it elsewhere");
    assert!(holders(&table, change.gained).is_empty());
    let ahead_whole = Part { since: None, ..ahead };
    assert!(is_stale(table.part(owner("b", 1), &ahead_whole)));
    assert!(holders(&table, change.gained).is_empty());
    // This node hears of the change too, and b continues from where it was complete.
    table.set_members(&change.after);
    table.join(owner("d", 1)).unwrap();
    complete(&mut table, owner("d", 1), &[]);
    assert_eq!(answer(&table, change.kept), Answer::No);
    table.part(owner("b", 1), &ahead).unwrap();
    let part = Part { since: Some(before), ..whole(&table, &[], 0, true) };
    table.part(owner("a", 1), &part).unwrap();
    assert_eq!(holders(&table, change.gained), [NodeId::of("b")]);
    assert_eq!(answer(&table, change.kept), Answer::No);
}

#[test]
fn an_owner_that_was_absent_is_told_what_was_removed_by_the_whole_digest() {
    let mut table = settled();
    let (removed, other) = (digest(1, 7), digest(1, 8));
    table.bury(removed, 1, &[NodeId::of("b")], 0).unwrap();
    table.bury(other, 1, &[], 0).unwrap();
    assert_eq!(table.add(owner("a", 1), &[1]).unwrap(), [], "a was asked, and holds a new one");
    assert_eq!(table.add(owner("b", 1), &[2, 1]).unwrap(), [removed]);
    let part = whole(&table, &[1], 0, false);
    assert_eq!(table.part(owner("b", 1), &part).unwrap(), [removed]);
    let part = whole(&table, &[1], 1, true);
    assert_eq!(table.part(owner("b", 1), &part).unwrap(), [removed]);
    assert_eq!(table.add(owner("b", 1), &[1]).unwrap(), [], "all it held before has been compared");
    // A life that begins later has been asked for nothing.
    table.join(owner("b", 2)).unwrap();
    assert_eq!(table.add(owner("b", 2), &[1]).unwrap(), [removed, other]);
}

#[test]
fn a_removal_during_an_inventory_is_not_taken_for_heard() {
    let mut table = settled();
    table.lose_session(NodeId::of("b"));
    let part = whole(&table, &[1], 0, false);
    table.part(owner("b", 1), &part).unwrap();
    table.bury(digest(1, 7), 1, &[NodeId::of("b")], 0).unwrap();
    let part = whole(&table, &[], 1, true);
    table.part(owner("b", 1), &part).unwrap();
    assert_eq!(table.add(owner("b", 1), &[1]).unwrap(), [digest(1, 7)]);
    // An inventory of what is new by a change says nothing of the rest.
    let change = change();
    let mut table = Table::new(change.me, &change.before);
    table.join(owner("b", 1)).unwrap();
    complete(&mut table, owner("b", 1), &[]);
    table.bury(digest(1, 7), 1, &[NodeId::of("b")], 0).unwrap();
    table.set_members(&change.after);
    let since = Some(change.before.index().stamp());
    let part = Part { since, ..whole(&table, &[], 0, true) };
    table.part(owner("b", 1), &part).unwrap();
    assert_eq!(table.add(owner("b", 1), &[1]).unwrap(), [digest(1, 7)]);
}

#[test]
fn tombstones_last_ten_minutes_and_have_a_bound() {
    let mut table = settled();
    table.bury(digest(1, 7), 1, &[NodeId::of("b")], 5).unwrap();
    table.bury(digest(1, 8), 1, &[NodeId::of("b")], 5).unwrap();
    table.bury(digest(1, 8), 1, &[NodeId::of("b")], 9).unwrap();
    table.expire(MINUTES_10 + 4);
    assert_eq!(table.add(owner("b", 1), &[1]).unwrap().len(), 2);
    table.expire(MINUTES_10 + 5);
    assert_eq!(table.add(owner("b", 1), &[1]).unwrap(), [digest(1, 8)], "removed again later");
    table.expire(MINUTES_10 + 9);
    assert_eq!((table.tombstones(), table.add(owner("b", 1), &[1]).unwrap().len()), (0, 0));
    let now_ns = u64::MAX - MINUTES_10 - 1;
    for at in 0..crate::limits::TOMBSTONES_MAX as u64 {
        table.bury(digest(at, 0), 1, &[], now_ns).unwrap();
    }
    let error = table.bury(digest(0, 1), 1, &[], now_ns).unwrap_err();
    assert!(error.status == Status::Limit && error.message.starts_with("tombstones: "), "{error}");
    table.bury(digest(0, 1), 1, &[], u64::MAX - 1).unwrap();
    assert_eq!(table.tombstones(), 1);
}
