//! Tenants: the tag that all keys of one end with, and the hash of SHA-256 that a tenant's secret keys. `mod.rs` has the
//! format.

use super::{check_bytes, put_field, TAG};
use crate::limits::{TENANT_BYTES_MAX, TENANT_SECRET_BYTES_MAX, TENANT_SECRET_BYTES_MIN};
use ferry::status::Result;
use ferry::Error;
use sha2::{Digest as _, Sha256};

/// The bytes of a block of SHA-256.
const BLOCK: usize = 64;

/// The last 8 bytes of each key of a tenant: an owner sees by them whose value it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantTag(pub [u8; 8]);

impl TenantTag {
    /// The tag of a tenant, with the secret that its keys are made with. Fails with INVALID, and names the argument.
    pub fn of(tenant: &str, secret: Option<&[u8]>) -> Result<TenantTag> {
        check_bytes("tenant", tenant.as_bytes(), TENANT_BYTES_MAX)?;
        let bytes = secret.map_or(TENANT_SECRET_BYTES_MIN, <[u8]>::len);
        if !(TENANT_SECRET_BYTES_MIN..=TENANT_SECRET_BYTES_MAX).contains(&bytes) {
            return Err(Error::invalid(format!(
                "secret: {bytes} bytes, which are not {TENANT_SECRET_BYTES_MIN} to {TENANT_SECRET_BYTES_MAX}; take 32 \
                 random bytes, or no secret"
            )));
        }
        let mut hash = Keyed::new(secret, TAG);
        put_field(&mut hash.inner, tenant.as_bytes());
        let [a, b, c, d, e, f, g, h, ..] = hash.finish();
        Ok(TenantTag([a, b, c, d, e, f, g, h]))
    }
}

/// SHA-256 or, with a secret, HMAC-SHA256 (RFC 2104). The secret is not kept.
pub(super) struct Keyed {
    /// Takes the message.
    pub inner: Sha256,
    outer: Option<Sha256>,
}

impl Keyed {
    pub fn new(secret: Option<&[u8]>, tag: &[u8; 16]) -> Keyed {
        let Some(secret) = secret else { return Keyed { inner: Sha256::new_with_prefix(tag), outer: None } };
        let mut key = [0; BLOCK];
        if secret.len() > BLOCK {
            key[..32].copy_from_slice(&Sha256::digest(secret));
        } else {
            key[..secret.len()].copy_from_slice(secret);
        }
        let [inner, outer] = [0x36, 0x5c].map(|pad| Sha256::new_with_prefix(key.map(|byte| byte ^ pad)));
        Keyed { inner: inner.chain_update(tag), outer: Some(outer) }
    }

    pub fn finish(self) -> [u8; 32] {
        let inner = self.inner.finalize();
        match self.outer {
            None => inner.into(),
            Some(outer) => outer.chain_update(inner).finalize().into(),
        }
    }
}
