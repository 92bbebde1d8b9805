//! The sessions of the service behind RDMA paths, and related state under one lock.

use super::flushing::Flushing;
use super::session::Session;
use crate::schedule::SessionTable;
use crate::sys::map::HashMap;
use crate::types::{Monotonic, PeerId, RegionId};
use std::collections::BTreeSet;
use std::time::Duration;

/// Sessions due within this time are looked after together.
const EARLY: Duration = Duration::from_millis(1);

pub struct Sessions {
    /// Every change outside `serve` is noted there.
    pub all: SessionTable<Session>,
    /// When the last endpoint of each peer without a session was lost, if it had one.
    pub parted: HashMap<PeerId, Monotonic>,
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
            all: SessionTable::new(),
            parted: HashMap::default(),
            revoking: Vec::new(),
            flushing: Flushing::new(),
            suspected: BTreeSet::new(),
        }
    }

    /// Returns when the service must act next if no event arrives.
    pub fn next_due(&self, now: Monotonic) -> Option<Monotonic> {
        if !self.revoking.is_empty() || !self.suspected.is_empty() {
            return Some(now);
        }
        self.all.next_due(now).into_iter().chain(self.flushing.next()).min()
    }

    /// Takes the peers whose session changed or is due.
    pub fn take_due(&mut self, now: Monotonic) -> BTreeSet<PeerId> {
        self.all.take_due(now + EARLY)
    }
}
