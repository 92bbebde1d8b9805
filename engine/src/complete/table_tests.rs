//! Tests of `table`: exact capacity, checked handles, reuse, threads.

use super::*;
use crate::sys::map::HashSet;
use std::sync::Mutex;
use std::time::Instant;

fn table(capacity: u32) -> Table<TransferId, TransferId> {
    Table::new(Tag::from_random(77), capacity)
}

fn insert(table: &Table<TransferId, TransferId>) -> Result<TransferId> {
    table.insert(Arc::new).map(|handle| *handle)
}

#[test]
fn capacity_is_exact() {
    for capacity in [0, 1, 15, 16, 17, 100] {
        let table = table(capacity);
        let handles: HashSet<TransferId> = (0..capacity).map(|_| insert(&table).unwrap()).collect();
        assert_eq!((handles.len(), table.count()), (capacity as usize, capacity as usize));
        assert_eq!(insert(&table).unwrap_err().status, Status::Limit);
        if let Some(handle) = handles.iter().next() {
            table.remove(*handle).unwrap();
            insert(&table).unwrap();
            assert_eq!(insert(&table).unwrap_err().status, Status::Limit);
        }
        assert_eq!(table.list().len(), capacity as usize);
    }
}

#[test]
fn the_reserve_is_used_beyond_the_capacity_alone_by_those_that_may() {
    for (capacity, reserve) in [(1, 1), (16, 16), (17, 40), (handle::INDEX_MAX + 1, 0)] {
        let table = Table::<TransferId, TransferId>::with_reserve(Tag::from_random(77), capacity, reserve);
        let in_reserve = || table.insert_in_reserve(Arc::new).map(|handle| *handle);
        if reserve == 0 {
            assert!(insert(&table).is_ok() && in_reserve().is_ok());
            continue;
        }
        let own: Vec<TransferId> = (0..capacity).map(|_| insert(&table).unwrap()).collect();
        let others: Vec<TransferId> = (0..reserve).map(|_| in_reserve().unwrap()).collect();
        for error in [insert(&table).unwrap_err(), in_reserve().unwrap_err()] {
            assert_eq!(error.status, Status::Limit);
            assert!(error.message.starts_with(&format!("{capacity} ")), "{}", error.message);
        }
        // What lies in the reserve counts, so its rows are not for others when they come free.
        others.iter().for_each(|handle| drop(table.remove(*handle).unwrap()));
        assert_eq!(insert(&table).unwrap_err().status, Status::Limit);
        own.iter().for_each(|handle| drop(table.remove(*handle).unwrap()));
        assert_eq!((0..capacity).filter(|_| insert(&table).is_ok()).count(), capacity as usize);
        assert_eq!(insert(&table).unwrap_err().status, Status::Limit);
        assert_eq!((0..reserve).filter(|_| in_reserve().is_ok()).count(), reserve as usize);
    }
}

#[test]
fn handles_are_checked() {
    let table = table(8);
    let handle = insert(&table).unwrap();
    assert_eq!(*table.get(handle).unwrap(), handle);
    let other = Table::<TransferId, TransferId>::new(Tag::from_random(78), 8);
    let kind = Table::<PeerId, PeerId>::new(Tag::from_random(77), 8);
    assert_eq!(table.get(TransferId::NONE).unwrap_err().status, Status::Invalid);
    assert_eq!(kind.get(PeerId::from_raw(handle.raw())).unwrap_err().status, Status::Invalid);
    assert_eq!(other.get(handle).unwrap_err().status, Status::Stale);
    // Generations and indexes that were never given out.
    let later = TransferId::from_raw(handle.raw() + (1 << handle::INDEX_BITS));
    let beyond = TransferId::from_raw(handle.raw() | u64::from(handle::INDEX_MAX));
    assert_eq!(table.get(later).unwrap_err().status, Status::Stale);
    assert_eq!(table.get(beyond).unwrap_err().status, Status::Stale);
    table.remove(handle).unwrap();
    assert_eq!(table.get(handle).unwrap_err().status, Status::Stale);
    assert_eq!(table.remove(handle).unwrap_err().status, Status::Stale);
    assert_eq!(table.count(), 0);
}

#[test]
fn freed_rows_are_reused_oldest_first_in_a_new_generation() {
    let table = table(3);
    let first: Vec<TransferId> = (0..3).map(|_| insert(&table).unwrap()).collect();
    let index = |handle: TransferId| handle.raw() & u64::from(handle::INDEX_MAX);
    for &gone in &first {
        table.remove(gone).unwrap();
    }
    let second: HashSet<u64> = (0..3).map(|_| index(insert(&table).unwrap())).collect();
    assert_eq!(second, first.iter().map(|&handle| index(handle)).collect());
    assert!(first.iter().all(|&handle| table.get(handle).is_err()));

    // Within a shard, rows 0, 1, 2 are freed as 2, 0, 1 and are reused in that order.
    let mut rows = Rows::<u64> { rows: Vec::new(), free: VecDeque::from([2, 0, 1]) };
    rows.rows.extend((0..3).map(|_| Row { generation: 1, value: None }));
    assert_eq!(rows.next_row(3), Some(2));
    assert_eq!(rows.next_row(4), Some(3), "grows while few are resting");
}

#[test]
fn memory_follows_use() {
    let table = table(handle::INDEX_MAX + 1);
    for _ in 0..10 * FREE_ROWS_MIN {
        table.remove(insert(&table).unwrap()).unwrap();
    }
    let rows: usize = table.shards.iter().map(|shard| shard.read().rows.len()).sum();
    assert_eq!(rows, FREE_ROWS_MIN, "one thread's shard, grown until enough rows rest");
}

#[test]
fn a_panic_while_making_leaves_the_table_whole() {
    let table = table(1);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = table.insert(|_| std::panic::resume_unwind(Box::new(())));
    }));
    assert!(panicked.is_err() && table.count() == 0);
    insert(&table).unwrap();
}

#[test]
fn threads_share_a_crowded_table_without_losing_or_doubling_a_row() {
    const THREADS: usize = 4;
    let rounds = if cfg!(miri) { 25 } else { 2000 };
    let (table, seen) = (table(THREADS as u32), Mutex::new(HashSet::default()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut mine = Vec::new();
                for _ in 0..rounds {
                    // Every thread needs one row at a time and there are as many rows, so the table is never full.
                    let handle = insert(&table).unwrap();
                    assert_eq!(*table.get(handle).unwrap(), handle);
                    table.remove(handle).unwrap();
                    mine.push(handle);
                }
                let mut seen = seen.lock().unwrap();
                assert!(mine.into_iter().all(|handle| seen.insert(handle)), "a handle came twice");
            });
        }
    });
    assert_eq!(table.count(), 0);
}

/// Prints the cost and asserts nothing about time: `cargo test --release table_cost -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn table_cost() {
    const ROUNDS: u32 = 2_000_000;
    for threads in [1, 2, 4] {
        let table = table(1 << 16);
        let value = Arc::new(TransferId::NONE);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                // Each thread has its own value, so that the reference count is not measured.
                let (table, value) = (&table, Arc::new(*value));
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let mut handle = TransferId::NONE;
                        table
                            .insert(|given| {
                                handle = given;
                                value.clone()
                            })
                            .unwrap();
                        std::hint::black_box(table.get(handle).unwrap());
                        table.remove(handle).unwrap();
                    }
                });
            }
        });
        println!(
            "{threads} threads: {:?} per insert, get and remove of one thread",
            start.elapsed() / ROUNDS
        );
    }
}
