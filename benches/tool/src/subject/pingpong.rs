//! One-way latency as in `ib_write_lat`: each application polls its own memory for the mark of the round, and WRITEs
//! the next mark into the other's.
//!
//! ```text
//! client, round r ──WRITE──▶ slot r of the server's memory     ┌ slot ────────────┬ slot ────────────┬─
//! client's slot r ◀──WRITE── server, round r                   │ gap │ body, mark │ gap │ body, mark │ …
//! ```
//!
//! A message ends where its slot ends, and its last bytes are the mark: as many as one aligned load takes. The
//! initiator checks its transfer while the answer is under way, and waits for it before it writes the slot again,
//! never between a mark's arrival and the answer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context};
use ferry::types::{Op, RegionId, Request};
use ferry::Transfer;

use super::drive::Route;
use super::registered::Registered;
use super::wire::PingPong;
use crate::memory::Store;
use crate::pattern::Pattern;

/// Transfers of each end that may be under way although their answers have arrived.
const SLOTS_MAX: usize = 16;
/// No two messages share a cache line.
const SLOT_ALIGN: usize = 64;
/// Polls between two looks at the clock.
const LOOKS: usize = 1_024;
/// After this time the thread yields the CPU between polls; no direct path takes this long.
const YIELD_AFTER: Duration = Duration::from_micros(200);
/// The other end only answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

impl PingPong {
    /// Returns the memory for one end's messages, with all slots.
    pub fn memory_bytes(bytes: usize) -> usize {
        slot_bytes(bytes) * SLOTS_MAX
    }

    /// Returns as many slots as the memory of both ends has room for.
    pub fn slots(bytes: usize, memory_bytes: usize) -> usize {
        (memory_bytes / slot_bytes(bytes)).min(SLOTS_MAX)
    }

    /// Fails if the run has no bytes or exceeds the memory.
    pub fn validated(self, memory_bytes: usize) -> anyhow::Result<PingPong> {
        ensure!(self.bytes > 0 && self.rounds > 0, "a ping-pong needs a byte and a round");
        let slots = PingPong::slots(self.bytes, memory_bytes);
        ensure!((1..=slots).contains(&self.slots), "the messages exceed the memory agreed upon");
        Ok(self)
    }

    fn slot(&self, round: u64) -> usize {
        (round % self.slots as u64) as usize
    }

    /// Returns the offset of the last message.
    pub fn last_offset(&self) -> usize {
        self.offset(self.slot(self.rounds))
    }

    /// Returns the offset of a slot's message.
    fn offset(&self, slot: usize) -> usize {
        (slot + 1) * slot_bytes(self.bytes) - self.bytes
    }

    fn mark_offset(&self, slot: usize) -> usize {
        self.offset(slot) + self.bytes - mark_bytes(self.bytes)
    }

    /// Removes an earlier run's marks: no round's mark is 0 on the first use of a slot.
    pub fn clear(&self, received: &mut Registered) -> anyhow::Result<()> {
        let zeros = vec![0; self.bytes];
        (0..self.slots).try_for_each(|slot| received.copy_in(self.offset(slot), &zeros))
    }

    /// Checks that the last message of each slot is the one that the other end sent.
    pub fn check(&self, received: &impl Store, seed: u64) -> anyhow::Result<()> {
        let mut message = vec![0; self.bytes];
        let first = self.rounds.saturating_sub(self.slots as u64 - 1).max(1);
        for round in first..=self.rounds {
            let offset = self.offset(self.slot(round));
            received.copy_out(offset, &mut message)?;
            let (body, found) = message.split_at(self.bytes - mark_bytes(self.bytes));
            Pattern::new(seed).check(body, offset as u64)?;
            ensure!(
                found == &round.to_le_bytes()[..found.len()],
                "wrong data at byte {offset}: round {round} left {found:?}"
            );
        }
        Ok(())
    }
}

fn slot_bytes(bytes: usize) -> usize {
    bytes.div_ceil(SLOT_ALIGN) * SLOT_ALIGN
}

