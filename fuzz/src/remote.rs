//! The regions that a peer announces, in any order and with any contents: overlaps, wrong sizes, handles that come
//! again. The table finds what a list that is searched finds.

use crate::message::RegionDraft;
use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::region::{RemoteRegion, RemoteRegions};
use ferry::types::RegionId;
use std::collections::BTreeMap;

#[derive(Arbitrary, Debug)]
enum Step {
    Add(Vec<Draft>),
    Remove(Vec<u8>),
    Renew,
    Settle,
    Find(u16, u16),
    FindAny(u64, u64),
}

#[derive(Arbitrary, Debug)]
enum Draft {
    /// Few handles and few addresses, so that they meet.
    Near {
        id: u8,
        address: u8,
        length: u8,
        kind: u8,
    },
    Any(RegionDraft),
}

impl Draft {
    fn region(self) -> RemoteRegion {
        match self {
            Draft::Near { id, address, length, kind } => RegionDraft {
                id: id.into(),
                order: 1,
                address: u64::from(address) * 16,
                length: u64::from(length),
                access: 3,
                kind,
                device: 0,
                staging: false,
                name: String::new(),
            }
            .region(),
            Draft::Any(draft) => draft.region(),
        }
    }
}

type List = BTreeMap<RegionId, RemoteRegion>;

fn add(list: &mut List, region: &RemoteRegion) {
    let ends = region.address.checked_add(region.length).is_some();
    if region.id != RegionId::NONE && region.length > 0 && ends {
        list.insert(region.id, region.clone());
    }
}

pub fn run(data: &[u8]) {
    let Ok(steps) = Vec::<Step>::arbitrary(&mut Unstructured::new(data)) else { return };
    let regions = RemoteRegions::new();
    let (mut list, mut renewed) = (List::new(), None::<List>);
    for step in steps.into_iter().take(200) {
        match step {
            Step::Add(drafts) => {
                let all: Vec<RemoteRegion> = drafts.into_iter().map(Draft::region).collect();
                for region in &all {
                    add(&mut list, region);
                    renewed.iter_mut().for_each(|list| add(list, region));
                }
                regions.add(all);
            }
            Step::Remove(ids) => {
                let ids: Vec<RegionId> = ids.into_iter().map(|id| RegionId::from_raw(id.into())).collect();
                for id in &ids {
                    list.remove(id);
                    renewed.iter_mut().for_each(|list| drop(list.remove(id)));
                }
                regions.remove(&ids);
            }
            Step::Renew => {
                renewed = (!list.is_empty()).then(List::new);
                regions.renew();
            }
            Step::Settle => {
                if let Some(settled) = renewed.take() {
                    list = settled;
                }
                regions.settle();
            }
            Step::Find(address, length) => find(&regions, &list, address.into(), length.into()),
            Step::FindAny(address, length) => find(&regions, &list, address, length),
        }
        check(&regions, &list);
    }
}

fn find(regions: &RemoteRegions, list: &List, address: u64, length: u64) {
    let holds = |region: &RemoteRegion| {
        let (end, region_end) = (
            u128::from(address) + u128::from(length),
            u128::from(region.address) + u128::from(region.length),
        );
        region.address <= address && end <= region_end && end <= u128::from(u64::MAX)
    };
    let map = regions.snapshot();
    if length == 0 {
        return; // requests have bytes
    }
    let found = map.find(address, length);
    assert_eq!(found.is_some(), list.values().any(holds), "{address:#x} + {length:#x}");
    if let Some(found) = found {
        assert!(holds(found) && list.get(&found.id) == Some(found), "a region that does not hold the range");
    }
}

fn check(regions: &RemoteRegions, list: &List) {
    let map = regions.snapshot();
    assert_eq!(map.len(), list.len());
    assert!(list.iter().all(|(id, region)| map.get(*id) == Some(region)));
    assert_eq!(map.has_devices(), list.values().any(|region| region.location.kind.is_device()));
    assert_eq!(map.iter().count(), list.len());
}
