//! Caches of real engines, over TCP and on the same host, or over the transport that FERRY_TEST_TRANSPORTS names: what is
//! taken equals what was offered, and each end comes in time. The orders of events are `tests/handoff`'s.

#[path = "../handoff/caches.rs"]
#[allow(dead_code)]
mod caches;
mod fork;
#[path = "../../../engine/tests/outside/pages.rs"]
#[allow(dead_code)]
mod pages;
mod pages_block;
mod peers;
mod pieces;
mod room;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use caches::{cells, layout, Shape};
use ferry::internals::api::{break_engine, late_apply};
use ferry::types::{PeerId, RegionId};
use ferry::{Config, Engine, Memory, RegionOptions, Status, TransferOptions};
use ferry_kv::cache::CHANNEL;
use ferry_kv::handoff::wire::{Key, Message, Take};
use ferry_kv::handoff::{BlockList, End, Event, HandoffId, HandoffState, Mode, OfferSpec, TakeSpec};
use ferry_kv::layout::{Arrangement, Layout};
use ferry_kv::messages::parts;
use ferry_kv::{Cache, CacheMemory, CacheOptions};

const PATIENCE: Duration = Duration::from_secs(20);
const TOKENS: u64 = 37;
const SECRET: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

struct Rank {
    cache: Cache,
    layout: Layout,
    memory: Memory,
    engine: Engine,
}

/// The values of `transports` that each case is run with.
fn paths() -> Vec<String> {
    match std::env::var("FERRY_TEST_TRANSPORTS") {
        Ok(named) => vec![named],
        Err(_) => vec!["tcp".into(), "local,tcp".into()],
    }
}

/// Returns the path for tests that need one.
fn path() -> String {
    paths().remove(0)
}

fn engine(transports: &str, host: usize) -> Engine {
    let mut config = Config::default();
    config.set("secret", SECRET).unwrap();
    config.set("transports", transports).unwrap();
    if transports == "rdma" {
        // The two hosts of the virtual machine.
        config.set("rdma_devices", ["rva0,rvb0", "rva1,rvb1"][host % 2]).unwrap();
    }
    Engine::open(config).unwrap()
}

fn rank(shape: Shape, number: u32, transports: &str, host: usize) -> Rank {
    rank_with(shape, number, transports, host, CacheOptions::default())
}

fn rank_with(shape: Shape, number: u32, transports: &str, host: usize, options: CacheOptions) -> Rank {
    let engine = engine(transports, host);
    let draft = layout(shape, number, 1 << 20);
    let ends = draft.layers.iter().filter_map(|layer| layer.extent(&draft)).map(|range| range.end);
    let length = ends.max().unwrap() - (1 << 20);
    let memory = engine.alloc(length as usize, &RegionOptions::default()).unwrap();
    let layout = layout(shape, number, memory.address());
    let whole = CacheMemory { region: memory.region(), address: memory.address(), length };
    let cache = Cache::open(&engine, layout.clone(), &[whole], options).unwrap();
    Rank { cache, layout, memory, engine }
}

/// All ranks of an instance on one host, and those of the next instance on the other.
fn instance(shape: Shape, transports: &str) -> Vec<Rank> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let host = NEXT.fetch_add(1, Ordering::Relaxed);
    (0..shape.tp).map(|number| rank(shape, number, transports, host)).collect()
}

fn shape(tp: u32, block: u32) -> Shape {
    Shape { arrangement: Arrangement::BlockHeadPairToken, ..Shape::plain(tp, 1, block) }
}

fn id(number: u8) -> HandoffId {
    HandoffId::from_bytes([number; 16])
}

/// An offer for one taker.
fn offer_spec(id: HandoffId, blocks: Vec<BlockList>) -> OfferSpec {
    OfferSpec { id, blocks, takers: 1, only: Vec::new(), lease: Duration::from_secs(60) }
}

/// A take of all tokens by group 1.
fn take_spec(id: HandoffId, producers: Vec<PeerId>, blocks: Vec<BlockList>, mode: Mode) -> TakeSpec {
    let deadline = Some(PATIENCE);
    TakeSpec {
        id,
        producers,
        taker: 1,
        blocks,
        skip_tokens: 0,
        tokens: TOKENS,
        mode,
        deadline,
        tell_layers: false,
    }
}

