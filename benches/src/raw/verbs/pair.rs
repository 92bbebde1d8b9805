//! Both ends, held by the initiator: the child process, the queue pairs and the initiator's memory.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{ensure, Context};

use super::chain::{Chain, Shape, FLUSH_BYTES};
use super::device::{Device, Registered};
use super::queue::{Completions, Queue};
use super::{Address, Place, Port};
use crate::child::ChildProcess;
use crate::dispense::Dispenser;
use crate::raw::passive::Passive;
use crate::raw::timed::{time_each, timed};
use crate::walk::Walk;
use crate::workload::{LatencyWorkload, Limit, Operation, Sample, Workload};

/// Work requests under way on all queue pairs together, as perftest's -t: more only wait in line.
const REQUESTS: usize = 128;
/// Room for that in each queue pair, with two of the longest lists and their flushes.
const REQUESTS_MAX: usize = 4_096;
/// While one list moves, the next is posted.
const LISTS_MIN: usize = 2;

#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// The ferry-bench binary; the running one, except in tests.
    pub program: PathBuf,
    /// Memory on each side: no workload may walk more.
    pub memory_bytes: usize,
    pub initiator: Port,
    /// With as many queue pairs.
    pub target: Port,
}

/// The fields' order is the order in which they go: queue pairs before the memory that they reach.
pub struct VerbsPair {
    queues: Vec<Queue>,
    completions: Rc<Completions>,
    registered: Registered,
    /// Where flushes read to.
    flushed: Registered,
    target: Passive,
    remote: Place,
}

impl VerbsPair {
    pub fn start(config: &VerbsConfig) -> anyhow::Result<VerbsPair> {
        let (port, bytes) = (&config.initiator, config.memory_bytes);
        ensure!(port.queues > 0 && port.queues == config.target.queues, "the ends differ in queue pairs");
        ensure!(bytes >= FLUSH_BYTES as usize, "a flush reads {FLUSH_BYTES} bytes");
        let device = Device::open(port)?;
        let registered = Registered::new(&device, bytes)?;
        let flushed = Registered::new(&device, FLUSH_BYTES as usize)?;
        let requests = (device.limits.max_qp_wr as usize).min(REQUESTS_MAX);
        let completions = Completions::new(&device, REQUESTS * port.queues)?;
        let queues = (0..port.queues).map(|_| Queue::new(&completions, port, requests));
        let queues = queues.collect::<anyhow::Result<Vec<_>>>()?;
        let mut child = ChildProcess::start(&config.program, &arguments(&config.target, bytes))?;
        let remote: Place = child.reply().context("the verbs target")?;
        child.tell(&queues.iter().map(Queue::address).collect::<Vec<Address>>())?;
        let connected: usize = child.reply().context("connecting the verbs target")?;
        ensure!(connected == queues.len(), "only {connected} queue pairs are connected");
        for (queue, other) in queues.iter().zip(&remote.queues) {
            queue.connect(port, other).context("connecting a queue pair")?;
        }
        Ok(VerbsPair { queues, completions, registered, flushed, target: Passive::new(child), remote })
    }

    /// Bytes that a packet carries.
    pub fn mtu(&self) -> u32 {
        let agreed = self.queues.iter().zip(&self.remote.queues);
        agreed.map(|(own, other)| own.address().mtu.min(other.mtu)).min().unwrap_or(0)
    }

    /// One timed batch. The data is new in each, and checked after the clock has stopped.
    pub fn run(&mut self, workload: &Workload, flush: bool, limit: Limit) -> anyhow::Result<Sample> {
        let walk = self.target.prepare(workload, &mut self.registered.memory)?;
        let mut chains = self.chains(workload, flush, lists(workload, self.queues.len()))?;
        let pid = self.target.pid();
        let sample = timed(pid, workload, limit, |dispenser| self.drive(&walk, &mut chains, dispenser))?;
        self.target.check(&walk, &self.registered.memory, sample.transfers)?;
        Ok(sample)
    }

