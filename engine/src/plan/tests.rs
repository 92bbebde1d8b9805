//! Examples of planning: each error at its last valid and first invalid value, and which requests merge.
//! `tests/plan_properties.rs` has the general properties.

use super::blocks::{expand, BlockIds, Layer};
use super::*;
use crate::handle::{self, Kind, Parts};
use crate::limits::REQUESTS_MAX;
use crate::region::remote::RemoteRegions;
use crate::region::{RegionSpec, Registry, RemoteRegion};
use crate::types::{Access, Location, RegionId};

const MIB: u64 = 1 << 20;

/// Local: two regions that touch, [1, 2) and [2, 3) MiB. Remote: A [16, 17) MiB for both operations,
/// B [17, 18) for reads, C [18, 19) for writes.
struct World {
    registry: Registry,
    remote: Arc<RemoteMap>,
    tag: Tag,
}

const A: u32 = 0;
const B: u32 = 1;
const C: u32 = 2;

impl World {
    fn new() -> World {
        let registry = Registry::new(Tag::from_random(3), None);
        let spec = |address| RegionSpec { address, length: MIB, ..RegionSpec::default() };
        registry.register(&[spec(MIB), spec(2 * MIB)]).unwrap();
        let tag = Tag::from_random(9);
        let regions = RemoteRegions::new();
        let rights = [Access::BOTH, Access::REMOTE_READ, Access::REMOTE_WRITE];
        regions.add(
            (0..3u32)
                .map(|index| RemoteRegion {
                    id: remote_handle(index),
                    order: u64::from(index) + 1,
                    address: (16 + u64::from(index)) * MIB,
                    length: MIB,
                    access: rights[index as usize],
                    name: String::new(),
                    location: Location::HOST,
                    staging: false,
                })
                .collect(),
        );
        World { registry, remote: regions.snapshot(), tag }
    }

    fn plan_as(&self, op: Op, coalesce: bool, requests: &[Request]) -> Result<Plan> {
        let local = self.registry.snapshot();
        plan(&PlanInput { op, requests, coalesce, local: &local, remote: &self.remote, remote_tag: self.tag })
    }

    fn plan(&self, requests: &[Request]) -> Result<Plan> {
        self.plan_as(Op::Write, true, requests)
    }

    /// Returns the status of the error, the request that it names, and its message.
    fn fails(&self, requests: &[Request]) -> (Status, Option<u64>, String) {
        let error = self.plan(requests).unwrap_err();
        (error.status, error.request_index, error.message)
    }
}

fn remote_handle(index: u32) -> RegionId {
    RegionId::from_raw(handle::make(Kind::Region, Tag::from_random(9), Parts { index, generation: 1 }))
}

fn request(local: u64, remote: u64, length: u64) -> Request {
    Request { local, remote, length, remote_region: RegionId::NONE }
}

fn naming(region: u32, local: u64, remote: u64, length: u64) -> Request {
    Request { remote_region: remote_handle(region), ..request(local, remote, length) }
}

fn spans(plan: &Plan) -> Vec<(u64, u64, u64)> {
    plan.ranges.iter().map(|range| (range.local, range.remote, range.length)).collect()
}

#[test]
fn one_request_is_one_range() {
    let plan = World::new().plan(&[naming(A, MIB, 16 * MIB, MIB)]).unwrap();
    let expected =
        Range { local: MIB, remote: 16 * MIB, length: MIB, region: remote_handle(A), first: 0, count: 1 };
    assert_eq!(plan.ranges, [expected]);
    assert_eq!((plan.order.len(), plan.local_regions.len(), plan.bytes), (0, 1, MIB));
}

#[test]
fn the_number_of_requests_is_bounded() {
    assert_eq!(check_count(0).unwrap_err().status, Status::Invalid);
    assert!(check_count(1).is_ok() && check_count(REQUESTS_MAX).is_ok());
    assert_eq!(check_count(REQUESTS_MAX + 1).unwrap_err().status, Status::Limit);
    assert_eq!(World::new().fails(&[]).0, Status::Invalid);
}

#[test]
fn errors_name_the_request_and_its_field() {
    let (world, good) = (World::new(), request(MIB, 16 * MIB, 1));
    let (status, index, message) = world.fails(&[good, good, good, request(MIB, 16 * MIB, 0)]);
    assert_eq!((status, index, message.as_str()), (Status::Invalid, Some(3), "requests[3].length is 0"));
    let overflowing = [request(u64::MAX, 16 * MIB, 1), request(MIB, u64::MAX, 1)];
    for (bad, field) in overflowing.into_iter().zip(["requests[1].local ", "requests[1].remote "]) {
        let (status, index, message) = world.fails(&[good, bad]);
        assert_eq!((status, index), (Status::Invalid, Some(1)));
        assert!(message.starts_with(field) && message.contains("overflows"), "{message}");
    }
}

