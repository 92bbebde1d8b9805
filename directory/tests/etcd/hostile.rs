//! Writes and removals by others in etcd.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferry::Status;
use ferry_directory::limits::{ANSWER_BYTES_MAX, VALUE_BYTES_MAX};
use ferry_directory::{Directory, DirectoryOptions};
use serde_json::json;

use super::server::Server;
use super::{engine, options, until, Node, NOW};

#[test]
fn values_that_are_no_entries_are_counted_and_left_out() {
    let Some(server) = Server::started("values_that_are_no_entries_are_counted_and_left_out") else { return };
    let id = "000102030405060708090a0b0c0d0e0f 0000000000000001";
    let bad: [(&str, Vec<u8>); 7] = [
        ("empty", Vec::new()),
        ("bytes", vec![0xff; 100]),
        ("later", format!("ferry 2 {id} h:1").into_bytes()),
        ("long", format!("ferry 1 {id} h:1 {}", "x".repeat(VALUE_BYTES_MAX)).into_bytes()),
        ("port", format!("ferry 1 {id} h:70000").into_bytes()),
        ("bad name", format!("ferry 1 {id} h:1").into_bytes()),
        ("large", vec![b'x'; 1 << 20]),
    ];
    // Half of them before the list, half of them to the watch.
    bad[..4].iter().for_each(|(name, value)| server.put(&format!("/test/{name}"), value));
    server.put("/test/good", format!("ferry 1 {id} h:1"));
    server.put("/tester", format!("ferry 1 {id} h:1"));
    let node = Node::new(&server.url(), 10);
    assert_eq!(node.directory.status().unwrap().ignored, 4);
    bad[4..].iter().for_each(|(name, value)| server.put(&format!("/test/{name}"), value));
    until("all are counted", || node.directory.status().unwrap().ignored == 7);
    let names: Vec<String> = node.directory.list("").unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["good"]);
    // An entry that is written over with something else is one no longer.
    server.put("/test/good", "nothing");
    node.lacks("good");
    let error = node.directory.register("good", NOW).unwrap_err();
    assert!(matches!(error.status, Status::Busy | Status::Unreachable), "{error}");
    let error = node.directory.register("port", Some(std::time::Duration::from_secs(1))).unwrap_err();
    assert!(error.status == Status::Busy && error.message.contains("no entry"), "{error}");
    assert_eq!(server.get("/test/port").unwrap(), format!("ferry 1 {id} h:70000"));
}

#[test]
fn a_name_that_somebody_deletes_or_overwrites_comes_back() {
    let Some(server) = Server::started("a_name_that_somebody_deletes_or_overwrites_comes_back") else {
        return;
    };
    let (node, watcher) = (Node::new(&server.url(), 2), Node::new(&server.url(), 2));
    node.register("a");
    server.delete("/test/a");
    until("a is back", || server.get("/test/a").is_some());
    watcher.finds("a", &node.engine);
    // So it does when somebody ends its lease, without another session.
    let made = server.made("/test/a");
    for lease in server.ask("lease/leases", json!({}))["leases"].as_array().unwrap() {
        server.ask("lease/revoke", json!({ "ID": lease["ID"] }));
    }
    until("a is back", || server.made("/test/a").is_some_and(|again| Some(again) != made));
    watcher.finds("a", &node.engine);
    assert_eq!(node.directory.status().unwrap().sessions, 1);
    // Another's value is not touched; the name comes back when it goes.
    let foreign = "ferry 1 000102030405060708090a0b0c0d0e0f 0000000000000001 h:1";
    server.put("/test/a", foreign);
    until("the loss is told", || {
        let status = node.directory.status().unwrap();
        status.names_published == 0 && status.why.contains("h:1")
    });
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(server.get("/test/a").unwrap(), foreign);
    // A withdrawal does not touch another engine's value either.
    node.register("b");
    server.put("/test/b", foreign);
    until("that loss is told too", || node.directory.lookup("b").is_ok_and(|entry| entry.address == "h:1"));
    node.directory.unregister("b", Some(super::PATIENCE)).unwrap();
    assert_eq!(server.get("/test/b").unwrap(), foreign);
    server.delete("/test/a");
    watcher.finds("a", &node.engine);
    until("it is published", || node.directory.status().unwrap().names_published == 1);
    assert_eq!(node.directory.status().unwrap().why, "");
}

