//! The path of a workload through the memory of both sides: the bytes that transfer k names, their content before a
//! run, and their content after it.
//!
//! The origin of the data is filled by its own offsets; the other side must then hold, in each block, the offsets of
//! the paired block. A fresh seed per run reveals leftovers of the last run.

use std::ops::Range;
use std::thread;

use crate::layout::BlockMap;
use crate::memory::{fill, Store, PIECE_BYTES};
use crate::pattern::Pattern;
use crate::workload::{Operation, Workload};

/// All runs of a workload have the same map; only the data changes.
const MAP_SEED: u64 = 0x6665_7272_7921;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Initiator,
    Target,
}

pub struct Walk {
    workload: Workload,
    map: BlockMap,
}

impl Walk {
    /// `workload` must be validated.
    pub fn new(workload: Workload) -> Walk {
        let blocks = workload.slots() * workload.blocks;
        Walk { map: BlockMap::new(workload.layout, blocks as u32, MAP_SEED), workload }
    }

    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Returns the offsets at the initiator and at the target of each block of transfer `transfer`.
    pub fn offsets(&self, transfer: u64) -> impl Iterator<Item = (usize, usize)> + '_ {
        let first = (transfer % self.workload.slots() as u64) as usize * self.workload.blocks;
        (first..first + self.workload.blocks).map(|index| self.pair_offsets(index))
    }

    /// Returns the offsets of the same blocks at one end.
    pub fn offsets_at(&self, end: End, transfer: u64) -> impl Iterator<Item = usize> + '_ {
        self.offsets(transfer).map(move |(initiator, target)| match end {
            End::Initiator => initiator,
            End::Target => target,
        })
    }

    /// Returns the end whose memory is the source of the bytes.
    pub fn origin(&self) -> End {
        match self.workload.operation {
            Operation::Write => End::Initiator,
            Operation::Read => End::Target,
        }
    }

    /// Prepares `end` for a run: only the origin of the data is filled.
    pub fn fill(&self, end: End, memory: &mut impl Store, seed: u64) -> anyhow::Result<()> {
        if end == self.origin() {
            fill(memory, self.workload.walk_bytes, seed)
        } else {
            Ok(())
        }
    }

    /// Checks after `transfers` transfers, numbered from 0, that every block they moved to `end` is in its place. The
    /// error is a `Mismatch`, or that of a copy.
    pub fn check(&self, end: End, memory: &impl Store, seed: u64, transfers: u64) -> anyhow::Result<()> {
        if end == self.origin() {
            return Ok(());
        }
        let slots = (self.workload.slots() as u64).min(transfers) as usize;
        let blocks = slots * self.workload.blocks;
        let threads = thread::available_parallelism().map_or(1, usize::from).min(blocks.max(1));
        let check = |mut part: Range<usize>| {
            let mut copy = vec![0; PIECE_BYTES.min(self.workload.block_bytes)];
            part.try_for_each(|index| self.check_block(memory, index, seed, &mut copy))
        };
        thread::scope(|scope| {
            let part = |t: usize| blocks * t / threads..blocks * (t + 1) / threads;
            let workers: Vec<_> = (0..threads).map(|t| scope.spawn(move || check(part(t)))).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("a check does not panic"))
        })
    }

    fn check_block(
        &self,
        memory: &impl Store,
        index: usize,
        seed: u64,
        copy: &mut [u8],
    ) -> anyhow::Result<()> {
        let (initiator, target) = self.pair_offsets(index);
        let (origin, here) = match self.origin() {
            End::Initiator => (initiator, target),
            End::Target => (target, initiator),
        };
        let mut at = 0;
        while at < self.workload.block_bytes {
            let piece = (self.workload.block_bytes - at).min(copy.len());
            memory.copy_out(here + at, &mut copy[..piece])?;
            Pattern::new(seed).check(&copy[..piece], (origin + at) as u64)?;
            at += piece;
        }
        Ok(())
    }

    fn pair_offsets(&self, index: usize) -> (usize, usize) {
        let (initiator, target) = self.map.pair(index);
        (initiator as usize * self.workload.block_bytes, target as usize * self.workload.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::memory::{private, spoil, Memory};
    use crate::pattern::Mismatch;

    fn walk(operation: Operation) -> Walk {
        let layout = Layout::Scattered;
        Walk::new(Workload { operation, layout, block_bytes: 64, blocks: 8, walk_bytes: 4_096 })
    }

    fn move_block((from, origin): (&Memory, usize), (to, place): (&mut Memory, usize)) {
        let mut block = [0; 64];
        from.copy_out(origin, &mut block).expect("mapped");
        to.copy_in(place, &block).expect("mapped");
    }

    /// Moves the bytes like a correct engine, with the CPU.
    fn carry_out(walk: &Walk, from: &Memory, to: &mut Memory, transfers: u64) {
        for (initiator, target) in (0..transfers).flat_map(|k| walk.offsets(k).collect::<Vec<_>>()) {
            let (origin, place) =
                if walk.origin() == End::Initiator { (initiator, target) } else { (target, initiator) };
            move_block((from, origin), (to, place));
        }
    }

    fn both_ends() -> (Memory, Memory) {
        (private(4_096).expect("a page"), private(4_096).expect("a page"))
    }

    #[test]
    fn a_correct_run_passes_in_both_directions() {
        for (operation, end) in [(Operation::Write, End::Target), (Operation::Read, End::Initiator)] {
            let (mut from, mut to) = both_ends();
            let walk = walk(operation);
            walk.fill(walk.origin(), &mut from, 9).expect("mapped");
            carry_out(&walk, &from, &mut to, 3);
            walk.check(end, &to, 9, 3).expect("as it was filled");
            assert!(walk.check(end, &to, 9, 4).is_err(), "the fourth transfer never happened");
            assert!(walk.check(end, &to, 10, 3).is_err(), "the data is of another run");
        }
    }

    #[test]
    fn one_wrong_byte_or_two_swapped_blocks_fail() {
        let (mut from, mut to) = both_ends();
        let walk = walk(Operation::Write);
        walk.fill(End::Initiator, &mut from, 9).expect("mapped");
        carry_out(&walk, &from, &mut to, 8);
        spoil(&mut to, 777).expect("mapped");
        assert!(walk.check(End::Target, &to, 9, 8).is_err());
        spoil(&mut to, 777).expect("mapped");
        walk.check(End::Target, &to, 9, 8).expect("the byte is mended");
        let (mut left, mut right) = ([0; 64], [0; 64]);
        to.copy_out(128, &mut left).expect("mapped");
        to.copy_out(704, &mut right).expect("mapped");
        to.copy_in(128, &right).expect("mapped");
        to.copy_in(704, &left).expect("mapped");
        let error = walk.check(End::Target, &to, 9, 8).expect_err("swapped");
        let mismatch = error.downcast_ref::<Mismatch>().expect("wrong data");
        assert!(mismatch.belongs_at.is_some());
    }
}
