//! The initiator: the child process, the queue pairs, and the posting of lists of blocks.
//!
//! ```text
//! WRITE ─▶ WRITE ─▶ … ─▶ WRITE ─▶ READ of 8 bytes, signalled      proven visible
//! WRITE ─▶ WRITE ─▶ … ─▶ WRITE, signalled                         acknowledged only
//! ```

use std::io;
use std::path::Path;
use std::time::Instant;

use anyhow::{ensure, Context};
use ferry::internals::sys::verbs::{Chain, Mr};
use ferry_bench::child::ChildProcess;
use ferry_bench::dispense::Dispenser;
use ferry_bench::memory::{private, Memory};
use ferry_bench::workload::{LatencyWorkload, Operation, Workload};

use super::end::{Completed, End};
use super::Place;
use crate::raw::reference::{Ground, Reference, Way};
use crate::role::{Port, Role};

/// Work requests under way on all queue pairs together, as perftest's -t: more would only queue.
const REQUESTS: usize = 128;
/// Room for `REQUESTS` in each queue pair, with two of the longest lists and their flushes.
const REQUESTS_MAX: usize = 4_096;
/// While one list moves, the next is posted.
const LISTS_MIN: usize = 2;
/// The bytes read back to prove that all earlier bytes are in place.
const FLUSH_BYTES: u32 = 8;

/// Fields are dropped in this order: queue pairs before the memory that they reach.
pub struct Verbs {
    end: End,
    registered: Mr,
    flushed_region: Mr,
    /// The destination of flushes.
    flushed: Memory,
    remote: Place,
    path: String,
    /// If true, a READ behind each list of WRITEs proves it visible.
    flush: bool,
}

pub type VerbsEngine = Reference<Verbs>;

impl VerbsEngine {
    /// Starts with a READ behind each list of WRITEs that proves it visible; `set_flush` changes that.
    /// `program` is this program. The ends' ports have as many queue pairs.
    pub fn start(program: &Path, memory_bytes: usize, ends: [&Port; 2]) -> anyhow::Result<VerbsEngine> {
        let [port, target] = ends;
        ensure!(port.queues > 0 && port.queues == target.queues, "the ends differ in queue pairs");
        let memory = private(memory_bytes).context("mapping")?;
        let flushed = private(FLUSH_BYTES as usize).context("mapping")?;
        let end = End::open(port, REQUESTS_MAX, REQUESTS * port.queues)?;
        let (registered, flushed_region) = (end.register(&memory)?, end.register(&flushed)?);
        let mut child =
            ChildProcess::start(program, &Role::VerbsTarget { port: target.clone(), memory_bytes })?;
        let remote: Place = child.reply().context("the verbs target")?;
        child.tell(&end.addresses())?;
        let connected: usize = child.reply().context("connecting the verbs target")?;
        ensure!(connected == end.queues(), "only {connected} queue pairs are connected");
        end.connect(&remote.queues)?;
        let agreed =
            end.addresses().iter().zip(&remote.queues).map(|(own, other)| own.mtu.min(other.mtu)).min();
        let path = format!("rdma {} to {}, MTU {}", port.device, target.device, agreed.unwrap_or(0));
        let address = remote.address;
        let way = Verbs { end, registered, flushed_region, flushed, remote, path, flush: true };
        Reference::new(way, child, memory, address)
    }

    /// Chooses whether lists of WRITEs are proven visible, or acknowledged only.
    pub fn set_flush(&mut self, flush: bool) {
        self.way_mut().flush = flush;
    }
}

/// Chains of work requests, each for one list, and room for the completions of one poll.
pub struct Run {
    chains: Vec<Chain>,
    inline: bool,
    done: Completed,
}

impl Verbs {
    fn lists(&self, workload: &Workload) -> usize {
        // No two lists move the same memory.
        (REQUESTS / workload.blocks).max(LISTS_MIN * self.end.queues()).min(workload.slots())
    }

    fn post(&self, ground: Ground, run: &mut Run, number: u64, index: usize) -> io::Result<()> {
        let Ground { walk, memory } = ground;
        let Workload { operation, block_bytes, .. } = *walk.workload();
        let (here, there) = (memory.address() as u64, self.remote.address);
        let (id, lkey, rkey, length) =
            (index as u64, self.registered.lkey(), self.remote.rkey, block_bytes as u32);
        let chain = &mut run.chains[index];
        chain.clear();
        for (own, other) in walk.offsets(number) {
            let (local, remote) = (here + own as u64, there + other as u64);
            match operation {
                Operation::Write => chain.write(id, local, lkey, remote, rkey, length, run.inline),
                Operation::Read => chain.read(id, local, lkey, remote, rkey, length),
            }
        }
        if self.flush && operation == Operation::Write {
            let flushed = self.flushed.address() as u64;
            chain.read(id, flushed, self.flushed_region.lkey(), there, rkey, FLUSH_BYTES);
        }
        chain.signal_last();
        // SAFETY: a walk stays within the memory of both ends, which stays registered here until the queue pairs are
        // gone; nothing touches it before the run is over. The target's keys guard the other end.
        unsafe { self.end.post(index % self.end.queues(), chain) }
    }
}

impl Way for Verbs {
    type Setting = ();
    type Run = Run;

    fn name(&self) -> &'static str {
        "verbs"
    }

    fn path(&self) -> String {
        self.path.clone()
    }

    /// Nothing is tuned per workload.
    fn settings(&self) -> Vec<()> {
        vec![()]
    }

    fn describe(&self, (): (), workload: &Workload) -> String {
        let visibility = if self.flush { "proven" } else { "acked only" };
        let (queues, lists) = (self.end.queues(), self.lists(workload));
        let queues = if queues == 1 { "one queue pair".to_owned() } else { format!("{queues} queue pairs") };
        format!("{queues}, {lists} lists under way, {visibility}")
    }

    fn ready(&self, workload: &Workload, (): (), latency: Option<&LatencyWorkload>) -> anyhow::Result<Run> {
        let block_bytes = u32::try_from(workload.block_bytes).context("a block of 4 GiB or more")?;
        ensure!(workload.blocks < REQUESTS_MAX, "a list of {} work requests is too long", workload.blocks);
        let count = if latency.is_some() { 1 } else { self.lists(workload) };
        // Behind the blocks, the flush.
        let chains = (0..count).map(|_| Chain::new(workload.blocks + 1)).collect();
        let inline = block_bytes <= self.end.inline_bytes();
        Ok(Run { chains, inline, done: Default::default() })
    }

    /// Keeps all chains under way, each on its queue pair.
    fn drive(&self, ground: Ground, run: &mut Run, dispenser: &Dispenser) -> io::Result<Instant> {
        let count = run.chains.len();
        let mut free: Vec<usize> = (0..count).rev().collect();
        while let Some(number) = dispenser.take() {
            while free.is_empty() {
                self.end.poll(&mut run.done, |chain| free.push(chain as usize))?;
            }
            let Some(chain) = free.pop() else { break };
            self.post(ground, run, number, chain)?;
        }
        while free.len() < count {
            self.end.poll(&mut run.done, |chain| free.push(chain as usize))?;
        }
        Ok(Instant::now())
    }

    fn carry(&self, ground: Ground, run: &mut Run, number: u64) -> io::Result<()> {
        self.post(ground, run, number, 0)?;
        let mut is_done = false;
        while !is_done {
            self.end.poll(&mut run.done, |_| is_done = true)?;
        }
        Ok(())
    }
}
