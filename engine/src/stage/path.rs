//! The path of device memory to one peer, as `peer` sees it. It only notifies the stage's thread.

use super::event::{Event, Inbox};
use crate::device::Drivers;
use crate::peer::outbox::Class;
use crate::peer::{After, Devices, Path};
use crate::region::RemoteMap;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::map::HashMap;
use crate::types::{MemoryKind, Monotonic, PeerId, Range};
use std::sync::Arc;

pub struct StagedPath {
    peer: PeerId,
    inbox: Arc<Inbox>,
    drivers: Arc<Drivers>,
    /// The last reason why memory of the peer's devices could not be mapped.
    obstacles: Mutex<HashMap<MemoryKind, String>>,
}

impl StagedPath {
    pub fn new(peer: PeerId, inbox: Arc<Inbox>, drivers: Arc<Drivers>) -> StagedPath {
        StagedPath { peer, inbox, drivers, obstacles: Mutex::default() }
    }

    pub fn note_obstacle(&self, kind: MemoryKind, why: &str) {
        self.lock().insert(kind, why.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<MemoryKind, String>> {
        self.obstacles.lock()
    }
}

impl Path for StagedPath {
    /// The stage moves any ranges; its parts choose paths of their own.
    fn carries(&self, _ranges: &[Range], _known: &RemoteMap, _alone: bool) -> bool {
        true
    }

    fn post(&self, _class: Class, _submitted_ns: Option<Monotonic>, _after: &mut After) {
        self.inbox.push(Event::Post(self.peer));
    }

    fn nudge(&self, _after: &mut After) {
        self.inbox.push(Event::Post(self.peer));
    }

    fn devices(&self) -> Option<&dyn Devices> {
        Some(self)
    }
}

impl Devices for StagedPath {
    fn obstacle(&self, kind: MemoryKind) -> Option<String> {
        self.lock().get(&kind).cloned()
    }

    fn crosses(&self, kind: MemoryKind) -> bool {
        self.drivers.crosses(kind)
    }
}
