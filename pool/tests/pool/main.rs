//! Pools of several nodes in one process, each on an engine of its own.

mod drain;
mod listed;
mod parts;
mod prefetch;
mod quotas;
mod tier;
mod visible;

use std::time::Duration;

use ferry::{Access, Config, Engine, Memory, RegionOptions};
use ferry_pool::{Digest, Identity, Keyspace, Outcome, Pool, PoolOptions, PutOptions, Value};

pub const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

pub struct Node {
    pub engine: Engine,
    pub pool: Pool,
}

pub fn engine() -> Engine {
    let mut config = Config::default();
    config.set("allow_unauthenticated", "true").unwrap();
    Engine::open(config).unwrap()
}

/// Nodes that know one another, each with this much memory.
pub fn cluster(memory: &[u64]) -> Vec<Node> {
    let engines: Vec<Engine> = memory.iter().map(|_| engine()).collect();
    let nodes: Vec<String> = engines.iter().map(|engine| engine.address().to_owned()).collect();
    let open = |(engine, memory_bytes): (Engine, &u64)| {
        let options =
            PoolOptions { nodes: nodes.clone(), memory_bytes: *memory_bytes, ..PoolOptions::default() };
        let pool = Pool::open(&engine, options).unwrap();
        Node { engine, pool }
    };
    let nodes: Vec<Node> = engines.into_iter().zip(memory).map(open).collect();
    nodes.iter().for_each(|node| wait_for(&node.pool, memory.len()));
    nodes
}

/// Waits until so many nodes have met, and the index is made: until then what nobody has is UNKNOWN.
pub fn wait_for(pool: &Pool, nodes: usize) {
    pool.wait_for_nodes(nodes, PATIENCE).unwrap();
    let nobody = [Digest([255; 32])];
    let is_absent = || pool.exists(&nobody, false, PATIENCE).unwrap()[0].outcome == Outcome::Absent;
    assert!((0..20_000).any(|_| is_absent() || {
        std::thread::sleep(Duration::from_millis(1));
        false
    }));
}

impl Node {
    pub fn buffer(&self, bytes: usize) -> Memory {
        self.engine.alloc(bytes, &RegionOptions { access: Access::BOTH, ..RegionOptions::default() }).unwrap()
    }

    pub fn put(&self, values: &[Value]) -> Vec<Outcome> {
        let ends = self.pool.put(values, &PutOptions::default(), PATIENCE).unwrap();
        ends.into_iter().map(|end| end.outcome).collect()
    }

    pub fn get(&self, values: &[Value]) -> Vec<Outcome> {
        self.pool.get(values, PATIENCE).unwrap().into_iter().map(|end| end.outcome).collect()
    }
}

pub fn key(number: u64) -> Digest {
    let space = Keyspace::new("tests", &Identity { model: "tests".into(), ..Identity::default() }).unwrap();
    space.own(&number.to_le_bytes()).unwrap()
}

/// Each eight bytes say whose they are and where they belong.
pub fn fill(memory: &Memory, offset: usize, bytes: usize, number: u64) {
    let words: Vec<u8> = (0..bytes as u64 / 8).flat_map(|at| (number << 32 | at).to_le_bytes()).collect();
    memory.write(offset, &words);
}

pub fn check(memory: &Memory, offset: usize, bytes: usize, number: u64) {
    let mut words = vec![0; bytes];
    memory.read(offset, &mut words);
    for (at, word) in words.chunks_exact(8).enumerate() {
        assert_eq!(
            u64::from_le_bytes(word.try_into().unwrap()),
            number << 32 | at as u64,
            "word {at} of value {number}"
        );
    }
}

/// Values of equal length, one behind the other in the memory.
pub fn values(memory: &Memory, bytes: usize, numbers: impl Iterator<Item = u64>) -> Vec<Value> {
    let at = |nth: usize| memory.address() + (nth * bytes) as u64;
    numbers
        .enumerate()
        .map(|(nth, number)| Value { key: key(number), memory: vec![(at(nth), bytes as u64)] })
        .collect()
}

#[test]
fn what_one_node_puts_every_node_gets() {
    let nodes = cluster(&[64 << 20, 64 << 20, 0]);
    const BYTES: usize = 100_000;
    for (from, node) in nodes.iter().enumerate() {
        let memory = node.buffer(10 * BYTES);
        let numbers = || (0..10).map(move |nth| 100 * from as u64 + nth);
        numbers().enumerate().for_each(|(nth, number)| fill(&memory, nth * BYTES, BYTES, number));
        assert_eq!(node.put(&values(&memory, BYTES, numbers())), [Outcome::Ok; 10], "from {from}");
        assert_eq!(node.put(&values(&memory, BYTES, numbers())), [Outcome::Here; 10], "from {from}");
        for (to, node) in nodes.iter().enumerate() {
            let memory = node.buffer(10 * BYTES);
            assert_eq!(
                node.get(&values(&memory, BYTES, numbers())),
                [Outcome::Ok; 10],
                "from {from} to {to}"
            );
            numbers().enumerate().for_each(|(nth, number)| check(&memory, nth * BYTES, BYTES, number));
        }
    }
    let keys: Vec<Digest> = (0..10).chain(900..905).map(key).collect();
    for node in &nodes {
        let ends = node.pool.exists(&keys, false, PATIENCE).unwrap();
        let found = ends.iter().filter(|end| end.outcome == Outcome::Ok).count();
        let absent = ends.iter().filter(|end| end.outcome == Outcome::Absent).count();
        assert_eq!((found, absent), (10, 5));
    }
    nodes.iter().for_each(|node| node.pool.close(PATIENCE).unwrap());
}
