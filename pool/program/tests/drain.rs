//! Nodes of the shipped program are taken out while a client puts and gets: no get misses a value that was stored, the node
//! ends itself, and one that is killed in the midst costs its own values alone.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferry::{Access, Config, Engine, Memory, RegionOptions};
use ferry_pool::{Digest, Identity, KeyEnd, Keyspace, Outcome, Pool, PoolOptions, PutOptions, Value};

const VALUES: u64 = 2_000;
const BYTES_MAX: usize = 64 << 10;
const BATCH: u64 = 50;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Three nodes, each with a name, and a client.
struct Cluster {
    nodes: Vec<Child>,
    list: String,
    engine: Engine,
    pool: Pool,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in &mut self.nodes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ferry-pool"))
}

impl Cluster {
    fn new(count: usize) -> Cluster {
        // Ports that are free now.
        let listeners: Vec<TcpListener> =
            NAMES[..count].iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<String> =
            listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
        drop(listeners);
        let list = addresses.join(",");
        let start = |(name, address): (&&str, &String)| {
            let mut child = program()
                .args(["serve", "--memory", "128M", "--name", name, "--listen", address, "--nodes", &list])
                .arg("--allow-unauthenticated")
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert!(line.contains("lends"), "the node says {line:?}");
            child
        };
        let nodes: Vec<Child> = NAMES.iter().zip(&addresses).map(start).collect();
        let mut config = Config::default();
        config.set("allow_unauthenticated", "true").unwrap();
        let engine = Engine::open(config).unwrap();
        let pool = Pool::open(&engine, PoolOptions { nodes: addresses, ..PoolOptions::default() }).unwrap();
        pool.wait_for_nodes(count + 1, PATIENCE).unwrap();
        Cluster { nodes, list, engine, pool }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program();
        command.args(arguments).args(["--nodes", &self.list, "--allow-unauthenticated"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn memory(&self) -> Memory {
        let access = RegionOptions { access: Access::BOTH, ..RegionOptions::default() };
        self.engine.alloc(BATCH as usize * BYTES_MAX, &access).unwrap()
    }

    fn put(&self, memory: &Memory, numbers: std::ops::Range<u64>) -> Vec<KeyEnd> {
        let values: Vec<Value> = numbers.map(|number| self.value(memory, number, true)).collect();
        let ends = self.pool.put(&values, &PutOptions::default(), PATIENCE).unwrap();
        assert!(ends.iter().all(|end| end.outcome == Outcome::Ok), "{ends:?}");
        ends
    }

    /// The outcomes of a get. The bytes that came are right.
    fn get(&self, memory: &Memory, numbers: std::ops::Range<u64>) -> Vec<Outcome> {
        let values: Vec<Value> = numbers.clone().map(|number| self.value(memory, number, false)).collect();
        let ends = self.pool.get(&values, PATIENCE).unwrap();
        for (number, _) in numbers.zip(&ends).filter(|(_, end)| end.outcome == Outcome::Ok) {
            let mut bytes = vec![0; length(number)];
            memory.read((number % BATCH) as usize * BYTES_MAX, &mut bytes);
            assert!(bytes == contents(number), "value {number} has wrong bytes");
        }
        ends.into_iter().map(|end| end.outcome).collect()
    }

    fn value(&self, memory: &Memory, number: u64, is_put: bool) -> Value {
        let at = (number % BATCH) as usize * BYTES_MAX;
        memory.write(at, &if is_put { contents(number) } else { vec![0xee; length(number)] });
        Value { key: key(number), memory: vec![(memory.address() + at as u64, length(number) as u64)] }
    }
}

fn key(number: u64) -> Digest {
    let space = Keyspace::new("tests", &Identity { model: "drain".into(), ..Identity::default() }).unwrap();
    space.own(&number.to_le_bytes()).unwrap()
}

fn length(number: u64) -> usize {
    8 * (1 + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % (BYTES_MAX / 8))
}

/// Each eight bytes say whose they are and where they belong.
fn contents(number: u64) -> Vec<u8> {
    (0..length(number) as u64 / 8).flat_map(|at| (number << 32 | at).to_le_bytes()).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until a child has ended, and returns how.
fn ended(child: &mut Child) -> std::process::ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(began.elapsed() < PATIENCE.unwrap(), "the node does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn no_get_misses_a_value_while_its_node_is_taken_out() {
    let mut cluster = Cluster::new(3);
    let memory = cluster.memory();
    let mut holders = BTreeSet::new();
    for from in (0..VALUES).step_by(BATCH as usize) {
        holders.extend(cluster.put(&memory, from..from + BATCH).into_iter().map(|end| end.node.unwrap().0));
    }
    assert_eq!(holders.len(), 3, "all nodes hold values");
    let (is_over, stored, got) = (AtomicBool::new(false), AtomicU64::new(VALUES), AtomicU64::new(0));
    let (status, output) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let memory = cluster.memory();
            let mut from = 0;
            while !is_over.load(Ordering::Relaxed) {
                let outcomes = cluster.get(&memory, from..from + BATCH);
                assert!(outcomes.iter().all(|it| *it == Outcome::Ok), "from {from}: {outcomes:?}");
                got.fetch_add(BATCH, Ordering::Relaxed);
                from = (from + BATCH) % stored.load(Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            let memory = cluster.memory();
            while !is_over.load(Ordering::Relaxed) && stored.load(Ordering::Relaxed) < 2 * VALUES {
                let from = stored.load(Ordering::Relaxed);
                cluster.put(&memory, from..from + BATCH);
                stored.store(from + BATCH, Ordering::Relaxed);
            }
        });
        let output = cluster.run(&["drain", "--node", "b"]);
        let status = cluster.command(&["status"]).output().unwrap();
        // The node is gone, and the gets go on for a while.
        let before = got.load(Ordering::Relaxed);
        let began = Instant::now();
        while got.load(Ordering::Relaxed) < before + 2 * VALUES && began.elapsed() < PATIENCE.unwrap() {
            std::thread::sleep(Duration::from_millis(5));
        }
        is_over.store(true, Ordering::Relaxed);
        (status, output)
    });
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains(" 0 left"), "{said} {}", text(&output.stderr));
    let moved: u64 = said.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(moved > VALUES / 10, "{said}");
    assert_eq!(ended(&mut cluster.nodes[1]).code(), Some(0));
    drop(status);
    for from in (0..stored.into_inner()).step_by(BATCH as usize) {
        let outcomes = cluster.get(&memory, from..from + BATCH);
        assert!(outcomes.iter().all(|it| *it == Outcome::Ok), "from {from}: {outcomes:?}");
    }
}

#[test]
fn a_node_that_is_killed_in_its_drain_costs_its_own_values_alone() {
    let mut cluster = Cluster::new(3);
    let memory = cluster.memory();
    let victim = cluster.pool.nodes().into_iter().find(|node| node.name == "b").unwrap().id;
    let (mut safe, mut its) = (Vec::new(), 0);
    for from in (0..VALUES).step_by(BATCH as usize) {
        for (number, end) in (from..).zip(cluster.put(&memory, from..from + BATCH)) {
            if end.node == victim {
                its += 1;
            } else {
                safe.push(number);
            }
        }
    }
    let drain = cluster.command(&["drain", "--node", "b"]).spawn().unwrap();
    let began = Instant::now();
    let drains = |node: &ferry_pool::NodeInfo| node.name == "b" && node.is_draining;
    while !cluster.pool.nodes().iter().any(drains) {
        assert!(began.elapsed() < PATIENCE.unwrap(), "the node does not say that it is drained");
        std::thread::sleep(Duration::from_micros(100));
    }
    std::thread::sleep(Duration::from_millis(2));
    cluster.nodes[1].kill().unwrap();
    assert!(!ended(&mut cluster.nodes[1]).success());
    let output = drain.wait_with_output().unwrap();
    let why = text(&output.stderr);
    assert!(!output.status.success() && why.contains("lost before it answered"), "{why}");
    for number in &safe {
        assert_eq!(cluster.get(&memory, *number..number + 1), [Outcome::Ok], "value {number}");
    }
    // The moved values are there, and all others are missed: no call hangs, and no byte is wrong.
    let all = (0..VALUES).map(|number| cluster.get(&memory, number..number + 1)[0]);
    let found = all.filter(|outcome| *outcome == Outcome::Ok).count() - safe.len();
    println!("{found} of {its} values were moved before the node was killed");
    cluster.put(&memory, VALUES..VALUES + BATCH);
    assert!(cluster.get(&memory, VALUES..VALUES + BATCH).iter().all(|it| *it == Outcome::Ok));
}

#[test]
fn a_node_ends_without_copies_and_the_last_one_is_not_taken_out() {
    let mut cluster = Cluster::new(2);
    let memory = cluster.memory();
    cluster.put(&memory, 0..BATCH);
    let output = cluster.run(&["drain", "--node", "nobody"]);
    let why = text(&output.stderr);
    assert!(!output.status.success() && why.contains("\"nobody\""), "{why}");
    let output = cluster.run(&["drain", "--node", "a", "--no-copy"]);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("a: 0 values moved"), "{said} {}", text(&output.stderr));
    assert_eq!(ended(&mut cluster.nodes[0]).code(), Some(0));
    let output = cluster.run(&["drain", "--node", "b"]);
    let why = text(&output.stderr);
    assert!(!output.status.success() && why.contains("\"b\" is the only node"), "{why}");
    // It goes on.
    cluster.put(&memory, BATCH..2 * BATCH);
    assert!(cluster.nodes[1].try_wait().unwrap().is_none());
}

