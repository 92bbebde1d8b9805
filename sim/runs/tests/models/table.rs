//! The table of transfers: a handle names one object for ever, one thread removes it, and "full" is certain.

use crate::rig::*;
use ferry::internals::complete::{transfer, Table};
use ferry::internals::handle::Tag;
use ferry::types::TransferId;
use ferry::{Status, TransferCore};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

struct Rig {
    table: Table<TransferId, TransferCore>,
    old: Arc<TransferCore>,
    removals: Cell<u32>,
}

fn insert(table: &Table<TransferId, TransferCore>) -> Result<Arc<TransferCore>, Status> {
    let made = table.insert(|handle| transfer(handle, Wish::default().spec()));
    made.map_err(|error| error.status)
}

/// A table that is full with one or more objects.
fn full(capacity: u32) -> Rc<Rig> {
    let table = Table::new(Tag::from_random(1), capacity);
    let old = insert(&table).unwrap();
    (1..capacity).for_each(|_| drop(insert(&table).unwrap()));
    assert_eq!(insert(&table).err(), Some(Status::Limit));
    Rc::new(Rig { table, old, removals: Cell::new(0) })
}

impl Rig {
    fn remove(&self) {
        match self.table.remove(self.old.handle) {
            Ok(removed) => {
                assert!(Arc::ptr_eq(&removed, &self.old), "another object is removed");
                self.removals.set(self.removals.get() + 1);
            }
            Err(error) => assert_eq!(error.status, Status::Stale),
        }
    }

    /// The old handle names the old object, or nothing.
    fn look(&self) {
        match self.table.get(self.old.handle) {
            Ok(found) => assert!(Arc::ptr_eq(&found, &self.old), "an old handle names another object"),
            Err(error) => assert_eq!(error.status, Status::Stale),
        }
    }
}

/// A row is freed and filled again while another thread looks at the old handle.
#[test]
fn an_old_handle_never_names_another_object() {
    explore(3, || {
        let rig = full(1);
        let replaces = start(&rig, "replaces", |rig| {
            rig.remove();
            let fresh = insert(&rig.table).unwrap();
            assert_ne!(fresh.handle, rig.old.handle);
        });
        let looks = start(&rig, "looks", |rig| {
            rig.look();
            rig.look();
        });
        join([replaces, looks]);
        assert_eq!((rig.table.count(), rig.removals.get()), (1, 1));
    });
}

#[test]
fn of_two_threads_that_remove_one_succeeds() {
    explore(3, || {
        let rig = full(2);
        join([start(&rig, "removes-0", Rig::remove), start(&rig, "removes-1", Rig::remove)]);
        assert_eq!((rig.table.count(), rig.removals.get()), (1, 1));
    });
}

/// One object goes before another comes, always in this order, in a shard that the search may have passed already. A
/// table that has room from the insert's beginning to its end is never full.
#[test]
fn full_is_certain() {
    explore(2, || {
        let rig = full(2);
        rig.remove();
        // A free row moves from one shard to the other: freed first, then filled.
        let moves = start(&rig, "moves", |rig| {
            let others = rig.table.list();
            rig.table.remove(others[0].handle).unwrap();
            insert(&rig.table).unwrap();
        });
        let inserts =
            start(&rig, "inserts", |rig| drop(insert(&rig.table).expect("there was room all the time")));
        join([moves, inserts]);
        assert_eq!(rig.table.count(), 2);
    });
}
