//! One transfer: its slices, the count of settled units, and the single step to the final state.
//!
//! ```text
//! PENDING ──strike──▶ DRAINING ──┐
//!    └───────────────────────────┴─ settled == units ──▶ final (once)
//! ```
//! A unit is a slice or the attached notification. A unit is settled when it can no longer touch memory: acknowledged,
//! refused by the target, never posted, or fenced. `settle` returns true to the one thread that settles the last unit,
//! and that thread makes the transfer final.
//!
//! A few lines above the usual number: every decision on how a transfer ends is here.

use crate::complete::flags::TransferFlags;
use crate::complete::position::Position;
use crate::complete::result::{Fence, Notification, Progress, RequestResult, State, TransferResult};
use crate::notify::{Event, EventBody, Queue, Waiter, Wakers};
use crate::region::Region;
use crate::request_map::requests_of;
use crate::status::Status;
use crate::sys::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sys::clock;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::types::{Monotonic, Op, PeerId, Request, Slice, SliceRange, TransferId, Transport};
use std::fmt;
use std::sync::Arc;

const PENDING: u32 = State::Pending as u32;
const DRAINING: u32 = State::Draining as u32;

/// The properties of a transfer that `api` decides before the transfer exists.
pub struct TransferSpec {
    pub peer: PeerId,
    pub op: Op,
    pub requests: Box<[Request]>,
    pub order: Vec<u32>,
    pub slices: Vec<Slice>,
    /// Local regions that the transfer uses. Each was entered, and is left when the transfer is final.
    pub regions: Vec<Arc<Region>>,
    pub bytes: u64,
    pub flags: TransferFlags,
    pub priority: u32,
    pub notify: Option<Box<[u8]>>,
    /// The notification's channel.
    pub channel: u16,
    /// On the engine's clock, like the deadline.
    pub submitted_ns: Monotonic,
    /// `Monotonic::NEVER` is no deadline.
    pub deadline_ns: Monotonic,
    pub user_data: u64,
    pub queue: Option<Arc<Queue>>,
    /// The transport that carries the transfer at first; `Transfer::transport` is the present one.
    pub transport: Transport,
    /// Mask of `Transport::bit`: the transports that may carry the transfer.
    pub allowed: u64,
}

/// A slice that the target refused, or that could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub slice: u32,
    pub status: Status,
    pub os_error: i32,
    /// As in `RequestResult`.
    pub vendor_error: i32,
}

pub struct Transfer {
    pub handle: TransferId,
    pub(crate) spec: TransferSpec,
    /// ferry allocated all local memory of the transfer (`Region::is_ours`).
    pub(crate) is_ours: bool,
    /// The notification's number; valid once the transfer is queued, if there is a notification.
    pub(crate) notify_sequence: AtomicU64,
    pub(crate) position: Position,
    /// The notification was posted or given up; the thread that swaps this to true decides which.
    notify_taken: AtomicBool,
    started_ns: AtomicU64,
    /// The transport that carries the transfer, or the part that is not posted yet. Written under the outbox's lock.
    transport: AtomicU32,
    /// See `report_transport`; 0 is unknown.
    reported_transport: AtomicU32,
    /// How often the target's NIC refused a request of this transfer as invalid.
    pub(crate) invalid: AtomicU32,
    /// PENDING, DRAINING or a final `State`. Partner: `detail`, written before a final value is stored.
    state: AtomicU32,
    settled: AtomicU32,
    units: u32,
    bytes_confirmed: AtomicU64,
    detail: Mutex<Detail>,
    /// A thread may sleep until the transfer is final, or a transfer may wait behind it. Partner: the count of
    /// transfers in progress.
    attended: AtomicBool,
    /// The transfer's handle was dropped. Partner: `state`; the second of the two threads forgets the transfer.
    orphan: AtomicBool,
    pub(crate) waiter: Waiter,
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (handle, state, progress) = (self.handle, self.state(), self.progress());
        f.debug_struct("Transfer")
            .field("handle", &handle)
            .field("state", &state)
            .field("progress", &progress)
            .finish()
    }
}

#[derive(Default)]
struct Detail {
    strike: Option<Strike>,
    failures: Vec<Failure>,
    /// Confirmed slices, merged where adjacent.
    confirmed: Vec<SliceRange>,
    fence: Option<Fence>,
    notification: Option<Notification>,
    awaited: Option<Awaited>,
    result: Option<TransferResult>,
}

