//! Nodes that find each other in a real etcd, which each test starts and stops for itself: in this process, and as the
//! program.

#[path = "../../../directory/tests/etcd/server.rs"]
#[allow(dead_code)]
mod server;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferry::{Access, Config, Engine, Memory, RegionOptions, Status};
use ferry_pool::{
    Digest, DirectoryOptions, Identity, Keyspace, NodeInfo, Outcome, Pool, PoolOptions, PutOptions, Value,
};
use rustix::process::{kill_process, Pid, Signal};
use server::Server;

const PATIENCE: Duration = Duration::from_secs(30);
const BYTES: usize = 1 << 12;

fn engine() -> Engine {
    let mut config = Config::default();
    config.set("allow_unauthenticated", "true").unwrap();
    Engine::open(config).unwrap()
}

struct Node {
    engine: Engine,
    pool: Pool,
    memory: Memory,
}

/// A node with a name is a member, one without a client.
fn options(url: &str, name: &str) -> PoolOptions {
    PoolOptions {
        name: name.into(),
        memory_bytes: if name.is_empty() { 0 } else { 16 << 20 },
        directory: Some(url.into()),
        directory_options: DirectoryOptions {
            ttl: Duration::from_secs(3_600),
            open_timeout: Some(PATIENCE),
            ..DirectoryOptions::default()
        },
        ..PoolOptions::default()
    }
}

fn key(number: u64) -> Digest {
    let space = Keyspace::new("tests", &Identity { model: "etcd".into(), ..Identity::default() }).unwrap();
    space.own(&number.to_le_bytes()).unwrap()
}

/// Each eight bytes say whose they are and where they belong.
fn words(number: u64) -> Vec<u8> {
    (0..BYTES as u64 / 8).flat_map(|at| (number << 32 | at).to_le_bytes()).collect()
}

impl Node {
    fn new(url: &str, name: &str) -> Node {
        let engine = engine();
        let pool = Pool::open(&engine, options(url, name)).unwrap();
        let access = RegionOptions { access: Access::BOTH, ..RegionOptions::default() };
        let memory = engine.alloc(BYTES, &access).unwrap();
        Node { engine, pool, memory }
    }

    fn value(&self, number: u64) -> [Value; 1] {
        [Value { key: key(number), memory: vec![(self.memory.address(), BYTES as u64)] }]
    }

    fn put(&self, number: u64) {
        self.memory.write(0, &words(number));
        let ends = self.pool.put(&self.value(number), &PutOptions::default(), Some(PATIENCE)).unwrap();
        assert_eq!(ends[0].outcome, Outcome::Ok, "value {number}");
    }

    fn get(&self, number: u64) {
        self.memory.write(0, &[0; BYTES]);
        let ends = self.pool.get(&self.value(number), Some(PATIENCE)).unwrap();
        assert_eq!(ends[0].outcome, Outcome::Ok, "value {number}");
        let mut bytes = vec![0; BYTES];
        self.memory.read(0, &mut bytes);
        assert!(bytes == words(number), "value {number} has wrong bytes");
    }

    /// The node's answer for a key that nobody has.
    fn says_of_nothing(&self) -> Outcome {
        self.pool.exists(&[key(u64::MAX)], false, Some(PATIENCE)).unwrap()[0].outcome
    }

    /// The node at this address, as far as it is known; None if it is neither connected nor dialed.
    fn knows(&self, address: &str) -> Option<NodeInfo> {
        self.pool.nodes().into_iter().find(|node| node.address == address)
    }

    fn finds(&self, count: usize) {
        self.pool.wait_for_nodes(count, Some(PATIENCE)).unwrap();
    }

    fn close(&self) {
        self.pool.close(Some(PATIENCE)).unwrap();
    }
}

/// The program, as a node.
struct Program {
    child: Child,
    address: String,
}

