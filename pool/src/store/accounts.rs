//! What tenants with a quota hold of a store, and in which order they used it: the victim of a quota is found without a look
//! at the objects of others. An object of another tenant has no entry here.

use std::collections::BTreeMap;

use hashbrown::HashTable;

use super::NONE;
use crate::key::TenantTag;

/// The number of the account of an object whose tenant has none.
pub const NO_ACCOUNT: u16 = u16::MAX;

/// A tenant with a quota.
#[derive(Debug)]
pub struct Account {
    pub tag: TenantTag,
    /// The units that the tenant may have, and those that it has, for objects that are written too.
    pub units_max: u32,
    pub units: u32,
    pub objects: u64,
    /// Objects that went for the tenant's other ones.
    pub evicted: u64,
    /// Those that may go, by their slots: a list as the store has for all.
    links: HashTable<Link>,
    newest: u32,
    oldest: u32,
}

#[derive(Debug)]
struct Link {
    slot: u32,
    newer: u32,
    older: u32,
}

fn hash(slot: u32) -> u64 {
    u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Account {
    pub fn left(&self) -> u32 {
        self.units_max.saturating_sub(self.units)
    }

    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    pub fn add_newest(&mut self, slot: u32) {
        let older = std::mem::replace(&mut self.newest, slot);
        match self.link(older) {
            Some(link) => link.newer = slot,
            None => self.oldest = slot,
        }
        self.links.insert_unique(hash(slot), Link { slot, newer: NONE, older }, |link| hash(link.slot));
    }

    pub fn unlink(&mut self, slot: u32) {
        let Ok(entry) = self.links.find_entry(hash(slot), |link| link.slot == slot) else { return };
        let (Link { newer, older, .. }, _) = entry.remove();
        match self.link(newer) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
        match self.link(older) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link(&mut self, slot: u32) -> Option<&mut Link> {
        self.links.find_mut(hash(slot), |link| link.slot == slot)
    }
}

/// The accounts of a store, by their numbers: the order in which they were given.
#[derive(Debug, Default)]
pub struct Accounts {
    all: Vec<Account>,
    by_tag: BTreeMap<TenantTag, u16>,
}

impl Accounts {
    /// Tenants, and the units that each may have.
    pub fn new(quotas: impl Iterator<Item = (TenantTag, u32)>) -> Accounts {
        let account = |(tag, units_max)| Account {
            tag,
            units_max,
            units: 0,
            objects: 0,
            evicted: 0,
            links: HashTable::new(),
            newest: NONE,
            oldest: NONE,
        };
        let all: Vec<Account> = quotas.take(NO_ACCOUNT.into()).map(account).collect();
        let by_tag = all.iter().zip(0..).map(|(account, number)| (account.tag, number)).collect();
        Accounts { all, by_tag }
    }

    pub fn number_of(&self, tag: TenantTag) -> u16 {
        self.by_tag.get(&tag).copied().unwrap_or(NO_ACCOUNT)
    }

    pub fn of(&self, tag: TenantTag) -> Option<&Account> {
        self.get(self.number_of(tag))
    }

    pub fn get(&self, number: u16) -> Option<&Account> {
        self.all.get(usize::from(number))
    }

    pub fn get_mut(&mut self, number: u16) -> Option<&mut Account> {
        self.all.get_mut(usize::from(number))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Account> {
        self.all.iter()
    }
}
