//! Room for transfers. The remote ranges of transfers that ended by their lease stay claimed, because a late write may
//! come to them, so the memory of an application may become full. It registers more memory then, as any application
//! would. It does so only when the faults are over and the last transfers need it. `wishes` asks for room.

use crate::actor::Actor;
use crate::ledger::{Ledger, LifeId};
use crate::memory::Memory;
use crate::plan::MemoryPlan;
use crate::program::Program;
use ferry_sim_kernel::trace;

/// The memory that an application adds: a request of an exam fits many times.
const ROOM: MemoryPlan = MemoryPlan { bytes: 64 << 10, access: READ_AND_WRITE, device: None };
/// As `Access`.
const READ_AND_WRITE: u32 = 3;
/// A memory is full if no gap between its claims is this part of it: tries at random places find no such gap.
const PART: u64 = 64;

impl Memory {
    fn is_full(&self) -> bool {
        let (mut behind, mut widest) = (0, 0);
        for (offset, claim) in &self.claims {
            widest = widest.max(offset - behind);
            behind = offset + claim.length;
        }
        widest.max(self.bytes - behind) < self.bytes / PART
    }
}

impl Ledger {
    /// True if each memory of a life that transfers of both directions may name is full, or there is none.
    fn is_out_of_room(&self, life: LifeId) -> bool {
        let mut all = self.lives[life].memories.iter().map(|id| &self.memories[*id]);
        all.all(|memory| memory.access != READ_AND_WRITE || memory.is_full())
    }
}

impl Actor {
    /// A transfer to this life found no place. The application of each end that has no room is asked for some.
    pub fn ask_for_room(&self, to: LifeId) {
        let from = self.program.life;
        self.program.world.book.with(|ledger| {
            for life in [from, to] {
                if ledger.is_calm && ledger.is_out_of_room(life) {
                    ledger.lives[life].lacks_room = true;
                }
            }
        });
    }
}

impl Program {
    pub fn lacks_room(&self) -> bool {
        self.world.book.with(|ledger| ledger.lives[self.life].lacks_room)
    }

    /// Registers more memory.
    pub fn make_room(&self) {
        self.register(&ROOM);
        self.world.book.with(|ledger| {
            ledger.lives[self.life].lacks_room = false;
            let name = ledger.named(self.life);
            trace::event("room", &[self.life as u64], || format!("{name} has no room, and registers more"));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Claim;
    use std::collections::BTreeMap;

    fn memory(claims: &[(u64, u64)]) -> Memory {
        let claim = |length| Claim { length, transfer: 0, is_remote: true, cut: None };
        let claims: BTreeMap<u64, Claim> = claims.iter().map(|(at, length)| (*at, claim(*length))).collect();
        let (region, old, comes, goes) = (None, Vec::new(), false, false);
        let (address, bytes, access, device) = (0, 64 * 100, READ_AND_WRITE, None);
        Memory { life: 0, address, bytes, access, device, region, comes, old, goes, claims }
    }

    #[test]
    fn a_memory_is_full_if_no_gap_is_a_64th_part() {
        assert!(!memory(&[]).is_full());
        let gap_of = |gap: u64, at: u64| memory(&[(0, at), (at + gap, 64 * 100 - at - gap)]).is_full();
        assert!(gap_of(99, 50) && !gap_of(100, 50));
        // Before the first claim, and behind the last one.
        assert!(memory(&[(99, 64 * 100 - 99)]).is_full() && !memory(&[(100, 64 * 100 - 100)]).is_full());
        assert!(memory(&[(0, 64 * 100 - 99)]).is_full() && !memory(&[(0, 64 * 100 - 100)]).is_full());
    }
}
