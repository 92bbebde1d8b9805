//! The identity: all that the bytes of a chunk depend on besides its tokens, and the digests under it. `mod.rs` has the
//! format, and `chain` makes the hashes of tokens.

use super::tenant::Keyed;
use super::{check_bytes, check_count, put_field, Digest, TenantTag, KEY, ROOT};
use crate::limits::{CHUNK_HASH_BYTES_MAX, IDENTITY_BYTES_MAX, IDENTITY_PAIRS_MAX};
use ferry::status::Result;
use ferry::Error;
use sha2::{Digest as _, Sha256};
use std::fmt;

const OWN: u8 = 0;
const CHAINED: u8 = 1;

/// All that the bytes of a chunk depend on besides its tokens. Two engines share chunks where all of it is equal. A
/// string counts as its UTF-8 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Must not be empty.
    pub model: String,
    /// The commit or version of the weights.
    pub revision: String,
    /// The type of the cache's elements.
    pub dtype: String,
    /// The scales of a quantised cache, if it has any.
    pub scales: Vec<u8>,
    /// The parameters of the rotary position embedding, in any form that is the same everywhere.
    pub rope: Vec<u8>,
    /// Further names and values, in any order. A name may occur once, and must not be that of a field above.
    pub more: Vec<(String, Vec<u8>)>,
}

impl Identity {
    /// Returns the pairs in the order in which they are hashed.
    fn pairs(&self) -> Result<Vec<(&[u8], &[u8])>> {
        check_bytes("model", self.model.as_bytes(), IDENTITY_BYTES_MAX)?;
        check_count("pairs of the identity", self.more.len(), IDENTITY_PAIRS_MAX)?;
        let named: [(&str, &[u8]); 5] = [
            ("model", self.model.as_bytes()),
            ("revision", self.revision.as_bytes()),
            ("dtype", self.dtype.as_bytes()),
            ("scales", &self.scales),
            ("rope", &self.rope),
        ];
        let more = self.more.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        let mut pairs: Vec<(&str, &[u8])> = named.into_iter().chain(more).collect();
        pairs.sort_unstable();
        for (at, (name, value)) in pairs.iter().enumerate() {
            check_bytes("name in the identity", name.as_bytes(), IDENTITY_BYTES_MAX)?;
            if value.len() > IDENTITY_BYTES_MAX {
                let bytes = value.len();
                return Err(Error::invalid(format!("{name}: {bytes} bytes, above {IDENTITY_BYTES_MAX}")));
            }
            if at > 0 && pairs[at - 1].0 == *name {
                return Err(Error::invalid(format!("{name}: twice in the identity")));
            }
        }
        Ok(pairs.into_iter().map(|(name, value)| (name.as_bytes(), value)).collect())
    }
}

/// The keys of one tenant under one identity. Cheap to copy, and usable from any thread.
#[derive(Clone)]
pub struct Keyspace {
    /// The state of SHA-256 after the block that all digests of this keyspace begin with.
    prepared: Sha256,
    tag: TenantTag,
}

impl Keyspace {
    /// The keys of a tenant without a secret: whoever knows the identity can make them. Fails with INVALID or LIMIT, and
    /// names the argument.
    pub fn new(tenant: &str, identity: &Identity) -> Result<Keyspace> {
        Keyspace::with_secret(tenant, None, identity)
    }

    /// The keys of a tenant with a secret, if there is one: 16 to 1,024 bytes that cannot be guessed, which are not kept.
    /// Nobody makes a key without the secret. Fails as `new`.
    pub fn with_secret(tenant: &str, secret: Option<&[u8]>, identity: &Identity) -> Result<Keyspace> {
        let tag = TenantTag::of(tenant, secret)?;
        let pairs = identity.pairs()?;
        let mut keyed = Keyed::new(secret, ROOT);
        let root = &mut keyed.inner;
        put_field(root, tenant.as_bytes());
        root.update((pairs.len() as u32).to_le_bytes());
        for (name, value) in pairs {
            put_field(root, name);
            put_field(root, value);
        }
        let prepared = Sha256::new_with_prefix(KEY).chain_update(keyed.finish()).chain_update([0; 16]);
        Ok(Keyspace { prepared, tag })
    }

    /// Returns the key of a chunk that the caller has hashed by its own rules: any 1 to 1,024 bytes.
    pub fn own(&self, chunk_hash: &[u8]) -> Result<Digest> {
        check_bytes("chunk hash", chunk_hash, CHUNK_HASH_BYTES_MAX)?;
        Ok(self.digest(OWN, chunk_hash))
    }

    /// Returns the key of a chunk whose hash [`Chain::hashes`](super::Chain::hashes) has made. The same 32 bytes as a
    /// caller's own hash have another key.
    pub fn chained(&self, chunk_hash: &[u8; 32]) -> Digest {
        self.digest(CHAINED, chunk_hash)
    }

    fn digest(&self, kind: u8, chunk_hash: &[u8]) -> Digest {
        let mut hash = self.prepared.clone();
        hash.update([kind]);
        put_field(&mut hash, chunk_hash);
        Digest::tagged(hash.finalize().into(), self.tag)
    }
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyspace").finish_non_exhaustive()
    }
}
