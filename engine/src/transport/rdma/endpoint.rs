//! An endpoint: reliable-connection queue pairs between one of our devices and one of the peer's. The first
//! carries what is small, the others the rest. One completion queue serves all of them; whoever has time
//! reaps it: a waiting thread, or the device's poller.
//!
//! A chain of work requests has one signalled completion, the last; each queue pair has a few chains under
//! way. Closing is local quiescence: the queue pairs are put into their error state, every completion that
//! is owed is reaped, they are destroyed, and what was not confirmed is handed over as records.

use super::batch::{Batch, Builder, Run, WrId};
use super::device::Device;
use super::keys::Keys;
use super::reaping::ASLEEP;
use super::unacknowledged::Unacknowledged;
use super::wire::{DeviceOffer, Side};
use crate::command::{Command, Commands};
use crate::complete::{Transfer, TransferFlags};
use crate::limits::{FRAME_DESCRIPTORS_MAX, RDMA_WORD_BYTES_MAX};
use crate::loss::{Cause, Loss};
use crate::peer::outbox::{PullLimits, Pulled};
use crate::peer::{After, Peer};
use crate::region::Registry;
use crate::sys::clock;
use crate::sys::lock::Mutex;
use crate::sys::verbs::{Chain, Completion, Cq, LocalSide, Qp, QpSpec, Remote};
use crate::types::{Monotonic, Transport};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Chains under way on one queue pair: while one is confirmed the others keep the device busy.
const CHAINS_MAX: u32 = 4;
/// Work requests of one chain: of the queue pair for what is small, and of the others.
const EXPRESS_WRS: u32 = 64;
const BULK_WRS: u32 = 257;
/// Payload after which a chain is closed.
pub const CHAIN_BYTES: u32 = 1 << 20;
/// 0.64 ms, in InfiniBand's code.
const RNR_TIMER: u8 = 12;
const RNR_RETRIES: u8 = 6;

/// What an endpoint is made of, besides its queue pairs.
pub struct Parts {
    pub lane: u32,
    pub device: Arc<Device>,
    pub remote: DeviceOffer,
    pub peer: Arc<Peer>,
    pub keys: Arc<Keys>,
    pub registry: Arc<Registry>,
    pub commands: Arc<Commands>,
    pub qps: u32,
}

pub struct Endpoint {
    pub lane: u32,
    pub device: Arc<Device>,
    pub remote: DeviceOffer,
    pub(super) peer: Arc<Peer>,
    pub(super) keys: Arc<Keys>,
    pub(super) registry: Arc<Registry>,
    pub(super) commands: Arc<Commands>,
    pub(super) cookie: u64,
    pub(super) qp_numbers: Box<[u32]>,
    /// Queue pairs that both ends have.
    pub(super) qps_used: AtomicUsize,
    pub(super) cq: Arc<Cq>,
    pub(super) send: Mutex<Sender>,
    pub(super) flights: Box<[Flight]>,
    pub(super) reaper: Mutex<Reaper>,
    /// Chains under way. Partner: `watch`, so that what is owed is always looked after.
    pub(super) chains: AtomicU32,
    pub(super) watch: AtomicU32,
    pub(super) unacknowledged: Unacknowledged,
    /// Chains settled so far; says whether polling pays.
    pub settled: AtomicU64,
    /// That, at the last tick.
    pub(super) ticked: AtomicU64,
    /// Payload under way, and what was seen to move in a second, for `path` to choose by.
    pub(super) bytes_out: AtomicU64,
    pub(super) rate: AtomicU64,
    /// Nothing is posted any more, and the loss has been told; why, if it was not on purpose.
    pub(super) broken: AtomicBool,
    pub(super) why: OnceLock<String>,
    /// Its device is slow.
    #[cfg(test)]
    held: AtomicBool,
}

pub(super) struct Sender {
    /// Set before the queue pairs flush, under this lock: who waited for it meanwhile posts nothing behind that.
    pub(super) closing: bool,
    pub(super) qps: Vec<Qp>,
    pub(super) chains: Vec<Chain>,
    pub(super) staged: Vec<Batch>,
    pub(super) next_sequence: u64,
}

/// What one queue pair has under way.
#[derive(Default)]
pub(super) struct Flight {
    pub(super) state: Mutex<FlightState>,
    pub(super) chains: AtomicU32,
}

#[derive(Default)]
pub(super) struct FlightState {
    pub(super) batches: VecDeque<Batch>,
    /// The last work request posted, and whether its completion, good or bad, has come.
    pub(super) last: Option<WrId>,
    /// The first completion that was an error of its own.
    pub(super) error: Option<(WrId, u32, u32)>,
}

#[derive(Default)]
pub(super) struct Reaper {
    pub(super) completions: Vec<Completion>,
    pub(super) done: Vec<Batch>,
}

