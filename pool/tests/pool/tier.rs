//! A node with a file behind its memory.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ferry::{Memory, Status};
use ferry_pool::store::table::Layout;
use ferry_pool::{Chain, FileOptions, Outcome, Pool, PoolOptions};

use crate::{check, engine, fill, key, values, Node, PATIENCE};

const BYTES: usize = 100_000;
const VALUES: usize = 120;
const MEMORY: u64 = 4 << 20;
const FILE: u64 = 64 << 20;

/// The path of a file of this test, which is removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ferry-tier-{name}-{}", std::process::id()));
        drop(fs::remove_file(&path));
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

fn options(path: &Path, bytes: u64) -> PoolOptions {
    let file = Some(FileOptions { path: path.into(), bytes });
    PoolOptions { memory_bytes: MEMORY, file, ..PoolOptions::default() }
}

fn open(options: PoolOptions) -> Node {
    let engine = engine();
    let pool = Pool::open(&engine, options).unwrap();
    Node { engine, pool }
}

/// Puts values one by one, each when the one before is in the file.
fn put_all(node: &Node, memory: &Memory) {
    for number in 0..VALUES as u64 {
        fill(memory, 0, BYTES, number);
        assert_eq!(node.put(&values(memory, BYTES, number..number + 1)), [Outcome::Ok]);
        while node.pool.stats().owner.saved <= number {
            assert_eq!(node.pool.stats().owner.tier_failed, 0);
            std::thread::yield_now();
        }
    }
}

fn get_all_of(node: &Node, memory: &Memory, numbers: std::ops::Range<u64>) {
    for number in numbers {
        assert_eq!(node.get(&values(memory, BYTES, number..number + 1)), [Outcome::Ok], "{number}");
        check(memory, 0, BYTES, number);
    }
}

fn get_all(node: &Node, memory: &Memory) {
    get_all_of(node, memory, 0..VALUES as u64);
    // Many at once, of which memory has a part.
    let numbers = || 0..20u64;
    assert_eq!(node.get(&values(memory, BYTES, numbers())), [Outcome::Ok; 20]);
    numbers().for_each(|number| check(memory, number as usize * BYTES, BYTES, number));
}

fn close(node: Node) {
    node.pool.close(PATIENCE).unwrap();
    node.engine.close(PATIENCE).unwrap();
}

#[test]
fn values_that_left_memory_come_from_the_file_also_after_a_restart() {
    let path = Scratch::new("restart");
    let node = open(options(&path.0, FILE));
    let memory = node.buffer(20 * BYTES);
    put_all(&node, &memory);
    assert!(node.pool.stats().objects < VALUES as u64 / 2, "memory has room for a part alone");
    get_all(&node, &memory);
    // A value that is in the file alone is there already, and is removed there too.
    let removed: Vec<_> = (50..80).map(key).collect();
    assert_eq!(node.put(&values(&memory, BYTES, 50..51)), [Outcome::Here]);
    let ends = node.pool.remove(&removed, PATIENCE).unwrap();
    assert!(ends.iter().all(|end| end.outcome == Outcome::Ok), "{ends:?}");
    drop(memory);
    close(node);

    let node = open(options(&path.0, FILE));
    let memory = node.buffer(20 * BYTES);
    assert_eq!(node.pool.stats().tier_objects, VALUES as u64 - 30);
    let ends = node.pool.exists(&removed, false, PATIENCE).unwrap();
    assert!(ends.iter().all(|end| end.outcome == Outcome::Absent), "{ends:?}");
    for number in (0..50).chain(80..VALUES as u64) {
        assert_eq!(node.get(&values(&memory, BYTES, number..number + 1)), [Outcome::Ok], "{number}");
        check(&memory, 0, BYTES, number);
    }
    drop(memory);
    close(node);
}

#[test]
fn a_prefetch_brings_what_the_file_alone_has() {
    let path = Scratch::new("prefetch");
    let node = open(options(&path.0, FILE));
    let memory = node.buffer(20 * BYTES);
    put_all(&node, &memory);
    let keys: Vec<_> = (0..VALUES as u64).map(key).collect();
    let prefetch = |count: usize| -> Vec<Outcome> {
        let ends = node.pool.prefetch(&keys[..count], true, PATIENCE).unwrap();
        ends.into_iter().map(|end| end.outcome).collect()
    };
    let gets_from_file = || node.pool.stats().owner.loaded;
    assert_eq!(prefetch(20), [Outcome::Ok; 20]);
    assert_eq!((gets_from_file(), prefetch(20)), (20, vec![Outcome::Here; 20]));
    get_all_of(&node, &memory, 0..20);
    assert_eq!(gets_from_file(), 20);
    // Memory has room for a part alone: the head of the prefix.
    let outcomes = prefetch(VALUES);
    let brought = outcomes.iter().take_while(|outcome| outcome.is_ok()).count();
    assert!(brought > 30 && brought < 43, "{outcomes:?}");
    assert!(outcomes[brought..].iter().all(|outcome| *outcome == Outcome::Full), "{outcomes:?}");
    assert_eq!(prefetch(brought), vec![Outcome::Here; brought]);
    drop(memory);
    close(node);
}

