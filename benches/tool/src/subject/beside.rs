//! Small transfers beside a bulk transfer to the same peer: measures whether the small ones wait for bulk.

use std::thread;

use anyhow::{ensure, Context};

use super::client::{Client, ANSWER_TIMEOUT};
use super::drive::Route;
use super::wire::Area;
use crate::dispense::Dispenser;
use crate::layout::mix;
use crate::memory::Store;
use crate::pattern::Pattern;
use crate::walk::Walk;
use crate::workload::{Limit, Operation, Workload, GB, LATENCY_SLOTS};

/// One bulk transfer is under way, and the next waits behind it.
const BULK_IN_FLIGHT: usize = 2;
/// Samples taken before those that count, while the bulk transfer starts.
const WARM_UP: usize = 200;

impl Client {
    /// Returns the memory that `time_beside` needs for small transfers of `bytes`.
    pub fn bytes_beside(bulk: &Workload, bytes: usize) -> usize {
        bulk.walk_bytes + 2 * bytes * LATENCY_SLOTS
    }

    /// Times `samples` synchronous WRITEs of `bytes` while `bulk` runs repeatedly; returns the time of each, and the
    /// bulk's GB/s. Both are checked: the bulk's data by the server, the small transfers' by reading it back.
    pub fn time_beside(
        &mut self,
        bulk: &Workload,
        bytes: usize,
        samples: usize,
    ) -> anyhow::Result<(Vec<u64>, f64)> {
        let enough = self.outward.length() >= Client::bytes_beside(bulk, bytes);
        ensure!(enough, "the memory does not hold both");
        let (walk, seed) = self.prepare_both(bulk, None, None)?;
        let small = Workload::single(Operation::Write, bytes, bytes * LATENCY_SLOTS);
        let small = Walk::new(small.validated()?);
        // Behind the bulk's memory: first the bytes to send, then room for the bytes read back.
        let (sent, back) = (bulk.walk_bytes, bulk.walk_bytes + bytes * LATENCY_SLOTS);
        let mut piece = vec![0; bytes * LATENCY_SLOTS];
        Pattern::new(mix(seed)).fill(&mut piece, 0);
        self.outward.copy_in(sent, &piece)?;
        let dispenser = Dispenser::new(Limit::Transfers(u64::MAX));
        let route = self.route();
        let nanoseconds = thread::scope(|scope| {
            let bulk = scope.spawn(|| route.keep_in_flight(&walk, BULK_IN_FLIGHT, &dispenser));
            let times = shifted(&route, sent, sent).time_each(&small, WARM_UP + samples);
            dispenser.stop();
            bulk.join().expect("a driver does not panic").context("the bulk transfer")?;
            times
        })?;
        let seconds = dispenser.start().elapsed().as_secs_f64();
        let transfers = dispenser.transfers();
        self.finish(&walk, seed, transfers, ANSWER_TIMEOUT)?;
        self.check_back(&small, sent, back, mix(seed))?;
        let bulk_bytes = transfers as f64 * bulk.transfer_bytes() as f64;
        Ok((nanoseconds[WARM_UP..].to_vec(), bulk_bytes / seconds / GB))
    }

    /// Reads the small transfers' places back and compares them with the sent bytes.
    fn check_back(&mut self, small: &Walk, sent: usize, back: usize, seed: u64) -> anyhow::Result<()> {
        let bytes = small.workload().walk_bytes;
        let read = Workload { operation: Operation::Read, ..*small.workload() };
        let route = shifted(&self.route(), back, sent);
        route.time_each(&Walk::new(read), LATENCY_SLOTS).context("reading the small transfers back")?;
        let mut piece = vec![0; bytes];
        self.outward.copy_out(back, &mut piece)?;
        Pattern::new(seed).check(&piece, 0).context("small transfers beside bulk")?;
        Ok(())
    }
}

/// Returns the route between these offsets of both ends' memory.
fn shifted<'a>(route: &Route<'a>, local: usize, remote: usize) -> Route<'a> {
    let shift = |area: Area, offset| Area {
        address: area.address + offset as u64,
        bytes: area.bytes - offset,
        ..area
    };
    Route { local: shift(route.local, local), remote: shift(route.remote, remote), ..*route }
}
