//! Mistakes that newcomers make in Rust, and the words that the sentence about each must have.

use ferry::{Config, Engine, Memory, RegionOptions, Request, Status, TransferOptions, WHAT_NOTIFICATIONS};
use ferry_kv::{
    BlockList, Cache, CacheMemory, CacheOptions, Group, HandoffId, Layer, Layout, ModelKey, OfferSpec, Shard,
    TakeSpec, Tensor,
};
use std::time::Duration;

const SHAPE: [u64; 5] = [4, 2, 16, 2, 8];
const LAYER_BYTES: u64 = 4 * 2 * 16 * 2 * 8 * 2;
const ORDER: &str = "block pair token head element";

fn layer(
    memory: &Memory,
    number: u64,
    order: &str,
    groups: &[Group],
    shard: &Shard,
) -> ferry::status::Result<Layer> {
    let address = memory.address() + number * LAYER_BYTES;
    let tensor = Tensor { address, element_bytes: 2, order, shape: &SHAPE, strides: None };
    Layer::of(format!("layers.{number}"), &tensor, 0, groups, shard)
}

/// Two layers, at these places of the memory.
fn layout(memory: &Memory, places: [u64; 2]) -> Layout {
    let (groups, shard) = (vec![Group::full(16)], Shard::default());
    let mut layers: Vec<Layer> =
        places.iter().map(|place| layer(memory, *place, ORDER, &groups, &shard).unwrap()).collect();
    layers.iter_mut().zip(["a", "b"]).for_each(|(layer, name)| layer.name = name.into());
    Layout { key: ModelKey::new("m", "1", "fp16", "none"), shard, groups, layers }
}

fn check<T>(result: ferry::status::Result<T>, status: Status, words: &str) {
    let error = result.err().unwrap_or_else(|| panic!("no error: {words}"));
    assert_eq!(error.status, status, "{}", error.message);
    assert!(error.message.contains(words), "{:?} lacks {words:?}", error.message);
}

#[test]
fn the_engine_names_the_argument_and_the_mend() {
    use Status::*;
    let (engine, other) =
        (Engine::open(Config::new().unwrap()).unwrap(), Engine::open(Config::new().unwrap()).unwrap());
    let memory = engine.alloc(4096, &RegionOptions::default()).unwrap();
    let peer = engine.connect(other.address(), Some(Duration::from_secs(20))).unwrap();
    let queue = other.queue(WHAT_NOTIFICATIONS, 4).unwrap();
    let request = Request { local: memory.address(), remote: 4096, length: 64, ..Default::default() };
    let write = |request: Request, options: &TransferOptions<'_>| engine.write(peer, &[request], options);
    let usual = TransferOptions::default();
    check(engine.connect("node7", None), Invalid, "write node7:PORT");
    check(engine.connect("tcp://node7:1", None), Invalid, "write node7:1 without tcp://");
    check(engine.peer_region(peer, "inbx"), NotRegistered, "inbx");
    check(write(Request { length: 0, ..request }, &usual), Invalid, "length");
    check(write(Request { local: 64, ..request }, &usual), NotRegistered, "local");
    check(
        write(request, &TransferOptions { channel: 99, notify: Some(b"x"), ..usual.clone() }),
        Invalid,
        "channel",
    );
    let queued = TransferOptions { queue: Some(queue), ..usual.clone() };
    check(write(request, &queued), Stale, "belongs to another engine");
    check(engine.write(peer, &[], &usual), Invalid, "requests");
    check(memory.view(4000..5000), Invalid, "4096");
    let mut config = Config::default();
    check(config.set("lane", "4"), Invalid, "lanes");
    check(config.set("lanes", "99"), Invalid, "1 to 16");
}

#[test]
fn a_cache_names_the_argument_and_the_mend() {
    use Status::*;
    let engine = Engine::open(Config::new().unwrap()).unwrap();
    let memory = engine.alloc(2 * LAYER_BYTES as usize, &RegionOptions::default()).unwrap();
    let (groups, shard) = (vec![Group::full(16)], Shard::default());
    let of = |order, groups: &[Group], shard| layer(&memory, 0, order, groups, shard);
    check(
        of("", &groups, &shard),
        Invalid,
        "lacks block; name the dimensions from the outermost, for example",
    );
    check(
        of("block kv token head element", &groups, &shard),
        Invalid,
        "\"kv\" is none of block, pair, token",
    );
    check(
        of("block pair token element", &groups, &shard),
        Invalid,
        "names 4 dimensions, but the tensor has 5",
    );
    check(of(ORDER, &[], &shard), Invalid, "layer.group is 0, and desc has 0 groups");
    check(
        of(ORDER, &[Group::full(32)], &shard),
        Invalid,
        "16 tokens in a block, but block_tokens of group 0 is 32",
    );
    check(of(ORDER, &groups, &Shard { tp_size: 0, ..shard }), Invalid, "tp_size is at least 1");
    let whole = [CacheMemory::of(&memory)];
    let open = |layout, memory: &[CacheMemory]| Cache::open(&engine, layout, memory, CacheOptions::default());
    check(open(layout(&memory, [0, 0]), &whole), Invalid, "is also that of layers[0] \"a\"");
    let half = [CacheMemory { length: LAYER_BYTES, ..whole[0] }];
    check(open(layout(&memory, [0, 1]), &half), Invalid, "memory: none has layer b");
    let cache = open(layout(&memory, [0, 1]), &whole).unwrap();
    check(open(layout(&memory, [0, 1]), &whole), Busy, "the engine has a cache already");

    let id = HandoffId::random().unwrap();
    let blocks = |ids: &[u32]| vec![BlockList::of(ids)];
    check("1234".parse::<HandoffId>(), Invalid, "32 hexadecimal digits");
    check(cache.offer(OfferSpec::new(id, vec![])), Invalid, "blocks");
    check(cache.offer(OfferSpec::new(id, blocks(&[1, 1]))), Invalid, "block 1 is there twice");
    check(cache.offer(OfferSpec::new(id, blocks(&[4]))), Invalid, "4");
    check(cache.offer_ready(id, 0..1, 16), Invalid, "is no offer");
    check(cache.take(TakeSpec::new(id, vec![], blocks(&[0]), 16)), Invalid, "producers");
    cache.offer(OfferSpec::new(id, blocks(&[0]))).unwrap();
    check(cache.offer(OfferSpec::new(id, blocks(&[1]))), Invalid, "is in use");
    check(cache.offer_ready(id, 0..1, 17), Invalid, "blocks");
    check(cache.offer_ready(id, 1..2, 16), Invalid, "layer");
    check(cache.take_cancel(id), Invalid, "is no take");
    check(cache.wait(Some(Duration::ZERO)), Timeout, "no event came in time");
    cache.close(None).unwrap();
    check(cache.offer(OfferSpec::new(id, blocks(&[0]))), Closed, "closed");
}
