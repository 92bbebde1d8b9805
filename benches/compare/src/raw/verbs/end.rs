//! One process's part of a device: an open port, registered memory, and queue pairs that share a completion queue.

use std::io;
use std::sync::Arc;

use anyhow::{anyhow, ensure, Context as _};
use ferry::internals::sys::verbs::{
    device_names, wc, Chain, Completion, Context, Cq, LocalSide, Mr, Pd, PortState, Qp, QpSpec, Remote, Srq,
};
use ferry_bench::memory::Memory;

use super::Address;
use crate::role::Port;

/// The first port of a device, as in perftest.
const PORT_NUMBER: u8 = 1;
/// perftest's values: 67 ms until a packet is sent again, seven times.
const TIMEOUT_LOG2: u8 = 14;
const RETRIES: u8 = 7;
const RNR_TIMER: u8 = 12;
/// The size that is requested; some devices offer less.
const INLINE_BYTES: u32 = 220;

/// Room for the completions of one poll.
pub type Completed = [Completion; 16];

/// Queue pairs are dropped before the objects that they were made with.
pub struct End {
    queues: Vec<Queue>,
    completions: Arc<Cq>,
    pd: Arc<Pd>,
    gid: [u8; 16],
    mtu: u32,
    gid_index: u8,
}

struct Queue {
    pair: Qp,
    psn: u32,
}

impl End {
    /// Opens a port. `requests`, or as many as the device takes, may be under way on each queue pair, and
    /// `completions` completions may wait.
    pub fn open(port: &Port, requests: usize, completions: usize) -> anyhow::Result<End> {
        let Port { device, gid_index, .. } = port;
        let there = device_names().map_err(|why| anyhow!("listing RDMA devices: {why}"))?;
        ensure!(there.contains(device), "there is no RDMA device {device}, only: {}", there.join(", "));
        let context = Context::open(device).with_context(|| format!("opening {device}"))?;
        let found = context.port(PORT_NUMBER).with_context(|| format!("what {device} can do"))?;
        ensure!(found.state == PortState::Active, "port {PORT_NUMBER} of {device} is not active");
        let gid = context.gids(PORT_NUMBER).into_iter().find(|gid| gid.index == u32::from(*gid_index));
        let gid = gid.with_context(|| format!("{device} has no GID {gid_index}"))?.raw;
        let pd = Pd::new(&context).context("a protection domain")?;
        let completions =
            Cq::new(&context, u32::try_from(completions)?, None, 0).context("a completion queue")?;
        // No message is ever sent to this queue.
        let receives = Srq::new(&pd, 1).context("a receive queue")?;
        let send_wr = context.limits().qp_wr_max.min(u32::try_from(requests)?);
        let queue = |_| {
            let spec = QpSpec { send_wr, inline_bytes: INLINE_BYTES };
            let pair =
                Qp::new(&pd, &completions, (&receives, &completions), &spec).context("a queue pair")?;
            pair.to_init(PORT_NUMBER).context("INIT")?;
            Ok(Queue { pair, psn: ferry::internals::sys::random_u64() as u32 >> 8 })
        };
        let queues = (0..port.queues).map(queue).collect::<anyhow::Result<Vec<_>>>()?;
        let mtu = found.mtu_bytes.min(port.mtu);
        Ok(End { queues, completions, pd, gid, mtu, gid_index: *gid_index })
    }

    /// Registers memory that the other end may read and write.
    pub fn register(&self, memory: &Memory) -> anyhow::Result<Mr> {
        let (address, length) = (memory.address() as u64, memory.length() as u64);
        // SAFETY: a live mapping of that many bytes. Each owner drops its registrations before the memory.
        let region = unsafe { self.pd.register(address, length, true, true, false) };
        region.with_context(|| format!("registering {length} bytes (ulimit -l?)"))
    }

    pub fn addresses(&self) -> Vec<Address> {
        let reads_answered = self.pd.context().limits().rd_atom_target_max.max(1);
        let address = |queue: &Queue| Address {
            gid: self.gid,
            queue: queue.pair.number(),
            psn: queue.psn,
            mtu: self.mtu,
            reads_answered,
        };
        self.queues.iter().map(address).collect()
    }

    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Returns the bytes that a WRITE may carry inline.
    pub fn inline_bytes(&self) -> u32 {
        self.queues.iter().map(|queue| queue.pair.inline_bytes().min(INLINE_BYTES)).min().unwrap_or(0)
    }

    /// Posts all of the chain; its last work request is signalled.
    ///
    /// # Safety
    /// The memory that the chain names stays registered, and is left alone, until the chain is done or this end
    /// is dropped.
    pub unsafe fn post(&self, queue: usize, chain: &mut Chain) -> io::Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.queues[queue].pair.post(chain) }.map_err(|(_, error)| error)
    }

    /// Passes the numbers of completed chains to `done`; fails if a chain failed.
    pub fn poll(&self, into: &mut Completed, mut done: impl FnMut(u64)) -> io::Result<()> {
        let count = self.completions.poll(into)?;
        for entry in &into[..count] {
            if !entry.is_success() {
                let (text, vendor) = (wc::name(entry.status()), entry.vendor_error());
                return Err(io::Error::other(format!("a work request failed: {text} (vendor {vendor:#x})")));
            }
            done(entry.id());
        }
        Ok(())
    }

    /// Connects to the queue pairs at the other end, which must know the addresses of these.
    pub fn connect(&self, others: &[Address]) -> anyhow::Result<()> {
        ensure!(others.len() == self.queues.len(), "{} queue pairs for {}", others.len(), self.queues.len());
        let limits = self.pd.context().limits();
        for (queue, other) in self.queues.iter().zip(others) {
            let remote = Remote {
                qp_number: other.queue,
                psn: other.psn,
                mtu_bytes: self.mtu.min(other.mtu),
                gid: other.gid,
                lid: 0,
                // Addresses are GIDs, on InfiniBand too.
                is_ethernet: true,
                gid_index: self.gid_index.into(),
                port: PORT_NUMBER,
                rd_atom: limits.rd_atom_target_max.max(1),
                min_rnr_timer: RNR_TIMER,
                traffic_class: 0,
            };
            queue.pair.to_rtr(&remote).context("connecting a queue pair: ready to receive")?;
            let local = LocalSide {
                psn: queue.psn,
                rd_atom: limits.rd_atom_initiator_max.max(1).min(other.reads_answered),
                timeout: TIMEOUT_LOG2,
                retries: RETRIES,
                rnr_retries: RETRIES,
            };
            queue.pair.to_rts(&local).context("connecting a queue pair: ready to send")?;
        }
        Ok(())
    }
}
