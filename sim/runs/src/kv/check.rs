//! Checks handoffs: each byte of a take is its sequence's, of a version that its producers have not taken
//! back; peers write to the blocks of takes alone, and not after their ends.

use super::caches::{cells, held, Cell};
use super::desk::{byte, Late, Role, Side, Stage, LABEL};
use super::rank::Mine;
use crate::ledger::{Ledger, LifeId};
use ferry::notify::EventBody;
use ferry::status::Status;
use ferry_kv::handoff::{Blocks, End};
use ferry_kv::layout::{GroupKind, Layout};
use ferry_kv::plan::Plan;
use ferry_sim_kernel::memory::Access;
use std::ops::Range;

/// The terminal event of a side.
pub struct Ended {
    pub end: End,
    pub status: Status,
    pub valid: u64,
    pub untrusted: Vec<(u32, u32)>,
}

/// The cells of a sequence's version: their values differ from those of other versions.
pub fn versioned(
    layout: &Layout,
    lists: &[Blocks],
    tokens: Range<u64>,
    sequence: usize,
    version: u64,
) -> Vec<Cell> {
    cells(layout, lists, tokens, sequence as u64 + (version << 20))
}

/// True if a take of so many tokens needs the cell: those that have left the window are not handed over.
pub fn is_kept(layout: &Layout, cell: &Cell, tokens: u64) -> bool {
    match layout.groups[cell.group as usize].kind {
        GroupKind::Window { tokens: kept } => cell.token >= tokens.saturating_sub(kept.into()),
        _ => true,
    }
}

impl Ledger {
    /// The kernel has touched the memory of a cache.
    pub fn saw_cache(&mut self, access: &Access) {
        let life = (access.label - LABEL) as LifeId;
        if !access.write || !self.lives[life].is_alive {
            return;
        }
        let rank = &self.kv.ranks[&life];
        let from = rank.address + access.offset;
        let at = from..from + access.length;
        let has = |spans: &[Range<u64>]| spans.iter().any(|it| it.start <= at.start && at.end <= it.end);
        if rank.open.iter().any(|(_, spans)| has(spans)) {
            return;
        }
        if has(&rank.closed) {
            self.kv.lates.push(Late { life, at, is_told: false });
            return;
        }
        let named = self.named(life);
        let text = format!(
            "the kernel writes {} bytes at {} of the cache of {named} ({}), where nothing is taken",
            access.length, access.offset, access.by
        );
        self.fail(text);
    }

    /// A process was told of a late write.
    pub fn cache_heard(&mut self, life: LifeId, body: &EventBody) {
        let EventBody::LateApply { address, length, .. } = body else { return };
        for late in self.kv.lates.iter_mut().filter(|late| late.life == life) {
            late.is_told |= late.at.start < address + length && *address < late.at.end;
        }
    }

    /// Looks at the books of caches when all engines are closed.
    pub fn check_caches(&mut self) {
        let late = self.kv.lates.iter().find(|late| !late.is_told && self.lives[late.life].is_alive);
        if let Some(Late { life, at, .. }) = late {
            let text = format!("{at:x?} of {} was written after its take's end, untold", self.named(*life));
            self.fail(text);
        }
        for sequence in 0..self.kv.sequences.len() {
            for side in 0..self.kv.sequences[sequence].sides.len() {
                let it = &self.kv.sequences[sequence].sides[side];
                if it.stage == Stage::Begun && self.lives[it.life].is_alive {
                    let text = format!("{} has no terminal event", self.named_side(sequence, side));
                    self.fail(text);
                }
            }
        }
    }

