//! Closes an endpoint: puts its queue pairs into their error state, reaps every owed completion, and destroys them.
//! After that nothing of the endpoint moves at this end. Unconfirmed work becomes records, which are released behind a
//! fence. `flushing` calls this code, for the control loop or on the service's thread.

use super::batch::{Batch, Run};
use super::endpoint::Endpoint;
use super::flight::{Flight, WorkError};
use super::service::RdmaService;
use crate::complete::transfer::Failure;
use crate::complete::Transfer;
use crate::peer::{After, Posted, What};
use crate::status::Status;
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::sys::pause;
use crate::sys::verbs::wc;
use crate::types::{Monotonic, RegionId, SliceRange};
use std::sync::Arc;

/// Upper bound on how long a packet may still be in the network after its endpoint is gone.
const FABRIC_DRAIN_NS: u64 = 1_000_000_000;
/// How many REM_INV_REQ_ERR errors a transfer may get before one settles a request.
const INVALID_MAX: u32 = 3;

/// When nothing of an endpoint that has just ended can land any more.
#[derive(Clone, Copy)]
struct End {
    lease_ns: u64,
    /// No packet is in the network any more.
    drained_ns: Monotonic,
}

impl End {
    /// Contract 1: a lease counts from the posting, as over TCP, so that a struck transfer is final within it.
    fn of(self, posted_ns: Monotonic) -> Monotonic {
        self.drained_ns.max(posted_ns.saturating_add(self.lease_ns))
    }
}

impl RdmaService {
    /// Destroys all endpoints because the engine is broken. When this returns, no device moves anything for the
    /// engine.
    pub fn destroy_all(&self) {
        let endpoints = self.devices.iter().flat_map(|device| device.all_endpoints());
        endpoints.for_each(|endpoint| endpoint.destroy());
    }
}

impl Endpoint {
    /// Destroys the queue pairs with all posted work because the engine is broken. Nothing is settled.
    pub fn destroy(&self) {
        self.stop_posting();
        self.destroy_queue_pairs();
    }

    /// Reaps owed completions, at most until `until`. Returns true once no completion is owed.
    pub fn flush(&self, until: Monotonic) -> bool {
        let mut after = self.peer.after();
        let owed = || self.flights.iter().any(Flight::owes);
        loop {
            let settled = self.reap(&mut after);
            if !owed() && !self.is_held() {
                return true;
            }
            if clock::monotonic_ns() >= until {
                return false;
            }
            if settled == 0 {
                pause::yield_now();
            }
        }
    }

    /// Ends the endpoint: nothing of it moves at this end any more. Returns unconfirmed work as records, to be
    /// released behind a fence. Settles a request that the target's device refused.
    pub fn end_close(&self) -> Vec<Posted> {
        let mut after = self.peer.after();
        // Take in notifications and acknowledgements that have arrived.
        self.device.receive();
        self.destroy_queue_pairs();
        // Taking the lock waits for a thread that still settles what it reaped.
        self.reap_with(self.reaper.lock(), &mut after);
        self.leave_device();
        let end =
            End { lease_ns: self.peer.clock.lease_ns(), drained_ns: clock::monotonic_ns() + FABRIC_DRAIN_NS };
        let unknown = self.unacknowledged.take_unacked().into_iter();
        let mut records: Vec<Posted> = unknown
            .map(|(what, posted_ns)| Posted { sequence: 0, lease_until_ns: end.of(posted_ns), what })
            .collect();
        for flight in &self.flights {
            let (batches, error) = flight.take();
            for batch in batches {
                self.give_back(batch, error, end, &mut records, &mut after);
            }
        }
        records
    }

    fn give_back(
        &self,
        batch: Batch,
        error: Option<WorkError>,
        end: End,
        records: &mut Vec<Posted>,
        after: &mut After,
    ) {
        batch.slot.into_iter().for_each(|slot| self.device.notifications.give_back(slot));
        let Some(Run { transfer, range, .. }) = batch.run else { return };
        let lease_until_ns = end.of(batch.posted_ns);
        let SliceRange { mut first, end } = range;
        let ours = error.filter(|(id, _, _)| id.is_of(batch.sequence));
        let mut bad: Vec<Failure> = batch.failures;
        if let Some((slice, vendor_error)) = ours.and_then(|it| refused(&transfer, first, it)) {
            let status = self.why_refused(&transfer, slice);
            bad.retain(|failure| failure.slice != slice);
            // EREMOTEIO: the target's NIC answered.
            let ours = matches!(vendor_error as u32, wc::LOC_PROT_ERR | wc::LOC_LEN_ERR);
            let os_error = if ours { libc::EIO } else { libc::EREMOTEIO };
            bad.push(Failure { slice, status, os_error, vendor_error });
        }
        bad.sort_unstable_by_key(|failure| failure.slice);
        for failure in bad {
            self.add_record(&transfer, SliceRange { first, end: failure.slice }, lease_until_ns, records);
            let (slice, length) = (failure.slice, transfer.spec.slices[failure.slice as usize].length);
            self.peer.confirm(
                &transfer,
                SliceRange { first: slice, end: slice + 1 },
                length as u64,
                &[failure],
                false,
                after,
            );
            first = slice + 1;
        }
        self.add_record(&transfer, SliceRange { first, end }, lease_until_ns, records);
    }

    fn add_record(
        &self,
        transfer: &Arc<Transfer>,
        range: SliceRange,
        lease_until_ns: Monotonic,
        records: &mut Vec<Posted>,
    ) {
        if !range.is_empty() {
            let slices = range.of(&transfer.spec.slices);
            let bytes = slices.iter().map(|slice| slice.length).sum();
            let what = What::Slices { transfer: transfer.clone(), range, bytes, notified: false };
            records.push(Posted { sequence: 0, lease_until_ns, what });
        }
    }

    /// Returns the status for a slice that the target's device refused: its region is gone, or did not grant the
    /// access.
    fn why_refused(&self, transfer: &Transfer, slice: u32) -> Status {
        let slice = &transfer.spec.slices[slice as usize];
        if slice.region != RegionId::NONE && self.keys.snapshot().get(slice.region).is_none() {
            Status::Stale
        } else {
            Status::Access
        }
    }
}

/// Returns the slice that an error settles, and the error. An error of the request alone settles the slice, because
/// sending the request again is of no use. The first REM_INV_REQ_ERRs do not: the target did not expect the packet at
/// that point, which happens after retransmissions, and bad keys cause another error. A target that repeats
/// REM_INV_REQ_ERR means it. An error of the READ behind WRITEs counts for the first slice.
fn refused(transfer: &Transfer, first: u32, (id, status, _): WorkError) -> Option<(u32, i32)> {
    let alone = matches!(status, wc::REM_ACCESS_ERR | wc::LOC_PROT_ERR | wc::LOC_LEN_ERR);
    if !alone && status != wc::REM_INV_REQ_ERR {
        return None;
    }
    let settles =
        alone && id.slice().is_some() || transfer.invalid.fetch_add(1, Ordering::Relaxed) + 1 >= INVALID_MAX;
    settles.then(|| (first + id.slice().unwrap_or(0), status as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_over_with_its_lease_and_not_before_the_network_is_empty() {
        let at = |ms: u64| Monotonic::ZERO + ms * 1_000_000;
        let end = End { lease_ns: 3_000_000_000, drained_ns: at(11_000) };
        assert_eq!(end.of(at(9_500)), at(12_500));
        assert_eq!(end.of(at(7_000)), at(11_000));
    }
}
