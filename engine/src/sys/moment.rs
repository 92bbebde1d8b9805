//! Moments: situations that the simulation must reach, or else it tests less than it seems to. The parts of the engine
//! name them where they occur. In the product that is nothing; `sim/moment.rs` counts them.

/// The situation is there if `is_there` says so. The product does not ask.
#[inline(always)]
pub fn reached_if(_name: &'static str, _is_there: impl FnOnce() -> bool) {}
