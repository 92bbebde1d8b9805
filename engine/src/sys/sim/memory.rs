//! The simulated side of `sys::memory`: one node, and no limit of pinned memory.

use std::io;

pub fn node_of(_address: u64) -> Option<u32> {
    None
}

pub fn page_bytes() -> usize {
    4096
}

pub fn lock_limit() -> io::Result<Option<u64>> {
    Ok(None)
}
