//! The initiator's steps.
//!
//! ```text
//! WRITE  GRANT? ─▶ SLOT? ─▶ COPY? ─▶ MOVE ─▶ ANSWER?       ?: only with a device on that side
//! READ   ANSWER? ─▶ SLOT? ─▶ MOVE ─▶ COPY?
//! both   REACH ─▶ COPY                                     if the device reaches both memories (`mapped`)
//! WRITE  REACH ─▶ COPY ─▶ MOVE ─▶ ANSWER                   if devices of two hosts reach each other (`bridge`)
//! READ   REACH ─▶ ANSWER ─▶ MOVE ─▶ COPY
//! ```
//! Contract 2: a run settles its slices once, when nothing of it can touch memory any more: confirmed, refused, or
//! given up because its transfer was struck. In ANSWER the target acts alone, so it may do so for a lease only.

use super::event::{waker, Event};
use super::operation::{Method, Operation, OperationStep};
use super::ring::StagingSlot;
use super::service::{cause, Stage, StagedPart};
use super::wire::{Fault, Message};
use crate::complete::transfer::{Failure, Strike};
use crate::complete::{Fence, RequestResult, State, TransferFlags};
use crate::device::{Direction, Job, Piece, PieceFault};
use crate::status::{Error, Result, Status};
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::types::{Boottime, Location, Monotonic, Op, OperationId, PeerId, RegionId, TransferId};

/// The pause before the next try when the peer's clock is not known precisely enough.
const CLOCK_PAUSE_NS: u64 = 2_000_000;
/// The pause between two checks that a peer which has granted no slot yet is still there.
const LOOK_NS: u64 = 1_000_000_000;
/// The number of times that a run begins again after the target forgot it.
const RESTARTS_MAX: u32 = 3;

/// Pieces to copy, by device, and the slice of each, if pieces may fail alone.
pub type Batches = Vec<(Location, Vec<Piece>, Vec<u32>)>;

pub fn add(batches: &mut Batches, at: Location, slice: u32, piece: Piece) {
    match batches.iter_mut().find(|(location, ..)| *location == at) {
        Some((_, pieces, slices)) => {
            pieces.push(piece);
            slices.push(slice);
        }
        None => batches.push((at, vec![piece], vec![slice])),
    }
}

impl Stage {
    pub fn begin(&mut self, peer: PeerId, op: OperationId) {
        let Some(operation) = self.operations.get_mut(peer, op) else { return };
        match operation.method {
            Method::Mapped(_) => return self.reach(peer, op),
            Method::Bridged(_) => return self.cross(peer, op),
            Method::Hosts => {}
        }
        match (operation.remote_device, operation.op()) {
            (true, Op::Write) => {
                operation.step = OperationStep::Grant;
                operation.ask_again_ns = clock::monotonic_ns() + LOOK_NS;
                self.send(peer, Message::Want { op });
                self.operations.plan(peer, op);
            }
            (true, Op::Read) => self.ask(peer, op),
            (false, _) => self.find_slot(peer, op),
        }
    }

    /// Asks a silent peer that owes a slot whether it is there: nothing is posted that would show that its host has
    /// crashed.
    pub fn look_after(&mut self, peer: PeerId, op: OperationId, now_ns: Monotonic) {
        let Some(side) = self.sides.get(&peer) else { return };
        side.peer.ask_if_silent();
        if let Some(operation) = self.operations.get_mut(peer, op) {
            operation.ask_again_ns = now_ns + LOOK_NS;
        }
        self.operations.plan(peer, op);
    }

    /// Waits for a slot here if a device takes part here; otherwise starts the move.
    fn find_slot(&mut self, peer: PeerId, op: OperationId) {
        let Some(operation) = self.operations.get_mut(peer, op) else { return };
        if !operation.local_device {
            return self.move_part(peer, op);
        }
        operation.step = OperationStep::Slot;
        self.outgoing.wait(peer, op);
        self.give_out_slots();
    }

