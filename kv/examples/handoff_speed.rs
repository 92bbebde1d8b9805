//! What a handoff costs over the bare transfer of the same bytes, and what of a transfer hides behind the computing of
//! later layers. Two engines of one process; the data is compared.
//!
//! `cargo run --release -p ferry-kv --example handoff_speed`, with `resharded` behind `--` for the last part alone.

use std::time::{Duration, Instant};

use ferry::types::{Op, PeerId, Request};
use ferry::{Config, Deadline, Engine, Memory, RegionOptions, TransferOptions};
use ferry_kv::handoff::{BlockList, End, Event, HandoffId, Mode, OfferSpec, TakeSpec};
use ferry_kv::layout::{
    Arrangement, Group, GroupKind, Layer, LayerMemory, Layout, ModelKey, Shard, Sizes, Strides,
};
use ferry_kv::{Cache, CacheMemory, CacheOptions};

const LAYERS: u64 = 64;
const BLOCKS: u64 = 128;
const HEADS: u32 = 8;
const ELEMENTS: u32 = 128;
const ELEMENT_BYTES: u32 = 2;
const ROUNDS: usize = 20;
const PATIENCE: Duration = Duration::from_secs(60);

struct Rank {
    cache: Cache,
    layout: Layout,
    memory: Memory,
    engine: Engine,
}

impl Rank {
    fn layers(&self) -> u32 {
        self.layout.layers.len() as u32
    }

    /// Of a sequence that fills all blocks.
    fn tokens(&self) -> u64 {
        BLOCKS * u64::from(self.layout.groups[0].block_tokens)
    }
}

/// How the blocks of a cache lie, and how many tokens they have.
#[derive(Clone, Copy)]
struct Form {
    arrangement: Arrangement,
    tokens: u32,
    layers: u64,
}

/// Blocks of 64 KiB a layer: keys and values in one block, HND.
const WHOLE: Form = Form { arrangement: Arrangement::BlockPairHeadToken, tokens: 16, layers: LAYERS };

