//! ORDERED transfers: one at a time has its turn, the others wait behind it. When one fails, those behind
//! it fail with it, and what is submitted from then on does not.

use crate::complete::position::Place;
use crate::complete::Transfer;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Default)]
pub struct Ordered {
    /// The handle of the one that has its turn.
    active: Option<u64>,
    /// In order of submission.
    behind: VecDeque<Arc<Transfer>>,
    /// Were behind one that failed, and are about to be struck for it. Apart, so that none of them starts and
    /// nothing submitted from here on fails with them. Struck for another reason they stay until their turn.
    doomed: VecDeque<Arc<Transfer>>,
}

impl Ordered {
    /// Whether this one has its turn now; it waits otherwise.
    pub fn submit(&mut self, transfer: &Arc<Transfer>) -> bool {
        if self.active.is_some() {
            transfer.position.set_place(Place::Behind);
            self.behind.push_back(transfer.clone());
            return false;
        }
        self.active = Some(transfer.handle);
        true
    }

    /// One that stood behind others is struck: it will not be done, nor will those behind it. A transfer fails
    /// once, and those behind it with it, so the moves come to one for each.
    pub fn drop_one(&mut self, transfer: &Transfer) {
        let order = transfer.position.order();
        // Not among them: it is doomed already.
        let Ok(place) = self.behind.binary_search_by_key(&order, |other| other.position.order()) else {
            return;
        };
        let mut failed = self.behind.split_off(place);
        failed.pop_front();
        self.doom(failed);
    }

    /// One that had its turn is final. When it is done the next one has its turn, and is returned.
    pub fn ended(&mut self, handle: u64, done: bool) -> Option<Arc<Transfer>> {
        if self.active != Some(handle) {
            return None;
        }
        self.active = None;
        if !done {
            let failed = std::mem::take(&mut self.behind);
            self.doom(failed);
            return None;
        }
        let next = self.behind.pop_front()?;
        self.active = Some(next.handle);
        Some(next)
    }

    fn doom(&mut self, mut failed: VecDeque<Arc<Transfer>>) {
        match self.doomed.is_empty() {
            true => self.doomed = failed,
            false => self.doomed.append(&mut failed),
        }
    }

    /// The next one to be struck because an earlier one failed.
    pub fn pop_doomed(&mut self) -> Option<Arc<Transfer>> {
        self.doomed.pop_front()
    }

    pub fn has_doomed(&self) -> bool {
        !self.doomed.is_empty()
    }
}
