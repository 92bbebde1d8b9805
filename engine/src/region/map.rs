//! An immutable view of the local regions at one moment. `registry` makes the next one of it at every
//! change, which shares most of it; `plan` searches it by address, targets by handle. No lock is taken after it
//! is cloned out.

use super::table::Table;
use super::tree::{Order, Tree};
use super::Region;
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub struct RegionMap {
    /// Disjoint.
    by_address: Tree<ByAddress>,
    by_index: Table<Arc<Region>>,
    /// Those that other processes of this host can map: few, see `SHARED_MEMORIES_MAX`.
    shared: Arc<Vec<Arc<Region>>>,
    /// No region ever had this index of the handle or one above.
    indexes: u32,
    /// The `Region::order` of the region that came last.
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
    /// Takes in one more, or says which region it overlaps.
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

    /// The region that contains the whole range, revoked or not.
    pub fn find(&self, address: u64, length: u64) -> Option<&Arc<Region>> {
        // Regions are disjoint, so only the last that starts at or before `address` can contain it.
        let (_, region) = self.by_address.at_or_before(address)?;
        region.contains(address, length).then_some(region)
    }

    /// The region with exactly this handle, generation and engine included; revoked or not.
    pub fn get(&self, handle: u64) -> Option<&Arc<Region>> {
        self.at(Region::index_of(handle)).filter(|region| region.id == handle)
    }

    /// The region with this index of the handle.
    pub(crate) fn at(&self, index: u32) -> Option<&Arc<Region>> {
        self.by_index.get(index)
    }

    /// No region has this index of the handle or one above.
    pub(crate) fn indexes(&self) -> u32 {
        self.indexes
    }

    /// By rising address.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Region>> {
        self.by_address.iter()
    }

    /// The same from the first that does not start below `address`.
    pub fn iter_from(&self, address: u64) -> impl Iterator<Item = &Arc<Region>> {
        self.by_address.iter_from(address)
    }

    /// Those that other processes of this host can map.
    pub fn shared(&self) -> &[Arc<Region>] {
        &self.shared
    }

    /// The `Region::order` of the region that came last, still there or not.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }
}
