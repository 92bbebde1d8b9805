//! Memory that the engine writes by address and a target compares with what it expects: every byte that no frame may
//! touch is a canary.

use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// Registered and unregistered memory in one allocation.
pub struct Arena {
    /// In words, which are compared faster.
    words: Box<[AtomicU64]>,
    /// The expected bytes.
    expected: Vec<u8>,
}

impl Arena {
    pub fn new(words: usize) -> Arena {
        let expected: Vec<u8> =
            (0..words * WORD).map(|at| (at as u32).wrapping_mul(2654435761).to_le_bytes()[2]).collect();
        Arena { words: words_of(&expected).map(AtomicU64::new).collect(), expected }
    }

    /// Returns the address of the byte at this offset.
    pub fn address(&self, offset: usize) -> u64 {
        self.words.as_ptr() as u64 + offset as u64
    }

    /// Notes that these bytes were rightly written at the address.
    pub fn expect(&mut self, address: u64, bytes: &[u8]) {
        let at = (address - self.address(0)) as usize;
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn expected(&self, address: u64, length: usize) -> &[u8] {
        let at = (address - self.address(0)) as usize;
        &self.expected[at..at + length]
    }

    pub fn check(&self) {
        let found = self.words.iter().map(|word| word.load(Ordering::Relaxed));
        let wrong = found.zip(words_of(&self.expected)).position(|(found, expected)| found != expected);
        assert_eq!(wrong.map(|at| at * WORD), None, "bytes from this offset were written, or were not");
    }
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(WORD).map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
}
