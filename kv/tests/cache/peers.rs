//! Peers that take nothing, and caches that open late or close early: nobody else is held up, and no engine is fenced
//! that other libraries use too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferry::types::{Op, PeerId, Request};
use ferry::{Config, Engine, RegionOptions, Status, TransferOptions};
use ferry_kv::handoff::wire::{Key, Message};
use ferry_kv::handoff::{End, HandoffId, Mode, OfferSpec, TakeSpec};
use ferry_kv::messages::parts;
use ferry_kv::{Cache, CacheMemory, CacheOptions};

use super::caches::{cells, layout};
use super::{
    engine, id, instance, offer_spec, path, paths, rank, rank_with, shape, take_spec, Rank, CHANNEL,
    PATIENCE, SECRET, TOKENS,
};

const SILENCE: Duration = Duration::from_millis(300);

fn impatient() -> CacheOptions {
    CacheOptions { silence: SILENCE, ..CacheOptions::default() }
}

/// Another library that shares the engine: writes one rank's first bytes to another's.
fn write(from: &Engine, to: PeerId, local: u64, remote: u64) {
    let request = Request { local, remote, length: 8, remote_region: ferry::types::RegionId::NONE };
    let result = from.write(to, &[request], &TransferOptions::default()).unwrap();
    assert_eq!(result.status, ferry::Status::Ok);
}

/// Memory of an engine that no cache has.
fn other_memory(engine: &Engine) -> ferry::Memory {
    engine.alloc(4096, &RegionOptions::default()).unwrap()
}

fn await_memory(engine: &Engine, peer: PeerId, address: u64) {
    while !engine.peer_regions(peer).unwrap().iter().any(|region| region.address == address) {
        std::thread::yield_now();
    }
}

/// 70,000 questions without a look at the answers, more than the engine and the cache have room for.
#[test]
fn a_peer_that_asks_and_takes_no_answers_holds_up_nobody_else() {
    const QUESTIONS: u64 = 70_000;
    let (producers, consumers) = (instance(shape(1, 4), &path()), instance(shape(1, 4), &path()));
    let (producer, consumer) = (&producers[0], &consumers[0]);
    let mut config = Config::default();
    for (key, value) in [("secret", SECRET), ("transports", &path()), ("transfers_max", "200000")] {
        config.set(key, value).unwrap();
    }
    let mute = Engine::open(config).unwrap();
    let to = mute.connect(producer.engine.address(), Some(PATIENCE)).unwrap();
    let is_asking = AtomicBool::new(true);
    let (own, theirs) = (other_memory(&consumer.engine), other_memory(&producer.engine));
    let peer = consumer.connect(&producers)[0];
    await_memory(&consumer.engine, peer, theirs.address());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = None;
            for number in 0..QUESTIONS {
                let key = Key { id: id(77), take: number };
                let message = Message::Cancel { key, status: Status::Cancelled, why: String::new() };
                let part = parts(&message.encode().unwrap(), 4_096).remove(0);
                let options = TransferOptions { notify: Some(&part), channel: CHANNEL, ..Default::default() };
                last = Some(mute.submit(to, Op::Write, &[], &options).unwrap());
            }
            let _ = last.map(|last| last.wait(Some(PATIENCE)));
            is_asking.store(false, Ordering::Relaxed);
        });
        let mut number = 0u64;
        // At least two after the last question.
        let mut left = 2;
        while left > 0 {
            left -= i32::from(!is_asking.load(Ordering::Relaxed));
            number += 1;
            let began = Instant::now();
            let id = wide(number);
            producer.produce(id, 1);
            let lists = consumer.take_with(id, &producers, Mode::Auto, false);
            assert_eq!(consumer.end(id).0, End::Received);
            consumer.check(&lists);
            assert_eq!(producer.end(id).0, End::Sent);
            assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
            // The application's own transfers have room.
            write(&consumer.engine, peer, own.address(), theirs.address());
            let back =
                producer.engine.submit(producer.engine.peers().unwrap()[0], Op::Write, &[], &notification());
            back.map(drop).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(number > 2);
    });
    // Nor does the peer hold up the close.
    let began = Instant::now();
    producer.cache.close(Some(PATIENCE)).unwrap();
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

fn wide(number: u64) -> HandoffId {
    let mut bytes = [9; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    HandoffId::from_bytes(bytes)
}

fn notification() -> TransferOptions<'static> {
    TransferOptions { notify: Some(b"news"), ..TransferOptions::default() }
}

