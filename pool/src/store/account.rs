//! The objects of a tenant with a quota, in the order of their last use: the victim of a quota is found without a look
//! at the objects of others, which have no entry here.

use std::collections::BTreeMap;

use crate::key::TenantTag;

/// The number of the account of an object whose tenant has none.
pub const NO_ACCOUNT: u16 = u16::MAX;

#[derive(Debug, Default)]
pub struct Account {
    pub tag: TenantTag,
    /// The units that the tenant may have, and those that it has, for objects that are written too.
    pub units_max: u32,
    pub units: u32,
    pub objects: u64,
    /// Objects that went for other ones of the tenant.
    pub evicted: u64,
    /// The slots of the objects that may go, by the time of their last use, and these times.
    by_use: BTreeMap<u64, u32>,
    uses: BTreeMap<u32, u64>,
    now: u64,
}

impl Account {
    pub fn new(tag: TenantTag, units_max: u32) -> Account {
        Account { tag, units_max, ..Account::default() }
    }

    pub fn oldest(&self) -> Option<u32> {
        self.by_use.first_key_value().map(|(_, slot)| *slot)
    }

    pub fn add_newest(&mut self, slot: u32) {
        self.now += 1;
        self.by_use.insert(self.now, slot);
        self.uses.insert(slot, self.now);
    }

    pub fn unlink(&mut self, slot: u32) {
        let used = self.uses.remove(&slot);
        used.and_then(|used| self.by_use.remove(&used));
    }
}