    fn give_out_slots(&mut self) {
        let waits = |operation: &Operation| operation.step == OperationStep::Slot;
        while let Some(((peer, op), taken)) =
            self.outgoing.serve(|peer, op| self.operations.get(peer, op).is_some_and(waits))
        {
            let Some(operation) = self.operations.get_mut(peer, op) else { continue };
            match taken {
                Ok((slot, _)) => {
                    operation.slot = Some(slot);
                    match operation.op() {
                        Op::Write => self.copy(peer, op),
                        Op::Read => self.move_part(peer, op),
                    }
                }
                Err(error) => self.fail(peer, op, &error),
            }
        }
    }

    /// Copies between the slot and the devices here, in one batch for each device.
    pub fn copy(&mut self, peer: PeerId, op: OperationId) {
        let started = self.try_copy(peer, op);
        self.note_start(peer, op, started);
    }

    pub fn note_start(&mut self, peer: PeerId, op: OperationId, started: Result<()>) {
        if let Err(error) = started {
            // Copies that were started report their end; the last of them ends the operation.
            match self.operations.get_mut(peer, op) {
                Some(operation) if operation.copying > 0 => operation.fail(cause(&error)),
                _ => self.fail(peer, op, &error),
            }
        }
    }

    fn try_copy(&mut self, peer: PeerId, op: OperationId) -> Result<()> {
        let Some(operation) = self.operations.get_mut(peer, op) else { return Ok(()) };
        let local = self.registry.snapshot();
        let slot_at = operation.slot_address();
        let write = operation.op() == Op::Write;
        let mut batches = Batches::new();
        for (index, (slice, offset)) in operation.good_indexes().into_iter().zip(operation.good()) {
            let (here, slot, length) = (slice.local, slot_at + offset, u64::from(slice.length));
            let region = local.find(here, length);
            let at = region.map_or(Location::HOST, |region| region.location);
            let (to, from) = if write { (slot, here) } else { (here, slot) };
            add(&mut batches, at, index, Piece { to, from, length });
        }
        let direction = match operation.method {
            Method::Bridged(_) => Direction::DeviceToDevice,
            _ if write => Direction::DeviceToHost,
            _ => Direction::HostToDevice,
        };
        self.start_copies(peer, op, direction, batches)
    }

    pub fn start_copies(
        &mut self,
        peer: PeerId,
        op: OperationId,
        direction: Direction,
        batches: Batches,
    ) -> Result<()> {
        let Some(operation) = self.operations.get_mut(peer, op) else { return Ok(()) };
        operation.step = OperationStep::Copy;
        let durable = operation.is_durable() && direction == Direction::HostToDevice;
        // Between devices all slices fail together: the target may copy the whole slot of a bridge.
        let alone = operation.method == Method::Hosts;
        for (at, pieces, slices) in batches {
            if let Some(slot) = &mut operation.slot {
                self.outgoing.lock(slot, at.kind)?;
            }
            let worker = self.drivers.worker(at)?;
            operation.copying += 1;
            let inbox = self.inbox.clone();
            let done = Box::new(move |result: Result<Vec<PieceFault>>| {
                let failed = |slice: u32, error: &Error| Failure { slice, ..cause(error) };
                let result = match result {
                    Ok(faults) => Ok(faults.iter().map(|it| failed(slices[it.piece], &it.error)).collect()),
                    Err(error) if alone => Ok(slices.iter().map(|slice| failed(*slice, &error)).collect()),
                    Err(error) => Err(error),
                };
                inbox.push(Event::Copied { peer, op, result })
            });
            worker.copy(Job { direction, pieces, not_after_ns: Boottime::NEVER, durable, done });
        }
        Ok(())
    }

    pub fn copied(&mut self, peer: PeerId, op: OperationId, result: Result<Vec<Failure>>) {
        let Some(operation) = self.operations.get_mut(peer, op) else { return };
        operation.copying -= 1;
        match result {
            Ok(failed) => operation.add_failures(failed),
            Err(error) => operation.fail(cause(&error)),
        }
        if operation.copying > 0 {
            return;
        }
        let to_be_moved = !operation.has_failed() && !operation.is_struck();
        match operation.op() {
            _ if matches!(operation.method, Method::Mapped(_)) => self.copied_over(peer, op),
            Op::Write if to_be_moved && operation.bridge_slot.is_some() => self.carry(peer, op),
            Op::Write if to_be_moved && operation.remote_device && !operation.failures.is_empty() => {
                self.part_with_failed(peer, op)
            }
            Op::Write if to_be_moved => self.move_part(peer, op),
            Op::Write if operation.is_struck() => self.finish(peer, op, Some(Fence::Confirmed)),
            _ => self.finish(peer, op, None),
        }
    }

