//! Chooses which rank of the source sends each head of each layer to each rank of the target. Beside `shape`, which
//! matches the layers; below `Plan`, which keeps what is chosen. Both instances compute the same, without a word.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::shape::{group_of, unsupported};
use super::tokens::Context;
use super::{Exchange, LayerPiece, Result};
use crate::layout::{GroupKind, Layer, Layout, Shard};

/// The exchanges that move anything, by (source rank, target rank).
pub(super) type Exchanges = BTreeMap<(u32, u32), Exchange>;

/// Chooses the senders. `matched` has the source's layer for each layer of the target.
///
/// ```text
/// 8 source ranks hold 4 heads      the target's one rank needs all heads
/// head 0: ranks 0 1                layer 0: ranks 0, 2, 4, 6 send
/// head 1: ranks 2 3                layer 1: ranks 1, 3, 5, 7 send
/// ```
pub(super) fn choose(source: &Layout, target: &Layout, matched: &[u32]) -> Result<Exchanges> {
    let mut exchanges = Exchanges::new();
    let mut holders = Holders::new(source.shard);
    let mut needers = Holders::new(target.shard);
    for (ordinal, (to, &index)) in (0u32..).zip(target.layers.iter().zip(matched)) {
        let Some(from) = source.layers.get(index as usize) else { continue };
        let pair =
            LayerPair { from, to, index, ordinal, is_state: group_of(target, to)?.kind == GroupKind::State };
        let needing = needers.of(to, Wanted::Any);
        for shard in ranks(&target.shard).filter(|shard| shard.pp_rank == to.stage) {
            for wanted in pair.wanted(&source.shard, &shard) {
                pair.choose(
                    &shard,
                    wanted,
                    &holders.of(from, wanted),
                    &needing,
                    &source.shard,
                    &mut exchanges,
                )?;
            }
        }
    }
    Ok(exchanges)
}

/// The shards of all ranks of an instance.
pub(super) fn ranks(shard: &Shard) -> impl Iterator<Item = Shard> + '_ {
    (0..shard.ranks()).map(|rank| shard.at(rank))
}

/// A layer on both sides.
struct LayerPair<'a> {
    from: &'a Layer,
    to: &'a Layer,
    index: u32,
    ordinal: u32,
    is_state: bool,
}

impl LayerPair<'_> {
    /// Returns which parts of the source a rank needs, each from one sender: the context ranks that hold any of its
    /// tokens; for a state, any rank with the same heads.
    fn wanted(&self, source: &Shard, target: &Shard) -> Vec<Wanted> {
        if self.is_state {
            let heads = self.to.heads_of(target);
            return vec![Wanted::Heads(heads.start, heads.end)];
        }
        let context = Context::of(target);
        (0..source.context_ranks())
            .filter(|&rank| Context::new(rank, source.context_ranks(), source.turn_tokens).meets(&context))
            .map(Wanted::Context)
            .collect()
    }

    /// Adds one rank's pieces of this layer.
    fn choose(
        &self,
        shard: &Shard,
        wanted: Wanted,
        holders: &Ranks,
        needers: &Ranks,
        source: &Shard,
        exchanges: &mut Exchanges,
    ) -> Result<()> {
        let heads = self.to.heads_of(shard);
        let rank = shard.rank();
        for head in heads.clone() {
            let candidates = holders.of(head);
            let turn = needers.of(head).binary_search(&rank).unwrap_or(0) + self.ordinal as usize;
            let Some(&sender) = candidates.get(turn % candidates.len().max(1)) else {
                return Err(self.no_sender(rank, head, wanted));
            };
            let sender = source.at(sender);
            let piece = LayerPiece {
                source_layer: self.index,
                target_layer: self.ordinal,
                source_head: head - self.from.heads_of(&sender).start,
                target_head: head - heads.start,
                heads: 1,
            };
            exchanges
                .entry((sender.rank(), rank))
                .or_insert_with(|| Exchange { source: sender, target: *shard, layers: Vec::new() })
                .append(piece);
        }
        Ok(())
    }

    fn no_sender(&self, rank: u32, head: u32, wanted: Wanted) -> ferry::Error {
        let name = &self.to.name;
        unsupported(match wanted {
            Wanted::Heads(first, end) => format!(
                "no rank of the source holds exactly the heads {first} to {} of the state {name}, which the target's \
                 rank {rank} needs",
                end.saturating_sub(1)
            ),
            Wanted::Context(context) => format!(
                "no rank of the source holds head {head} of layer {name} for context rank {context}, which the \
                 target's rank {rank} needs"
            ),
            Wanted::Any => format!("no rank of the source holds head {head} of layer {name}"),
        })
    }
}

/// Which of the ranks that hold a head are asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    Any,
    Context(u32),
    /// Those that hold the heads from the first number to below the second, and no other.
    Heads(u32, u32),
}

/// For each head of a layer, the ranks that hold it, in their order.
struct Ranks(Vec<Vec<u32>>);

impl Ranks {
    fn of(&self, head: u32) -> &[u32] {
        self.0.get(head as usize).map_or(&[], Vec::as_slice)
    }
}

/// The ranks of an instance that hold a layer's heads; equal layers share the answer.
struct Holders {
    shard: Shard,
    known: BTreeMap<(u32, u32, Wanted), Rc<Ranks>>,
}

impl Holders {
    fn new(shard: Shard) -> Holders {
        Holders { shard, known: BTreeMap::new() }
    }

    fn of(&mut self, layer: &Layer, wanted: Wanted) -> Rc<Ranks> {
        let known = self.known.entry((layer.stage, layer.heads, wanted));
        known.or_insert_with(|| Rc::new(Holders::find(&self.shard, layer, wanted))).clone()
    }

    fn find(shard: &Shard, layer: &Layer, wanted: Wanted) -> Ranks {
        let mut found = vec![Vec::new(); layer.heads as usize];
        for at in ranks(shard).filter(|at| at.pp_rank == layer.stage) {
            let heads = layer.heads_of(&at);
            let fits = match wanted {
                Wanted::Any => true,
                Wanted::Context(context) => at.context_rank() == context,
                Wanted::Heads(first, end) => heads == (first..end),
            };
            if fits {
                let held = found.get_mut(heads.start as usize..heads.end as usize).unwrap_or_default();
                held.iter_mut().for_each(|ranks| ranks.push(at.rank()));
            }
        }
        Ranks(found)
    }
}
