//! The measured loops: many transfers in flight, or one after another.

use std::collections::VecDeque;
use std::thread;
use std::time::Instant;

use anyhow::{ensure, Context};
use ferry::types::{Op, PeerId, RegionId, Request};
use ferry::{Deadline, Engine, Transfer, TransferOptions};

use super::wire::{Area, Flight};
use crate::dispense::Dispenser;
use crate::walk::Walk;
use crate::workload::{Limit, Operation};

/// The figures of a run, before its data is checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Driven {
    pub transfers: u64,
    pub seconds: f64,
}

/// The memory here, and the peer and memory there, of a run.
#[derive(Clone, Copy)]
pub struct Route<'a> {
    pub engine: &'a Engine,
    pub peer: PeerId,
    pub local: Area,
    pub remote: Area,
    /// Over RDMA, WRITEs are done before they are known to be visible at the target.
    pub acked_only: bool,
}

impl Route<'_> {
    /// Keeps the flight's transfers under way until the limit, then waits for the last.
    pub fn drive(&self, walk: &Walk, flight: Flight, limit: Limit) -> anyhow::Result<Driven> {
        let Flight { threads, in_flight } = flight;
        ensure!(threads > 0 && in_flight >= threads, "each thread needs a transfer in flight");
        let dispenser = Dispenser::new(limit);
        if threads == 1 {
            // A single thread needs no new thread: a run is often short.
            self.keep_in_flight(walk, in_flight, &dispenser)?;
        } else {
            let window = |index| in_flight / threads + usize::from(index < in_flight % threads);
            let dispenser = &dispenser;
            thread::scope(|scope| {
                let work = |index| move || self.keep_in_flight(walk, window(index), dispenser);
                let workers: Vec<_> = (0..threads).map(|index| scope.spawn(work(index))).collect();
                workers.into_iter().try_for_each(|worker| worker.join().expect("a driver does not panic"))
            })?;
        }
        let seconds = dispenser.start().elapsed().as_secs_f64();
        Ok(Driven { transfers: dispenser.transfers(), seconds })
    }

    /// Keeps `window` transfers under way from this thread alone, until the dispenser is empty.
    pub fn keep_in_flight(&self, walk: &Walk, window: usize, dispenser: &Dispenser) -> anyhow::Result<()> {
        let options = self.options();
        let operation = operation(walk);
        let mut requests = Vec::with_capacity(walk.workload().blocks);
        let mut under_way: VecDeque<Transfer> = VecDeque::with_capacity(window);
        while let Some(number) = dispenser.take() {
            if under_way.len() == window {
                let oldest = under_way.pop_front().context("a window of at least one")?;
                oldest.wait_done()?;
            }
            self.requests(walk, number, &mut requests);
            under_way.push_back(self.engine.submit(self.peer, operation, &requests, &options)?);
        }
        for transfer in under_way {
            transfer.wait_done()?;
        }
        Ok(())
    }

    /// Returns the nanoseconds of each of `samples` synchronous transfers, submitted and awaited on this thread.
    pub fn time_each(&self, walk: &Walk, samples: usize) -> anyhow::Result<Vec<u64>> {
        let options = self.options();
        let mut nanoseconds = Vec::with_capacity(samples);
        let mut requests = Vec::with_capacity(walk.workload().blocks);
        for number in 0..samples as u64 {
            let start = Instant::now();
            self.requests(walk, number, &mut requests);
            match walk.workload().operation {
                Operation::Write => self.engine.write(self.peer, &requests, &options)?,
                Operation::Read => self.engine.read(self.peer, &requests, &options)?,
            };
            nanoseconds.push(start.elapsed().as_nanos() as u64);
        }
        Ok(nanoseconds)
    }

    /// A benchmark must not fail because it is slow: on a slow link many large transfers queue for longer than the
    /// default deadline. A stuck lane or a lost peer still ends them.
    pub fn options(&self) -> TransferOptions<'static> {
        let acked_only = self.acked_only;
        TransferOptions { deadline: Deadline::Never, acked_only, ..TransferOptions::default() }
    }

    /// Builds the requests of transfer `number`: anew for each transfer, as an application would.
    fn requests(&self, walk: &Walk, number: u64, requests: &mut Vec<Request>) {
        requests.clear();
        let length = walk.workload().block_bytes as u64;
        requests.extend(walk.offsets(number).map(|(here, there)| Request {
            local: self.local.address + here as u64,
            remote: self.remote.address + there as u64,
            length,
            remote_region: RegionId::from_raw(self.remote.region),
        }));
    }
}

fn operation(walk: &Walk) -> Op {
    match walk.workload().operation {
        Operation::Write => Op::Write,
        Operation::Read => Op::Read,
    }
}
