//! What a transport has posted and nobody has confirmed: it goes into a lane's or an endpoint's flight, and
//! from there, when that is lost, to the session's machine, which says when it can touch nothing any more.

use crate::complete::Transfer;
use crate::types::Monotonic;
use std::sync::Arc;

/// One frame or batch that was posted and not yet acknowledged.
pub struct Posted {
    /// The transport's own number for it.
    pub sequence: u64,
    /// CLOCK_MONOTONIC time from which nothing of it can land any more, whoever is silent.
    pub lease_until_ns: Monotonic,
    pub what: What,
}

pub enum What {
    Slices { transfer: Arc<Transfer>, first: u32, end: u32, bytes: u32, notified: bool },
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