impl Rank {
    fn lists(&self, first: u32) -> Vec<BlockList> {
        let lists = self.layout.groups.iter().map(|group| {
            let count = TOKENS.div_ceil(group.block_tokens.into()) as u32;
            BlockList { first_token: 0, ids: (0..count).map(|at| first + (at * 7) % count).collect() }
        });
        lists.collect()
    }

    fn compute(&self, lists: &[BlockList], layer: u32, from: u64, to: u64) {
        for cell in cells(&self.layout, lists, from..to, 5).into_iter().filter(|cell| cell.layer == layer) {
            self.memory.write((cell.address - self.memory.address()) as usize, &[cell.value]);
        }
    }

    /// Offers, in two chunks, layer by layer.
    fn produce(&self, id: HandoffId, takers: u32) -> Vec<BlockList> {
        let lists = self.offer(id, takers);
        for (from, to) in [(0, 20), (20, TOKENS)] {
            for layer in 0..self.layout.layers.len() as u32 {
                self.compute(&lists, layer, from, to);
                self.cache.offer_ready(id, layer..layer + 1, to).unwrap();
            }
        }
        self.cache.offer_seal(id, TOKENS).unwrap();
        lists
    }

    fn offer(&self, id: HandoffId, takers: u32) -> Vec<BlockList> {
        let blocks = self.lists(0);
        self.cache.offer(OfferSpec { takers, ..offer_spec(id, blocks.clone()) }).unwrap();
        blocks
    }

    fn connect(&self, producers: &[Rank]) -> Vec<PeerId> {
        let to = |rank: &Rank| self.engine.connect(rank.engine.address(), Some(PATIENCE)).unwrap();
        producers.iter().map(to).collect()
    }

    fn take(&self, id: HandoffId, producers: &[Rank], mode: Mode) -> Vec<BlockList> {
        self.take_with(id, producers, mode, true)
    }

    fn take_with(&self, id: HandoffId, producers: &[Rank], mode: Mode, tell_layers: bool) -> Vec<BlockList> {
        let blocks = self.lists(3);
        let spec = take_spec(id, self.connect(producers), blocks.clone(), mode);
        self.cache.take(TakeSpec { tell_layers, ..spec }).unwrap();
        blocks
    }

    /// Waits for the terminal event of an id; layers that were told before it.
    fn end(&self, id: HandoffId) -> (End, Status, String, u32) {
        let mut told = 0;
        loop {
            match self.cache.wait(Some(PATIENCE)).unwrap() {
                Event::Layers { layers, .. } => {
                    assert!(layers > told, "layers are told once");
                    told = layers;
                }
                Event::Ended { id: of, end, status, why, .. } => {
                    assert_eq!(of, id);
                    return (end, status, why, told);
                }
            }
        }
    }

    fn check(&self, lists: &[BlockList]) {
        for cell in cells(&self.layout, lists, 0..TOKENS, 5) {
            let mut byte = [0];
            self.memory.read((cell.address - self.memory.address()) as usize, &mut byte);
            assert_eq!(byte[0], cell.value, "{cell:?}");
        }
    }
}

#[test]
fn what_is_taken_equals_what_was_offered_however_it_is_sharded() {
    for transports in paths() {
        for (source, target) in [(1, 1), (2, 1), (1, 2)] {
            for mode in [Mode::Auto, Mode::Pull, Mode::Push] {
                let (producers, consumers) =
                    (instance(shape(source, 4), &transports), instance(shape(target, 8), &transports));
                let lists: Vec<_> = consumers.iter().map(|rank| rank.take(id(9), &producers, mode)).collect();
                producers.iter().for_each(|rank| drop(rank.produce(id(9), 1)));
                for (rank, lists) in consumers.iter().zip(&lists) {
                    let (end, _, why, _) = rank.end(id(9));
                    assert_eq!(end, End::Received, "{why}");
                    rank.check(lists);
                    assert_eq!(rank.cache.state(id(9)), HandoffState::Ended(End::Received));
                }
                for rank in &producers {
                    let (end, _, why, _) = rank.end(id(9));
                    assert_eq!(end, End::Sent, "{source} to {target}, {mode:?}, {transports}: {why}");
                    rank.cache.close(Some(PATIENCE)).unwrap();
                    assert_eq!(rank.cache.poll(), None);
                    assert_eq!(rank.cache.wait(Some(PATIENCE)).unwrap_err().status, Status::Closed);
                }
            }
        }
    }
}

