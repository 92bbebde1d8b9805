//! What a peer told us that it registered. `session` keeps it up to date, `plan` checks requests
//! against its snapshot. It is advice, not a gate: the target checks every access itself, so a list
//! that is late, short or nonsense costs at most a request that the target refuses.

use super::{range_contains, reserve};
use crate::handle::INDEX_MAX;
use crate::status::Result;
use crate::types::{end_of, Access, Location};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

/// More than an engine can have registered at once; a peer that announces more is cut off here.
const REGIONS_MAX: usize = INDEX_MAX as usize + 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    /// The handle that the peer's engine gave it.
    pub id: u64,
    pub address: u64,
    pub length: u64,
    pub access: Access,
    pub name: String,
    pub location: Location,
    /// The peer's own, for what is on its way from or to a device.
    pub staging: bool,
}

impl RemoteRegion {
    /// Whether all of `[address, address + length)` lies inside; false when that overflows.
    pub(crate) fn contains(&self, address: u64, length: u64) -> bool {
        range_contains(self.address, self.length, address, length)
    }
}

/// The regions of one peer.
#[derive(Debug, Default)]
pub struct RemoteRegions {
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    map: Arc<RemoteMap>,
    /// Between `renew` and `settle`: what the peer has announced anew, by id.
    anew: Option<Vec<u64>>,
}

impl RemoteRegions {
    pub fn new() -> RemoteRegions {
        RemoteRegions::default()
    }

    /// Adds what the peer announced; one with a known id replaces the older. Regions that overflow, are
    /// empty or have no id are ignored, and so is everything when memory runs out: see the module's top.
    pub fn add(&self, regions: Vec<RemoteRegion>) {
        let mut known = self.write();
        if let Some(anew) = &mut known.anew {
            if reserve(anew, regions.len()).is_err() {
                return;
            }
            anew.extend(regions.iter().map(|region| region.id));
        }
        known.change(|old| {
            let mut all = Vec::new();
            reserve(&mut all, old.len() + regions.len())?;
            all.extend(old.by_address.iter().cloned());
            all.extend(regions.into_iter().filter(is_sane).map(Arc::new));
            Ok(all)
        });
    }

    /// Forgets the regions with these ids; unknown ones are ignored.
    pub fn remove(&self, ids: &[u64]) {
        self.write().keep(ids, false);
    }

    /// A new connection: the peer announces all its regions again. Until it has, what it announced before
    /// counts, for the transfers that are under way.
    pub fn renew(&self) {
        self.write().anew = Some(Vec::new());
    }

    /// It has: what it did not announce again is forgotten.
    pub fn settle(&self) {
        let mut known = self.write();
        if let Some(anew) = known.anew.take() {
            known.keep(&anew, true);
        }
    }

    /// The regions at this moment. Cheap: clones one `Arc`.
    pub fn snapshot(&self) -> Arc<RemoteMap> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner).map)
    }

    /// Held throughout a change, so that two changes never start from the same map.
    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Keeps the regions that are among these ids, or those that are not.
    fn keep(&mut self, ids: &[u64], among: bool) {
        self.change(|old| {
            let mut sorted = Vec::new();
            reserve(&mut sorted, ids.len())?;
            sorted.extend_from_slice(ids);
            sorted.sort_unstable();
            let mut all = Vec::new();
            reserve(&mut all, old.len())?;
            let kept =
                old.by_address.iter().filter(|region| sorted.binary_search(&region.id).is_ok() == among);
            all.extend(kept.cloned());
            Ok(all)
        });
    }

    /// Replaces the map by one made from the regions that `edit` returns.
    fn change(&mut self, edit: impl FnOnce(&RemoteMap) -> Result<Vec<Arc<RemoteRegion>>>) {
        if let Ok(changed) = edit(&self.map).and_then(RemoteMap::new) {
            self.map = Arc::new(changed);
        }
    }
}

