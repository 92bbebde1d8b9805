//! Quotas of tenants against a model: a list of objects, of which a put evicts by looking at all of them.

use proptest::prelude::*;

use super::*;
use crate::store::Begin;
use crate::Outcome;

const UNIT: u64 = 64;
/// So few that free space is never too scattered for a value.
const UNITS: u64 = 24;
/// The quotas of the tenants 0 and 1. The tenant 2 has none.
const QUOTAS: [u64; 2] = [9, 5];

fn tag(tenant: u8) -> TenantTag {
    TenantTag([tenant; 8])
}

fn digest(tenant: u8, key: u8) -> Digest {
    Digest::tagged([3 * key + tenant + 1; 32], tag(tenant))
}

fn owner() -> Owner {
    let mut store = Store::new(UNITS * UNIT, UNIT);
    store.set_quotas(&[(tag(0), QUOTAS[0] * UNIT + 1), (tag(1), QUOTAS[1] * UNIT)]);
    Owner::new(store, 0)
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Writing,
    Readable,
    /// Removed, and still written or read.
    Gone,
}

#[derive(Clone, Debug)]
struct Known {
    tenant: u8,
    digest: Digest,
    units: u64,
    slot: Slot,
    holders: usize,
    state: State,
}

/// Objects, the most recently used last.
#[derive(Debug, Default)]
struct Model {
    objects: Vec<Known>,
    evicted: [u64; 2],
}

impl Model {
    fn used(&self, is_its: impl Fn(&Known) -> bool) -> u64 {
        self.objects.iter().filter(|known| is_its(known)).map(|known| known.units).sum()
    }

    /// Evicts the least recently used one of these.
    fn evict(&mut self, is_its: impl Fn(&Known) -> bool) -> Option<Known> {
        let may_go = |known: &Known| known.state == State::Readable && known.holders == 0 && is_its(known);
        let at = self.objects.iter().position(may_go)?;
        Some(self.objects.remove(at))
    }

    /// The answer to a wish to write, and what goes for it.
    fn begin(&mut self, tenant: u8, digest: Digest, units: u64) -> (Outcome, Vec<u64>) {
        let mut gone = Vec::new();
        let known = self.objects.iter().find(|known| known.digest == digest && known.state != State::Gone);
        if known.is_some() {
            return (Outcome::Here, gone);
        }
        let quota = QUOTAS.get(usize::from(tenant)).copied();
        if units > quota.unwrap_or(UNITS) {
            return (Outcome::TooLong, gone);
        }
        loop {
            let used = self.used(|known| known.tenant == tenant);
            let evicted = if quota.is_some_and(|quota| used + units > quota) {
                let evicted = self.evict(|known| known.tenant == tenant);
                self.evicted[usize::from(tenant)] += u64::from(evicted.is_some());
                evicted
            } else if self.used(|_| true) + units > UNITS {
                self.evict(|_| true)
            } else {
                return (Outcome::Ok, gone);
            };
            match evicted {
                Some(known) => gone.push(known.digest.fingerprint()),
                None => return (Outcome::Full, gone),
            }
        }
    }

    fn use_up(&mut self, at: usize) {
        let known = self.objects.remove(at);
        self.objects.push(known);
    }
}

fn gone(owner: &mut Owner) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(effect) = owner.next_effect() {
        let Effect::Gone(gone) = effect else { panic!("{effect:?}") };
        all.extend(gone);
    }
    all
}

fn put(owner: &mut Owner, model: &mut Model, tenant: u8, digest: Digest, units: u64) {
    let (expected, expected_gone) = model.begin(tenant, digest, units);
    let begun = owner.begin(&digest, units * UNIT);
    let outcome = match begun {
        Begin::Write(slot) => {
            let known = Known { tenant, digest, units, slot, holders: 1, state: State::Writing };
            model.objects.push(known);
            Outcome::Ok
        }
        Begin::Here | Begin::Written(_) => Outcome::Here,
        Begin::Full | Begin::OverQuota => Outcome::Full,
        Begin::TooLong => Outcome::TooLong,
    };
    assert_eq!((outcome, gone(owner)), (expected, expected_gone), "{units} units of {tenant}: {model:?}");
}

/// Does one thing to an object that a number chooses.
fn step(owner: &mut Owner, model: &mut Model, what: u8, number: usize) {
    let chosen = |model: &Model, is_it: &dyn Fn(&Known) -> bool| {
        let all: Vec<usize> = (0..model.objects.len()).filter(|at| is_it(&model.objects[*at])).collect();
        (!all.is_empty()).then(|| all[number % all.len()])
    };
    let writing = |known: &Known| known.state == State::Writing;
    let readable = |known: &Known| known.state == State::Readable;
    match what {
        0 | 1 => {
            let Some(at) = chosen(model, &writing) else { return };
            let known = &mut model.objects[at];
            (known.holders, known.state) = (0, State::Readable);
            assert!(owner.store.commit(known.slot, 1));
            model.use_up(at);
        }
        2 => {
            let Some(at) = chosen(model, &writing) else { return };
            owner.store.abort(model.objects.remove(at).slot);
        }
        3 => {
            let Some(at) = chosen(model, &readable) else { return };
            model.objects[at].holders += 1;
            owner.store.hold(model.objects[at].slot);
        }
        4 | 5 => {
            let held = |known: &Known| known.holders > 0 && !writing(known);
            let Some(at) = chosen(model, &held) else { return };
            let known = &mut model.objects[at];
            known.holders -= 1;
            owner.store.release(known.slot);
            match known.holders {
                0 if known.state == State::Gone => drop(model.objects.remove(at)),
                0 => model.use_up(at),
                _ => {}
            }
        }
        6 => {
            let Some(at) = chosen(model, &|known| readable(known) && known.holders == 0) else { return };
            owner.store.touch(model.objects[at].slot);
            model.use_up(at);
        }
        7 => {
            let Some(at) = chosen(model, &readable) else { return };
            assert!(owner.store.remove(&model.objects[at].digest));
            match model.objects[at].holders {
                0 => drop(model.objects.remove(at)),
                _ => model.objects[at].state = State::Gone,
            }
        }
        _ => {
            let evicted = model.evict(|_| true).map(|known| known.digest);
            assert_eq!(owner.store.evict(), evicted, "what all use is evicted as without quotas");
        }
    }
}

