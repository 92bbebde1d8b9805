//! One part of a chunk: the bytes of its value, its digest, and where an engine's blocks have these bytes.
//!
//! The value is the memory of a rank that holds the part's heads and layers and nothing else, in one block of a chunk's
//! tokens: layer behind layer, each without gaps, as `Cut::arrangement` says. So `ferry_kv` plans the exchange between
//! that rank and the engine's. The value of chunk n is block n of the stored rank, whose address is `BASE`.
//!
//! # Bytes of a digest
//!
//! As in `key`: `u32` and `u64` are little-endian, `field(x)` is the length of x as `u32`, then x.
//!
//! ```text
//! digest = the first 24 bytes of SHA-256("ferry-pool pkey2" ‖ part ‖ 16 zero bytes ‖ digest of the chunk)
//!          ‖ the tag of the chunk's digest
//! part   = SHA-256("ferry-pool part2" ‖ u32 tokens of a chunk ‖ field(model) ‖ field(revision) ‖ field(cache)
//!                  ‖ field(rope) ‖ u32 number of layers ‖ layers)
//! layer  = field(name) ‖ kind (0 full, 1 latent) ‖ u32 heads of the model ‖ u32 first head ‖ u32 head behind the last
//!          ‖ u32 pairs ‖ u32 elements ‖ u32 bytes of an element ‖ u64 stride of a pair ‖ of a head ‖ of a token
//! ```
//!
//! The stride of a dimension of one element is 0. All that decides the value's bytes is hashed, and nothing else: parts
//! that are equal by two cuts are one value.

use std::ops::Range;
use std::sync::Arc;

use ferry::status::{Error, Result};
use ferry::Status;
use ferry_kv::layout::Sizes;
use ferry_kv::plan::{BlockSlice, Exchange, GroupBlocks, Plan, Strided};
use ferry_kv::{Group, GroupKind, Layer, LayerMemory, Layout, Shard, Strides};
use sha2::{Digest as _, Sha256};

use super::Cut;
use crate::key::{put_field, Digest};
use crate::limits::{KEYS_OF_CALL_MAX, PART_BYTES_MAX, PIECES_OF_VALUES_MAX, SEGMENTS_OF_VALUE_MAX};

const PART: &[u8; 16] = b"ferry-pool part2";
const PART_KEY: &[u8; 16] = b"ferry-pool pkey2";
/// A layout takes no address 0.
const BASE: u64 = 1;

#[derive(Debug)]
pub(super) struct Part {
    /// The rank that holds the part alone.
    pub stored: Layout,
    bytes: u64,
    /// The state of SHA-256 after the block that all digests of this part begin with.
    prepared: Sha256,
    held: Option<Held>,
}

/// The engine's side of a part: its layout, of the part's layers alone, and what of them is the part.
#[derive(Debug)]
struct Held {
    engine: Arc<Layout>,
    exchange: Exchange,
}

/// Neighbouring bytes of a value, and of a layer of the engine.
struct Piece {
    offset: u64,
    layer: u32,
    address: u64,
    bytes: u64,
}

impl Part {
    /// The part of the engine's layers that the virtual rank `shard` holds.
    pub fn new(engine: &Layout, cut: &Cut, shard: Shard) -> Result<Part> {
        let bytes = |layer: &Layer| {
            let heads = layer.heads_of(&shard).len() as u64;
            [layer.pairs, cut.chunk_tokens, layer.elements, layer.element_bytes]
                .into_iter()
                .fold(heads, |bytes, size| bytes.saturating_mul(size.into()))
        };
        let block = engine.layers.iter().map(bytes).fold(0, u64::saturating_add);
        if block > PART_BYTES_MAX {
            let text =
                format!("layer_parts: a part has {block} bytes, above {PART_BYTES_MAX}; take more parts");
            return Err(Error::new(Status::Limit, text));
        }
        let mut address = BASE;
        let place = |layer: &Layer| {
            let Layer { pairs, elements, element_bytes, .. } = *layer;
            let heads = layer.heads_of(&shard).len() as u32;
            let sizes = Sizes { blocks: 1, pairs, heads, tokens: cut.chunk_tokens, elements, element_bytes };
            let strides = Strides { block, ..Strides::of(cut.arrangement, sizes) };
            let memory = LayerMemory { address, blocks: KEYS_OF_CALL_MAX as u64, strides };
            address += bytes(layer);
            Layer { stage: 0, memory: Some(memory), ..layer.clone() }
        };
        let layers = engine.layers.iter().map(place).collect();
        let group = |group: &Group| Group { block_tokens: cut.chunk_tokens, ..*group };
        let groups = engine.groups.iter().map(group).collect();
        let stored = Layout { key: engine.key.clone(), shard, groups, layers };
        let prepared = prepare(&stored, cut.chunk_tokens);
        Ok(Part { stored, bytes: block, prepared, held: None })
    }