fn rank(transports: &str, tp_rank: u32, tp_size: u32, form: Form) -> Rank {
    let mut config = Config::default();
    config.set("secret", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f").unwrap();
    config.set("transports", transports).unwrap();
    let engine = Engine::open(config).unwrap();
    let sizes = Sizes {
        blocks: BLOCKS,
        pairs: 2,
        heads: HEADS / tp_size,
        tokens: form.tokens,
        elements: ELEMENTS,
        element_bytes: ELEMENT_BYTES,
    };
    let strides = Strides::of(form.arrangement, sizes);
    let layer_bytes = strides.block * BLOCKS;
    let memory = engine.alloc((layer_bytes * form.layers) as usize, &RegionOptions::default()).unwrap();
    let key =
        ModelKey { model: "speed".into(), revision: String::new(), cache: "f16".into(), rope: String::new() };
    let shard = Shard {
        tp_rank,
        tp_size,
        pp_rank: 0,
        pp_size: 1,
        pcp_rank: 0,
        pcp_size: 1,
        dcp_size: 1,
        turn_tokens: 1,
    };
    let layers = (0..form.layers).map(|number| Layer {
        name: format!("layers.{number}"),
        group: 0,
        stage: 0,
        heads: HEADS,
        pairs: 2,
        elements: ELEMENTS,
        element_bytes: ELEMENT_BYTES,
        memory: Some(LayerMemory {
            address: memory.address() + number * layer_bytes,
            blocks: BLOCKS,
            strides,
        }),
    });
    let groups = vec![Group { kind: GroupKind::Full, block_tokens: form.tokens }];
    let layout = Layout { key, shard, groups, layers: layers.collect() };
    let whole =
        CacheMemory { region: memory.region(), address: memory.address(), length: memory.length() as u64 };
    // The first round touches gigabytes for the first time, which may keep a thread for more than a second.
    let options = CacheOptions { silence: PATIENCE, ..CacheOptions::default() };
    let cache = Cache::open(&engine, layout.clone(), &[whole], options).unwrap();
    Rank { cache, layout, memory, engine }
}

/// A random order of all blocks that a seed repeats: no two neighbours stay neighbours.
fn order(seed: u64) -> Vec<u32> {
    (0..BLOCKS).map(|at| ((at * (2 * seed + 37) + seed) % BLOCKS) as u32).collect()
}

fn fill(rank: &Rank, round: u8) {
    let chunk: Vec<u8> = (0..1 << 20).map(|at: usize| (at >> 8) as u8 ^ at as u8 ^ round).collect();
    for at in (0..rank.memory.length()).step_by(chunk.len()) {
        rank.memory.write(at, &chunk[..chunk.len().min(rank.memory.length() - at)]);
    }
}

fn block(rank: &Rank, layer: usize, id: u32) -> Vec<u8> {
    let memory = rank.layout.layers[layer].memory.unwrap();
    let mut bytes = vec![0; memory.strides.block as usize];
    let at = memory.address + u64::from(id) * memory.strides.block - rank.memory.address();
    rank.memory.read(at as usize, &mut bytes);
    bytes
}

fn compare(producer: &Rank, consumer: &Rank, from: &[u32], to: &[u32]) {
    for layer in [0, 31, 63] {
        for (source, target) in from.iter().zip(to) {
            assert!(block(producer, layer, *source) == block(consumer, layer, *target), "layer {layer}");
        }
    }
}

/// The same bytes as one transfer of ferry.
fn bare(
    producer: &Rank,
    consumer: &Rank,
    peers: (PeerId, PeerId),
    op: Op,
    lists: (&[u32], &[u32]),
) -> Duration {
    let (from, to) = lists;
    let mut requests = Vec::new();
    for (source, target) in producer.layout.layers.iter().zip(&consumer.layout.layers) {
        let (source, target) = (source.memory.unwrap(), target.memory.unwrap());
        let length = source.strides.block;
        for (a, b) in from.iter().zip(to) {
            let (a, b) = (source.address + u64::from(*a) * length, target.address + u64::from(*b) * length);
            requests.push(match op {
                Op::Write => Request { local: a, remote: b, length, remote_region: consumer.memory.region() },
                Op::Read => Request { local: b, remote: a, length, remote_region: producer.memory.region() },
            });
        }
    }
    let options = TransferOptions { deadline: Deadline::Never, ..TransferOptions::default() };
    let began = Instant::now();
    match op {
        Op::Write => producer.engine.write(peers.1, &requests, &options).unwrap(),
        Op::Read => consumer.engine.read(peers.0, &requests, &options).unwrap(),
    };
    began.elapsed()
}

fn id(number: u64) -> HandoffId {
    let mut bytes = [9; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    HandoffId::from_bytes(bytes)
}

fn end(rank: &Rank) -> End {
    loop {
        if let Event::Ended { end, why, .. } = rank.cache.wait(Some(PATIENCE)).unwrap() {
            assert!(why.is_empty(), "{why}");
            return end;
        }
    }
}

fn offer(rank: &Rank, number: u64, ids: &[u32]) {
    let blocks = vec![BlockList { first_token: 0, ids: ids.to_vec() }];
    let spec = OfferSpec { id: id(number), blocks, takers: 1, only: Vec::new(), lease: PATIENCE };
    rank.cache.offer(spec).unwrap();
}

fn take(rank: &Rank, number: u64, producers: &[PeerId], ids: &[u32], mode: Mode) {
    let spec = TakeSpec {
        id: id(number),
        producers: producers.to_vec(),
        taker: 1,
        blocks: vec![BlockList { first_token: 0, ids: ids.to_vec() }],
        skip_tokens: 0,
        tokens: rank.tokens(),
        mode,
        deadline: None,
        tell_layers: false,
    };
    rank.cache.take(spec).unwrap();
}

/// From the offer of a sequence that is ready to both ends.
fn handoff(
    producer: &Rank,
    consumer: &Rank,
    number: u64,
    peers: &[PeerId],
    mode: Mode,
    lists: (&[u32], &[u32]),
) -> Duration {
    let began = Instant::now();
    offer(producer, number, lists.0);
    producer.cache.offer_ready(id(number), 0..producer.layers(), producer.tokens()).unwrap();
    producer.cache.offer_seal(id(number), producer.tokens()).unwrap();
    take(consumer, number, peers, lists.1, mode);
    assert_eq!((end(consumer), end(producer)), (End::Received, End::Sent));
    began.elapsed()
}

/// Layer by layer, each after `compute`: from the first layer's beginning to both ends.
fn layerwise(
    producer: &Rank,
    consumer: &Rank,
    number: u64,
    peers: &[PeerId],
    lists: (&[u32], &[u32]),
    compute: Duration,
) -> Duration {
    offer(producer, number, lists.0);
    take(consumer, number, peers, lists.1, Mode::Push);
    let began = Instant::now();
    for layer in 0..LAYERS as u32 {
        std::thread::sleep((compute * (layer + 1)).saturating_sub(began.elapsed()));
        producer.cache.offer_ready(id(number), layer..layer + 1, producer.tokens()).unwrap();
    }
    producer.cache.offer_seal(id(number), producer.tokens()).unwrap();
    assert_eq!((end(consumer), end(producer)), (End::Received, End::Sent));
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// From four ranks to two and from two to two: the same bytes in all, in inner pieces of `form`.
fn resharded(transports: &str, what: &str, form: Form, number: &mut u64) {
    let bytes = |tp: u32| -> (Vec<Rank>, Vec<PeerId>) {
        (0..tp).map(|tp_rank| (rank(transports, tp_rank, tp, form), PeerId::NONE)).unzip()
    };
    let (consumers, _) = bytes(2);
    let sources = [bytes(4).0, bytes(2).0];
    let connect = |to: &Rank, from: &Rank| from.engine.connect(to.engine.address(), Some(PATIENCE)).unwrap();
    let peers: Vec<Vec<Vec<PeerId>>> = sources
        .iter()
        .map(|all| consumers.iter().map(|from| all.iter().map(|to| connect(to, from)).collect()).collect())
        .collect();
    let mut ratios = Vec::new();
    for round in 0..=ROUNDS {
        let mut times = Vec::new();
        for (producers, peers) in sources.iter().zip(&peers) {
            *number += 1;
            let began = Instant::now();
            for producer in producers {
                offer(producer, *number, &order(3));
                producer.cache.offer_ready(id(*number), 0..producer.layers(), producer.tokens()).unwrap();
                producer.cache.offer_seal(id(*number), producer.tokens()).unwrap();
            }
            for (consumer, peers) in consumers.iter().zip(peers) {
                take(consumer, *number, peers, &order(4), Mode::Auto);
            }
            consumers.iter().for_each(|rank| assert_eq!(end(rank), End::Received));
            producers.iter().for_each(|rank| assert_eq!(end(rank), End::Sent));
            times.push(began.elapsed().as_secs_f64());
        }
        if round > 0 {
            ratios.push(times[1] / times[0]);
        }
    }
    let ratio = middle(ratios);
    println!("{transports:9} TP 4 -> 2 over TP 2 -> 2, {what}: {ratio:.2} of its speed");
}

fn main() {
    let mut number = 0;
    if std::env::args().nth(1).is_some_and(|part| part == "resharded") {
        return all_resharded(&mut number);
    }
    println!(
        "{LAYERS} layers, {BLOCKS} blocks of 64 KiB in each, at random places; medians of {ROUNDS} pairs"
    );
    for transports in ["tcp", "local,tcp"] {
        let (producer, consumer) = (rank(transports, 0, 1, WHOLE), rank(transports, 0, 1, WHOLE));
        let at_consumer = consumer.engine.connect(producer.engine.address(), Some(PATIENCE)).unwrap();
        let at_producer = producer.engine.connect(consumer.engine.address(), Some(PATIENCE)).unwrap();
        for (mode, op) in [(Mode::Pull, Op::Read), (Mode::Push, Op::Write)] {
            let (mut bares, mut handoffs) = (Vec::new(), Vec::new());
            for round in 0..=ROUNDS {
                number += 1;
                let (from, to) = (order(number), order(number + 11));
                fill(&producer, number as u8);
                let bare = bare(&producer, &consumer, (at_consumer, at_producer), op, (&from, &to));
                fill(&producer, number as u8 ^ 0x55);
                let whole = handoff(&producer, &consumer, number, &[at_consumer], mode, (&from, &to));
                compare(&producer, &consumer, &from, &to);
                if round > 0 {
                    bares.push(bare);
                    handoffs.push(whole);
                }
            }
            let ratios = bares.iter().zip(&handoffs);
            let ratios = ratios.map(|(bare, whole)| whole.as_secs_f64() / bare.as_secs_f64()).collect();
            println!(
                "{transports:9} {mode:?}: bare {:.1} ms, handoff {:.1} ms, ratio {:.3} (aim 1.15)",
                ms(median(bares)),
                ms(median(handoffs)),
                middle(ratios)
            );
        }
        let whole = (0..5).map(|_| {
            number += 1;
            handoff(&producer, &consumer, number, &[at_consumer], Mode::Push, (&order(3), &order(4)))
        });
        let whole = median(whole.collect());
        let compute = whole.div_f64(LAYERS as f64).mul_f64(1.1);
        let hidden = (0..9).map(|_| {
            number += 1;
            let total =
                layerwise(&producer, &consumer, number, &[at_consumer], (&order(3), &order(4)), compute);
            let visible = total.saturating_sub(compute * LAYERS as u32);
            1.0 - visible.as_secs_f64() / whole.as_secs_f64()
        });
        println!(
            "{transports:9} layerwise: {:.0} % of {:.1} ms hidden behind {:.2} ms a layer (aim 80 %)",
            100.0 * middle(hidden.collect()),
            ms(whole),
            ms(compute)
        );
    }
    all_resharded(&mut number);
}

fn all_resharded(number: &mut u64) {
    for transports in ["tcp", "local,tcp"] {
        let form = Form { arrangement: Arrangement::BlockPairHeadToken, tokens: 128, layers: 8 };
        resharded(transports, "HND, pieces of 64 KiB (aim 0.8)", form, number);
        let form = Form { arrangement: Arrangement::BlockPairTokenHead, tokens: 128, layers: 8 };
        resharded(transports, "NHD, pieces of 512 B (aim 0.5)", form, number);
    }
}
