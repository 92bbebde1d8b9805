//! A target's check of what a peer asks for: is this range registered, now, in this direction? The
//! arithmetic cannot overflow, and the answer names the first rule that is broken.

use crate::handle::{Kind, Tag};
use crate::region::{Region, RegionMap};
use crate::status::Status;
use crate::transport::tcp::wire::Descriptor;
use crate::types::Op;
use std::sync::Arc;

/// The region in which the peer may run `op` on the descriptor's range.
pub fn admit<'a>(
    map: &'a RegionMap,
    tag: Tag,
    op: Op,
    wanted: &Descriptor,
) -> Result<&'a Arc<Region>, Status> {
    let (address, length) = (wanted.address, wanted.length as u64);
    if length == 0 || address.checked_add(length).is_none() {
        return Err(Status::Invalid);
    }
    let region = if wanted.region == 0 {
        map.find(address, length).ok_or(Status::NotRegistered)?
    } else {
        crate::handle::parse(Kind::Region, tag, wanted.region).map_err(|error| error.status)?;
        let region = map.get(wanted.region).ok_or(Status::Stale)?;
        if !region.contains(address, length) {
            return Err(Status::Invalid);
        }
        region
    };
    if region.is_revoked() {
        return Err(Status::Stale);
    }
    if !region.access.allows(op) {
        return Err(Status::Access);
    }
    Ok(region)
}