#[test]
fn layers_are_told_while_later_ones_are_computed() {
    let (producers, consumers) = (instance(shape(1, 4), &path()), instance(shape(1, 4), &path()));
    let (producer, consumer) = (&producers[0], &consumers[0]);
    let lists = producer.offer(id(1), 1);
    consumer.take(id(1), &producers, Mode::Push);
    for layer in 0..3 {
        producer.compute(&lists, layer, 0, TOKENS);
        producer.cache.offer_ready(id(1), layer..layer + 1, TOKENS).unwrap();
        if layer < 2 {
            let expected = Event::Layers { id: id(1), layers: layer + 1 };
            assert_eq!(consumer.cache.wait(Some(PATIENCE)).unwrap(), expected);
        }
    }
    assert_eq!(consumer.end(id(1)).0, End::Received);
    producer.cache.offer_seal(id(1), TOKENS).unwrap();
    assert_eq!(producer.end(id(1)).0, End::Sent);
}

/// The descriptor is readable exactly while there are events, and from the close on.
#[test]
fn the_descriptor_tells_of_events() {
    let producer = rank(shape(1, 4), 0, &path(), 0);
    let readable = |timeout_ms: i64| {
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: timeout_ms * 1_000_000 };
        let mut fds =
            [rustix::event::PollFd::from_borrowed_fd(producer.cache.as_fd(), rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 1
    };
    assert!(!readable(0));
    producer.offer(id(1), 1);
    producer.cache.offer_cancel(id(1)).unwrap();
    assert!(readable(900));
    assert!(matches!(producer.cache.poll(), Some(Event::Ended { end: End::Cancelled, .. })));
    assert!(!readable(0) && producer.cache.poll().is_none());
    producer.cache.close(Some(PATIENCE)).unwrap();
    assert!(producer.cache.poll().is_none() && readable(0));
}

/// The engine of one side ends in the midst of a handoff; the other side is told, and its blocks are its own.
#[test]
fn a_peer_that_goes_is_told_in_time() {
    for mode in [Mode::Pull, Mode::Push] {
        for consumer_goes in [false, true] {
            let (producers, mut consumers) = (instance(shape(1, 4), &path()), instance(shape(1, 4), &path()));
            let lists = producers[0].offer(id(2), 1);
            consumers[0].take(id(2), &producers, mode);
            producers[0].compute(&lists, 0, 0, TOKENS);
            producers[0].cache.offer_ready(id(2), 0..1, TOKENS).unwrap();
            let told = consumers[0].cache.wait(Some(PATIENCE)).unwrap();
            assert_eq!(told, Event::Layers { id: id(2), layers: 1 });
            let gone = Instant::now();
            let (stays, goes) = if consumer_goes {
                (&producers[0], consumers.remove(0))
            } else {
                (&consumers[0], rank(shape(1, 4), 0, &path(), 0))
            };
            if consumer_goes {
                goes.engine.close(Some(PATIENCE)).unwrap()
            } else {
                producers[0].engine.close(Some(PATIENCE)).unwrap()
            }
            let (end, status, _, _) = stays.end(id(2));
            assert_eq!((end, status), (End::PeerLost, Status::PeerLost), "{mode:?}, {consumer_goes}");
            assert!(gone.elapsed() < Duration::from_secs(3), "told after {:?}", gone.elapsed());
        }
    }
}

/// Transfers that a broken engine has begun may land until its leases are over. No handoff ends before.
#[test]
fn a_broken_engine_ends_its_handoffs_when_its_leases_are_over() {
    let (producers, consumers) = (instance(shape(1, 4), &path()), instance(shape(1, 4), &path()));
    producers[0].offer(id(2), 1);
    consumers[0].take(id(2), &producers, Mode::Push);
    let broken = Instant::now();
    assert_eq!(break_engine(&consumers[0].engine).unwrap_err().status, Status::Panic);
    let (end, ..) = consumers[0].end(id(2));
    assert_eq!(end, End::PeerLost);
    let lease = Duration::from_millis(Config::default().lease_ms);
    assert!(broken.elapsed() >= lease, "told {:?} after the panic", broken.elapsed());
}

/// A take that is cancelled, and an offer that is aborted, while bytes move: after the terminal event nothing lands.
#[test]
fn after_the_end_nothing_lands() {
    let cases = paths().into_iter().flat_map(|path| [(path.clone(), Mode::Pull), (path, Mode::Push)]);
    for (path, mode) in cases {
        // A pair of engines takes long in the virtual machine.
        for round in 0..if path == "rdma" { 6 } else { 20 } {
            let (producers, consumers) = (instance(shape(1, 4), &path), instance(shape(1, 4), &path));
            let lists = consumers[0].take(id(3), &producers, mode);
            producers[0].produce(id(3), 1);
            std::thread::yield_now();
            let _ = match round % 2 {
                0 => consumers[0].cache.take_cancel(id(3)),
                _ => producers[0].cache.offer_cancel(id(3)),
            };
            let (end, ..) = consumers[0].end(id(3));
            assert!([End::Cancelled, End::Failed, End::Received].contains(&end), "{end:?}");
            let all = cells(&consumers[0].layout, &lists, 0..TOKENS, 5);
            let base = consumers[0].memory.address();
            all.iter()
                .for_each(|cell| consumers[0].memory.write((cell.address - base) as usize, &[!cell.value]));
            // A take that was cancelled before it reached the producer leaves the offer to its lease.
            let _ = producers[0].cache.offer_cancel(id(3));
            producers[0].end(id(3));
            // Whatever was under way is over when both sides have closed.
            consumers[0].cache.close(Some(PATIENCE)).unwrap();
            producers[0].cache.close(Some(PATIENCE)).unwrap();
            for cell in all {
                let mut byte = [0];
                consumers[0].memory.read((cell.address - base) as usize, &mut byte);
                assert_eq!(byte[0], !cell.value, "{path}, {mode:?}: {cell:?} landed late");
            }
        }
    }
}

/// A sequence is preempted in its second chunk and computed again in other blocks, while it is handed over.
#[test]
fn what_is_taken_back_is_the_producers_and_arrives_again() {
    for transports in paths() {
        for mode in [Mode::Pull, Mode::Push] {
            let (producers, consumers) =
                (instance(shape(1, 4), &transports), instance(shape(1, 8), &transports));
            let (producer, consumer) = (&producers[0], &consumers[0]);
            let mut lists = producer.offer(id(4), 1);
            let taken = consumer.take_with(id(4), &producers, mode, false);
            for (layers, to) in [(0..3, 20), (0..2, TOKENS)] {
                layers.clone().for_each(|layer| producer.compute(&lists, layer, 0, to));
                producer.cache.offer_ready(id(4), layers, to).unwrap();
            }
            producer.cache.offer_retract(id(4), 10, Some(PATIENCE)).unwrap();
            // Block 2 has tokens 8 and 9, which stay; those from 10 on are overwritten.
            for layer in 0..3 {
                for cell in cells(&producer.layout, &lists, 10..TOKENS, 5) {
                    if cell.layer == layer {
                        let at = (cell.address - producer.memory.address()) as usize;
                        producer.memory.write(at, &[!cell.value]);
                    }
                }
            }
            let tail = lists[0].ids.split_off(3);
            let other = vec![BlockList { first_token: 0, ids: tail.iter().map(|id| id + 20).collect() }];
            producer.cache.offer_extend(id(4), &other).unwrap();
            lists[0].ids.extend(&other[0].ids);
            for layer in 0..3 {
                producer.compute(&lists, layer, 10, TOKENS);
                producer.cache.offer_ready(id(4), layer..layer + 1, TOKENS).unwrap();
            }
            producer.cache.offer_seal(id(4), TOKENS).unwrap();
            let (end, _, why, _) = consumer.end(id(4));
            assert_eq!(end, End::Received, "{why}");
            consumer.check(&taken);
            assert_eq!(producer.end(id(4)).0, End::Sent);
            let error = producer.cache.offer_retract(id(4), 0, Some(PATIENCE)).unwrap_err();
            assert_eq!(error.status, Status::Stale);
        }
    }
}

/// A peer whose words are the test's, and that has taken id 7.
struct Talker {
    engine: Engine,
    producer: PeerId,
}

impl Talker {
    const KEY: Key = Key { id: HandoffId::from_bytes([7; 16]), take: 1 };

    fn take(producer: &Rank) -> Talker {
        let engine = engine(&path(), 0);
        let talker =
            Talker { producer: engine.connect(producer.engine.address(), Some(PATIENCE)).unwrap(), engine };
        let queue = talker.engine.channel_queue(ferry::notify::WHAT_NOTIFICATIONS, 64, CHANNEL).unwrap();
        producer.offer(id(7), 1);
        producer.cache.offer_ready(id(7), 0..3, 20).unwrap();
        let layout = Box::new(producer.layout.clone());
        talker.say(Message::Hello { incarnation: 1, regions: Vec::new(), layout });
        // The first word of the producer has its incarnation.
        let mut events = Vec::new();
        while events.is_empty() {
            queue.drain(&mut events, 1);
        }
        let ferry::notify::EventBody::Notification { bytes, .. } = &events[0].body else {
            panic!("{events:?}")
        };
        let incarnation = u64::from_le_bytes(bytes[4..12].try_into().unwrap());
        let (is_push, blocks, tokens) = (false, Vec::new(), TOKENS);
        let (key, group, rank, skip, wanted) = (Talker::KEY, 0, 0, 0, 1);
        let take = Take { key, incarnation, group, rank, is_push, skip, tokens, wanted, blocks };
        talker.say(Message::Take(take));
        while !matches!(producer.cache.state(id(7)), HandoffState::Offered { takers: 1, .. }) {
            std::thread::yield_now();
        }
        talker
    }

    fn say(&self, message: Message) {
        for part in &parts(&message.encode().unwrap(), 4_096) {
            let options = TransferOptions { notify: Some(part), channel: CHANNEL, ..Default::default() };
            self.engine.submit(self.producer, ferry::types::Op::Write, &[], &options).unwrap();
        }
    }
}

/// The answer wakes the call; nothing else would for longer than the test waits.
#[test]
fn a_retract_returns_when_its_taker_has_answered() {
    let options = CacheOptions { silence: 4 * PATIENCE, ..CacheOptions::default() };
    let producer = &rank_with(shape(1, 4), 0, &path(), 0, options);
    let taker = Talker::take(producer);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let retract = scope.spawn(|| producer.cache.offer_retract(id(7), 8, Some(3 * PATIENCE)));
        // The call sleeps by then.
        std::thread::sleep(Duration::from_millis(200));
        taker.say(Message::Retracted { key: Talker::KEY, epoch: 1 });
        retract.join().unwrap().unwrap();
    });
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

