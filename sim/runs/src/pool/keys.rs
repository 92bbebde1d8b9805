//! The keys of a pool's programs, and their values, which are functions of the keys.

use ferry_pool::Digest;

/// Keys below this share fingerprints in pairs.
const TWINS: u64 = 4;

fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed ^ mixed >> 27
}

pub fn digest(key: u64) -> Digest {
    let shared = if key < TWINS { key / 2 } else { key };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&mix(shared).to_le_bytes());
    bytes[8..16].copy_from_slice(&key.to_le_bytes());
    Digest(bytes)
}

/// Returns the key that shares the fingerprint of this one.
pub fn twin(key: u64) -> Option<u64> {
    (key < TWINS).then_some(key ^ 1)
}

/// Returns the number of a key.
pub fn key_of(digest: &Digest) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| digest.0[8 + at]))
}

/// Returns the length of a key's value.
pub fn length(key: u64, bytes_max: u64) -> u64 {
    match mix(key ^ 77) % 8 {
        0 => 0,
        1 => bytes_max,
        part => mix(key ^ 770) % (bytes_max * part / 8 + 1),
    }
}

/// Each eight bytes of a value say where they belong.
fn word(key: u64, nth: u64) -> [u8; 8] {
    mix(key << 32 | nth).to_le_bytes()
}

/// Returns the bytes of a value, one after the other.
fn bytes_of(key: u64) -> impl Iterator<Item = u8> {
    (0..).flat_map(move |nth| word(key, nth))
}

pub fn write(key: u64, memory: &[(u64, u64)]) {
    let mut value = bytes_of(key);
    for (address, bytes) in memory {
        slice(*address, *bytes).iter_mut().zip(&mut value).for_each(|(byte, of)| *byte = of);
    }
}

pub fn scribble(salt: u8, memory: &[(u64, u64)]) {
    memory.iter().for_each(|(address, bytes)| slice(*address, *bytes).fill(salt));
}

/// Returns the first byte that is not the value's.
pub fn wrong(key: u64, memory: &[(u64, u64)]) -> Option<usize> {
    let all = memory.iter().flat_map(|(address, bytes)| slice(*address, *bytes).iter());
    all.zip(bytes_of(key)).position(|(byte, of)| *byte != of)
}

fn slice<'a>(address: u64, bytes: u64) -> &'a mut [u8] {
    // SAFETY: memory of the kernel's arena, which stays until the run is over. One thread runs all tasks, and nobody
    // keeps the slice across a point.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes as usize) }
}
