//! Plays a producer's rank: extends an offer, computes it layer by layer, takes tokens and windows
//! back and computes them again, seals it.

use super::caches::{cells, held, Cell};
use super::check::versioned;
use super::desk::{set_byte, Sequence};
use super::rank::{Mine, Player};
use ferry::status::{Error, Status};
use ferry_kv::handoff::{BlockList, OfferSpec};
use ferry_kv::layout::{GroupKind, Layout};
use ferry_sim_kernel::moment;
use std::time::Duration;

pub const TAKEN_BACK: &str = "tokens of an offer are taken back";
const LEASE_MS: (u64, u64) = (200, 4_000);
/// How often the tokens of an offer are taken back at most.
const RETRACTS: u32 = 3;

/// The progress of a sequence's offer.
pub struct Offer {
    /// Blocks of each list that are offered.
    offered: Vec<usize>,
    /// By layer: the tokens that are ready.
    ready: Vec<u64>,
    chunk_end: u64,
    pub sealed: bool,
    extended: bool,
    retracts_left: u32,
    /// The tokens from here on are being taken back.
    retracts: Option<u64>,
    /// The tokens before this one have left the window, and these blocks had them.
    window: Option<(u64, BlockList)>,
}

impl Offer {
    pub fn new(layout: &Layout, of: &Sequence) -> Offer {
        Offer {
            offered: vec![0; layout.groups.len()],
            ready: vec![0; layout.layers.len()],
            chunk_end: if of.begins_late { of.tokens } else { 0 },
            sealed: false,
            extended: true,
            retracts_left: RETRACTS,
            retracts: None,
            window: None,
        }
    }

    /// Returns the blocks that are being taken back.
    pub fn window_ids(&self) -> Vec<u32> {
        self.window.as_ref().map_or_else(Vec::new, |(_, list)| list.ids.clone())
    }
}

impl Player {
    pub fn begin_offer(&mut self, mine: &mut Mine) -> Result<(), Error> {
        let (takers, is_exam) = self.actor.program.world.book.with(|ledger| {
            let of = &ledger.kv.sequences[mine.sequence];
            (of.parts.len() as u32, of.is_exam)
        });
        mine.offer.extended = self.draw.percent(50);
        let mut blocks = mine.lists.clone();
        if !mine.offer.extended {
            blocks.iter_mut().for_each(|list| list.ids.truncate(list.ids.len() / 2));
        }
        mine.offer.offered = blocks.iter().map(|list| list.ids.len()).collect();
        let lease = if is_exam {
            Duration::from_secs(60)
        } else {
            Duration::from_millis(self.draw.log_uniform(LEASE_MS.0, LEASE_MS.1))
        };
        let cache = self.cache.as_ref().expect("it is open");
        cache.offer(OfferSpec { id: mine.id, blocks, takers, only: Vec::new(), lease })
    }

    /// Does the next thing with an offer.
    pub fn produce(&mut self, at: usize, is_exam: bool) {
        let has_retracts = self.actor.program.world.plan.kv.as_ref().is_some_and(|kv| kv.retracts);
        if let Some(from) = self.mine[at].offer.retracts {
            return self.take_back(at, from);
        }
        if let Some((before, _)) = self.mine[at].offer.window {
            return self.free_window(at, before);
        }
        if has_retracts && !is_exam && self.begins_to_take_back(at) {
            return;
        }
        let (mine, draw) = (&mut self.mine[at], &mut self.draw);
        let tokens = self.actor.program.world.book.with(|ledger| ledger.kv.sequences[mine.sequence].tokens);
        let version = self
            .actor
            .program
            .world
            .book
            .with(|ledger| ledger.kv.sequences[mine.sequence].sides[mine.side].version);
        let cache = self.cache.as_ref().expect("it is open");
        let offer = &mut mine.offer;
        let result = if !offer.extended {
            offer.extended = true;
            let offered = mine.lists.iter().zip(&mut offer.offered);
            let rest = offered.map(|(list, offered)| {
                let ids = list.ids[std::mem::replace(offered, list.ids.len())..].to_vec();
                BlockList { first_token: list.first_token, ids }
            });
            cache.offer_extend(mine.id, &rest.collect::<Vec<BlockList>>())
        } else if let Some(first) = offer.ready.iter().position(|ready| *ready < offer.chunk_end) {
            // The layers of a chunk, one or several at a time, in order.
            let count = draw.between(1, (offer.ready.len() - first) as u64) as usize;
            let to = offer.chunk_end;
            for layer in first..first + count {
                let from = offer.ready[layer];
                let all = versioned(&self.layout, &mine.lists, from..to, mine.sequence, version);
                let own = all.iter().filter(|cell| cell.layer as usize == layer);
                own.for_each(|cell| set_byte(cell.address, cell.value));
            }
            offer.ready[first..first + count].fill(to);
            cache.offer_ready(mine.id, first as u32..(first + count) as u32, to)
        } else if offer.chunk_end < tokens {
            offer.chunk_end += draw.between(1, tokens - offer.chunk_end);
            Ok(())
        } else if !offer.sealed {
            offer.sealed = true;
            cache.offer_seal(mine.id, tokens)
        } else {
            Ok(())
        };
        if let Err(error) = result {
            self.expect(at, "going on with an offer", &error);
        }
    }

    /// An offer may have ended.
    fn expect(&self, at: usize, what: &str, error: &Error) {
        if !matches!(error.status, Status::Stale | Status::Closed) {
            self.actor.program.world.book.with(|ledger| {
                let name = ledger.named_side(self.mine[at].sequence, self.mine[at].side);
                ledger.fail(format!("{what} fails, {name}: {error}"));
            });
        }
    }

