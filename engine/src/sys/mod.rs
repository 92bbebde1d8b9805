//! The interface to the operating system: clocks, and thin, safe wrappers around system calls that the standard
//! library lacks. Unsafe code is only here, in `transport`, in `ffi`, and in the files that `tests/imports.rs` names.

pub mod acl;
#[cfg(test)]
pub mod bombs_tests;
pub mod clock;
pub mod copy;
pub mod cuda;
pub mod eventfd;
pub mod fork;
pub mod health;
pub mod host;
pub mod loader;
pub mod lock;
pub mod mapping;
pub mod memfd;
pub mod memory;
mod origin;
pub mod packet;
pub mod pause;
pub mod poller;
pub mod proven;
pub mod racing;
pub mod sched;
pub mod socket;
pub mod tcp;
pub mod thread;
pub mod unix;
pub mod verbs;
pub mod vm;

/// Returns a number that nobody can guess.
pub fn random_u64() -> u64 {
    // The kernel's generator fails only before it is seeded at boot. The clock then still tells runs apart.
    random_bytes().map_or_else(|_| clock::boottime_ns().ns().rotate_left(32), u64::from_le_bytes)
}

/// Returns bytes from the operating system's generator.
pub fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}
