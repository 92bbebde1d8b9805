//! ORDERED transfers: one at a time is active, the others wait behind it. When one fails, those that wait behind it
//! fail too, and so do those submitted before the application can see the end of all of these (contract 11).

use crate::complete::position::Place;
use crate::complete::Transfer;
use crate::types::TransferId;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Default)]
pub struct Ordered {
    /// The handle of the active transfer.
    active: Option<TransferId>,
    /// In order of submission.
    behind: VecDeque<Arc<Transfer>>,
    /// The last active transfer, if it was not done and the application cannot see that yet.
    failed: Option<Arc<Transfer>>,
    /// Transfers that waited and will not be done; the sweep strikes them. They are kept apart, so that none of them
    /// starts. A struck transfer stays at the front until the application can see its end.
    doomed: VecDeque<Arc<Transfer>>,
    /// How many at the front of `doomed` were struck.
    struck: usize,
}

impl Ordered {
    /// Adds a transfer. Returns true if it is active now; otherwise it waits or is doomed.
    pub fn submit(&mut self, transfer: &Arc<Transfer>) -> bool {
        if self.find_failures() {
            transfer.position.set_place(Place::Behind);
            self.doomed.push_back(transfer.clone());
            return false;
        }
        if self.active.is_some() {
            transfer.position.set_place(Place::Behind);
            self.behind.push_back(transfer.clone());
            return false;
        }
        self.active = Some(transfer.handle);
        true
    }

    /// Contract 11: returns whether the application could not see yet that each transfer that failed is final.
    fn find_failures(&mut self) -> bool {
        self.forget_final();
        self.failed.is_some() || !self.doomed.is_empty()
    }

    /// Drops what the application can see the end of.
    fn forget_final(&mut self) {
        self.failed.take_if(|transfer| transfer.is_final());
        while self.doomed.front().is_some_and(|transfer| transfer.is_final()) {
            self.doomed.pop_front();
            self.struck = self.struck.saturating_sub(1);
        }
    }

    /// Dooms a struck transfer that waited and those behind it, because it will not be done. Each transfer is doomed at
    /// most once, so the total number of moves is linear.
    pub fn drop_one(&mut self, transfer: &Transfer) {
        let order = transfer.position.order();
        // Not found: the transfer is doomed already.
        if let Ok(place) = self.behind.binary_search_by_key(&order, |other| other.position.order()) {
            let failed = self.behind.split_off(place);
            self.doom(failed);
        }
    }

    /// A transfer has ended, which the application cannot see yet. If it was active and is `done`, the next one becomes
    /// active and is returned.
    pub fn ended(&mut self, transfer: &Arc<Transfer>, done: bool) -> Option<Arc<Transfer>> {
        self.forget_final();
        if self.active != Some(transfer.handle) {
            return None;
        }
        self.active = None;
        if !done {
            self.failed = Some(transfer.clone());
            let failed = std::mem::take(&mut self.behind);
            self.doom(failed);
            return None;
        }
        let next = self.behind.pop_front()?;
        self.active = Some(next.handle);
        Some(next)
    }

    fn doom(&mut self, mut failed: VecDeque<Arc<Transfer>>) {
        if self.doomed.is_empty() {
            self.doomed = failed
        } else {
            self.doomed.append(&mut failed)
        }
    }

    /// Returns the next transfer to strike because an earlier one failed.
    pub fn next_doomed(&mut self) -> Option<Arc<Transfer>> {
        let transfer = self.doomed.get(self.struck)?.clone();
        self.struck += 1;
        Some(transfer)
    }

    pub fn has_doomed(&self) -> bool {
        self.struck < self.doomed.len()
    }
}
