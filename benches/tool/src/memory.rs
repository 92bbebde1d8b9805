//! Page-aligned, populated memory for the measured transfers.
//!
//! The references' `Memory` is allocated like ferry's own (huge pages where the kernel has them), so that both sides
//! of a comparison have the same pages.

use anyhow::Context;

use crate::pattern::Pattern;

/// A mapping. Threads share it by pointer during a run.
pub use ferry::internals::sys::mapping::Mapping as Memory;

/// The memory of a run. Its bytes are copied in and out and never borrowed, because a peer may write to registered
/// memory at any time.
pub trait Store: Sync {
    fn copy_in(&mut self, offset: usize, from: &[u8]) -> anyhow::Result<()>;
    fn copy_out(&self, offset: usize, into: &mut [u8]) -> anyhow::Result<()>;
}

/// Memory of this process, which is always there.
macro_rules! store {
    ($memory:ty) => {
        impl Store for $memory {
            fn copy_in(&mut self, offset: usize, from: &[u8]) -> anyhow::Result<()> {
                self.write(offset, from);
                Ok(())
            }

            fn copy_out(&self, offset: usize, into: &mut [u8]) -> anyhow::Result<()> {
                self.read(offset, into);
                Ok(())
            }
        }
    };
}

store!(Memory);
store!(ferry::Memory);

/// Data is made and checked in pieces that stay in the cache.
pub const PIECE_BYTES: usize = 64 << 10;

/// The largest memory that one end may ask of the other.
pub const MEMORY_BYTES_MAX: usize = 64 << 30;

/// Allocates private memory with every page touched.
pub fn private(bytes: usize) -> anyhow::Result<Memory> {
    populated(Memory::private(bytes).context("mapping memory")?, bytes)
}

/// Touches every page before the runs.
pub fn populated<S: Store>(mut memory: S, bytes: usize) -> anyhow::Result<S> {
    fill(&mut memory, bytes, 0)?;
    Ok(memory)
}

/// Damages the byte at `offset`. Every workload's first transfer contains the byte at 0.
pub fn spoil(memory: &mut impl Store, offset: usize) -> anyhow::Result<()> {
    let mut byte = [0];
    memory.copy_out(offset, &mut byte)?;
    memory.copy_in(offset, &[byte[0] ^ 1])
}

/// Fills the first `bytes` of a memory by their own offsets.
pub fn fill(memory: &mut impl Store, bytes: usize, seed: u64) -> anyhow::Result<()> {
    let mut piece = vec![0; PIECE_BYTES.min(bytes)];
    for at in (0..bytes).step_by(PIECE_BYTES) {
        let piece = &mut piece[..PIECE_BYTES.min(bytes - at)];
        Pattern::new(seed).fill(piece, at as u64);
        memory.copy_in(at, piece)?;
    }
    Ok(())
}
