//! Ascend NPUs. `driver` implements `device::Driver`, `queue` the copies of one device. `gather` decides which copies
//! a batch becomes, `share` reaches memory of other processes of this host, `across` memory of other hosts, and
//! `contexts` makes calls for threads without a context.
//!
//! The program's devices, contexts and streams stay as they are. A queue has a context of its own on its
//! own thread, no device is ever set or reset, and the library is finalised only if ferry initialised it.

mod across;
mod contexts;
mod driver;
mod gather;
mod queue;
mod share;

use crate::device::{Driver, Library};
use crate::sys::acl;
use crate::types::MemoryKind;
use std::sync::Arc;

pub use across::{Fabric, Protocol};

/// Opens AscendCL: the library of this name or path, or the system's if it is empty. `fabric`: the settings by which
/// its devices reach those of other hosts, if any.
pub fn library(wanted: &str, fabric: Option<Fabric>) -> Library {
    let (loaded, opened) = (wanted.to_owned(), wanted.to_owned());
    Library {
        kind: MemoryKind::Ascend,
        is_loaded: Box::new(move || acl::Library::is_loaded(&loaded)),
        open: Box::new(move || {
            let driver: Arc<dyn Driver> = Arc::new(driver::Ascend::open(&opened, fabric.clone())?);
            Ok(driver)
        }),
    }
}
