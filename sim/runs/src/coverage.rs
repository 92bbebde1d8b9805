//! States × faults: what engines and transfers were doing when a fault struck.

use crate::calls;
use crate::checks::bounds::UNTOLD;
use crate::kv;
use crate::ledger::{Book, Phase, View};
use crate::plan::{Plan, FAULTS};
use crate::pool;
use crate::wishes;
use ferry::types::Op;
use ferry::State;
use ferry_sim_kernel::moment::{BUSY_LOCK, FOREIGN_PROGRAM, LATE_PAGE, MISSING_PAGE, NO_MEMORY};
use ferry_sim_kernel::process::ProcessId;
use ferry_sim_kernel::{device, net, nic};
use std::collections::BTreeMap;

pub const STATES: [&str; 32] = [
    "session: none",
    "session: connecting",
    "session: up",
    "session: lost",
    "session: fenced",
    "session: closing",
    "lanes: none",
    "lanes: one",
    "lanes: several",
    "transfer: submitting",
    "transfer: pending",
    "transfer: draining",
    "transfer: final, unseen",
    "transfer: orphan",
    "WRITE in progress",
    "READ in progress",
    "ORDERED waits",
    "notification under way",
    "large in progress",
    "many in progress",
    "region: unregistering",
    "engine: opening",
    "TCP in progress",
    "same host in progress",
    "RDMA in progress",
    "NIC: sends again",
    "NIC: pieces land",
    "NIC: completes late",
    "NIC: queue pair in error",
    "device: copies in",
    "device: copies out",
    "device: stands",
];

/// The members of `STATES` that NICs are in. Faults wait for them.
pub const RDMA_STATES: [&str; 5] = [
    "RDMA in progress",
    "NIC: sends again",
    "NIC: pieces land",
    "NIC: completes late",
    "NIC: queue pair in error",
];

/// The members of `STATES` that devices are in: one copies to its memory, or from it, or stands while it copies.
pub const DEVICE_STATES: [&str; 3] = ["device: copies in", "device: copies out", "device: stands"];

/// Moments that runs should reach; `Table::rare_moments` says which of them must be reached. The engine, the kernel
/// (`moment`) and this program name them.
pub const MOMENTS: [&str; 23] = [
    BUSY_LOCK,
    NO_MEMORY,
    RECEIVE_LATE,
    "a caller drives a lane",
    "a strike between pull and launch",
    "a copy ends after its device was given up",
    DEVICE_LATE,
    calls::SUBMITS,
    calls::WAITS,
    calls::UNSET,
    UNTOLD,
    kv::RECEIVED,
    kv::OPENED_LATE,
    kv::CLOSED,
    kv::TAKEN_BACK,
    pool::FAR,
    pool::EVICTED,
    pool::FULL,
    pool::CLOSED,
    MISSING_PAGE,
    LATE_PAGE,
    FOREIGN_PROGRAM,
    wishes::SKIPPED,
];

/// The `MOMENTS` to which only seeds with caches or a pool come.
const OF_SERVICES: [&str; 8] = [
    kv::RECEIVED,
    kv::OPENED_LATE,
    kv::CLOSED,
    kv::TAKEN_BACK,
    pool::FAR,
    pool::EVICTED,
    pool::FULL,
    pool::CLOSED,
];

const DEVICE_LATE: &str = "a device has written after the lease";
const RECEIVE_LATE: &str = "a receive has written after its lease";

/// The least share of seeds that must reach each moment, and how many seeds it takes to judge that.
const MOMENT_PERCENT_MIN: u64 = 1;
const SEEDS_JUDGED_MIN: u64 = 400;
/// After this many seeds every pair must have been reached. Some seeds of ten thousand reach the rarest pairs.
const SEEDS_OF_PAIRS_MIN: u64 = 50_000;

/// Bits of `STATES` for each of `FAULTS`.
pub type Reached = [u32; FAULTS.len()];

/// Pairs that no run can reach.
const IMPOSSIBLE: [(&str, &str); 0] = [];

/// Returns the states of `RDMA_STATES` that are there now.
pub fn rdma_states() -> Vec<&'static str> {
    let nics = nic::states();
    let is_there =
        [nics.posted > 0, nics.sending_again > 0, nics.landing > 0, nics.late > 0, nics.in_error > 0];
    RDMA_STATES.into_iter().zip(is_there).filter(|(_, is)| *is).map(|(state, _)| state).collect()
}

/// Returns the states of `DEVICE_STATES` that are there now.
pub fn device_states() -> Vec<&'static str> {
    let devices = device::states();
    let is_there = [devices.coming_in > 0, devices.going_out > 0, devices.standing > 0];
    DEVICE_STATES.into_iter().zip(is_there).filter(|(_, is)| *is).map(|(state, _)| state).collect()
}

