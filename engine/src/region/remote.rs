//! The regions that a peer announced. `session` keeps them up to date; `plan` checks requests against a snapshot. The
//! snapshot is advice: the target checks every access itself. A late, short or wrong list costs at most a request that
//! the target refuses.

use super::range_contains;
use super::tree::{Order, Place, Tree};
use crate::handle::INDEX_MAX;
use crate::sys::atomic::{AtomicU64, Ordering};
use crate::sys::lock::{Mutex, MutexGuard, RwLock};
use crate::types::{end_of, Access, Location, RegionId};
use std::sync::Arc;

/// The most regions that an engine can have registered at once. Further regions of a peer are ignored.
const REGIONS_MAX: usize = INDEX_MAX as usize + 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    /// The handle that the peer's engine gave the region.
    pub id: RegionId,
    /// The `Region::order` that the peer gave the region.
    pub order: u64,
    pub address: u64,
    pub length: u64,
    pub access: Access,
    pub name: String,
    pub location: Location,
    /// The region is one of the peer's own staging buffers.
    pub staging: bool,
}

impl RemoteRegion {
    /// Returns whether all of `[address, address + length)` lies inside; false when the sum overflows.
    pub(crate) fn contains(&self, address: u64, length: u64) -> bool {
        range_contains(self.address, self.length, address, length)
    }
}

/// The regions of one peer.
#[derive(Debug, Default)]
pub struct RemoteRegions {
    map: RwLock<Arc<RemoteMap>>,
    /// The count of published maps. It rises under the lock of `map`.
    version: AtomicU64,
    /// Held throughout a change, so that two changes never start from the same map. `map` is written only under this
    /// lock, and only for a moment. Between `renew` and `settle` it has the regions that the peer announced again.
    renewed: Mutex<Option<RemoteMap>>,
}

impl RemoteRegions {
    pub fn new() -> RemoteRegions {
        RemoteRegions::default()
    }

    /// Adds announced regions. A region with a known id replaces the older one. Ignores regions that overflow, are
    /// empty or have no id, and regions beyond `REGIONS_MAX`.
    pub fn add(&self, regions: Vec<RemoteRegion>) {
        let mut renewed = self.change();
        let mut map = RemoteMap::clone(&self.snapshot());
        for region in regions.into_iter().filter(is_sane).map(Arc::new) {
            if let Some(renewed) = &mut *renewed {
                renewed.add(region.clone());
            }
            map.add(region);
        }
        self.publish(map);
    }

    /// Removes the regions with these ids; unknown ids are ignored.
    pub fn remove(&self, ids: &[RegionId]) {
        let mut renewed = self.change();
        let mut map = RemoteMap::clone(&self.snapshot());
        for id in ids {
            if let Some(renewed) = &mut *renewed {
                renewed.remove(*id);
            }
            map.remove(*id);
        }
        self.publish(map);
    }

    /// Begins a new connection, on which the peer announces all its regions again. The earlier regions stay known
    /// until `settle`, for transfers under way.
    pub fn renew(&self) {
        // Without known regions nothing has to be forgotten later.
        let known = !self.snapshot().is_empty();
        *self.change() = known.then(RemoteMap::default);
    }

    /// Ends the announcement: regions that the peer did not announce again are forgotten.
    pub fn settle(&self) {
        let mut renewed = self.change();
        if let Some(map) = renewed.take() {
            self.publish(map);
        }
    }

    /// Returns the current map. Cheap: clones one `Arc`.
    pub fn snapshot(&self) -> Arc<RemoteMap> {
        Arc::clone(&self.map.read())
    }

    /// Returns the map's version. A reader that loads the version first gets a map that is at least that new.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn change(&self) -> MutexGuard<'_, Option<RemoteMap>> {
        self.renewed.lock()
    }

    /// Publishes a map. The caller holds the lock of `change`.
    fn publish(&self, map: RemoteMap) {
        let mut old = Arc::new(map);
        let mut place = self.map.write();
        std::mem::swap(&mut *place, &mut old);
        self.version.fetch_add(1, Ordering::Release);
        drop(place);
        // `old` is dropped after the lock: this frees the nodes that only the old map had.
    }
}

/// An immutable snapshot of a peer's regions. Regions may overlap, because peers are not trusted.
#[derive(Clone, Debug, Default)]
pub struct RemoteMap {
    by_address: Tree<ByAddress>,
    by_id: Tree<ById>,
    /// The number of regions in device memory.
    devices: usize,
}

struct ByAddress;

impl Order for ByAddress {
    type Item = Arc<RemoteRegion>;
    /// Several regions may start at one address.
    type Key = (u64, RegionId);
    fn key(region: &Arc<RemoteRegion>) -> (u64, RegionId) {
        (region.address, region.id)
    }
    fn end(region: &Arc<RemoteRegion>) -> u64 {
        region.end()
    }
}

struct ById;

