//! The keys of the programs, and the values, which are functions of the keys.

use ferry_pool::{Digest, TenantTag};

use crate::world::mix;

/// Keys below this share fingerprints in pairs.
const TWINS: u64 = 4;
const TENANTS: u64 = 3;

/// The key of a number. The program finds the number in the digest.
pub fn digest(key: u64) -> Digest {
    let shared = if key < TWINS { key / 2 } else { key };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&mix(shared + 1).to_le_bytes());
    bytes[8..16].copy_from_slice(&key.to_le_bytes());
    bytes[24..].copy_from_slice(&tenant(key % TENANTS).0);
    Digest(bytes)
}

/// The first ones have quotas, in some worlds.
pub fn tenant(number: u64) -> TenantTag {
    TenantTag([number as u8 + 1; 8])
}

pub fn key_of(digest: &Digest) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| digest.0[8 + at]))
}

pub fn twin(key: u64) -> Option<u64> {
    (key < TWINS).then_some(key ^ 1)
}

/// A value is a function of its key.
pub fn value(key: u64) -> Vec<u8> {
    let shared = if key < TWINS { key / 2 } else { key };
    let bytes = if shared % 9 == 5 { 0 } else { 1 + mix(shared ^ 77) % 600 };
    (0..bytes).map(|at| mix(key << 20 | at >> 3).to_le_bytes()[at as usize % 8]).collect()
}

/// What the memory of a node has before anything comes there.
pub fn canary(node: usize, at: usize) -> u8 {
    (at.wrapping_mul(151) ^ (at >> 8) ^ node) as u8 | 1
}
