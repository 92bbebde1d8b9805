//! Hashes of token ids, chunk by chunk, each over the one before: equal hashes mean equal prompts up to there.
//! `mod.rs` has the format and an example; `keyspace` makes keys of the hashes.

use super::{check_bytes, check_count, HASH, VERSION};
use crate::limits::{CHAIN_TOKENS_MAX, CHUNK_TOKENS_DEFAULT, CHUNK_TOKENS_MAX, EXTRAS_MAX, EXTRA_BYTES_MAX};
use ferry::status::Result;
use ferry::Error;
use sha2::{Digest as _, Sha256};
use std::fmt;

const LORA: u8 = 1;
const SALT: u8 = 2;
const IMAGE: u8 = 3;
const ALGORITHM_SHA256: u16 = 1;
/// Token ids that are laid out as bytes at a time: 4 blocks of SHA-256.
const TOKENS_AT_ONCE: usize = 64;

/// How prompts are cut and hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    chunk_tokens: u32,
}

/// A key that some chunks of an identity have besides their tokens: their bytes depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra<'a> {
    /// An adapter. Part of the first chunk, hence of all.
    Lora(&'a str),
    /// Keeps prompts apart whose tokens are equal. Part of the first chunk, hence of all.
    Salt(&'a [u8]),
    /// Something whose place the prompt holds with `tokens` token ids: part of the chunks that these touch. `start`
    /// counts from the first of the tokens handed over, so it is negative where the image began before the parent's
    /// end.
    Image { hash: &'a [u8], start: i64, tokens: u32 },
}

impl Chain {
    /// Fails with INVALID unless `chunk_tokens` is 1 to 65,536.
    pub fn new(chunk_tokens: u32) -> Result<Chain> {
        if !(1..=CHUNK_TOKENS_MAX).contains(&chunk_tokens) {
            return Err(Error::invalid(format!("chunk_tokens: {chunk_tokens}, not 1 to {CHUNK_TOKENS_MAX}")));
        }
        Ok(Chain { chunk_tokens })
    }

    pub fn chunk_tokens(&self) -> u32 {
        self.chunk_tokens
    }

    /// Returns the hash of each full chunk. With the hash of the last chunk before them as the `parent`, later tokens
    /// get the hashes that they have in the whole prompt; `Lora` and `Salt` count in the first chunk alone, and are
    /// ignored then.
    pub fn hashes(
        &self,
        parent: Option<[u8; 32]>,
        tokens: &[u32],
        extras: &[Extra<'_>],
    ) -> Result<Vec<[u8; 32]>> {
        check_count("tokens", tokens.len(), CHAIN_TOKENS_MAX)?;
        check_count("extra keys", extras.len(), EXTRAS_MAX)?;
        if parent == Some([0; 32]) {
            return Err(Error::invalid("parent: 32 zero bytes are no chunk's hash"));
        }
        extras.iter().try_for_each(Extra::check)?;
        let mut images: Vec<Image> = extras.iter().filter_map(Extra::image).collect();
        images.sort_unstable_by_key(|image| std::cmp::Reverse(image.start));
        let mut touching: Vec<Image> = Vec::new();
        let mut last = parent.unwrap_or_default();
        let chunks = tokens.chunks_exact(self.chunk_tokens as usize);
        let mut hashes = Vec::with_capacity(chunks.len());
        for (at, chunk) in chunks.enumerate() {
            let start = at as i128 * i128::from(self.chunk_tokens);
            touching.retain(|image| image.end > start);
            while images.last().is_some_and(|image| image.start < start + chunk.len() as i128) {
                touching.extend(images.pop().filter(|image| image.end > start));
            }
            let mut keys: Vec<Vec<u8>> = touching.iter().map(|image| image.key(start)).collect();
            if at == 0 && parent.is_none() {
                keys.extend(extras.iter().filter_map(Extra::whole_key));
            }
            last = hash(&last, keys, chunk);
            hashes.push(last);
        }
        Ok(hashes)
    }

    /// Returns the way of hashing, which must be equal at nodes that share hashes.
    pub fn scheme(&self) -> Scheme {
        Scheme(u64::from(VERSION) << 48 | u64::from(ALGORITHM_SHA256) << 32 | u64::from(self.chunk_tokens))
    }
}

impl Default for Chain {
    fn default() -> Chain {
        Chain { chunk_tokens: CHUNK_TOKENS_DEFAULT }
    }
}

/// The way of hashing: the version of the format, the algorithm and the tokens of a chunk. Nodes compare it when they
/// meet; the text tells a person where they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme(pub u64);

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, algorithm, tokens) = (self.0 >> 48, self.0 >> 32 & 0xffff, self.0 & 0xffff_ffff);
        match algorithm as u16 {
            ALGORITHM_SHA256 => write!(f, "version {version}, SHA-256, {tokens} tokens a chunk"),
            _ => write!(f, "version {version}, algorithm {algorithm}, {tokens} tokens a chunk"),
        }
    }
}

/// An image's tokens, `start..end`. Wider than a caller's numbers, so that no sum overflows.
struct Image<'a> {
    hash: &'a [u8],
    start: i128,
    end: i128,
}

impl Image<'_> {
    fn key(&self, chunk_start: i128) -> Vec<u8> {
        // Fits: an image that touches a chunk begins at most its own u32 of tokens before that chunk.
        let offset = (self.start - chunk_start) as i64;
        [&key(IMAGE, self.hash)[..], &offset.to_le_bytes()].concat()
    }
}

impl<'a> Extra<'a> {
    fn check(&self) -> Result<()> {
        match *self {
            Extra::Lora(id) => check_bytes("lora", id.as_bytes(), EXTRA_BYTES_MAX),
            Extra::Salt(salt) => check_bytes("salt", salt, EXTRA_BYTES_MAX),
            Extra::Image { tokens: 0, .. } => Err(Error::invalid("image: it has no tokens")),
            Extra::Image { hash, .. } => check_bytes("image", hash, EXTRA_BYTES_MAX),
        }
    }

    fn image(&self) -> Option<Image<'a>> {
        match *self {
            Extra::Image { hash, start, tokens } => {
                let start = i128::from(start);
                Some(Image { hash, start, end: start + i128::from(tokens) })
            }
            _ => None,
        }
    }

    /// Returns the key of what belongs to the whole prompt.
    fn whole_key(&self) -> Option<Vec<u8>> {
        match *self {
            Extra::Lora(id) => Some(key(LORA, id.as_bytes())),
            Extra::Salt(salt) => Some(key(SALT, salt)),
            Extra::Image { .. } => None,
        }
    }
}

fn key(kind: u8, bytes: &[u8]) -> Vec<u8> {
    [&[kind][..], &(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

fn hash(parent: &[u8; 32], mut keys: Vec<Vec<u8>>, chunk: &[u32]) -> [u8; 32] {
    keys.sort_unstable();
    keys.dedup();
    let mut hash = Sha256::new_with_prefix(HASH).chain_update(parent);
    hash.update((keys.iter().map(Vec::len).sum::<usize>() as u32).to_le_bytes());
    keys.iter().for_each(|key| hash.update(key));
    let mut bytes = [0; TOKENS_AT_ONCE * 4];
    for tokens in chunk.chunks(TOKENS_AT_ONCE) {
        for (to, token) in bytes.chunks_exact_mut(4).zip(tokens) {
            to.copy_from_slice(&token.to_le_bytes());
        }
        hash.update(&bytes[..tokens.len() * 4]);
    }
    hash.finalize().into()
}
