//! What the tests of hostile peers share: engines that such a peer can talk to.

use crate::hostile::SECRET;
use ferry::region::RemoteRegion;
use ferry::session::message::Message;
use ferry::types::{Access, Location};
use ferry::{Config, Engine, Memory, RegionOptions};

/// Over TCP, with the secret that the hostile peer has too, and times that a slow machine keeps; `extra` overrides.
pub fn engine(extra: &[(&str, &str)]) -> Engine {
    let mut config = Config::default();
    let own =
        [("transports", "tcp"), ("secret", SECRET), ("progress_timeout_ms", "20000"), ("lease_ms", "20000")];
    for (key, value) in own.iter().chain(extra) {
        config.set(key, value).unwrap();
    }
    Engine::open(config).unwrap()
}

pub fn alloc(engine: &Engine, bytes: usize) -> Memory {
    engine.alloc(bytes, &RegionOptions::default()).unwrap()
}

/// An announcement of regions of host memory: (handle, address, length).
pub fn regions(all: &[(u64, u64, u64)]) -> Message {
    let region = |&(id, address, length): &(u64, u64, u64)| RemoteRegion {
        id,
        address,
        length,
        access: Access::BOTH,
        name: String::new(),
        location: Location::HOST,
        staging: false,
    };
    Message::RegionsAdd(all.iter().map(region).collect())
}