impl Order for ById {
    type Item = Arc<RemoteRegion>;
    type Key = RegionId;
    fn key(region: &Arc<RemoteRegion>) -> RegionId {
        region.id
    }
}

impl RemoteMap {
    fn add(&mut self, region: Arc<RemoteRegion>) {
        if self.len() >= REGIONS_MAX && self.get(region.id).is_none() {
            return;
        }
        self.devices += usize::from(region.location.kind.is_device());
        if let Some(old) = self.by_id.insert(region.clone()) {
            self.devices -= usize::from(old.location.kind.is_device());
            // `insert` below replaces a region at the same address.
            if old.address != region.address {
                self.by_address.remove(ByAddress::key(&old));
            }
        }
        self.by_address.insert(region);
    }

    fn remove(&mut self, id: RegionId) {
        if let Some(old) = self.by_id.remove(id) {
            self.devices -= usize::from(old.location.kind.is_device());
            self.by_address.remove(ByAddress::key(&old));
        }
    }

    /// Returns a region that contains the whole range, any of them if they overlap.
    pub fn find(&self, address: u64, length: u64) -> Option<&RemoteRegion> {
        self.find_place(address, length).map(|(_, region)| region)
    }

    /// Returns the region with exactly this handle.
    pub fn get(&self, id: RegionId) -> Option<&RemoteRegion> {
        self.by_id.get(id).map(|region| &**region)
    }

    /// Returns whether any region is device memory.
    pub fn has_devices(&self) -> bool {
        self.devices > 0
    }

    /// Returns the location of the range's memory, if a region is known.
    pub fn location_at(&self, region: RegionId, address: u64, length: u64) -> Option<Location> {
        let region = match region {
            RegionId::NONE => self.find(address, length),
            id => self.get(id),
        };
        region.map(|region| region.location)
    }

    /// Iterates by rising address.
    pub fn iter(&self) -> impl Iterator<Item = &RemoteRegion> {
        self.by_address.iter().map(|region| &**region)
    }

    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// As `find`, with the region's place: a number that rises with the address and names the region within this map.
    pub(crate) fn find_place(&self, address: u64, length: u64) -> Option<(Place, &RemoteRegion)> {
        let until = (address, RegionId::from_raw(u64::MAX));
        let contains = |(_, region): &(Place, &Arc<RemoteRegion>)| region.contains(address, length);
        // If regions overlap, another region than the last that starts at or before the range may contain it. Then the
        // region that ends last of all that start there contains it, if any does.
        let nearest = self.by_address.at_or_before(until).filter(contains);
        let found = nearest.or_else(|| self.by_address.farthest(until).filter(contains));
        found.map(|(place, region)| (place, &**region))
    }

    /// As `get`, with the region's place, like `find_place`.
    pub(crate) fn place_of(&self, id: RegionId) -> Option<(Place, &RemoteRegion)> {
        let region = self.by_id.get(id)?;
        self.by_address.find(ByAddress::key(region)).map(|(place, region)| (place, &**region))
    }
}

impl RemoteRegion {
    /// Cannot overflow: `is_sane` checked the region.
    fn end(&self) -> u64 {
        self.address + self.length
    }
}

