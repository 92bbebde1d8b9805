//! An endpoint: reliable-connection queue pairs between one device of this engine and one of the peer's. The first
//! queue pair is for small (express) work, the others for bulk. All share one completion queue, which is reaped by a
//! waiting thread or by the device's poller.
//!
//! Only the last work request of a chain is signalled, and each queue pair has at most a few chains in flight. Closing
//! makes the endpoint quiet at this end: the queue pairs enter their error state, every owed completion is reaped, the
//! queue pairs are destroyed, and unconfirmed work is handed over as records.

use super::batch::{posted_ns, Batch, Builder, Maps, Run, WrId};
use super::device::Device;
use super::flight::Flight;
use super::keys::Keys;
use super::pace::Pace;
use super::reaping::Reaper;
use super::room::{Room, CHAINS_MAX};
use super::unacknowledged::Unacknowledged;
use super::watch::Watch;
use super::wire::{DeviceOffer, Side};
use super::Usable;
use crate::command::{Command, Commands};
use crate::complete::{Transfer, TransferFlags};
use crate::limits::{FRAME_DESCRIPTORS_MAX, RDMA_NOTIFY_BYTES_MAX};
use crate::loss::{Cause, Loss};
use crate::peer::outbox::{PullLimits, Pulled};
use crate::peer::{After, Peer};
use crate::region::{Registry, RemoteMap};
use crate::status::reason;
use crate::sys::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sys::clock;
use crate::sys::lock::Mutex;
use crate::sys::once::OnceLock;
use crate::sys::verbs::{Chain, Cq, LocalSide, Qp, QpSpec, Remote};
use crate::types::{LaneId, Monotonic, TransferId, Transport};
use std::io;
use std::sync::Arc;

/// Payload bytes after which a chain is complete.
pub const CHAIN_BYTES: u32 = 1 << 20;
/// The code of InfiniBand for 0.64 ms.
const RNR_TIMER: u8 = 12;
const RNR_RETRIES: u8 = 6;

/// The arguments of `Endpoint::new`.
pub struct Parts {
    pub lane: LaneId,
    pub device: Arc<Device>,
    pub remote: DeviceOffer,
    pub peer: Arc<Peer>,
    pub keys: Arc<Keys>,
    pub registry: Arc<Registry>,
    pub commands: Arc<Commands>,
    pub qps: u32,
}

pub struct Endpoint {
    pub lane: LaneId,
    pub device: Arc<Device>,
    pub remote: DeviceOffer,
    pub(super) peer: Arc<Peer>,
    pub(super) keys: Arc<Keys>,
    registry: Arc<Registry>,
    commands: Arc<Commands>,
    cookie: u64,
    pub(super) qp_numbers: Box<[u32]>,
    /// Number of queue pairs that both ends have.
    qps_used: AtomicUsize,
    pub(super) cq: Arc<Cq>,
    send: Mutex<Sender>,
    /// By queue pair.
    pub(super) flights: Box<[Flight]>,
    pub(super) reaper: Mutex<Reaper>,
    pub(super) watch: Watch,
    pub(super) unacknowledged: Unacknowledged,
    pub(super) pace: Pace,
    /// Nothing more is posted, and the loss was reported. `why` is unset if the endpoint did not fail.
    broken: AtomicBool,
    why: OnceLock<String>,
    /// Tests only: the device is slow to flush.
    #[cfg(test)]
    held: AtomicBool,
}

/// The state that posting takes. Only this file posts.
struct Sender {
    /// Set under this lock before the queue pairs flush: a thread that waited for the lock posts nothing after that.
    closing: bool,
    qps: Vec<Qp>,
    chains: Vec<Chain>,
    staged: Vec<Batch>,
    next_sequence: u64,
}

/// An endpoint that never opened is dropped without being closed, and its device still lists it.
impl Drop for Endpoint {
    fn drop(&mut self) {
        self.leave_device();
    }
}