    /// Submits a part between the two sides' host memories, on any path.
    fn move_part(&mut self, peer: PeerId, op: OperationId) {
        let Some(side) = self.sides.get(&peer) else { return };
        let Some(operation) = self.operations.get_mut(peer, op) else { return };
        operation.step = OperationStep::Move;
        let spec = &operation.transfer.spec;
        let submitted = self.mover.submit(
            &side.peer,
            StagedPart {
                op: spec.op,
                requests: &operation.requests(),
                allowed: spec.allowed,
                priority: spec.priority,
                checksum: spec.flags.has(TransferFlags::CHECKSUM),
            },
        );
        match submitted {
            Err(error) => {
                operation.part_failed = true;
                if !self.split_again(peer, op) {
                    self.fail(peer, op, &error);
                }
            }
            Ok(part) => {
                operation.part = Some(part.clone());
                side.peer.attend(&part);
                self.moved(peer, op);
            }
        }
    }

    pub fn moved(&mut self, peer: PeerId, op: OperationId) {
        let Some(part) =
            self.operations.at(peer, op, OperationStep::Move).and_then(|operation| operation.part.clone())
        else {
            return;
        };
        if !part.is_final() {
            part.waiter.register_own(&waker(&self.inbox, move || Event::Moved { peer, op }));
        }
        let Some(operation) = self.operations.at(peer, op, OperationStep::Move).filter(|_| part.is_final())
        else {
            return;
        };
        operation.part = None;
        let Some(result) = part.result() else { return };
        operation.transfer.report_transport(result.transport);
        // Contract 4: a DONE part may have been sent again behind a lease, and may land once more.
        operation.transfer.fenced(result.fence);
        let struck = operation.is_struck();
        let mut stale = false;
        if result.state != State::Done {
            operation.part_failed = true;
            let whole = operation.slot.is_some() && operation.remote.is_some();
            let results = part.results();
            stale = operation.remote.is_some() && results.iter().any(|it| it.status == Status::Stale);
            let good = operation.good_indexes();
            for (at, result) in results.iter().enumerate().filter(|(_, it)| it.status != Status::Ok) {
                let RequestResult { status, os_error, vendor_error, .. } = *result;
                let failure = Failure { slice: good[at], status, os_error, vendor_error };
                if whole {
                    operation.fail(failure);
                } else {
                    operation.failures.push(failure);
                }
            }
        }
        self.mover.forget(&part);
        let Some(operation) = self.operations.get_mut(peer, op) else { return };
        match (struck, operation.op()) {
            (true, _) => self.finish(peer, op, Some(result.fence)),
            // The target has given its slot to another operation.
            (false, _) if stale => self.begin_again(peer, op),
            (false, Op::Write) if operation.remote_device && !operation.has_failed() => {
                let slot = operation.slot.take();
                self.give_back(slot);
                self.ask(peer, op);
            }
            (false, Op::Read) if operation.local_device && !operation.has_failed() => {
                if operation.remote.take().is_some() {
                    self.send(peer, Message::Release { op });
                }
                self.copy(peer, op);
            }
            _ => self.finish(peer, op, None),
        }
    }

    /// Asks the target to copy, or asks again to extend the time.
    pub fn ask(&mut self, peer: PeerId, op: OperationId) {
        self.try_ask(peer, op);
        self.operations.plan(peer, op);
    }