/// True if these bits of `states` have that one.
pub fn is_there(bits: u32, name: &str) -> bool {
    STATES.iter().position(|state| *state == name).is_some_and(|at| bits >> at & 1 == 1)
}

/// Returns the states that are there now.
pub fn states(book: &Book, plan: &Plan) -> u32 {
    let mut bits = 0;
    let mut set = |name: &str| {
        let at = STATES.iter().position(|state| *state == name).expect("a state of the list");
        bits |= 1 << at;
    };
    let cores = book.with(|ledger| ledger.live(|_| true));
    let states: Vec<State> = cores.iter().map(|(_, core)| core.state()).collect();
    for state in &states {
        set(match state {
            State::Pending => "transfer: pending",
            State::Draining => "transfer: draining",
            _ => "transfer: final, unseen",
        });
    }
    if states.iter().filter(|state| !state.is_final()).count() > 4 {
        set("many in progress");
    }
    rdma_states().into_iter().chain(device_states()).for_each(&mut set);
    let mut lanes: BTreeMap<(ProcessId, ProcessId), usize> = BTreeMap::new();
    for connected in net::connections() {
        *lanes.entry((connected.dialer.0, connected.acceptor.0)).or_default() += 1;
    }
    for count in lanes.values() {
        set(match count {
            1 => "lanes: none",
            2 => "lanes: one",
            _ => "lanes: several",
        });
    }
    book.with(|ledger| {
        for (nth, (id, _)) in cores.iter().enumerate() {
            let transfer = &ledger.transfers[*id];
            if states[nth].is_final() {
                continue;
            }
            let [from, to] = [transfer.wish.from, transfer.wish.to].map(|life| &ledger.lives[life]);
            let [from, to] = [from, to].map(|life| &plan.engines[life.slot]);
            if let Some(transport) = plan.transport_state(from, to) {
                set(transport);
            }
            set(if transfer.wish.op == Op::Write { "WRITE in progress" } else { "READ in progress" });
            if transfer.pieces.iter().map(|piece| piece.length).sum::<u64>() > 64 << 10 {
                set("large in progress");
            }
            if !transfer.needs.is_empty() {
                set("ORDERED waits");
            }
            if transfer.wish.note.is_some() {
                set("notification under way");
            }
        }
        for transfer in &ledger.transfers {
            match transfer.phase {
                Phase::Submitting => set("transfer: submitting"),
                Phase::Orphan => set("transfer: orphan"),
                _ => {}
            }
        }
        for life in ledger.lives.iter().filter(|life| life.is_alive) {
            if life.unregistering > 0 {
                set("region: unregistering");
            }
            if !life.is_ready {
                set("engine: opening");
            }
            if life.views.is_empty() {
                set("session: none");
            }
            for view in life.views.values() {
                set(match view {
                    View::Connecting => "session: connecting",
                    View::Up => "session: up",
                    View::Lost => "session: lost",
                    View::Fenced => "session: fenced",
                    View::Closing => "session: closing",
                });
            }
        }
    });
    bits
}

/// In how many seeds each pair and each moment was reached.
#[derive(Clone)]
pub struct Table {
    counts: Vec<[u64; FAULTS.len()]>,
    moments: [u64; MOMENTS.len()],
    seeds: u64,
}

impl Table {
    pub fn new() -> Table {
        Table { counts: vec![[0; FAULTS.len()]; STATES.len()], moments: [0; MOMENTS.len()], seeds: 0 }
    }

    pub fn add(&mut self, reached: &Reached, moments: &[(&str, u64)]) {
        self.seeds += 1;
        for (name, count) in MOMENTS.iter().zip(&mut self.moments) {
            *count += u64::from(moments.iter().any(|(known, _)| known == name));
        }
        for (fault, bits) in reached.iter().enumerate() {
            for (state, row) in self.counts.iter_mut().enumerate() {
                row[fault] += u64::from(bits >> state & 1);
            }
        }
    }