/// Returns the bytes of the mark at the end of a message of `bytes`: as many as one aligned load can take.
fn mark_bytes(bytes: usize) -> usize {
    let fits = [8, 4, 2, 1].into_iter().find(|&width| width <= bytes);
    fits.expect("a message has at least one byte")
}

/// Returns `round` cut to a mark of `width` bytes.
fn mark(round: u64, width: usize) -> u64 {
    round & (u64::MAX >> (64 - 8 * width))
}

/// Returns the little-endian integer of `width` bytes at `offset`, which is aligned to `width`, as it is in memory
/// now.
fn look(memory: &Registered, offset: usize, width: usize) -> u64 {
    let area = memory.area();
    let end = offset.checked_add(width);
    assert!(end.is_some_and(|end| end <= area.bytes), "within the memory");
    let address = (area.address as usize + offset) as *mut u8;
    assert!((address as usize) % width == 0, "aligned to its width");
    // A device, the kernel, another process, or ferry's lane thread on their behalf writes here, outside the
    // language's memory model. The best protection is an atomic: one load of the machine, neither torn nor cached nor
    // moved before the poll that precedes it; Acquire keeps later reads behind it.
    // SAFETY: in bounds and aligned (checked above), in memory that `memory` keeps mapped for the length of this
    // borrow, in which no code of this program writes to it.
    let value = unsafe {
        match width {
            1 => AtomicU8::from_ptr(address).load(Ordering::Acquire).into(),
            2 => u16::from_le(AtomicU16::from_ptr(address.cast()).load(Ordering::Acquire)).into(),
            4 => u32::from_le(AtomicU32::from_ptr(address.cast()).load(Ordering::Acquire)).into(),
            _ => u64::from_le(AtomicU64::from_ptr(address.cast()).load(Ordering::Acquire)),
        }
    };
    value
}

/// One end of a run.
pub struct Player<'a> {
    terms: PingPong,
    route: Route<'a>,
    sent: &'a mut Registered,
    received: &'a Registered,
    /// In the order sent; at most one for each slot.
    under_way: VecDeque<Transfer>,
}