/// One that came to nothing was not closed, and its device knows of it yet.
impl Drop for Endpoint {
    fn drop(&mut self) {
        self.device.forget(self.cookie, &self.qp_numbers, self);
    }
}

impl Endpoint {
    /// Queue pairs that know of no other end yet.
    pub fn new(parts: Parts) -> io::Result<Arc<Endpoint>> {
        let Parts { lane, device, remote, peer, keys, registry, commands, qps } = parts;
        let cookie = device.cookie();
        let wrs = |at: u32| device.send_wr(CHAINS_MAX * if at == 0 { EXPRESS_WRS } else { BULK_WRS });
        // Flushed work requests report one by one, so there must be room for all of them.
        let entries: u32 = (0..=qps).map(wrs).sum::<u32>() + 64;
        let entries = entries.min(device.pd.context().limits().cqe_max);
        let cq = Cq::new(device.pd.context(), entries, Some(&device.channel), cookie)?;
        let mut sender = Sender {
            closing: false,
            qps: Vec::new(),
            chains: Vec::new(),
            staged: Vec::new(),
            next_sequence: 0,
        };
        for at in 0..=qps {
            let inline_bytes = if at == 0 { device.inline_bytes() } else { 0 };
            let qp = Qp::new(
                &device.pd,
                &cq,
                (&device.words.srq, &device.received),
                &QpSpec { send_wr: wrs(at), inline_bytes },
            )?;
            qp.to_init(device.port)?;
            sender.chains.push(Chain::new((wrs(at) / CHAINS_MAX) as usize));
            sender.qps.push(qp);
        }
        let qp_numbers: Box<[u32]> = sender.qps.iter().map(Qp::number).collect();
        let completions = vec![Completion::default(); 64];
        let endpoint = Arc::new(Endpoint {
            lane,
            remote,
            peer,
            keys,
            registry,
            commands,
            cookie,
            qp_numbers,
            qps_used: AtomicUsize::new(0),
            cq,
            send: Mutex::new(sender),
            flights: (0..=qps).map(|_| Flight::default()).collect(),
            reaper: Mutex::new(Reaper { completions, done: Vec::new() }),
            chains: AtomicU32::new(0),
            watch: AtomicU32::new(ASLEEP),
            unacknowledged: Unacknowledged::default(),
            settled: AtomicU64::new(0),
            ticked: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            why: OnceLock::new(),
            #[cfg(test)]
            held: AtomicBool::new(false),
            device: device.clone(),
        });
        device.add(cookie, &endpoint.qp_numbers, &endpoint);
        Ok(endpoint)
    }

    /// What the other end must know of this one; `psn` is its first packet's number on each queue pair.
    pub fn side(&self, psn: u32) -> Result<Side, String> {
        let address = self.device.address()?;
        let qps = self.send.lock().qps.iter().map(|qp| (qp.number(), psn)).collect();
        let reads_max = self.device.pd.context().limits().rd_atom_target_max;
        Ok(Side { mtu: address.mtu as u16, reads_max, qps })
    }

    /// Ties the queue pairs to the other end's: they can be used from here on.
    pub fn connect(&self, own: &Side, other: &Side) -> Result<(), String> {
        let address = self.device.address()?;
        let mut sender = self.send.lock();
        // The end that was asked may have made fewer.
        sender.qps.truncate(other.qps.len());
        if sender.qps.len() != other.qps.len() || sender.qps.len() < 2 {
            return Err(format!("{} queue pairs here, {} there", sender.qps.len(), other.qps.len()));
        }
        self.qps_used.store(sender.qps.len(), Ordering::Release);
        let limits = self.device.pd.context().limits();
        let (timeout, retries) = self.device.patience();
        for (qp, ((number, psn), (_, own_psn))) in sender.qps.iter().zip(other.qps.iter().zip(&own.qps)) {
            let to = Remote {
                qp_number: *number,
                psn: *psn,
                mtu_bytes: address.mtu.min(u32::from(other.mtu)).max(256),
                gid: self.remote.gid,
                lid: self.remote.lid,
                is_ethernet: address.is_ethernet,
                gid_index: address.gid.index,
                port: self.device.port,
                rd_atom: limits.rd_atom_target_max,
                min_rnr_timer: RNR_TIMER,
                traffic_class: 0,
            };
            let from = LocalSide {
                psn: *own_psn,
                rd_atom: limits.rd_atom_initiator_max.min(other.reads_max).max(1),
                timeout,
                retries,
                rnr_retries: RNR_RETRIES,
            };
            qp.to_rtr(&to).map_err(|error| format!("{}: to RTR: {error}", self.device.name()))?;
            qp.to_rts(&from).map_err(|error| format!("{}: to RTS: {error}", self.device.name()))?;
        }
        Ok(())
    }

