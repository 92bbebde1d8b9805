//! What the service behind RDMA paths keeps of its sessions, under one lock.

use super::flushing::Flushing;
use super::session::Session;
use crate::schedule::Schedule;
use crate::types::PeerId;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// What is due so soon is looked at with the rest.
const EARLY: Duration = Duration::from_millis(1);

pub struct Sessions {
    /// By the peer's handle, from the session's beginning to its end.
    pub all: HashMap<PeerId, Session>,
    /// Peers whose sessions are over, and since when they have had no endpoint where there was one.
    pub parted: HashMap<PeerId, Instant>,
    /// Those that have something to look at. Whoever changes a session puts it here, but for who looks after it.
    pub work: BTreeSet<PeerId>,
    /// When the others are looked at next if nothing is heard, as they stood when they were last looked after.
    pub times: Schedule<Instant, PeerId>,
    /// Regions that are being unregistered, whose holders have not been asked yet.
    pub revoking: Vec<u64>,
    /// Endpoints that are closed but for what their devices owe.
    pub leaving: Flushing,
    /// Devices at whose ports somebody should look.
    pub suspected: BTreeSet<usize>,
}

impl Sessions {
    pub fn new() -> Sessions {
        Sessions {
            all: HashMap::new(),
            parted: HashMap::new(),
            work: BTreeSet::new(),
            times: Schedule::new(),
            revoking: Vec::new(),
            leaving: Flushing::new(),
            suspected: BTreeSet::new(),
        }
    }

    /// When the service has something to do if nothing is heard.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        if !self.work.is_empty() || !self.revoking.is_empty() || !self.suspected.is_empty() {
            return Some(now);
        }
        self.times.first().into_iter().chain(self.leaving.next()).min()
    }

    /// Takes out whom somebody changed, or time asks for.
    pub fn take_due(&mut self, now: Instant) -> BTreeSet<PeerId> {
        let mut due = std::mem::take(&mut self.work);
        due.extend(self.times.take_due(now + EARLY));
        due
    }
}