impl Program {
    fn serve(url: &str, name: &str, ttl_s: &str) -> Program {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ferry-pool"))
            .args(["serve", "--memory", "16M", "--listen", "127.0.0.1:0", "--name", name])
            .args(["--directory", url, "--directory-ttl", ttl_s, "--allow-unauthenticated"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.trim_end().rsplit_once(" at ").unwrap_or_else(|| panic!("the node says {line:?}")).1;
        Program { address: address.to_owned(), child }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for what other threads and processes bring about.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it did not come about that {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn nodes_find_each_other_in_etcd() {
    let Some(server) = Server::started("nodes_find_each_other_in_etcd") else { return };
    let nodes = ["a", "b", "c"].map(|name| Node::new(&server.url(), name));
    nodes.iter().for_each(|node| node.finds(3));
    assert!(["a", "b", "c"].iter().all(|name| server.get(&format!("/test/pool/ferry/{name}")).is_some()));
    (0..3).for_each(|at| nodes[at].put(at as u64));
    // A client is told nothing but the URL, and nobody is told of it.
    let client = Node::new(&server.url(), "");
    client.finds(4);
    (0..3).for_each(|number| client.get(number));
    assert_eq!(client.says_of_nothing(), Outcome::Absent);
    // Nodes of another cluster have names of their own.
    let other = PoolOptions { cluster: "other".into(), ..options(&server.url(), "a") };
    let (apart, engine) = (&engine(), &nodes[0].engine);
    let apart = Pool::open(apart, other).unwrap();
    assert_eq!(apart.nodes().len(), 1);
    apart.close(Some(PATIENCE)).unwrap();
    // A node that closes is missed by nobody, and its name is free at once.
    nodes[0].close();
    assert_eq!(server.get("/test/pool/ferry/a"), None);
    until("the client forgets it", || {
        engine.close(Some(PATIENCE)).unwrap();
        client.knows(engine.address()).is_none() && client.says_of_nothing() == Outcome::Absent
    });
    let again = Node::new(&server.url(), "a");
    [&client, &again].iter().for_each(|node| node.finds(4));
    client.get(1);
}

#[test]
fn a_killed_node_is_missed_until_its_lease_is_over() {
    let Some(server) = Server::started("a_killed_node_is_missed_until_its_lease_is_over") else { return };
    let node = Node::new(&server.url(), "a");
    let mut killed = Program::serve(&server.url(), "b", "2");
    node.finds(2);
    node.put(1);
    assert_eq!(node.says_of_nothing(), Outcome::Absent);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    until("the node is missed, and why is said", || {
        let known = node.knows(&killed.address);
        node.says_of_nothing() == Outcome::Unknown && known.is_some_and(|known| known.why.contains("refused"))
    });
    until("its lease is over", || node.knows(&killed.address).is_none());
    assert_eq!(node.says_of_nothing(), Outcome::Absent);
    node.get(1);
    // Its name is free, for a node at another address.
    let again = Program::serve(&server.url(), "b", "2");
    node.finds(2);
    assert_eq!(node.knows(&again.address).unwrap().name, "b");
}

#[test]
fn nodes_stay_connected_while_etcd_is_away() {
    let Some(mut server) = Server::started("nodes_stay_connected_while_etcd_is_away") else { return };
    let nodes = ["a", "b"].map(|name| Node::new(&server.url(), name));
    let client = Node::new(&server.url(), "");
    client.finds(3);
    nodes[1].put(1);
    server.kill();
    let engine = engine();
    let brief = DirectoryOptions { open_timeout: Some(Duration::from_millis(200)), ..Default::default() };
    let refused =
        Pool::open(&engine, PoolOptions { directory_options: brief, ..options(&server.url(), "c") });
    let error = refused.unwrap_err();
    assert!(
        error.status == Status::Unreachable && error.message.starts_with("options.directory: "),
        "{error}"
    );
    // The table stays as it was: nobody knows whether a node that goes now is over.
    nodes[0].close();
    nodes[0].engine.close(Some(PATIENCE)).unwrap();
    until("it is missed", || client.says_of_nothing() == Outcome::Unknown);
    client.get(1);
    server.start();
    let late = Node::new(&server.url(), "c");
    late.finds(3);
    late.get(1);
    client.finds(3);
    until("the names of nodes that are there are back", || server.get("/test/pool/ferry/b").is_some());
}

#[test]
fn one_of_two_nodes_of_one_name_is_refused() {
    let Some(server) = Server::started("one_of_two_nodes_of_one_name_is_refused") else { return };
    let node = Node::new(&server.url(), "a");
    let engine = engine();
    let mut second = options(&server.url(), "a");
    second.directory_options.open_timeout = Some(Duration::from_secs(1));
    let error = Pool::open(&engine, second).unwrap_err();
    let expected =
        format!("options.directory: name: pool/ferry/a is held by the engine at {}", node.engine.address());
    assert!(error.status == Status::Busy && error.message.starts_with(&expected), "{error}");
    // The engine has no pool, and the first node its name.
    let pool = Pool::open(&engine, options(&server.url(), "b")).unwrap();
    pool.wait_for_nodes(2, Some(PATIENCE)).unwrap();
    assert!(server.get("/test/pool/ferry/a").unwrap().ends_with(node.engine.address()));
    pool.close(Some(PATIENCE)).unwrap();
}

#[test]
fn a_name_is_withdrawn_before_its_node_leaves() {
    let Some(server) = Server::started("a_name_is_withdrawn_before_its_node_leaves") else { return };
    let stopped = Program::serve(&server.url(), "stopped", "3600");
    let (node, client) = (Node::new(&server.url(), "a"), Node::new(&server.url(), ""));
    [&node, &client].iter().for_each(|node| node.finds(3));
    // The node that leaves waits for this one's answer.
    stopped.signal(Signal::STOP);
    std::thread::scope(|scope| {
        let closes = scope.spawn(|| node.close());
        until("the client hears that the node leaves", || client.pool.stats().nodes < 3);
        assert_eq!(server.get("/test/pool/ferry/a"), None);
        closes.join().unwrap();
    });
    stopped.signal(Signal::CONT);
}

#[test]
fn the_program_registers_withdraws_and_lists() {
    let Some(server) = Server::started("the_program_registers_withdraws_and_lists") else { return };
    let mut nodes = ["a", "b"].map(|name| Program::serve(&server.url(), name, "3600"));
    let status = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferry-pool"));
        command.args(["status", "--directory", &server.url(), "--allow-unauthenticated"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let lists = |text: &str, node: &Program| {
        text.lines().any(|line| line.contains(&node.address) && line.ends_with(" up"))
    };
    let text = status();
    assert!(nodes.iter().all(|node| lists(&text, node)), "{text}");
    nodes[0].signal(Signal::TERM);
    assert!(nodes[0].child.wait().unwrap().success());
    assert_eq!(server.get("/test/pool/ferry/a"), None);
    let text = status();
    assert!(!text.contains(&nodes[0].address) && lists(&text, &nodes[1]), "{text}");
}
