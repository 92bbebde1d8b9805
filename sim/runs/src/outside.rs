//! Faults from outside an engine: its process runs another program, and at times its own again in the same process;
//! pages of registered memory are missing or come late; a child holds the descriptors of a process that ends. These
//! faults are drawn from a stream of their own.

use crate::draw::Draw;
use crate::faults::{Act, Director};
use crate::ledger::{Ledger, LifeId, Phase, TransferId};
use crate::memory::MemoryId;
use crate::plan::{EnginePlan, Fault, Step};
use ferry_sim_kernel::clock::virtual_ns;
use ferry_sim_kernel::pages::{self, Page};
use ferry_sim_kernel::process::{CopyEnd, ProcessId};
use ferry_sim_kernel::{random_u64, task};
use std::time::Duration;

/// Seeds with such faults, and their stream. With it no seed that showed a bug before has any.
const PERCENT: u32 = 30;
const STREAM: u64 = 3_237;
/// For how long a process may come to a copy, and how often it is looked whether a process has run another program.
const TRAP_NS: u64 = 400_000_000;
const TRAP_STEP: Duration = Duration::from_micros(20);
const PAGE_BYTES: u64 = 4096;
/// Pages come so late that transfers of others are due long before.
pub const LATE_MS_MAX: u64 = 12_000;
/// As for devices that stand.
const VAIN_MAX: u32 = 200;

/// Pages of a memory that are, or were, not as they should be.
pub struct Hole {
    life: LifeId,
    memory: MemoryId,
    from: u64,
    to: u64,
    page: Page,
    since_ns: u64,
    /// u64::MAX while they are not mended.
    until_ns: u64,
}

/// Puts such faults among the others.
pub fn draw(seed: u64, engines: &mut [EnginePlan], steps: &mut Vec<Step>) {
    let mut draw = Draw::new(seed, STREAM);
    if !draw.percent(PERCENT) {
        return;
    }
    // Pages come late for seconds.
    engines.iter_mut().for_each(|engine| engine.vain_max = engine.vain_max.min(VAIN_MAX));
    let is_local = engines.iter().any(|engine| engine.uses("local"));
    for _ in 0..draw.between(6, 10) {
        let (at, engine) = (draw.below(steps.len() + 1), draw.below(engines.len()));
        let (ms, waits) = (draw.log_uniform(1, 3_000), draw.percent(60));
        let fault = match draw.below(if is_local { 10 } else { 7 }) {
            2 | 3 => {
                let page = *draw.pick(&[Page::Missing, Page::Missing, Page::ReadOnly]);
                Fault::Pages { engine, ms, page }
            }
            4 | 5 => Fault::Pages { engine, ms: draw.between(100, LATE_MS_MAX), page: Page::Late },
            6 => Fault::Child { engine, ms },
            _ => Fault::Exec { engine, ms, again: draw.percent(50) },
        };
        let states = match fault {
            // The check of a peer's process is trusted for a millisecond.
            Fault::Exec { .. } if is_local => ["same host in progress"; 2],
            _ => ["WRITE in progress", "READ in progress"],
        };
        let waits_for = waits.then_some(*draw.pick(&states));
        steps.insert(at, Step { pause_ms: draw.log_uniform(1, 400), fault, waits_for });
    }
}

/// Lets a process run another program at its next copy. Returns whether it has come to one in a short while.
fn has_left_in_a_copy(process: ProcessId, end: CopyEnd) -> bool {
    let before = process.programs();
    process.exec_at_copy(Some(end));
    let until_ns = virtual_ns() + TRAP_NS;
    while virtual_ns() < until_ns && process.programs() == before {
        task::sleep(TRAP_STEP);
    }
    process.exec_at_copy(None);
    process.programs() != before
}

impl Director {
    /// The process of a slot runs another program from now on. `again`: it starts its engine again in the same process.
    pub fn exec(&mut self, slot: usize, ms: u64, again: bool) -> bool {
        let (slot, end) = self.end_of_a_copy().map_or((slot, None), |(slot, end)| (slot, Some(end)));
        let Some(process) = self.process(slot).filter(|process| !process.is_stopped()) else { return false };
        let Some(life) = self.live(slot) else { return false };
        let has_left = end.is_some_and(|end| has_left_in_a_copy(process, end));
        if !process.is_alive() {
            return false;
        }
        self.world.book.with(|ledger| {
            ledger.died(life);
            ledger.slots[slot].life = None;
        });
        if !has_left {
            process.exec();
        }
        let act = if again { Act::Again(slot, process) } else { Act::Start(slot) };
        self.later(ms, act);
        true
    }

