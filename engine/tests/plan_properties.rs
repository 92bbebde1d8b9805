//! The promises of planning and routing for any list of requests: from requests over slices back to requests no byte
//! is lost, doubled or misplaced. A failing case prints its seed, and proptest keeps the seed; turn the case into a
//! named test.

use ferry::internals::handle::{self, Kind, Parts, Tag};
use ferry::internals::plan::{plan, Plan, PlanInput};
use ferry::internals::region::{RegionMap, Registry, RemoteMap, RemoteRegion, RemoteRegions};
use ferry::internals::request_map::requests_of;
use ferry::internals::route;
use ferry::types::{Access, Location, Op, RegionId, Request, Slice};
use ferry::RegionSpec;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// The length of each region on either side; some regions touch, some leave a gap.
const REGION_BYTES: u64 = 1 << 20;
const REGIONS: u32 = 4;
const REMOTE: u64 = 1 << 40;

/// The addresses of the regions, and a handle for regions that only the target knows.
struct World {
    local: Arc<RegionMap>,
    remote: Arc<RemoteMap>,
    tag: Tag,
}

impl World {
    /// `gaps`: whether region i is followed by a gap rather than by the next region.
    fn new(gaps: &[bool]) -> World {
        let registry = Registry::new(Tag::from_random(1), None);
        let spec = |address| RegionSpec { address, length: REGION_BYTES, ..RegionSpec::default() };
        let specs: Vec<_> = (0..REGIONS).map(|number| spec(start_of(number, gaps))).collect();
        registry.register(&specs).unwrap();
        let regions = RemoteRegions::new();
        let region = |number: u32| RemoteRegion {
            id: remote_handle(number),
            order: u64::from(number) + 1,
            address: REMOTE + start_of(number, gaps),
            length: REGION_BYTES,
            access: Access::BOTH,
            name: String::new(),
            location: Location::HOST,
            staging: false,
        };
        regions.add((0..REGIONS).map(region).collect());
        World { local: registry.snapshot(), remote: regions.snapshot(), tag: Tag::from_random(2) }
    }

    fn plan(&self, requests: &[Request], coalesce: bool) -> Plan {
        let (local, remote) = (&self.local, &self.remote);
        let input = PlanInput { op: Op::Read, requests, coalesce, local, remote, remote_tag: self.tag };
        plan(&input).unwrap()
    }
}

fn start_of(number: u32, gaps: &[bool]) -> u64 {
    let before = gaps[..number as usize].iter().filter(|&&gap| gap).count() as u64;
    (u64::from(number) + 1) * REGION_BYTES + before * 4096
}

fn remote_handle(number: u32) -> RegionId {
    let parts = Parts { index: number, generation: 5 };
    RegionId::from_raw(handle::make(Kind::Region, Tag::from_random(2), parts))
}

/// The random parameters of a request; offsets are in units, so that some requests touch.
#[derive(Clone, Debug)]
struct Draw {
    local: (u32, u64),
    remote: (u32, u64),
    units: u64,
    naming: Naming,
}

#[derive(Clone, Copy, Debug)]
enum Naming {
    Named,
    Unnamed,
    UnknownHere,
}

fn draws(count: usize) -> impl Strategy<Value = Vec<Draw>> {
    let place = || (0..REGIONS, 0..12_u64);
    let naming = prop_oneof![
        6 => Just(Naming::Named),
        3 => Just(Naming::Unnamed),
        1 => Just(Naming::UnknownHere),
    ];
    let draw = (place(), place(), 1..4_u64, naming).prop_map(|(local, remote, units, naming)| Draw {
        local,
        remote,
        units,
        naming,
    });
    prop::collection::vec(draw, 1..count)
}

/// Returns requests anywhere, overlapping or not, `unit` bytes per unit. Odd places are counted from the end of the
/// region, so that ranges meet at its boundary.
fn scattered(draws: &[Draw], gaps: &[bool], unit: u64) -> Vec<Request> {
    let at = |(number, place): (u32, u64), length: u64| {
        let offset = if place % 2 == 0 { place * unit } else { REGION_BYTES - length - (place - 1) * unit };
        start_of(number, gaps) + offset
    };
    let request = |draw: &Draw| {
        let length = draw.units * unit;
        Request {
            local: at(draw.local, length),
            remote: REMOTE + at(draw.remote, length),
            length,
            remote_region: match draw.naming {
                Naming::Named => remote_handle(draw.remote.0),
                Naming::Unnamed => RegionId::NONE,
                Naming::UnknownHere => remote_handle(REGIONS + draw.remote.0),
            },
        }
    };
    draws.iter().map(request).collect()
}

/// Generates requests that share no remote byte, in runs that continue on both sides, in random order.
fn runs() -> impl Strategy<Value = Vec<Request>> {
    let run = (prop::collection::vec(1..2000_u64, 1..8), any::<bool>(), any::<bool>(), any::<bool>());
    prop::collection::vec(run, 1..12).prop_map(lay_out).prop_shuffle()
}

type Run = (Vec<u64>, bool, bool, bool);

fn lay_out(runs: Vec<Run>) -> Vec<Request> {
    let (mut local, mut remote) = (REGION_BYTES, REMOTE + REGION_BYTES);
    let mut requests = Vec::new();
    for (lengths, local_gap, remote_gap, named) in runs {
        local += u64::from(local_gap);
        remote += u64::from(remote_gap);
        for length in lengths {
            let remote_region = if named { remote_handle(0) } else { RegionId::NONE };
            requests.push(Request { local, remote, length, remote_region });
            local += length;
            remote += length;
        }
    }
    requests
}

