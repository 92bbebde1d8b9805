//! Who has a name, and who learns of it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ferry::internals::api::break_engine;
use ferry::Status;
use ferry_directory::{Change, Directory};
use serde_json::json;

use super::server::{base64, free_port, Server};
use super::{engine, options, until, Node, NOW, PATIENCE};

#[test]
fn a_name_is_found_by_those_who_came_before_and_after() {
    let Some(server) = Server::started("a_name_is_found_by_those_who_came_before_and_after") else { return };
    let (before, node) = (Node::new(&server.url(), 10), Node::new(&server.url(), 10));
    assert_eq!(before.directory.lookup("prefill/0").unwrap_err().status, Status::Unreachable);
    node.register("prefill/0");
    // It is in this side's own table when the call has returned, and in etcd under the prefix.
    let own = node.directory.lookup("prefill/0").unwrap();
    assert_eq!(own.address, node.engine.address());
    assert!(server.get("/test/prefill/0").unwrap().starts_with("ferry 1 "));

    before.finds("prefill/0", &node.engine);
    let after = Node::new(&server.url(), 10);
    assert_eq!(after.directory.list("prefill/").unwrap(), std::slice::from_ref(&own));
    assert!(after.directory.list("decode").unwrap().is_empty());
    for other in [&before, &after] {
        other.connects("prefill/0", &node.engine);
        assert_eq!(other.directory.poll().unwrap(), Some(Change::Added(own.clone())));
        assert_eq!(other.directory.poll().unwrap(), None);
    }
    let status = node.directory.status().unwrap();
    assert_eq!((status.is_connected, status.names, status.names_published, status.entries), (true, 1, 1, 1));
    assert_eq!((status.cut_off, status.why.as_str(), status.ignored), (None, "", 0));

    node.directory.unregister("prefill/0", Some(PATIENCE)).unwrap();
    assert_eq!(server.get("/test/prefill/0"), None);
    before.lacks("prefill/0");
    assert_eq!(before.directory.poll().unwrap(), Some(Change::Removed(own)));
    assert_eq!(node.directory.unregister("prefill/0", NOW).unwrap_err().status, Status::Invalid);
    node.register("prefill/0");
    before.finds("prefill/0", &node.engine);
}

#[test]
fn the_descriptor_is_readable_while_there_are_changes() {
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    let Some(server) = Server::started("the_descriptor_is_readable_while_there_are_changes") else { return };
    let (watcher, node) = (Node::new(&server.url(), 10), Node::new(&server.url(), 10));
    let is_readable = |seconds| {
        let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(&watcher.directory, PollFlags::IN)], Some(&timeout)).unwrap() == 1
    };
    assert!(!is_readable(0));
    node.register("a");
    assert!(is_readable(20));
    node.register("b");
    watcher.finds("b", &node.engine);
    assert!(matches!(watcher.directory.poll().unwrap(), Some(Change::Added(_))));
    assert!(is_readable(0), "one is left");
    assert!(matches!(watcher.directory.poll().unwrap(), Some(Change::Added(_))));
    assert!(!is_readable(0));
    watcher.directory.close();
    assert!(is_readable(0));
    assert_eq!(watcher.directory.poll().unwrap_err().status, Status::Closed);
    assert_eq!(watcher.directory.lookup("a").unwrap_err().status, Status::Closed);
    assert_eq!(watcher.directory.register("c", NOW).unwrap_err().status, Status::Closed);
}

#[test]
fn the_second_of_a_name_is_refused_until_the_first_has_left() {
    let Some(server) = Server::started("the_second_of_a_name_is_refused_until_the_first_has_left") else {
        return;
    };
    let (first, second) = (Node::new(&server.url(), 2), Node::new(&server.url(), 2));
    first.register("a");
    let error = second.directory.register("a", Some(Duration::from_millis(300))).unwrap_err();
    assert!(error.status == Status::Busy && error.message.contains(first.engine.address()), "{error}");
    until("nothing is left of the refusal", || second.directory.status().unwrap().names == 0);
    // The first engine keeps its lease alive, so it keeps its name, here for twice the lease.
    let made = server.made("/test/a");
    let error = second.directory.register("a", Some(Duration::from_secs(4))).unwrap_err();
    assert_eq!(error.status, Status::Busy);
    assert_eq!(server.made("/test/a"), made);
    first.finds("a", &first.engine);

    // Its next sign of life would be 20 s later.
    let second = Node::new(&server.url(), 60);
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| second.directory.register("a", Some(PATIENCE)));
        until("the second waits", || second.directory.status().unwrap().why.contains("held"));
        let began = Instant::now();
        first.directory.unregister("a", Some(PATIENCE)).unwrap();
        waiting.join().unwrap().unwrap();
        assert!(began.elapsed() < Duration::from_secs(5), "told by the watch: {:?}", began.elapsed());
    });
    first.finds("a", &second.engine);
    assert_eq!(second.directory.register("a", NOW).unwrap_err().status, Status::Invalid, "its own");
}

