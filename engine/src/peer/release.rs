//! What lost lanes carried, once it can touch nothing any more: what is pending is queued again, and what was
//! struck is given up. `control` hands it over with the fence that stands behind it.

use super::{After, Peer};
use crate::complete::{Fence, Notification, Transfer};
use std::sync::Arc;

impl Peer {
    /// A lost lane carried these slices and its fence stands: a pending transfer sends them again, a
    /// struck one gives them up.
    pub fn release_run(
        &self,
        transfer: &Arc<Transfer>,
        run: (u32, u32),
        notified: bool,
        fence: Fence,
        after: &mut After,
    ) {
        {
            let mut outbox = self.outbox.lock();
            // Under the lock: a strike that comes now either sees the run queued or was seen here.
            if transfer.is_pending() && self.lost().is_none() {
                let class = self.class_of(transfer);
                if notified {
                    // Data and notification went together, and do so again: the target knows the
                    // notification's number and drops both if it has had them.
                    transfer.set_notification(Notification::Unknown);
                    transfer.return_notification();
                }
                transfer.fenced(fence);
                outbox.requeue(transfer.clone(), run, class, notified);
                drop(outbox);
                return self.strike_stranded();
            }
        }
        if notified {
            transfer.set_notification(Notification::Unknown);
            self.skip(transfer, after);
        }
        self.abandon(transfer, run.1 - run.0 + notified as u32, fence, after);
    }

    /// The same for a notification that went alone; the target drops what it has seen before.
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
