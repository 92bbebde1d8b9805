//! Submits transfers, waits for them, cancels them, reads their results and releases them.

use super::devices;
use super::paths::{add_far_regions, begin_facts, choose, gather};
use super::Engine;
use crate::complete::transfer::Strike;
use crate::complete::{
    Progress, RequestResult, State, Transfer as Core, TransferFlags, TransferResult, TransferSpec,
};
use crate::context::Context;
use crate::device::Start;
use crate::limits::NOTIFY_BYTES_MAX;
use crate::notify::{check_channel, Queue};
use crate::peer::Peer;
use crate::plan::blocks::{expand, BlockIds, Layer};
use crate::plan::{self, PlanInput};
use crate::region::enter_all;
use crate::route;
use crate::status::{Error, Result, Status};
use crate::sys::clock;
use crate::transport::local;
use crate::types::{MemoryKind, Monotonic, Op, PeerId, Request, TransferId, Transport};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The time that a transfer which is struck at its deadline has to become final, if its peer answers.
const STRIKE_GRACE: Duration = Duration::from_millis(50);

/// The time after which a transfer is struck if it is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Deadline {
    /// The engine's `deadline_ms`.
    #[default]
    Default,
    After(Duration),
    Never,
}

/// How a transfer is to run; the default is a plain transfer with the engine's deadline.
#[derive(Clone, Debug, Default)]
pub struct TransferOptions<'a> {
    /// Post each request as it is, in the caller's order.
    pub no_coalesce: bool,
    /// Nothing of this transfer is applied before earlier ORDERED transfers to the peer are done. If an earlier ORDERED
    /// transfer fails while this transfer waits, this transfer is CANCELLED and nothing is moved.
    pub ordered: bool,
    /// Verify the payload end to end; a mismatch is CORRUPT.
    pub checksum: bool,
    /// RDMA only: the transfer is done when the target's NIC has acknowledged it; the target's CPU may not see the
    /// bytes yet.
    pub acked_only: bool,
    /// The transfer is done when fdatasync has returned for the files that it has written: at the target for a WRITE,
    /// here for a READ. Changes nothing for other memory.
    pub durable: bool,
    pub deadline: Deadline,
    pub user_data: u64,
    /// Gets an event when the transfer is final.
    pub queue: Option<Arc<Queue>>,
    /// Delivered to the peer after the data is visible there.
    pub notify: Option<&'a [u8]>,
    /// The channel of the notification, below `limits::CHANNELS_MAX`.
    pub channel: u16,
    /// Mask of `Transport::bit`; 0 allows all transports that the engine's settings allow.
    pub transports_allowed: u64,
    /// Higher goes first among transfers of about the same size.
    pub priority: u32,
    /// Nothing is read or written before this point of the program's own work on devices of this kind.
    pub start: Option<(MemoryKind, Start)>,
    /// The caller waits at once, so no other thread needs to be woken for the completion.
    pub awaited: bool,
}

impl TransferOptions<'_> {
    /// Returns these options with `awaited` set.
    pub fn awaited(&self) -> Self {
        TransferOptions { awaited: true, ..self.clone() }
    }
}

impl Engine {
    /// Starts a transfer of all `requests`. On an error nothing was started. The arguments are not borrowed after the
    /// return, but the memory that the requests name belongs to the transfer until the transfer is final. A WRITE with
    /// a notification may have no requests: it sends the notification alone, without waiting as `notify` does.
    pub fn submit(
        &self,
        peer: PeerId,
        op: Op,
        requests: &[Request],
        options: &TransferOptions,
    ) -> Result<Transfer> {
        let core = self.submit_core(peer, op, requests, options)?;
        Ok(Transfer { engine: self.clone(), core })
    }

    /// Starts a transfer of paged memory. Each layer transfers the same pairs of blocks, which are given by their ids.
    pub fn submit_blocks(
        &self,
        peer: PeerId,
        op: Op,
        layers: &[Layer],
        local_ids: BlockIds,
        remote_ids: BlockIds,
        options: &TransferOptions,
    ) -> Result<Transfer> {
        let requests = expand(layers, local_ids, remote_ids)?;
        self.submit(peer, op, &requests, options)
    }

