//! Page-aligned, populated memory for the measured transfers.
//!
//! The references' `Memory` is allocated like ferry's own (huge pages where the kernel has them), so that both sides
//! of a comparison have the same pages.

use std::io;

use crate::walk::fill;

/// A mapping. Threads share it by pointer during a run.
pub use ferry::sys::mapping::Mapping as Memory;

/// The memory of a run. Its bytes are copied in and out and never borrowed, because a peer may write to registered
/// memory at any time.
pub trait Store: Sync {
    fn copy_in(&mut self, offset: usize, from: &[u8]);
    fn copy_out(&self, offset: usize, into: &mut [u8]);
}

impl Store for Memory {
    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        self.write(offset, from);
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.read(offset, into);
    }
}

impl Store for ferry::Memory {
    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        self.write(offset, from);
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.read(offset, into);
    }
}

/// The largest memory that one end may ask of the other.
pub const MEMORY_BYTES_MAX: usize = 64 << 30;

/// Allocates private memory with every page touched.
pub fn private(bytes: usize) -> io::Result<Memory> {
    Ok(populated(Memory::private(bytes)?, bytes))
}

/// Touches every page before the runs.
pub fn populated<S: Store>(mut memory: S, bytes: usize) -> S {
    fill(&mut memory, bytes, 0);
    memory
}

/// Damages the byte at `offset`. Every workload's first transfer contains the byte at 0.
pub fn spoil(memory: &mut impl Store, offset: usize) {
    let mut byte = [0];
    memory.copy_out(offset, &mut byte);
    memory.copy_in(offset, &[byte[0] ^ 1]);
}
