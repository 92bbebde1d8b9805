//! The store against a model: a list of objects, the most recently used last.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const UNIT: u64 = 16;
const UNITS: u64 = 40;

fn digest(key: u8) -> Digest {
    // Keys 2n and 2n + 1 have one fingerprint.
    let mut bytes = [key / 2; 32];
    bytes[31] = key;
    Digest(bytes)
}

#[derive(Clone, Debug)]
struct Known {
    key: u8,
    slot: Slot,
    length: u64,
    checksum: u64,
    holders: usize,
    state: State,
    /// Raised with each use.
    used: u64,
}

#[derive(Default)]
struct Model {
    objects: Vec<Known>,
    clock: u64,
}

impl Model {
    fn found(&self, key: u8) -> Option<&Known> {
        self.objects.iter().find(|known| known.key == key && known.state != State::Doomed)
    }

    fn readable(&self, key: u8) -> Option<&Known> {
        self.found(key).filter(|known| known.state == State::Readable)
    }

    fn used_units(&self) -> u64 {
        self.objects.iter().map(|known| known.length.div_ceil(UNIT).max(1)).sum()
    }

    fn at(&mut self, slot: Slot) -> &mut Known {
        self.clock += 1;
        let clock = self.clock;
        let known = self.objects.iter_mut().find(|known| known.slot == slot).expect("the model has it");
        known.used = clock;
        known
    }

    /// Frees what nobody finds and nobody uses.
    fn tidy(&mut self) {
        self.objects.retain(|known| known.state != State::Doomed || known.holders > 0);
    }

    fn slots(&self, state: State) -> Vec<Slot> {
        self.objects.iter().filter(|known| known.state == state).map(|known| known.slot).collect()
    }
}

/// An object that is being written and is removed lives until its commit: the model counts its writer as a holder.
fn step(store: &mut Store, model: &mut Model, what: u8, key: u8, number: u64) {
    let some = |slots: Vec<Slot>| (!slots.is_empty()).then(|| slots[number as usize % slots.len()]);
    match what {
        0..=2 => {
            let begun = store.begin(&digest(key), number);
            let units = number.div_ceil(UNIT).max(1);
            let (free, is_known) =
                (UNITS - model.used_units(), model.found(key).map(|known| (known.state, known.slot)));
            match begun {
                Begin::Write(slot) => {
                    assert!(is_known.is_none() && units <= free);
                    let known = Known {
                        key,
                        slot,
                        length: number,
                        checksum: 0,
                        holders: 1,
                        state: State::Writing,
                        used: 0,
                    };
                    model.objects.push(known);
                }
                Begin::Here => assert!(matches!(is_known, Some((State::Readable, _)))),
                Begin::Written(slot) => assert_eq!(is_known, Some((State::Writing, slot))),
                Begin::Full => assert!(is_known.is_none() && units <= UNITS && (units > free || units > 1)),
                Begin::TooLong => assert!(is_known.is_none() && units > UNITS),
                Begin::OverQuota => panic!("no tenant has a quota"),
            }
        }
        3 | 4 => {
            let writing = |known: &&Known| known.holders > 0 && known.checksum == 0;
            let all = model.objects.iter().filter(writing).map(|known| known.slot).collect();
            let Some(slot) = some(all) else { return };
            let known = model.at(slot);
            known.holders -= 1;
            if what == 3 {
                known.checksum = number + 1;
                let is_readable = known.state == State::Writing;
                known.state = if is_readable { State::Readable } else { State::Doomed };
                assert_eq!(store.commit(slot, number + 1), is_readable);
            } else {
                known.state = State::Doomed;
                store.abort(slot);
            }
        }
        5 => {
            let Some(slot) = some(model.slots(State::Readable)) else { return };
            model.at(slot).holders += 1;
            store.hold(slot);
        }
        6 => {
            let held = |known: &&Known| known.holders > 0 && known.checksum > 0;
            let Some(slot) = some(model.objects.iter().filter(held).map(|known| known.slot).collect()) else {
                return;
            };
            model.at(slot).holders -= 1;
            store.release(slot);
        }
        7 => {
            let Some(slot) = some(model.slots(State::Readable)) else { return };
            store.touch(slot);
            let used = model.at(slot);
            used.used = if used.holders > 0 { 0 } else { used.used };
        }
        8 => {
            let known = model.found(key).cloned();
            assert_eq!(
                store.remove(&digest(key)),
                known.as_ref().is_some_and(|known| known.state == State::Readable)
            );
            known.into_iter().for_each(|known| model.at(known.slot).state = State::Doomed);
        }
        _ => {
            let may_go = |known: &&Known| known.state == State::Readable && known.holders == 0;
            let oldest = model.objects.iter().filter(may_go).min_by_key(|known| known.used).cloned();
            assert_eq!(store.evict(), oldest.as_ref().map(|known| digest(known.key)));
            oldest.into_iter().for_each(|known| model.at(known.slot).state = State::Doomed);
        }
    }
    model.tidy();
}

