//! Which tokens of a sequence one rank holds, and the runs of tokens that lie in one block on both sides. Below
//! `routes`, which asks whether two ranks have tokens in common, and `lower`, which turns runs into bytes.
//!
//! ```text
//! tokens of the sequence   0 1 2 3 4 5 6 7 8 9 ...      turns of 2 tokens, 2 context ranks
//! context rank 0           0 1     2 3     4 5          local positions
//! context rank 1               0 1     2 3
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

use ferry::status::Result;

use super::room::push;
use super::strided::BlockPairs;
use crate::layout::Shard;

/// The turns of tokens that a rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    rank: u64,
    ranks: u64,
    turn: u64,
}

impl Context {
    /// Holds all tokens.
    const WHOLE: Context = Context { rank: 0, ranks: 1, turn: 1 };

    pub(super) fn of(shard: &Shard) -> Context {
        Context::new(shard.context_rank(), shard.context_ranks(), shard.turn_tokens)
    }

    pub(super) fn new(rank: u32, ranks: u32, turn_tokens: u32) -> Context {
        Context { rank: rank.into(), ranks: u64::from(ranks).max(1), turn: u64::from(turn_tokens).max(1) }
    }

    /// Whether any token is held by both ranks. Turns repeat after `turn * ranks` tokens, so the two ranks meet where
    /// the distance of two of their tokens is a multiple of the greatest common divisor of these.
    pub(super) fn meets(&self, other: &Context) -> bool {
        let common = i128::from(gcd(self.turn * self.ranks, other.turn * other.ranks));
        let [rank, turn] = [self.rank, self.turn].map(i128::from);
        let [other_rank, other_turn] = [other.rank, other.turn].map(i128::from);
        let lowest = rank * turn - (other_rank + 1) * other_turn + 1;
        let highest = (rank + 1) * turn - 1 - other_rank * other_turn;
        highest.div_euclid(common) * common >= lowest
    }

    /// Returns the most tokens that lie in one turn of both.
    pub(super) fn turn_with(&self, other: &Context) -> u64 {
        let turn = |context: &Context| if context.ranks > 1 { context.turn } else { u64::MAX };
        if self == other {
            u64::MAX
        } else {
            turn(self).min(turn(other))
        }
    }

    /// Returns how many of the sequence's first `token` tokens this rank holds: the local position of `token`, if the
    /// rank holds that.
    pub(super) fn held(&self, token: u64) -> u64 {
        if self.ranks == 1 {
            return token;
        }
        let round = self.turn * self.ranks;
        token / round * self.turn + (token % round).saturating_sub(self.rank * self.turn).min(self.turn)
    }

    /// Returns the first token from `token` on that this rank holds, and the end of its turn.
    fn turn_from(&self, token: u64) -> Range<u64> {
        if self.ranks == 1 {
            return token..u64::MAX;
        }
        let round = self.turn * self.ranks;
        let mut start = (token - token % round).saturating_add(self.rank * self.turn);
        if start.saturating_add(self.turn) <= token {
            start = start.saturating_add(round);
        }
        start.max(token)..start.saturating_add(self.turn)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

/// Consecutive tokens that lie in one block on both sides: where they begin in each, and how many they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    pub(super) source_offset: u64,
    pub(super) target_offset: u64,
    pub(super) tokens: u64,
}

/// The runs that differ only in their blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) run: Run,
    pub(super) pairs: BlockPairs,
}

/// One side of a walk: where the next token lies.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) context: Context,
    pub(super) block_tokens: u64,
    /// The ids of the blocks from `first_token` on, a multiple of `block_tokens`. They cover the tokens of the walk.
    pub(super) ids: &'a [u32],
    pub(super) first_token: u64,
}

/// The place of a token: in which block of the list, and where in that.
#[derive(Clone, Copy, Default)]
struct Cursor {
    block: usize,
    offset: u64,
    turn_left: u64,
}

impl Side<'_> {
    /// The same list, of a sequence that has only this rank's tokens.
    fn whole(&self) -> Self {
        Side { context: Context::WHOLE, ..*self }
    }

    fn seek(&self, token: u64, turn_end: u64) -> Cursor {
        let position = self.context.held(token).saturating_sub(self.first_token);
        Cursor {
            block: (position / self.block_tokens) as usize,
            offset: position % self.block_tokens,
            turn_left: turn_end - token,
        }
    }

    /// Returns how many tokens lie together from the cursor on.
    fn run(&self, cursor: &Cursor) -> u64 {
        cursor.turn_left.min(self.block_tokens - cursor.offset)
    }

    /// `tokens` is at most `run`.
    fn advance(&self, cursor: &mut Cursor, tokens: u64) {
        cursor.turn_left -= tokens;
        cursor.offset += tokens;
        if cursor.offset == self.block_tokens {
            cursor.offset = 0;
            cursor.block += 1;
        }
    }
}

