//! RDMA devices through libibverbs, as far as `transport::rdma` needs them: handles that keep alive what
//! they depend on and go in the right order, errors with their errno, and a data path that neither
//! allocates nor copies. `context` opens devices, `memory` registers, `completion` and `queue_pair` are
//! what work goes through, `chain` is the work.
//!
//! Nothing links against libibverbs: `library` opens it when devices are first asked for. Where it is absent
//! that says why; nothing is printed. (libibverbs itself prints a warning when it first lists devices for a user
//! other than root who may lock 32 KiB or less.)
//!
//! The library is thread-safe: any thread may use any object, in parallel with others that use the same
//! one. That is the reason behind each `Send` and `Sync` here; what must not overlap is destruction, and
//! `Arc` sees to that.

mod chain;
mod completion;
mod context;
mod device;
mod library;
mod memory;
mod port;
mod queue_pair;

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod tests;

pub use chain::Chain;
pub use completion::{wc, Channel, Completion, Cq};
pub use context::{Context, Event, Limits};
pub use device::device_names;
pub use memory::{Mr, Pd};
pub use port::{Gid, GidKind, Port, PortState};
pub use queue_pair::{LocalSide, Qp, QpSpec, Remote, Srq};

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

/// For calls that return a number. Most return an errno; drivers may also answer as system calls do.
fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.saturating_abs())),
    }
}

/// For calls that create something: NULL and errno on failure.
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
