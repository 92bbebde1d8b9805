//! Batches: numbers with room for a fixed number of tasks. Each task is a request of one of ferry's
//! transfers.
//!
//! ```text
//! submitTransfer  entries ─ sort ─▶ groups (one segment, one direction) ─▶ a transfer each
//! getTransferStatus  task ─▶ (transfer, position in it) ─▶ its outcome, kept once the transfer is final
//! ```
//! A failed submit leaves no task and moves nothing. A freed batch has no task in progress.

use crate::call::{lock, positive, value};
use crate::engine::Engine;
use crate::notices::encode;
use crate::pointers::{list, null, opened, reserve, Out};
use crate::types::*;
use ferry::status::Result;
use ferry::types::{Op, PeerId, RegionId, Request};
use ferry::{Error, Status, Transfer, TransferOptions, TransferResult};
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

/// The batches of one engine that are not freed.
const BATCHES_MAX: usize = 1 << 20;

/// The batches of one engine. Any thread may use them.
#[derive(Default)]
pub struct Batches(Mutex<Table>);

#[derive(Default)]
struct Table {
    all: HashMap<u64, Arc<Batch>>,
    /// The last number that was used.
    last: u64,
}

struct Batch {
    /// Largest number of tasks.
    size: usize,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks {
    /// In the order of submission.
    list: Vec<Task>,
    parts: Vec<Part>,
    /// The batch is freed; a thread that still has it may submit no more.
    freed: bool,
}

/// The place of a task's outcome.
struct Task {
    part: usize,
    index: usize,
}

/// One of ferry's transfers, for some tasks of a batch.
enum Part {
    UnderWay(Transfer),
    Final(Vec<TransferStatus>),
}

/// The entries for one segment in one direction.
struct Group {
    target: i32,
    op: Op,
    requests: Vec<Request>,
}

impl Batches {
    fn allocate(&self, size: usize) -> Result<u64> {
        let mut table = lock(&self.0);
        if table.all.len() >= BATCHES_MAX {
            return Err(Error::new(Status::Limit, format!("more than {BATCHES_MAX} batches are not freed")));
        }
        table.last += 1;
        let number = table.last;
        table.all.insert(number, Arc::new(Batch { size, tasks: Mutex::default() }));
        Ok(number)
    }

    fn get(&self, number: u64) -> Result<Arc<Batch>> {
        lock(&self.0).all.get(&number).cloned().ok_or_else(|| gone(number))
    }

    /// Frees a batch; BUSY while a task is not final.
    fn free(&self, number: u64) -> Result<()> {
        let batch = self.get(number)?;
        let mut tasks = lock(&batch.tasks);
        if tasks.parts.iter_mut().any(|part| part.outcomes().is_none()) {
            return Err(Error::new(Status::Busy, format!("batch {number} has tasks that are not final")));
        }
        tasks.freed = true;
        lock(&self.0).all.remove(&number).map(|_| ()).ok_or_else(|| gone(number))
    }

    fn submit(
        &self,
        engine: &Engine,
        number: u64,
        entries: &[TransferRequest],
        notice: Option<&[u8]>,
    ) -> Result<()> {
        let batch = self.get(number)?;
        let (mut placed, groups) = sort(entries)?;
        if notice.is_some() && groups.len() != 1 {
            return Err(Error::invalid(
                "entries: with a notice there must be at least one, and all must have one target_id and one opcode",
            ));
        }
        // Connecting may take long; the batch is not locked during that time.
        let peer = |group: &Group| engine.segments.peer(&engine.ferry, group.target);
        let peers = groups.iter().map(peer).collect::<Result<Vec<_>>>()?;
        let options =
            TransferOptions { notify: notice, transports_allowed: engine.transports(), ..Default::default() };
        let mut tasks = lock(&batch.tasks);
        if tasks.freed {
            return Err(gone(number));
        }
        if entries.len() > batch.size - tasks.list.len() {
            let (size, used) = (batch.size, tasks.list.len());
            let text = format!("batch {number} has room for {size} tasks and holds {used} already");
            return Err(Error::new(Status::Limit, text));
        }
        reserve(&mut tasks.list, placed.len())?;
        reserve(&mut tasks.parts, groups.len())?;
        let parts = start(&engine.ferry, &groups, &peers, &options)?;
        let before = tasks.parts.len();
        placed.iter_mut().for_each(|task| task.part += before);
        tasks.list.append(&mut placed);
        tasks.parts.extend(parts.into_iter().map(Part::UnderWay));
        Ok(())
    }