/// An immutable view of a peer's regions. They may overlap: peers are not trusted.
#[derive(Debug, Default)]
pub struct RemoteMap {
    by_address: Vec<Arc<RemoteRegion>>,
    /// `starts[i]` is `by_address[i].address`, kept apart so that a search touches few cache lines.
    starts: Vec<u64>,
    /// `farthest[i]`: position of the region that ends last among `by_address[..=i]`. It starts at or
    /// before any address that `i` starts at or before, so if any region contains a range beginning
    /// there, this one does: one look, however the regions overlap.
    farthest: Vec<u32>,
    /// (id, position), by id.
    by_id: Vec<(u64, u32)>,
    has_devices: bool,
}

impl RemoteMap {
    /// Of several with one id the last in `regions` counts.
    fn new(mut regions: Vec<Arc<RemoteRegion>>) -> Result<RemoteMap> {
        keep_last_of_each_id(&mut regions)?;
        regions.truncate(REGIONS_MAX);
        regions.sort_by_key(|region| region.address);

        let mut starts = Vec::new();
        reserve(&mut starts, regions.len())?;
        starts.extend(regions.iter().map(|region| region.address));

        let mut farthest = Vec::new();
        reserve(&mut farthest, regions.len())?;
        let mut last = 0;
        for (position, region) in regions.iter().enumerate() {
            if region.end() > regions[last].end() {
                last = position;
            }
            farthest.push(last as u32);
        }

        let mut by_id = Vec::new();
        reserve(&mut by_id, regions.len())?;
        by_id.extend(regions.iter().enumerate().map(|(position, region)| (region.id, position as u32)));
        by_id.sort_unstable();
        let has_devices = regions.iter().any(|region| region.location.kind.is_device());
        Ok(RemoteMap { by_address: regions, starts, farthest, by_id, has_devices })
    }

    /// A region that contains the whole range; any of them, if they overlap.
    pub fn find(&self, address: u64, length: u64) -> Option<&RemoteRegion> {
        self.find_position(address, length).map(|position| self.at(position))
    }

    /// The region with exactly this handle.
    pub fn get(&self, id: u64) -> Option<&RemoteRegion> {
        self.position_of(id).map(|position| self.at(position))
    }

    /// Whether any of it is memory of a device.
    pub fn has_devices(&self) -> bool {
        self.has_devices
    }

    /// Where the memory of the range is, as far as is known.
    pub fn location_at(&self, region: u64, address: u64, length: u64) -> Option<Location> {
        let region = match region {
            0 => self.find(address, length),
            id => self.get(id),
        };
        region.map(|region| region.location)
    }

    /// By rising address.
    pub fn iter(&self) -> impl Iterator<Item = &RemoteRegion> {
        self.by_address.iter().map(|region| &**region)
    }

    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// As `find`, but says where: a small number, rising with the address, that names the region
    /// within this map.
    pub(crate) fn find_position(&self, address: u64, length: u64) -> Option<u32> {
        let starts_before = self.starts.partition_point(|&start| start <= address);
        let &position = self.farthest.get(starts_before.checked_sub(1)?)?;
        self.at(position).contains(address, length).then_some(position)
    }

    /// As `get`, but says where, like `find_position`.
    pub(crate) fn position_of(&self, id: u64) -> Option<u32> {
        let found = self.by_id.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(self.by_id[found].1)
    }

    /// The region at a position that this map gave.
    pub(crate) fn at(&self, position: u32) -> &RemoteRegion {
        &self.by_address[position as usize]
    }
}

impl RemoteRegion {
    /// Does not overflow: `is_sane` let it in.
    fn end(&self) -> u64 {
        self.address + self.length
    }
}

fn is_sane(region: &RemoteRegion) -> bool {
    region.id != 0 && region.length != 0 && end_of(region.address, region.length).is_some()
}

