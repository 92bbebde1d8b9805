//! The records of lost lanes, once they can no longer touch memory: pending transfers are queued again, struck
//! transfers give the units up. `control` releases the records with their fence.

use super::{After, Peer};
use crate::complete::{Fence, Notification, Transfer};
use crate::types::SliceRange;
use std::sync::Arc;

impl Peer {
    /// Releases slices of a lost lane whose fence stands: queues them again if the transfer is pending, otherwise gives
    /// them up.
    pub fn release_run(
        &self,
        transfer: &Arc<Transfer>,
        range: SliceRange,
        notified: bool,
        fence: Fence,
        after: &mut After,
    ) {
        {
            let mut outbox = self.outbox.lock();
            // Under the lock: a strike from here on finds the run in the outbox; an earlier strike is seen here.
            if transfer.is_pending() && self.lost().is_none() {
                let class = self.class_of(transfer);
                if notified {
                    // Data and notification were posted together and are posted together again. A target
                    // that has the notification's number drops both.
                    transfer.set_notification(Notification::Unknown);
                    transfer.return_notification();
                }
                transfer.fenced(fence);
                outbox.requeue(transfer.clone(), range, class, notified);
                drop(outbox);
                return self.strike_stranded();
            }
        }
        if notified {
            transfer.set_notification(Notification::Unknown);
            self.skip(transfer, after);
        }
        self.abandon(transfer, range.count() + notified as u32, fence, after);
    }

    /// Releases a notification that was posted on its own. A target that has its number drops a repetition.
    pub fn release_notification(&self, transfer: &Arc<Transfer>, after: &mut After) {
        transfer.set_notification(Notification::Unknown);
        if !self.queue_notification(transfer) {
            self.give_up_notification(transfer, after);
        }
    }

    pub fn release_skip(&self, sequence: u64) {
        self.outbox.lock().push_skip(sequence);
    }
}