    /// Submits a WRITE and waits until the transfer is final. BUSY in a callback, and then nothing was started.
    pub fn write(
        &self,
        peer: PeerId,
        requests: &[Request],
        options: &TransferOptions,
    ) -> Result<TransferResult> {
        self.check_may_block()?;
        match self.at_once(peer, Op::Write, requests, options)? {
            Some(result) => Ok(result),
            None => self.submit(peer, Op::Write, requests, &options.awaited())?.wait_done(),
        }
    }

    /// Submits a READ and waits until the transfer is final. BUSY in a callback, and then nothing was started.
    pub fn read(
        &self,
        peer: PeerId,
        requests: &[Request],
        options: &TransferOptions,
    ) -> Result<TransferResult> {
        self.check_may_block()?;
        match self.at_once(peer, Op::Read, requests, options)? {
            Some(result) => Ok(result),
            None => self.submit(peer, Op::Read, requests, &options.awaited())?.wait_done(),
        }
    }

    /// Sends a notification without data, in order with the notifications of transfers, and waits until the peer has
    /// taken the notification in. TIMEOUT when the deadline has passed: a peer that does not answer may have taken it
    /// in, or may do so later.
    pub fn notify(&self, peer: PeerId, bytes: &[u8], deadline: Deadline) -> Result<()> {
        let options = TransferOptions { deadline, notify: Some(bytes), ..TransferOptions::default() };
        self.check_may_block()?;
        let core = self.submit_parts(peer, Op::Write, &[], &options)?;
        // No memory depends on the end of an outage, or of the lease, so nobody waits for that.
        let left = core.spec.deadline_ns.saturating_sub(clock::monotonic_ns());
        let patience = Duration::from_nanos(left).saturating_add(STRIKE_GRACE);
        let has_deadline = core.spec.deadline_ns != Monotonic::NEVER;
        let transfer = Transfer { engine: self.clone(), core };
        match transfer.wait(has_deadline.then_some(patience)) {
            Err(error) if error.status == Status::Timeout => Err(Error::new(
                Status::Timeout,
                "the deadline has passed; the peer may have taken the notification in, or may do so later",
            )),
            result => self.result_or_error(&transfer.core, result?).map(|_| ()),
        }
    }

    /// Submits for callers that manage handles themselves: the transfer stays in the engine's table until `release`.
    pub fn submit_core(
        &self,
        peer: PeerId,
        op: Op,
        requests: &[Request],
        options: &TransferOptions,
    ) -> Result<Arc<Core>> {
        if requests.is_empty() && !(op == Op::Write && options.notify.is_some()) {
            return Err(Error::invalid("requests: the list is empty, and there is no notification to send"));
        }
        self.submit_parts(peer, op, requests, options)
    }

    fn submit_parts(
        &self,
        peer: PeerId,
        op: Op,
        requests: &[Request],
        options: &TransferOptions,
    ) -> Result<Arc<Core>> {
        self.call("submitting a transfer", || self.submit_here(peer, op, requests, options))
    }

    fn submit_here(
        &self,
        peer: PeerId,
        op: Op,
        requests: &[Request],
        options: &TransferOptions,
    ) -> Result<Arc<Core>> {
        let context = self.context()?;
        let peer = context.peer(peer)?;
        check_options(options)?;
        let start = options.start.map(|(kind, at)| self.point(kind, at)).transpose()?;
        let spec = prepare(context, &peer, op, requests, options)?;
        if let Some(queue) = &options.queue {
            context.hub.check_own(queue)?;
            queue.reserve()?;
        }
        let core = submit_to(context, &peer, spec).inspect_err(|_| {
            if let Some(queue) = &options.queue {
                queue.unreserve();
            }
        })?;
        context.stats.submitted(core.spec.requests.len() as u64, core.spec.slices.len() as u64);
        if let Some((worker, point)) = start {
            devices::start_at(&worker, point, &peer, &core);
        }
        if self.context().is_err() {
            // `close` may have listed the transfers before this transfer was in the table.
            peer.strike(&core, Strike { status: Status::Closed, os_error: 0 });
        }
        Ok(core)
    }

