//! Checks what an application is told: ends of transfers and calls, events, lost peers.

use crate::ledger::{Kind, Ledger, LifeId, Phase, TransferId, View};
use ferry::notify::EventBody;
use ferry::status::{Error, Status};
use ferry::types::Op;
use ferry::{Notification, RequestResult, State, TransferResult};
use ferry_sim_kernel::device::Failure;
use ferry_sim_kernel::{clock::virtual_ns, trace};

/// As errno.
const EFAULT: i32 = 14;

impl Ledger {
    /// The application sees the end of a transfer.
    pub fn conclude(&mut self, id: TransferId, result: TransferResult, requests: &[RequestResult]) {
        trace::event("seen", &[id as u64, result.state as u64], || {
            format!("{} ends {result:?}", self.told(id))
        });
        self.transfers[id].phase = Phase::Seen;
        self.transfers[id].result = Some(result.clone());
        let wrong = self.wrong_end(id, &result, requests);
        if let Some(wrong) = wrong {
            self.fail(format!("{} ends {result:?}: {wrong}", self.told(id)));
        }
        if let Some(note) = self.transfers[id].wish.note {
            self.note_ended(note, result.notification);
        }
        self.judge_suspects(id);
        self.check_guards(id);
        self.release(id, false);
    }

    fn wrong_end(
        &self,
        id: TransferId,
        result: &TransferResult,
        requests: &[RequestResult],
    ) -> Option<String> {
        let transfer = &self.transfers[id];
        let wish = &transfer.wish;
        let is_done = result.state == State::Done;
        if is_done != (result.status == Status::Ok) || !result.state.is_final() {
            return Some("state and status disagree".into());
        }
        if result.user_data != id as u64 {
            return Some("its user data are another's".into());
        }
        if is_done && wish.kind != Kind::Good {
            return Some("it should have been refused".into());
        }
        let bytes: u64 = transfer.pieces.iter().map(|piece| piece.length).sum();
        if is_done && (result.bytes_confirmed != bytes || result.requests_failed != 0) {
            return Some("not all of it is confirmed".into());
        }
        let note = result.notification;
        if wish.note.is_none() != (note == Notification::None) {
            return Some("it has a notification that it had not, or none".into());
        }
        if is_done && wish.note.is_some() && note != Notification::Delivered {
            return Some("DONE without its notification".into());
        }
        if let Some(wrong) = self.wrong_status(id, result.state, result.status) {
            return Some(wrong);
        }
        if requests.len() != transfer.pieces.len() {
            return Some(format!("it has results of {} requests", requests.len()));
        }
        for (nth, request) in requests.iter().enumerate() {
            let whole = request.status == Status::Ok;
            // Only a device's copy or a missing page may give SYSTEM: other kernel calls fail only if the peer is gone.
            let of_device = request.vendor_error == Failure::Copy.code() && self.has_devices(id);
            let of_page = request.os_error == EFAULT && self.has_missed_pages();
            let is_system = request.status == Status::System;
            if (is_system && !of_device && !of_page)
                || whole != (request.bytes_confirmed == transfer.pieces[nth].length)
            {
                return Some(format!("the result of request {nth} is {request:?}"));
            }
            // A transfer of which a part fails is PARTIAL, so each request must have its own cause.
            let causeless = matches!(
                request.status,
                Status::Invalid | Status::Overlap | Status::Panic | Status::Pending | Status::Draining
            );
            if causeless || request.status == Status::Access && wish.kind == Kind::Good {
                return Some(format!("the result of request {nth} has no cause: {request:?}"));
            }
            if let Some(wrong) = self.wrong_data(id, nth).filter(|_| whole) {
                return Some(wrong);
            }
        }
        None
    }

    /// Returns why a status has no cause.
    fn wrong_status(&self, id: TransferId, state: State, status: Status) -> Option<String> {
        let transfer = &self.transfers[id];
        let caused = match status {
            Status::Timeout => state == State::TimedOut && transfer.wish.deadline_ns.is_some(),
            Status::Cancelled => {
                state == State::Cancelled && (transfer.struck_ns.is_some() || transfer.wish.ordered)
            }
            Status::Corrupt => self.is_altered,
            // The requests tell whether a device's copy failed.
            Status::System => self.has_devices(id) || self.has_missed_pages(),
            Status::Panic | Status::Invalid | Status::Pending | Status::Draining => false,
            _ => true,
        };
        (!caused).then(|| "its status has no cause".into())
    }

    /// A call without a handle has ended.
    pub fn concluded_at_once(&mut self, id: TransferId, result: Result<TransferResult, Error>) {
        match result {
            Ok(result) => {
                let requests: Vec<RequestResult> = (0..self.transfers[id].pieces.len())
                    .map(|nth| RequestResult {
                        index: nth as u64,
                        status: Status::Ok,
                        transport: result.transport,
                        bytes_confirmed: self.transfers[id].pieces[nth].length,
                        os_error: 0,
                        vendor_error: 0,
                    })
                    .collect();
                self.conclude(id, result, &requests);
            }
            Err(error) => {
                trace::event("failed", &[id as u64], || format!("{} fails: {error}", self.told(id)));
                self.check_call("a transfer", &error);
                self.transfers[id].phase = Phase::Seen;
                self.transfers[id].is_over = true;
                self.check_guards(id);
                self.release(id, false);
            }
        }
    }

