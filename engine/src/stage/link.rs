//! The way of device memory to one peer, as `peer` sees it: it only calls the stage's thread.

use super::service::{Event, Inbox};
use crate::complete::Transfer;
use crate::peer::outbox::Class;
use crate::peer::Link;
use crate::region::RemoteMap;
use crate::types::Range;
use std::sync::Arc;

pub struct StageLink {
    pub inbox: Arc<Inbox>,
}

impl Link for StageLink {
    /// Whatever the parts can go by, the whole can.
    fn carries(&self, _ranges: &[Range], _known: &RemoteMap, _alone: bool) -> bool {
        true
    }

    fn post(&self, _class: Class) {
        self.inbox.push(Event::Post);
    }

    fn nudge(&self) {
        self.inbox.push(Event::Post);
    }

    /// The stage's thread is needed for every step, so there is nothing to be gained here.
    fn drive(&self, _transfer: &Transfer, _deadline_ns: u64) {}

    fn wake(&self) {}

    fn lanes(&self) -> usize {
        0
    }
}