    pub fn transfer(&self, handle: TransferId) -> Result<Arc<Core>> {
        self.inner.check_not_forked()?;
        self.inner.context.transfers.get(handle)
    }

    /// Asks a transfer to stop. The final state says whether the transfer was cancelled or ended otherwise.
    pub fn cancel(&self, core: &Arc<Core>) -> Result<()> {
        self.call("cancelling a transfer", || {
            let peer = self.context()?.peer(core.spec.peer)?;
            peer.strike(core, Strike { status: Status::Cancelled, os_error: libc::ECANCELED });
            Ok(())
        })
    }

    /// Removes a final transfer and its results from the table. BUSY before the transfer is final.
    pub fn release(&self, handle: TransferId) -> Result<()> {
        let core = self.transfer(handle)?;
        if !core.is_final() {
            return Err(Error::new(Status::Busy, "the transfer is not final; its results would be lost"));
        }
        self.inner.context.transfers.remove(handle).map(|_| ())
    }
}

/// Puts a transfer into the table and queues it.
pub(super) fn submit_to(context: &Context, peer: &Peer, spec: TransferSpec) -> Result<Arc<Core>> {
    let entered = enter_all(spec.regions.to_vec()).map_err(|region| {
        let text = format!("requests: local region {region:#x} is being unregistered");
        Error::new(Status::NotRegistered, text)
    })?;
    let is_part = spec.flags.has(TransferFlags::PART);
    let make = |handle| Arc::new(Core::new(handle, spec));
    let core = if is_part {
        // The transfer of which it is a part was accepted.
        context.transfers.insert_in_reserve(make)?
    } else {
        context.transfers.insert(make)?
    };
    if let Err(error) = peer.submit(core.clone()) {
        let _ = context.transfers.remove(core.handle);
        core.discard();
        return Err(error);
    }
    // From here on the transfer holds its regions, and leaves them when it is final.
    entered.hand_over();
    peer.check_at(core.spec.deadline_ns.min(core.spec.submitted_ns + context.progress_ns() / 4));
    Ok(core)
}

fn check_options(options: &TransferOptions) -> Result<()> {
    if options.notify.is_some_and(|bytes| bytes.len() > NOTIFY_BYTES_MAX) {
        let text = format!("options.notify_length is above {NOTIFY_BYTES_MAX}");
        return Err(Error::new(Status::Limit, text));
    }
    check_channel(options.channel, "options.channel")
}