/// A peer that takes and then says nothing more: a retract waits for as long as it may, and the calls after it are
/// BUSY.
#[test]
fn a_retract_of_a_silent_taker_is_busy_until_it_is_fenced() {
    let producer = &instance(shape(1, 4), &path())[0];
    let _taker = Talker::take(producer);
    for wait in [Duration::ZERO, Duration::from_millis(50)] {
        let began = Instant::now();
        let error = producer.cache.offer_retract(id(7), 8, Some(wait)).unwrap_err();
        assert_eq!(error.to_string(), "BUSY: takers have not let go of the blocks in time");
        assert!(began.elapsed() >= wait && began.elapsed() < Duration::from_millis(900));
    }
    assert_eq!(producer.cache.offer_seal(id(7), 8).unwrap_err().status, Status::Busy);
    // The fence of the silent taker ends the offer, whose only one it is.
    let error = producer.cache.offer_retract(id(7), 8, Some(PATIENCE)).unwrap_err();
    assert_eq!(error.status, Status::Stale);
    assert_eq!(producer.end(id(7)).0, End::PeerLost);
}

#[test]
fn leases_are_bounded_by_an_option_of_the_cache() {
    let options = CacheOptions { leased_blocks_max: 10, ..CacheOptions::default() };
    let producer = rank_with(shape(1, 4), 0, &path(), 0, options);
    for number in 1..3 {
        producer.offer(id(number), 1);
        producer.cache.offer_seal(id(number), TOKENS).unwrap();
    }
    let (end, status, why, _) = producer.end(id(1));
    assert!((end, status) == (End::Expired, Status::Limit) && why.ends_with("(PRESSURE)"), "{why}");
    assert_eq!(producer.cache.state(id(2)), HandoffState::Offered { sealed: true, takers: 0 });
}