    fn status(&self, number: u64, task: usize) -> Result<TransferStatus> {
        let batch = self.get(number)?;
        let tasks = &mut *lock(&batch.tasks);
        let Some(&Task { part, index }) = tasks.list.get(task) else {
            let text = format!("task_id {task}: batch {number} has {} tasks", tasks.list.len());
            return Err(Error::invalid(text));
        };
        let waiting = TransferStatus { status: STATUS_WAITING, transferred_bytes: 0 };
        Ok(tasks.parts[part].outcomes().map_or(waiting, |outcomes| outcomes[index]))
    }
}

impl Part {
    /// Returns the status of each request, once all of them are final.
    fn outcomes(&mut self) -> Option<&[TransferStatus]> {
        if let Part::UnderWay(transfer) = self {
            let result = transfer.result()?;
            // Dropping the transfer makes ferry forget its results, so keep them here.
            *self = Part::Final(outcomes(transfer, &result));
        }
        match self {
            Part::UnderWay(_) => None,
            Part::Final(outcomes) => Some(outcomes),
        }
    }
}

fn outcomes(transfer: &Transfer, result: &TransferResult) -> Vec<TransferStatus> {
    let all = transfer.results().into_iter();
    all.map(|request| {
        // If all bytes have arrived but the notice has not, no task is done.
        let cause = if result.requests_failed == 0 { result.status } else { request.status };
        let status = match cause {
            Status::Ok => STATUS_COMPLETED,
            Status::Timeout => STATUS_TIMEOUT,
            Status::Cancelled => STATUS_CANCELED,
            _ => STATUS_FAILED,
        };
        TransferStatus { status, transferred_bytes: request.bytes_confirmed }
    })
    .collect()
}

fn gone(number: u64) -> Error {
    Error::invalid(format!("batch_id: there is no batch {number}"))
}

/// Sorts the entries by segment and direction; returns the groups, and each entry's place in them.
fn sort(entries: &[TransferRequest]) -> Result<(Vec<Task>, Vec<Group>)> {
    let mut tasks = Vec::new();
    reserve(&mut tasks, entries.len())?;
    let mut groups: Vec<Group> = Vec::new();
    let mut known = HashMap::new();
    for (index, entry) in entries.iter().enumerate() {
        let op = match entry.opcode {
            OPCODE_READ => Op::Read,
            OPCODE_WRITE => Op::Write,
            other => return Err(Error::invalid(format!("entries[{index}].opcode is {other}"))),
        };
        let part = *known.entry((entry.target_id, op)).or_insert_with(|| {
            groups.push(Group { target: entry.target_id, op, requests: Vec::new() });
            groups.len() - 1
        });
        let requests = &mut groups[part].requests;
        reserve(requests, 1)?;
        tasks.push(Task { part, index: requests.len() });
        requests.push(Request {
            local: entry.source as u64,
            remote: entry.target_offset,
            length: entry.length,
            // NONE means the region that is registered there now: the interface names memory by address alone.
            remote_region: RegionId::NONE,
        });
    }
    Ok((tasks, groups))
}

/// Starts all groups. If one is refused, the groups before it are cancelled and final when this returns.
fn start(
    engine: &ferry::Engine,
    groups: &[Group],
    peers: &[PeerId],
    options: &TransferOptions,
) -> Result<Vec<Transfer>> {
    let mut started = Vec::with_capacity(groups.len());
    for (group, peer) in groups.iter().zip(peers) {
        match engine.submit(*peer, group.op, &group.requests, options) {
            Ok(transfer) => started.push(transfer),
            Err(mut error) => {
                started.iter().for_each(|transfer: &Transfer| {
                    let _ = transfer.cancel();
                });
                for transfer in &started {
                    let _ = transfer.wait(None);
                }
                if groups.len() > 1 {
                    let (op, target) = (group.op, group.target);
                    error.message = format!("{op:?}s for segment {target}: {}", error.message);
                }
                return Err(error);
            }
        }
    }
    Ok(started)
}

/// Allocates a batch; INVALID_BATCH on failure.
#[no_mangle]
pub extern "C" fn allocateBatchID(engine: Option<&Engine>, batch_size: usize) -> u64 {
    value("allocateBatchID", INVALID_BATCH, || opened(engine)?.batches.allocate(batch_size))
}

#[no_mangle]
pub unsafe extern "C" fn submitTransfer(
    engine: Option<&Engine>,
    batch_id: u64,
    entries: *const TransferRequest,
    count: usize,
) -> c_int {
    positive("submitTransfer", || {
        let engine = opened(engine)?;
        // SAFETY: NULL or `count` entries, which the caller keeps for the length of the call.
        let entries = unsafe { list(entries, count, "entries") }?;
        engine.batches.submit(engine, batch_id, entries, None)
    })
}

/// Submits entries; the target gets the notice when the data has arrived.
#[no_mangle]
pub unsafe extern "C" fn submitTransferWithNotify(
    engine: Option<&Engine>,
    batch_id: u64,
    entries: *const TransferRequest,
    count: usize,
    notify_msg: NotifyMsg,
) -> c_int {
    positive("submitTransferWithNotify", || {
        let engine = opened(engine)?;
        // SAFETY: NULL or `count` entries, which the caller keeps for the length of the call.
        let entries = unsafe { list(entries, count, "entries") }?;
        // SAFETY: its strings are NULL or terminated, and the caller keeps them for the length of the call.
        let notice = unsafe { encode(&notify_msg) }?;
        engine.batches.submit(engine, batch_id, entries, Some(&notice))
    })
}

#[no_mangle]
pub extern "C" fn getTransferStatus(
    engine: Option<&Engine>,
    batch_id: u64,
    task_id: usize,
    status: Out<TransferStatus>,
) -> c_int {
    positive("getTransferStatus", || {
        // A caller that reads only `status` must not take a failed call for a finished task.
        let nothing = TransferStatus { status: STATUS_INVALID, transferred_bytes: 0 };
        let status = status.ok_or_else(|| null("status"))?.write(nothing);
        *status = opened(engine)?.batches.status(batch_id, task_id)?;
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn freeBatchID(engine: Option<&Engine>, batch_id: u64) -> c_int {
    positive("freeBatchID", || opened(engine)?.batches.free(batch_id))
}
