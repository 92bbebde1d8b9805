//! Tenants whose share of a node is bounded: how they are named when the node is opened, and what they hold.

use std::collections::BTreeSet;
use std::fmt;

use ferry::status::{Error, Result};

use super::{Pool, PoolOptions};
use crate::key::TenantTag;
use crate::limits::QUOTAS_MAX;
use crate::store::Account;

/// How much of a node one tenant may have.
#[derive(Clone)]
pub struct Quota {
    pub tenant: String,
    /// The secret that the tenant's keys are made with, if it has one. It is not kept.
    pub secret: Option<Vec<u8>>,
    /// Bytes of the memory that the node lends, in whole units. Of the node's file the tenant may have the same share.
    pub bytes: u64,
}

/// A secret is not printed.
impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quota").field("tenant", &self.tenant).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// What a tenant with a quota has of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantStats {
    pub tenant: String,
    pub quota_bytes: u64,
    /// Of memory, with the values that are being written.
    pub bytes: u64,
    pub values: u64,
    /// Values that left memory for others of the tenant.
    pub evicted: u64,
    pub file_bytes: u64,
}

impl PoolOptions {
    /// The tags of the tenants with a quota, and their bytes. INVALID names the option that cannot be.
    pub(super) fn quotas_by_tag(&self) -> Result<Vec<(TenantTag, u64)>> {
        let invalid = |text: String| Error::invalid(format!("options.quotas: {text}"));
        if self.quotas.len() > QUOTAS_MAX {
            return Err(invalid(format!("{} tenants, and at most {QUOTAS_MAX} are taken", self.quotas.len())));
        }
        if !self.quotas.is_empty() && self.memory_bytes == 0 {
            let text = "a node with quotas lends memory: give it memory_bytes, or no quotas";
            return Err(invalid(text.into()));
        }
        let mut names = BTreeSet::new();
        let tag = |Quota { tenant, secret, bytes }: &Quota| {
            let tag = TenantTag::of(tenant, secret.as_deref()).map_err(|error| {
                let message = format!("options.quotas: {tenant:?}: {}", error.message);
                Error { message, ..error }
            })?;
            if *bytes < self.unit_bytes {
                let unit = self.unit_bytes;
                let text = format!("{tenant:?}: {bytes} bytes are less than one unit of {unit}; give more");
                return Err(invalid(text));
            }
            if !names.insert(tenant) {
                return Err(invalid(format!("{tenant:?} is there twice; give each tenant one quota")));
            }
            Ok((tag, *bytes))
        };
        self.quotas.iter().map(tag).collect()
    }
}

impl Pool {
    /// What each tenant with a quota has of this node.
    pub fn tenants(&self) -> Vec<TenantStats> {
        let inner = self.shared.lock();
        let (store, tier) = (inner.machine.store(), inner.machine.tier());
        let stats = |(tenant, account): (&String, &Account)| {
            let (quota_bytes, bytes) = store.quota_of(account.tag);
            TenantStats {
                tenant: tenant.clone(),
                quota_bytes,
                bytes,
                values: account.objects,
                evicted: account.evicted,
                file_bytes: tier.map_or(0, |tier| tier.quota_of(account.tag).1),
            }
        };
        self.shared.tenants.iter().zip(store.accounts()).map(stats).collect()
    }
}