/// The event for which a transfer still waited at its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The peer's application takes a notification, so that this transfer's notification may be sent.
    Credit,
    /// An earlier ORDERED transfer ends.
    Turn,
}

/// The reason for which a transfer was struck.
#[derive(Clone, Copy, Debug)]
pub struct Strike {
    pub status: Status,
    pub os_error: i32,
}

impl Transfer {
    pub(crate) fn new(handle: TransferId, spec: TransferSpec) -> Transfer {
        let units = spec.slices.len() as u32 + spec.notify.is_some() as u32;
        Transfer {
            handle,
            is_ours: spec.regions.iter().all(|region| region.is_ours()),
            notify_sequence: AtomicU64::new(0),
            position: Position::new(spec.flags.has(TransferFlags::HELD)),
            notify_taken: AtomicBool::new(spec.notify.is_none()),
            started_ns: AtomicU64::new(0),
            transport: AtomicU32::new(spec.transport as u32),
            reported_transport: AtomicU32::new(0),
            invalid: AtomicU32::new(0),
            state: AtomicU32::new(PENDING),
            settled: AtomicU32::new(0),
            units,
            bytes_confirmed: AtomicU64::new(0),
            detail: Mutex::new(Detail::default()),
            orphan: AtomicBool::new(false),
            waiter: Waiter::new(),
            attended: AtomicBool::new(
                spec.queue.is_some() || spec.notify.is_some() || spec.flags.has(TransferFlags::ORDERED),
            ),
            spec,
        }
    }

