//! Which ranks exchange which bytes. Pure: takes layouts and lists of blocks, and gives addresses by strides. Between
//! `layout`, which says what each rank holds, and ferry's transfers, which move the bytes.
//!
//! ```text
//! Layout, Layout ─ shape ─▶ layers matched ─ routes ─▶ Plan ─▶ Exchange of two ranks    once for two instances
//! Exchange, lists of blocks, tokens ─ tokens ─▶ classes of runs ─ lower ─▶ Strided      for each sequence
//! ```

mod amount;
mod blocks;
mod explain;
mod geometry;
mod lower;
mod room;
mod routes;
mod shape;
mod strided;
mod tokens;

pub use blocks::{BlockSlice, GroupBlocks};
pub use strided::{Bases, BlockPairs, Loop, Piece, Pieces, Place, Strided};

use ferry::status::{Error, Result};

use crate::layout::{Layout, Shard};
use routes::Exchanges;

/// Who sends what, for two instances. Any rank of either instance computes the same plan.
#[derive(Clone, Debug)]
pub struct Plan {
    source: Layout,
    target: Layout,
    exchanges: Exchanges,
    /// By target rank.
    sources: Vec<Vec<u32>>,
    /// By source rank.
    targets: Vec<Vec<u32>>,
}

/// The data that one rank of the source sends to one rank of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    pub source: Shard,
    pub target: Shard,
    /// In the order of the target's layers. Empty if the two exchange nothing.
    pub layers: Vec<LayerPiece>,
}

/// Neighbouring heads of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPiece {
    /// Index into the source's `Layout::layers`.
    pub source_layer: u32,
    /// Index into the target's `Layout::layers`.
    pub target_layer: u32,
    /// Counted from the source rank's own first head.
    pub source_head: u32,
    /// Counted from the target rank's own first head.
    pub target_head: u32,
    pub heads: u32,
}

impl Plan {
    /// Plans how the instance of the target gets what the instance of the source holds. The layouts are checked first;
    /// each may be that of any rank. `Invalid` if the caches are of different models, `Unsupported` if the target
    /// cannot be filled from the source.
    pub fn between(source: &Layout, target: &Layout) -> Result<Plan> {
        source.check_each()?;
        target.check_each()?;
        let matched = shape::compare(source, target)?;
        let exchanges = routes::choose(source, target, &matched)?;
        let mut sources = vec![Vec::new(); target.shard.ranks() as usize];
        let mut targets = vec![Vec::new(); source.shard.ranks() as usize];
        for &(from, to) in exchanges.keys() {
            sources.get_mut(to as usize).into_iter().for_each(|list| list.push(from));
            targets.get_mut(from as usize).into_iter().for_each(|list| list.push(to));
        }
        Ok(Plan { source: source.clone(), target: target.clone(), exchanges, sources, targets })
    }

    /// Returns the ranks that send to a rank of the target, in their order.
    pub fn sources_of(&self, target_rank: u32) -> &[u32] {
        self.sources.get(target_rank as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns the ranks to which a rank of the source sends, in their order. Empty if it sends nothing.
    pub fn targets_of(&self, source_rank: u32) -> &[u32] {
        self.targets.get(source_rank as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns what one rank sends to another; without layers if that is nothing. `Invalid` if there is no such rank.
    pub fn exchange(&self, source_rank: u32, target_rank: u32) -> Result<Exchange> {
        for (side, rank, shard) in
            [("source", source_rank, &self.source.shard), ("target", target_rank, &self.target.shard)]
        {
            if rank >= shard.ranks() {
                return Err(Error::invalid(format!(
                    "rank {rank} of the {side} is beyond its {} ranks",
                    shard.ranks()
                )));
            }
        }
        Ok(self.exchanges.get(&(source_rank, target_rank)).cloned().unwrap_or_else(|| Exchange {
            source: self.source.shard.at(source_rank),
            target: self.target.shard.at(target_rank),
            layers: Vec::new(),
        }))
    }

    /// Returns a page for people: the shapes, who sends how much to whom, and in pieces of what size.
    pub fn explain(&self) -> String {
        explain::page(&self.source, &self.target, &self.exchanges)
    }
}

impl Exchange {
    /// Adds a piece; heads that continue the last piece join it.
    fn append(&mut self, piece: LayerPiece) {
        match self.layers.last_mut() {
            Some(last)
                if last.target_layer == piece.target_layer
                    && last.source_head + last.heads == piece.source_head
                    && last.target_head + last.heads == piece.target_head =>
            {
                last.heads += piece.heads;
            }
            _ => self.layers.push(piece),
        }
    }
}

/// Returns how many of a sequence's first `token` tokens a rank holds: the rank's own position of `token`.
pub(crate) fn held(shard: &Shard, token: u64) -> u64 {
    tokens::Context::of(shard).held(token)
}
