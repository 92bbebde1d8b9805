//! A cache of 16 layers whose blocks have 64 KiB, so that a handoff takes long enough to be struck in its midst. Every
//! 8 bytes of a sequence say where they belong.

use std::time::Duration;

use ferry::types::PeerId;
use ferry::{Config, Engine, Memory, RegionOptions};
use ferry_kv::handoff::{BlockList, HandoffId, Mode, OfferSpec, TakeSpec};
use ferry_kv::layout::{
    Arrangement, Group, GroupKind, Layer, LayerMemory, Layout, ModelKey, Shard, Sizes, Strides,
};
use ferry_kv::{Cache, CacheMemory, CacheOptions};

pub const LAYERS: u32 = 16;
pub const BLOCKS: u64 = 64;
pub const TOKENS: u64 = 64 * 16;
pub const BLOCK_BYTES: usize = 65_536;
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Rank {
    pub cache: Cache,
    pub memory: Memory,
    pub engine: Engine,
}

pub fn rank(transports: &str) -> Rank {
    rank_with(transports, &[])
}

pub fn rank_with(transports: &str, settings: &[(&str, &str)]) -> Rank {
    let mut config = Config::default();
    settings.iter().for_each(|(key, value)| config.set(key, value).unwrap());
    config.set("secret", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f").unwrap();
    config.set("transports", transports).unwrap();
    // Transfers posted to a stopped peer end by their lease.
    config.set("lease_ms", "1500").unwrap();
    let engine = Engine::open(config).unwrap();
    let sizes = Sizes { blocks: BLOCKS, pairs: 2, heads: 8, tokens: 16, elements: 128, element_bytes: 2 };
    let strides = Strides::of(Arrangement::BlockPairHeadToken, sizes);
    assert_eq!(strides.block, BLOCK_BYTES as u64);
    let layer_bytes = BLOCK_BYTES * BLOCKS as usize;
    let memory = engine.alloc(layer_bytes * LAYERS as usize, &RegionOptions::default()).unwrap();
    let key =
        ModelKey { model: "big".into(), revision: String::new(), cache: "f16".into(), rope: String::new() };
    let shard = Shard::default();
    let layer = |number: u32| {
        let address = memory.address() + u64::from(number) * layer_bytes as u64;
        Layer {
            name: format!("layers.{number}"),
            group: 0,
            stage: 0,
            heads: 8,
            pairs: 2,
            elements: 128,
            element_bytes: 2,
            memory: Some(LayerMemory { address, blocks: BLOCKS, strides }),
        }
    };
    let layers = (0..LAYERS).map(layer).collect();
    let layout =
        Layout { key, shard, groups: vec![Group { kind: GroupKind::Full, block_tokens: 16 }], layers };
    let whole =
        CacheMemory { region: memory.region(), address: memory.address(), length: memory.length() as u64 };
    let cache = Cache::open(&engine, layout, &[whole], CacheOptions::default()).unwrap();
    Rank { cache, memory, engine }
}

pub fn id(number: u64) -> HandoffId {
    let mut bytes = [3; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    HandoffId::from_bytes(bytes)
}

/// All blocks, in an order that differs between the two sides.
pub fn lists(step: u32) -> Vec<BlockList> {
    vec![BlockList { first_token: 0, ids: (0..BLOCKS as u32).map(|at| at * step % BLOCKS as u32).collect() }]
}

/// An offer for one taker.
pub fn offer_spec(id: HandoffId, blocks: Vec<BlockList>, lease: Duration) -> OfferSpec {
    OfferSpec { id, blocks, takers: 1, only: Vec::new(), lease }
}

/// A take of all tokens by group 1, without a deadline.
pub fn take_spec(id: HandoffId, producers: Vec<PeerId>, blocks: Vec<BlockList>, mode: Mode) -> TakeSpec {
    TakeSpec {
        id,
        producers,
        taker: 1,
        blocks,
        skip_tokens: 0,
        tokens: TOKENS,
        mode,
        deadline: None,
        tell_layers: false,
    }
}

/// The bytes of the sequence's block `at` in a layer.
pub fn block(sequence: u64, layer: u32, at: usize) -> Vec<u8> {
    let first = sequence << 40 ^ u64::from(layer) << 32 ^ (at as u64) << 16;
    (0..BLOCK_BYTES as u64 / 8)
        .flat_map(|word| (first ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

impl Rank {
    fn place(&self, layer: u32, id: u32) -> usize {
        (layer as usize * BLOCKS as usize + id as usize) * BLOCK_BYTES
    }

    pub fn compute(&self, sequence: u64, layer: u32, lists: &[BlockList]) {
        for (at, id) in lists[0].ids.iter().enumerate() {
            self.memory.write(self.place(layer, *id), &block(sequence, layer, at));
        }
    }

    /// The first `valid` tokens are in their blocks.
    pub fn check(&self, sequence: u64, lists: &[BlockList], valid: u64) {
        let mut found = vec![0; BLOCK_BYTES];
        for layer in 0..LAYERS {
            for (at, id) in lists[0].ids.iter().enumerate().take((valid / 16) as usize) {
                self.memory.read(self.place(layer, *id), &mut found);
                assert!(found == block(sequence, layer, at), "layer {layer}, block {at} of {sequence}");
            }
        }
    }

    pub fn scribble(&self, byte: u8) {
        let chunk = vec![byte; 1 << 20];
        (0..self.memory.length()).step_by(chunk.len()).for_each(|at| self.memory.write(at, &chunk));
    }

    /// Nothing has been written since `scribble`.
    pub fn check_scribbled(&self, byte: u8) {
        let mut chunk = vec![0; 1 << 20];
        for at in (0..self.memory.length()).step_by(chunk.len()) {
            self.memory.read(at, &mut chunk);
            let late = chunk.iter().position(|found| *found != byte);
            assert_eq!(late, None, "bytes landed late, from {at} on");
        }
    }
}
