//! The objects that a node holds: where each lies in the node's memory, who uses it, and which one goes next. No I/O, no
//! clock, no messages: `node` says what arrives and what is read, and moves the bytes.
//!
//! ```text
//! begin ─▶ writing ── commit ─▶ readable ⇄ hold, release      evict, remove ─▶ gone when nobody holds it
//!             └ abort ─▶ gone
//! ```
//! An object that is being written is found by `begin` alone. Only objects that nobody holds are in the list of those
//! that may go, least recently used first, so eviction never looks at one that it must skip. A tenant with a quota has
//! an order of its own besides (`account`).

mod account;
mod recent;
mod space;
pub mod table;

use std::collections::BTreeMap;
use std::fmt;

use hashbrown::HashTable;

use crate::key::{Digest, TenantTag};
use account::{Account, NO_ACCOUNT};
use space::{Extent, Extents, Space};

/// An object in the store. It stays valid while the object is written or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub(crate) u32);

/// A piece of the node's memory: where it begins and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub offset: u64,
    pub bytes: u64,
}

/// The answer to a wish to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Write here, then `commit` or `abort`.
    Write(Slot),
    /// The object is here.
    Here,
    /// Another writer is at it.
    Written(Slot),
    /// Too little is free. The object would fit into an empty node.
    Full,
    /// Too little is left of the tenant's quota. The object would fit if the tenant had no other one.
    OverQuota,
    /// The object would not fit into an empty node, or into the tenant's quota.
    TooLong,
}

const NONE: u32 = u32::MAX;
/// A key costs nothing for a quota that its tenant does not have.
const _: () = assert!(size_of::<Object>() == 80);

struct Object {
    digest: Digest,
    length: u64,
    checksum: u64,
    extents: Extents,
    /// Neighbours in the list of objects that may go; `next` of a free place is the next free place.
    newer: u32,
    older: u32,
    holders: u32,
    /// The number of its tenant's account.
    account: u16,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Writing,
    Readable,
    /// Nobody finds it any more, and its last holder frees it.
    Doomed,
}

impl Object {
    fn new(digest: Digest, length: u64, extents: Extents, state: State) -> Object {
        let (newer, older, holders, account) = (NONE, NONE, 0, NO_ACCOUNT);
        Object { digest, length, checksum: 0, extents, newer, older, holders, account, state }
    }
}

pub struct Store {
    unit_bytes: u64,
    units: u32,
    space: Space,
    objects: Vec<Object>,
    free: u32,
    /// Objects that are written or readable.
    by_digest: HashTable<u32>,
    newest: u32,
    oldest: u32,
    readable: usize,
    /// Tenants with a quota, and their numbers.
    accounts: Vec<Account>,
    numbers: BTreeMap<TenantTag, u16>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("objects", &self.readable).field("free", &self.free_bytes()).finish()
    }
}

impl Store {
    /// A store of `bytes` bytes, in units of `unit_bytes`; a rest is not used.
    pub fn new(bytes: u64, unit_bytes: u64) -> Store {
        let units = u32::try_from(bytes / unit_bytes.max(1)).unwrap_or(NONE - 1);
        Store {
            unit_bytes: unit_bytes.max(1),
            units,
            space: Space::new(units),
            objects: Vec::new(),
            free: NONE,
            by_digest: HashTable::new(),
            newest: NONE,
            oldest: NONE,
            readable: 0,
            accounts: Vec::new(),
            numbers: BTreeMap::new(),
        }
    }

    /// Bounds the bytes of tenants, once, before anything is written or held. Objects that are here count.
    pub fn set_quotas(&mut self, quotas: &[(TenantTag, u64)]) {
        for (tag, bytes) in quotas {
            self.numbers.insert(*tag, self.accounts.len() as u16);
            let units_max = u32::try_from(bytes / self.unit_bytes).unwrap_or(NONE).min(self.units);
            self.accounts.push(Account::new(*tag, units_max));
        }
        let count = if quotas.is_empty() { 0 } else { self.readable };
        for _ in 0..count {
            let slot = self.oldest;
            self.unlink(slot);
            self.charge(slot, self.number_of(&self.object(slot).digest));
            self.add_newest(slot);
        }
    }

