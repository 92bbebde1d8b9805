//! Tenants whose share of a node is bounded, and what they have.

use ferry::status::Result;

use super::Pool;
use crate::key::TenantTag;
use crate::store::Store;

/// How much of a node one tenant may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    pub tenant: String,
    pub tag: TenantTag,
    /// Bytes of the memory that the node lends, in whole units. The tenant may have the same share of its file.
    pub bytes: u64,
}

impl Quota {
    /// `secret` is the one that the tenant's keys are made with, if it has one; it is not kept. Fails with INVALID, and names
    /// the argument.
    pub fn new(tenant: &str, secret: Option<&[u8]>, bytes: u64) -> Result<Quota> {
        Ok(Quota { tenant: tenant.into(), tag: TenantTag::of(tenant, secret)?, bytes })
    }
}

/// What a tenant with a quota has of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantStats {
    pub tenant: String,
    /// Of memory, with the values that are being written.
    pub bytes: u64,
    pub values: u64,
    /// Values that left memory for others of the tenant.
    pub evicted: u64,
    pub file_bytes: u64,
}

impl Pool {
    /// What each tenant with a quota has of this node.
    pub fn tenants(&self) -> Vec<TenantStats> {
        let inner = self.shared.lock();
        let bytes = |store: &Store, tag| store.quota_of(tag).1;
        let stats = |Quota { tenant, tag, .. }: &Quota| {
            let account = inner.machine.store().account_of(*tag);
            TenantStats {
                tenant: tenant.clone(),
                bytes: bytes(inner.machine.store(), *tag),
                values: account.map_or(0, |account| account.objects),
                evicted: account.map_or(0, |account| account.evicted),
                file_bytes: inner.machine.tier().map_or(0, |tier| bytes(tier, *tag)),
            }
        };
        self.shared.quotas.iter().map(stats).collect()
    }
}
