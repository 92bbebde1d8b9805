//! A target's check of a descriptor, whose payload goes from and to memory by system calls.

use crate::handle::Tag;
use crate::region::{self, Region, RegionMap};
use crate::status::Status;
use crate::transport::tcp::wire::Descriptor;
use crate::types::Op;
use std::sync::Arc;

/// The region in which the peer may run `op` on the descriptor's range. UNSUPPORTED for memory of a device,
/// which only the peer's staging reaches.
pub fn admit<'a>(
    map: &'a RegionMap,
    tag: Tag,
    op: Op,
    wanted: &Descriptor,
) -> Result<&'a Arc<Region>, Status> {
    let region = region::admit(map, tag, op, (wanted.region, wanted.address, wanted.length as u64))?;
    if region.is_device() {
        return Err(Status::Unsupported);
    }
    Ok(region)
}