fn keep_last_of_each_id(regions: &mut Vec<Arc<RemoteRegion>>) -> Result<()> {
    let mut newest: Vec<(u64, usize)> = Vec::new();
    reserve(&mut newest, regions.len())?;
    newest.extend(regions.iter().enumerate().map(|(position, region)| (region.id, position)));
    newest.sort_unstable();
    if newest.windows(2).all(|pair| pair[0].0 != pair[1].0) {
        return Ok(());
    }
    let mut keep = Vec::new();
    reserve(&mut keep, regions.len())?;
    keep.resize(regions.len(), false);
    for (nth, &(id, position)) in newest.iter().enumerate() {
        keep[position] = newest.get(nth + 1).is_none_or(|next| next.0 != id);
    }
    let mut flags = keep.into_iter();
    regions.retain(|_| flags.next().unwrap_or(false));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(id: u64, address: u64, length: u64) -> RemoteRegion {
        RemoteRegion {
            id,
            address,
            length,
            access: Access::BOTH,
            name: String::new(),
            location: Location::HOST,
            staging: false,
        }
    }

    fn id_at(regions: &RemoteRegions, address: u64, length: u64) -> Option<u64> {
        regions.snapshot().find(address, length).map(|region| region.id)
    }

    #[test]
    fn regions_come_and_go() {
        let regions = RemoteRegions::new();
        regions.add(vec![region(1, 4096, 64), region(2, 8192, 64)]);
        regions.add(vec![region(3, 100, 64)]);
        assert_eq!((id_at(&regions, 4096, 64), id_at(&regions, 4096, 65)), (Some(1), None));
        let before = regions.snapshot();
        regions.remove(&[1, 99]);
        assert_eq!((id_at(&regions, 4096, 64), id_at(&regions, 8255, 1)), (None, Some(2)));
        assert_eq!((before.len(), regions.snapshot().len()), (3, 2));
        assert!(regions.snapshot().get(1).is_none() && regions.snapshot().get(3).is_some());
    }

    #[test]
    fn what_a_peer_announced_before_counts_until_it_has_announced_all_again() {
        let regions = RemoteRegions::new();
        regions.add(vec![region(1, 4096, 64), region(2, 8192, 64)]);
        regions.renew();
        regions.add(vec![region(2, 8192, 32), region(3, 100, 64)]);
        assert_eq!((id_at(&regions, 4096, 64), id_at(&regions, 8192, 64)), (Some(1), None));
        regions.remove(&[3]);
        regions.settle();
        let left: Vec<u64> = regions.snapshot().iter().map(|region| region.id).collect();
        assert_eq!(left, [2]);
        // One that settles without having begun forgets nothing.
        regions.settle();
        assert_eq!(regions.snapshot().len(), 1);
    }

    #[test]
    fn the_newest_with_an_id_counts() {
        let regions = RemoteRegions::new();
        regions.add(vec![region(1, 4096, 64), region(2, 100, 8), region(1, 8192, 64)]);
        assert_eq!((id_at(&regions, 4096, 1), id_at(&regions, 8192, 1)), (None, Some(1)));
        regions.add(vec![region(1, 50, 1)]);
        assert_eq!((id_at(&regions, 8192, 1), id_at(&regions, 50, 1)), (None, Some(1)));
        assert_eq!(regions.snapshot().iter().map(|region| region.id).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn nonsense_is_ignored() {
        let regions = RemoteRegions::new();
        regions.add(vec![
            region(1, u64::MAX, 1),
            region(2, 4096, u64::MAX),
            region(3, 1, 0),
            region(0, 1, 1),
        ]);
        assert!(regions.snapshot().is_empty());
        regions.add(vec![region(4, u64::MAX - 1, 1)]);
        assert_eq!((id_at(&regions, u64::MAX - 1, 1), id_at(&regions, u64::MAX - 1, 2)), (Some(4), None));
    }

    #[test]
    fn overlapping_regions_are_searched_like_any() {
        let regions = RemoteRegions::new();
        regions.add(vec![region(1, 0, 1000), region(2, 100, 10), region(3, 100, 50), region(4, 990, 100)]);
        let map = regions.snapshot();
        let mut found = 0;
        for address in 0..1200 {
            for length in [1, 5, 11, 60, 95, 101] {
                let expected = map.iter().any(|region| region.contains(address, length));
                let answer = map.find(address, length);
                assert!(answer.is_none_or(|region| region.contains(address, length)));
                assert_eq!(answer.is_some(), expected, "{address} + {length}");
                found += usize::from(expected);
            }
        }
        assert!(found > 0);
    }
}
