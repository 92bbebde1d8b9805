//! The way of device memory to one peer, as `peer` sees it: it only calls the stage's thread.

use super::event::{Event, Inbox};
use crate::complete::Transfer;
use crate::device::Drivers;
use crate::peer::outbox::Class;
use crate::peer::Link;
use crate::region::RemoteMap;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::types::{MemoryKind, Range};
use std::collections::HashMap;
use std::sync::Arc;

pub struct StageLink {
    peer: u64,
    inbox: Arc<Inbox>,
    drivers: Arc<Drivers>,
    /// Why memory of the peer's devices could not be mapped, last.
    obstacles: Mutex<HashMap<MemoryKind, String>>,
}

impl StageLink {
    pub fn new(peer: u64, inbox: Arc<Inbox>, drivers: Arc<Drivers>) -> StageLink {
        StageLink { peer, inbox, drivers, obstacles: Mutex::default() }
    }

    pub fn note_obstacle(&self, kind: MemoryKind, why: &str) {
        self.lock().insert(kind, why.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<MemoryKind, String>> {
        self.obstacles.lock()
    }
}

impl Link for StageLink {
    /// Whatever the parts can go by, the whole can.
    fn carries(&self, _ranges: &[Range], _known: &RemoteMap, _alone: bool) -> bool {
        true
    }

    fn post(&self, _class: Class) {
        self.inbox.push(Event::Post(self.peer));
    }

    fn nudge(&self) {
        self.inbox.push(Event::Post(self.peer));
    }

    /// The stage's thread is needed for every step, so there is nothing to be gained here.
    fn drive(&self, _transfer: &Transfer, _deadline_ns: u64) {}

    fn wake(&self) {}

    fn obstacle(&self, kind: MemoryKind) -> Option<String> {
        self.lock().get(&kind).cloned()
    }

    fn crosses(&self, kind: MemoryKind) -> bool {
        self.drivers.crosses(kind)
    }

    fn lanes(&self) -> usize {
        0
    }
}