/// The engine's LATE_APPLY comes to the handoffs that have the bytes, whoever's transfer it was, and to no others.
#[test]
fn late_bytes_of_any_peer_fail_the_handoffs_that_have_them() {
    let producer = &rank(shape(1, 4), 0, &path(), 0);
    for number in 1..3 {
        let blocks = producer.lists(10 * u32::from(number));
        producer.cache.offer(offer_spec(id(number), blocks)).unwrap();
    }
    // The last byte of the second offer's first block, in the last layer.
    let (blocks, layer) = (producer.lists(20), producer.layout.layers.len() as u32 - 1);
    let first = vec![BlockList { first_token: 0, ids: blocks[0].ids[..1].to_vec() }];
    let of_layer = cells(&producer.layout, &first, 0..4, 5).into_iter().filter(|cell| cell.layer == layer);
    let last = of_layer.map(|cell| cell.address).max().unwrap();
    late_apply(&producer.engine, PeerId::from_raw(77), producer.memory.region(), last, 1).unwrap();
    let (end, status, why, _) = producer.end(id(2));
    assert!((end, status) == (End::Failed, Status::Corrupt) && why.contains("LATE_APPLY"), "{why}");
    assert_eq!(producer.cache.stats().late_applies, 1);
    assert!(matches!(producer.cache.state(id(1)), HandoffState::Offered { .. }));
}