    /// Bounds tenants by the share of this store that they have of another one.
    pub fn share_as(&mut self, other: &Store) {
        let all = u128::from(other.units.max(1));
        let share = |units: u32| (u128::from(units) * u128::from(self.capacity()) / all) as u64;
        // A small share is a unit, so that a tenant may have anything.
        let bytes = |units: u32| share(units).max(self.unit_bytes.min(u64::from(units) * self.unit_bytes));
        let quotas = other.accounts.iter().map(|account| (account.tag, bytes(account.units_max)));
        self.set_quotas(&quotas.collect::<Vec<_>>());
    }

    /// What a tenant with a quota has.
    pub fn account_of(&self, tag: TenantTag) -> Option<&Account> {
        self.accounts.get(usize::from(*self.numbers.get(&tag)?))
    }

    /// The bytes of a tenant's quota, and those that the tenant has. Others may have the whole node, and are not counted.
    pub fn quota_of(&self, tag: TenantTag) -> (u64, u64) {
        let (most, taken) = self.account_of(tag).map_or((self.units, 0), |it| (it.units_max, it.units));
        (u64::from(most) * self.unit_bytes, u64::from(taken) * self.unit_bytes)
    }

    pub fn capacity(&self) -> u64 {
        u64::from(self.units) * self.unit_bytes
    }

    pub fn free_bytes(&self) -> u64 {
        u64::from(self.space.free()) * self.unit_bytes
    }

    /// The number of readable objects.
    pub fn len(&self) -> usize {
        self.readable
    }

    /// The number of objects that are held or written.
    pub fn in_use(&self) -> usize {
        let is_used = |object: &&Object| match object.state {
            State::Free => false,
            State::Readable => object.holders > 0,
            State::Writing | State::Doomed => true,
        };
        self.objects.iter().filter(is_used).count()
    }

    pub fn is_empty(&self) -> bool {
        self.readable == 0
    }

    /// Returns the readable object of this key.
    pub fn find(&self, digest: &Digest) -> Option<Slot> {
        let slot = self.look_up(digest)?;
        (self.object(slot).state == State::Readable).then_some(Slot(slot))
    }

    /// Makes room for an object, which becomes readable by `commit`.
    pub fn begin(&mut self, digest: &Digest, length: u64) -> Begin {
        if let Some(slot) = self.look_up(digest) {
            return match self.object(slot).state {
                State::Writing => Begin::Written(Slot(slot)),
                _ => Begin::Here,
            };
        }
        let Some(bytes) = self.bytes_for(digest, length) else { return Begin::TooLong };
        let (quota, taken) = self.quota_of(digest.tag());
        if taken + bytes > quota {
            return Begin::OverQuota;
        }
        let units = (bytes / self.unit_bytes) as u32;
        let Some(extents) = self.space.take(units) else { return Begin::Full };
        let slot = self.place(Object::new(*digest, length, extents, State::Writing));
        self.charge(slot, self.number_of(digest));
        self.index(slot);
        Begin::Write(Slot(slot))
    }

    /// The object is whole, and readable from now on. False: it was removed while it was written, and is gone.
    pub fn commit(&mut self, slot: Slot, checksum: u64) -> bool {
        let object = self.object_mut(slot.0);
        if object.state == State::Doomed {
            self.give_back(slot.0);
            return false;
        }
        (object.state, object.checksum) = (State::Readable, checksum);
        self.readable += 1;
        self.add_newest(slot.0);
        true
    }

    /// Returns a readable object with this fingerprint.
    pub fn find_fingerprint(&self, fingerprint: u64) -> Option<Slot> {
        let is_it = |slot: &u32| {
            let object = self.object(*slot);
            object.digest.fingerprint() == fingerprint && object.state == State::Readable
        };
        self.by_digest.find(fingerprint, is_it).map(|slot| Slot(*slot))
    }

