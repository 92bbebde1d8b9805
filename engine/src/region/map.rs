//! An immutable view of the local regions at one moment. `registry` replaces it wholesale on every
//! change; `plan` searches it by address, targets by handle. No lock is taken after it is cloned out.

use super::{reserve, Region};
use crate::handle::INDEX_MAX;
use crate::status::Result;
use std::sync::Arc;

/// No region has this index of the handle.
const NOWHERE: u32 = u32::MAX;

#[derive(Debug, Default)]
pub struct RegionMap {
    /// By address, disjoint.
    regions: Vec<Arc<Region>>,
    /// `starts[i]` is `regions[i].address`, kept apart so that a search touches few cache lines.
    starts: Vec<u64>,
    /// From a handle's index to a position in `regions`.
    positions: Vec<u32>,
}

impl RegionMap {
    /// `regions` are sorted by address and disjoint: `registry` has checked.
    pub(super) fn new(regions: Vec<Arc<Region>>) -> Result<RegionMap> {
        debug_assert!(regions.windows(2).all(|pair| pair[1].address - pair[0].address >= pair[0].length));
        let mut starts = Vec::new();
        reserve(&mut starts, regions.len())?;
        starts.extend(regions.iter().map(|region| region.address));

        let indexes = regions.iter().map(|region| index_of(region.id) + 1).max().unwrap_or(0);
        let mut positions = Vec::new();
        reserve(&mut positions, indexes)?;
        positions.resize(indexes, NOWHERE);
        for (position, region) in regions.iter().enumerate() {
            positions[index_of(region.id)] = position as u32;
        }
        Ok(RegionMap { regions, starts, positions })
    }

    /// The region that contains the whole range, revoked or not.
    pub fn find(&self, address: u64, length: u64) -> Option<&Arc<Region>> {
        self.find_position(address, length).map(|position| &self.regions[position])
    }

    /// The region with exactly this handle, generation and engine included; revoked or not.
    pub fn get(&self, handle: u64) -> Option<&Arc<Region>> {
        let &position = self.positions.get(index_of(handle))?;
        self.regions.get(position as usize).filter(|region| region.id == handle)
    }

    /// By rising address.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Region>> {
        self.regions.iter()
    }

    pub fn len(&self) -> usize {
        self.regions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// As `find`, but says where: a small number that names the region within this map.
    pub(crate) fn find_position(&self, address: u64, length: u64) -> Option<usize> {
        // Regions are disjoint, so only the last that starts at or before `address` can contain it.
        let position = self.starts.partition_point(|&start| start <= address).checked_sub(1)?;
        self.regions[position].contains(address, length).then_some(position)
    }

    /// The region at a position that `find_position` of this map gave.
    pub(crate) fn at(&self, position: usize) -> &Arc<Region> {
        &self.regions[position]
    }
}

fn index_of(handle: u64) -> usize {
    (handle & u64::from(INDEX_MAX)) as usize
}
