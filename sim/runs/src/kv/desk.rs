//! The model of handoffs: sequences, the processes that play their sides, and whose blocks are whose. Part of the
//! ledger; no access to it contains a point.

use super::caches::{held, Cell};
use crate::draw::Draw;
use crate::ledger::{Ledger, LifeId};
use ferry_kv::handoff::{BlockList, End, HandoffId};
use ferry_kv::layout::{GroupKind, Layout};
use std::collections::BTreeMap;
use std::ops::Range;

/// The memory of a life's cache is watched under this label plus the life.
pub const LABEL: u64 = 1 << 40;
const TOKENS_MAX: u64 = 30;

#[derive(Default)]
pub struct Desk {
    pub ranks: BTreeMap<LifeId, Rank>,
    pub sequences: Vec<Sequence>,
    /// Writes behind a terminal event, of which the application must be told.
    pub lates: Vec<Late>,
    /// A sequence was handed over whole after the last fault.
    pub passed: bool,
}

/// One process that is a rank.
pub struct Rank {
    pub layout: Layout,
    pub address: u64,
    /// By group: blocks that no handoff has.
    pub free: Vec<Vec<u32>>,
    /// The cells that peers may write: those of takes that have not ended.
    pub open: Vec<(usize, Vec<Range<u64>>)>,
    /// The cells of takes that have ended.
    pub closed: Vec<Range<u64>>,
    pub has_cache: bool,
}

pub struct Late {
    pub life: LifeId,
    pub at: Range<u64>,
    pub is_told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Waits,
    Begun,
    Ended(End),
    /// Never begun, or its process is dead.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Producer,
    /// The number of the consumer.
    Taker(usize),
}

pub struct Side {
    pub slot: usize,
    pub life: LifeId,
    pub role: Role,
    pub stage: Stage,
    /// For a producer: how often it has taken tokens back, and by token the first version that takers may have.
    pub version: u64,
    pub least: Vec<u64>,
}

pub struct Sequence {
    pub id: HandoffId,
    pub tokens: u64,
    pub skip: u64,
    /// The producer has the end of the window alone.
    pub begins_late: bool,
    /// The blocks of a State.
    pub state_blocks: u64,
    /// By consumer: how many tokens it takes.
    pub parts: Vec<u64>,
    /// Made after the last fault: it must be handed over.
    pub is_exam: bool,
    pub sides: Vec<Side>,
}

impl Sequence {
    pub fn new(draw: &mut Draw, takers: usize, is_exam: bool, has_state: bool, sides: Vec<Side>) -> Sequence {
        let tokens = draw.between(1, TOKENS_MAX);
        let part = |draw: &mut Draw| {
            if !is_exam && !has_state && draw.percent(25) {
                draw.between(1, tokens)
            } else {
                tokens
            }
        };
        let id = HandoffId::from_bytes(std::array::from_fn(|_| draw.between(0, 255) as u8));
        Sequence {
            id,
            tokens,
            skip: if draw.percent(30) { draw.between(0, tokens - 1) } else { 0 },
            begins_late: draw.percent(30),
            state_blocks: draw.between(1, 3),
            parts: (0..takers).map(|_| part(draw)).collect(),
            is_exam,
            sides,
        }
    }

    /// Returns the tokens of a side, and of those the ones that it has already.
    pub fn tokens_of(&self, role: Role) -> (u64, u64) {
        match role {
            Role::Producer => (self.tokens, 0),
            Role::Taker(number) => (self.parts[number], self.skip.min(self.parts[number])),
        }
    }

    pub fn producers(&self) -> impl Iterator<Item = &Side> {
        self.sides.iter().filter(|side| side.role == Role::Producer)
    }

    /// Returns the first version of a token that a taker may have now.
    pub fn least(&self, token: u64) -> u64 {
        self.producers().map(|side| side.least[token as usize]).min().unwrap_or(0)
    }

