//! A target's check of a peer's access: is this range registered, now, in this direction? The arithmetic cannot
//! overflow, and the status names the first rule that is broken.

use super::{Region, RegionMap};
use crate::handle::{Kind, Tag};
use crate::status::Status;
use crate::types::{end_of, Op, RegionId};
use std::sync::Arc;

/// Returns the region in which the peer may run `op` on `[address, address + length)`. `named` is the region's handle,
/// or NONE for any region that contains the range. Contract 9: every access of a peer passes this check.
pub fn admit(
    map: &RegionMap,
    tag: Tag,
    op: Op,
    wanted: (RegionId, u64, u64),
) -> Result<&Arc<Region>, Status> {
    let region = find_live(map, tag, wanted)?;
    region.access.allows(op).then_some(region).ok_or(Status::Access)
}

/// As `admit`, without a look at the rights.
pub fn find_live(
    map: &RegionMap,
    tag: Tag,
    (named, address, length): (RegionId, u64, u64),
) -> Result<&Arc<Region>, Status> {
    if length == 0 || end_of(address, length).is_none() {
        return Err(Status::Invalid);
    }
    let region = if named == RegionId::NONE {
        map.find(address, length).ok_or(Status::NotRegistered)?
    } else {
        crate::handle::parse(Kind::Region, tag, named.raw()).map_err(|error| error.status)?;
        let region = map.get(named).ok_or(Status::Stale)?;
        if !region.contains(address, length) {
            return Err(Status::Invalid);
        }
        region
    };
    if region.is_revoked() {
        return Err(Status::Stale);
    }
    Ok(region)
}
