//! Page-aligned, populated memory that the measured transfers run over.
//!
//! The references' `Memory` is what ferry's own allocations are made of (huge pages where the kernel has
//! them), so that neither side of a comparison is flattered by its pages.

use std::io;

use crate::walk::fill;

/// A mapping. Threads share it by pointer while a run is going on.
pub use ferry::sys::mapping::Mapping as Memory;

/// Memory that a run goes over. Its bytes are copied in and out and never borrowed, because a peer may
/// write to registered memory at any time.
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

/// More than this is not asked of the other end.
pub const MEMORY_BYTES_MAX: usize = 64 << 30;

/// Of this process alone, every page touched.
pub fn private(bytes: usize) -> io::Result<Memory> {
    Ok(populated(Memory::private(bytes)?, bytes))
}

/// Touches every page, so that no run pays for it.
pub fn populated<S: Store>(mut memory: S, bytes: usize) -> S {
    fill(&mut memory, bytes, 0);
    memory
}

/// Damages the byte at `offset`. At 0, every workload's first transfer has it.
pub fn spoil(memory: &mut impl Store, offset: usize) {
    let mut byte = [0];
    memory.copy_out(offset, &mut byte);
    memory.copy_in(offset, &[byte[0] ^ 1]);
}
