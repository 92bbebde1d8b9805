//! Memory of CUDA devices, by the driver's library alone: no runtime library, nothing linked. Implements
//! what `device` asks for; `stage` and the threads of `device` drive it.
//!
//! ```text
//! driver ─ what a pointer is (`locate`), host memory pinned (`pins`), contexts retained (`contexts`)
//!    ├ queue ─ copies on one device: `shape` decides how, `kernel` gathers and scatters, `access` says what
//!    │         a kernel may touch
//!    │  └ export, import ─ memory of another process of this host
//!    └ point, hold ─ the program's own streams: where they are, and having them wait
//! ```
//! The program's contexts are never reset or destroyed, and what is current on its threads is as it was
//! after every call. No call that may wait for all of a device's work (allocation, release) is made while
//! copies are started, because one of the program's streams may be held until they end.

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

/// The driver's library: `path`, or libcuda.so.1 where that is empty.
pub fn library(path: &str) -> Library {
    let (loaded, opened) = (path.to_owned(), path.to_owned());
    Library {
        kind: MemoryKind::Cuda,
        is_loaded: Box::new(move || cuda::is_loaded(&loaded)),
        open: Box::new(move || driver::open(&opened)),
    }
}
