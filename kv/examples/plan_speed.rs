//! Measures how long lowering takes: `cargo run --release -p ferry-kv --example plan_speed`. Fails if it takes longer
//! than what a handover can spare.

use std::time::{Duration, Instant};

use ferry_kv::layout::{Group, GroupKind, Layer, LayerMemory, Layout, ModelKey, Shard, Strides};
use ferry_kv::plan::{BlockSlice, GroupBlocks, Plan};

const BLOCK_TOKENS: u32 = 16;
const ROUNDS: usize = 21;

fn main() {
    let mut slow = 0;
    for (source, target) in [(16, 16), (16, 64), (48, 64)] {
        slow += u32::from(measure(1, 1_000_000, (source, target), Duration::from_millis(50)));
        slow += u32::from(measure(128, 10_000, (source, target), Duration::from_millis(5)));
    }
    slow += u32::from(measure_turns(128, 10_000, Duration::from_millis(20)));
    std::process::exit((slow > 0) as i32);
}

/// Lowers so many tokens that `pairs` blocks of 16 tokens hold them. Prints the median and the worst time, and returns
/// whether the median is above the limit.
fn measure(layers: u32, pairs: u64, block_tokens: (u32, u32), limit: Duration) -> bool {
    let tokens = pairs * u64::from(BLOCK_TOKENS);
    let blocks = |block_tokens: u32| tokens.div_ceil(block_tokens.into());
    let source = layout(layers, block_tokens.0, blocks(block_tokens.0));
    let target = layout(layers, block_tokens.1, blocks(block_tokens.1));
    let name = format!(
        "{layers} layers, {pairs} times 16 tokens, blocks of {} to {}",
        block_tokens.0, block_tokens.1
    );
    run(&name, &source, &target, tokens, tokens, limit)
}

/// Lowers `tokens` tokens from rank 0 to rank 0, of which `moved` move.
fn run(name: &str, source: &Layout, target: &Layout, tokens: u64, moved: u64, limit: Duration) -> bool {
    let plan = Plan::between(source, target).expect("equal models");
    let exchange = plan.exchange(0, 0).expect("both have a rank");
    let blocks = |layout: &Layout| layout.layers[0].memory.expect("one stage").blocks as u32;
    let (source_ids, target_ids) = (shuffled(blocks(source), 1), shuffled(blocks(target), 2));
    let lists = [GroupBlocks {
        source: BlockSlice { ids: &source_ids, first_token: 0 },
        target: BlockSlice { ids: &target_ids, first_token: 0 },
    }];
    let layers = target.layers.len() as u32;
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let strided = exchange.lower(source, target, &lists, 0..tokens, 0..layers).expect("lists fit");
            let time = start.elapsed();
            let bytes: u64 = strided.iter().map(|strided| strided.pieces() * strided.bytes).sum();
            assert_eq!(bytes, moved * u64::from(layers) * ROW_BYTES);
            time
        })
        .collect();
    times.sort();
    let (median, worst) = (times[ROUNDS / 2], times[ROUNDS - 1]);
    println!("{name}: median {median:.2?}, worst {worst:.2?}, limit {limit:?}");
    median > limit
}

/// Lowers what one of two context ranks, which take turns of one token, sends to a rank that holds all tokens.
fn measure_turns(layers: u32, pairs: u64, limit: Duration) -> bool {
    let mut source = layout(layers, BLOCK_TOKENS, pairs);
    source.shard.pcp_size = 2;
    let target = layout(layers, BLOCK_TOKENS, 2 * pairs);
    let tokens = 2 * pairs * u64::from(BLOCK_TOKENS);
    run(
        "128 layers, 10000 times 16 tokens, one of two context ranks, turns of 1 token",
        &source,
        &target,
        tokens,
        tokens / 2,
        limit,
    )
}

const HEADS: u32 = 8;
const ELEMENTS: u32 = 128;
const ROW_BYTES: u64 = 2 * 2 * HEADS as u64 * ELEMENTS as u64;

fn layout(layers: u32, block_tokens: u32, blocks: u64) -> Layout {
    let token = u64::from(HEADS * ELEMENTS * 2);
    let pair = token * u64::from(block_tokens);
    let strides = Strides { block: 2 * pair, pair, head: u64::from(ELEMENTS * 2), token, element: 2 };
    let layer = |index: u32| Layer {
        name: format!("model.layers.{index}.self_attn.attn"),
        group: 0,
        stage: 0,
        heads: HEADS,
        pairs: 2,
        elements: ELEMENTS,
        element_bytes: 2,
        memory: Some(LayerMemory { address: (1 << 40) * u64::from(index + 1), blocks, strides }),
    };
    let key = || "speed".to_string();
    Layout {
        key: ModelKey { model: key(), revision: key(), cache: key(), rope: key() },
        shard: Shard::default(),
        groups: vec![Group { kind: GroupKind::Full, block_tokens }],
        layers: (0..layers).map(layer).collect(),
    }
}

fn shuffled(count: u32, mut seed: u64) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..count).collect();
    for place in (1..ids.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ids.swap(place, (seed >> 33) as usize % (place + 1));
    }
    ids
}