#[test]
fn the_first_bad_request_is_named_without_coalescing_too() {
    let requests = [request(MIB, 16 * MIB, 1), request(MIB, 16 * MIB, 0), request(0, 0, 0)];
    let error = World::new().plan_as(Op::Write, false, &requests).unwrap_err();
    assert_eq!(error.request_index, Some(1));
}

#[test]
fn local_ranges_stay_inside_one_region() {
    let world = World::new();
    assert!(world.plan(&[request(2 * MIB - 1, 16 * MIB, 1)]).is_ok());
    assert!(world.plan(&[request(3 * MIB - 1, 16 * MIB, 1)]).is_ok());
    for (local, length) in [(MIB - 1, 1), (2 * MIB - 1, 2), (3 * MIB, 1), (3 * MIB - 1, 2)] {
        assert_eq!(world.fails(&[request(local, 16 * MIB, length)]).0, Status::NotRegistered);
    }
}

#[test]
fn a_revoked_local_region_is_not_registered() {
    let world = World::new();
    let region = world.registry.snapshot().find(MIB, 1).unwrap().clone();
    assert!(region.enter());
    let timeout = std::time::Duration::from_nanos(1);
    assert_eq!(world.registry.unregister(region.id, Some(timeout)).unwrap_err().status, Status::Busy);
    assert_eq!(world.fails(&[request(MIB, 16 * MIB, 1)]).0, Status::NotRegistered);
    assert!(world.plan(&[request(2 * MIB, 16 * MIB, 1)]).is_ok());
}

#[test]
fn a_named_remote_region_bounds_the_range() {
    let world = World::new();
    assert!(world.plan(&[naming(A, MIB, 17 * MIB - 1, 1)]).is_ok());
    for (remote, length) in [(16 * MIB - 1, 1), (17 * MIB - 1, 2), (17 * MIB, 1)] {
        let (status, _, message) = world.fails(&[naming(A, MIB, remote, length)]);
        assert_eq!(status, Status::Invalid);
        assert!(message.contains("leaves the remote region"), "{message}");
    }
}

#[test]
fn remote_access_is_checked_with_and_without_a_name() {
    let world = World::new();
    for (region, op, allowed) in [
        (A, Op::Read, true),
        (A, Op::Write, true),
        (B, Op::Read, true),
        (B, Op::Write, false),
        (C, Op::Read, false),
        (C, Op::Write, true),
    ] {
        let remote = (16 + u64::from(region)) * MIB;
        for requests in [[naming(region, MIB, remote, 1)], [request(MIB, remote, 1)]] {
            let result = world.plan_as(op, true, &requests);
            assert_eq!(result.map_err(|error| error.status).err(), (!allowed).then_some(Status::Access));
        }
    }
}

#[test]
fn remote_handles_of_another_engine_or_kind_are_refused() {
    let world = World::new();
    let parts = Parts { index: A, generation: 1 };
    let foreign = handle::make(Kind::Region, Tag::from_random(10), parts);
    let peer = handle::make(Kind::Peer, world.tag, parts);
    let of = |remote_region| [Request { remote_region, ..request(MIB, 16 * MIB, 1) }];
    assert_eq!(world.fails(&of(RegionId::from_raw(foreign))).0, Status::Stale);
    assert_eq!(world.fails(&of(RegionId::from_raw(peer))).0, Status::Invalid);
    assert_eq!(world.fails(&of(RegionId::from_raw(1))).0, Status::Stale);
}

#[test]
fn what_only_the_target_can_know_is_let_through_and_not_merged() {
    let world = World::new();
    // A region that is newer than the map, then an address in no known region.
    let unknown = [naming(77, MIB, 99 * MIB, 64), naming(77, MIB + 64, 99 * MIB + 64, 64)];
    assert_eq!(world.plan(&unknown).unwrap().ranges.len(), 2);
    let unnamed = [request(MIB, 99 * MIB, 64), request(MIB + 64, 99 * MIB + 64, 64)];
    assert_eq!(world.plan(&unnamed).unwrap().ranges.len(), 2);
    // Across the boundary of two known regions: no region contains the whole range.
    assert!(world.plan(&[request(MIB, 17 * MIB - 1, 2)]).is_ok());
}

