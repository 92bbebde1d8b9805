//! Chooses which rank of the source sends each head of each layer to each rank of the target. Beside `shape`, which
//! matches the layers; below `Plan`, which keeps what is chosen. Both instances compute the same, without a word.

use std::collections::BTreeMap;
use std::rc::Rc;

use ferry::status::{Error, Result};
use ferry::Status;

use super::shape::{group_of, unsupported};
use super::tokens::Context;
use super::{Exchange, LayerPiece};
use crate::layout::{GroupKind, Layer, Layout, Shard};

/// The most that one plan may cost, in heads of layers times ranks: a peer's layout must not keep us busy for minutes.
/// 1,024 ranks that need 128 layers of one head from 8 context ranks take half of it.
const STEPS_MAX: u64 = 1 << 21;

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
    let mut chooser = Chooser {
        holders: Holders::new(source.shard),
        needers: Holders::new(target.shard),
        meetings: BTreeMap::new(),
        exchanges: Exchanges::new(),
    };
    for (ordinal, (to, &index)) in (0u32..).zip(target.layers.iter().zip(matched)) {
        let Some(from) = source.layers.get(index as usize) else { continue };
        let is_state = group_of(target, to)?.kind == GroupKind::State;
        chooser.choose_layer(&Matched { from, to, index, ordinal, is_state })?;
    }
    Ok(chooser.exchanges)
}

/// A layer on both sides.
struct Matched<'a> {
    from: &'a Layer,
    to: &'a Layer,
    index: u32,
    ordinal: u32,
    is_state: bool,
}

/// The needs of a rank from one sender.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    Any,
    /// The tokens of a context rank.
    Context(u32),
    /// The state of the heads from the first number to below the second, from a rank that holds no other.
    Heads(u32, u32),
}

struct Chooser {
    holders: Holders,
    needers: Holders,
    /// For each context rank of the target, the source's that have tokens in common with it.
    meetings: BTreeMap<u32, Rc<[Wanted]>>,
    exchanges: Exchanges,
}

impl Chooser {
    fn choose_layer(&mut self, layer: &Matched) -> Result<()> {
        let needers = self.needers.of(layer.to, Wanted::Any)?;
        let instance = self.needers.shard;
        for shard in ranks(&instance).filter(|shard| shard.pp_rank == layer.to.stage) {
            let wanted: Rc<[Wanted]> = if layer.is_state {
                let heads = layer.to.heads_of(&shard);
                Rc::new([Wanted::Heads(heads.start, heads.end)])
            } else {
                self.meetings(&shard)
            };
            for &wanted in wanted.iter() {
                self.choose_rank(layer, &shard, wanted, &needers)?;
            }
        }
        Ok(())
    }

    fn meetings(&mut self, target: &Shard) -> Rc<[Wanted]> {
        let source = &self.holders.shard;
        let known = self.meetings.entry(target.context_rank());
        known
            .or_insert_with(|| {
                let ranks = source.context_ranks();
                let context = |rank| Context::new(rank, ranks, source.turn_tokens);
                let meets = |&rank: &u32| context(rank).meets(&Context::of(target));
                (0..ranks).filter(meets).map(Wanted::Context).collect()
            })
            .clone()
    }

    /// Adds the pieces of one layer for one rank. Ranks that need the same head take its holders in turn, from layer to
    /// layer.
    fn choose_rank(&mut self, layer: &Matched, shard: &Shard, wanted: Wanted, needers: &Ranks) -> Result<()> {
        let holders = self.holders.of(layer.from, wanted)?;
        let (rank, heads) = (shard.rank(), layer.to.heads_of(shard));
        self.holders.spend(heads.len())?;
        for head in heads.clone() {
            let candidates = holders.of(head);
            let turn = needers.of(head).binary_search(&rank).unwrap_or(0) + layer.ordinal as usize;
            let Some(&sender) = candidates.get(turn % candidates.len().max(1)) else {
                return Err(no_sender(layer, rank, head, wanted));
            };
            let sender = self.holders.shard.at(sender);
            let piece = LayerPiece {
                source_layer: layer.index,
                target_layer: layer.ordinal,
                source_head: head - layer.from.heads_of(&sender).start,
                target_head: head - heads.start,
                heads: 1,
            };
            let exchange = self.exchanges.entry((sender.rank(), rank));
            let empty = || Exchange { source: sender, target: *shard, layers: Vec::new() };
            exchange.or_insert_with(empty).append(piece);
        }
        Ok(())
    }
}

fn no_sender(layer: &Matched, rank: u32, head: u32, wanted: Wanted) -> Error {
    let name = &layer.to.name;
    unsupported(match wanted {
        Wanted::Heads(first, end) => format!(
            "no rank of the source holds exactly the {} heads from {first} on of the state {name}, which \
             rank {rank} of the target needs",
            end.saturating_sub(first)
        ),
        Wanted::Context(context) => format!(
            "no rank of the source holds head {head} of layer {name} for context rank {context}, which \
             rank {rank} of the target needs"
        ),
        Wanted::Any => format!("no rank holds head {head} of layer {name}"),
    })
}

/// The shards of all ranks of an instance.
pub(super) fn ranks(shard: &Shard) -> impl Iterator<Item = Shard> + '_ {
    (0..shard.ranks()).map(|rank| shard.at(rank))
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
    steps_left: u64,
}

impl Holders {
    fn new(shard: Shard) -> Holders {
        Holders { shard, known: BTreeMap::new(), steps_left: STEPS_MAX }
    }

    fn spend(&mut self, steps: usize) -> Result<()> {
        match self.steps_left.checked_sub(steps as u64) {
            Some(left) => self.steps_left = left,
            None => {
                let text =
                    format!("the plan takes more than {STEPS_MAX} steps: too many ranks, layers and heads");
                return Err(Error::new(Status::Limit, text));
            }
        }
        Ok(())
    }

    fn of(&mut self, layer: &Layer, wanted: Wanted) -> Result<Rc<Ranks>> {
        let key = (layer.stage, layer.heads, wanted);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        self.spend(layer.heads as usize + self.shard.ranks() as usize)?;
        let found = Rc::new(self.find(layer, wanted));
        self.known.insert(key, found.clone());
        Ok(found)
    }

    fn find(&self, layer: &Layer, wanted: Wanted) -> Ranks {
        let mut found = vec![Vec::new(); layer.heads as usize];
        for at in ranks(&self.shard).filter(|at| at.pp_rank == layer.stage) {
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
