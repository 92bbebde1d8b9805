//! Directories in a real etcd, which each test starts, stops and restarts for itself. `names` is about who has a name,
//! `outages` about etcd being away while transfers go on, `hostile` about what others write, `access` about users and
//! certificates, `processes` about producers that are killed.

mod access;
#[path = "../../../kv/tests/processes/big.rs"]
#[allow(dead_code)]
mod big;
mod hostile;
mod names;
mod outages;
mod processes;
mod server;

use std::time::{Duration, Instant};

use ferry::types::PeerId;
use ferry::{Config, Engine};
use ferry_directory::{Directory, DirectoryOptions};

const PATIENCE: Duration = Duration::from_secs(30);
const NOW: Option<Duration> = Some(Duration::ZERO);
const SECRET: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

fn engine(listen: &str) -> Engine {
    let mut config = Config::default();
    config.set("secret", SECRET).unwrap();
    config.set("transports", "tcp").unwrap();
    config.set("listen_address", listen).unwrap();
    Engine::open(config).unwrap()
}

fn options(ttl_s: u64) -> DirectoryOptions {
    DirectoryOptions {
        ttl: Duration::from_secs(ttl_s),
        open_timeout: Some(PATIENCE),
        ..DirectoryOptions::default()
    }
}

/// An engine and its directory.
struct Node {
    directory: Directory,
    engine: Engine,
}

impl Node {
    fn new(url: &str, ttl_s: u64) -> Node {
        let engine = engine("127.0.0.1:0");
        Node { directory: Directory::open(&engine, url, options(ttl_s)).unwrap(), engine }
    }

    fn register(&self, name: &str) {
        self.directory.register(name, Some(PATIENCE)).unwrap();
    }

    /// Waits until the directory names this engine.
    fn finds(&self, name: &str, other: &Engine) {
        let descriptor = other.descriptor().unwrap();
        until(&format!("{name} is {}", descriptor.address), || {
            self.directory.lookup(name).is_ok_and(|entry| {
                entry.identity.is_some_and(|identity| identity.incarnation == descriptor.incarnation)
            })
        });
    }

    fn lacks(&self, name: &str) {
        until(&format!("{name} is gone"), || self.directory.lookup(name).is_err());
    }

    fn connects(&self, name: &str, other: &Engine) -> PeerId {
        let peer = self.directory.connect(name, Some(PATIENCE)).unwrap();
        let (info, own) = (self.engine.peer_info(peer).unwrap(), other.descriptor().unwrap());
        assert_eq!((info.engine_id, info.incarnation), (own.engine_id, own.incarnation));
        peer
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
