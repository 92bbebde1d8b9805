//! Every lane that a worker was given and that may still move something. The teardown of a broken engine takes its
//! lanes from this list, not from the sessions. `worker` adds them.

use super::lane::Lane;
use crate::sys::lock::Mutex;
use std::sync::{Arc, Weak};

#[derive(Default)]
pub struct Lanes(Mutex<List>);

#[derive(Default)]
struct List {
    all: Vec<Weak<Lane>>,
    /// At this length, dropped lanes are removed. The additions since the last removal pay for its cost.
    sweep_at: usize,
}

impl Lanes {
    pub fn add(&self, lane: &Arc<Lane>) {
        let mut list = self.0.lock();
        if list.all.len() >= list.sweep_at {
            list.all.retain(|lane| lane.strong_count() > 0);
            list.sweep_at = 2 * list.all.len() + 16;
        }
        list.all.push(Arc::downgrade(lane));
    }

    fn all(&self) -> Vec<Arc<Lane>> {
        self.0.lock().all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Shuts all connections at once: bytes that were sent may still arrive, and nothing else is sent.
    pub fn shut(&self) {
        self.all().iter().for_each(|lane| lane.shut());
    }

    /// Closes all lanes. Returns true once no thread accesses memory for any lane.
    pub fn close(&self) -> bool {
        self.all().iter().filter(|lane| !lane.close().is_quiet).count() == 0
    }
}
