//! Tenants with a quota: at a node with a file, in a prefetch, and when the node is opened.

use ferry::{Memory, Status};
use ferry_pool::{
    Digest, FileOptions, Identity, Keyspace, Outcome, Pool, PoolOptions, Quota, TenantStats, Value,
};

use crate::{check, cluster, engine, fill, key, values, Node, PATIENCE};

const BYTES: usize = 16 << 10;
const KIB: u64 = 1 << 10;

fn quota(bytes: u64) -> Vec<Quota> {
    vec![Quota::new("tests", None, bytes).unwrap()]
}

fn open(options: PoolOptions) -> Node {
    let engine = engine();
    let pool = Pool::open(&engine, options).unwrap();
    Node { engine, pool }
}

fn close(node: Node) {
    node.pool.close(PATIENCE).unwrap();
    node.engine.close(PATIENCE).unwrap();
}

/// The key of a tenant without a quota.
fn other(number: u64) -> Digest {
    let space = Keyspace::new("other", &Identity { model: "tests".into(), ..Identity::default() }).unwrap();
    space.own(&number.to_le_bytes()).unwrap()
}

/// Puts values one by one, each when the one before is in the file.
fn put_all(node: &Node, memory: &Memory, keys: impl Iterator<Item = (u64, Digest)>) {
    for (number, key) in keys {
        let saved = node.pool.stats().owner.saved;
        fill(memory, 0, BYTES, number);
        let value = Value { key, memory: vec![(memory.address(), BYTES as u64)] };
        assert_eq!(node.put(&[value]), [Outcome::Ok]);
        while node.pool.stats().owner.saved == saved {
            assert_eq!(node.pool.stats().owner.tier_failed, 0);
            std::thread::yield_now();
        }
    }
}

/// Values come faster than they are saved. Memory has room for 32 of the tenant, and the file for 15.
#[test]
fn the_newest_values_of_a_burst_are_in_the_file() {
    let path = std::env::temp_dir().join(format!("ferry-quotas-burst-{}", std::process::id()));
    drop(std::fs::remove_file(&path));
    let options = || PoolOptions {
        memory_bytes: 1024 * KIB,
        file: Some(FileOptions { path: path.clone(), bytes: 2 << 20 }),
        quotas: quota(512 * KIB),
        ..PoolOptions::default()
    };
    let node = open(options());
    let memory = node.buffer(BYTES);
    for number in 0..32 {
        fill(&memory, 0, BYTES, number);
        let value = Value { key: key(number), memory: vec![(memory.address(), BYTES as u64)] };
        assert_eq!(node.put(&[value]), [Outcome::Ok]);
    }
    drop(memory);
    // A close waits for what is to be saved.
    close(node);
    let node = open(options());
    let keys: Vec<Digest> = (0..32).map(key).collect();
    let ends = node.pool.exists(&keys, false, PATIENCE).unwrap();
    let held: Vec<usize> = (0..32).filter(|at| ends[*at].outcome.is_ok()).collect();
    assert!(held.len() >= 10 && held.ends_with(&[28, 29, 30, 31]), "{held:?}");
    close(node);
    std::fs::remove_file(&path).unwrap();
}

fn has(node: &Node) -> TenantStats {
    let [stats]: [TenantStats; 1] = node.pool.tenants().try_into().unwrap();
    stats
}