/// Returns (remote byte, local byte, region on the wire) of everything, sorted: planning must not change these.
fn bytes_of(pieces: impl Iterator<Item = (u64, u64, u64, RegionId)>) -> Vec<(u64, u64, RegionId)> {
    let byte_by_byte = |(local, remote, length, region): (u64, u64, u64, RegionId)| {
        (0..length).map(move |byte| (remote + byte, local + byte, region))
    };
    let mut bytes: Vec<_> = pieces.flat_map(byte_by_byte).collect();
    bytes.sort_unstable();
    bytes
}

fn bytes_of_requests(requests: &[Request]) -> Vec<(u64, u64, RegionId)> {
    bytes_of(requests.iter().map(|it| (it.local, it.remote, it.length, it.remote_region)))
}

fn bytes_of_slices(slices: &[Slice]) -> Vec<(u64, u64, RegionId)> {
    bytes_of(slices.iter().map(|it| (it.local, it.remote, u64::from(it.length), it.region)))
}

/// Checks that `requests_of` cuts each slice into parts that lie where their requests say, and that all parts together
/// are each request exactly once.
fn check_attribution(order: &[u32], requests: &[Request], slices: &[Slice]) {
    let mut parts: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
    for slice in slices {
        let mut done = 0;
        for (index, offset, length) in requests_of(order, requests, slice) {
            let request = &requests[index as usize];
            assert!(length > 0 && offset + length <= request.length);
            assert_eq!(slice.local + done, request.local + offset);
            assert_eq!(slice.remote + done, request.remote + offset);
            assert_eq!(slice.region, request.remote_region);
            parts.entry(index).or_default().push((offset, length));
            done += length;
        }
        assert_eq!(done, u64::from(slice.length));
    }
    for (index, request) in requests.iter().enumerate() {
        let mut parts = parts.remove(&(index as u32)).unwrap_or_default();
        parts.sort_unstable();
        let end = parts.iter().fold(0, |end, &(offset, length)| {
            assert_eq!(offset, end, "request {index} is not covered once");
            end + length
        });
        assert_eq!(end, request.length);
    }
}

/// Returns the least possible number of ranges. Each request has one successor at most when no remote byte is shared;
/// every other request begins a range of its own.
fn fewest_ranges(world: &World, requests: &[Request]) -> usize {
    let follows = |next: &Request, before: &Request| {
        let both = before.length + next.length;
        before.local + before.length == next.local
            && before.remote + before.length == next.remote
            && before.remote_region == next.remote_region
            && world.local.find(before.local, both).is_some()
            && world.remote.find(before.remote, both).is_some()
    };
    let begins = |next: &&Request| !requests.iter().any(|before| follows(next, before));
    requests.iter().filter(begins).count()
}

proptest! {
    #[test]
    fn slices_carry_every_byte_to_its_place(
        draws in draws(40),
        gaps in prop::array::uniform4(any::<bool>()),
        coalesce: bool,
        slice_bytes_max in 1..40_u32,
    ) {
        let world = World::new(&gaps);
        let requests = scattered(&draws, &gaps, 7);
        let plan = world.plan(&requests, coalesce);
        let slices = route::slice(&plan.ranges, &plan.order, &requests, slice_bytes_max).unwrap();

        prop_assert_eq!(bytes_of_slices(&slices), bytes_of_requests(&requests));
        check_attribution(&plan.order, &requests, &slices);
        prop_assert_eq!(plan.bytes, requests.iter().map(|request| request.length).sum::<u64>());
        for slice in &slices {
            prop_assert!(slice.length > 0 && slice.length <= slice_bytes_max);
            prop_assert!(world.local.find(slice.local, slice.length.into()).is_some());
            prop_assert!(world.remote.find(slice.remote, slice.length.into()).is_some());
        }
    }

    #[test]
    fn plans_list_their_order_counts_and_regions(
        draws in draws(60),
        gaps in prop::array::uniform4(any::<bool>()),
    ) {
        let world = World::new(&gaps);
        let requests = scattered(&draws, &gaps, 7);
        let plan = world.plan(&requests, true);

        let mut order = plan.order.clone();
        order.sort_unstable();
        prop_assert!(order.is_empty() || order.into_iter().eq(0..requests.len() as u32));
        let mut position = 0;
        for range in &plan.ranges {
            prop_assert_eq!(range.first, position);
            position += range.count;
        }
        prop_assert_eq!(position as usize, requests.len());

        let mut touched: Vec<RegionId> = plan.local_regions.iter().map(|region| region.id).collect();
        let expected = |request: &Request| world.local.find(request.local, request.length).unwrap().id;
        let mut expected: Vec<RegionId> = requests.iter().map(expected).collect();
        touched.sort_unstable();
        expected.sort_unstable();
        expected.dedup();
        prop_assert_eq!(touched, expected);
    }

    #[test]
    fn runs_merge_into_as_few_ranges_as_possible(requests in runs()) {
        let world = World::new(&[false; 4]);
        let plan = world.plan(&requests, true);
        prop_assert_eq!(plan.ranges.len(), fewest_ranges(&world, &requests));
        prop_assert_eq!(world.plan(&requests, false).ranges.len(), requests.len());
    }
}
