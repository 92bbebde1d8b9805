//! Producers' retracts in the stories of `storm`: tokens of a sequence that is computed again, and blocks that
//! have left a window.
//!
//! The moment a retract is over, what it took back is overwritten with poison, and nothing that is under way may touch
//! it. Recomputed tokens have other bytes (a version), so that a consumer that kept what was taken back is found.

use std::ops::Range;

use ferry_kv::handoff::{BlockList, HandoffState};
use ferry_kv::layout::{GroupKind, Layout};

use crate::caches::{cells, held, Cell};
use crate::storm::{Side, Story};
use crate::world::Life;

/// A producer's offered blocks and its retracts.
pub struct Back {
    /// Blocks of each list that are offered.
    pub offered: Vec<usize>,
    /// Retracts of tokens that are over: what is computed now is of this version.
    pub version: u64,
    /// By token: the first version that takers may have, once the retracts are over.
    least: Vec<u64>,
    /// For a consumer: `least` of its producers when its take began to end. It keeps what it has then.
    frozen: Option<Vec<u64>>,
    waits: Vec<Waits>,
    /// Retracts of both kinds that are over.
    pub count: usize,
    /// Retracts of tokens that may still be asked for.
    left: usize,
}

/// A retract that is not over.
struct Waits {
    number: u64,
    /// The tokens from here on; None for a window.
    from: Option<u64>,
    cells: Vec<Cell>,
}

/// The cells of a sequence's version: their values differ from those of other versions.
pub fn versioned(
    layout: &Layout,
    lists: &[BlockList],
    tokens: Range<u64>,
    sequence: u64,
    version: u64,
) -> Vec<Cell> {
    cells(layout, lists, tokens, sequence + (version << 20))
}

impl Back {
    pub fn new(groups: usize, tokens: u64) -> Back {
        let least = vec![0; tokens as usize];
        Back {
            offered: vec![0; groups],
            version: 0,
            least,
            frozen: None,
            waits: Vec::new(),
            count: 0,
            left: 3,
        }
    }

    /// Whether tokens are being taken back.
    pub fn is_busy(&self) -> bool {
        self.waits.iter().any(|waits| waits.from.is_some())
    }
}

impl Story {
    /// How many tokens a consumer takes: at times fewer than the sequence has.
    pub fn part_of(&mut self, tokens: u64) -> u64 {
        let has_state = self.world.nodes[0].layout.groups.iter().any(|group| group.kind == GroupKind::State);
        if !self.is_calm && !has_state && self.world.random.one_in(4) {
            1 + self.world.random.below(tokens as usize) as u64
        } else {
            tokens
        }
    }

    /// At times takes something back. Returns whether it did.
    pub fn takes_back(&mut self, at: usize) -> bool {
        if !self.retracts {
            return false;
        }
        if self.sides[at].back.left > 0 && self.world.random.one_in(12) {
            let from = self.world.random.below(self.sides[at].tokens as usize + 1) as u64;
            self.take_back(at, from);
            return true;
        }
        self.world.random.one_in(4) && self.free_window(at)
    }

    /// The retract of a side is not over: at times it takes back more.
    pub fn take_more_back(&mut self, at: usize) {
        let pending = self.sides[at].back.waits.iter().filter_map(|waits| waits.from).min().unwrap_or(0);
        if self.sides[at].back.left > 0 && pending > 0 && self.world.random.one_in(4) {
            let from = self.world.random.below(pending as usize) as u64;
            self.take_back(at, from);
        }
    }

    fn take_back(&mut self, at: usize, from: u64) {
        let (now, side) = (self.world.now, &mut self.sides[at]);
        side.back.left -= 1;
        let Ok(number) = self.world.nodes[side.node].machine.offer_retract(side.id, from, now) else {
            return;
        };
        let layout = self.world.nodes[side.node].layout.clone();
        let all = cells(&layout, &side.lists, 0..side.tokens, side.sequence);
        let goes = |cell: &Cell| match layout.groups[cell.group as usize].kind {
            GroupKind::State => side.ready[cell.layer as usize] > from,
            _ => cell.token >= from,
        };
        let cells = all.into_iter().filter(goes).collect();
        side.back.waits.push(Waits { number, from: Some(from), cells });
    }

    /// Frees the blocks that no later chunk needs. Returns whether there are any.
    fn free_window(&mut self, at: usize) -> bool {
        let (now, side) = (self.world.now, &mut self.sides[at]);
        let layout = self.world.nodes[side.node].layout.clone();
        let Some(GroupKind::Window { tokens: kept }) = layout.groups.last().map(|group| group.kind) else {
            return false;
        };
        let (block, list) = (u64::from(layout.groups[1].block_tokens), &mut side.lists[1]);
        let before = side.ready.iter().min().unwrap().saturating_sub(kept.into());
        let count = held(&layout.shard, before).saturating_sub(list.first_token) / block;
        let count = (count as usize).min(side.back.offered[1]);
        if count == 0 {
            return false;
        }
        let mut gone = vec![BlockList::default(); 2];
        gone[1] = BlockList { first_token: list.first_token, ids: list.ids.drain(..count).collect() };
        list.first_token += count as u64 * block;
        side.back.offered[1] -= count;
        let cells = cells(&layout, &gone, 0..side.tokens, side.sequence);
        let machine = &mut self.world.nodes[side.node].machine;
        if let Ok(number) = machine.offer_retract_window(side.id, 1, before, now) {
            side.back.waits.push(Waits { number, from: None, cells });
        }
        true
    }