    /// The object could not be written.
    pub fn abort(&mut self, slot: Slot) {
        self.forget_digest(slot.0);
        self.give_back(slot.0);
    }

    pub fn length(&self, slot: Slot) -> u64 {
        self.object(slot.0).length
    }

    /// The bytes of the units that the object takes.
    pub fn taken(&self, slot: Slot) -> u64 {
        u64::from(self.object(slot.0).extents.units()) * self.unit_bytes
    }

    pub fn checksum(&self, slot: Slot) -> u64 {
        self.object(slot.0).checksum
    }

    pub fn digest(&self, slot: Slot) -> Digest {
        self.object(slot.0).digest
    }

    /// The pieces of the node's memory that have the object's bytes, in order.
    pub fn pieces(&self, slot: Slot) -> impl Iterator<Item = Piece> + '_ {
        let object = self.object(slot.0);
        let mut left = object.length;
        object.extents.as_slice().iter().map(move |extent| {
            let bytes = left.min(u64::from(extent.units) * self.unit_bytes);
            left -= bytes;
            Piece { offset: u64::from(extent.first) * self.unit_bytes, bytes }
        })
    }

    /// The object stays until `release`.
    pub fn hold(&mut self, slot: Slot) {
        if self.object(slot.0).holders == 0 {
            self.unlink(slot.0);
        }
        self.object_mut(slot.0).holders += 1;
    }

    /// Ends a hold; the last one makes the object the most recently used.
    pub fn release(&mut self, slot: Slot) {
        let object = self.object_mut(slot.0);
        object.holders -= 1;
        match (object.holders, object.state) {
            (0, State::Doomed) => self.give_back(slot.0),
            (0, _) => self.add_newest(slot.0),
            _ => {}
        }
    }

    /// Makes an object the most recently used. The caller touches a prefix from its end on, so that its tail goes first.
    pub fn touch(&mut self, slot: Slot) {
        let object = self.object(slot.0);
        if object.state == State::Readable && object.holders == 0 {
            self.unlink(slot.0);
            self.add_newest(slot.0);
        }
    }

    /// Removes an object: nobody finds it any more. Whoever reads or writes it ends in peace. False if it is not here.
    pub fn remove(&mut self, digest: &Digest) -> bool {
        let Some(slot) = self.look_up(digest) else { return false };
        self.forget_digest(slot);
        let was = std::mem::replace(&mut self.object_mut(slot).state, State::Doomed);
        if was == State::Readable {
            self.readable -= 1;
            if self.object(slot).holders == 0 {
                self.unlink(slot);
                self.give_back(slot);
            }
        }
        was == State::Readable
    }

    /// Removes the object that was used least recently among those that nobody holds.
    pub fn evict(&mut self) -> Option<Digest> {
        let digest = self.oldest()?;
        self.remove(&digest);
        Some(digest)
    }

    /// As `evict`, of the objects of a tenant with a quota.
    pub fn evict_of(&mut self, tag: TenantTag) -> Option<Digest> {
        let digest = self.oldest_of(tag)?;
        self.remove(&digest);
        let number = self.number_of(&digest);
        self.accounts.get_mut(usize::from(number))?.evicted += 1;
        Some(digest)
    }

    /// Returns readable objects from this place of the table on, at most `most`, and the place to go on from; None at
    /// the end. Objects that come and go meanwhile may be missed: `node` tells of them one by one.
    pub fn list(&self, from: u32, most: usize) -> (Vec<Digest>, Option<u32>) {
        let places = self.objects.get(from as usize..).unwrap_or_default();
        let part = &places[..most.min(places.len())];
        let readable = part.iter().filter(|object| object.state == State::Readable);
        let next = (part.len() < places.len()).then(|| from + part.len() as u32);
        (readable.map(|object| object.digest).collect(), next)
    }

    /// The object that `evict` would remove.
    pub fn oldest(&self) -> Option<Digest> {
        (self.oldest != NONE).then(|| self.object(self.oldest).digest)
    }

    /// The object that `evict_of` would remove.
    pub fn oldest_of(&self, tag: TenantTag) -> Option<Digest> {
        Some(self.object(self.account_of(tag)?.oldest()?).digest)
    }

    /// The object counts for no quota any more, although its units are not free yet.
    pub fn discharge(&mut self, slot: Slot) {
        self.charge(slot.0, NO_ACCOUNT);
    }

    fn charge(&mut self, slot: u32, number: u16) {
        let object = self.object_mut(slot);
        let was = std::mem::replace(&mut object.account, number);
        let units = object.extents.units();
        if let Some(was) = self.accounts.get_mut(usize::from(was)) {
            (was.units, was.objects) = (was.units - units, was.objects - 1);
        }
        if let Some(account) = self.accounts.get_mut(usize::from(number)) {
            (account.units, account.objects) = (account.units + units, account.objects + 1);
        }
    }

    fn number_of(&self, digest: &Digest) -> u16 {
        self.numbers.get(&digest.tag()).copied().unwrap_or(NO_ACCOUNT)
    }

    /// The units of an object; None if the whole node has fewer.
    pub fn units_of(&self, length: u64) -> Option<u32> {
        let units = u32::try_from(length.div_ceil(self.unit_bytes).max(1)).ok()?;
        (units <= self.units).then_some(units)
    }

    /// The bytes of the units that a value takes; None if the whole node, or the tenant's quota, has fewer.
    pub fn bytes_for(&self, digest: &Digest, length: u64) -> Option<u64> {
        let bytes = u64::from(self.units_of(length)?) * self.unit_bytes;
        (bytes <= self.quota_of(digest.tag()).0).then_some(bytes)
    }

    fn look_up(&self, digest: &Digest) -> Option<u32> {
        let is_it = |slot: &u32| self.object(*slot).digest == *digest;
        self.by_digest.find(digest.fingerprint(), is_it).copied()
    }

    fn index(&mut self, slot: u32) {
        let objects = &self.objects;
        let hash = |slot: &u32| objects[*slot as usize].digest.fingerprint();
        self.by_digest.insert_unique(hash(&slot), slot, hash);
    }

    fn forget_digest(&mut self, slot: u32) {
        let hash = self.object(slot).digest.fingerprint();
        if let Ok(entry) = self.by_digest.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
    }

    fn place(&mut self, object: Object) -> u32 {
        if self.free == NONE {
            self.objects.push(object);
            return self.objects.len() as u32 - 1;
        }
        let slot = self.free;
        let place = self.object_mut(slot);
        let next = std::mem::replace(place, object).newer;
        self.free = next;
        slot
    }

    fn give_back(&mut self, slot: u32) {
        self.charge(slot, NO_ACCOUNT);
        let free = self.free;
        let object = self.object_mut(slot);
        (object.state, object.newer) = (State::Free, free);
        let none = Extents::Many(Box::default());
        let extents = std::mem::replace(&mut object.extents, none);
        extents.as_slice().iter().for_each(|extent| self.space.give(*extent));
        self.free = slot;
    }

    fn add_newest(&mut self, slot: u32) {
        let newest = self.newest;
        let object = self.object_mut(slot);
        (object.newer, object.older) = (NONE, newest);
        let account = usize::from(object.account);
        self.accounts.get_mut(account).into_iter().for_each(|account| account.add_newest(slot));
        match newest {
            NONE => self.oldest = slot,
            newest => self.object_mut(newest).newer = slot,
        }
        self.newest = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let Object { newer, older, account, .. } = *self.object(slot);
        let account = self.accounts.get_mut(usize::from(account));
        account.into_iter().for_each(|account| account.unlink(slot));
        match newer {
            NONE => self.newest = older,
            newer => self.object_mut(newer).older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.object_mut(older).newer = newer,
        }
    }

    fn object(&self, slot: u32) -> &Object {
        &self.objects[slot as usize]
    }

    fn object_mut(&mut self, slot: u32) -> &mut Object {
        &mut self.objects[slot as usize]
    }
}

#[cfg(test)]
mod tests;
