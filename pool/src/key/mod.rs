//! Keys: which 32 bytes name a chunk of a KV cache. Pure. The index keeps fingerprints of the digests made here, and
//! the owners of chunks compare the digests.
//!
//! | | |
//! |---|---|
//! | [`Identity`], [`Keyspace`] | what the bytes of a chunk depend on besides its tokens; digests |
//! | [`TenantTag`] | whose a key is |
//! | [`Chain`] | hashes of token ids, chunk by chunk |
//!
//! # Bytes
//!
//! Every hash is SHA-256, and begins with 16 bytes of ASCII, which end with the version of the format. KEYED is SHA-256
//! for a tenant without a secret, and HMAC-SHA256 with the secret of one that has it. `u32` is four bytes,
//! little-endian; `field(x)` is the length of x as `u32`, then x.
//!
//! ```text
//! root   = KEYED("ferry-pool root2" ‖ field(tenant) ‖ u32 number of pairs ‖ pairs, by name: field(name) ‖ field(value))
//! tag    = the first 8 bytes of KEYED("ferry-pool tag 2" ‖ field(tenant))
//! digest = the first 24 bytes of SHA-256("ferry-pool key 2" ‖ root ‖ 16 zero bytes ‖ kind ‖ field(hash)) ‖ tag
//! kind: 0 own hash, 1 of a chain
//!
//! h(n)   = SHA-256("ferry-pool hash2" ‖ h(n-1) ‖ field(extra keys) ‖ token ids, each u32)     h(-1): 32 zero bytes
//! extra keys: sorted by their bytes, each once. Kinds: 1 LoRA, 2 salt, 3 image
//!          1 ‖ field(id)      2 ‖ field(salt)          in the first chunk of a prompt alone
//!          3 ‖ field(hash) ‖ i64 first token, counted from the first token of this chunk   in the chunks that it touches
//! ```
//!
//! An identity always has the pairs `model`, `revision`, `dtype`, `scales` and `rope`, empty or not. The root and the
//! zeros fill the first block of 64 bytes, so that a digest costs one compression. `parts` makes digests of these for
//! the parts of a chunk, with the same tag. A secret root makes all digests under it secret: what is hashed behind it has
//! no encoding that begins with another one.
//!
//! # Example
//!
//! Chunks of 2 tokens, the prompt 1, 2, 3, 4, 5, the LoRA "a", and an image whose hash is the byte ff on token 2 (the
//! third): token 5 fills no chunk, and the image touches the second chunk, in which it begins with the first token.
//!
//! ```text
//! h(0) = SHA-256("ferry-pool hash2" ‖ 00 × 32 ‖ 06000000 ‖ 01 01000000 61 ‖ 01000000 02000000)
//! h(1) = SHA-256("ferry-pool hash2" ‖ h(0) ‖ 0e000000 ‖ 03 01000000 ff 0000000000000000 ‖ 03000000 04000000)
//! ```

mod chain;
mod digest;
mod keyspace;
mod tenant;
#[cfg(test)]
mod tests;

pub use chain::{Chain, Extra, Scheme};
pub use digest::Digest;
pub use keyspace::{Identity, Keyspace};
pub use tenant::TenantTag;

use ferry::status::Result;
use ferry::{Error, Status};
use sha2::{Digest as _, Sha256};

/// The version is in the tags of the format and in [`Scheme`].
const VERSION: u16 = 2;
const ROOT: &[u8; 16] = b"ferry-pool root2";
const TAG: &[u8; 16] = b"ferry-pool tag 2";
const KEY: &[u8; 16] = b"ferry-pool key 2";
const HASH: &[u8; 16] = b"ferry-pool hash2";

pub(crate) fn put_field(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u32).to_le_bytes());
    hash.update(bytes);
}

/// Refuses an empty value, and one longer than `max`.
fn check_bytes(what: &str, bytes: &[u8], max: usize) -> Result<()> {
    if bytes.is_empty() || bytes.len() > max {
        return Err(Error::invalid(format!("{what}: {} bytes, which are not 1 to {max}", bytes.len())));
    }
    Ok(())
}

fn check_count(what: &str, count: usize, max: usize) -> Result<()> {
    if count > max {
        return Err(Error::new(Status::Limit, format!("{what}: {count}, and at most {max} are taken")));
    }
    Ok(())
}