impl Endpoint {
    /// Makes the queue pairs. They are not connected yet.
    pub fn new(parts: Parts) -> io::Result<Arc<Endpoint>> {
        let Parts { lane, device, remote, peer, keys, registry, commands, qps } = parts;
        let cookie = device.cookie();
        let limits = device.pd.context().limits();
        let room = Room::new(qps, limits.qp_wr_max, limits.cqe_max);
        let cq = Cq::new(device.pd.context(), room.entries(), Some(&device.channel), cookie)?;
        let mut sender = Sender {
            closing: false,
            qps: Vec::new(),
            chains: Vec::new(),
            staged: Vec::new(),
            next_sequence: 0,
        };
        for at in 0..=room.bulk_qps {
            let inline_bytes = if at == 0 { device.inline_bytes() } else { 0 };
            let qp = Qp::new(
                &device.pd,
                &cq,
                (&device.notifications.srq, &device.received),
                &QpSpec { send_wr: room.wrs(at), inline_bytes },
            )?;
            qp.to_init(device.port)?;
            sender.chains.push(Chain::new((room.wrs(at) / CHAINS_MAX) as usize));
            sender.qps.push(qp);
        }
        let qp_numbers: Box<[u32]> = sender.qps.iter().map(Qp::number).collect();
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
            flights: (0..=room.bulk_qps).map(|_| Flight::default()).collect(),
            reaper: Mutex::new(Reaper::new()),
            watch: Watch::default(),
            unacknowledged: Unacknowledged::default(),
            pace: Pace::default(),
            broken: AtomicBool::new(false),
            why: OnceLock::new(),
            #[cfg(test)]
            held: AtomicBool::new(false),
            device: device.clone(),
        });
        device.add(cookie, &endpoint.qp_numbers, &endpoint);
        Ok(endpoint)
    }

    /// Returns the data that the other end needs to connect; `psn` is the first packet's number on each queue pair.
    pub fn side(&self, psn: u32) -> Usable<Side> {
        let address = self.device.address()?;
        let qps = self.send.lock().qps.iter().map(|qp| (qp.number(), psn)).collect();
        let reads_max = self.device.pd.context().limits().rd_atom_target_max;
        Ok(Side { mtu: address.mtu as u16, reads_max, qps })
    }

    /// Connects the queue pairs to the other end's. They can be used from then on.
    pub fn connect(&self, own: &Side, other: &Side) -> Usable<()> {
        let address = self.device.address()?;
        let mut sender = self.send.lock();
        // Each end has as many as its own settings allow. Both use those that have a partner.
        let count = sender.qps.len().min(other.qps.len());
        if count < 2 {
            return Err(format!(
                "both ends need at least 2 queue pairs: {} here, {} there",
                sender.qps.len(),
                other.qps.len()
            ));
        }
        sender.qps.truncate(count);
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
            let name = self.device.name();
            let what = |to: &str, error| format!("{name}: a queue pair can't {to}: {}", reason(&error));
            qp.to_rtr(&to).map_err(|error| what("be made to receive", error))?;
            qp.to_rts(&from).map_err(|error| what("be made to send", error))?;
        }
        Ok(())
    }

    /// Posts a READ from the other end on every queue pair; `is_proven` tells when all were answered.
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

    /// True if each queue pair has completed a chain.
    pub fn is_proven(&self) -> bool {
        self.watch.settled() >= self.qps_used.load(Ordering::Acquire) as u64
    }

    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Returns a queue pair with room for a chain, of the express or the bulk ones.
    pub fn room(&self, express: bool) -> Option<usize> {
        if self.is_broken() {
            return None;
        }
        let free = |at: &usize| self.flights[*at].has_room();
        if express {
            return Some(0).filter(free);
        }
        let emptiest = |at: &usize| self.flights[*at].chains();
        (1..self.qps_used.load(Ordering::Acquire)).min_by_key(emptiest).filter(free)
    }

    /// Posts one chain on queue pair `qp`: all that `pull` returns, while there is room. Returns false if `pull`
    /// returned nothing. Each call of `pull` is limited to the slices and bytes that still fit.
    pub fn post(
        &self,
        qp: usize,
        mut pull: impl FnMut(PullLimits) -> Option<Pulled>,
        after: &mut After,
    ) -> bool {
        if self.is_broken() {
            return false;
        }
        // Other threads hold this lock only briefly.
        let sender = &mut *self.send.lock();
        if sender.closing {
            return false;
        }
        let before = self.peer.remote.snapshot();
        let inline_bytes = sender.qps[qp].inline_bytes();
        let chain = &mut sender.chains[qp];
        chain.clear();
        let capacity = chain.capacity();
        let mut builder = Builder::new(&self.device, &self.remote, chain, (qp, inline_bytes));
        let wrs_per_slice = self.wrs_per_slice(&before);
        let (mut total, mut slot, mut has_settled) = (0u32, None, false);
        // The chain's transfer, if the chain has only one: perhaps no thread waits for its end yet.
        let mut only: Option<Arc<Transfer>> = None;
        if qp == 0 {
            self.add_acks(&mut builder, &mut sender.next_sequence, &mut sender.staged);
        }
        loop {
            let slices = (capacity - builder.chain.len()).saturating_sub(1) / wrs_per_slice;
            if slices == 0 || total >= CHAIN_BYTES {
                break;
            }
            // A notification may only be pulled if there is a slot for it.
            slot = slot.or_else(|| if qp == 0 { self.device.take_slot() } else { None });
            let limits = PullLimits {
                descriptors_max: slices.min(FRAME_DESCRIPTORS_MAX),
                notification_bytes_max: slot.map(|_| RDMA_NOTIFY_BYTES_MAX),
                ..PullLimits::data(CHAIN_BYTES - total)
            };
            let Some(pulled) = pull(limits) else { break };
            sender.next_sequence += 1;
            let sequence = sender.next_sequence;
            let mut batch =
                Batch { sequence, run: None, failures: Vec::new(), slot: None, posted_ns: Monotonic::NEVER };
            match pulled {
                Pulled::Slices { transfer, range, bytes, .. } => {
                    batch.posted_ns = posted_ns(&transfer, qp);
                    transfer.mark_started_at(|| batch.posted_ns);
                    let (posted, sole) = (builder.chain.len(), sender.staged.is_empty());
                    batch.failures = builder.add(&self.maps(&before), &transfer, range, sequence);
                    batch.run = Some(Run { transfer: transfer.clone(), range, bytes });
                    if builder.chain.len() == posted {
                        // Nothing of it is in the chain: no completion would tell its end. Each such run counts as a
                        // chain of its caller's turn.
                        batch.settle(&self.peer, &self.device.notifications, after);
                        has_settled = true;
                        break;
                    }
                    only = sole.then_some(transfer);
                    total += bytes;
                }
                notification => {
                    only = None;
                    batch.slot = slot.take();
                    let posted = (sequence, clock::monotonic_ns());
                    self.add_notification(&mut builder, batch.slot, notification, posted);
                }
            }
            sender.staged.push(batch);
        }
        slot.into_iter().for_each(|slot| self.device.notifications.give_back(slot));
        if builder.chain.is_empty() {
            return has_settled;
        }
        let last = builder.finish(sender.next_sequence);
        self.pace.posted(total);
        self.commit(sender, qp, last);
        self.await_last(only, qp, after);
        true
    }

    /// Makes sure that a thread takes the completion of a chain, unless the caller of its `only` transfer does. Called
    /// after the chain was counted, because a thread that is about to sleep checks the count last.
    fn await_last(&self, only: Option<Arc<Transfer>>, qp: usize, after: &mut After) {
        match only.filter(|transfer| !transfer.is_attended()) {
            Some(transfer) if transfer.spec.flags.has(TransferFlags::AWAITED) => {}
            Some(_) if qp == 0 => self.device.ensure_ticking(),
            _ => self.ensure_watched(after),
        }
    }

    /// A slice is at most 1 MiB and pieces of a registration are at least that long, so a slice crosses at most one
    /// piece's end at each side. With device memory at the peer, each slice may also need a READ before it
    /// (`Builder::leave_for`).
    fn wrs_per_slice(&self, before: &RemoteMap) -> usize {
        let [here, there] = [self.device.splits(), self.keys.splits()].map(usize::from);
        1 + here + there + usize::from(before.has_devices())
    }

    /// Returns the regions as they are now. The chain has room for device memory only if the peer had some `before`.
    fn maps(&self, before: &Arc<RemoteMap>) -> Maps {
        let mut remote = self.peer.remote.snapshot();
        if remote.has_devices() && !before.has_devices() {
            remote = before.clone();
        }
        Maps { local: self.registry.snapshot(), remote, keys: self.keys.snapshot() }
    }

    /// Posts the chain of a queue pair, and enters the staged batches for it.
    fn commit(&self, sender: &mut Sender, qp: usize, last: WrId) {
        self.flights[qp].enter(&mut sender.staged, last);
        self.watch.posts();
        self.device.work_requests.fetch_add(sender.chains[qp].len() as u64, Ordering::Relaxed);
        let Sender { qps, chains, .. } = sender;
        // SAFETY: the local regions that the chain names were entered for their transfers. The transfers are not final
        // before their batches are settled: by a completion, or after the queue pair was destroyed. The scratch page
        // belongs to the device, which the endpoint holds.
        if let Err((_, error)) = unsafe { qps[qp].post(&mut chains[qp]) } {
            self.fail(format!("posting a chain failed: {}", reason(&error)));
        }
    }

    /// Marks the endpoint as broken and, the first time, asks the control loop to close it.
    pub fn fail(&self, why: String) {
        if !self.broken.swap(true, Ordering::AcqRel) {
            let why =
                self.why.get_or_init(|| format!("{} to {}: {why}", self.device.name(), self.remote.name));
            let loss =
                Loss::of(Cause::System, format!("RDMA lane {}, {why}", self.lane)).over(Transport::Rdma);
            self.commands.push(Command::LaneLost { peer: self.peer.handle, lane: self.lane, loss });
        }
    }

    /// Returns why the endpoint failed, if it did.
    pub fn why(&self) -> &str {
        self.why.get().map_or("the peer gave it up", String::as_str)
    }

    /// Posts nothing more, and makes the queue pairs flush.
    pub(super) fn stop_posting(&self) {
        self.broken.store(true, Ordering::Release);
        let mut sender = self.send.lock();
        sender.closing = true;
        for qp in &sender.qps {
            let _ = qp.to_error(); // destroyed in the end in any case
        }
    }

    /// Destroys the queue pairs with all posted work. Nothing of the endpoint moves at this end any more.
    pub(super) fn destroy_queue_pairs(&self) {
        self.send.lock().qps.clear();
    }

    /// Takes the endpoint out of its device's lists.
    pub(super) fn leave_device(&self) {
        self.device.forget(self.cookie, &self.qp_numbers, self);
    }

    /// Returns the sequence of the last batch. Once `is_past` returns true for it, none of these batches is in flight.
    pub fn mark(&self) -> u64 {
        self.send.lock().next_sequence
    }

    pub fn is_past(&self, mark: u64) -> bool {
        self.is_closed() || self.flights.iter().all(|flight| flight.is_past(mark))
    }

    /// Puts one queue pair into its error state, as a device may do at any time.
    #[cfg(test)]
    pub fn kill(&self, qp: usize) {
        if let Some(qp) = self.send.lock().qps.get(qp) {
            let _ = qp.to_error();
        }
    }

    /// Lets the device take as long to flush as the test wants.
    #[cfg(test)]
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::SeqCst);
    }

    /// Lets the endpoint count as broken or not.
    #[cfg(test)]
    pub fn set_broken(&self, broken: bool) {
        self.broken.store(broken, Ordering::SeqCst);
    }

    pub(super) fn is_held(&self) -> bool {
        #[cfg(test)]
        return self.held.load(Ordering::SeqCst);
        #[cfg(not(test))]
        false
    }

    /// True if the endpoint may be ended although it owes completions, because its time is over.
    pub(super) fn ends_late(&self, is_late: bool) -> bool {
        is_late && !self.is_held()
    }

    fn is_closed(&self) -> bool {
        self.send.lock().qps.is_empty()
    }

    pub fn carries(&self, transfer: TransferId) -> bool {
        self.unacknowledged.carries(transfer) || self.flights.iter().any(|flight| flight.carries(transfer))
    }
}
