//! Checks the registry against a plain list: every region that is registered, and no other, is found in its place.

use super::*;
use crate::handle::Tag;
use proptest::prelude::*;
use std::time::Duration;

/// (handle, address, length), in the order of registration.
type Model = Vec<(RegionId, u64, u64)>;

#[derive(Clone, Debug)]
enum RegistryStep {
    /// Registers all of the specs or none.
    Register(Vec<(u64, u64)>),
    /// Unregisters the region at this position of the list, modulo its length.
    Unregister(usize),
    /// Registers many adjacent regions at once.
    Batch { first: u64, count: u64 },
}

fn any_step() -> impl Strategy<Value = RegistryStep> {
    let one = (1..4000u64, 1..40u64);
    prop_oneof![
        4 => proptest::collection::vec(one, 1..6).prop_map(RegistryStep::Register),
        6 => any::<usize>().prop_map(RegistryStep::Unregister),
        1 => (1..4000u64, 1..400u64).prop_map(|(first, count)| RegistryStep::Batch { first, count }),
    ]
}

fn spec((address, length): (u64, u64)) -> RegionSpec {
    RegionSpec { address, length, ..RegionSpec::default() }
}

fn overlap((a, a_length): (u64, u64), (b, b_length): (u64, u64)) -> bool {
    a < b + b_length && b < a + a_length
}

/// The first spec, in the caller's order, that overlaps a region or a spec before it.
fn at_fault(model: &Model, specs: &[(u64, u64)]) -> Option<u64> {
    let taken = |nth: usize| {
        let mut others =
            model.iter().map(|(_, address, length)| (*address, *length)).chain(specs[..nth].to_vec());
        others.any(|other| overlap(specs[nth], other))
    };
    (0..specs.len()).find(|nth| taken(*nth)).map(|nth| nth as u64)
}

fn register(registry: &Registry, model: &mut Model, specs: &[(u64, u64)]) {
    let newest = registry.snapshot().newest();
    let result = registry.register(&specs.iter().copied().map(spec).collect::<Vec<_>>());
    match at_fault(model, specs) {
        Some(index) => {
            let error = result.unwrap_err();
            assert_eq!((error.status, error.request_index), (Status::Overlap, Some(index)));
            assert_eq!(registry.snapshot().newest(), newest);
        }
        None => {
            let regions = result.unwrap();
            for (nth, (region, (address, length))) in regions.iter().zip(specs).enumerate() {
                assert_eq!((region.address, region.length), (*address, *length));
                assert_eq!(region.order, newest + 1 + nth as u64);
                model.push((region.id, *address, *length));
            }
            assert_eq!(registry.snapshot().newest(), newest + specs.len() as u64);
        }
    }
}

fn check(map: &RegionMap, model: &Model) {
    let mut sorted = model.clone();
    sorted.sort_by_key(|(_, address, _)| *address);
    let listed = |region: &Arc<Region>| (region.id, region.address, region.length);
    assert!(map.iter().map(listed).eq(sorted.iter().copied()));
    assert_eq!(map.len(), model.len());
    for (id, address, length) in model {
        let region = map.get(*id).unwrap();
        assert_eq!(listed(region), (*id, *address, *length));
        assert!(region.index() < map.indexes() && map.at(region.index()).unwrap().id == *id);
        assert!(map.get(RegionId::from_raw(id.raw() + (1 << 20))).is_none(), "of another generation");
    }
    for address in (1..4800).step_by(13) {
        for length in [1, 17, 40] {
            let expected = sorted.iter().find(|it| range_contains(it.1, it.2, address, length));
            assert_eq!(map.find(address, length).map(listed), expected.copied(), "{address} + {length}");
        }
        let rest = map.iter_from(address).next().map(listed);
        assert_eq!(rest, sorted.iter().find(|it| it.1 >= address).copied());
    }
}

proptest! {
    #![proptest_config(crate::cases::most(32))]

    #[test]
    fn the_registry_is_the_list_of_what_was_registered(steps in proptest::collection::vec(any_step(), 1..60)) {
        let registry = Registry::new(Tag::from_random(77), None);
        let (mut model, mut before) = (Model::new(), Vec::new());
        for (nth, step) in steps.into_iter().enumerate() {
            if nth % 8 == 0 {
                before.push((registry.snapshot(), model.clone()));
            }
            match step {
                RegistryStep::Register(specs) => register(&registry, &mut model, &specs),
                RegistryStep::Batch { first, count } => {
                    let specs: Vec<_> = (0..count).map(|nth| (first + nth * 2, 2)).collect();
                    register(&registry, &mut model, &specs);
                }
                RegistryStep::Unregister(_) if model.is_empty() => {}
                RegistryStep::Unregister(at) => {
                    let (id, ..) = model.remove(at % model.len());
                    registry.unregister(id, Some(Duration::ZERO)).unwrap();
                    prop_assert_eq!(registry.get(id).unwrap_err().status, Status::Stale);
                }
            }
            check(&registry.snapshot(), &model);
        }
        before.iter().for_each(|(map, model)| check(map, model));
    }
}