impl<'a> Player<'a> {
    /// Writes the bytes that all messages share. `route` leads from `sent` to the other's `received`.
    pub fn new(
        terms: PingPong,
        route: Route<'a>,
        sent: &'a mut Registered,
        received: &'a Registered,
        seed: u64,
    ) -> anyhow::Result<Player<'a>> {
        let mut message = vec![0; terms.bytes];
        for offset in (0..terms.slots).map(|slot| terms.offset(slot)) {
            Pattern::new(seed).fill(&mut message, offset as u64);
            sent.copy_in(offset, &message)?;
        }
        let under_way = VecDeque::with_capacity(terms.slots);
        Ok(Player { terms, route, sent, received, under_way })
    }

    /// Marks the round's message and submits its transfer. Returns errors of earlier transfers.
    pub fn send(&mut self, round: u64) -> anyhow::Result<()> {
        if self.under_way.len() == self.terms.slots {
            // Done long ago; until it is final, the slot is the transfer's.
            self.under_way.pop_front().context("at least one slot")?.wait_done()?;
        }
        let slot = self.terms.slot(round);
        let width = mark_bytes(self.terms.bytes);
        self.sent.copy_in(self.terms.mark_offset(slot), &round.to_le_bytes()[..width])?;
        let Route { engine, peer, local, remote, .. } = self.route;
        let offset = self.terms.offset(slot) as u64;
        let request = Request {
            local: local.address + offset,
            remote: remote.address + offset,
            length: self.terms.bytes as u64,
            remote_region: RegionId::from_raw(remote.region),
        };
        self.under_way.push_back(engine.submit(peer, Op::Write, &[request], &self.route.options())?);
        self.reap()
    }

    /// Waits until the other's message of this round is here: its mark, the last bytes.
    pub fn await_mark(&mut self, round: u64) -> anyhow::Result<()> {
        let width = mark_bytes(self.terms.bytes);
        let (offset, expected) = (self.terms.mark_offset(self.terms.slot(round)), mark(round, width));
        let mut start = None;
        loop {
            if (0..LOOKS).any(|_| look(self.received, offset, width) == expected) {
                return Ok(());
            }
            let waited = start.get_or_insert_with(Instant::now).elapsed();
            if waited > YIELD_AFTER {
                self.reap()?;
                thread::yield_now();
            }
            ensure!(waited < ANSWER_TIMEOUT, "round {round} was not answered");
        }
    }

    /// Waits for the last transfers: until then the slots are theirs.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.under_way.drain(..).try_for_each(|transfer| transfer.wait_done().map(drop))?;
        Ok(())
    }

    /// Removes transfers that are final; fails if a transfer failed.
    fn reap(&mut self) -> anyhow::Result<()> {
        while self.under_way.front().is_some_and(|oldest| oldest.result().is_some()) {
            self.under_way.pop_front().context("there is one")?.wait_done()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{private, spoil, Memory};

    fn terms(bytes: usize, rounds: u64, slots: usize) -> PingPong {
        PingPong { bytes, rounds, slots, acked_only: false, validate: true, seed: 1 }
    }

    #[test]
    fn messages_end_with_their_slots_and_marks_are_aligned() {
        for bytes in [1, 2, 3, 8, 63, 64, 65, 4_096, 5_000] {
            let terms = terms(bytes, 1, 3);
            for slot in 0..3 {
                let end = terms.offset(slot) + bytes;
                assert!(end % SLOT_ALIGN == 0 && end <= PingPong::memory_bytes(bytes));
                assert!(terms.mark_offset(slot) % mark_bytes(bytes) == 0, "{bytes}");
                assert!(slot == 0 || terms.offset(slot) >= terms.offset(slot - 1) + bytes);
            }
        }
    }

    #[test]
    fn slots_are_bounded_by_the_memory() {
        assert_eq!(
            [63, 64, 1_023, 1_024, 1 << 20].map(|bytes| PingPong::slots(2, bytes)),
            [0, 1, 15, 16, 16]
        );
        assert!(terms(2, 1, 1).validated(64).is_ok());
        for wrong in [terms(2, 1, 2), terms(0, 1, 1), terms(2, 0, 1), terms(2, 1, 0), terms(65, 1, 1)] {
            assert!(wrong.validated(64).is_err(), "{wrong:?}");
        }
    }

    /// Plays a correct engine with the CPU.
    fn play(terms: &PingPong, seed: u64) -> Memory {
        let mut memory = private(PingPong::memory_bytes(terms.bytes)).expect("memory");
        let mut message = vec![0; terms.bytes];
        for round in 1..=terms.rounds {
            let slot = terms.slot(round);
            Pattern::new(seed).fill(&mut message, terms.offset(slot) as u64);
            memory.copy_in(terms.offset(slot), &message).expect("mapped");
            let mark = &round.to_le_bytes()[..mark_bytes(terms.bytes)];
            memory.copy_in(terms.mark_offset(slot), mark).expect("mapped");
        }
        memory
    }

    #[test]
    fn the_check_finds_every_wrong_byte_and_old_messages() {
        for (bytes, rounds) in [(1, 300), (2, 5), (100, 40), (4_096, 3)] {
            let terms = terms(bytes, rounds, 4);
            let mut memory = play(&terms, 7);
            terms.check(&memory, 7).expect("as it was sent");
            assert!(bytes < 100 || terms.check(&memory, 8).is_err(), "of another run");
            assert!(PingPong { rounds: rounds + 1, ..terms }.check(&memory, 7).is_err(), "it never came");
            let first = terms.offset(terms.slot(rounds));
            for at in [first, first + bytes / 2, first + bytes - 1] {
                spoil(&mut memory, at).expect("mapped");
                assert!(terms.check(&memory, 7).is_err(), "byte {at} of {bytes}");
                spoil(&mut memory, at).expect("mapped");
            }
        }
    }

    #[test]
    fn a_mark_is_the_largest_word_that_fits() {
        assert_eq!([1, 2, 3, 4, 7, 8, 9, 4_096].map(mark_bytes), [1, 2, 2, 4, 4, 8, 8, 8]);
        assert_eq!([1, 2, 4, 8].map(|width| mark(0x1_0000_0102, width)), [2, 0x102, 0x102, 0x1_0000_0102]);
    }
}