#[test]
fn a_tenant_has_its_share_of_memory_and_file_also_after_a_restart() {
    let path = std::env::temp_dir().join(format!("ferry-quotas-{}", std::process::id()));
    drop(std::fs::remove_file(&path));
    // An eighth of both: 8 values in memory, and 15 of 64 KiB in the file.
    let options = |bytes| PoolOptions {
        memory_bytes: 1024 * KIB,
        file: Some(FileOptions { path: path.clone(), bytes: 8 << 20 }),
        quotas: quota(bytes),
        ..PoolOptions::default()
    };
    let node = open(options(128 * KIB));
    let memory = node.buffer(BYTES);
    put_all(&node, &memory, (0..4).map(|number| (number, other(number))));
    put_all(&node, &memory, (0..40).map(|number| (number, key(number))));
    let stats = has(&node);
    let (memory_values, file_values) = (8, 15);
    assert_eq!((stats.values, stats.bytes, stats.evicted), (memory_values, 128 * KIB, 40 - memory_values));
    assert_eq!(stats.file_bytes, file_values * 64 * KIB);
    assert_eq!(node.pool.stats().tier_objects, 4 + file_values);
    drop(memory);
    close(node);

    let node = open(options(128 * KIB));
    let memory = node.buffer(BYTES);
    assert_eq!((has(&node).bytes, has(&node).file_bytes), (0, file_values * 64 * KIB));
    for number in 40 - file_values..40 {
        assert_eq!(node.get(&values(&memory, BYTES, number..number + 1)), [Outcome::Ok], "{number}");
        check(&memory, 0, BYTES, number);
    }
    assert_eq!((has(&node).values, has(&node).evicted), (memory_values, file_values - memory_values));
    let all: Vec<Digest> = (0..4).map(other).collect();
    let ends = node.pool.exists(&all, false, PATIENCE).unwrap();
    assert!(ends.iter().all(|end| end.outcome == Outcome::Ok), "{ends:?}");
    drop(memory);
    close(node);

    // The quota is lower: the next value that comes takes the place of all that are too many.
    let node = open(options(32 * KIB));
    let memory = node.buffer(BYTES);
    put_all(&node, &memory, [(40, key(40))].into_iter());
    assert_eq!((has(&node).values, has(&node).file_bytes), (1, 3 * 64 * KIB));
    assert_eq!(node.pool.stats().tier_objects, 4 + 3);
    drop(memory);
    close(node);
    drop(std::fs::remove_file(&path));
}

#[test]
fn a_prefetch_keeps_to_the_quota_and_keeps_the_head_of_its_prefix() {
    let source = cluster(&[1024 * KIB]).pop().unwrap();
    let memory = source.buffer(8 * BYTES);
    (0..6).for_each(|number| fill(&memory, number as usize * BYTES, BYTES, number));
    assert_eq!(source.put(&values(&memory, BYTES, 0..6)), [Outcome::Ok; 6]);
    let nodes = vec![source.engine.address().to_owned()];
    let options =
        PoolOptions { nodes, memory_bytes: 1024 * KIB, quotas: quota(64 * KIB), ..PoolOptions::default() };
    let node = open(options);
    node.pool.wait_for_nodes(2, PATIENCE).unwrap();
    // Older than the prefix: values of another tenant, and two of this one.
    let own = node.buffer(BYTES);
    let place = |key| Value { key, memory: vec![(own.address(), BYTES as u64)] };
    assert_eq!(node.put(&[place(other(1)), place(key(100)), place(key(101))]), [Outcome::Ok; 3]);
    let prefix: Vec<Digest> = (0..6).map(key).collect();
    let ends = node.pool.prefetch(&prefix, true, PATIENCE).unwrap();
    let outcomes: Vec<Outcome> = ends.iter().map(|end| end.outcome).collect();
    assert_eq!(outcomes, [[Outcome::Ok; 4].as_slice(), &[Outcome::Full; 2]].concat());
    let store = node.pool.prefetch(&[other(1), prefix[0], prefix[3]], false, PATIENCE).unwrap();
    assert!(store.iter().all(|end| end.outcome == Outcome::Here), "{store:?}");
    assert_eq!((has(&node).values, has(&node).evicted), (4, 2));
    drop(own);
    close(node);
    drop(memory);
    close(source);
}

#[test]
fn quotas_that_cannot_be_are_refused() {
    let engine = engine();
    let of = |tenant, bytes| Quota::new(tenant, None, bytes).unwrap();
    for (memory_bytes, quotas, told) in [
        (0, vec![of("a", 1 << 20)], "a node with quotas lends memory: give it memory_bytes"),
        (1 << 20, vec![of("a", 16_383)], "one has less than a unit of 16384 bytes; give it more"),
        (1 << 20, vec![of("a", 1 << 20); 2], "a tenant is there twice; give each tenant one quota"),
        (1 << 20, vec![of("a", 1 << 20); 4097], "more than 4096"),
    ] {
        let options = PoolOptions { memory_bytes, quotas, ..PoolOptions::default() };
        let error = Pool::open(&engine, options).map(drop).unwrap_err();
        assert_eq!(error.status, Status::Invalid, "{error}");
        assert_eq!(error.message, format!("options.quotas: {told}"));
    }
    let error = Quota::new("a", Some(b"secret"), 1).unwrap_err();
    assert!(error.message.starts_with("secret: 6 bytes, which are not 16 to 1024; take"), "{error}");
    // More than the node has is all of it.
    let options = PoolOptions { memory_bytes: 1 << 20, quotas: quota(1 << 60), ..PoolOptions::default() };
    let pool = Pool::open(&engine, options).unwrap();
    assert_eq!(pool.tenants().len(), 1);
    pool.close(PATIENCE).unwrap();
}
