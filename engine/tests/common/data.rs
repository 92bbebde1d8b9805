//! Bytes that encode their own place, and the expected outcome of a transfer.

use ferry::types::{Op, Request};
use ferry::Memory;

/// Returns the 8 bytes at `index` of buffer `tag`; no two places have the same value.
fn word(tag: u32, index: usize) -> u64 {
    u64::from(tag) << 40 | index as u64 | 1 << 63
}

/// Returns `length` bytes of which each 8 encode the buffer and their offset.
pub fn pattern(tag: u32, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    (0..length.div_ceil(8)).for_each(|index| bytes.extend_from_slice(&word(tag, index).to_le_bytes()));
    bytes.truncate(length);
    bytes
}

pub fn fill(memory: &Memory, tag: u32) {
    memory.write(0, &pattern(tag, memory.length()));
}

pub fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.length()];
    memory.read(0, &mut bytes);
    bytes
}

/// Panics where `found` first differs from `expected`, and decodes the bytes there.
pub fn check(what: &str, found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    if found == expected {
        return;
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
    let show = |bytes: &[u8]| {
        let mut whole = [0; 8];
        let rest = &bytes[at & !7..];
        let count = rest.len().min(8);
        whole[..count].copy_from_slice(&rest[..count]);
        let word = u64::from_le_bytes(whole);
        format!("buffer {} word {:#x}", word >> 40 & 0x7f_ffff, word & 0xff_ffff_ffff)
    };
    panic!("{what}: at byte {at:#x} is {}, expected {}", show(found), show(expected));
}

/// One transfer's requests between two memories, and what its destination must hold afterwards.
pub struct Work {
    pub requests: Vec<Request>,
    pub expected: Vec<u8>,
}

/// Offsets of one request: (local, remote, length).
pub type Span = (usize, usize, usize);

/// Refills both memories and returns the expected destination after `op` over `spans`. Bytes that no request names
/// must keep the destination's own pattern: nothing outside the ranges is touched.
pub fn prepare(op: Op, local: &Memory, remote: &Memory, spans: &[Span]) -> Work {
    fill(local, 1);
    fill(remote, 2);
    let (source, mut expected) = match op {
        Op::Write => (pattern(1, local.length()), pattern(2, remote.length())),
        Op::Read => (pattern(2, remote.length()), pattern(1, local.length())),
    };
    for &(at, to, length) in spans {
        let (from, into) = if op == Op::Write { (at, to) } else { (to, at) };
        expected[into..into + length].copy_from_slice(&source[from..from + length]);
    }
    let requests =
        spans.iter().map(|&(at, to, length)| super::request(local, at, remote, to, length)).collect();
    Work { requests, expected }
}

/// A small fast generator, the same on every machine: xorshift64*.
pub struct Random(u64);

impl Random {
    /// Seeds from `FERRY_TEST_SEED` if set, else from the clock; prints the seed either way.
    pub fn new(what: &str) -> Random {
        let seed = match std::env::var("FERRY_TEST_SEED") {
            Ok(text) => text.parse().expect("FERRY_TEST_SEED is a number"),
            Err(_) => ferry::internals::sys::random_u64(),
        };
        println!("{what}: FERRY_TEST_SEED={seed}");
        Random::seeded(seed)
    }

    /// Makes a generator for one of several threads, from a seed that was printed.
    pub fn seeded(seed: u64) -> Random {
        Random(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        (1..count).rev().for_each(|at| order.swap(at, self.below(at + 1)));
        order
    }
}