    /// An event of a transfer was drained.
    pub fn ended_by_event(&mut self, at: LifeId, user_data: u64, status: Status) {
        let id = user_data as TransferId;
        let Some(transfer) = self.transfers.get_mut(id) else {
            return self.fail(format!("an event of no transfer: {user_data}"));
        };
        transfer.events += 1;
        let result = transfer.result.as_ref().map(|result| result.status);
        if transfer.events > 1 || transfer.wish.from != at || !transfer.wish.queued {
            let text = format!("{} has an event too many: {}", self.told(id), status);
            return self.fail(text);
        }
        if result.is_some_and(|result| result != status) {
            self.fail(format!("{} has an event of {status}", self.told(id)));
        }
    }

    /// No call may break an engine.
    pub fn check_call(&mut self, what: &str, error: &Error) {
        let breaks = match error.status {
            Status::Panic | Status::Invalid | Status::Overlap => true,
            // The first bytes of a handshake are not sealed yet, so a network that alters them can alter the version.
            Status::Version => !self.is_altered,
            _ => false,
        };
        if breaks {
            self.fail(format!("{what} failed: {error}"));
        }
    }

    /// An event about a peer was drained, at this tick. `is_only` says that no other session with that peer's engine
    /// stands, and that no thread connects to it.
    pub fn heard(
        &mut self,
        (at, drained): (LifeId, u64),
        peer: u64,
        of: Option<LifeId>,
        is_only: bool,
        body: &EventBody,
    ) {
        // A closed engine no longer says who a peer is: the range of a late write tells its transfer.
        let of = of.or_else(|| self.initiator_of(at, body));
        let Some(other) = of else { return };
        match body {
            EventBody::PeerUp { again: false } => {
                self.lives[at].up_ns.insert(peer, virtual_ns());
                self.lives[at].handles.insert(peer, other);
                self.view(at, other, View::Up);
            }
            EventBody::PeerLost { status, why, .. } => {
                trace::event("lost", &[at as u64, other as u64], || {
                    format!("{} has lost {}: {status}, {why}", self.named(at), self.named(other))
                });
                self.part(at, other);
                if self.life_of(self.lives[other].slot) == Some(other) || !self.lives[other].is_alive {
                    self.view(at, other, View::Lost);
                }
                if is_only {
                    self.cut_between(other, at, drained, "PEER_LOST was delivered");
                }
                self.cut_own(at, peer);
            }
            EventBody::PeerDown { .. } | EventBody::PeerUp { again: true } => {
                let life = &mut self.lives[at];
                match body {
                    EventBody::PeerUp { .. } => life.up_ns.insert(peer, virtual_ns()),
                    _ => life.up_ns.remove(&peer),
                };
                if !life.handles.contains_key(&peer) || life.lost.contains(&peer) {
                    let (at, other) = (self.named(at), self.named(other));
                    self.fail(format!("{at} is told {body:?} of {other}, which is not up or lost already"));
                }
            }
            EventBody::LateApply { .. } => {
                trace::event("late", &[at as u64, other as u64], || {
                    format!("{} is told of a late write of {}", self.named(at), self.named(other))
                });
                let late = self.lates.iter_mut().filter(|late| (late.to, late.from) == (at, other));
                late.for_each(|late| late.is_told = true);
                self.told_ns.insert((at, other), virtual_ns());
            }
            _ => {}
        }
    }

    /// Returns the initiator of the late write that an event reports. An event that waited in its queue may cover
    /// several writes and the bytes between them.
    fn initiator_of(&self, at: LifeId, body: &EventBody) -> Option<LifeId> {
        let EventBody::LateApply { address, length, .. } = body else { return None };
        let is_meant = |id: TransferId| {
            self.transfers[id].blocks.iter().any(|[_, remote]| {
                let from = self.memories[remote.memory].address + remote.offset;
                from < address + length && *address < from + remote.length
            })
        };
        self.lates.iter().find(|late| late.to == at && is_meant(late.transfer)).map(|late| late.from)
    }

    pub fn view(&mut self, at: LifeId, other: LifeId, view: View) {
        let slot = self.lives[other].slot;
        self.lives[at].views.insert(slot, view);
    }

    /// Nothing of a lost peer lands in the memory of the transfers that read from it.
    fn cut_own(&mut self, at: LifeId, peer: u64) {
        let all = self.transfers.iter().enumerate();
        let own = all.filter(|(_, it)| {
            it.wish.from == at
                && it.wish.handle.raw() == peer
                && it.wish.op == Op::Read
                && it.phase == Phase::Live
        });
        let blocks: Vec<_> = own.flat_map(|(_, it)| it.blocks.iter().map(|[local, _]| *local)).collect();
        for block in blocks {
            if let Some(claim) = self.memories[block.memory].claims.get_mut(&block.offset) {
                claim.cut = claim.cut.or(Some("PEER_LOST was delivered"));
            }
        }
    }
}
