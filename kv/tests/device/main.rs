//! Layers that become ready when a device has computed them, over a stand-in for the CUDA driver (`tests/standin`).

mod program;
#[path = "../../../engine/tests/common/standin.rs"]
mod standin;

#[path = "../handoff/caches.rs"]
#[allow(dead_code)]
mod caches;

use std::time::Duration;

use caches::{layout, Shape};
use ferry::types::MemoryKind;
use ferry::{Config, Engine, Memory, RegionOptions, Start, Status};
use ferry_kv::handoff::{BlockList, End, Event, HandoffId, HandoffState, Mode, OfferSpec, TakeSpec};
use ferry_kv::{Cache, CacheMemory, CacheOptions};
use program::Program;

const PATIENCE: Duration = Duration::from_secs(20);
const TOKENS: u64 = 8;

struct Rank {
    cache: Cache,
    engine: Engine,
    _memory: Memory,
}

fn rank(library: &str) -> Rank {
    let mut config = Config::default();
    for (key, value) in [("cuda_library", library), ("transports", "tcp")] {
        config.set(key, value).unwrap();
    }
    let engine = Engine::open(config).unwrap();
    let draft = layout(Shape::plain(1, 1, 4), 0, 1 << 20);
    let end = draft.layers.iter().filter_map(|layer| layer.extent(&draft)).map(|range| range.end).max();
    let length = end.unwrap() - (1 << 20);
    let memory = engine.alloc(length as usize, &RegionOptions::default()).unwrap();
    let layout = layout(Shape::plain(1, 1, 4), 0, memory.address());
    let whole = CacheMemory { region: memory.region(), address: memory.address(), length };
    let cache = Cache::open(&engine, layout, &[whole], CacheOptions::default()).unwrap();
    Rank { cache, engine, _memory: memory }
}

fn id(number: u8) -> HandoffId {
    HandoffId::from_bytes([number; 16])
}

impl Rank {
    fn offer(&self, number: u8) {
        let blocks = vec![BlockList { first_token: 0, ids: vec![1, 2] }];
        let spec = OfferSpec { id: id(number), blocks, takers: 1, only: Vec::new(), lease: PATIENCE };
        self.cache.offer(spec).unwrap();
    }

    fn take(&self, number: u8, producer: &Rank) {
        let peer = self.engine.connect(producer.engine.address(), Some(PATIENCE)).unwrap();
        let spec = TakeSpec {
            id: id(number),
            producers: vec![peer],
            taker: 1,
            blocks: vec![BlockList { first_token: 0, ids: vec![3, 4] }],
            skip_tokens: 0,
            tokens: TOKENS,
            mode: Mode::Push,
            deadline: None,
            tell_layers: true,
        };
        self.cache.take(spec).unwrap();
    }

    fn after(&self, number: u8, layers: std::ops::Range<u32>, at: Start) -> ferry::status::Result<()> {
        self.cache.offer_ready_after(id(number), layers, TOKENS, MemoryKind::Cuda, at)
    }

    fn end(&self) -> (End, Status, String) {
        match self.cache.wait(Some(PATIENCE)).unwrap() {
            Event::Ended { end, status, why, .. } => (end, status, why),
            event => panic!("{event:?}"),
        }
    }

    fn told_layers(&self) -> u32 {
        match self.cache.wait(Some(PATIENCE)).unwrap() {
            Event::Layers { layers, .. } => layers,
            event => panic!("{event:?}"),
        }
    }

    /// No event comes for a while in which one would come.
    fn tells_nothing(&self) {
        assert_eq!(self.cache.wait(Some(Duration::from_millis(50))).unwrap_err().status, Status::Timeout);
    }
}

/// Opens both ends. One program at a time has the stand-in's knobs.
fn ends() -> (Program, Rank, Rank) {
    let program = Program::begin();
    let library = program.cuda();
    let (producer, consumer) = (rank(&library), rank(&library));
    (program, producer, consumer)
}

