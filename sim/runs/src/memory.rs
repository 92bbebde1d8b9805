//! Registered memory and its claims. A claim is a part of a memory that belongs to one transfer from its submit until
//! the application has seen its end. Memory without a claim is zero, and nobody but the checkers touches it.

use crate::draw::Draw;
use crate::ledger::{Ledger, LifeId, Phase, TransferId};
use ferry::types::{Op, RegionId};
use ferry::Fence;
use ferry_sim_kernel::arena;
use std::collections::BTreeMap;

pub type MemoryId = usize;

/// The zeroes that stay between the claims of two transfers.
const GUARD: u64 = 16;
/// Why what was unregistered is cut off.
pub const UNREGISTERED: &str = "unregister has returned OK";
/// Tries to find a place.
const TRIES: usize = 6;

pub struct Memory {
    pub life: LifeId,
    pub address: u64,
    pub bytes: u64,
    pub access: u32,
    /// The device whose memory it is.
    pub device: Option<i32>,
    /// None while it is not registered.
    pub region: Option<RegionId>,
    /// Its owner registers it: a peer may know the region before the owner does.
    pub comes: bool,
    /// Regions that it was before.
    pub old: Vec<RegionId>,
    /// Its owner is about to unregister it, or to register it again.
    pub goes: bool,
    /// By their begin.
    pub claims: BTreeMap<u64, Claim>,
}

pub struct Claim {
    pub length: u64,
    pub transfer: TransferId,
    pub is_remote: bool,
    /// Why nothing may touch it any more, although its transfer is not final.
    pub cut: Option<&'static str>,
}

/// A part of a memory.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub memory: MemoryId,
    pub offset: u64,
    pub length: u64,
}

impl Memory {
    /// True if its engine may have it registered.
    pub fn may_be_registered(&self) -> bool {
        self.comes || self.region.is_some()
    }

    /// Finds a free place.
    pub fn find(&self, draw: &mut Draw, length: u64) -> Option<u64> {
        for _ in 0..TRIES {
            let last = self.bytes.checked_sub(length + 2 * GUARD)?;
            let mut offset = GUARD + draw.between(0, last);
            if draw.percent(70) {
                offset = (offset & !7).max(GUARD);
            }
            let next = self.claims.range(..offset + length + GUARD).next_back();
            if next.is_none_or(|(at, claim)| at + claim.length + GUARD <= offset) {
                return Some(offset);
            }
        }
        None
    }

    pub fn claim(&mut self, transfer: TransferId, block: Block, is_remote: bool, refuses: bool) {
        let cut = refuses.then_some("the request must be refused");
        self.claims.insert(block.offset, Claim { length: block.length, transfer, is_remote, cut });
    }

    /// Returns the bytes of a part, now.
    pub fn bytes_at(&self, offset: u64, length: u64) -> &[u8] {
        assert!(offset + length <= self.bytes, "a part beyond the memory");
        // SAFETY: memory of the kernel's arena, which stays until the run is over. One thread runs all tasks, and the
        // ledger is not used across a point: nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts((self.address + offset) as *const u8, length as usize) }
    }

    #[expect(clippy::mut_from_ref, reason = "the bytes are not the ledger's")]
    fn bytes_of(&self, offset: u64, length: u64) -> &mut [u8] {
        assert!(offset + length <= self.bytes, "a part beyond the memory");
        // SAFETY: as in `bytes_at`.
        unsafe { std::slice::from_raw_parts_mut((self.address + offset) as *mut u8, length as usize) }
    }
}

/// Fills memory so that each eight bytes say where they belong. `flip` is all zeroes or all ones.
fn fill(into: &mut [u8], salt: u64, flip: u64) {
    let behind = pattern(salt, into.len() / 8) ^ flip;
    let mut words = into.chunks_exact_mut(8);
    for (at, word) in words.by_ref().enumerate() {
        word.copy_from_slice(&(pattern(salt, at) ^ flip).to_le_bytes());
    }
    words.into_remainder().iter_mut().zip(behind.to_le_bytes()).for_each(|(byte, of)| *byte = of);
}