fn check(store: &Store, model: &Model) {
    assert_eq!(store.free_bytes(), (UNITS - model.used_units()) * UNIT);
    let mut readable: Vec<u8> =
        model.objects.iter().filter(|known| known.state == State::Readable).map(|it| it.key).collect();
    for key in 0..12 {
        let known = model.readable(key);
        assert_eq!(store.find(&digest(key)), known.map(|known| known.slot), "key {key}");
        if let Some(known) = known {
            assert_eq!(
                (store.length(known.slot), store.checksum(known.slot)),
                (known.length, known.checksum)
            );
        }
        let twin = model.readable(key ^ 1).or(known);
        let found = store.find_fingerprint(digest(key).fingerprint());
        assert_eq!(found.is_some(), twin.is_some());
    }
    let (mut from, mut listed) = (Some(0), Vec::new());
    while let Some(place) = from {
        let (digests, next) = store.list(place, 3);
        listed.extend(digests.iter().map(|digest| digest.0[31]));
        from = next;
    }
    readable.sort_unstable();
    listed.sort_unstable();
    assert_eq!((listed, store.len()), (readable, model.slots(State::Readable).len()));
    assert_eq!(store.in_use(), model.objects.iter().filter(|known| known.holders > 0).count());
    // No byte is of two objects, and the pieces of each have its length.
    let mut owners = BTreeMap::new();
    for known in &model.objects {
        let pieces: Vec<Piece> = store.pieces(known.slot).collect();
        assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<u64>(), known.length);
        for unit in
            pieces.iter().flat_map(|piece| piece.offset / UNIT..(piece.offset + piece.bytes).div_ceil(UNIT))
        {
            assert!(
                unit < UNITS && owners.insert(unit, known.key).is_none(),
                "unit {unit} is of two objects"
            );
        }
    }
}

proptest! {
    #[test]
    fn the_store_does_what_a_list_does(steps in prop::collection::vec((0..10u8, 0..12u8, 0..700u64), 1..120)) {
        let (mut store, mut model) = (Store::new(UNITS * UNIT + 5, UNIT), Model::default());
        for (what, key, number) in steps {
            // Most objects are short, so that there are many.
            let number = if what < 3 && number % 8 > 0 { number % 90 } else { number };
            step(&mut store, &mut model, what, key, number);
            check(&store, &model);
        }
    }
}

#[test]
fn an_object_that_is_removed_while_it_is_written_gives_its_space_back() {
    let mut store = Store::new(UNITS * UNIT, UNIT);
    let Begin::Write(slot) = store.begin(&digest(1), 100) else { panic!("there is room") };
    assert!(!store.remove(&digest(1)));
    // The key may be written anew at once.
    let Begin::Write(anew) = store.begin(&digest(1), 100) else { panic!("there is room") };
    assert!(!store.commit(slot, 1) && store.commit(anew, 2));
    assert_eq!((store.free_bytes(), store.len()), ((UNITS - 7) * UNIT, 1));
    assert_eq!(store.evict(), Some(digest(1)));
    assert_eq!(store.free_bytes(), UNITS * UNIT);
}

#[test]
fn the_space_of_an_object_whose_write_failed_after_its_removal_is_free_once() {
    let mut store = Store::new(UNITS * UNIT, UNIT);
    let Begin::Write(slot) = store.begin(&digest(1), 100) else { panic!("there is room") };
    store.remove(&digest(1));
    let Begin::Write(_) = store.begin(&digest(1), 100) else { panic!("there is room") };
    store.abort(slot);
    assert_eq!(store.begin(&digest(1), 100), Begin::Written(Slot(1)));
}