    /// Returns the state, the fault and the count of each pair, first the number of seeds (as state and fault of none).
    pub fn entries(&self) -> impl Iterator<Item = (usize, usize, u64)> + '_ {
        let all = self.counts.iter().enumerate();
        let pairs = all.flat_map(|(state, row)| {
            row.iter().enumerate().map(move |(fault, count)| (state, fault, *count))
        });
        std::iter::once((STATES.len(), 0, self.seeds)).chain(pairs)
    }

    /// Returns in how many seeds each moment was reached.
    pub fn moments(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.moments.iter().copied().enumerate()
    }

    pub fn count_moment(&mut self, moment: usize, count: u64) {
        if let Some(cell) = self.moments.get_mut(moment) {
            *cell += count;
        }
    }

    /// Returns the moments that too few seeds reached, once there are enough seeds to tell. With clocks that are wrong
    /// beyond the bound (`beyond`), some seed must reach `UNTOLD`, few seeds reach `DEVICE_LATE` and `RECEIVE_LATE`
    /// because leases are long, and no seed has caches. Otherwise the checkers let no seed reach `UNTOLD`.
    pub fn rare_moments(&self, beyond: bool) -> Vec<&'static str> {
        let is_rare = |(name, count): &(&str, &u64)| match *name == UNTOLD {
            true => beyond && **count == 0,
            false if beyond && [DEVICE_LATE, RECEIVE_LATE].contains(name) => false,
            false if beyond && OF_SERVICES.contains(name) => false,
            // No engine copies there, unless it has a bug.
            false if *name == FOREIGN_PROGRAM => false,
            // One seed of a hundred tries.
            false if *name == wishes::SKIPPED => **count == 0,
            false => **count * 100 < self.seeds * MOMENT_PERCENT_MIN,
        };
        let all = MOMENTS.into_iter().zip(&self.moments).filter(|_| self.seeds >= SEEDS_JUDGED_MIN);
        all.filter(is_rare).map(|(name, _)| name).collect()
    }

    /// Returns the pairs that no seed has reached.
    fn missing(&self) -> Vec<String> {
        let of = |(at, state): (usize, &&str)| {
            let missing = FAULTS.iter().zip(&self.counts[at]).filter(|(_, count)| **count == 0);
            let possible = missing.filter(|(fault, _)| !IMPOSSIBLE.contains(&(*state, **fault)));
            possible.map(|(fault, _)| format!("{state} × {fault}")).collect::<Vec<_>>()
        };
        STATES.iter().enumerate().flat_map(of).collect()
    }

    /// Returns the pairs that no seed has reached, once there are enough seeds to tell.
    pub fn unreached_pairs(&self) -> Vec<String> {
        if self.seeds >= SEEDS_OF_PAIRS_MIN {
            self.missing()
        } else {
            Vec::new()
        }
    }

    /// Adds an entry of another table.
    pub fn count(&mut self, state: usize, fault: usize, count: u64) {
        match self.counts.get_mut(state).and_then(|row| row.get_mut(fault)) {
            Some(cell) => *cell += count,
            None => self.seeds += count,
        }
    }

    /// Prints in how many of ten thousand seeds each pair was reached, and names the pairs that none reached.
    pub fn print(&self) {
        println!("\nstates × faults: seeds of 10,000 in which the fault struck in the state");
        print!("{:<24}", "");
        FAULTS.iter().for_each(|fault| print!("{:>11}", fault));
        println!();
        for (state, row) in STATES.iter().zip(&self.counts) {
            print!("{state:<24}");
            row.iter().for_each(|count| print!("{:>11}", count * 10_000 / self.seeds.max(1)));
            println!();
        }
        let missing = self.missing();
        if missing.is_empty() {
            println!("every pair was reached")
        } else {
            println!("{} pairs were not reached: {}", missing.len(), missing.join("; "))
        }
        for (name, count) in MOMENTS.iter().zip(&self.moments) {
            println!("{name}: in {:.1} % of the seeds", *count as f64 * 100.0 / self.seeds.max(1) as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_that_no_seed_reached_fails_a_run_of_many_seeds() {
        let mut table = Table::new();
        let mut all = [!0; FAULTS.len()];
        all[3] = !1;
        (1..SEEDS_OF_PAIRS_MIN).for_each(|_| table.add(&all, &[]));
        assert_eq!(table.unreached_pairs(), [""; 0], "too few seeds tell nothing");
        table.add(&all, &[]);
        assert_eq!(table.unreached_pairs(), [format!("{} × {}", STATES[0], FAULTS[3])]);
        table.add(&[!0; FAULTS.len()], &[]);
        assert_eq!(table.unreached_pairs(), [""; 0]);
    }

    #[test]
    fn a_moment_below_one_percent_is_rare_once_there_are_enough_seeds() {
        let mut table = Table::new();
        let none = [0; FAULTS.len()];
        (0..4).for_each(|_| table.add(&none, &[(BUSY_LOCK, 9)]));
        assert_eq!(table.rare_moments(true), [""; 0], "four seeds tell nothing");
        (4..400).for_each(|_| table.add(&none, &[]));
        assert!(!table.rare_moments(true).contains(&BUSY_LOCK), "four of 400 are one percent");
        assert_eq!(table.rare_moments(true).len(), MOMENTS.len() - 4 - OF_SERVICES.len());
        assert_eq!(table.rare_moments(false).len(), MOMENTS.len() - 3);
        table.add(&none, &[]);
        assert!(table.rare_moments(true).contains(&BUSY_LOCK));
    }
}
