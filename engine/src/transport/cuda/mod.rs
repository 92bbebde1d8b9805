//! Memory of CUDA devices, by the driver's library only: no runtime library, nothing linked. Implements the interface
//! of `device`; `stage` and the device threads use it.
//!
//! ```text
//! driver ─ the memory behind a pointer (`locate`), host memory pinned (`pins`), contexts retained (`contexts`)
//!    ├ queue ─ copies on one device: `shape` decides how, `kernel` gathers and scatters, `access` says what
//!    │         a kernel may touch
//!    │  └ export, import ─ memory of another process of this host
//!    └ point, hold ─ the program's own streams: points in them, and holding them
//! ```
//! The program's contexts are never reset or destroyed, and each call restores the current context of its
//! thread. While copies are being started, no call is made that may wait for all work of a device (allocation,
//! release), because a stream of the program's may be held until the copies end.

mod access;
mod contexts;
mod driver;
mod export;
mod hold;
mod import;
mod kernel;
mod locate;
mod pins;
mod point;
mod queue;
mod shape;

use crate::device::Library;
use crate::sys::cuda;
use crate::types::MemoryKind;

/// Opens the driver's library: `path`, or libcuda.so.1 if that is empty.
pub fn library(path: &str) -> Library {
    let (loaded, opened) = (path.to_owned(), path.to_owned());
    Library {
        kind: MemoryKind::Cuda,
        is_loaded: Box::new(move || cuda::is_loaded(&loaded)),
        open: Box::new(move || driver::open(&opened)),
    }
}