#[test]
fn a_cache_that_opens_late_is_waited_for_and_its_engine_is_not_fenced() {
    for mode in [Mode::Pull, Mode::Push] {
        let consumer = rank_with(shape(1, 4), 0, &path(), 1, impatient());
        let late = engine(&path(), 0);
        let length = consumer.memory.length();
        let memory = late.alloc(length, &RegionOptions::default()).unwrap();
        let (own, theirs) = (other_memory(&late), other_memory(&consumer.engine));
        let peer = consumer.engine.connect(late.address(), Some(PATIENCE)).unwrap();
        let lists = consumer.lists(3);
        consumer.cache.take(take_spec(id(1), vec![peer], lists.clone(), mode)).unwrap();
        // Another library writes all the while.
        let back = late.connect(consumer.engine.address(), Some(PATIENCE)).unwrap();
        await_memory(&late, back, theirs.address());
        let began = Instant::now();
        while began.elapsed() < 3 * SILENCE {
            write(&late, back, own.address(), theirs.address());
        }
        let layout = layout(shape(1, 4), 0, memory.address());
        let whole = CacheMemory { region: memory.region(), address: memory.address(), length: length as u64 };
        let cache = Cache::open(&late, layout.clone(), &[whole], impatient()).unwrap();
        let producer = Rank { cache, layout, memory, engine: late };
        producer.produce(id(1), 1);
        let (end, _, why, _) = consumer.end(id(1));
        assert_eq!(end, End::Received, "{mode:?}: {why}");
        consumer.check(&lists);
        assert_eq!(producer.end(id(1)).0, End::Sent);
        write(&producer.engine, back, own.address(), theirs.address());
    }
}

/// The offer has two takers, of which one closes its cache as soon as it has everything.
#[test]
fn a_cache_that_closes_when_it_has_everything_leaves_its_engine_to_others() {
    for mode in [Mode::Pull, Mode::Push] {
        let producers = vec![rank_with(shape(1, 4), 0, &path(), 0, impatient())];
        let producer = &producers[0];
        let first = rank_with(shape(1, 4), 0, &path(), 1, impatient());
        let (own, theirs) = (other_memory(&first.engine), other_memory(&producer.engine));
        let blocks = producer.lists(0);
        producer.cache.offer(OfferSpec { takers: 2, ..offer_spec(id(5), blocks.clone()) }).unwrap();
        (0..3).for_each(|layer| producer.compute(&blocks, layer, 0, TOKENS));
        producer.cache.offer_ready(id(5), 0..3, TOKENS).unwrap();
        first.take_with(id(5), &producers, mode, false);
        assert_eq!(first.end(id(5)).0, End::Received);
        first.cache.close(Some(PATIENCE)).unwrap();
        let peer = first.connect(&producers)[0];
        await_memory(&first.engine, peer, theirs.address());
        let began = Instant::now();
        while began.elapsed() < 3 * SILENCE {
            write(&first.engine, peer, own.address(), theirs.address());
        }
        let second = rank_with(shape(1, 4), 0, &path(), 1, impatient());
        let lists = second.lists(3);
        let spec = take_spec(id(5), second.connect(&producers), lists.clone(), mode);
        second.cache.take(TakeSpec { taker: 2, ..spec }).unwrap();
        assert_eq!(second.end(id(5)).0, End::Received);
        second.check(&lists);
        producer.cache.offer_seal(id(5), TOKENS).unwrap();
        let (end, _, why, _) = producer.end(id(5));
        assert_eq!(end, End::Sent, "{mode:?}: {why}");
    }
}

/// The first of two ranks closes its cache and engine when its part has arrived, and its offer still waits for the take. Its
/// goodbye is there before the end of the session, and the take keeps what it has.
#[test]
fn a_rank_that_has_sent_its_part_may_close_before_the_others_have() {
    for (path, mode) in paths().into_iter().flat_map(|path| [(path.clone(), Mode::Pull), (path, Mode::Push)])
    {
        for round in 0..if path == "rdma" { 3 } else { 40 } {
            // However slow the machine is, the close waits for the goodbye.
            let options = CacheOptions { silence: PATIENCE, ..CacheOptions::default() };
            let producer = |number| rank_with(shape(2, 4), number, &path, 0, options);
            let mut producers = vec![producer(0), producer(1)];
            let consumer = rank(shape(1, 4), 0, &path, 1);
            let lists = consumer.take_with(id(8), &producers, mode, false);
            let first = producers.remove(0);
            let bytes = cells(&first.layout, &first.produce(id(8), 1), 0..TOKENS, 5).len() as u64;
            while consumer.cache.stats().bytes_received < bytes {
                std::thread::yield_now();
            }
            first.cache.close(Some(PATIENCE)).unwrap();
            first.engine.close(Some(PATIENCE)).unwrap();
            producers[0].produce(id(8), 1);
            assert_eq!(producers[0].end(id(8)).0, End::Sent);
            let (end, _, why, _) = consumer.end(id(8));
            assert_eq!(end, End::Received, "{mode:?}, {path}, round {round}: {why}");
            consumer.check(&lists);
        }
    }
}

/// The blocks are free at once, not when the lease is over.
#[test]
fn a_refused_take_ends_the_offer_that_waited_for_it() {
    let (producers, consumers) = (instance(shape(1, 4), &path()), instance(shape(1, 4), &path()));
    let (producer, consumer) = (&producers[0], &consumers[0]);
    producer.offer(id(6), 1);
    producer.cache.offer_seal(id(6), TOKENS - 1).unwrap();
    consumer.take_with(id(6), &producers, Mode::Auto, false);
    let (end, status, why, _) = consumer.end(id(6));
    assert_eq!((end, status), (End::Failed, ferry::Status::Invalid), "{why}");
    assert_eq!(producer.end(id(6)).0, End::Failed);
}
