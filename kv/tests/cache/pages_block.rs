//! A page of one side's cache never comes, so a thread of its engine is in it for ever. The other side is told the end of
//! its handoff all the same, although that side's cache answers.

use std::time::Duration;

use ferry::types::{PeerId, RegionId, Request};
use ferry::{Config, Engine, Status, TransferOptions};
use ferry_kv::handoff::{BlockList, End, Event, Mode, TakeSpec};
use ferry_kv::layout::Layout;
use ferry_kv::{Cache, CacheMemory, CacheOptions};

use super::caches::layout;
use super::pages::{page_bytes, Blocked, Pages};
use super::{id, offer_spec, path, rank_with, shape, take_spec, Rank, PATIENCE, SECRET, TOKENS};

const SILENCE: Duration = Duration::from_millis(200);

fn impatient() -> CacheOptions {
    CacheOptions { silence: SILENCE, ..CacheOptions::default() }
}

/// A cache whose memory is of one page that does not come, and pages that do.
struct Lame {
    cache: Cache,
    layout: Layout,
    engine: Engine,
    pages: Pages,
}

impl Lame {
    fn new() -> Lame {
        let mut config = Config::default();
        // With these settings, the page does not hold up messages.
        for (key, value) in [("secret", SECRET), ("transports", "tcp"), ("express_bytes_max", "16")] {
            config.set(key, value).unwrap();
        }
        let engine = Engine::open(config).unwrap();
        let draft = layout(shape(1, 4), 0, 1 << 20);
        let ends = draft.layers.iter().filter_map(|layer| layer.extent(&draft)).map(|range| range.end);
        let length = ends.max().unwrap() - (1 << 20);
        let pages = Pages::new((length as usize).div_ceil(page_bytes()));
        let region = pages.register(&engine);
        let layout = layout(shape(1, 4), 0, pages.address());
        let whole = CacheMemory { region, address: pages.address(), length };
        let cache = Cache::open(&engine, layout.clone(), &[whole], impatient()).unwrap();
        Lame { cache, layout, engine, pages }
    }

    fn lists(&self) -> Vec<BlockList> {
        let lists = self.layout.groups.iter().map(|group| {
            let count = TOKENS.div_ceil(group.block_tokens.into()) as u32;
            BlockList { first_token: 0, ids: (0..count).collect() }
        });
        lists.collect()
    }

    /// Takes the first page away, when every lane to the other side stands: until then the messages' lane carries data
    /// too. None where the kernel does not lend such pages.
    fn block(&self, other: &Rank) -> Option<(PeerId, Blocked)> {
        if path() == "rdma" {
            println!("SKIPPED: RDMA pins the pages (make test runs this over TCP)");
            return None;
        }
        let other_sees = other.engine.connect(self.engine.address(), Some(PATIENCE)).unwrap();
        let peer = self.engine.peers().unwrap()[0];
        while self.engine.peer_info(peer).unwrap().lanes < 3 {
            let request = Request {
                local: self.pages.address(),
                remote: other.memory.address(),
                length: 64,
                remote_region: RegionId::NONE,
            };
            let _ = self.engine.write(peer, &[request], &TransferOptions::default());
        }
        Some((other_sees, self.pages.block(0)?))
    }

    /// Both sides end, since the page has come.
    fn heal(self, other: &Rank) {
        other.cache.close(Some(PATIENCE)).unwrap();
        self.cache.close(Some(PATIENCE)).unwrap();
        self.engine.close(Some(PATIENCE)).unwrap();
    }
}

fn end(cache: &Cache) -> (End, Status) {
    loop {
        if let Event::Ended { end, status, .. } = cache.wait(Some(PATIENCE)).unwrap() {
            return (end, status);
        }
    }
}

#[test]
fn a_push_from_a_page_that_never_comes_ends_for_its_taker() {
    let (producer, consumer) = (Lame::new(), rank_with(shape(1, 4), 0, "tcp", 1, impatient()));
    let Some((peer, blocked)) = producer.block(&consumer) else { return };
    let blocks = producer.lists();
    producer.cache.offer(offer_spec(id(1), blocks)).unwrap();
    producer.cache.offer_ready(id(1), 0..3, TOKENS).unwrap();
    let spec = take_spec(id(1), vec![peer], consumer.lists(0), Mode::Push);
    let deadline = Some(Duration::from_millis(500));
    consumer.cache.take(TakeSpec { deadline, ..spec }).unwrap();
    blocked.wait();
    assert_eq!(end(&consumer.cache), (End::Failed, Status::Timeout));
    drop(blocked);
    producer.heal(&consumer);
}

#[test]
fn a_pull_into_a_page_that_never_comes_ends_for_its_producer() {
    let (consumer, producer) = (Lame::new(), rank_with(shape(1, 4), 0, "tcp", 1, impatient()));
    let Some((_, blocked)) = consumer.block(&producer) else { return };
    producer.produce(id(1), 1);
    let spec = take_spec(id(1), consumer.engine.peers().unwrap(), consumer.lists(), Mode::Pull);
    consumer.cache.take(TakeSpec { deadline: None, ..spec }).unwrap();
    blocked.wait();
    producer.cache.offer_cancel(id(1)).unwrap();
    assert_eq!(end(&producer.cache), (End::Cancelled, Status::Cancelled));
    drop(blocked);
    consumer.heal(&producer);
}