/// Plans, routes and slices a transfer. This is the part of a submit that needs no lock.
pub(super) fn prepare(
    context: &Context,
    peer: &Peer,
    op: Op,
    requests: &[Request],
    options: &TransferOptions,
) -> Result<TransferSpec> {
    let (mut order, mut slices, mut regions, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut facts = begin_facts(context, peer, options);
    let (mut transport, mut has_unknown) = (Transport::Tcp, false);
    if !requests.is_empty() {
        let (local, remote) = (context.registry.snapshot(), peer.remote.snapshot());
        let plan = plan::plan(&PlanInput {
            op,
            requests,
            coalesce: !options.no_coalesce,
            local: &local,
            remote: &remote,
            remote_tag: peer.identity.tag,
        })?;
        facts = gather(peer, facts, &plan.ranges, &plan.local_regions, &remote);
        transport = choose(peer, &facts)?;
        let slice_bytes_max = peer.identity.frame_bytes_max.min(match transport {
            Transport::Local => local::PIECE_BYTES,
            _ => u32::MAX,
        });
        slices = route::slice(&plan.ranges, &plan.order, requests, slice_bytes_max)?;
        (order, regions, bytes, has_unknown) = (plan.order, plan.local_regions, plan.bytes, plan.has_unknown);
        if peer.is_own() {
            add_far_regions(&local, &plan.ranges, &mut regions);
        }
    }
    let deadline = match options.deadline {
        Deadline::Never => None,
        Deadline::After(after) => Some(after.as_nanos().min(u64::MAX as u128) as u64),
        Deadline::Default => Some(context.config.deadline_ms * 1_000_000).filter(|ns| *ns > 0),
    };
    let submitted_ns = clock::monotonic_ns();
    let mut copied = Vec::new();
    copied
        .try_reserve_exact(requests.len())
        .map_err(|_| Error::new(Status::NoMemory, "requests: no memory for a copy of the list"))?;
    copied.extend_from_slice(requests);
    Ok(TransferSpec {
        peer: peer.handle,
        op,
        requests: copied.into_boxed_slice(),
        order,
        slices,
        regions,
        bytes,
        flags: TransferFlags::CHECKSUM.when(facts.asked.checksum)
            | TransferFlags::ACKED_ONLY.when(options.acked_only)
            | TransferFlags::DURABLE.when(options.durable)
            | TransferFlags::AWAITED.when(options.awaited)
            | TransferFlags::HELD.when(options.start.is_some())
            | TransferFlags::ORDERED.when(options.ordered)
            | TransferFlags::DEVICE.when(facts.memory.has_device())
            | TransferFlags::UNKNOWN.when(has_unknown),
        priority: options.priority,
        notify: options.notify.map(Box::from),
        channel: options.channel,
        submitted_ns,
        deadline_ns: deadline.map_or(Monotonic::NEVER, |ns| submitted_ns.saturating_add(ns)),
        user_data: options.user_data,
        queue: options.queue.clone(),
        transport,
        allowed: facts.asked.allowed,
    })
}

/// A transfer of this engine. Dropping this does not stop the transfer, which is forgotten once it is final.
pub struct Transfer {
    pub(super) engine: Engine,
    pub(super) core: Arc<Core>,
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("core", &self.core).finish_non_exhaustive()
    }
}

impl Transfer {
    pub fn handle(&self) -> TransferId {
        self.core.handle
    }

    pub fn state(&self) -> State {
        self.engine.poll(&self.core);
        self.core.state()
    }

    /// Returns the result; None before the transfer is final.
    pub fn result(&self) -> Option<TransferResult> {
        self.engine.poll(&self.core);
        self.core.result()
    }

    /// Returns how many bytes are confirmed. The count grows in steps of at most 2 MiB.
    pub fn progress(&self) -> Progress {
        self.engine.poll(&self.core);
        self.core.progress()
    }

    /// Waits until the transfer is final, in any state. TIMEOUT if the transfer is not final in time; it continues.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<TransferResult> {
        self.engine.wait(&self.core, timeout)
    }

    /// Waits until the transfer is final. Returns an error unless the transfer is DONE.
    pub fn wait_done(self) -> Result<TransferResult> {
        let result = self.wait(None)?;
        self.engine.result_or_error(&self.core, result)
    }

    /// Waits until every transfer of the list, all of one engine, is final. Returns an error unless each is DONE: that
    /// of the first that is not. TIMEOUT also if one is not final in time; all continue. INVALID for an empty list.
    pub fn wait_all(transfers: &[Transfer], timeout: Option<Duration>) -> Result<()> {
        let cores: Vec<_> = transfers.iter().map(|transfer| transfer.core.clone()).collect();
        let engine = &transfers.first().ok_or_else(|| Error::invalid("transfers: the list is empty"))?.engine;
        match engine.wait_all(&cores, timeout)? {
            None => Ok(()),
            Some(index) => engine.result_or_error(&cores[index], transfers[index].wait(None)?).map(|_| ()),
        }
    }

    pub fn cancel(&self) -> Result<()> {
        self.engine.cancel(&self.core)
    }

    /// Returns the result of each request.
    pub fn results(&self) -> Vec<RequestResult> {
        self.core.results()
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.engine.is_forked() {
            return;
        }
        let context = &self.engine.inner.context;
        // A final transfer is removed here; another is removed by the thread that makes it final. A broken engine keeps
        // the transfer in its table until the engine is dropped.
        let _ = context.health().call("releasing a transfer", || {
            if self.core.orphan() {
                let _ = context.transfers.remove(self.core.handle);
            }
            Ok(())
        });
    }
}
