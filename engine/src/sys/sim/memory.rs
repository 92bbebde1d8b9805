//! The simulated side of `sys::memory`: one node, and no limit of pinned memory.

use std::io;

pub fn node_of(_address: u64) -> Option<u32> {
    None
}

/// As in the product; a simulated host has as much memory as is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub bytes: u64,
    pub of: String,
}

pub fn left() -> Option<Left> {
    None
}

pub fn page_bytes() -> usize {
    4096
}

pub fn lock_limit() -> io::Result<Option<u64>> {
    Ok(None)
}
