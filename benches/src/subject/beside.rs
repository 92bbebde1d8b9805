//! Small transfers beside a bulk transfer to the same peer: measures whether the small ones wait for bulk.

use std::thread;

use anyhow::{ensure, Context};

use super::client::Client;
use super::drive::{Flight, Route};
use super::wire::Area;
use crate::dispense::Dispenser;
use crate::layout::{mix, Layout};
use crate::memory::Store;
use crate::pattern::Pattern;
use crate::walk::Walk;
use crate::workload::{Limit, Operation, Workload, GB, LATENCY_SLOTS};

/// One bulk transfer is under way, and the next waits behind it.
const BULK_IN_FLIGHT: usize = 2;
/// Samples taken before those that count, while the bulk transfer starts.
const WARM_UP: usize = 200;

/// The results of both.
pub struct Beside {
    /// The time of each small transfer.
    pub nanoseconds: Vec<u64>,
    pub bulk_gb_per_second: f64,
}

impl Client {
    /// Returns the memory that `time_beside` needs for small transfers of `bytes`.
    pub fn bytes_beside(bulk: &Workload, bytes: usize) -> usize {
        bulk.walk_bytes + 2 * bytes * LATENCY_SLOTS
    }

    /// Times `samples` synchronous WRITEs of `bytes` while `bulk` runs repeatedly. Both are checked: the bulk's data
    /// by the server, the small transfers' by reading it back.
    pub fn time_beside(&mut self, bulk: &Workload, bytes: usize, samples: usize) -> anyhow::Result<Beside> {
        let length = self.outward_area().bytes;
        ensure!(length >= Client::bytes_beside(bulk, bytes), "the memory does not hold both");
        let (walk, seed) = self.prepare(bulk, None, None)?;
        let small = Workload {
            operation: Operation::Write,
            layout: Layout::Contiguous,
            block_bytes: bytes,
            blocks: 1,
            walk_bytes: bytes * LATENCY_SLOTS,
        };
        let small = Walk::new(small.validated()?);
        // Behind the bulk's memory: first the bytes to send, then room for the bytes read back.
        let (sent, back) = (bulk.walk_bytes, bulk.walk_bytes + bytes * LATENCY_SLOTS);
        self.fill_at(sent, bytes * LATENCY_SLOTS, mix(seed));
        let dispenser = Dispenser::new(Limit::Transfers(u64::MAX));
        let flight = Flight { threads: 1, in_flight: BULK_IN_FLIGHT };
        let route = self.route();
        let nanoseconds = thread::scope(|scope| {
            let bulk = scope.spawn(|| route.keep_in_flight(&walk, flight.in_flight, &dispenser));
            let times = shifted(&route, sent).time_each(&small, WARM_UP + samples);
            dispenser.stop();
            bulk.join().expect("a driver does not panic").context("the bulk transfer")?;
            times
        })?;
        let seconds = dispenser.start().elapsed().as_secs_f64();
        let transfers = dispenser.transfers();
        self.finish(&walk, seed, transfers, super::client::ANSWER_TIMEOUT)?;
        self.check_back(&small, sent, back, mix(seed))?;
        let bulk_bytes = transfers as f64 * bulk.transfer_bytes() as f64;
        Ok(Beside {
            nanoseconds: nanoseconds[WARM_UP..].to_vec(),
            bulk_gb_per_second: bulk_bytes / seconds / GB,
        })
    }

    fn fill_at(&mut self, offset: usize, bytes: usize, seed: u64) {
        let mut piece = vec![0; bytes];
        Pattern::new(seed).fill(&mut piece, 0);
        self.outward_mut().copy_in(offset, &piece);
    }

    /// Reads the small transfers' places back and compares them with the sent bytes.
    fn check_back(&mut self, small: &Walk, sent: usize, back: usize, seed: u64) -> anyhow::Result<()> {
        let bytes = small.workload().walk_bytes;
        let read = Workload { operation: Operation::Read, ..*small.workload() };
        let route = self.route();
        let route = Route { local: shift(route.local, back), remote: shift(route.remote, sent), ..route };
        route.time_each(&Walk::new(read), LATENCY_SLOTS).context("reading the small transfers back")?;
        let mut piece = vec![0; bytes];
        self.outward_mut().copy_out(back, &mut piece);
        Pattern::new(seed).check(&piece, 0).context("small transfers beside bulk")?;
        Ok(())
    }
}

fn shift(area: Area, offset: usize) -> Area {
    Area { address: area.address + offset as u64, bytes: area.bytes - offset, ..area }
}

fn shifted<'a>(route: &Route<'a>, offset: usize) -> Route<'a> {
    Route { local: shift(route.local, offset), remote: shift(route.remote, offset), ..*route }
}