    /// READs from the other end through every queue pair; `is_proven` tells when that was answered.
    pub fn probe(&self) {
        let mut sender = self.send.lock();
        if sender.closing {
            return;
        }
        for qp in 0..sender.qps.len() {
            sender.next_sequence += 1;
            let (id, chain) = (WrId::flush(qp, sender.next_sequence), &mut sender.chains[qp]);
            let (scratch, lkey) = self.device.scratch();
            chain.clear();
            chain.read(id.0, scratch, lkey, self.remote.flush_address, self.remote.flush_rkey, 1);
            chain.signal_last();
            self.commit(&mut sender, qp, id);
        }
        drop(sender);
        self.ensure_watched(&mut self.peer.after());
    }

    /// Whether each queue pair has had an answer.
    pub fn is_proven(&self) -> bool {
        self.settled.load(Ordering::Acquire) >= self.qps_used.load(Ordering::Acquire) as u64
    }

    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Whether a chain can be posted: on the queue pair for what is small, or on another; which.
    pub fn room(&self, express: bool) -> Option<usize> {
        if self.is_broken() {
            return None;
        }
        let free = |at: &usize| self.flights[*at].chains.load(Ordering::Acquire) < CHAINS_MAX;
        if express {
            return Some(0).filter(free);
        }
        let emptiest = |at: &usize| self.flights[*at].chains.load(Ordering::Relaxed);
        (1..self.qps_used.load(Ordering::Acquire)).min_by_key(emptiest).filter(free)
    }

    /// Nanoseconds after which one more chain would have left, at so many bytes a second.
    pub fn delay_with(&self, rate: u64) -> u64 {
        let queued = self.bytes_out.load(Ordering::Relaxed) + u64::from(CHAIN_BYTES);
        ((queued as u128 * 1_000_000_000) / rate.max(1) as u128).min(u64::MAX as u128 / 2) as u64
    }