fn is_sane(region: &RemoteRegion) -> bool {
    region.id != RegionId::NONE && region.length != 0 && end_of(region.address, region.length).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn region(id: u64, address: u64, length: u64) -> RemoteRegion {
        RemoteRegion {
            id: RegionId::from_raw(id),
            order: id,
            address,
            length,
            access: Access::BOTH,
            name: String::new(),
            location: Location::HOST,
            staging: false,
        }
    }

    fn id_at(regions: &RemoteRegions, address: u64, length: u64) -> Option<u64> {
        regions.snapshot().find(address, length).map(|region| region.id.raw())
    }

    #[test]
    fn regions_come_and_go() {
        let regions = RemoteRegions::new();
        regions.add(vec![region(1, 4096, 64), region(2, 8192, 64)]);
        regions.add(vec![region(3, 100, 64)]);
        assert_eq!((id_at(&regions, 4096, 64), id_at(&regions, 4096, 65)), (Some(1), None));
        let before = regions.snapshot();
        regions.remove(&[1, 99].map(RegionId::from_raw));
        assert_eq!((id_at(&regions, 4096, 64), id_at(&regions, 8255, 1)), (None, Some(2)));
        assert_eq!((before.len(), regions.snapshot().len()), (3, 2));
        assert!(
            regions.snapshot().get(RegionId::from_raw(1)).is_none()
                && regions.snapshot().get(RegionId::from_raw(3)).is_some()
        );
    }

    #[test]
    fn what_a_peer_announced_before_counts_until_it_has_announced_all_again() {
        let regions = RemoteRegions::new();
        regions.add(vec![region(1, 4096, 64), region(2, 8192, 64)]);
        regions.renew();
        regions.add(vec![region(2, 8192, 32), region(3, 100, 64)]);
        assert_eq!((id_at(&regions, 4096, 64), id_at(&regions, 8192, 64)), (Some(1), None));
        regions.remove(&[RegionId::from_raw(3)]);
        regions.settle();
        let left: Vec<u64> = regions.snapshot().iter().map(|region| region.id.raw()).collect();
        assert_eq!(left, [2]);
        // A settle without a renew forgets nothing.
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
        assert_eq!(regions.snapshot().iter().map(|region| region.id.raw()).collect::<Vec<_>>(), [1, 2]);
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

    /// An announcement of a peer.
    #[derive(Clone, Debug)]
    enum Change {
        Add(Vec<RemoteRegion>),
        Remove(Vec<RegionId>),
        Renew,
        Settle,
    }

    /// The regions by id, and the regions announced again.
    #[derive(Default)]
    struct Model {
        known: BTreeMap<RegionId, RemoteRegion>,
        renewed: Option<BTreeMap<RegionId, RemoteRegion>>,
    }

    impl Model {
        fn apply(&mut self, change: &Change) {
            match change {
                Change::Add(regions) => {
                    for region in regions.iter().filter(|region| is_sane(region)) {
                        self.known.insert(region.id, region.clone());
                        self.renewed
                            .iter_mut()
                            .for_each(|renewed| drop(renewed.insert(region.id, region.clone())));
                    }
                }
                Change::Remove(ids) => {
                    self.known.retain(|id, _| !ids.contains(id));
                    self.renewed.iter_mut().for_each(|renewed| renewed.retain(|id, _| !ids.contains(id)));
                }
                Change::Renew => self.renewed = Some(BTreeMap::new()),
                Change::Settle => self.known = self.renewed.take().unwrap_or(std::mem::take(&mut self.known)),
            }
        }
    }

    fn apply(regions: &RemoteRegions, change: Change) {
        match change {
            Change::Add(these) => regions.add(these),
            Change::Remove(ids) => regions.remove(&ids),
            Change::Renew => regions.renew(),
            Change::Settle => regions.settle(),
        }
    }

    fn check(map: &RemoteMap, model: &BTreeMap<RegionId, RemoteRegion>) {
        let mut expected: Vec<&RemoteRegion> = model.values().collect();
        expected.sort_by_key(|region| (region.address, region.id));
        assert!(map.iter().eq(expected.iter().copied()));
        assert_eq!(map.len(), model.len());
        assert_eq!(map.has_devices(), model.values().any(|region| region.location.kind.is_device()));
        let mut last = None;
        for region in &expected {
            let (place, found) = map.place_of(region.id).unwrap();
            assert_eq!((found, map.get(region.id)), (*region, Some(found)));
            assert!(last.replace(place).is_none_or(|last| last < place), "places rise with the address");
        }
        for address in (0..2200).step_by(7) {
            for length in [1, 90, 500] {
                let answer = map.find_place(address, length);
                let is_known = model.values().any(|region| region.contains(address, length));
                assert_eq!(answer.is_some(), is_known, "{address} + {length}");
                if let Some((place, region)) = answer {
                    assert!(region.contains(address, length));
                    assert_eq!(map.place_of(region.id), Some((place, region)));
                }
            }
        }
        assert!(
            map.get(RegionId::from_raw(1 << 40)).is_none()
                && map.place_of(RegionId::from_raw(1 << 40)).is_none()
        );
    }

    fn any_region() -> impl Strategy<Value = RemoteRegion> {
        (0..300u64, 0..2000u64, 0..600u64, 0..9u8).prop_map(|(id, address, length, kind)| {
            let mut region = region(id, address, length);
            if kind == 0 {
                region.location = Location { kind: crate::types::MemoryKind::Cuda, device: 1 };
            }
            region
        })
    }

    fn any_change() -> impl Strategy<Value = Change> {
        prop_oneof![
            4 => proptest::collection::vec(any_region(), 0..120).prop_map(Change::Add),
            3 => proptest::collection::vec((0..300u64).prop_map(RegionId::from_raw), 0..60).prop_map(Change::Remove),
            1 => Just(Change::Renew),
            1 => Just(Change::Settle),
        ]
    }

    proptest! {
        #![proptest_config(crate::cases::most(32))]

        /// Announcements may overlap, repeat, or be missing: the map holds the same as a list would, and earlier
        /// snapshots do not change.
        #[test]
        fn the_map_is_what_the_peer_said(changes in proptest::collection::vec(any_change(), 1..24)) {
            let (regions, mut model) = (RemoteRegions::new(), Model::default());
            let mut before = Vec::new();
            for change in changes {
                before.push((regions.snapshot(), model.known.clone()));
                model.apply(&change);
                apply(&regions, change);
                check(&regions.snapshot(), &model.known);
            }
            before.iter().for_each(|(map, known)| check(map, known));
        }
    }
}
