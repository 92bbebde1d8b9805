//! Engines without room for what the cache wants: it waits, and goes on when there is room.

use std::time::Duration;

use ferry::types::{Op, Request};
use ferry::{Config, Engine, Memory, RegionOptions, Status, Transfer, TransferOptions};
use ferry_kv::handoff::{End, HandoffState, Mode};
use ferry_kv::{Cache, CacheMemory, CacheOptions};

use super::caches::layout;
use super::{id, path, rank, shape, Rank, PATIENCE, SECRET, TOKENS};

/// Returns options of caches that look at nothing by themselves for as long as a test lasts.
fn patient() -> CacheOptions {
    CacheOptions { silence: Duration::from_secs(3_600), ..CacheOptions::default() }
}

/// A rank whose engine has room for one transfer, and memory that makes its greeting long.
fn limited(host: usize, options: CacheOptions) -> (Rank, Memory) {
    let mut config = Config::default();
    for (key, value) in [("secret", SECRET), ("transports", &path()), ("transfers_max", "1")] {
        config.set(key, value).unwrap();
    }
    let plain = rank(shape(1, 4), 0, &path(), host);
    let engine = Engine::open(config).unwrap();
    let length = plain.memory.length();
    let memory = engine.alloc(length, &RegionOptions::default()).unwrap();
    let layout = layout(shape(1, 4), 0, memory.address());
    let whole = CacheMemory { region: memory.region(), address: memory.address(), length: length as u64 };
    let others = engine.alloc(64 << 10, &RegionOptions::default()).unwrap();
    let other =
        |at: u64| CacheMemory { region: others.region(), address: others.address() + at * 16, length: 8 };
    let all: Vec<CacheMemory> = std::iter::once(whole).chain((0..1000).map(other)).collect();
    let cache = Cache::open(&engine, layout.clone(), &all, options).unwrap();
    (Rank { cache, layout, memory, engine }, others)
}

impl Rank {
    /// Takes the room of this engine's only transfer, until the transfer is dropped.
    fn take_room(&self, of: &Rank) -> Transfer {
        let peer = self.engine.connect(of.engine.address(), Some(PATIENCE)).unwrap();
        let remote = of.memory.address();
        while !self.engine.peer_regions(peer).unwrap().iter().any(|region| region.address == remote) {
            std::thread::yield_now();
        }
        let local = self.memory.address();
        let request = Request { local, remote, length: 8, remote_region: of.memory.region() };
        loop {
            match self.engine.submit(peer, Op::Read, &[request], &TransferOptions::default()) {
                Ok(transfer) => {
                    transfer.wait(Some(PATIENCE)).unwrap();
                    return transfer;
                }
                // A message of the cache has it.
                Err(error) => assert_eq!(error.status, Status::Limit),
            }
            std::thread::yield_now();
        }
    }
}

/// The parts that are left follow, and none comes twice.
#[test]
fn a_long_message_goes_on_where_the_engine_had_no_room() {
    let options = CacheOptions::default();
    let ((producer, _), (consumer, _)) = (limited(0, options), limited(1, options));
    let producers = [producer];
    producers[0].produce(id(9), 1);
    let lists = consumer.take_with(id(9), &producers, Mode::Pull, false);
    let (end, status, why, _) = consumer.end(id(9));
    assert_eq!((end, status), (End::Received, Status::Ok), "{why}");
    consumer.check(&lists);
}

/// The application lets go of a transfer of its own, and no event tells the cache.
#[test]
fn what_waits_goes_on_when_the_application_makes_room() {
    let ((producer, _of_one), (consumer, _of_other)) = (limited(0, patient()), limited(1, patient()));
    let producers = [producer];
    producers[0].produce(id(9), 1);
    let held = consumer.take_room(&producers[0]);
    let lists = consumer.take_with(id(9), &producers, Mode::Pull, false);
    // The cache's thread sleeps by then.
    std::thread::sleep(Duration::from_millis(200));
    drop(held);
    let (end, status, why, _) = consumer.end(id(9));
    assert_eq!((end, status), (End::Received, Status::Ok), "{why}");
    consumer.check(&lists);
}

/// A cancel needs no room, and does not wait for it.
#[test]
fn a_transfer_that_waits_for_room_can_be_cancelled() {
    let ((producer, _of_one), (consumer, _of_other)) = (limited(0, patient()), limited(1, patient()));
    let producers = [producer];
    let producer = &producers[0];
    producer.offer(id(9), 1);
    consumer.take_with(id(9), &producers, Mode::Pull, false);
    while !matches!(producer.cache.state(id(9)), HandoffState::Offered { takers: 1, .. }) {
        std::thread::yield_now();
    }
    let held = consumer.take_room(producer);
    producer.cache.offer_ready(id(9), 0..3, TOKENS).unwrap();
    while consumer.cache.stats().transfers == 0 {
        std::thread::yield_now();
    }
    consumer.cache.take_cancel(id(9)).unwrap();
    assert_eq!(consumer.end(id(9)).0, End::Cancelled);
    // The producer is told when there is room.
    drop(held);
    assert_eq!(producer.end(id(9)).0, End::Failed);
}
