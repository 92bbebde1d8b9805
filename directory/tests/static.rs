//! `static:` directories over real engines.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use ferry::{Config, Engine, Status};
use ferry_directory::{Directory, DirectoryInfo, DirectoryOptions};

const SECRET: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

fn engine(listen: &str) -> Engine {
    let mut config = Config::default();
    config.set("secret", SECRET).unwrap();
    config.set("listen_address", listen).unwrap();
    Engine::open(config).unwrap()
}

fn open(engine: &Engine, url: &str) -> Directory {
    Directory::open(engine, url, DirectoryOptions::default()).unwrap()
}

#[test]
fn a_list_and_a_file_name_peers() {
    let (own, peer) = (engine("127.0.0.1:0"), engine("127.0.0.1:0"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("# peers\nprefill/0 = {}\n", peer.address())).unwrap();
    let list = open(&own, &format!("static:prefill/0={},decode/0=h:1", peer.address()));
    let named = open(&own, &format!("static:{}", file.path().display()));
    for directory in [&list, &named] {
        let entry = directory.lookup("prefill/0").unwrap();
        assert_eq!((entry.address.as_str(), entry.identity), (peer.address(), None));
        let connected = directory.connect("prefill/0", PATIENCE).unwrap();
        assert_eq!(own.peer_info(connected).unwrap().incarnation, peer.descriptor().unwrap().incarnation);
        assert_eq!(directory.list("prefill").unwrap().len(), 1);
        assert_eq!(directory.poll().unwrap(), None);
        // A name that the list lacks will not appear: the call does not wait.
        let began = Instant::now();
        let error = directory.connect("prefill/1", None).unwrap_err();
        assert!(error.status == Status::Unreachable && error.message.contains("prefill/1"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(5));
        assert_eq!(directory.connect("a b", PATIENCE).unwrap_err().status, Status::Invalid);
        for prefix in ["a b", "/", "//", "/prefill"] {
            assert_eq!(directory.list(prefix).unwrap_err().status, Status::Invalid, "{prefix}");
        }
        assert_eq!(directory.list("prefill/").unwrap(), directory.list("prefill").unwrap());
        // The list makes this engine known, or it does not.
        directory.register("prefill/0", PATIENCE).unwrap();
        directory.unregister("prefill/0", PATIENCE).unwrap();
        let error = directory.register("prefill/1", PATIENCE).unwrap_err();
        assert!(error.status == Status::Invalid && error.message.contains("prefill/1"), "{error}");
        assert_eq!(directory.register("", PATIENCE).unwrap_err().status, Status::Invalid);
    }
    let status = list.status().unwrap();
    let expected = DirectoryInfo {
        is_connected: true,
        cut_off: None,
        why: String::new(),
        entries: 2,
        ignored: 0,
        names: 0,
        names_published: 0,
        sessions: 0,
    };
    assert_eq!(status, expected);
}

#[test]
fn without_a_list_names_are_addresses() {
    let (own, peer) = (engine("127.0.0.1:0"), engine("127.0.0.1:0"));
    let directory = open(&own, "static:");
    let connected = directory.connect(peer.address(), PATIENCE).unwrap();
    assert_eq!(own.peer_info(connected).unwrap().address, peer.address());
    assert_eq!(directory.lookup("[::1]:7000").unwrap().address, "[::1]:7000");
    let error = directory.lookup("prefill").unwrap_err();
    assert_eq!(error.to_string(), "INVALID: name: \"prefill\" has no port: write prefill:PORT");
    directory.register("anything", PATIENCE).unwrap();
    assert!(directory.list("").unwrap().is_empty());
}

#[test]
fn connecting_goes_on_until_the_peer_listens() {
    let own = engine("127.0.0.1:0");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let directory = open(&own, &format!("static:a={address}"));
    let error = directory.connect("a", Some(Duration::from_millis(300))).unwrap_err();
    assert!(error.status == Status::Unreachable && error.message.starts_with("a: "), "{error}");
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| directory.connect("a", PATIENCE));
        std::thread::sleep(Duration::from_millis(300));
        let peer = engine(&address);
        waiting.join().unwrap().unwrap();
        drop(peer);
    });
}

#[test]
fn what_is_closed_or_does_not_listen_says_so() {
    let deaf = engine("");
    let directory = open(&deaf, "static:a=h:1");
    assert_eq!(directory.register("a", PATIENCE).unwrap_err().status, Status::Unavailable);
    directory.close();
    directory.close();
    let closed = [
        directory.register("a", PATIENCE).unwrap_err(),
        directory.unregister("a", PATIENCE).unwrap_err(),
        directory.connect("a", PATIENCE).unwrap_err(),
        directory.lookup("a").unwrap_err(),
        directory.list("").unwrap_err(),
        directory.poll().unwrap_err(),
        directory.status().unwrap_err(),
    ];
    closed.iter().for_each(|error| assert_eq!(error.status, Status::Closed, "{error}"));
    deaf.close(None).unwrap();
    let error = Directory::open(&deaf, "static:", DirectoryOptions::default()).err().unwrap();
    assert_eq!(error.status, Status::Closed);
}

#[test]
fn wrong_urls_and_files_are_named() {
    let own = engine("127.0.0.1:0");
    let open = |url: &str| Directory::open(&own, url, DirectoryOptions::default()).err().unwrap();
    assert!(open("static:/nonexistent/peers").message.contains("/nonexistent/peers"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "a=h:1\nb\n").unwrap();
    let error = open(&format!("static:{}", file.path().display()));
    assert!(error.status == Status::Invalid && error.message.contains("entry 1 of the file"), "{error}");
    assert!(open("etcd:https://h").message.starts_with("ca: "));
}

#[test]
fn what_is_no_pem_is_named() {
    let engine = engine("127.0.0.1:0");
    let refused = |ca: &str, identity: Option<(String, String)>| {
        let options = DirectoryOptions { ca: Some(ca.into()), identity, ..DirectoryOptions::default() };
        Directory::open(&engine, "etcd:https://127.0.0.1:1", options).err().unwrap()
    };
    let certificate = |bytes| format!("-----BEGIN CERTIFICATE-----\n{bytes}\n-----END CERTIFICATE-----\n");
    for ca in ["", "no PEM", &certificate("AAAA"), &certificate("?")] {
        let error = refused(ca, None);
        assert!(error.status == Status::Invalid && error.message.starts_with("ca: "), "{error}");
    }
}
