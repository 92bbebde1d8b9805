//! The interface to the operating system: clocks, and thin, safe wrappers around system calls that the standard
//! library lacks. Unsafe code is only here, in `transport`, in `ffi`, and in the files that `tests/imports.rs` names.
//!
//! `os` is the operating system. The feature `sim` puts `sim` in its place, which has the same modules over the
//! simulated kernel. The other modules are built on either.

#[cfg_attr(feature = "sim", path = "sim/mod.rs")]
mod os;

pub mod acl;
pub mod addresses;
#[cfg(test)]
mod bombs_tests;
pub mod crowd;
pub mod cuda;
pub mod health;
pub mod hook;
pub mod lock;
pub mod pages;
mod parts;
#[cfg(all(test, miri))]
mod planted;
mod process;
pub mod proven;
pub mod stream;
pub mod thread;
pub mod turns;

pub use os::*;

/// Returns a number that cannot be guessed.
pub fn random_u64() -> u64 {
    // The kernel's generator fails only before it is seeded at boot. The clock then still tells runs apart.
    random_bytes().map_or_else(|_| clock::boottime_ns().ns().rotate_left(32), u64::from_le_bytes)
}

/// Returns bytes from the operating system's generator.
pub fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    random::fill(&mut bytes)?;
    Ok(bytes)
}
