//! The sessions of the service behind RDMA paths, and related state under one lock.

use super::flushing::Flushing;
use super::session::Session;
use crate::schedule::Schedule;
use crate::sys::map::HashMap;
use crate::types::{Monotonic, PeerId, RegionId};
use std::collections::BTreeSet;
use std::time::Duration;

/// Sessions due within this time are looked after together.
const EARLY: Duration = Duration::from_millis(1);

pub struct Sessions {
    /// By the peer's handle, from a session's beginning to its end.
    pub all: HashMap<PeerId, Session>,
    /// When the last endpoint of each peer without a session was lost, if it had one.
    pub parted: HashMap<PeerId, Monotonic>,
    /// Peers whose session changed and must be looked after. Every change outside `serve` enters its peer here.
    pub work: BTreeSet<PeerId>,
    /// When each session is due if no message arrives, as of the last time it was looked after.
    pub times: Schedule<Monotonic, PeerId>,
    /// Regions that are being unregistered, whose holders have not been asked yet.
    pub revoking: Vec<RegionId>,
    /// Closed endpoints whose devices still owe completions.
    pub flushing: Flushing,
    /// Devices whose ports must be checked.
    pub suspected: BTreeSet<usize>,
}

impl Sessions {
    pub fn new() -> Sessions {
        Sessions {
            all: HashMap::default(),
            parted: HashMap::default(),
            work: BTreeSet::new(),
            times: Schedule::new(),
            revoking: Vec::new(),
            flushing: Flushing::new(),
            suspected: BTreeSet::new(),
        }
    }

    /// Returns when the service must act next if no event arrives.
    pub fn next_due(&self, now: Monotonic) -> Option<Monotonic> {
        if !self.work.is_empty() || !self.revoking.is_empty() || !self.suspected.is_empty() {
            return Some(now);
        }
        self.times.first().into_iter().chain(self.flushing.next()).min()
    }

    /// Takes the peers whose session changed or is due.
    pub fn take_due(&mut self, now: Monotonic) -> BTreeSet<PeerId> {
        let mut due = std::mem::take(&mut self.work);
        due.extend(self.times.take_due(now + EARLY));
        due
    }
}
