//! Registration, lookup and unregistration. `tests/loom_models` checks the gate in every
//! interleaving; the rules around it are tested here.

use super::*;
use crate::handle::{make, next_generation, parse, Kind, Parts, Tag, GENERATION_MAX, INDEX_BITS, INDEX_MAX};
use crate::limits::REGION_NAME_BYTES_MAX;
use crate::types::Op;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const TRY: Option<Duration> = Some(Duration::ZERO);
const BRIEFLY: Option<Duration> = Some(Duration::from_nanos(1));

fn registry() -> Registry {
    Registry::new(Tag::from_random(77), None)
}

fn spec(address: u64, length: u64) -> RegionSpec {
    RegionSpec { address, length, name: "kv".to_owned(), ..RegionSpec::default() }
}

fn register(registry: &Registry, address: u64, length: u64) -> std::sync::Arc<Region> {
    registry.register(&[spec(address, length)]).unwrap().remove(0)
}

fn status<T>(result: Result<T>) -> Status {
    result.err().map_or(Status::Ok, |error| error.status)
}

#[test]
fn containment_does_not_overflow() {
    let registry = registry();
    let top = register(&registry, u64::MAX - 100, 100);
    assert!(top.contains(u64::MAX - 100, 100) && top.contains(u64::MAX - 1, 1));
    assert!(!top.contains(u64::MAX - 1, 2) && !top.contains(u64::MAX - 100, u64::MAX));
    assert!(!top.contains(u64::MAX - 101, 1) && !top.contains(0, u64::MAX));
}

#[test]
fn wrong_specs_are_named_and_nothing_is_registered() {
    let registry = registry();
    let wrong = [
        spec(0, 1),
        spec(4096, 0),
        spec(u64::MAX, 1),
        RegionSpec { access: Access(4), ..spec(4096, 1) },
        RegionSpec { name: "x".repeat(REGION_NAME_BYTES_MAX + 1), ..spec(4096, 1) },
    ];
    for bad in wrong {
        let error = registry.register(&[spec(1 << 30, 1), bad]).unwrap_err();
        assert_eq!((error.status, error.request_index), (Status::Invalid, Some(1)));
    }
    assert_eq!(registry.snapshot().len(), 0);
    let longest = RegionSpec { name: "x".repeat(REGION_NAME_BYTES_MAX), ..spec(u64::MAX - 1, 1) };
    assert!(registry.register(&[longest]).is_ok());
}

#[test]
fn overlaps_are_refused_and_neighbours_are_not() {
    let registry = registry();
    register(&registry, 4096, 4096);
    for (address, length) in [(4096, 1), (8191, 1), (4095, 2), (1, 1 << 20), (8191, 10)] {
        let error = registry.register(&[spec(1 << 30, 1), spec(address, length)]).unwrap_err();
        assert_eq!((error.status, error.request_index), (Status::Overlap, Some(1)));
    }
    let twice = registry.register(&[spec(1 << 30, 8), spec(1 << 31, 8), spec((1 << 30) + 7, 1)]);
    assert_eq!(twice.unwrap_err().request_index, Some(2));
    assert_eq!(registry.snapshot().len(), 1);
    assert_eq!(registry.register(&[spec(8192, 1), spec(4095, 1)]).unwrap().len(), 2);
}

#[test]
fn four_thousand_regions_are_found_exactly() {
    let registry = registry();
    let step = 1 << 16;
    // Registered from the top down and every other one, so that position, index and address differ.
    let specs: Vec<_> = (1..=4096_u64).rev().map(|nth| spec(nth * 2 * step, step)).collect();
    let regions = registry.register(&specs).unwrap();
    let map = registry.snapshot();
    assert_eq!(map.len(), 4096);
    for (spec, region) in specs.iter().zip(&regions) {
        let (start, end) = (spec.address, spec.address + step);
        for (address, length) in [(start, step), (start, 1), (end - 1, 1)] {
            assert_eq!(map.find(address, length).unwrap().id, region.id);
        }
        for (address, length) in [(start - 1, 1), (start - 1, 2), (end - 1, 2), (end, 1)] {
            assert!(map.find(address, length).is_none());
        }
        assert_eq!(map.get(region.id).unwrap().address, start);
    }
    assert!(map.iter().zip(map.iter().skip(1)).all(|(low, high)| low.address < high.address));
}