    /// Returns the slot of an end of a transfer of one host that has not ended, most often that of its target.
    fn end_of_a_copy(&self) -> Option<(usize, CopyEnd)> {
        let (which, is_target) = (random_u64() as usize, random_u64() % 3 != 0);
        let plan = &self.world.plan;
        self.world.book.with(|ledger| {
            let slots = |wish: &crate::ledger::Wish| [wish.from, wish.to].map(|life| ledger.lives[life].slot);
            let live = ledger.transfers.iter().filter(|it| it.phase == Phase::Live).map(|it| slots(&it.wish));
            let here: Vec<[usize; 2]> = live
                .filter(|ends| {
                    let [from, to] = ends.map(|slot| &plan.engines[slot]);
                    plan.transport_state(from, to) == Some("same host in progress")
                })
                .collect();
            let ends = here.get(which % here.len().max(1))?;
            Some(if is_target { (ends[1], CopyEnd::Other) } else { (ends[0], CopyEnd::Caller) })
        })
    }

    /// A child takes the descriptors of the process, and holds them for a while.
    pub fn fork(&mut self, slot: usize, ms: u64) -> bool {
        let Some(process) = self.process(slot) else { return false };
        let child = process.fork();
        self.later(ms, Act::EndChild(child));
        true
    }

    /// Harms pages of a memory of the host, those of a transfer if there is one.
    pub fn harm_pages(&mut self, slot: usize, ms: u64, page: Page) -> bool {
        let Some(life) = self.live(slot) else { return false };
        let (which, place, pages) = (random_u64() as usize, random_u64(), 1 + random_u64() % 4);
        // As of a file that is cut to nothing.
        let is_whole = page == Page::Missing && random_u64() % 3 != 0;
        let harmed = self.world.book.with(|ledger| {
            let all = ledger.lives[life].memories.iter().copied();
            let all: Vec<MemoryId> = all.filter(|id| ledger.memories[*id].device.is_none()).collect();
            let id = *all.get(which % all.len().max(1))?;
            let memory = &ledger.memories[id];
            let claims: Vec<u64> =
                memory.claims.iter().map(|(at, claim)| at + place % claim.length).collect();
            let at = match claims.get(which % claims.len().max(1)) {
                Some(at) => *at,
                None => place % memory.bytes,
            };
            let from = if is_whole { 0 } else { at - at % PAGE_BYTES };
            let length = if is_whole { memory.bytes } else { (pages * PAGE_BYTES).min(memory.bytes - from) };
            let to = from + length;
            let (since_ns, until_ns) = (virtual_ns(), u64::MAX);
            let address = memory.address + from;
            ledger.holes.push(Hole { life, memory: id, from, to, page, since_ns, until_ns });
            Some((address, length, ledger.holes.len() - 1))
        });
        let Some((address, length, hole)) = harmed else { return false };
        pages::harm(address, length, page);
        self.later(ms, Act::Mend(hole, address));
        true
    }

    pub fn mend(&mut self, hole: usize, address: u64) {
        pages::mend(address);
        self.world.book.with(|ledger| ledger.holes[hole].until_ns = virtual_ns());
    }
}

impl Ledger {
    /// True if pages were missing.
    pub fn has_missed_pages(&self) -> bool {
        self.holes.iter().any(|hole| hole.page != Page::Late)
    }

    pub fn has_late_pages(&self) -> bool {
        self.holes.iter().any(|hole| hole.page == Page::Late && hole.until_ns == u64::MAX)
    }

    /// Returns for how long pages came late, all together.
    pub fn late_pages_ns(&self) -> u64 {
        self.holes.iter().filter(|hole| hole.page == Page::Late).map(Hole::ns).sum()
    }

    /// Returns how long late pages may have held a transfer up: pages that transfers between the same engines touch. No
    /// other transfer waits for these pages.
    pub fn held_by_pages_ns(&self, id: TransferId) -> u64 {
        let (from, to) = (self.transfers[id].wish.from, self.transfers[id].wish.to);
        let is_between =
            |it: &crate::ledger::Transfer| [(from, to), (to, from)].contains(&(it.wish.from, it.wish.to));
        let own = self.holes.iter().filter(|hole| hole.page == Page::Late && [from, to].contains(&hole.life));
        let touched = own.filter(|hole| {
            self.transfers.iter().filter(|it| is_between(it)).any(|it| {
                it.blocks.iter().flatten().any(|block| {
                    let end = block.offset + block.length;
                    block.memory == hole.memory && block.offset < hole.to && hole.from < end
                })
            })
        });
        touched.map(Hole::ns).sum()
    }
}

impl Hole {
    fn ns(&self) -> u64 {
        self.until_ns.min(virtual_ns()) - self.since_ns
    }
}

/// Returns the faults of a plan that are not from outside.
#[cfg(test)]
pub fn others(plan: &crate::plan::Plan) -> impl Iterator<Item = &Step> {
    let first = Fault::Exec { engine: 0, ms: 0, again: false }.number();
    plan.faults.iter().filter(move |step| step.fault.number() < first)
}

#[cfg(test)]
mod tests {
    use crate::bugs::BUGS;
    use crate::draw::Draw;

    #[test]
    fn no_seed_that_showed_a_bug_has_faults_from_outside() {
        let has = |seed: u64| Draw::new(seed, super::STREAM).percent(super::PERCENT);
        assert!(!BUGS.iter().any(|bug| has(bug.seed)));
        assert!((520..680).contains(&(0..2_000).filter(|seed| has(*seed)).count()));
    }
}
