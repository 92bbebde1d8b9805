//! The sessions of the service behind RDMA paths, and related state under one lock.

use super::flushing::Flushing;
use super::session::Session;
use crate::schedule::Schedule;
use crate::types::PeerId;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Sessions due within this time are looked after together.
const EARLY: Duration = Duration::from_millis(1);

pub struct Sessions {
    /// By the peer's handle, from a session's beginning to its end.
    pub all: HashMap<PeerId, Session>,
    /// When the last endpoint of each peer without a session was lost, if it had one.
    pub parted: HashMap<PeerId, Instant>,
    /// Peers whose session changed and must be looked after. Every change outside `look_after` enters its peer here.
    pub work: BTreeSet<PeerId>,
    /// When each session is due if no message arrives, as of the last time it was looked after.
    pub times: Schedule<Instant, PeerId>,
    /// Regions that are being unregistered, whose holders have not been asked yet.
    pub revoking: Vec<u64>,
    /// Closed endpoints whose devices still owe completions.
    pub leaving: Flushing,
    /// Devices whose ports must be checked.
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

    /// Returns when the service must act next if no event arrives.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        if !self.work.is_empty() || !self.revoking.is_empty() || !self.suspected.is_empty() {
            return Some(now);
        }
        self.times.first().into_iter().chain(self.leaving.next()).min()
    }

    /// Takes the peers whose session changed or is due.
    pub fn take_due(&mut self, now: Instant) -> BTreeSet<PeerId> {
        let mut due = std::mem::take(&mut self.work);
        due.extend(self.times.take_due(now + EARLY));
        due
    }
}
