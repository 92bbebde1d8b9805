//! Records: frames that were posted and are not acknowledged. A lane or an endpoint holds them in its flight. When the
//! lane is lost they go to the session's machine, which decides when they can no longer touch memory.

use crate::complete::Transfer;
use crate::types::{Monotonic, SliceRange};
use std::sync::Arc;

/// One frame or batch that was posted and not yet acknowledged.
pub struct Posted {
    /// The transport's own sequence number of the frame.
    pub sequence: u64,
    /// Time from which the frame can no longer land, even if the peer is silent.
    pub lease_until_ns: Monotonic,
    pub what: What,
}

pub enum What {
    Slices { transfer: Arc<Transfer>, range: SliceRange, bytes: u32, notified: bool },
    Notify(Arc<Transfer>),
    Skip(u64),
}

impl Posted {
    pub fn transfer(&self) -> Option<&Arc<Transfer>> {
        match &self.what {
            What::Slices { transfer, .. } | What::Notify(transfer) => Some(transfer),
            What::Skip(_) => None,
        }
    }
}
