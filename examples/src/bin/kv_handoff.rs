//! Two prefill ranks hand the KV cache of a sequence to a decode rank that arranges it otherwise, by ferry-kv. Each of
//! ferry's languages has this program; any three can talk.
//!
//! ```text
//! kv_handoff prefill RANK               prints "ADDRESS host:port", reads an id, and offers its heads layer by layer
//! kv_handoff decode ADDRESS0 ADDRESS1   prints "ID hex", takes, and checks the bytes; exits with 3 if the take fails
//! ```

use ferry::{Config, Engine, Memory, RegionOptions};
use ferry_kv::{
    BlockList, Cache, CacheMemory, CacheOptions, Event, Group, HandoffId, Layer, Layout, ModelKey, OfferSpec,
    Shard, TakeSpec, Tensor,
};
use std::error::Error;
use std::io::BufRead;
use std::process::ExitCode;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

const LAYERS: u32 = 32;
const HEADS: u64 = 4;
const BLOCKS: u32 = 16;
const BLOCK_TOKENS: u32 = 16;
const ELEMENTS: u64 = 64;
const TOKENS: u64 = BLOCKS as u64 * BLOCK_TOKENS as u64;

/// One rank: of the two that prefill, which share the heads, or the one that decodes.
struct Rank {
    engine: Engine,
    cache: Cache,
    memory: Memory,
    rank: u64,
    prefills: bool,
}

impl Rank {
    fn open(rank: u64, prefills: bool) -> Outcome<Rank> {
        let (heads, tp_size) = if prefills { (HEADS / 2, 2) } else { (HEADS, 1) };
        let (blocks, tokens) = (u64::from(BLOCKS), u64::from(BLOCK_TOKENS));
        let (order, shape) = if prefills {
            ("block pair head token element", [blocks, 2, heads, tokens, ELEMENTS])
        } else {
            ("block pair token head element", [blocks, 2, tokens, heads, ELEMENTS])
        };
        let layer_bytes = 2 * shape.iter().product::<u64>();
        let engine = Engine::open(Config::new()?)?;
        let memory = engine.alloc(LAYERS as usize * layer_bytes as usize, &RegionOptions::default())?;
        let groups = vec![Group::full(BLOCK_TOKENS)];
        let shard = Shard { tp_rank: rank as u32, tp_size, ..Default::default() };
        let layer = |number: u32| {
            let address = memory.address() + u64::from(number) * layer_bytes;
            let tensor = Tensor { address, element_bytes: 2, order, shape: &shape, strides: None };
            Layer::of(format!("layers.{number}"), &tensor, 0, &groups, &shard)
        };
        let layers = (0..LAYERS).map(layer).collect::<Result<_, _>>()?;
        let layout = Layout { key: ModelKey::new("example", "1", "fp16", "none"), shard, groups, layers };
        let cache = Cache::open(&engine, layout, &[CacheMemory::of(&memory)], CacheOptions::default())?;
        Ok(Rank { engine, cache, memory, rank, prefills })
    }

    /// The sequence's blocks on this rank.
    fn blocks(&self) -> Vec<BlockList> {
        let ids = 0..BLOCKS;
        vec![if self.prefills { ids.collect() } else { ids.rev().collect() }]
    }

    /// What the model computes for a layer, as it lies in this rank's memory.
    fn layer(&self, layer: u32) -> Vec<u8> {
        let heads = if self.prefills { HEADS / 2 } else { HEADS };
        let tokens = u64::from(BLOCK_TOKENS);
        let value = |i: u64| {
            let (element, row) = (i % ELEMENTS, i / ELEMENTS % (heads * tokens));
            let (pair, block) = (i / ELEMENTS / (heads * tokens) % 2, i / ELEMENTS / (heads * tokens) / 2);
            let (head, token) =
                if self.prefills { (row / tokens, row % tokens) } else { (row % heads, row / heads) };
            let (head, at) =
                (self.rank * heads + head, if self.prefills { block } else { u64::from(BLOCKS) - 1 - block });
            (u64::from(layer) * 7919
                + pair * 104_729
                + head * 1_299_709
                + (at * tokens + token) * 31
                + element) as u16
        };
        (0..2 * TOKENS * heads * ELEMENTS).flat_map(|i| value(i).to_ne_bytes()).collect()
    }

    fn place(&self, layer: u32) -> std::ops::Range<usize> {
        let bytes = self.memory.length() / LAYERS as usize;
        layer as usize * bytes..(layer as usize + 1) * bytes
    }

    /// Prints each event up to the terminal one, after which the blocks are this rank's again.
    fn end(&self) -> Outcome<bool> {
        loop {
            match self.cache.wait(None)? {
                Event::Layers { layers, .. } => println!("LAYERS {layers}"),
                Event::Ended { end, status: ferry::Status::Ok, .. } => break println!("{}", end.name()),
                Event::Ended { end, status, why, valid_tokens, by, .. } => {
                    let by = by.and_then(|by| Some((by.rank, self.engine.peer_info(by.peer).ok()?.address)));
                    let by =
                        by.map_or(String::new(), |(rank, peer)| format!(" by rank {rank} (peer {peer})"));
                    println!("ended: {} {status}{by}: {why}; {valid_tokens} tokens valid", end.name());
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn prefill(&self) -> Outcome<bool> {
        println!("ADDRESS {}", self.engine.address());
        let id: HandoffId = std::io::stdin().lock().lines().next().ok_or("no id")??.trim().parse()?;
        self.cache.offer(OfferSpec::new(id, self.blocks()))?;
        let compute = |layer| {
            self.memory.view(self.place(layer))?.write(&self.layer(layer))?;
            std::thread::sleep(Duration::from_millis(5)); // the model's work
            self.cache.offer_ready(id, layer..layer + 1, TOKENS)
        };
        // Until the offer ends: its event says why.
        let _ = (0..LAYERS).try_for_each(compute).and_then(|()| self.cache.offer_seal(id, TOKENS));
        self.end()
    }

    fn decode(&self, addresses: &[String]) -> Outcome<bool> {
        let connect = |address: &String| self.engine.connect(address, None);
        let producers = addresses.iter().map(connect).collect::<Result<_, _>>()?;
        let id = HandoffId::random()?;
        let take = TakeSpec::new(id, producers, self.blocks(), TOKENS);
        self.cache.take(TakeSpec { tell_layers: true, ..take })?;
        println!("ID {id}");
        let is_received = self.end()?;
        for layer in (0..LAYERS).filter(|_| is_received) {
            if self.memory.view(self.place(layer))?.to_vec()? != self.layer(layer) {
                return Err(format!("layer {layer} is wrong").into());
            }
        }
        Ok(is_received)
    }
}

fn main() -> Outcome<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (rank, is_whole) = match &arguments[..] {
        [role, rank] if role == "prefill" => {
            let rank = Rank::open(rank.parse()?, true)?;
            let is_whole = rank.prefill()?;
            (rank, is_whole)
        }
        [role, addresses @ ..] if role == "decode" && addresses.len() == 2 => {
            let rank = Rank::open(0, false)?;
            let is_whole = rank.decode(addresses)?;
            (rank, is_whole)
        }
        _ => return Err("usage: kv_handoff prefill RANK | decode ADDRESS0 ADDRESS1".into()),
    };
    rank.cache.close(None)?;
    rank.engine.close(None)?;
    Ok(ExitCode::from(if is_whole { 0 } else { 3 }))
}