    /// Nanoseconds from posting one transfer until it was seen to be done, of each.
    pub fn time_each(&mut self, workload: &LatencyWorkload, flush: bool) -> anyhow::Result<Vec<u64>> {
        let single = workload.single(self.registered.memory.bytes());
        let walk = self.target.prepare(&single, &mut self.registered.memory)?;
        let mut chains = self.chains(&single, flush, 1)?;
        let nanoseconds = time_each(workload, |number| {
            self.post(&walk, number, &mut chains[0], 0)?;
            self.await_one().map(drop)
        })?;
        self.target.check(&walk, &self.registered.memory, workload.samples as u64)?;
        Ok(nanoseconds)
    }

    /// Keeps all chains under way, each on its queue pair; returns when the last was done.
    fn drive(&self, walk: &Walk, chains: &mut [Chain], dispenser: &Dispenser) -> io::Result<Instant> {
        let mut free: Vec<usize> = (0..chains.len()).rev().collect();
        while let Some(number) = dispenser.take() {
            while free.is_empty() {
                self.completions.poll(|chain| free.push(chain as usize))?;
            }
            let Some(chain) = free.pop() else { break };
            self.post(walk, number, &mut chains[chain], chain % self.queues.len())?;
        }
        while free.len() < chains.len() {
            self.completions.poll(|chain| free.push(chain as usize))?;
        }
        Ok(Instant::now())
    }

    fn post(&self, walk: &Walk, number: u64, chain: &mut Chain, queue: usize) -> io::Result<()> {
        let (here, there) = (self.registered.memory.address() as u64, self.remote.address);
        chain.aim(walk.offsets(number).map(|(own, other)| (here + own as u64, there + other as u64)));
        // SAFETY: a walk stays within the memory of both ends, which stays registered here until the queue
        // pairs are gone; nobody touches it before the run is over. The target's keys guard the other end.
        unsafe { self.queues[queue].post(chain) }
    }

    fn await_one(&self) -> io::Result<u64> {
        let mut found = None;
        loop {
            self.completions.poll(|chain| found = Some(chain))?;
            if let Some(chain) = found {
                return Ok(chain);
            }
        }
    }

    fn chains(&self, workload: &Workload, flush: bool, count: usize) -> anyhow::Result<Vec<Chain>> {
        let is_write = workload.operation == Operation::Write;
        let block_bytes = u32::try_from(workload.block_bytes).context("a block of 4 GiB or more")?;
        let inline_bytes = self.queues.iter().map(|queue| queue.inline_bytes).min().unwrap_or(0);
        let flushed = (self.flushed.memory.address() as u64, self.remote.address);
        let shape = Shape {
            operation: workload.operation,
            blocks: workload.blocks,
            block_bytes,
            inline: is_write && block_bytes <= inline_bytes,
            lkey: self.registered.lkey(),
            flush_lkey: self.flushed.lkey(),
            rkey: self.remote.rkey,
            flush: (flush && is_write).then_some(flushed),
        };
        ensure!(workload.blocks < REQUESTS_MAX, "a list of {} work requests is too long", workload.blocks);
        Ok((0..count).map(|number| Chain::new(&shape, number as u64)).collect())
    }
}

/// Lists under way: no two of them move the same memory.
pub fn lists(workload: &Workload, queues: usize) -> usize {
    (REQUESTS / workload.blocks).max(LISTS_MIN * queues).min(workload.slots())
}

fn arguments(port: &Port, memory_bytes: usize) -> Vec<String> {
    vec![
        "verbs-target".to_owned(),
        format!("--memory-bytes={memory_bytes}"),
        format!("--ib-dev={}", port.device),
        format!("--gid-index={}", port.gid_index),
        format!("--mtu={}", port.mtu),
        format!("--queues={}", port.queues),
    ]
}
