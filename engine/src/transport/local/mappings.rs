//! The peer's regions that are mapped in this process, because its engine allocated them as shareable memory. `session`
//! adds them as they are announced; `copier` reads them.

use crate::limits::PEER_MAPS_MAX;
use crate::sys::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sys::lock::RwLock;
use crate::sys::map::HashMap;
use crate::sys::mapping::Mapping;
use crate::types::RegionId;
use std::sync::Arc;

/// One region of the peer, mapped.
pub struct Mapped {
    /// The region's address in the peer's process.
    address: u64,
    mapping: Mapping,
}

impl Mapped {
    pub fn new(address: u64, mapping: Mapping) -> Mapped {
        Mapped { address, mapping }
    }

    /// Returns the local address of `length` bytes at the peer's `address`; None outside the region.
    pub fn find(&self, address: u64, length: u32) -> Option<*mut u8> {
        let offset = address.checked_sub(self.address)?;
        let end = offset.checked_add(length as u64)?;
        (end <= self.mapping.length() as u64).then(|| self.mapping.address().wrapping_add(offset as usize))
    }
}

#[derive(Default)]
pub struct Mappings {
    all: RwLock<HashMap<RegionId, Arc<Mapped>>>,
    /// True once a mapping was added. Most peers share no memory, and their copies need not search `all`.
    is_used: AtomicBool,
    /// The region that `has` found last, so that the next call need not search. It may have been unmapped since.
    last: AtomicU64,
}

impl Mappings {
    /// Adds a mapping. Returns false if the peer exceeds the number of mappings that an engine may have.
    #[must_use]
    pub fn add(&self, region: RegionId, mapped: Mapped) -> bool {
        let mut all = self.all.write();
        self.is_used.store(true, Ordering::Release);
        all.insert(region, Arc::new(mapped));
        all.len() <= PEER_MAPS_MAX
    }

    /// Removes a mapping. The memory is unmapped when the last copy that uses it ends.
    pub fn remove(&self, region: RegionId) {
        self.all.write().remove(&region);
    }

    /// Returns whether the region is mapped, or was.
    pub fn has(&self, region: RegionId) -> bool {
        if self.last.load(Ordering::Relaxed) == region.raw() {
            return true;
        }
        let has = self.get(region).is_some();
        if has {
            self.last.store(region.raw(), Ordering::Relaxed);
        }
        has
    }

    pub fn get(&self, region: RegionId) -> Option<Arc<Mapped>> {
        if !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        self.all.read().get(&region).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_inside_is_found() {
        let mapping = Mapping::private(8192).unwrap();
        let base = mapping.address();
        let mapped = Mapped::new(1 << 40, mapping);
        assert_eq!(mapped.find(1 << 40, 8192), Some(base));
        assert_eq!(mapped.find((1 << 40) + 8191, 1), Some(base.wrapping_add(8191)));
        for (address, length) in [((1 << 40) - 1, 1), (1 << 40, 8193), ((1 << 40) + 8192, 1), (u64::MAX, 2)] {
            assert_eq!(mapped.find(address, length), None);
        }
    }

    #[test]
    fn as_many_as_an_engine_can_have_and_no_more() {
        let mappings = Mappings::default();
        let mapped = || Mapped::new(1 << 40, Mapping::private(4096).unwrap());
        assert!((0..PEER_MAPS_MAX as u64).all(|region| mappings.add(RegionId::from_raw(region), mapped())));
        assert!(mappings.add(RegionId::from_raw(0), mapped()), "a repeated region counts once");
        assert!(!mappings.add(RegionId::from_raw(u64::MAX), mapped()));
    }
}