#[test]
fn what_is_wrong_is_named() {
    let first = rank(shape(1, 4), 0, &path(), 0);
    let whole = CacheMemory {
        region: first.memory.region(),
        address: first.memory.address(),
        length: first.memory.length() as u64,
    };
    let refused = |layout: Layout, memory: &[CacheMemory]| {
        Cache::open(&first.engine, layout, memory, CacheOptions::default()).err().unwrap().to_string()
    };
    let busy = refused(first.layout.clone(), &[whole]);
    assert_eq!(
        busy,
        "BUSY: the engine has a cache already: another queue takes the notifications of channel 1"
    );
    let short = CacheMemory { length: 8, ..whole };
    let missing = refused(first.layout.clone(), &[short]);
    assert!(missing.starts_with("INVALID: memory: none has layer layers.0 at"), "{missing}");
    let nowhere = CacheMemory { region: RegionId::from_raw(77), ..whole };
    let missing = refused(first.layout.clone(), &[whole, nowhere]);
    assert!(missing.contains(": memory[1].region: "), "{missing}");
    let take = take_spec(id(1), vec![PeerId::from_raw(77)], first.lists(0), Mode::Auto);
    let refused = first.cache.take(take.clone()).unwrap_err().to_string();
    assert!(refused.contains(": producers[0]: "), "{refused}");
    let refused = first.cache.offer_ready(id(1), 0..1, 4).unwrap_err();
    assert_eq!(refused.to_string(), "INVALID: id: 01010101.. is no offer");
    first.cache.close(Some(PATIENCE)).unwrap();
    assert_eq!(first.cache.offer(offer_spec(id(1), first.lists(0))).unwrap_err().status, Status::Closed);
    assert_eq!(first.cache.take(take).unwrap_err().status, Status::Closed);
    // A cache that is closed leaves its place to another.
    Cache::open(&first.engine, first.layout.clone(), &[whole], CacheOptions::default()).unwrap();
}