#[test]
fn ls_and_top_say_what_nodes_hold_and_do() {
    let cluster = Cluster::new(2);
    let memory = cluster.memory();
    let holders = cluster.put(&memory, 0..BATCH);
    let output = cluster.run(&["ls"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said} {}", text(&output.stderr));
    let rows: Vec<Vec<&str>> = said.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let mut found = BTreeSet::new();
    for row in &rows {
        let number =
            (0..BATCH).find(|number| key(*number).to_string()[..16] == *row[1]).expect("a key that was put");
        assert!(key(number).to_string().ends_with(row[2]), "{row:?}");
        assert_eq!(row[3..], [length(number).to_string().as_str(), "memory"], "{row:?}");
        found.insert(number);
    }
    assert_eq!((rows.len(), found.len()), (BATCH as usize, BATCH as usize));
    // The value that was got is the one that was used last.
    assert_eq!(cluster.get(&memory, 7..8), [Outcome::Ok]);
    let names = cluster.pool.nodes();
    let holder = &names.iter().find(|node| node.id == holders[7].node).unwrap().name;
    let output = cluster.run(&["ls", "--node", holder, "--limit", "1"]);
    assert!(
        text(&output.stdout).lines().nth(1).unwrap().contains(&key(7).to_string()[..16]),
        "{}",
        text(&output.stdout)
    );
    let output = cluster.run(&["top", "--count", "2"]);
    let said = text(&output.stdout);
    let rows: Vec<&str> = said.lines().collect();
    assert_eq!((output.status.success(), rows.len()), (true, 6), "{said} {}", text(&output.stderr));
    let values = |row: &str| row.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap();
    assert_eq!(values(rows[4]) + values(rows[5]), BATCH, "{said}");
    let output = cluster.run(&["status"]);
    assert!(output.status.success() && text(&output.stdout).matches(" up").count() == 2, "{said}");
}