    fn patience(&mut self) -> Duration {
        Duration::from_millis(self.draw.log_uniform(1, 300))
    }

    /// At times takes something back. Returns whether it did.
    fn begins_to_take_back(&mut self, at: usize) -> bool {
        let tokens =
            self.actor.program.world.book.with(|ledger| ledger.kv.sequences[self.mine[at].sequence].tokens);
        if self.mine[at].offer.retracts_left > 0 && self.draw.percent(8) {
            self.mine[at].offer.retracts_left -= 1;
            let from = self.draw.between(0, tokens);
            self.take_back(at, from);
            return true;
        }
        if !self.draw.percent(25) {
            return false;
        }
        let (mine, layout) = (&mut self.mine[at], &self.layout);
        let Some(GroupKind::Window { tokens: kept }) = layout.groups.last().map(|group| group.kind) else {
            return false;
        };
        let (block, list) = (u64::from(layout.groups[1].block_tokens), &mut mine.lists[1]);
        let before = mine.offer.ready.iter().min().copied().unwrap_or(0).saturating_sub(kept.into());
        let count = held(&layout.shard, before).saturating_sub(list.first_token) / block;
        let count = (count as usize).min(mine.offer.offered[1]);
        if count == 0 {
            return false;
        }
        let gone = BlockList { first_token: list.first_token, ids: list.ids.drain(..count).collect() };
        list.first_token += count as u64 * block;
        mine.offer.offered[1] -= count;
        mine.offer.window = Some((before, gone));
        self.free_window(at, before);
        true
    }

    /// Asks for the blocks before a token of the window. They are free when the call returns OK.
    fn free_window(&mut self, at: usize, before: u64) {
        let patience = self.patience();
        let cache = self.cache.as_ref().expect("it is open");
        match cache.offer_retract_window(self.mine[at].id, 1, before, Some(patience)) {
            Ok(()) => {
                let Some((_, gone)) = self.mine[at].offer.window.take() else { return };
                self.poison(at, vec![BlockList::default(), gone.clone()]);
                let life = self.actor.program.life;
                self.actor.program.world.book.with(|ledger| {
                    if let Some(rank) = ledger.kv.ranks.get_mut(&life) {
                        rank.give_back(1, &gone.ids);
                    }
                });
            }
            Err(error) if error.status == Status::Busy => {}
            Err(error) => self.expect(at, "freeing a window", &error),
        }
    }

    fn poison(&mut self, at: usize, lists: Vec<BlockList>) {
        let (poison, sequence) = (self.draw.between(0, 255) as u8, self.mine[at].sequence);
        let all = cells(&self.layout, &lists, 0..64, sequence as u64);
        all.iter().for_each(|cell| set_byte(cell.address, poison));
    }

    /// Asks for the tokens from `from` on. When the call returns OK they are the application's, which computes them
    /// again.
    fn take_back(&mut self, at: usize, from: u64) {
        let patience = self.patience();
        let cache = self.cache.as_ref().expect("it is open");
        let result = cache.offer_retract(self.mine[at].id, from, Some(patience));
        self.mine[at].offer.retracts = Some(from);
        match result {
            Ok(()) => self.begin_again(at, from),
            Err(error) if error.status == Status::Busy => {}
            Err(error) => self.expect(at, "taking tokens back", &error),
        }
    }

    fn begin_again(&mut self, at: usize, from: u64) {
        moment::reached(TAKEN_BACK);
        let poison = self.draw.between(0, 255) as u8;
        let (mine, layout) = (&mut self.mine[at], &self.layout);
        let tokens = self.actor.program.world.book.with(|ledger| {
            let of = &mut ledger.kv.sequences[mine.sequence];
            let side = &mut of.sides[mine.side];
            side.version += 1;
            side.least.iter_mut().skip(from as usize).for_each(|least| *least = side.version);
            of.tokens
        });
        let offer = &mut mine.offer;
        offer.retracts = None;
        let all = cells(layout, &mine.lists, 0..tokens, mine.sequence as u64);
        let goes = |cell: &&Cell| match layout.groups[cell.group as usize].kind {
            GroupKind::State => offer.ready[cell.layer as usize] > from,
            _ => cell.token >= from,
        };
        all.iter().filter(goes).for_each(|cell| set_byte(cell.address, poison));
        (offer.sealed, offer.extended) = (false, false);
        let own = held(&layout.shard, from);
        for (index, (list, group)) in mine.lists.iter_mut().zip(&layout.groups).enumerate() {
            let members: Vec<usize> =
                (0..layout.layers.len()).filter(|at| layout.layers[*at].group as usize == index).collect();
            let offered = &mut offer.offered[index];
            if group.kind == GroupKind::State {
                if members.iter().any(|at| offer.ready[*at] > from) {
                    *offered = 0;
                    members.iter().for_each(|at| offer.ready[*at] = 0);
                }
            } else {
                let kept = own.saturating_sub(list.first_token).div_ceil(group.block_tokens.into());
                *offered = (*offered).min(kept as usize);
                members.iter().for_each(|at| offer.ready[*at] = offer.ready[*at].min(from));
            }
            if let [_, _, ..] = list.ids[*offered..] {
                list.ids[*offered..].rotate_left(1);
            }
        }
        offer.chunk_end = offer.chunk_end.min(from);
        if offer.chunk_end < tokens {
            offer.chunk_end += self.draw.between(1, tokens - offer.chunk_end);
        }
        if mine.lists.iter().any(|list| list.first_token > 0) {
            // An earlier chunk would need what its window does not have.
            offer.chunk_end = tokens;
        }
    }
}