    /// What was seen to move in a second; 0 before anything has.
    pub fn rate(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// Posts one chain on queue pair `qp`: the first run that `pull` gives, and what follows it while there is
    /// room. False when there was none. `pull` is asked for at most so many slices and bytes.
    pub fn post(
        &self,
        qp: usize,
        mut pull: impl FnMut(PullLimits) -> Option<Pulled>,
        after: &mut After,
    ) -> bool {
        if self.is_broken() {
            return false;
        }
        // Others hold it for moments.
        let sender = &mut *self.send.lock();
        if sender.closing {
            return false;
        }
        let (local, remote, keys) =
            (self.registry.snapshot(), self.peer.remote.snapshot(), self.keys.snapshot());
        let inline_bytes = sender.qps[qp].inline_bytes();
        let chain = &mut sender.chains[qp];
        chain.clear();
        let capacity = chain.capacity();
        let mut builder =
            Builder::new(&self.device, &self.remote, &local, &remote, &keys, chain, (qp, inline_bytes));
        // Registrations end every MiB or further apart, and no slice is longer: it crosses one end a side. And each
        // slice may be for other memory than the one before.
        let [here, there] = [self.device.splits(), self.keys.splits()].map(usize::from);
        let wrs_per_slice = 1 + here + there + usize::from(remote.has_devices());
        let (mut total, mut slot) = (0u32, None);
        // The only transfer in the chain, whose end nobody may be waiting for yet.
        let mut only: Option<Arc<Transfer>> = None;
        if qp == 0 {
            self.add_acks(&mut builder, &mut sender.next_sequence, &mut sender.staged);
        }
        loop {
            let slices = (capacity - builder.chain.len()).saturating_sub(1) / wrs_per_slice;
            if slices == 0 || total >= CHAIN_BYTES {
                break;
            }
            let descriptors_max = slices.min(FRAME_DESCRIPTORS_MAX);
            // Before a word is taken there must be a place for it.
            slot = slot.or_else(|| if qp == 0 { self.device.words.take() } else { None });
            let limits = PullLimits {
                frame_bytes_max: CHAIN_BYTES - total,
                descriptors_max,
                word_bytes_max: slot.map(|_| RDMA_WORD_BYTES_MAX),
                read: true,
                write: true,
            };
            let Some(pulled) = pull(limits) else { break };
            sender.next_sequence += 1;
            let sequence = sender.next_sequence;
            let mut batch =
                Batch { sequence, run: None, failures: Vec::new(), slot: None, posted_ns: Monotonic::NEVER };
            match pulled {
                Pulled::Slices { transfer, first, end, bytes, .. } => {
                    // What its caller waits for was submitted a moment ago, and the clock is not free.
                    batch.posted_ns = match transfer.spec.flags.has(TransferFlags::AWAITED)
                        && !transfer.is_attended()
                        && qp == 0
                    {
                        true => transfer.spec.submitted_ns,
                        false => clock::monotonic_ns(),
                    };
                    transfer.mark_started_at(|| batch.posted_ns);
                    only = Some(transfer.clone()).filter(|_| sender.staged.is_empty());
                    batch.failures = builder.add(&transfer, (first, end), sequence);
                    batch.run = Some(Run { transfer, first, end, bytes });
                    total += bytes;
                }
                word => {
                    only = None;
                    batch.slot = slot.take();
                    self.add_word(&mut builder, batch.slot, word, sequence);
                }
            }
            sender.staged.push(batch);
        }
        slot.into_iter().for_each(|slot| self.device.words.give_back(slot));
        if sender.staged.is_empty() {
            return false;
        }
        match builder.finish(sender.next_sequence) {
            Some(id) => {
                self.bytes_out.fetch_add(u64::from(total), Ordering::Relaxed);
                self.commit(sender, qp, id);
                // After it was counted: who is about to sleep looks at the count last.
                match only.filter(|transfer| !transfer.is_attended()) {
                    Some(transfer) if transfer.spec.flags.has(TransferFlags::AWAITED) => {}
                    Some(_) if qp == 0 => self.device.look_later(),
                    _ => self.ensure_watched(after),
                }
            }
            // Nothing of it could be posted, and it says so.
            None => {
                sender.staged.drain(..).for_each(|batch| batch.settle(&self.peer, &self.device.words, after))
            }
        }
        true
    }

    /// Hands the chain of a queue pair to the device, with the batches staged for it.
    fn commit(&self, sender: &mut Sender, qp: usize, last: WrId) {
        {
            // First entered, then posted: the completion may come at once.
            let mut state = self.flights[qp].state.lock();
            state.last = Some(last);
            state.batches.extend(sender.staged.drain(..));
        }
        self.flights[qp].chains.fetch_add(1, Ordering::AcqRel);
        self.chains.fetch_add(1, Ordering::SeqCst);
        self.device.work_requests.fetch_add(sender.chains[qp].len() as u64, Ordering::Relaxed);
        let Sender { qps, chains, .. } = sender;
        // SAFETY: the local regions that the chain names were entered for their transfers, which are not
        // final before their batches are settled: by a completion, or after the queue pair was destroyed.
        // The scratch page is the device's, which the endpoint holds.
        if let Err((_, error)) = unsafe { qps[qp].post(&mut chains[qp]) } {
            self.fail(format!("posting: {error}"));
        }
    }

    /// The endpoint is of no use any more: once, the control loop is told to close it.
    pub fn fail(&self, why: String) {
        if !self.broken.swap(true, Ordering::AcqRel) {
            let why =
                self.why.get_or_init(|| format!("{} to {}: {why}", self.device.name(), self.remote.name));
            let loss =
                Loss::told(Cause::System, format!("RDMA lane {}, {why}", self.lane)).over(Transport::Rdma);
            self.commands.push(Command::LaneLost { peer: self.peer.handle, lane: self.lane, loss });
        }
    }

    /// Why it broke, if it did.
    pub fn why(&self) -> &str {
        self.why.get().map_or("the peer gave it up", String::as_str)
    }

    pub fn has_work(&self) -> bool {
        self.chains.load(Ordering::SeqCst) > 0
    }

    /// What has been posted so far: once `is_past` says so, none of it is under way.
    pub fn mark(&self) -> u64 {
        self.send.lock().next_sequence
    }

    pub fn is_past(&self, mark: u64) -> bool {
        self.is_closed()
            || self
                .flights
                .iter()
                .all(|flight| flight.state.lock().batches.front().is_none_or(|batch| batch.sequence > mark))
    }

    /// Puts one queue pair into its error state, as a device may do at any time.
    #[cfg(test)]
    pub fn kill(&self, qp: usize) {
        if let Some(qp) = self.send.lock().qps.get(qp) {
            let _ = qp.to_error();
        }
    }

    /// Has its device take as long to flush it as the test wants.
    #[cfg(test)]
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::SeqCst);
    }

    pub(super) fn is_held(&self) -> bool {
        #[cfg(test)]
        return self.held.load(Ordering::SeqCst);
        #[cfg(not(test))]
        false
    }

    /// Whether it is ended although it owes completions: it had time, and nobody knows more.
    pub(super) fn ends_late(&self, is_late: bool) -> bool {
        is_late && !self.is_held()
    }

    fn is_closed(&self) -> bool {
        self.send.lock().qps.is_empty()
    }

    pub fn carries(&self, transfer: u64) -> bool {
        let ours = |batch: &Batch| batch.run.as_ref().is_some_and(|run| run.transfer.handle == transfer);
        self.unacknowledged.carries(transfer)
            || self.flights.iter().any(|flight| flight.state.lock().batches.iter().any(ours))
    }
}