#[test]
fn a_table_of_many_pages_is_written_whole() {
    const MANY: u64 = 1_100;
    let path = Scratch::new("many");
    let node = open(options(&path.0, 2 * FILE));
    let memory = node.buffer(MANY as usize * 64);
    (0..MANY).for_each(|number| fill(&memory, number as usize * 64, 64, number));
    let put = |numbers: std::ops::Range<u64>| {
        let all = values(&memory, 64, 0..MANY);
        node.put(&all[numbers.start as usize..numbers.end as usize])
    };
    // Memory has room for 256 of them.
    for from in (0..MANY).step_by(100) {
        assert!(put(from..from + 100).iter().all(|outcome| outcome.is_ok()));
        while node.pool.stats().owner.saved < from + 100 {
            std::thread::yield_now();
        }
    }
    let keys: Vec<_> = (1..MANY).map(key).collect();
    let ends = node.pool.remove(&keys, PATIENCE).unwrap();
    assert!(ends.iter().all(|end| end.outcome == Outcome::Ok), "{ends:?}");
    drop(memory);
    close(node);
    let node = open(options(&path.0, 2 * FILE));
    assert_eq!(node.pool.stats().tier_objects, 1);
    close(node);
}

/// Changes all data behind the superblock and the table.
fn rot(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let table = 4096 + (FILE / ((64 << 10) + 256)) * 256;
    for at in (table + 4096..FILE - 4096).step_by(32 << 10) {
        file.write_all_at(&[0x5a; 64], at).unwrap();
    }
}

#[test]
fn a_value_that_rots_in_the_file_comes_again_from_another_node() {
    const SOME: u64 = 30;
    let path = Scratch::new("repair");
    let node = open(options(&path.0, FILE));
    let memory = node.buffer(20 * BYTES);
    put_all(&node, &memory);
    drop(memory);
    close(node);
    rot(&path.0);
    let other = open(PoolOptions { memory_bytes: 4 * MEMORY, ..PoolOptions::default() });
    let memory = other.buffer(BYTES);
    for number in 0..SOME {
        fill(&memory, 0, BYTES, number);
        assert_eq!(other.put(&values(&memory, BYTES, number..number + 1)), [Outcome::Ok]);
    }
    let nodes = vec![other.engine.address().to_owned()];
    let node = open(PoolOptions { nodes, ..options(&path.0, FILE) });
    node.pool.wait_for_nodes(2, PATIENCE).unwrap();
    let own = node.buffer(BYTES);
    // The file's copies are bad, and the gets go on to the other node.
    get_all_of(&node, &own, 0..SOME);
    // Nobody has these.
    for number in SOME..SOME + 3 {
        assert_eq!(node.get(&values(&own, BYTES, number..number + 1)), [Outcome::Evicted], "{number}");
    }
    let began = std::time::Instant::now();
    while node.pool.stats().owner.repaired < SOME {
        assert!(began.elapsed() < PATIENCE.unwrap(), "{:?}", node.pool.stats());
        std::thread::yield_now();
    }
    let stats = node.pool.stats();
    assert_eq!((stats.owner.corrupt, stats.owner.repairs_failed, stats.objects), (SOME + 3, 0, SOME));
    drop(memory);
    close(other);
    get_all_of(&node, &own, 0..SOME);
    assert_eq!(node.pool.stats().calls.hits_here, SOME);
    drop(own);
    close(node);
}

#[test]
fn a_value_that_rots_in_the_file_is_a_miss_and_is_dropped() {
    let path = Scratch::new("rot");
    let node = open(options(&path.0, FILE));
    let memory = node.buffer(20 * BYTES);
    put_all(&node, &memory);
    drop(memory);
    close(node);
    rot(&path.0);
    let node = open(options(&path.0, FILE));
    let memory = node.buffer(20 * BYTES);
    assert_eq!(node.pool.stats().tier_objects, VALUES as u64);
    for number in 0..VALUES as u64 {
        let found = node.get(&values(&memory, BYTES, number..number + 1));
        assert!(!found[0].is_ok(), "{number}: {found:?}");
    }
    let stats = node.pool.stats();
    assert_eq!((stats.tier_objects, stats.owner.corrupt), (0, VALUES as u64));
    drop(memory);
    close(node);
}