/// Cuts the tokens that both sides hold into runs, and sorts the runs into classes. The lists must cover the tokens;
/// runs outside of them are left out. NO_MEMORY.
pub(super) fn classes(source: &Side, target: &Side, range: Range<u64>) -> Result<Vec<Class>> {
    if source.context == target.context {
        // Both sides take turns alike, so what they hold lies together on both.
        let held = source.context.held(range.start)..source.context.held(range.end);
        return runs(&source.whole(), &target.whole(), held);
    }
    runs(source, target, range)
}

fn runs(source: &Side, target: &Side, range: Range<u64>) -> Result<Vec<Class>> {
    let mut sorter = Sorter::default();
    let mut token = range.start;
    let (mut from, mut to) = (Cursor::default(), Cursor::default());
    while token < range.end {
        if from.turn_left == 0 || to.turn_left == 0 {
            let Some(turns) = next_common(&source.context, &target.context, token..range.end) else { break };
            token = turns.token;
            from = source.seek(token, turns.source_end);
            to = target.seek(token, turns.target_end);
        }
        let tokens = source.run(&from).min(target.run(&to)).min(range.end - token);
        if let (Some(&source_id), Some(&target_id)) = (source.ids.get(from.block), target.ids.get(to.block)) {
            let run = Run { source_offset: from.offset, target_offset: to.offset, tokens };
            sorter.push(run, source_id, target_id)?;
        }
        source.advance(&mut from, tokens);
        target.advance(&mut to, tokens);
        token += tokens;
    }
    Ok(sorter.classes)
}

/// Returns how many tokens of the range both hold.
pub(super) fn count_common(source: &Context, target: &Context, range: Range<u64>) -> u64 {
    let (mut token, mut count) = (range.start, 0);
    while let Some(turns) = next_common(source, target, token..range.end) {
        let end = turns.source_end.min(turns.target_end).min(range.end);
        count += end - turns.token;
        token = end;
    }
    count
}

struct Turns {
    token: u64,
    source_end: u64,
    target_end: u64,
}

/// Returns the first token of the range that both hold, with the ends of its turns.
fn next_common(source: &Context, target: &Context, tokens: Range<u64>) -> Option<Turns> {
    let mut token = tokens.start;
    while token < tokens.end {
        let from = source.turn_from(token);
        let to = target.turn_from(from.start);
        if to.start < from.end && to.start < tokens.end {
            return Some(Turns { token: to.start, source_end: from.end, target_end: to.end });
        }
        token = to.start;
    }
    None
}

/// Finds the class of a run. The runs of a sequence repeat, so the class that followed last time comes first.
#[derive(Default)]
struct Sorter {
    classes: Vec<Class>,
    /// The class that followed each class last.
    next: Vec<usize>,
    last: usize,
    by_run: BTreeMap<Run, usize>,
}

impl Sorter {
    fn push(&mut self, run: Run, source: u32, target: u32) -> Result<()> {
        let guess = self.next.get(self.last).copied().unwrap_or(0);
        let index = match self.classes.get(guess) {
            Some(class) if class.run == run => guess,
            _ => self.find(run)?,
        };
        self.last = index;
        if let Some(class) = self.classes.get_mut(index) {
            push(&mut class.pairs.source, source, "pairs of blocks to move")?;
            push(&mut class.pairs.target, target, "pairs of blocks to move")?;
        }
        Ok(())
    }

    #[cold]
    fn find(&mut self, run: Run) -> Result<usize> {
        let index = *self.by_run.entry(run).or_insert(self.classes.len());
        if index == self.classes.len() {
            push(&mut self.next, index, "kinds of runs of tokens")?;
            push(&mut self.classes, Class { run, pairs: BlockPairs::default() }, "kinds of runs of tokens")?;
        }
        if let Some(next) = self.next.get_mut(self.last) {
            *next = index;
        }
        Ok(index)
    }
}

#[cfg(test)]
#[path = "tokens_tests.rs"]
mod tests;