    fn detail(&self) -> MutexGuard<'_, Detail> {
        self.detail.lock()
    }

    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            PENDING => State::Pending,
            DRAINING => State::Draining,
            3 => State::Done,
            4 => State::Failed,
            5 => State::Cancelled,
            _ => State::TimedOut,
        }
    }

    pub fn is_final(&self) -> bool {
        self.state.load(Ordering::Acquire) > DRAINING
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.state.load(Ordering::Acquire) == PENDING
    }

    /// True if the end of the transfer must be noticed without a call that asks for it.
    pub(crate) fn is_attended(&self) -> bool {
        self.attended.load(Ordering::SeqCst)
    }

    /// Marks the transfer as attended: a thread is about to sleep until it is final. The transfer's path must be told
    /// too: `Path::attend`.
    pub(crate) fn attend(&self) {
        self.attended.store(true, Ordering::SeqCst);
    }

    /// Marks the transfer as dropped by its owner. True if the transfer is final, so that the caller can forget it at
    /// once.
    pub(crate) fn orphan(&self) -> bool {
        self.orphan.store(true, Ordering::Relaxed);
        // Pairs with the fence in `is_orphan`: one of the two threads sees the other's store.
        fence(Ordering::SeqCst);
        self.is_final()
    }

    /// True if the thread that has just made the transfer final must forget it.
    pub(crate) fn is_orphan(&self) -> bool {
        fence(Ordering::SeqCst);
        self.orphan.load(Ordering::Relaxed)
    }

    /// Returns the number of slices, plus one if there is a notification.
    pub(crate) fn units(&self) -> u32 {
        self.units
    }

    pub(crate) fn bytes_confirmed(&self) -> u64 {
        self.bytes_confirmed.load(Ordering::Relaxed)
    }

    pub fn progress(&self) -> Progress {
        Progress { bytes_confirmed: self.bytes_confirmed(), bytes_total: self.spec.bytes }
    }

    /// Returns the transport that carries the transfer; the last one if several did.
    pub(crate) fn transport(&self) -> Transport {
        Transport::from_number(self.transport.load(Ordering::Relaxed))
    }

    /// Sets the transport that the results name, where it differs from `transport`.
    pub(crate) fn report_transport(&self, reported_transport: Transport) {
        self.reported_transport.store(reported_transport as u32, Ordering::Relaxed);
    }

    /// Returns the transport that the results name.
    fn reported_transport(&self) -> Transport {
        match Transport::from_number(self.reported_transport.load(Ordering::Relaxed)) {
            Transport::None if self.transport() == Transport::Staged => Transport::None,
            Transport::None => self.transport(),
            reported_transport => reported_transport,
        }
    }

    /// Sets the transport for the slices that are not posted yet, as the router decided. Under the outbox's lock.
    pub(crate) fn set_transport(&self, transport: Transport) {
        self.transport.store(transport as u32, Ordering::Relaxed);
    }

    /// Records the time at which the first slice is posted.
    pub(crate) fn mark_started(&self) {
        self.mark_started_at(clock::monotonic_ns);
    }

    /// Like `mark_started`, for a caller that knows the time; `now_ns` is called only for the first slice.
    pub(crate) fn mark_started_at(&self, now_ns: impl FnOnce() -> Monotonic) {
        if self.started_ns.load(Ordering::Relaxed) == 0 {
            self.started_ns.store(now_ns().ns(), Ordering::Relaxed);
        }
    }

    /// Strikes the transfer: PENDING becomes DRAINING with this cause. False if the transfer was struck before or is
    /// final. The caller then drops the unposted slices.
    pub(crate) fn strike(&self, strike: Strike, wakers: &mut Wakers) -> bool {
        {
            let mut detail = self.detail();
            if self.state.compare_exchange(PENDING, DRAINING, Ordering::AcqRel, Ordering::Acquire).is_err() {
                return false;
            }
            detail.strike = Some(strike);
        }
        // A waiting thread may be driving the transfer's path and must learn of the strike. The others continue to
        // wait.
        self.waiter.notify_all(wakers);
        true
    }

    /// Calls `look`, which is short, unless the transfer is struck or final. A strike waits for its end, and with it
    /// perhaps the control loop.
    pub(crate) fn while_pending<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        let _detail = self.detail();
        self.is_pending().then(look)
    }

    /// Claims the right to post the notification or to give it up. True for exactly one caller.
    pub(crate) fn take_notification(&self) -> bool {
        !self.notify_taken.swap(true, Ordering::AcqRel)
    }

    /// Undoes `take_notification` for a frame that will be sent again. Under the outbox's lock.
    pub(crate) fn return_notification(&self) {
        self.notify_taken.store(false, Ordering::Release);
    }

    pub(crate) fn set_notification(&self, notification: Notification) {
        self.detail().notification = Some(notification);
    }

    /// Records that the notification will not be sent: NOT_SENT, unless another outcome is recorded already.
    pub(crate) fn give_up_notification(&self) {
        self.detail().notification.get_or_insert(Notification::NotSent);
    }

    /// Records that the transfer, which is being struck at its deadline, still waited for this.
    pub(crate) fn note_awaited(&self, awaited: Awaited) {
        self.detail().awaited = Some(awaited);
    }

    pub(crate) fn awaited(&self) -> Option<Awaited> {
        self.detail().awaited
    }

    /// Records that these slices are in the target's memory (WRITE) or in local memory (READ), except `failures`.
    /// Returns true if this settled the last unit.
    pub(crate) fn confirm(
        &self,
        range: SliceRange,
        bytes: u64,
        failures: &[Failure],
        extra_units: u32,
    ) -> bool {
        if failures.is_empty() {
            self.bytes_confirmed.fetch_add(bytes, Ordering::Relaxed);
            // A transfer of one frame needs no list of confirmed slices: all of them are confirmed.
            if range.count() + extra_units < self.units {
                self.detail().add_confirmed(range);
            }
        } else {
            let mut detail = self.detail();
            let SliceRange { mut first, end } = range;
            for failure in failures {
                detail.add_confirmed(SliceRange { first, end: failure.slice });
                first = failure.slice + 1;
            }
            detail.add_confirmed(SliceRange { first, end });
            detail.failures.extend_from_slice(failures);
            let refused: u64 =
                failures.iter().map(|f| self.spec.slices[f.slice as usize].length as u64).sum();
            self.bytes_confirmed.fetch_add(bytes.saturating_sub(refused), Ordering::Relaxed);
        }
        self.settle(range.count() + extra_units)
    }

    /// Settles `units` that were not confirmed and can no longer touch memory, as `fence` proves. Returns true if this
    /// settled the last unit.
    pub(crate) fn abandon(&self, units: u32, fence: Fence) -> bool {
        if units == 0 {
            return false;
        }
        self.fenced(fence);
        self.settle(units)
    }

    /// Records the fence behind which posted units are queued again. The result names the weakest of them.
    pub(crate) fn fenced(&self, fence: Fence) {
        let mut detail = self.detail();
        detail.fence = detail.fence.max(Some(fence));
    }

    /// Counts units as settled. True for exactly one call: the call that settles the last unit.
    pub(crate) fn settle(&self, units: u32) -> bool {
        // Contract 2: one call reaches the total. AcqRel: that caller sees everything that earlier callers recorded.
        let before = self.settled.fetch_add(units, Ordering::AcqRel);
        debug_assert!(before + units <= self.units, "a unit was settled twice");
        units > 0 && before + units == self.units
    }

    /// True if all slices are settled and only the notification is left.
    pub(crate) fn awaits_notification(&self) -> bool {
        self.spec.notify.is_some() && self.settled.load(Ordering::Acquire) + 1 == self.units
    }

    /// True if no slice has failed and the transfer is not struck, so that the notification may follow.
    pub(crate) fn may_notify(&self) -> bool {
        self.is_pending() && self.detail().failures.is_empty()
    }

    /// Decides the result and leaves the regions. The thread that settled the last unit calls this once; `publish` then
    /// makes the transfer final.
    pub(crate) fn conclude(&self) -> State {
        let mut detail = self.detail();
        let result = self.judge(&detail);
        let state = detail.result.insert(result).state;
        self.spec.regions.iter().for_each(|region| region.leave());
        state
    }

    /// Makes the transfer final, and adds its event to its queue: no thread sees only one of the two.
    pub(crate) fn publish(&self, state: State) {
        let Some(queue) = &self.spec.queue else { return self.store_final(state) };
        let (transfer, user_data, status) = (self.handle, self.spec.user_data, self.concluded_status());
        let body = EventBody::Transfer { transfer, user_data, status };
        let event = Event { peer: self.spec.peer, body, credit: None };
        queue.push_reserved(event, || self.store_final(state));
    }

    fn store_final(&self, state: State) {
        // Pairs with the Acquire in `is_final`: a thread that sees the transfer final sees its result, and everything
        // that was counted and queued before.
        self.state.store(state as u32, Ordering::Release);
    }

    /// Decides the final state after everything that a broken engine posted is over: PANIC, unless the transfer was
    /// concluded before. None if the transfer is final.
    pub(crate) fn condemn(&self) -> Option<State> {
        let mut detail = self.detail();
        if self.is_final() {
            return None;
        }
        if let Some(result) = &detail.result {
            return Some(result.state);
        }
        detail.strike = Some(Strike { status: Status::Panic, os_error: 0 });
        detail.notification.get_or_insert(Notification::Unknown);
        let mut result = self.judge(&detail);
        (result.state, result.status, result.fence) = (State::Failed, Status::Panic, Fence::Lease);
        detail.result = Some(result);
        Some(State::Failed)
    }

    /// Ends a transfer whose submit failed. Only threads that found the transfer in the table meanwhile see it.
    pub(crate) fn discard(&self) {
        self.state.store(State::Failed as u32, Ordering::Release);
        self.waiter.notify_all(&mut Wakers::default());
    }

    fn judge(&self, detail: &Detail) -> TransferResult {
        let all = self.spec.requests.len() as u64;
        let failed = if detail.failures.is_empty() && detail.strike.is_none() {
            0
        } else {
            self.request_results(detail).filter(|r| r.status != Status::Ok).count() as u64
        };
        let status = match (detail.strike, detail.failures.first()) {
            // A strike that came after everything was confirmed changes nothing.
            (Some(_), None)
                if failed == 0 && matches!(detail.notification, None | Some(Notification::Delivered)) =>
            {
                Status::Ok
            }
            (Some(strike), _) if matches!(strike.status, Status::Timeout | Status::Cancelled) => {
                strike.status
            }
            (_, Some(first)) if failed == all => first.status,
            (_, Some(_)) => Status::Partial,
            (Some(strike), None) => strike.status,
            (None, None) => Status::Ok,
        };
        let state = match status {
            Status::Ok => State::Done,
            Status::Timeout => State::TimedOut,
            Status::Cancelled => State::Cancelled,
            _ => State::Failed,
        };
        debug_assert!(
            status != Status::Ok || self.bytes_confirmed() == self.spec.bytes,
            "a transfer ends DONE without its bytes"
        );
        let notification = match (&self.spec.notify, detail.notification) {
            (None, _) => Notification::None,
            (Some(_), Some(known)) => known,
            (Some(_), None) => Notification::Delivered,
        };
        let finished_ns = clock::monotonic_ns();
        let started_ns = Monotonic::from_ns(self.started_ns.load(Ordering::Relaxed));
        let [submitted_ns, started_ns, finished_ns] =
            clock::shown(finished_ns, [self.spec.submitted_ns, started_ns, finished_ns]);
        TransferResult {
            state,
            status,
            // A DONE transfer names its fence too: bytes sent again behind a lease may still land a second time.
            fence: detail.fence.unwrap_or(Fence::Confirmed),
            notification,
            user_data: self.spec.user_data,
            bytes_confirmed: self.bytes_confirmed.load(Ordering::Relaxed),
            requests_failed: failed,
            submitted_ns,
            started_ns,
            finished_ns,
            requests_in: all,
            slices_out: self.spec.slices.len() as u64,
            transport: self.reported_transport(),
            os_error: detail.os_error(),
        }
    }

    /// Returns the result; None before the transfer is final.
    pub fn result(&self) -> Option<TransferResult> {
        self.is_final().then(|| self.detail().result.clone()).flatten()
    }

    /// Returns the status of the result, also before `publish`.
    pub(crate) fn concluded_status(&self) -> Status {
        self.detail().result.as_ref().map_or(Status::Ok, |result| result.status)
    }

    /// Returns the result of each request, in the caller's order. Valid once the transfer is final.
    pub fn results(&self) -> Vec<RequestResult> {
        let detail = self.detail();
        self.request_results(&detail).collect()
    }

    /// Returns the first failed slice behind the result of a request, and why it failed. None if no slice failed: the
    /// transfer was struck.
    pub(crate) fn first_failure(&self, result: &RequestResult) -> Option<(Failure, Slice)> {
        let detail = self.detail();
        let is_behind = |failure: &&Failure| {
            let slice = &self.spec.slices[failure.slice as usize];
            let mut requests = requests_of(&self.spec.order, &self.spec.requests, slice);
            failure.status == result.status && requests.any(|(index, _, _)| u64::from(index) == result.index)
        };
        let first = *detail.failures.iter().filter(is_behind).min_by_key(|failure| failure.slice)?;
        Some((first, self.spec.slices[first.slice as usize]))
    }

    fn request_results(&self, detail: &Detail) -> std::vec::IntoIter<RequestResult> {
        let strike = detail.strike.unwrap_or(Strike { status: Status::Ok, os_error: 0 });
        let mut results: Vec<RequestResult> = (0..self.spec.requests.len() as u64)
            .map(|index| RequestResult {
                index,
                status: Status::Ok,
                transport: self.reported_transport(),
                bytes_confirmed: 0,
                os_error: 0,
                vendor_error: 0,
            })
            .collect();
        let one_frame = detail.confirmed.is_empty() && detail.failures.is_empty();
        let everything = [SliceRange { first: 0, end: self.spec.slices.len() as u32 }];
        let confirmed_all = one_frame && self.bytes_confirmed.load(Ordering::Relaxed) == self.spec.bytes;
        let confirmed = if confirmed_all { &everything[..] } else { &detail.confirmed[..] };
        for range in confirmed {
            for slice in range.of(&self.spec.slices) {
                for (request, _, length) in requests_of(&self.spec.order, &self.spec.requests, slice) {
                    results[request as usize].bytes_confirmed += length;
                }
            }
        }
        for failure in &detail.failures {
            let slice = &self.spec.slices[failure.slice as usize];
            for (request, _, _) in requests_of(&self.spec.order, &self.spec.requests, slice) {
                results[request as usize].status = failure.status;
                results[request as usize].os_error = failure.os_error;
                results[request as usize].vendor_error = failure.vendor_error;
            }
        }
        for (result, request) in results.iter_mut().zip(self.spec.requests.iter()) {
            if result.status == Status::Ok && result.bytes_confirmed < request.length {
                result.status = strike.status;
                result.os_error = strike.os_error;
            }
        }
        results.into_iter()
    }
}

impl Detail {
    /// Returns the first errno of the strike and the failures, or 0.
    fn os_error(&self) -> i32 {
        let strike = self.strike.map_or(0, |strike| strike.os_error);
        let failures = self.failures.iter().map(|failure| failure.os_error);
        std::iter::once(strike).chain(failures).find(|number| *number != 0).unwrap_or(0)
    }

    fn add_confirmed(&mut self, range: SliceRange) {
        if range.is_empty() {
            return;
        }
        match self.confirmed.last_mut() {
            Some(last) if last.end == range.first => last.end = range.end,
            _ => self.confirmed.push(range),
        }
    }
}