#[test]
fn a_file_that_is_full_keeps_what_was_used_last() {
    let path = Scratch::new("full");
    let node = open(options(&path.0, 8 << 20));
    let memory = node.buffer(20 * BYTES);
    put_all(&node, &memory);
    let stats = node.pool.stats();
    assert!(stats.owner.tier_evicted > 0 && stats.tier_objects > 40, "{stats:?}");
    let ends = node.pool.exists(&(0..VALUES as u64).map(key).collect::<Vec<_>>(), false, PATIENCE).unwrap();
    let held: Vec<u64> =
        (0..).zip(&ends).filter(|(_, end)| end.outcome == Outcome::Ok).map(|(at, _)| at).collect();
    assert_eq!(held.last(), Some(&(VALUES as u64 - 1)));
    assert_eq!(held.len() as u64, held.last().unwrap() - held[0] + 1, "the oldest went: {held:?}");
    for number in held {
        assert_eq!(node.get(&values(&memory, BYTES, number..number + 1)), [Outcome::Ok], "{number}");
        check(&memory, 0, BYTES, number);
    }
    drop(memory);
    close(node);
}

#[test]
fn a_value_that_has_become_too_long_for_the_memory_is_dropped_at_the_open() {
    let path = Scratch::new("longer");
    let long = MEMORY as usize / 2;
    let node = open(options(&path.0, FILE));
    let memory = node.buffer(long);
    fill(&memory, 0, long, 1);
    assert_eq!(node.put(&values(&memory, long, 1..2)), [Outcome::Ok]);
    assert_eq!(node.put(&values(&memory, BYTES, 2..3)), [Outcome::Ok]);
    drop(memory);
    close(node);

    let node = open(PoolOptions { memory_bytes: MEMORY / 4, ..options(&path.0, FILE) });
    let memory = node.buffer(long);
    assert_eq!(node.get(&values(&memory, long, 1..2)), [Outcome::Absent]);
    assert_eq!(node.get(&values(&memory, BYTES, 2..3)), [Outcome::Ok]);
    drop(memory);
    close(node);

    // For good: the table in the file does not have it either.
    let node = open(options(&path.0, FILE));
    assert_eq!(node.pool.stats().tier_objects, 1);
    close(node);
}

#[test]
fn a_file_that_cannot_be_taken_is_named_and_stays_as_it_was() {
    let path = Scratch::new("refused");
    let engine = engine();
    let refused = |options: PoolOptions| Pool::open(&engine, options).map(drop).unwrap_err();
    let node = open(options(&path.0, FILE));
    let error = refused(options(&path.0, FILE));
    assert_eq!(error.status, Status::Busy, "{error}");
    close(node);
    let wrong_size = options(&path.0, 2 * FILE);
    let wrong_keys = PoolOptions { chain: Chain::new(16).unwrap(), ..options(&path.0, FILE) };
    for (options, words) in [(wrong_size, "another number of bytes"), (wrong_keys, "hashed in another way")] {
        let error = refused(options);
        assert_eq!(error.status, Status::Invalid, "{error}");
        assert!(error.message.contains(words) && error.message.contains("options.file"), "{error}");
    }
    let late = [vec![0; 300_000], b"a picture".to_vec()].concat();
    for text in [&b"a letter"[..], &late] {
        fs::write(&path.0, text).unwrap();
        let error = refused(options(&path.0, FILE));
        assert!(error.message.contains("is no file of a pool"), "{error}");
        assert!(fs::read(&path.0).unwrap() == text, "the file was changed");
    }
    // A file of the first version of keys.
    let first = Layout::of(FILE).superblock(1 << 48 | 1 << 32 | 256);
    fs::write(&path.0, first).unwrap();
    OpenOptions::new().write(true).open(&path.0).unwrap().set_len(FILE).unwrap();
    let error = refused(options(&path.0, FILE));
    assert!(error.message.contains("use the chunk_tokens and version it was made with"), "{error}");
    assert!(fs::read(&path.0).unwrap()[..first.len()] == first, "the file was changed");
    fs::write(&path.0, "").unwrap();
    for (options, words) in [
        (options(Path::new("/no/such/folder"), FILE), "/no/such/folder"),
        (options(&path.0, 4096), "file.bytes"),
        (PoolOptions { memory_bytes: 0, ..options(&path.0, FILE) }, "memory_bytes"),
    ] {
        let error = refused(options);
        assert!(error.message.contains(words), "{error}");
    }
    // A node that could not be opened keeps nothing: another one takes the file.
    let memory_alone = PoolOptions { memory_bytes: MEMORY, ..PoolOptions::default() };
    let pool = Pool::open(&engine, memory_alone).unwrap();
    let error = refused(options(&path.0, FILE));
    assert!(error.message.contains("has a pool already"), "{error}");
    close(open(options(&path.0, FILE)));
    pool.close(PATIENCE).unwrap();
    engine.close(PATIENCE).unwrap();
}