    pub fn is_over(&self) -> bool {
        self.sides.iter().all(|side| matches!(side.stage, Stage::Ended(_) | Stage::Gone))
    }
}

impl Rank {
    pub fn new(layout: Layout, address: u64, blocks: u64) -> Rank {
        let free = layout.groups.iter().map(|_| (0..blocks as u32).collect()).collect();
        Rank { layout, address, free, open: Vec::new(), closed: Vec::new(), has_cache: false }
    }

    /// Takes free blocks for a side of a sequence. None if there are too few.
    pub fn allocate(&mut self, draw: &mut Draw, sequence: &Sequence, role: Role) -> Option<Vec<BlockList>> {
        let tokens = sequence.tokens_of(role).0;
        let begins_late = role != Role::Producer || sequence.begins_late;
        let needs = (0..self.layout.groups.len()).map(|group| {
            let block = u64::from(self.layout.groups[group].block_tokens);
            let own = |token| held(&self.layout.shard, token);
            let first_token = match self.layout.groups[group].kind {
                GroupKind::Window { tokens: kept } if begins_late => {
                    let oldest = own(tokens.saturating_sub(kept.into()));
                    oldest - oldest % block
                }
                _ => 0,
            };
            let count = match self.layout.groups[group].kind {
                GroupKind::State => sequence.state_blocks,
                _ => (own(tokens) - first_token).div_ceil(block),
            };
            (first_token, count as usize)
        });
        let needs: Vec<(u64, usize)> = needs.collect();
        if needs.iter().zip(&self.free).any(|((_, count), free)| *count > free.len()) {
            return None;
        }
        let lists = needs.iter().zip(&mut self.free).map(|((first_token, count), free)| {
            let ids = (0..*count).map(|_| free.swap_remove(draw.below(free.len()))).collect();
            BlockList { first_token: *first_token, ids }
        });
        Some(lists.collect())
    }

    pub fn give_back(&mut self, group: usize, ids: &[u32]) {
        self.free[group].extend(ids);
    }
}

impl Ledger {
    /// Gives up the sides whose process is dead. Gives up a side that has not begun if its process is leaving, or if
    /// faults are over and its sequence is not an exam.
    pub fn look_for_dead_sides(&mut self) {
        let (lives, is_calm) = (&self.lives, self.is_calm);
        for sequence in &mut self.kv.sequences {
            let is_late = is_calm && !sequence.is_exam;
            for side in &mut sequence.sides {
                let life = &lives[side.life];
                let is_left = side.stage == Stage::Waits && (life.leaves || is_late);
                if is_left || matches!(side.stage, Stage::Waits | Stage::Begun) && !life.is_alive {
                    side.stage = Stage::Gone;
                }
            }
        }
    }

    pub fn named_side(&self, sequence: usize, side: usize) -> String {
        let of = &self.kv.sequences[sequence];
        let it = &of.sides[side];
        format!("sequence {sequence} ({}, {:?} {})", of.id, it.role, self.named(it.life))
    }
}

/// Returns the bytes of cells, side by side ones together.
pub fn spans(cells: &[Cell]) -> Vec<Range<u64>> {
    let mut all: Vec<u64> = cells.iter().map(|cell| cell.address).collect();
    all.sort_unstable();
    let mut spans: Vec<Range<u64>> = Vec::new();
    for at in all {
        match spans.last_mut().filter(|last| last.end >= at) {
            Some(last) => last.end = at + 1,
            None => spans.push(at..at + 1),
        }
    }
    spans
}

/// Returns a byte of a cache's memory, now.
pub fn byte(at: u64) -> u8 {
    // SAFETY: memory of the kernel's arena, which stays until the run is over. One thread runs all tasks.
    unsafe { *(at as *const u8) }
}

pub fn set_byte(at: u64, value: u8) {
    // SAFETY: as in `byte`.
    unsafe { *(at as *mut u8) = value }
}