    fn try_ask(&mut self, peer: PeerId, op: OperationId) {
        let Some(side) = self.sides.get(&peer) else { return };
        let Some(operation) = self.operations.get_mut(peer, op) else { return };
        operation.step = OperationStep::Answer;
        if !side.is_connected() {
            operation.ask_again_ns = Monotonic::NEVER;
            return;
        }
        let not_after_ns = side.peer.clock.not_after(clock::boottime_ns());
        // Read after the lease's clock: a thread that stands still in between waits too long, never too short.
        let (now_ns, lease_ns) = (clock::monotonic_ns(), side.peer.clock.lease_ns());
        let Some(not_after_ns) = not_after_ns else {
            operation.ask_again_ns = now_ns + CLOCK_PAUSE_NS;
            return side.peer.ask();
        };
        // This engine's own devices are asked until they have ended, however long that takes.
        operation.lend_until(if side.peer.is_own() { Monotonic::NEVER } else { now_ns + lease_ns });
        operation.ask_again_ns = now_ns + lease_ns / 2;
        let blocks = operation.blocks(not_after_ns);
        let message = match operation.op() {
            Op::Write => Message::Commit { op, blocks },
            Op::Read => Message::Fetch { op, blocks },
        };
        self.send(peer, message);
    }

    /// Repeats, on a new connection, the messages that the target may not have received.
    pub fn repeat_messages(&mut self, peer: PeerId, op: OperationId) {
        match self.operations.get_mut(peer, op).map(|operation| (operation.step, operation.is_struck())) {
            Some((OperationStep::Reach, _)) => self.begin(peer, op),
            Some((OperationStep::Grant, _)) => self.send(peer, Message::Want { op }),
            Some((OperationStep::Answer, false)) => self.ask(peer, op),
            Some((OperationStep::Answer, true)) => self.stop(peer, op),
            _ => {}
        }
    }

    pub fn granted(&mut self, peer: PeerId, op: OperationId, slot: (RegionId, u64)) {
        match self.operations.get_mut(peer, op) {
            Some(operation) if operation.step == OperationStep::Grant && operation.op() == Op::Write => {
                operation.remote = Some(slot);
                self.find_slot(peer, op);
            }
            Some(_) => {}
            None => self.send(peer, Message::Release { op }),
        }
    }

    pub fn ready(&mut self, peer: PeerId, op: OperationId, slot: (RegionId, u64), faults: &[Fault]) {
        let Some(operation) = self.operations.get_mut(peer, op) else {
            return self.send(peer, Message::Release { op });
        };
        if operation.step != OperationStep::Answer || operation.op() != Op::Read {
            return;
        }
        operation.take_faults(faults);
        let bridged = operation.bridge_slot.is_some();
        operation.remote = (!bridged).then_some(slot);
        let struck = operation.is_struck().then_some(Fence::Confirmed);
        if struck.is_some() || operation.has_failed() {
            self.finish(peer, op, struck)
        } else if bridged {
            self.carry(peer, op)
        } else {
            self.find_slot(peer, op)
        }
    }

    /// Handles DONE. For a WRITE at ANSWER: the data is in the blocks. Otherwise: the target could not begin.
    pub fn done(&mut self, peer: PeerId, op: OperationId, faults: &[Fault]) {
        let Some(operation) = self.operations.get_mut(peer, op) else {
            return self.send(peer, Message::Release { op });
        };
        if !matches!(operation.step, OperationStep::Answer | OperationStep::Grant) {
            return;
        }
        operation.take_faults(faults);
        if operation.step == OperationStep::Grant || operation.op() == Op::Read {
            let told = faults.first().map(|fault| fault.at(0));
            operation.fail(told.unwrap_or_else(|| cause(&Error::new(Status::Unavailable, ""))));
        }
        self.finish(peer, op, None);
    }

    pub fn unknown(&mut self, peer: PeerId, op: OperationId) {
        match self.operations.at(peer, op, OperationStep::Answer).map(|operation| operation.is_struck()) {
            Some(true) => self.finish(peer, op, Some(Fence::Confirmed)),
            Some(false) => {
                self.retire_bridge(peer, op);
                self.begin_again(peer, op);
            }
            None => {}
        }
    }

    /// Handles BUSY: copies are queued or run at the target.
    pub fn busy(&mut self, peer: PeerId, op: OperationId, timeout_ms: u64) {
        if let Some(operation) = self.operations.at(peer, op, OperationStep::Answer) {
            operation.await_copies(timeout_ms);
        }
    }

    /// Asks the target to begin nothing more of a struck operation, and to report what still runs.
    pub fn stop(&mut self, peer: PeerId, op: OperationId) {
        let Some(lease_ns) = self.sides.get(&peer).map(|side| side.peer.clock.lease_ns()) else { return };
        if let Some(operation) = self.operations.at(peer, op, OperationStep::Answer) {
            operation.ask_again_ns = clock::monotonic_ns() + lease_ns / 4;
            self.send(peer, Message::Stop { op });
        }
        self.operations.plan(peer, op);
    }