#[test]
fn each_way_a_handle_can_be_wrong_has_its_status() {
    let registry = registry();
    let first = register(&registry, 4096, 64);
    assert_eq!(registry.get(first.id).unwrap().id, first.id);
    registry.unregister(first.id, None).unwrap();
    assert_eq!(status(registry.unregister(first.id, None)), Status::Stale);

    let second = register(&registry, 4096, 64);
    assert_ne!(first.id, second.id);
    for call in [Registry::unregister, |registry: &Registry, handle, _| registry.get(handle).map(drop)] {
        assert_eq!(status(call(&registry, first.id, TRY)), Status::Stale);
        let never = RegionId::from_raw(second.id.raw() + 1);
        assert_eq!(status(call(&registry, never, TRY)), Status::NotRegistered);
        let next_generation = RegionId::from_raw(second.id.raw() + u64::from(INDEX_MAX) + 1);
        assert_eq!(status(call(&registry, next_generation, TRY)), Status::NotRegistered);
        assert_eq!(status(call(&registry, RegionId::NONE, TRY)), Status::Invalid);
        let foreign = register(&Registry::new(Tag::from_random(78), None), 4096, 64).id;
        assert_eq!(status(call(&registry, foreign, TRY)), Status::Stale);
    }
    assert!(registry.snapshot().get(first.id).is_none());
    assert!(registry.get(second.id).is_ok());
}

/// A peer may name any region.
#[test]
fn each_way_a_peer_can_be_wrong_has_its_status() {
    let tag = Tag::from_random(5);
    let registry = Registry::new(tag, None);
    let region = register(&registry, 4096, 64);
    let map = registry.snapshot();
    let admit = |named| super::admit(&map, tag, Op::Read, (named, 4096, 64)).map(|it| it.id);
    assert_eq!((admit(region.id), admit(RegionId::NONE)), (Ok(region.id), Ok(region.id)));
    let parts = |index, generation| Parts { index, generation };
    let own = parse(Kind::Region, tag, region.id.raw()).unwrap();
    let other = |kind, tag, parts| RegionId::from_raw(make(kind, tag, parts));
    for (named, status) in [
        (other(Kind::Peer, tag, own), Status::Invalid),
        (other(Kind::Transfer, tag, own), Status::Invalid),
        (RegionId::from_raw(region.id.raw() & !(GENERATION_MAX as u64) << INDEX_BITS), Status::Invalid),
        (other(Kind::Region, Tag::from_random(6), own), Status::Stale),
        (other(Kind::Region, tag, parts(own.index, next_generation(own.generation))), Status::Stale),
        (other(Kind::Region, tag, parts(own.index + 1, own.generation)), Status::Stale),
    ] {
        assert_eq!(admit(named), Err(status), "{named:#x}");
    }
}

#[test]
fn trying_to_unregister_what_is_in_use_changes_nothing() {
    let registry = registry();
    let region = register(&registry, 4096, 64);
    assert!(region.enter());
    assert_eq!(status(registry.unregister(region.id, TRY)), Status::Busy);
    assert!(!region.is_revoked() && region.enter());
    region.leave();
    region.leave();
    registry.unregister(region.id, TRY).unwrap();
    assert!(!region.enter());
}

#[test]
fn an_expired_wait_leaves_the_region_revoked_and_in_place() {
    let registry = registry();
    let region = register(&registry, 4096, 64);
    assert!(region.enter());
    assert_eq!(status(registry.unregister(region.id, BRIEFLY)), Status::Busy);
    assert!(region.is_revoked() && !region.enter());
    // The memory still belongs to the region: no other region may be registered there.
    assert_eq!(status(registry.register(&[spec(4100, 1)])), Status::Overlap);
    assert_eq!(status(registry.unregister(region.id, TRY)), Status::Busy);
    region.leave();
    registry.unregister(region.id, TRY).unwrap();
    register(&registry, 4100, 1);
}

#[test]
fn unregister_returns_after_the_last_leave_and_one_of_two_wins() {
    let registry = registry();
    let region = register(&registry, 4096, 64);
    assert!(region.enter());
    let (done, results) = mpsc::channel();
    thread::scope(|scope| {
        for timeout in [None, Some(Duration::MAX)] {
            let (done, registry, id) = (done.clone(), &registry, region.id);
            scope.spawn(move || done.send(status(registry.unregister(id, timeout))).unwrap());
        }
        while !region.is_revoked() {
            thread::yield_now();
        }
        assert!(results.try_recv().is_err(), "returned while the region was in use");
        region.leave();
    });
    let mut statuses: Vec<_> = results.try_iter().collect();
    statuses.sort_by_key(|&status| status as i32);
    assert_eq!(statuses, [Status::Stale, Status::Ok]);
}

#[test]
fn an_old_snapshot_cannot_enter_what_is_gone() {
    let registry = registry();
    let region = register(&registry, 4096, 64);
    let old = registry.snapshot();
    registry.unregister(region.id, None).unwrap();
    assert!(registry.snapshot().find(4096, 64).is_none());
    assert!(!old.find(4096, 64).unwrap().enter());
}

#[test]
#[should_panic(expected = "left more often than entered")]
fn leaving_without_entering_is_a_broken_invariant() {
    register(&registry(), 4096, 64).leave();
}

/// A restarted program registers the same memory in the same order, and its engine may draw the same tag.
#[test]
fn the_regions_of_two_engines_with_one_tag_have_different_handles() {
    let ids: std::collections::HashSet<RegionId> =
        (0..8).map(|_| register(&registry(), 4096, 64).id).collect();
    assert_eq!(ids.len(), 8, "by chance two are the same once in five million times");
}
