//! Planning: for any requests against any regions, slices cover exactly the bytes of the requests, within one region on
//! either side; and a request is refused for the reason that a slow check finds.

use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::handle::{self, Kind, Parts, Tag};
use ferry::internals::plan::{plan, Plan, PlanInput};
use ferry::internals::region::{RegionMap, Registry, RemoteMap, RemoteRegion, RemoteRegions};
use ferry::internals::request_map::requests_of;
use ferry::internals::route;
use ferry::types::{Access, Location, Op, RegionId, Request, Slice};
use ferry::{RegionSpec, Status};

#[derive(Arbitrary, Debug)]
struct Input {
    /// Address and length in units of 16 bytes.
    local: Vec<(u8, u8)>,
    remote: Vec<(u8, u8, u8)>,
    requests: Vec<Draft>,
    reads: bool,
    coalesce: bool,
    slice_bytes_max: u16,
}

#[derive(Arbitrary, Debug)]
enum Draft {
    Near {
        local: u16,
        remote: u16,
        length: u8,
        named: u8,
    },
    /// Goes on where the last request ends.
    Next {
        length: u8,
    },
    Any {
        local: u64,
        remote: u64,
        length: u64,
        region: u64,
    },
}

const UNIT: u64 = 16;

fn id(number: u8) -> RegionId {
    let parts = Parts { index: u32::from(number), generation: 5 };
    RegionId::from_raw(handle::make(Kind::Region, Tag::from_random(2), parts))
}

pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    let registry = Registry::new(Tag::from_random(1), None);
    for (address, length) in input.local.iter().take(12) {
        let (address, length) = ((u64::from(*address) + 1) * UNIT, u64::from(*length) * 3);
        let _ = registry.register(&[RegionSpec { address, length, ..RegionSpec::default() }]);
    }
    let regions = RemoteRegions::new();
    let region = |(nth, &(address, length, access)): (usize, &(u8, u8, u8))| RemoteRegion {
        id: id(nth as u8),
        order: nth as u64 + 1,
        address: (u64::from(address) + 1) * UNIT,
        length: u64::from(length) * 3,
        access: Access(u32::from(access) % 4),
        name: String::new(),
        location: Location::HOST,
        staging: false,
    };
    regions.add(input.remote.iter().take(12).enumerate().map(region).collect());
    let requests = lay_out(&input.requests);
    let op = if input.reads { Op::Read } else { Op::Write };
    let (local, remote) = (registry.snapshot(), regions.snapshot());
    let asked = PlanInput {
        op,
        requests: &requests,
        coalesce: input.coalesce,
        local: &local,
        remote: &remote,
        remote_tag: Tag::from_random(2),
    };
    let Some(expected) = judge(&requests, op, &local, &remote) else { return };
    match plan(&asked) {
        Ok(made) => {
            assert_eq!(expected, Ok(()), "accepted");
            check(&made, &requests, &local, input.coalesce, u32::from(input.slice_bytes_max) + 1);
        }
        Err(error) => {
            let index = error.request_index.unwrap_or(0) as usize;
            assert_eq!(Err((error.status, index)), expected, "{error}");
        }
    }
}

fn lay_out(drafts: &[Draft]) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::new();
    for draft in drafts.iter().take(64) {
        let last = requests.last().copied();
        requests.push(match (draft, last) {
            (&Draft::Near { local, remote, length, named }, _) => Request {
                local: u64::from(local) % 5000,
                remote: u64::from(remote) % 5000,
                length: u64::from(length),
                remote_region: if named < 128 { RegionId::NONE } else { id(named % 16) },
            },
            (&Draft::Next { length }, Some(last)) => Request {
                local: last.local.wrapping_add(last.length),
                remote: last.remote.wrapping_add(last.length),
                length: u64::from(length) + 1,
                ..last
            },
            (&Draft::Next { length }, None) => Request { length: length.into(), ..Request::default() },
            (&Draft::Any { local, remote, length, region }, _) => {
                Request { local, remote, length, remote_region: RegionId::from_raw(region) }
            }
        });
    }
    requests
}

fn holds((start, bytes): (u64, u64), address: u64, length: u64) -> bool {
    let end = |start: u64, bytes: u64| u128::from(start) + u128::from(bytes);
    start <= address && end(address, length) <= end(start, bytes)
}

type Verdict = Result<(), (Status, usize)>;

/// The first bad request, by a slow check; its status and index. None: an unnamed range lies in several regions that
/// grant different rights, and any of them may be taken.
fn judge(requests: &[Request], op: Op, local: &RegionMap, remote: &RemoteMap) -> Option<Verdict> {
    if requests.is_empty() {
        return Some(Err((Status::Invalid, 0)));
    }
    let mut sum = 0u64;
    for (index, &Request { local: from, remote: to, length, remote_region }) in requests.iter().enumerate() {
        let refuse = |status| Some(Err((status, index)));
        if length == 0 || from.checked_add(length).is_none() || to.checked_add(length).is_none() {
            return refuse(Status::Invalid);
        }
        if !local.iter().any(|region| holds((region.address, region.length), from, length)) {
            return refuse(Status::NotRegistered);
        }
        if remote_region == RegionId::NONE {
            let found = remote.find(to, length);
            let holders =
                || remote.iter().filter(|region| holds((region.address, region.length), to, length));
            let denying = holders().filter(|region| !region.access.allows(op)).count();
            assert_eq!(found.is_some(), holders().count() > 0);
            if denying > 0 {
                return if denying == holders().count() { refuse(Status::Access) } else { None };
            }
        } else {
            if let Err(error) = handle::parse(Kind::Region, Tag::from_random(2), remote_region.raw()) {
                return refuse(error.status);
            }
            if let Some(region) = remote.get(remote_region) {
                if !region.access.allows(op) {
                    return refuse(Status::Access);
                }
                if !holds((region.address, region.length), to, length) {
                    return refuse(Status::Invalid);
                }
            }
        }
        let Some(more) = sum.checked_add(length) else { return refuse(Status::Invalid) };
        sum = more;
    }
    Some(Ok(()))
}

fn check(made: &Plan, requests: &[Request], local: &RegionMap, coalesce: bool, slice_bytes_max: u32) {
    let slices = route::slice(&made.ranges, &made.order, requests, slice_bytes_max).unwrap();
    assert_eq!(made.bytes, requests.iter().map(|request| request.length).sum::<u64>());
    let mut done = vec![0u64; requests.len()];
    for slice in &slices {
        let &Slice { local: from, remote: to, length, region, .. } = slice;
        assert!((1..=slice_bytes_max).contains(&length));
        let home = local.iter().find(|home| holds((home.address, home.length), from, length.into()));
        let home = home.expect("a slice leaves its local region");
        assert!(made.local_regions.iter().any(|used| used.id == home.id), "a region that is not entered");
        let mut at = 0;
        for (index, offset, bytes) in requests_of(&made.order, requests, slice) {
            let request = &requests[index as usize];
            assert_eq!((request.local + offset, request.remote + offset), (from + at, to + at));
            assert_eq!(
                (request.remote_region, done[index as usize]),
                (region, offset),
                "bytes are lost or doubled"
            );
            done[index as usize] += bytes;
            at += bytes;
        }
        assert_eq!(at, u64::from(length));
    }
    assert!(done.iter().zip(requests).all(|(done, request)| *done == request.length));
    if !coalesce {
        assert!(made.order.is_empty() && made.ranges.len() == requests.len());
    }
    let mut ids: Vec<RegionId> = made.local_regions.iter().map(|region| region.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), made.local_regions.len(), "a region is entered twice");
}
