//! A producer is killed and started again under its name. The producers are this program again.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferry::Status;
use ferry_directory::{Change, Directory};

use super::server::{free_port, Server};
use super::{engine, options, until, Node, PATIENCE};

#[test]
#[ignore = "the producer of the tests"]
fn plays_the_producer() {
    let Ok(url) = std::env::var("FERRY_TEST_DIRECTORY_URL") else { return };
    let engine = engine(&std::env::var("FERRY_TEST_DIRECTORY_LISTEN").unwrap());
    let ttl_s = std::env::var("FERRY_TEST_DIRECTORY_TTL").unwrap();
    let directory = Directory::open(&engine, &url, options(ttl_s.parse().unwrap())).unwrap();
    directory.register("a", Some(PATIENCE)).unwrap();
    println!("INCARNATION {}", engine.descriptor().unwrap().incarnation);
    std::thread::sleep(10 * PATIENCE);
}

struct Producer(Child, u64);

impl Producer {
    fn start(server: &Server, listen: &str, ttl_s: &str) -> Producer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::plays_the_producer", "--exact", "--nocapture", "--ignored"])
            .env("FERRY_TEST_DIRECTORY_URL", server.url())
            .env("FERRY_TEST_DIRECTORY_LISTEN", listen)
            .env("FERRY_TEST_DIRECTORY_TTL", ttl_s)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut said = lines.filter_map(|line| line.split_once("INCARNATION ")?.1.parse().ok());
        let incarnation = said.next().expect("the producer ended");
        Producer(child, incarnation)
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn incarnation_of(node: &Node, name: &str) -> Option<u64> {
    node.directory.lookup(name).ok()?.identity.map(|identity| identity.incarnation)
}

#[test]
fn a_producer_that_is_started_again_has_its_name_and_another_incarnation() {
    let Some(server) =
        Server::started("a_producer_that_is_started_again_has_its_name_and_another_incarnation")
    else {
        return;
    };
    let node = Node::new(&server.url(), 10);
    // The second producer listens at the first one's address, so it need not wait for the lease, which would outlast
    // its patience.
    let listen = format!("127.0.0.1:{}", free_port());
    let mut first = Producer::start(&server, &listen, "3600");
    until("the first is known", || incarnation_of(&node, "a") == Some(first.1));
    let peer = node.directory.connect("a", Some(PATIENCE)).unwrap();
    assert!(matches!(node.directory.poll().unwrap(), Some(Change::Added(_))));
    first.kill();
    let second = Producer::start(&server, &listen, "3600");
    assert_ne!(second.1, first.1);
    until("the second is known", || incarnation_of(&node, "a") == Some(second.1));
    assert!(matches!(node.directory.poll().unwrap(), Some(Change::Changed(_))));
    let again = node.directory.connect("a", Some(PATIENCE)).unwrap();
    assert_ne!(peer, again);
    assert_eq!(node.engine.peer_info(again).unwrap().incarnation, second.1);
}

#[test]
fn the_name_of_a_producer_that_was_killed_is_free_after_its_lease() {
    let Some(server) = Server::started("the_name_of_a_producer_that_was_killed_is_free_after_its_lease")
    else {
        return;
    };
    let node = Node::new(&server.url(), 10);
    let mut producer = Producer::start(&server, "127.0.0.1:0", "3");
    until("the producer is known", || incarnation_of(&node, "a") == Some(producer.1));
    let error = node.directory.register("a", Some(Duration::ZERO)).unwrap_err();
    assert!(matches!(error.status, Status::Busy | Status::Unreachable), "{error}");
    producer.kill();
    let began = Instant::now();
    node.register("a");
    // etcd looks for leases that are over every half second.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(incarnation_of(&node, "a"), Some(node.engine.descriptor().unwrap().incarnation));
}
