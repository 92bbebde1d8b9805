//! The services of the operating system that a cache uses: locks, clocks, eventfds, random bytes. The feature `sim`
//! takes them from the engine's simulated kernel, so that a simulation runs whole caches by seeds.

#[cfg_attr(feature = "sim", path = "sim.rs")]
mod system;

pub use system::*;