fn pattern(salt: u64, at: usize) -> u64 {
    (at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ salt.wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// Returns the place of the first byte that is not the pattern's.
fn mismatch(bytes: &[u8], salt: u64) -> Option<usize> {
    let words = bytes.chunks_exact(8);
    let (count, rest) = (words.len(), words.remainder());
    let wrong = words.enumerate().position(|(at, word)| *word != pattern(salt, at).to_le_bytes());
    let behind = pattern(salt, count).to_le_bytes();
    wrong.or((*rest != behind[..rest.len()]).then_some(count)).map(|word| word * 8)
}

/// Returns the place of the first byte that is not zero. Most memory is, so whole lines are looked at first.
fn first_byte(bytes: &[u8]) -> Option<usize> {
    let is_written = |line: &[u8]| line.iter().fold(0, |all, byte| all | byte) != 0;
    let at = bytes.chunks_exact(64).position(is_written).unwrap_or(bytes.len() / 64) * 64;
    bytes[at..].iter().position(|byte| *byte != 0).map(|byte| at + byte)
}

fn salt(id: TransferId, piece: usize) -> u64 {
    (id as u64) << 20 | piece as u64
}

impl Ledger {
    /// Fills the sources of a transfer with its pattern, and its destinations with the opposite.
    pub fn fill(&self, id: TransferId) {
        let transfer = &self.transfers[id];
        let is_write = transfer.wish.op == Op::Write;
        for (nth, piece) in transfer.pieces.iter().enumerate() {
            for (side, block) in transfer.blocks[piece.block].iter().enumerate() {
                let bytes = self.memories[block.memory].bytes_of(block.offset + piece.at, piece.length);
                let is_source = (side == 0) == is_write;
                fill(bytes, salt(id, nth), if is_source { 0 } else { u64::MAX });
            }
        }
    }

    /// Returns what is wrong with the destination of a request that is confirmed.
    pub fn wrong_data(&self, id: TransferId, nth: usize) -> Option<String> {
        let transfer = &self.transfers[id];
        let piece = &transfer.pieces[nth];
        let block = transfer.blocks[piece.block][usize::from(transfer.wish.op == Op::Write)];
        let bytes = self.memories[block.memory].bytes_at(block.offset + piece.at, piece.length);
        let at = mismatch(bytes, salt(id, nth))?;
        if self.is_altered && !transfer.wish.checksum {
            return None;
        }
        Some(format!(
            "request {nth} ({} bytes at {} of memory {}) is wrong from byte {at} on: {:02x?}",
            piece.length,
            block.offset + piece.at,
            block.memory,
            &bytes[at..bytes.len().min(at + 16)]
        ))
    }

    /// Looks at the zeroes around a transfer's blocks.
    pub fn check_guards(&mut self, id: TransferId) {
        let mut wrong = None;
        for block in self.transfers[id].blocks.iter().flatten() {
            let memory = &self.memories[block.memory];
            let end = block.offset + block.length;
            for (from, length) in [(block.offset - GUARD, GUARD), (end, GUARD.min(memory.bytes - end))] {
                if first_byte(memory.bytes_at(from, length)).is_some() {
                    wrong = Some(format!("{} bytes at {from} of memory {}", length, block.memory));
                }
            }
        }
        if let Some(wrong) = wrong {
            self.fail(format!("{wrong}, beside the ranges of {}, were written", self.told(id)));
        }
    }

    /// Makes a transfer's memory free. Remote ranges stay claimed while something may lawfully touch or read them.
    pub fn release(&mut self, id: TransferId, was_refused: bool) {
        let transfer = &self.transfers[id];
        let fence = transfer.result.as_ref().map(|result| result.fence);
        let awaits_note = transfer.wish.note.is_some_and(|note| self.notes[note].keeps_data());
        let may_land = fence.is_none_or(|fence| fence == Fence::Lease) || self.may_land_untold(id);
        let keeps_remote = !was_refused && (may_land || awaits_note);
        for pair in transfer.blocks.clone() {
            for (side, block) in pair.into_iter().enumerate() {
                if side == 0 || !keeps_remote {
                    self.unclaim(block);
                }
            }
        }
    }

    /// Frees the remote ranges of a transfer whose notification has arrived.
    pub fn release_remote(&mut self, id: TransferId) {
        let transfer = &self.transfers[id];
        let fence = transfer.result.as_ref().map(|result| result.fence);
        let is_free = fence.is_some_and(|fence| fence != Fence::Lease) && !self.may_land_untold(id);
        if transfer.phase == Phase::Seen && is_free {
            for [_, remote] in transfer.blocks.clone() {
                self.unclaim(remote);
            }
        }
    }

    fn unclaim(&mut self, block: Block) {
        let memory = &mut self.memories[block.memory];
        memory.bytes_of(block.offset, block.length).fill(0);
        memory.claims.remove(&block.offset);
    }

    /// Cuts off what transfers of `from` that began before `tick` do in the memory of `to`.
    pub fn cut_between(&mut self, from: LifeId, to: LifeId, tick: u64, why: &'static str) {
        let transfers = &self.transfers;
        for memory in self.lives[to].memories.clone() {
            let claims = self.memories[memory].claims.values_mut().filter(|it| it.is_remote);
            for claim in claims {
                let transfer = &transfers[claim.transfer];
                if transfer.wish.from != from || transfer.invoked > tick {
                    continue;
                }
                claim.cut = claim.cut.or(Some(why));
            }
        }
    }

    /// A memory is not registered any more.
    pub fn unregistered(&mut self, memory: MemoryId) {
        let gone = self.memories[memory].region.take();
        self.memories[memory].old.extend(gone);
        // A submit under way may look its local memory up only later, because a request names no local region: it uses
        // what is registered then.
        let transfers = &self.transfers;
        for claim in self.memories[memory].claims.values_mut() {
            if claim.is_remote || transfers[claim.transfer].phase != Phase::Submitting {
                claim.cut = claim.cut.or(Some(UNREGISTERED));
            }
        }
    }

    /// Looks whether all memory without a claim is zero.
    pub fn check_free_memory(&mut self, life: LifeId) {
        for id in self.lives[life].memories.clone() {
            let memory = &self.memories[id];
            let touched = arena::touched(memory.address, memory.bytes);
            let mut at = 0;
            let mut wrong = None;
            let ends = memory.claims.iter().map(|(offset, claim)| (*offset, offset + claim.length));
            for (begin, end) in ends.chain([(memory.bytes, memory.bytes)]) {
                for part in &touched {
                    let (from, to) = (at.max(part.start), begin.min(part.end));
                    let found = (from < to).then(|| first_byte(memory.bytes_at(from, to - from))).flatten();
                    wrong = wrong.or(found.map(|byte| from + byte as u64));
                }
                at = end;
            }
            if let Some(at) = wrong {
                self.fail(format!("byte {at} of memory {id}, which is free, was written"));
            }
        }
    }
}

impl Block {
    /// True if the two overlap, or their guards do.
    pub fn is_near(&self, other: &Block) -> bool {
        let near = |a: &Block, b: &Block| a.offset < b.offset + b.length + GUARD;
        self.memory == other.memory && near(self, other) && near(other, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found_at_its_place() {
        for length in (0..200).chain([4096 + 5]) {
            let (mut zeroes, mut filled) = (vec![0; length], vec![0; length]);
            fill(&mut filled, 7, 0);
            assert_eq!((first_byte(&zeroes), mismatch(&filled, 7)), (None, None));
            for at in [0, 7, 8, 63, 64, length.saturating_sub(1)].into_iter().filter(|at| *at < length) {
                zeroes[at] = 1;
                filled[at] ^= 1;
                assert_eq!((first_byte(&zeroes), mismatch(&filled, 7)), (Some(at), Some(at & !7)));
                zeroes[at] = 0;
                filled[at] ^= 1;
            }
        }
    }
}