#[test]
fn layers_move_when_the_device_has_come_to_their_events() {
    let (program, producer, consumer) = ends();
    let (first, second) = (program.stream(), program.stream());
    producer.offer(1);
    consumer.take(1, &producer);
    first.block();
    second.block();
    // One event for both layers: the point is taken in the call, and the event is recorded anew in between.
    first.record();
    producer.after(1, 0..1, first.event()).unwrap();
    second.record_other(&first);
    producer.after(1, 1..2, first.event()).unwrap();
    producer.cache.offer_ready(id(1), 2..3, TOKENS).unwrap();
    producer.cache.offer_seal(id(1), TOKENS).unwrap();
    consumer.tells_nothing();
    first.go();
    assert_eq!(consumer.told_layers(), 1);
    consumer.tells_nothing();
    second.go();
    while consumer.told_layers() < 3 {}
    assert_eq!(consumer.end().0, End::Received);
    assert_eq!(producer.end().0, End::Sent);
}

#[test]
fn a_stream_gives_a_point_too() {
    let (program, producer, consumer) = ends();
    let stream = program.stream();
    producer.offer(1);
    consumer.take(1, &producer);
    stream.block();
    producer.after(1, 0..3, stream.so_far()).unwrap();
    producer.cache.offer_seal(id(1), TOKENS).unwrap();
    consumer.tells_nothing();
    stream.go();
    while consumer.told_layers() < 3 {}
    assert_eq!((consumer.end().0, producer.end().0), (End::Received, End::Sent));
}

#[test]
fn work_that_fails_fails_the_offer() {
    let (program, producer, consumer) = ends();
    let stream = program.stream();
    producer.offer(1);
    consumer.take(1, &producer);
    stream.block();
    stream.record();
    producer.after(1, 0..3, stream.event()).unwrap();
    program.set("FERRY_STANDIN_FAULT", "cuEventQuery:*:700");
    let (end, status, why) = producer.end();
    assert_eq!(end, End::Failed, "{status}: {why}");
    assert!(why.starts_with("the work before an event of the producer's device failed: "), "{why}");
    assert_eq!(consumer.end().0, End::Failed);
    program.set("FERRY_STANDIN_FAULT", "");
    stream.go();
}

/// An abort, a close of the cache and a close of the engine end the wait for a device that never comes to the event.
#[test]
fn an_end_does_not_wait_for_the_device() {
    let (program, producer, _) = ends();
    let stream = program.stream();
    stream.block();
    stream.record();
    let at = stream.event();
    producer.offer(1);
    producer.after(1, 0..3, at).unwrap();
    producer.cache.offer_cancel(id(1)).unwrap();
    assert_eq!(producer.end().0, End::Cancelled);
    producer.offer(2);
    producer.after(2, 0..3, at).unwrap();
    producer.cache.close(Some(PATIENCE)).unwrap();
    assert_eq!(producer.end().0, End::Cancelled);
    assert_eq!(producer.after(2, 0..3, at).unwrap_err().status, Status::Closed);

    let other = rank(&program.cuda());
    other.offer(3);
    other.after(3, 0..3, at).unwrap();
    other.engine.close(Some(PATIENCE)).unwrap();
    let (end, status, _) = other.end();
    assert!([End::Cancelled, End::Failed].contains(&end) && status == Status::Closed, "{end:?}, {status}");
    assert_eq!(other.after(3, 0..3, at).unwrap_err().status, Status::Closed);
    stream.go();
}

#[test]
fn what_is_wrong_is_named() {
    let (program, producer, _) = ends();
    let stream = program.stream();
    stream.record();
    producer.offer(1);
    let refused = producer.after(1, 0..4, stream.event()).unwrap_err();
    assert_eq!(refused.message, "layers: 0 to 4 is no range of the 3 layers");
    // SAFETY: the stand-in's events are numbers, and none has this one.
    let unknown = unsafe { Start::event(16) };
    let refused = producer.after(1, 0..1, unknown).unwrap_err();
    assert!(refused.message.starts_with("event: "), "{refused}");
    let ascend = producer.cache.offer_ready_after(id(1), 0..1, 1, MemoryKind::Ascend, unknown);
    assert_eq!(ascend.unwrap_err().status, Status::Unavailable);
    assert_eq!(producer.cache.state(id(1)), HandoffState::Offered { sealed: false, takers: 0 });
}
