//! Nodes of the shipped program are killed with SIGKILL while values are put and got: no byte is ever wrong, nothing is lost
//! while a replica lives, and a node that is started again serves, from its file too. FERRY_TEST_ROUNDS is the number of
//! rounds (default 6), FERRY_TEST_SEED the seed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferry::{Access, Config, Engine, Memory, RegionOptions};
use ferry_pool::{Digest, Identity, Keyspace, Outcome, Pool, PoolOptions, PutOptions, Value};
use rustix::process::{kill_process, Pid, Signal};

const NODES: usize = 3;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));
/// Within which everything is found again after a node is killed.
const SETTLED: Duration = Duration::from_secs(5);
const BYTES_MAX: usize = 1 << 20;

struct Node {
    port: u16,
    file: PathBuf,
    child: Option<Child>,
}

impl Node {
    fn start(&mut self, nodes: &str) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ferry-pool"))
            .args(["serve", "--memory", "24M", "--nodes", nodes, "--allow-unauthenticated"])
            .args(["--listen", &format!("127.0.0.1:{}", self.port)])
            .args(["--file", self.file.to_str().unwrap(), "--file-bytes", "128M"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("lends"), "the node says {line:?}");
        self.child = Some(child);
    }

    /// SIGTERM ends it well, although nobody reads what it says.
    fn end(&mut self, signal: Signal) {
        let mut child = self.child.take().unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().success(), signal == Signal::TERM);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_file(&self.file);
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// A program that puts and gets, with memory for one value of each of its threads.
struct Client {
    engine: Engine,
    pool: Pool,
}

fn key(number: u64) -> Digest {
    let space = Keyspace::new("tests", &Identity { model: "kill".into(), ..Identity::default() }).unwrap();
    space.own(&number.to_le_bytes()).unwrap()
}

/// A function of the number alone: lengths of all kinds, and each eight bytes say whose they are and where they belong.
fn value(number: u64) -> Vec<u8> {
    let length = 8 * (1 + Random(number).next(BYTES_MAX as u64 / 8));
    (0..length / 8).flat_map(|at| (number << 32 | at).to_le_bytes()).collect()
}

impl Client {
    fn memory(&self) -> Memory {
        self.engine
            .alloc(BYTES_MAX, &RegionOptions { access: Access::BOTH, ..RegionOptions::default() })
            .unwrap()
    }

    fn put(&self, memory: &Memory, number: u64) -> Outcome {
        let bytes = value(number);
        memory.write(0, &bytes);
        let values = [Value { key: key(number), memory: vec![(memory.address(), bytes.len() as u64)] }];
        self.pool.put(&values, &PutOptions { replicas: 2, ..PutOptions::default() }, PATIENCE).unwrap()[0]
            .outcome
    }

    fn get(&self, memory: &Memory, number: u64) -> Outcome {
        let expected = value(number);
        memory.write(0, &vec![0xee; expected.len()]);
        let values = [Value { key: key(number), memory: vec![(memory.address(), expected.len() as u64)] }];
        let end = self.pool.get(&values, PATIENCE).unwrap()[0];
        if end.outcome == Outcome::Ok {
            let mut bytes = vec![0; expected.len()];
            memory.read(0, &mut bytes);
            assert!(bytes == expected, "value {number} has wrong bytes");
        }
        end.outcome
    }
}

#[test]
fn a_killed_node_loses_no_byte_that_a_replica_has() {
    let read = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let seed = read("FERRY_TEST_SEED", u64::from(std::process::id()));
    println!("FERRY_TEST_SEED={seed}");
    let mut random = Random(seed);
    // Ports that are free now: a node that is started again has its own one.
    let listeners: Vec<TcpListener> = (0..NODES).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    drop(listeners);
    let addresses: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let list = addresses.join(",");
    let file = |port: u16| std::env::temp_dir().join(format!("ferry-kill-{}-{port}", std::process::id()));
    let node = |port: u16| Node { port, file: file(port), child: None };
    let mut nodes: Vec<Node> = ports.into_iter().map(node).collect();
    nodes.iter_mut().for_each(|node| node.start(&list));
    let mut config = Config::default();
    config.set("allow_unauthenticated", "true").unwrap();
    let engine = Engine::open(config).unwrap();
    let pool = Pool::open(&engine, PoolOptions { nodes: addresses, ..PoolOptions::default() }).unwrap();
    let client = Client { engine, pool };
    let mut next = 1;
    for round in 0..read("FERRY_TEST_ROUNDS", 6) {
        client.pool.wait_for_nodes(NODES + 1, PATIENCE).unwrap();
        let stored = next..next + 8;
        next += 8;
        let memory = client.memory();
        stored
            .clone()
            .for_each(|number| assert_eq!(client.put(&memory, number), Outcome::Ok, "round {round}"));
        let victim = random.next(NODES as u64) as usize;
        let wait = Duration::from_micros(random.next(30_000));
        let late = AtomicU64::new(next);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let memory = client.memory();
                let mut outcomes = BTreeMap::<&str, u64>::new();
                for number in stored.clone().cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    *outcomes.entry(client.get(&memory, number).name()).or_default() += 1;
                }
                println!("round {round}: gets while node {victim} is killed: {outcomes:?}");
            });
            scope.spawn(|| {
                let memory = client.memory();
                while !is_over.load(Ordering::Relaxed) {
                    // Whatever becomes of it, its bytes are right or are not there.
                    client.put(&memory, late.fetch_add(1, Ordering::Relaxed));
                }
            });
            std::thread::sleep(wait);
            nodes[victim].end(Signal::KILL);
            let killed = Instant::now();
            let mut missing: Vec<u64> = stored.clone().collect();
            while !missing.is_empty() {
                missing.retain(|number| client.get(&memory, *number) != Outcome::Ok);
                assert!(killed.elapsed() < SETTLED, "round {round}, seed {seed}: {missing:?} are lost");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        nodes[victim].start(&list);
        client.pool.wait_for_nodes(NODES + 1, PATIENCE).unwrap();
        let all: Vec<u64> = (stored.start..late.load(Ordering::Relaxed)).collect();
        // Whatever there is has its own bytes.
        for number in &all {
            client.get(&memory, *number);
        }
        let keys: Vec<Digest> = all.iter().map(|number| key(*number)).collect();
        client.pool.remove(&keys, PATIENCE).unwrap();
        for number in &all {
            assert_ne!(client.get(&memory, *number), Outcome::Ok, "value {number} was removed");
        }
        next = late.load(Ordering::Relaxed);
    }
    // All nodes end at once. Their files have the values that they held.
    let memory = client.memory();
    let stored = next..next + 40;
    stored.clone().for_each(|number| assert_eq!(client.put(&memory, number), Outcome::Ok, "value {number}"));
    nodes.iter_mut().for_each(|node| node.end(Signal::TERM));
    nodes.iter_mut().for_each(|node| node.start(&list));
    let began = Instant::now();
    let mut missing: Vec<u64> = stored.collect();
    while !missing.is_empty() {
        missing.retain(|number| client.get(&memory, *number) != Outcome::Ok);
        assert!(began.elapsed() < SETTLED, "seed {seed}: {missing:?} are lost");
    }
    client.pool.close(PATIENCE).unwrap();
}
