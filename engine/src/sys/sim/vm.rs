//! The simulated side of `sys::vm`.

use crate::sys::pages::Pages;

pub use ferry_sim_kernel::vm::{read, write};

/// Host memory of a simulation is always mapped.
pub fn has_ends(_pages: &Pages, _address: u64, _length: u64) -> bool {
    true
}

pub fn allow_any_tracer() -> bool {
    false
}