    /// Returns what is wrong with the end of a take.
    pub fn wrong_take(&self, mine: &Mine, layout: &Layout, ended: &Ended) -> Option<String> {
        let Ended { end, status, valid, untrusted } = ended;
        let of = &self.kv.sequences[mine.sequence];
        let (tokens, skip) = of.tokens_of(mine.role);
        if *end == End::Received && (*valid, *status, untrusted.len()) != (tokens, Status::Ok, 0) {
            return Some(format!("RECEIVED with {valid} of {tokens} tokens, {status}, {untrusted:?}"));
        }
        let all = cells(layout, &mine.lists, 0..tokens, mine.sequence as u64);
        let was = |nth: usize| mine.before[nth];
        for (nth, cell) in all.iter().enumerate().filter(|(_, cell)| cell.token < skip) {
            if byte(cell.address) != was(nth) {
                return Some(format!("a token that was skipped is written: {cell:?}"));
            }
        }
        let may = |cell: &Cell| cell.token >= skip && cell.token < *valid && is_kept(layout, cell, tokens);
        if let Some(wrong) = self.wrong_cells(mine, layout, &may) {
            return Some(format!("{end:?}, {valid} tokens valid: {wrong}"));
        }
        let block = u64::from(layout.groups[0].block_tokens);
        let behind = (held(&layout.shard, *valid) / block) as usize;
        let full = mine.lists[0].ids.iter().skip(behind);
        let is_untold = |id: &&u32| !untrusted.contains(&(0, **id));
        if let Some(id) = full.clone().find(is_untold).filter(|_| *valid < tokens && !untrusted.is_empty()) {
            return Some(format!("{valid} tokens are valid, and block {id} is not among {untrusted:?}"));
        }
        None
    }

    /// Returns what is wrong with those cells of a take that `may` chooses.
    pub fn wrong_cells(&self, mine: &Mine, layout: &Layout, may: &dyn Fn(&Cell) -> bool) -> Option<String> {
        if self.is_altered {
            return None;
        }
        let of = &self.kv.sequences[mine.sequence];
        let tokens = of.tokens_of(mine.role).0;
        let most = of.producers().map(|side| side.version).max().unwrap_or(0);
        let versions: Vec<Vec<Cell>> = (0..=most)
            .map(|version| versioned(layout, &mine.lists, 0..tokens, mine.sequence, version))
            .collect();
        for (nth, cell) in versions[0].iter().enumerate().filter(|(_, cell)| may(cell)) {
            let (now, least) = (byte(cell.address), mine.least[cell.token as usize]);
            let values: Vec<u8> = versions.iter().map(|cells| cells[nth].value).collect();
            if !values.iter().skip(least as usize).any(|value| *value == now) {
                return Some(format!("{cell:?} is {now}, of {values:?} from {least} on"));
            }
        }
        None
    }

    /// Returns a take that needs the rank of an offer which is SENT, and that has not everything.
    fn sent_too_early(&self, sequence: usize) -> Option<String> {
        let sides = &self.kv.sequences[sequence].sides;
        let layout = |side: &Side| &self.kv.ranks[&side.life].layout;
        let serves = |from: &Side, to: &Side| {
            let plan = Plan::between(layout(from), layout(to)).expect("the plan of the seed");
            plan.targets_of(layout(from).shard.rank()).contains(&layout(to).shard.rank())
        };
        let sent = (0..sides.len()).filter(|at| sides[*at].stage == Stage::Ended(End::Sent));
        for (of, to) in sent.flat_map(|of| (0..sides.len()).map(move |to| (of, to))) {
            let Stage::Ended(end) = sides[to].stage else { continue };
            let is_whole = [End::Sent, End::Received].contains(&end);
            if !is_whole && sides[to].role != Role::Producer && serves(&sides[of], &sides[to]) {
                let [of, to] = [of, to].map(|side| self.named_side(sequence, side));
                return Some(format!("{of} is SENT, and {to} ended {end:?}"));
            }
        }
        None
    }

    /// A side has ended: its blocks are its application's.
    pub fn side_ended(&mut self, mine: &Mine, end: End) {
        let of = &mut self.kv.sequences[mine.sequence];
        let life = of.sides[mine.side].life;
        of.sides[mine.side].stage = Stage::Ended(end);
        if let Some(wrong) = self.sent_too_early(mine.sequence) {
            self.fail(wrong);
        }
        let of = &mut self.kv.sequences[mine.sequence];
        let whole = |stage: Stage| matches!(stage, Stage::Ended(End::Sent | End::Received));
        self.kv.passed |= of.is_exam && of.sides.iter().all(|side| whole(side.stage));
        if let Some(rank) = self.kv.ranks.get_mut(&life) {
            let Some(at) = rank.open.iter().position(|(sequence, _)| *sequence == mine.sequence) else {
                return;
            };
            rank.closed.extend(rank.open.swap_remove(at).1);
        }
    }
}
