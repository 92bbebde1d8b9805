//! Memory that the engine writes by address and a target compares with what it expects: every byte that no frame may
//! touch is a canary.

use std::sync::atomic::{AtomicU8, Ordering};

/// Registered and unregistered memory in one allocation.
pub struct Arena {
    bytes: Box<[AtomicU8]>,
    /// What the bytes must be.
    expected: Vec<u8>,
}

impl Arena {
    pub fn new(bytes: usize) -> Arena {
        let expected: Vec<u8> =
            (0..bytes).map(|at| (at as u32).wrapping_mul(2654435761).to_le_bytes()[2]).collect();
        Arena { bytes: expected.iter().map(|byte| AtomicU8::new(*byte)).collect(), expected }
    }

    /// Returns the address of the byte at this offset.
    pub fn address(&self, offset: usize) -> u64 {
        self.bytes.as_ptr() as u64 + offset as u64
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
        let found = self.bytes.iter().map(|byte| byte.load(Ordering::Relaxed));
        let wrong = found.zip(&self.expected).position(|(found, expected)| found != *expected);
        assert_eq!(wrong, None, "the byte at this offset was written, or was not");
    }
}