#[test]
fn neighbours_merge_only_within_the_same_regions_on_both_sides() {
    let world = World::new();
    let whole = |requests: &[Request]| world.plan_as(Op::Read, true, requests).unwrap().ranges.len();
    assert_eq!(whole(&[request(MIB, 16 * MIB, 8), request(MIB + 8, 16 * MIB + 8, 8)]), 1);
    // Contiguous, but over the boundary of two local regions, or of two remote ones.
    assert_eq!(whole(&[request(2 * MIB - 8, 16 * MIB, 8), request(2 * MIB, 16 * MIB + 8, 8)]), 2);
    assert_eq!(whole(&[request(MIB, 17 * MIB - 8, 8), request(MIB + 8, 17 * MIB, 8)]), 2);
    // The same region, once by name and once by address: the two differ on the wire.
    assert_eq!(whole(&[naming(A, MIB, 16 * MIB, 8), request(MIB + 8, 16 * MIB + 8, 8)]), 2);
    // Contiguous on one side only.
    assert_eq!(whole(&[request(MIB, 16 * MIB, 8), request(MIB + 9, 16 * MIB + 8, 8)]), 2);
    assert_eq!(whole(&[request(MIB, 16 * MIB, 8), request(MIB + 8, 16 * MIB + 9, 8)]), 2);
}

#[test]
fn requests_are_sorted_only_when_they_are_not() {
    let world = World::new();
    let [a, b, c] = [0, 8, 16].map(|at| request(MIB + at, 16 * MIB + at, 8));
    let sorted = world.plan(&[a, b, c]).unwrap();
    assert_eq!((sorted.order.len(), spans(&sorted)), (0, vec![(MIB, 16 * MIB, 24)]));
    let shuffled = world.plan(&[c, a, b]).unwrap();
    assert_eq!((shuffled.order, shuffled.ranges), (vec![1, 2, 0], sorted.ranges));
    // Equal keys stay in the caller's order.
    assert_eq!(world.plan(&[b, a, a, a]).unwrap().order, [1, 2, 3, 0]);
}

#[test]
fn without_coalescing_every_request_stays_what_and_where_it_is() {
    let requests = [request(MIB + 8, 16 * MIB + 8, 8), request(MIB, 16 * MIB, 8)];
    let plan = World::new().plan_as(Op::Write, false, &requests).unwrap();
    assert_eq!(spans(&plan), [(MIB + 8, 16 * MIB + 8, 8), (MIB, 16 * MIB, 8)]);
    assert!(plan.order.is_empty());
    assert_eq!(plan.ranges.iter().map(|range| range.first).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn each_touched_local_region_is_listed_once() {
    let locals = [MIB, 2 * MIB, MIB + 8, 2 * MIB + 8, MIB];
    let requests = locals.map(|local| request(local, 16 * MIB, 4));
    let plan = World::new().plan(&requests).unwrap();
    let addresses: Vec<u64> = plan.local_regions.iter().map(|region| region.address).collect();
    assert_eq!(addresses, [MIB, 2 * MIB]);
}

#[test]
fn a_sum_of_lengths_that_overflows_is_refused() {
    let world = World::new();
    let half = 1 << 63;
    let spec = RegionSpec { address: half, length: half - 1, ..RegionSpec::default() };
    world.registry.register(&[spec]).unwrap();
    let huge = request(half, half, half - 1);
    assert_eq!(world.plan(&[huge, huge, request(MIB, 16 * MIB, 1)]).unwrap().bytes, u64::MAX);
    let (status, index, message) = world.fails(&[huge, huge, request(MIB, 16 * MIB, 2)]);
    assert_eq!((status, index), (Status::Invalid, Some(2)));
    assert!(message.starts_with("requests[2].length"), "{message}");
}

#[test]
fn consecutive_block_ids_become_one_range_per_run_and_layer() {
    let layer = |number: u64| Layer {
        local_base: MIB + number * (MIB / 2),
        remote_base: 16 * MIB + number * (MIB / 2),
        local_stride: 4096,
        remote_stride: 4096,
        block_bytes: 4096,
        remote_region: remote_handle(A),
    };
    let requests =
        expand(&[layer(0), layer(1)], BlockIds::I32(&[5, 6, 7, 12, 13]), BlockIds::I64(&[2, 3, 4, 8, 9]));
    let plan = World::new().plan(&requests.unwrap()).unwrap();
    let block = |base: u64, id: u64| base + id * 4096;
    let (local, remote) = (MIB, 16 * MIB);
    let (local_1, remote_1) = (local + MIB / 2, remote + MIB / 2);
    let expected = [
        (block(local, 5), block(remote, 2), 3 * 4096),
        (block(local, 12), block(remote, 8), 2 * 4096),
        (block(local_1, 5), block(remote_1, 2), 3 * 4096),
        (block(local_1, 12), block(remote_1, 8), 2 * 4096),
    ];
    assert_eq!(spans(&plan), expected);
}