    fn begin_again(&mut self, peer: PeerId, op: OperationId) {
        let Some(operation) = self.operations.get_mut(peer, op) else { return };
        operation.restarts += 1;
        let again = operation.restarts <= RESTARTS_MAX && !operation.is_struck();
        let slot = operation.slot.take();
        self.give_back(slot);
        if !again {
            let error = Error::new(Status::PeerLost, "the peer forgot the operation under way");
            return self.fail(peer, op, &error);
        }
        self.send(peer, Message::Release { op });
        let Some(mut operation) = self.operations.take(peer, op) else { return };
        operation.reset();
        let renewed = self.operations.add(peer, operation);
        self.begin(peer, renewed);
    }

    /// Handles a struck transfer: gives up steps that have not begun; steps under way end soon.
    pub fn struck(&mut self, peer: PeerId, transfer: TransferId) {
        let ours = |it: &Operation| it.transfer.handle == transfer && it.is_struck();
        for op in self.operations.of(peer, ours) {
            let Some(operation) = self.operations.get_mut(peer, op) else { continue };
            match operation.step {
                OperationStep::Reach | OperationStep::Grant | OperationStep::Slot => {
                    self.finish(peer, op, Some(Fence::Confirmed))
                }
                // Without a part the bridge carries the data. Its slot stays taken until the devices have finished.
                OperationStep::Move if operation.part.is_none() => {
                    self.finish(peer, op, Some(Fence::Confirmed))
                }
                OperationStep::Move => {
                    if let (Some(part), Some(side)) = (&operation.part, self.sides.get(&peer)) {
                        side.peer.strike(part, Strike { status: Status::Cancelled, os_error: 0 });
                    }
                }
                OperationStep::Answer => self.stop(peer, op),
                // Copies end without help.
                OperationStep::Copy => {}
            }
        }
    }

    fn fail(&mut self, peer: PeerId, op: OperationId, error: &Error) {
        if let Some(operation) = self.operations.get_mut(peer, op) {
            operation.fail(cause(error));
        }
        self.finish(peer, op, None);
    }

    pub fn give_back(&mut self, slot: Option<StagingSlot>) {
        if let Some(slot) = slot {
            self.outgoing.give(slot);
            self.give_out_slots();
        }
    }

    /// Ends an operation that cannot touch memory any more. `given_up`: the transfer was struck, and this fence proves
    /// that the memory is the caller's again.
    pub fn finish(&mut self, peer: PeerId, op: OperationId, given_up: Option<Fence>) {
        let Some(object) = self.sides.get(&peer).map(|side| side.peer.clone()) else { return };
        let Some(mut operation) = self.operations.take(peer, op) else { return };
        self.due.end(peer);
        if operation.remote_device && !matches!(operation.method, Method::Mapped(_)) {
            self.send(peer, Message::Release { op });
        }
        let slot = operation.slot.take();
        self.give_back(slot);
        if operation.method != Method::Hosts && given_up.is_none() {
            let bytes = operation.good().map(|(slice, _)| u64::from(slice.length)).sum();
            object.engine().stats.bytes_device.fetch_add(bytes, Ordering::Relaxed);
        }
        // A failed part says something about the peer's memory; a failed copy of this side does not.
        let doubtful = operation.part_failed && !operation.remote_device;
        let Operation { transfer, range, mut failures, bridge_slot, .. } = operation;
        match given_up {
            Some(fence) => object.abandon(&transfer, range.count(), fence, &mut object.after()),
            None => {
                failures.sort_unstable_by_key(|failure| failure.slice);
                let slices = range.of(&transfer.spec.slices);
                let bytes = slices.iter().map(|slice| u64::from(slice.length)).sum();
                if doubtful {
                    object.answered(&transfer, range, bytes, &failures, false, &mut object.after())
                } else {
                    object.confirm(&transfer, range, bytes, &failures, false, &mut object.after())
                }
            }
        }
        if bridge_slot.is_some() {
            drop(bridge_slot);
            self.check_waiting(peer);
        }
    }
}
