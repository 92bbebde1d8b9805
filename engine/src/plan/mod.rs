//! Planning: turns requests into ranges that are contiguous on both sides. Pure: regions are passed in as snapshots,
//! and nothing is posted. `api` calls this; `route` cuts the ranges into slices.
//!
//! ```text
//! requests ──check──▶ places ──sort──▶ order ──coalesce──▶ ranges
//! ```
//! `check` validates each request and finds its regions, `coalesce` sorts and merges requests, and `blocks` expands
//! block lists into requests. `crate::request_map` maps a slice back to its requests.

pub mod blocks;
mod check;
mod coalesce;
#[cfg(test)]
mod tests;

pub use crate::types::Range;

use crate::handle::Tag;
use crate::region::{Region, RegionMap, RemoteMap};
use crate::status::{Error, Result, Status};
use crate::types::{Op, Request, Slice};
use check::Checker;
use std::sync::Arc;

pub struct PlanInput<'a> {
    pub op: Op,
    pub requests: &'a [Request],
    /// True if requests may be sorted and merged; otherwise each request is a range of its own, in the caller's order.
    pub coalesce: bool,
    pub local: &'a RegionMap,
    pub remote: &'a RemoteMap,
    /// The tag of the peer's present incarnation; a request that names a region of another incarnation is refused.
    pub remote_tag: Tag,
}

#[derive(Debug)]
pub struct Plan {
    pub ranges: Vec<Range>,
    /// Indexes of the caller's requests in the order that ranges refer to. Empty means the caller's own order.
    pub order: Vec<u32>,
    /// Each local region that the requests touch, once. Not entered yet, so a region may be revoked before the caller
    /// enters it.
    pub local_regions: Vec<Arc<Region>>,
    pub bytes: u64,
    /// Some of the remote memory is in no region that the map knows.
    pub has_unknown: bool,
}

/// Checks every request, then merges the requests into one range for each contiguous run.
///
/// On an error nothing was done; `request_index` and the message name the first bad request. INVALID: a length of 0, an
/// overflow, a handle of another kind, a range that leaves the remote region it names. NOT_REGISTERED: local memory
/// outside every region. ACCESS: the remote region does not grant `op`. STALE: a remote region of another incarnation.
/// LIMIT: too many requests. NO_MEMORY. A remote region that the map does not know is accepted, because the target
/// checks it.
pub fn plan(input: &PlanInput) -> Result<Plan> {
    check_count(input.requests.len())?;
    let mut checker = Checker::new(input);
    let in_place = !input.coalesce || input.requests.len() == 1;
    let (ranges, order) =
        if in_place { coalesce::in_place(&mut checker)? } else { coalesce::merged(&mut checker)? };
    let has_unknown = checker.has_unknown;
    let (local_regions, bytes) = checker.finish();
    Ok(Plan { ranges, order, local_regions, bytes, has_unknown })
}

/// Returns the plan of a single request that fits into one slice and whose remote region is known. None for any other
/// request, and for one that is not valid: `plan` then gives the reason.
pub fn single<'a>(input: &PlanInput<'a>, slice_bytes_max: u64) -> Option<(Slice, &'a Arc<Region>)> {
    let [request] = input.requests else { return None };
    if request.length > slice_bytes_max.min(u64::from(u32::MAX)) {
        return None;
    }
    let mut checker = Checker::new(input);
    let home = checker.check(0).ok().filter(|home| home.remote != check::UNKNOWN)?;
    let &Request { local, remote, length, remote_region } = request;
    let slice =
        Slice { local, remote, region: remote_region, first_offset: 0, length: length as u32, first: 0 };
    Some((slice, input.local.at(home.local)?))
}

fn check_count(count: usize) -> Result<()> {
    use crate::limits::REQUESTS_MAX;
    match count {
        0 => Err(Error::invalid("requests is empty")),
        1..=REQUESTS_MAX => Ok(()),
        _ => {
            Err(Error::new(Status::Limit, format!("requests has {count} entries, more than {REQUESTS_MAX}")))
        }
    }
}
