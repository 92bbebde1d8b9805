//! Every lane that a worker was given and that may still move something: who ends a broken engine finds them here,
//! whatever the sessions know. `worker` adds them.

use super::lane::Lane;
use crate::sys::lock::Mutex;
use std::sync::{Arc, Weak};

#[derive(Default)]
pub struct Lanes(Mutex<List>);

#[derive(Default)]
struct List {
    all: Vec<Weak<Lane>>,
    /// With as many, those that have gone are dropped: what that costs was paid for by adding them.
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

    /// Ends all connections at once: what was sent and has not arrived may still arrive, and nothing else.
    pub fn shut(&self) {
        self.all().iter().for_each(|lane| lane.shut());
    }

    /// Returns when no thread touches memory for any lane.
    pub fn close(&self) {
        self.all().iter().for_each(|lane| drop(lane.close()));
    }
}
