//! An immutable snapshot of the local regions. `registry` makes a new snapshot at every change; it shares most of its
//! nodes with the one before. `plan` searches by address, targets by handle. Reading a snapshot takes no lock.

use super::table::Table;
use super::tree::{Order, Tree};
use super::Region;
use crate::types::RegionId;
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub struct RegionMap {
    /// The regions do not overlap.
    by_address: Tree<ByAddress>,
    by_index: Table<Arc<Region>>,
    /// The regions that other processes of this host can map: at most `SHARED_MEMORIES_MAX`.
    shared: Arc<Vec<Arc<Region>>>,
    /// No region ever had this index or a higher one.
    indexes: u32,
    /// The `Region::order` of the newest region.
    newest: u64,
}

struct ByAddress;

impl Order for ByAddress {
    type Item = Arc<Region>;
    type Key = u64;
    fn key(region: &Arc<Region>) -> u64 {
        region.address
    }
}

impl RegionMap {
    /// Adds a region, or returns the region that it overlaps.
    pub(super) fn add(&mut self, region: Arc<Region>) -> Result<(), Arc<Region>> {
        let (start, length) = (region.address, region.length);
        // Regions are disjoint, so only its two neighbours can overlap it.
        let below = self.by_address.at_or_before(start).map(|(_, region)| region);
        let below = below.filter(|below| start - below.address < below.length);
        let above = self.by_address.after(start).filter(|above| above.address - start < length);
        if let Some(other) = below.or(above) {
            return Err(other.clone());
        }
        self.indexes = self.indexes.max(region.index() + 1);
        self.newest = self.newest.max(region.order);
        self.by_index.set(region.index(), Some(region.clone()));
        if region.memfd.is_some() {
            Arc::make_mut(&mut self.shared).push(region.clone());
        }
        self.by_address.insert(region);
        Ok(())
    }

    pub(super) fn remove(&mut self, region: &Region) {
        if self.get(region.id).is_none() {
            return;
        }
        self.by_address.remove(region.address);
        self.by_index.set(region.index(), None);
        if region.memfd.is_some() {
            Arc::make_mut(&mut self.shared).retain(|other| other.id != region.id);
        }
    }

    /// Returns the region that contains the whole range, revoked or not.
    pub fn find(&self, address: u64, length: u64) -> Option<&Arc<Region>> {
        // Regions are disjoint, so only the last that starts at or before `address` can contain it.
        let (_, region) = self.by_address.at_or_before(address)?;
        region.contains(address, length).then_some(region)
    }

    /// Returns the region with exactly this handle (generation and engine included), revoked or not.
    pub fn get(&self, handle: RegionId) -> Option<&Arc<Region>> {
        self.at(Region::index_of(handle)).filter(|region| region.id == handle)
    }

    /// Returns the region with this index.
    pub(crate) fn at(&self, index: u32) -> Option<&Arc<Region>> {
        self.by_index.get(index)
    }

    /// Returns a bound: no region has this index or a higher one.
    pub(crate) fn indexes(&self) -> u32 {
        self.indexes
    }

    /// Iterates by rising address.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Region>> {
        self.by_address.iter()
    }

    /// Iterates by rising address, from the first region that does not start below `address`.
    pub fn iter_from(&self, address: u64) -> impl Iterator<Item = &Arc<Region>> {
        self.by_address.iter_from(address)
    }

    /// Returns the regions that other processes of this host can map.
    pub fn shared(&self) -> &[Arc<Region>] {
        &self.shared
    }

    /// Returns the `Region::order` of the newest region, registered still or not.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    pub(crate) fn len(&self) -> usize {
        self.by_address.len()
    }
}