    /// Takes in what the engine's rank holds of the part. INVALID if that is neither nothing nor all. `plan` goes from
    /// all parts of these layers to the engine.
    pub fn hold(&mut self, plan: &Plan, engine: &Arc<Layout>) -> Result<()> {
        let exchange = plan.exchange(self.stored.shard.rank(), engine.shard.rank())?;
        let held: u64 = exchange.layers.iter().map(|piece| u64::from(piece.heads)).sum();
        let heads = |layer: &Layer| layer.heads_of(&self.stored.shard).len() as u64;
        let whole: u64 = self.stored.layers.iter().map(heads).sum();
        if held == 0 {
            return Ok(());
        }
        if held < whole {
            let (tp_rank, tp_size) = (engine.shard.tp_rank, engine.shard.tp_size);
            let layers = self.stored.layers.len() as u64;
            let all = self.stored.layers.first().map_or(0, |layer| layer.heads);
            let (found, parts, heads) = (held / layers, self.stored.shard.tp_size, whole / layers);
            return Err(Error::invalid(format!(
                "head_parts: each of the {parts} parts has {heads} heads, and rank {tp_rank} of {tp_size} holds \
                 {found} of one's; take more parts: {all}, one for each head, fit every engine"
            )));
        }
        self.held = Some(Held { engine: engine.clone(), exchange });
        Ok(())
    }

    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    pub fn digest(&self, chunk: &Digest) -> Digest {
        Digest::tagged(self.prepared.clone().chain_update(chunk.0).finalize().into(), chunk.tag())
    }

    /// Returns the engine's memory of this part of each chunk, in the order of the value's bytes. `tokens` are those of
    /// the chunks. `left`: the pieces that the planner may still make for the call.
    pub fn memory(
        &self,
        chunks: usize,
        tokens: Range<u64>,
        blocks: &[BlockSlice<'_>],
        left: &mut u64,
    ) -> Result<Vec<Vec<(u64, u64)>>> {
        let Some(Held { engine, exchange }) = &self.held else { return Ok(Vec::new()) };
        let ids: Vec<u32> = (0..chunks as u32).collect();
        let source = BlockSlice { ids: &ids, first_token: tokens.start };
        let lists: Vec<GroupBlocks> =
            blocks.iter().map(|target| GroupBlocks { source, target: *target }).collect();
        let moves = exchange.lower(&self.stored, engine, &lists, tokens, 0..u32::MAX).map_err(|error| {
            let message =
                format!("blocks (the target is this engine, the source the pool): {}", error.message);
            Error { message, ..error }
        })?;
        let count = moves.iter().fold(0, |count: u64, moves| count.saturating_add(moves.pieces()));
        *left = left.checked_sub(count).ok_or_else(|| {
            let text = format!(
                "chunks: the blocks of {chunks} are more than {PIECES_OF_VALUES_MAX} pieces; take fewer in a call, \
                 or the arrangement of the engine"
            );
            Error::new(Status::Limit, text)
        })?;
        let mut values: Vec<Vec<Piece>> = (0..chunks).map(|_| Vec::new()).collect();
        for piece in moves.iter().flat_map(Strided::requests) {
            let at = piece.source - BASE;
            if let Some(value) = values.get_mut((at / self.bytes) as usize) {
                let (offset, address) = (at % self.bytes, piece.target);
                value.push(Piece { offset, layer: piece.layer, address, bytes: piece.bytes });
            }
        }
        values.into_iter().map(segments).collect()
    }
}

/// Joins neighbours. Pieces of two layers are never one: each layer may be in a region of its own.
fn segments(mut pieces: Vec<Piece>) -> Result<Vec<(u64, u64)>> {
    pieces.sort_unstable_by_key(|piece| piece.offset);
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if last.layer == piece.layer && last.address + last.bytes == piece.address => {
                last.bytes += piece.bytes;
            }
            _ => joined.push(piece),
        }
    }
    if joined.len() > SEGMENTS_OF_VALUE_MAX {
        let text = format!(
            "arrangement: the memory of a part is in {} pieces, above {SEGMENTS_OF_VALUE_MAX}; take that of the \
             engine, or more layer_parts",
            joined.len()
        );
        return Err(Error::new(Status::Limit, text));
    }
    Ok(joined.into_iter().map(|piece| (piece.address, piece.bytes)).collect())
}

fn prepare(stored: &Layout, chunk_tokens: u32) -> Sha256 {
    let mut part = Sha256::new_with_prefix(PART).chain_update(chunk_tokens.to_le_bytes());
    let key = &stored.key;
    for text in [&key.model, &key.revision, &key.cache, &key.rope] {
        put_field(&mut part, text.as_bytes());
    }
    part.update((stored.layers.len() as u32).to_le_bytes());
    for layer in &stored.layers {
        put_field(&mut part, layer.name.as_bytes());
        let kind = stored.groups.get(layer.group as usize).map(|group| group.kind);
        part.update([u8::from(kind == Some(GroupKind::Latent))]);
        let heads = layer.heads_of(&stored.shard);
        let Layer { pairs, elements, element_bytes, .. } = *layer;
        for number in [layer.heads, heads.start, heads.end, pairs, elements, element_bytes] {
            part.update(number.to_le_bytes());
        }
        let Some(LayerMemory { strides, .. }) = layer.memory else { continue };
        let sizes = [pairs, heads.len() as u32, chunk_tokens];
        for (stride, size) in [strides.pair, strides.head, strides.token].into_iter().zip(sizes) {
            part.update(if size > 1 { stride } else { 0 }.to_le_bytes());
        }
    }
    Sha256::new_with_prefix(PART_KEY).chain_update(part.finalize()).chain_update([0; 16])
}
