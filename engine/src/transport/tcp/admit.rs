//! A target's check of a descriptor. System calls move the payload from and to the memory that it names.

use crate::handle::Tag;
use crate::region::{self, Region, RegionMap};
use crate::status::Status;
use crate::transport::tcp::wire::Descriptor;
use crate::types::Op;
use std::sync::Arc;

/// Returns the region in which the peer may run `op` on the descriptor's range. UNSUPPORTED for device memory, which
/// only staging reaches.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::{RegionSpec, Registry};
    use crate::types::{Location, MemoryKind, RegionId};

    #[test]
    fn memory_of_a_device_is_not_for_system_calls() {
        let tag = Tag::from_random(5);
        let registry = Registry::new(tag, None);
        let spec = |address, location| RegionSpec { address, length: 64, location, ..RegionSpec::default() };
        let device = Location { kind: MemoryKind::Cuda, device: 0 };
        let regions = registry.register(&[spec(4096, device), spec(8192, Location::HOST)]).unwrap();
        let map = registry.snapshot();
        for op in [Op::Read, Op::Write] {
            for (region, expected) in regions.iter().zip([Some(Status::Unsupported), None]) {
                for named in [region.id, RegionId::NONE] {
                    let wanted = Descriptor { address: region.address, region: named, length: 64 };
                    assert_eq!(admit(&map, tag, op, &wanted).err(), expected, "{op:?} {wanted:?}");
                }
            }
        }
    }
}
