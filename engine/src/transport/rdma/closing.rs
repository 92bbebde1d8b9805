//! The end of an endpoint: its queue pairs are put into their error state, every completion that they owe is
//! reaped, they are destroyed; then nothing of it moves on this side. What was not confirmed is handed over,
//! to be released behind a fence. `flushing` calls in, for the control loop or afterwards.

use super::batch::{Batch, Run, WrId};
use super::endpoint::Endpoint;
use super::service::Service;
use crate::complete::transfer::Failure;
use crate::complete::Transfer;
use crate::peer::{After, Posted, What};
use crate::status::Status;
use crate::sys::clock;
use crate::sys::pause;
use crate::sys::verbs::wc;
use crate::types::Monotonic;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

/// What may be under way in the network when an endpoint is gone, at the longest.
const FABRIC_DRAIN_NS: u64 = 1_000_000_000;
/// How often a transfer's requests may be taken for invalid until one of them is.
const INVALID_MAX: u32 = 3;

impl Service {
    /// The engine is broken: no device moves anything of it when this returns.
    pub fn destroy_all(&self) {
        let endpoints = self.devices.iter().flat_map(|device| device.all_endpoints());
        endpoints.for_each(|endpoint| endpoint.destroy());
    }
}

impl Endpoint {
    /// The engine is broken: the queue pairs are destroyed with all that they have under way, and nobody settles it.
    pub fn destroy(&self) {
        self.broken.store(true, Ordering::Release);
        let mut sender = self.send.lock();
        sender.closing = true;
        for qp in &sender.qps {
            let _ = qp.to_error(); // destroyed below, whatever it says
        }
        sender.qps.clear();
    }

    /// Nothing more is posted, and the queue pairs flush from here on.
    pub fn begin_close(&self) {
        self.broken.store(true, Ordering::Release);
        let mut sender = self.send.lock();
        sender.closing = true;
        for qp in &sender.qps {
            let _ = qp.to_error(); // destroyed in the end, whatever it says
        }
    }

    /// Reaps what the queue pairs owe, until then at the latest. True when they owe nothing any more.
    pub fn flush(&self, until: Instant) -> bool {
        let mut after = self.peer.after();
        let owed = || self.flights.iter().any(|flight| flight.state.lock().last.is_some());
        loop {
            let settled = self.reap(&mut after);
            if !owed() && !self.is_held() {
                return true;
            }
            if clock::now() >= until {
                return false;
            }
            if settled == 0 {
                pause::yield_now();
            }
        }
    }

    /// Ends the endpoint: nothing of it moves on this side any more. What was not confirmed comes back, to
    /// be released behind a fence; a request that the target's device refused is settled here.
    pub fn end_close(&self) -> Vec<Posted> {
        let mut after = self.peer.after();
        // What was received and acknowledged here is taken in.
        self.device.receive();
        self.send.lock().qps.clear();
        // Waits for a thread that applies what it has taken.
        self.reap_with(self.reaper.lock(), &mut after);
        self.device.remove(self.cookie, &self.qp_numbers);
        let lease_ns = self.peer.clock.lease_ns().max(FABRIC_DRAIN_NS);
        let lease_until_ns = clock::monotonic_ns() + lease_ns;
        let unknown = self.unacknowledged.take_unacked().into_iter();
        let mut records: Vec<Posted> =
            unknown.map(|what| Posted { sequence: 0, lease_until_ns, what }).collect();
        for flight in &self.flights {
            let (batches, error) = {
                let mut state = flight.state.lock();
                (std::mem::take(&mut state.batches), state.error.take())
            };
            for batch in batches {
                self.give_back(batch, error, lease_until_ns, &mut records, &mut after);
            }
        }
        records
    }

    fn give_back(
        &self,
        batch: Batch,
        error: Option<(WrId, u32, u32)>,
        lease_until_ns: Monotonic,
        records: &mut Vec<Posted>,
        after: &mut After,
    ) {
        batch.slot.into_iter().for_each(|slot| self.device.words.give_back(slot));
        let Some(Run { transfer, first, end, .. }) = batch.run else { return };
        let ours = error.filter(|(id, _, _)| id.is_of(batch.sequence));
        let mut bad: Vec<Failure> = batch.failures;
        if let Some((slice, vendor_error)) = ours.and_then(|it| refused(&transfer, first, it)) {
            let status = self.why_refused(&transfer, slice);
            bad.retain(|failure| failure.slice != slice);
            bad.push(Failure { slice, status, os_error: libc::EREMOTEIO, vendor_error });
        }
        bad.sort_unstable_by_key(|failure| failure.slice);
        let mut from = first;
        for failure in bad {
            self.add_record(&transfer, (from, failure.slice), lease_until_ns, records);
            let (slice, length) = (failure.slice, transfer.spec.slices[failure.slice as usize].length);
            self.peer.confirm(&transfer, (slice, slice + 1), length as u64, &[failure], false, after);
            from = slice + 1;
        }
        self.add_record(&transfer, (from, end), lease_until_ns, records);
    }

    fn add_record(
        &self,
        transfer: &Arc<Transfer>,
        (first, end): (u32, u32),
        lease_until_ns: Monotonic,
        records: &mut Vec<Posted>,
    ) {
        if first < end {
            let slices = &transfer.spec.slices[first as usize..end as usize];
            let bytes = slices.iter().map(|slice| slice.length).sum();
            let what = What::Slices { transfer: transfer.clone(), first, end, bytes, notified: false };
            records.push(Posted { sequence: 0, lease_until_ns, what });
        }
    }

    /// The target's device refused a slice: because its region has gone, or because it never granted that.
    fn why_refused(&self, transfer: &Transfer, slice: u32) -> Status {
        let slice = &transfer.spec.slices[slice as usize];
        match slice.region != 0 && self.keys.snapshot().get(slice.region).is_none() {
            true => Status::Stale,
            false => Status::Access,
        }
    }
}

/// The slice of a transfer that an error settles, and the error. An error of the request alone is one, because sending
/// it again is of no use. REM_INV_REQ_ERR isn't at first: the target didn't expect the packet where it came, as after
/// others were sent again, and keys are another matter. A target that says so again and again means it. The READ behind
/// WRITEs stands for the first of them.
fn refused(transfer: &Transfer, first: u32, (id, status, _): (WrId, u32, u32)) -> Option<(u32, i32)> {
    let alone = matches!(status, wc::REM_ACCESS_ERR | wc::LOC_PROT_ERR | wc::LOC_LEN_ERR);
    if !alone && status != wc::REM_INV_REQ_ERR {
        return None;
    }
    let settles =
        alone && id.slice().is_some() || transfer.invalid.fetch_add(1, Ordering::Relaxed) + 1 >= INVALID_MAX;
    settles.then(|| (first + id.slice().unwrap_or(0), status as i32))
}