fn check(owner: &Owner, model: &Model) {
    let store = &owner.store;
    assert_eq!(store.free_bytes(), (UNITS - model.used(|_| true)) * UNIT);
    for tenant in 0..2 {
        let account = store.account_of(tag(tenant)).unwrap();
        let used = model.used(|known| known.tenant == tenant);
        let objects = model.objects.iter().filter(|known| known.tenant == tenant).count() as u64;
        assert!(used <= QUOTAS[usize::from(tenant)]);
        assert_eq!(store.quota_of(tag(tenant)), (QUOTAS[usize::from(tenant)] * UNIT, used * UNIT));
        assert_eq!((account.objects, account.evicted), (objects, model.evicted[usize::from(tenant)]));
        let mut own = model.objects.iter().filter(|known| known.tenant == tenant);
        let oldest = own.find(|known| known.state == State::Readable && known.holders == 0);
        assert_eq!(store.oldest_of(tag(tenant)), oldest.map(|known| known.digest));
    }
    for known in &model.objects {
        let found = (known.state == State::Readable).then_some(known.slot);
        assert!(found.is_none() || store.find(&known.digest) == found, "{known:?} has gone");
    }
}

proptest! {
    #[test]
    fn quotas_do_what_a_list_does(steps in prop::collection::vec((0..13u8, 0..3u8, 0..7u8, 1..12u64, 0..99usize), 1..200)) {
        let (mut owner, mut model) = (owner(), Model::default());
        for (what, tenant, key, units, number) in steps {
            if what >= 9 {
                // Most are short, so that there are many.
                let units = if number % 4 > 0 { 1 + units % 3 } else { units };
                put(&mut owner, &mut model, tenant, digest(tenant, key), units);
            } else {
                step(&mut owner, &mut model, what, number);
            }
            check(&owner, &model);
        }
    }
}

#[test]
fn a_tenant_at_its_quota_loses_its_own_tail_and_nobody_elses() {
    let (mut owner, mut model) = (owner(), Model::default());
    let store = |owner: &mut Owner, model: &mut Model, tenant: u8, key: u8| {
        put(owner, model, tenant, digest(tenant, key), 1);
        let at = model.objects.len() - 1;
        step(owner, model, 0, 0);
        model.objects[at].slot
    };
    // The others' are older.
    for key in 0..4 {
        store(&mut owner, &mut model, 2, key);
    }
    let slots: Vec<Slot> = (0..5).map(|key| store(&mut owner, &mut model, 1, key)).collect();
    // A get of the prefix ends with its tail first.
    slots.iter().rev().for_each(|slot| owner.store.touch(*slot));
    assert!(matches!(owner.begin(&digest(1, 9), UNIT), Begin::Write(_)));
    assert_eq!(gone(&mut owner), [digest(1, 4).fingerprint()]);
    // An object that is read or written does not go.
    slots[..4].iter().for_each(|slot| owner.store.hold(*slot));
    assert_eq!(owner.begin(&digest(1, 8), UNIT), Begin::OverQuota);
    assert_eq!(owner.begin(&digest(1, 8), 6 * UNIT), Begin::TooLong);
    // Room is made for a prefetch within the quota, without what it is to keep.
    slots[..4].iter().rev().for_each(|slot| owner.store.release(*slot));
    let kept = BTreeSet::from([digest(1, 2)]);
    assert!(owner.make_room_beside(0, (tag(1), UNIT), &kept));
    assert_eq!(gone(&mut owner), [digest(1, 3).fingerprint()]);
    assert!(!owner.make_room_beside(0, (tag(1), 2 * UNIT), &kept));
    assert_eq!((gone(&mut owner), owner.store.len()), (vec![], 4 + 3));
}

#[test]
fn tenants_have_the_same_share_of_another_store_and_what_it_has_counts() {
    let mut file = Store::new(4 * UNITS * 256, 256);
    for key in 0..3 {
        let Begin::Write(slot) = file.begin(&digest(1, key), 5 * 256) else { panic!("there is room") };
        file.commit(slot, 1);
    }
    file.share_as(&owner().store);
    assert_eq!(file.quota_of(tag(0)), (QUOTAS[0] * 4 * 256, 0));
    assert_eq!(file.quota_of(tag(1)), (QUOTAS[1] * 4 * 256, 15 * 256));
    assert_eq!(file.begin(&digest(1, 9), 6 * 256), Begin::OverQuota);
    assert_eq!(file.evict_of(tag(1)), Some(digest(1, 0)));
    assert!(matches!(file.begin(&digest(1, 9), 6 * 256), Begin::Write(_)));
}
