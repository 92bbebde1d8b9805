//! ORDERED transfers: one at a time is active, the others wait behind it. When one fails, those that wait behind it fail
//! too, and so do those submitted before all of these have ended (contract 11).

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
    /// Transfers behind a failed one, to be struck for that. Kept apart, so that none of them starts. A transfer that is
    /// struck for another reason stays until its turn.
    doomed: VecDeque<Arc<Transfer>>,
    /// How many transfers left `behind` because they will not be done, and have not ended.
    failing: usize,
}

impl Ordered {
    /// Adds a transfer. Returns true if it is active now; otherwise it waits or is doomed.
    pub fn submit(&mut self, transfer: &Arc<Transfer>) -> bool {
        if self.failing > 0 {
            transfer.position.set_place(Place::Behind);
            self.doom([transfer.clone()].into());
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

    /// Removes a struck transfer that waited, and dooms those behind it, because it will not be done. Each transfer is
    /// doomed at most once, so the total number of moves is linear.
    pub fn drop_one(&mut self, transfer: &Transfer) {
        let order = transfer.position.order();
        // Not found: the transfer is doomed already.
        let Ok(place) = self.behind.binary_search_by_key(&order, |other| other.position.order()) else {
            return;
        };
        let mut failed = self.behind.split_off(place);
        failed.pop_front();
        self.fails(transfer);
        self.doom(failed);
    }

    /// A transfer has ended. If it was active and is `done`, the next one becomes active and is returned.
    pub fn ended(&mut self, transfer: &Transfer, done: bool) -> Option<Arc<Transfer>> {
        self.failing -= transfer.position.is_failing() as usize;
        if self.active != Some(transfer.handle) {
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

    fn fails(&mut self, transfer: &Transfer) {
        transfer.position.set_failing();
        self.failing += 1;
    }

    fn doom(&mut self, mut failed: VecDeque<Arc<Transfer>>) {
        failed.iter().for_each(|transfer| self.fails(transfer));
        match self.doomed.is_empty() {
            true => self.doomed = failed,
            false => self.doomed.append(&mut failed),
        }
    }

    /// Returns the next transfer to strike because an earlier one failed.
    pub fn pop_doomed(&mut self) -> Option<Arc<Transfer>> {
        self.doomed.pop_front()
    }

    pub fn has_doomed(&self) -> bool {
        !self.doomed.is_empty()
    }
}
