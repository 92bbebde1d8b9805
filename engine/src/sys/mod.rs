//! The interface to the operating system: clocks, and thin, safe wrappers around system calls that the standard
//! library lacks. Unsafe code is only here, in `transport`, in `ffi`, and in the files that `tests/imports.rs` names.
//!
//! The feature `sim` replaces files by their twins in `sim`, which are made of the simulated kernel (`sim/kernel`). The
//! product's file says what both promise.

pub mod acl;
pub mod addresses;
#[cfg_attr(feature = "sim", path = "sim/atomic.rs")]
pub mod atomic;
#[cfg_attr(feature = "sim", path = "sim/bare.rs")]
pub mod bare;
#[cfg(test)]
pub mod bombs_tests;
#[cfg(not(feature = "sim"))]
pub mod children;
#[cfg_attr(feature = "sim", path = "sim/clock.rs")]
pub mod clock;
#[cfg_attr(feature = "sim", path = "sim/copy.rs")]
pub mod copy;
pub mod cuda;
#[cfg_attr(feature = "sim", path = "sim/eventfd.rs")]
pub mod eventfd;
#[cfg_attr(feature = "sim", path = "sim/fd.rs")]
pub mod fd;
#[cfg_attr(feature = "sim", path = "sim/fork.rs")]
pub mod fork;
#[cfg_attr(feature = "sim", path = "sim/guarded.rs")]
pub mod guarded;
pub mod health;
#[cfg_attr(feature = "sim", path = "sim/host.rs")]
pub mod host;
#[cfg_attr(feature = "sim", path = "sim/landmark.rs")]
pub mod landmark;
#[cfg_attr(feature = "sim", path = "sim/loader.rs")]
pub mod loader;
#[cfg_attr(feature = "sim", path = "sim/local.rs")]
pub mod local;
pub mod lock;
#[cfg_attr(feature = "sim", path = "sim/map.rs")]
pub mod map;
#[cfg_attr(feature = "sim", path = "sim/mapping.rs")]
pub mod mapping;
#[cfg_attr(feature = "sim", path = "sim/memfd.rs")]
pub mod memfd;
#[cfg_attr(feature = "sim", path = "sim/memory.rs")]
pub mod memory;
#[cfg_attr(feature = "sim", path = "sim/moment.rs")]
pub mod moment;
#[cfg_attr(feature = "sim", path = "sim/mpsc.rs")]
pub mod mpsc;
#[cfg_attr(feature = "sim", path = "sim/names.rs")]
pub mod names;
#[cfg_attr(feature = "sim", path = "sim/once.rs")]
pub mod once;
// Miri has neither signal masks nor CPUs.
#[cfg_attr(all(miri, not(feature = "sim")), path = "sim/origin.rs")]
#[cfg_attr(feature = "sim", path = "sim/origin.rs")]
mod origin;
#[cfg_attr(feature = "sim", path = "sim/packet.rs")]
pub mod packet;
#[cfg_attr(feature = "sim", path = "sim/pagemap.rs")]
pub mod pagemap;
pub mod pages;
mod parts;
#[cfg_attr(feature = "sim", path = "sim/pause.rs")]
pub mod pause;
#[cfg(all(test, miri))]
mod planted;
#[cfg_attr(feature = "sim", path = "sim/poller.rs")]
pub mod poller;
mod process;
pub mod proven;
#[cfg_attr(feature = "sim", path = "sim/racing.rs")]
pub mod racing;
#[cfg_attr(feature = "sim", path = "sim/random.rs")]
pub mod random;
#[cfg_attr(feature = "sim", path = "sim/sched.rs")]
pub mod sched;
#[cfg_attr(feature = "sim", path = "sim/socket.rs")]
pub mod socket;
#[cfg_attr(feature = "sim", path = "sim/tcp.rs")]
pub mod tcp;
pub mod thread;
pub mod turns;
#[cfg_attr(feature = "sim", path = "sim/unforked.rs")]
pub mod unforked;
#[cfg_attr(feature = "sim", path = "sim/unix.rs")]
pub mod unix;
#[cfg_attr(feature = "sim", path = "sim/verbs.rs")]
pub mod verbs;
#[cfg_attr(feature = "sim", path = "sim/vm.rs")]
pub mod vm;

/// Returns a number that nobody can guess.
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
