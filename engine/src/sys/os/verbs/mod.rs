//! RDMA devices through libibverbs, as far as `transport::rdma` needs them. Handles keep alive what they depend on and
//! are dropped in the right order; errors have their errno; the data path neither allocates nor copies. `context`
//! opens devices, `memory` registers memory, `completion` and `queue_pair` have the queues, and `chain` has the work
//! requests.
//!
//! Nothing links against libibverbs: `library` opens it when devices are first asked for. If it is absent, the error
//! says so; nothing is printed. (libibverbs itself prints a warning when it first lists devices for a user other than
//! root who may pin 32 KiB or less.)
//!
//! The library is thread-safe: any thread may use any object, in parallel with others that use the same object. Each
//! `Send` and `Sync` here relies on that. Only destruction must not overlap with use, which `Arc` ensures.

mod chain;
mod completion;
mod context;
mod data;
mod device;
mod library;
mod memory;
mod port;
mod queue_pair;
pub mod wc;

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod tests;

pub use chain::Chain;
pub use completion::{Channel, Completion, Cq};
pub use context::Context;
pub use data::{Gid, GidKind, Limits, LocalSide, Port, PortState, QpSpec, Remote};
pub use device::device_names;
pub use memory::{Mr, Pd};
pub use queue_pair::{Qp, Srq};

use rdma_mummy_sys as ffi;
use std::io;
use std::mem::offset_of;
use std::ptr::NonNull;

// The crate writes the structs with unions by hand, and no generator has checked them: their sizes and
// the last field used of each, as a C compiler has them on 64-bit machines.
const _: () = assert!(size_of::<ffi::ibv_wc>() == 48 && offset_of!(ffi::ibv_wc, wc_flags) == 36);
const _: () = assert!(size_of::<ffi::ibv_send_wr>() == 128 && offset_of!(ffi::ibv_send_wr, wr) == 40);
const _: () = assert!(size_of::<ffi::ibv_gid_entry>() == 32 && size_of::<ffi::ibv_async_event>() == 16);
const _: () = assert!(size_of::<ffi::ibv_ah_attr>() == 32 && size_of::<ffi::ibv_global_route>() == 24);

/// Checks calls that return a number. Most return an errno; drivers may also return -1 and set errno.
fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.saturating_abs())),
    }
}

/// Checks calls that create an object: NULL and errno on failure.
fn created<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

fn set_nonblocking(fd: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory is involved.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