#[test]
fn a_directory_that_is_closed_takes_its_names_along() {
    let Some(server) = Server::started("a_directory_that_is_closed_takes_its_names_along") else { return };
    let (watcher, node, other) =
        (Node::new(&server.url(), 3_600), Node::new(&server.url(), 3_600), Node::new(&server.url(), 3));
    ["a", "b"].iter().for_each(|name| node.register(name));
    other.register("c");
    ["a", "b"].iter().for_each(|name| watcher.finds(name, &node.engine));
    watcher.finds("c", &other.engine);
    node.directory.close();
    ["a", "b"].iter().for_each(|name| watcher.lacks(name));
    // So does a directory whose engine is closed.
    other.engine.close(None).unwrap();
    watcher.lacks("c");
    assert_eq!(other.directory.lookup("a").unwrap_err().status, Status::Closed);
}

/// Nobody can connect to it, though its process lives.
#[test]
fn a_broken_engine_takes_its_names_along() {
    let Some(server) = Server::started("a_broken_engine_takes_its_names_along") else { return };
    let (watcher, node) = (Node::new(&server.url(), 3_600), Node::new(&server.url(), 3));
    node.register("a");
    watcher.finds("a", &node.engine);
    assert_eq!(break_engine(&node.engine).unwrap_err().status, Status::Panic);
    watcher.lacks("a");
}

/// To publish them all takes three times as long as the lease, which is kept alive meanwhile.
#[test]
fn many_names_are_published_under_one_lease() {
    let Some(server) = Server::started("many_names_are_published_under_one_lease") else { return };
    let node = &Node::new(&server.slow_url(Duration::from_millis(20)), 2);
    std::thread::scope(|threads| {
        for thread in 0..16 {
            threads.spawn(move || (0..20).for_each(|at| node.register(&format!("n{thread}/{at}"))));
        }
    });
    let got = server.ask("kv/range", json!({ "key": base64("/test/"), "range_end": base64("/test0") }));
    let leases: Vec<&str> =
        got["kvs"].as_array().unwrap().iter().map(|pair| pair["lease"].as_str().unwrap()).collect();
    let different: BTreeSet<&str> = leases.iter().copied().collect();
    assert_eq!((leases.len(), different.len()), (16 * 20, 1));
}

#[test]
fn connecting_waits_for_a_name_and_finds_the_incarnation_that_it_names() {
    let Some(server) = Server::started("connecting_waits_for_a_name_and_finds_the_incarnation_that_it_names")
    else {
        return;
    };
    let (node, peer) = (Node::new(&server.url(), 10), Node::new(&server.url(), 10));
    let error = node.directory.connect("a", Some(Duration::from_millis(200))).unwrap_err();
    assert!(error.status == Status::Unreachable && error.message.contains("no a"), "{error}");
    // The entry names an incarnation that is no longer there, then one that is.
    let own = peer.engine.descriptor().unwrap();
    let id = u128::from_be_bytes(own.engine_id.0);
    let stale = format!("ferry 1 {id:032x} {:016x} {}", own.incarnation ^ 1, own.address);
    server.put("/test/a", stale);
    until("the entry is there", || node.directory.lookup("a").is_ok());
    let error = node.directory.connect("a", Some(Duration::from_millis(500))).unwrap_err();
    assert!(error.status == Status::Stale && error.message.starts_with("a: "), "{error}");
    let nobody = format!("ferry 1 {id:032x} {:016x} 127.0.0.1:{}", own.incarnation, free_port());
    server.put("/test/a", nobody);
    until("the entry is another", || {
        node.directory.lookup("a").is_ok_and(|entry| entry.address != own.address)
    });
    let error = node.directory.connect("a", Some(Duration::from_millis(500))).unwrap_err();
    assert_eq!(error.status, Status::Unreachable);
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| node.directory.connect("a", Some(PATIENCE)).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        server.delete("/test/a");
        peer.register("a");
        let info = node.engine.peer_info(waiting.join().unwrap()).unwrap();
        assert_eq!(info.incarnation, own.incarnation);
    });
}

#[test]
fn the_next_server_is_tried_when_one_does_not_answer() {
    let Some(server) = Server::started("the_next_server_is_tried_when_one_does_not_answer") else { return };
    let url = format!("etcd:http://127.0.0.1:{},{}/test", free_port(), server.host());
    let engine = engine("127.0.0.1:0");
    let directory = Directory::open(&engine, &url, options(10)).unwrap();
    directory.register("a", Some(PATIENCE)).unwrap();
    assert!(server.get("/test/a").is_some());
}