    /// Overwrites what retracts have taken back that are over.
    pub fn look_at_retracts(&mut self) {
        for at in 0..self.sides.len() {
            let side = &self.sides[at];
            let is_ending = self.world.nodes[side.node].machine.state(side.id) == HandoffState::Ending;
            if !side.is_producer && is_ending && side.back.frozen.is_none() {
                let frozen = (0..side.tokens).map(|token| self.least_version(at, token)).collect();
                self.sides[at].back.frozen = Some(frozen);
            }
        }
        for at in 0..self.sides.len() {
            let (node, id) = (self.sides[at].node, self.sides[at].id);
            if self.sides[at].back.waits.is_empty() || self.world.nodes[node].life == Life::Dead {
                continue;
            }
            for waits in std::mem::take(&mut self.sides[at].back.waits) {
                match self.world.nodes[node].machine.is_retracted(id, waits.number) {
                    Ok(true) => self.come_back(at, waits),
                    Ok(false) => self.sides[at].back.waits.push(waits),
                    // The offer has ended, or ends.
                    Err(_) => {}
                }
            }
        }
    }

    fn come_back(&mut self, at: usize, waits: Waits) {
        let (node, id) = (self.sides[at].node, self.sides[at].id);
        let spans: Vec<Range<u64>> = waits.cells.iter().map(|cell| cell.address..cell.address + 1).collect();
        let (from, is_touched) = (waits.from, self.world.touches(node, &spans));
        assert!(!is_touched, "{id} on {node} took back from {from:?}, and a transfer still touches it");
        let poison = self.world.random.below(256) as u8;
        waits.cells.iter().for_each(|cell| *self.world.byte(node, cell) = poison);
        self.sides[at].back.count += 1;
        if let Some(from) = from {
            self.begin_again(at, from);
        }
    }

    /// The tokens from `from` on are computed again, in other blocks.
    fn begin_again(&mut self, at: usize, from: u64) {
        let side = &mut self.sides[at];
        let layout = self.world.nodes[side.node].layout.clone();
        side.back.version += 1;
        side.back.least.iter_mut().skip(from as usize).for_each(|least| *least = side.back.version);
        (side.sealed, side.extended) = (false, false);
        let own = held(&layout.shard, from);
        for (index, (list, group)) in side.lists.iter_mut().zip(&layout.groups).enumerate() {
            let members = || (0..layout.layers.len()).filter(|at| layout.layers[*at].group as usize == index);
            let offered = &mut side.back.offered[index];
            if group.kind == GroupKind::State {
                if members().any(|at| side.ready[at] > from) {
                    *offered = 0;
                    members().for_each(|at| side.ready[at] = 0);
                }
            } else {
                let kept = own.saturating_sub(list.first_token).div_ceil(group.block_tokens.into());
                *offered = (*offered).min(kept as usize);
                members().for_each(|at| side.ready[at] = side.ready[at].min(from));
            }
            if let [_, _, ..] = list.ids[*offered..] {
                list.ids[*offered..].rotate_left(1);
            }
        }
        side.chunk_end = side.chunk_end.min(from);
        if side.chunk_end < side.tokens {
            side.chunk_end += 1 + self.world.random.below((side.tokens - side.chunk_end) as usize) as u64;
        }
        let begins_late = side.lists.iter().any(|list| list.first_token > 0);
        if begins_late {
            // An earlier chunk would need what its window does not have.
            side.chunk_end = side.tokens;
        }
    }

    /// The cells of a consumer in each version that a producer has computed.
    pub fn versions(&self, at: usize, layout: &Layout) -> Vec<Vec<Cell>> {
        let Side { sequence, lists, tokens, .. } = &self.sides[at];
        let most = self.producers_of(*sequence).map(|side| side.back.version).max().unwrap_or(0);
        (0..=most).map(|version| versioned(layout, lists, 0..*tokens, *sequence, version)).collect()
    }

    /// The first version of a token that a taker may have.
    pub fn least_version(&self, at: usize, token: u64) -> u64 {
        let Side { sequence, back, .. } = &self.sides[at];
        if let Some(frozen) = &back.frozen {
            return frozen[token as usize];
        }
        let least = self.producers_of(*sequence).map(|side| side.back.least[token as usize]);
        least.min().unwrap_or(0)
    }

    fn producers_of(&self, sequence: u64) -> impl Iterator<Item = &Side> {
        self.sides.iter().filter(move |side| side.is_producer && side.sequence == sequence)
    }
}
