//! The progress of one exchange, posted and arrived, layer by layer. The side that posts uses it to find the next
//! work; the side that receives, to know when it has everything.

use std::ops::Range;

use crate::layout::{GroupKind, Layout};
use crate::plan::Exchange;

use super::limits::RANGES_MAX;
use super::types::BlockList;

/// Tokens of layers that move together: one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Ordinals in the target's layout.
    pub layers: Range<u32>,
    pub tokens: Range<u64>,
}

#[derive(Clone, Debug)]
struct Row {
    source_layer: u32,
    target_layer: u32,
    /// A window or a state: it moves at once, when the last token is ready.
    is_whole: bool,
    /// A layer that is not wanted lies before it, so it does not move together with the row before.
    is_apart: bool,
    posted: u64,
    /// Ranges of tokens that have arrived, apart from each other, in order.
    done: Vec<Range<u64>>,
}

impl Row {
    /// Returns where the tokens of `range` end that have arrived without a gap.
    fn valid(&self, range: &Range<u64>) -> u64 {
        match self.done.first() {
            Some(done) if done.start == range.start => done.end,
            _ => range.start,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Progress {
    range: Range<u64>,
    /// Tokens that go together; the last ones go when all are ready.
    chunk: u64,
    rows: Vec<Row>,
    /// While a retract waits for what is under way: the tokens from here on do not count when they arrive.
    recalled: Option<u64>,
}

impl Progress {
    /// Makes the progress of an exchange, for the layers whose blocks the target wants.
    pub fn new(
        exchange: &Exchange,
        source: &Layout,
        target: &Layout,
        wanted: &[BlockList],
        range: Range<u64>,
    ) -> Progress {
        let mut rows: Vec<Row> = Vec::new();
        let (mut chunk, mut is_apart): (u64, bool) = (1, false);
        for piece in &exchange.layers {
            if rows.last().is_some_and(|row| row.target_layer == piece.target_layer) {
                continue;
            }
            let groups = |layout: &Layout, layer: u32| {
                let group = layout.layers.get(layer as usize)?.group;
                layout.groups.get(group as usize).map(|found| (group, *found))
            };
            let (Some((group, to)), Some((_, from))) =
                (groups(target, piece.target_layer), groups(source, piece.source_layer))
            else {
                continue;
            };
            if wanted.get(group as usize).is_none_or(|list| list.ids.is_empty()) {
                is_apart = true;
                continue;
            }
            let is_whole = matches!(to.kind, GroupKind::Window { .. } | GroupKind::State);
            if !is_whole {
                chunk = chunk.max(to.block_tokens.max(from.block_tokens).into());
            }
            rows.push(Row {
                source_layer: piece.source_layer,
                target_layer: piece.target_layer,
                is_whole,
                is_apart: std::mem::take(&mut is_apart),
                posted: range.start,
                done: Vec::new(),
            });
        }
        Progress { range, chunk, rows, recalled: None }
    }

    /// Takes the next work: the first layers with tokens that are ready and not posted. `ready` gives the number of
    /// tokens of a layer of the source that are computed.
    pub fn next(&mut self, ready: impl Fn(u32) -> u64) -> Option<Work> {
        let (end, chunk) = (self.range.end, self.chunk);
        let sendable = |row: &Row| match ready(row.source_layer) {
            ready if ready >= end => end,
            _ if row.is_whole => row.posted,
            ready => (ready - ready % chunk).max(row.posted),
        };
        let first = self.rows.iter().position(|row| sendable(row) > row.posted)?;
        let head = self.rows.get(first)?;
        let (posted, until) = (head.posted, sendable(head));
        let layer = head.target_layer;
        let alike = |row: &&mut Row| {
            let is_together = row.target_layer == layer || !row.is_apart;
            is_together && row.posted == posted && sendable(row) == until
        };
        let mut layers = layer..layer;
        for row in self.rows.iter_mut().skip(first).take_while(alike) {
            row.posted = until;
            layers.end = row.target_layer + 1;
        }
        Some(Work { layers, tokens: posted..until })
    }

    /// Notes that work has arrived. Returns false for work that is not of this exchange, which does not count.
    pub fn arrived(&mut self, work: &Work) -> bool {
        let is_inside = work.tokens.start >= self.range.start && work.tokens.end <= self.range.end;
        if !is_inside || work.tokens.is_empty() {
            return false;
        }
        let (end, recalled) = (self.range.end, self.recalled);
        let rows = self.rows.iter_mut().filter(|row| work.layers.contains(&row.target_layer));
        let mut any = false;
        for row in rows {
            any = true;
            let kept = work.tokens.start..match recalled {
                Some(from) if row.is_whole && from < end => continue,
                Some(from) => work.tokens.end.min(from),
                None => work.tokens.end,
            };
            if !kept.is_empty() {
                include(&mut row.done, kept);
            }
            if row.done.len() > RANGES_MAX {
                return false;
            }
        }
        any
    }

    /// Takes back the tokens from `from` on: they have not arrived, and what is under way does not count for them. A
    /// row that moves at once is taken back as a whole. Nothing is to be posted before `resume`.
    pub fn recall(&mut self, from: u64) {
        let from = self.recalled.map_or(from, |before| before.min(from));
        self.recalled = Some(from);
        for row in &mut self.rows {
            if row.is_whole && from < self.range.end {
                row.done.clear();
            }
            row.done.iter_mut().for_each(|done| done.end = done.end.min(from));
            row.done.retain(|done| !done.is_empty());
        }
    }

    /// Nothing is under way: what was taken back is to be moved again.
    pub fn resume(&mut self) {
        if self.recalled.take().is_some() {
            self.rows.iter_mut().for_each(|row| row.posted = row.valid(&self.range));
        }
    }

    /// Whether all was posted, and whether all has arrived, of the layers whose layer of the source `picks` picks.
    pub fn has_all(&self, picks: impl Fn(u32) -> bool) -> (bool, bool) {
        let mut rows = self.rows.iter().filter(|row| picks(row.source_layer));
        let is_posted = rows.clone().all(|row| row.posted >= self.range.end);
        (is_posted, rows.all(|row| self.is_done(row)))
    }

    pub fn is_complete(&self) -> bool {
        self.rows.iter().all(|row| self.is_done(row))
    }

    fn is_done(&self, row: &Row) -> bool {
        self.range.is_empty() || matches!(row.done.as_slice(), [all] if *all == self.range)
    }

    /// Returns the end of the tokens that have arrived in all layers.
    pub fn valid(&self) -> u64 {
        self.rows.iter().map(|row| row.valid(&self.range)).min().unwrap_or(self.range.end)
    }

    /// Returns the first layer of the target that is not complete; None if all are.
    pub fn first_open(&self) -> Option<u32> {
        self.rows.iter().find(|row| !self.is_done(row)).map(|row| row.target_layer)
    }
}

/// Adds a range to ranges that are apart from each other and in order.
fn include(ranges: &mut Vec<Range<u64>>, new: Range<u64>) {
    let from = ranges.partition_point(|range| range.end < new.start);
    let to = ranges.partition_point(|range| range.start <= new.end);
    let merged =
        ranges[from..to].iter().fold(new, |all, range| all.start.min(range.start)..all.end.max(range.end));
    ranges.splice(from..to, [merged]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_are_a_set(new in prop::collection::vec((0u64..60, 1u64..9), 0..40)) {
            let (mut ranges, mut model) = (Vec::new(), BTreeSet::new());
            for (start, length) in new {
                include(&mut ranges, start..start + length);
                model.extend(start..start + length);
                prop_assert!(ranges.windows(2).all(|two| two[0].end < two[1].start), "{ranges:?}");
                let all: BTreeSet<u64> = ranges.iter().cloned().flatten().collect();
                prop_assert_eq!(&all, &model);
            }
        }
    }
}
