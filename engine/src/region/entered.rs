//! A list of regions that are in use together.

use super::Region;
use crate::types::RegionId;
use std::sync::Arc;

/// Regions that stay entered until this is dropped.
pub struct Entered<L: AsRef<[Arc<Region>]>>(Option<L>);

/// Enters all regions, or none if one is revoked: its id.
pub fn enter_all<L: AsRef<[Arc<Region>]>>(list: L) -> Result<Entered<L>, RegionId> {
    let regions = list.as_ref();
    if let Some(revoked) = regions.iter().position(|region| !region.enter()) {
        regions[..revoked].iter().for_each(|entered| entered.leave());
        return Err(regions[revoked].id);
    }
    Ok(Entered(Some(list)))
}

impl<L: AsRef<[Arc<Region>]>> Entered<L> {
    /// Leaves the regions to a transfer, which leaves them when it is final; only the list is freed.
    pub fn hand_over(mut self) {
        self.0 = None;
    }
}

impl<L: AsRef<[Arc<Region>]>> Drop for Entered<L> {
    fn drop(&mut self) {
        self.0.iter().flat_map(|list| list.as_ref()).for_each(|region| region.leave());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Tag;
    use crate::region::{RegionSpec, Registry};
    use std::time::Duration;

    /// A use that stayed would keep the region from being unregistered, for ever.
    #[test]
    fn regions_before_one_that_is_gone_are_left() {
        let registry = Registry::new(Tag::from_random(3), None);
        let spec = |address| RegionSpec { address, length: 64, ..RegionSpec::default() };
        let regions = registry.register(&[4096, 8192, 12288].map(spec)).unwrap();
        registry.unregister(regions[1].id, Some(Duration::ZERO)).unwrap();
        assert_eq!(enter_all(&regions).err(), Some(regions[1].id));
        assert!(regions.iter().all(|region| region.is_idle()));
        let entered = enter_all(&regions[2..]);
        assert!(entered.is_ok() && !regions[2].is_idle());
        drop(entered);
        assert!(regions[2].is_idle());
        enter_all(&regions[2..]).ok().unwrap().hand_over();
        assert!(!regions[2].is_idle(), "the transfer leaves it");
    }
}