#[test]
fn long_lists_and_large_values_come_in_pages() {
    let Some(server) = Server::started("long_lists_and_large_values_come_in_pages") else { return };
    let id = "000102030405060708090a0b0c0d0e0f 0000000000000001";
    for at in 0..1_100 {
        server.put(&format!("/test/n{at:04}"), format!("ferry 1 {id} h:1"));
    }
    // More than an answer may have, among the others.
    const _: () = assert!(7 * 1_000_000 / 3 * 4 > ANSWER_BYTES_MAX);
    for at in 0..7 {
        server.put(&format!("/test/n{at:04}x"), vec![b'x'; 1_000_000]);
    }
    let node = Node::new(&server.url(), 10);
    let status = node.directory.status().unwrap();
    assert_eq!((status.entries, status.ignored), (1_100, 7));
    let list = node.directory.list("n").unwrap();
    assert_eq!((list.len(), list[1_099].name.as_str()), (1_100, "n1099"));
    let node_b = Node::new(&server.url(), 10);
    node_b.register("z");
    node.finds("z", &node_b.engine);
}

/// The URL of a server that is no etcd: it hands the path of each question and the connection to `answer`.
fn pretender(answer: impl Fn(&str, TcpStream) + Send + Sync + Copy + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("etcd:http://{}/test", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let (mut stream, mut question) = (stream.unwrap(), vec![0; 4_096]);
                let count = stream.read(&mut question).unwrap();
                let question = String::from_utf8_lossy(&question[..count]).into_owned();
                answer(question.split(' ').nth(1).unwrap(), stream);
            });
        }
    });
    url
}

#[test]
fn answers_that_are_none_are_named() {
    let engine = engine("127.0.0.1:0");
    let no_wait = DirectoryOptions { open_timeout: None, ..options(10) };
    let ended = "has ended the connection before its answer";
    for (url, words) in [
        (pretender(|_, _| ()), ended),
        (pretender(|_, mut stream| stream.write_all(b"SSH-2.0-x\r\n\r\n").unwrap()), ended),
        (pretender(|_, mut stream| stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"count\":").unwrap()), ended),
        (
            pretender(|_, mut stream| stream.write_all(b"HTTP/1.1 400 Bad\r\n\r\nplain").unwrap()),
            ": HTTP 400",
        ),
        (
            pretender(|_, mut stream| {
                stream.write_all(b"HTTP/1.1 503 x\r\n\r\n{\"message\":\"bu\\u0007sy\"}").unwrap()
            }),
            ": bu sy",
        ),
        (
            pretender(|_, mut stream| stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"more\":true}").unwrap()),
            "and the answer has none",
        ),
        (
            pretender(|_, mut stream| while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}),
            "the answer has more than 8388608 bytes",
        ),
    ] {
        let directory = Directory::open(&engine, &url, no_wait.clone()).unwrap();
        until(words, || directory.status().unwrap().why.contains(words));
        assert!(!directory.status().unwrap().is_connected);
    }
}

#[test]
fn a_directory_is_closed_while_etcd_tells_without_an_end() {
    let url = pretender(|path, mut stream| {
        let is_watch = path == "/v3/watch";
        stream
            .write_all(if is_watch { b"HTTP/1.1 200 OK\r\n\r\n" } else { b"HTTP/1.1 200 OK\r\n\r\n{}" })
            .unwrap();
        while is_watch && stream.write_all(&b"{\"result\":{}}\n".repeat(4_096)).is_ok() {}
    });
    let node = Node::new(&url, 10);
    assert!(node.directory.status().unwrap().is_connected);
    let began = Instant::now();
    node.directory.close();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn an_open_ends_with_its_engine_while_etcd_is_unreachable() {
    let engine = engine("127.0.0.1:0");
    static ASKED: AtomicBool = AtomicBool::new(false);
    let url = pretender(|_, _| ASKED.store(true, Ordering::Relaxed));
    let (began, patient) = (Instant::now(), Duration::from_secs(60));
    let failed = std::thread::scope(|scope| {
        let asks = DirectoryOptions { open_timeout: Some(patient), ..options(10) };
        let open = scope.spawn(|| Directory::open(&engine, &url, asks).map(drop));
        until("a question", || ASKED.load(Ordering::Relaxed));
        engine.close(None).unwrap();
        open.join().unwrap().unwrap_err()
    });
    assert_eq!(failed.status, Status::Closed, "{failed}");
    assert!(began.elapsed() < patient / 4, "{:?}", began.elapsed());
}
