//! From a settled unit to the final state of its transfer: paths report here what they posted, and `finish` is the only
//! step that makes a transfer of a sound engine final. A broken engine's transfers become final in `api/burial.rs`.

use super::outbox::OrderedNext;
use super::{After, Peer};
use crate::complete::transfer::Failure;
use crate::complete::{Fence, Notification, State, Transfer, TransferFlags};
use crate::sys::atomic::Ordering;
use crate::types::{SliceRange, Transport};
use std::sync::Arc;

impl Peer {
    /// Settles an acknowledged frame: its slices are done except `failures`. `notified`: the frame also carried the
    /// transfer's notification.
    pub fn confirm(
        &self,
        transfer: &Arc<Transfer>,
        range: SliceRange,
        bytes: u64,
        failures: &[Failure],
        notified: bool,
        after: &mut After,
    ) {
        self.taken.call(transfer);
        if notified && failures.is_empty() {
            transfer.set_notification(Notification::Delivered);
        } else if notified {
            // Contract 10: the target does not deliver the notification of data that it refused in part. It waits for
            // this SKIP of the number.
            transfer.set_notification(Notification::NotSent);
            self.skip(transfer, after);
        }
        let last = transfer.confirm(range, bytes, failures, notified as u32);
        self.settled(transfer, last, after);
    }

    /// Settles an acknowledged notification that was posted on its own.
    pub fn confirm_notification(&self, transfer: &Arc<Transfer>, after: &mut After) {
        transfer.set_notification(Notification::Delivered);
        let last = transfer.settle(1);
        self.settled(transfer, last, after);
    }

    /// Settles `units` of a struck transfer that were not confirmed and can no longer touch memory. If the peer is lost
    /// and the sweep has not struck the transfer yet, this function strikes it.
    pub fn abandon(&self, transfer: &Arc<Transfer>, units: u32, fence: Fence, after: &mut After) {
        self.strike_if_lost(transfer, after);
        let last = transfer.abandon(units, fence);
        self.settled(transfer, last, after);
    }

    fn settled(&self, transfer: &Arc<Transfer>, last: bool, after: &mut After) {
        if last {
            return self.finish(transfer, after);
        }
        if transfer.awaits_notification() && transfer.take_notification() {
            if self.queue_notification(transfer) {
                self.post_notifications(after);
            } else {
                self.give_up_notification(transfer, after);
            }
        }
    }

    /// Queues a transfer's notification unless the transfer was struck. Checked under the outbox's lock, so that a
    /// later strike finds the queued notification and drops it: a peer that is down might never take it.
    pub(super) fn queue_notification(&self, transfer: &Arc<Transfer>) -> bool {
        let mut outbox = self.outbox.lock();
        let queued = transfer.may_notify() && self.lost().is_none();
        if queued {
            outbox.push_notify(transfer.clone());
        }
        queued
    }

    /// Ends a notification that will not be sent, or not be sent again. Strikes the transfer as `abandon` does.
    pub(super) fn give_up_notification(&self, transfer: &Arc<Transfer>, after: &mut After) {
        self.strike_if_lost(transfer, after);
        transfer.give_up_notification();
        self.skip(transfer, after);
        if transfer.settle(1) {
            self.finish(transfer, after);
        }
    }

    /// Queues a SKIP of the notification's number, so that later notifications are not held up. If the target already
    /// has the number, it treats the SKIP as a repetition.
    pub(super) fn skip(&self, transfer: &Transfer, after: &mut After) {
        if self.lost().is_none() {
            self.outbox.lock().push_skip(transfer.notify_sequence.load(Ordering::Relaxed));
            self.post_notifications(after);
        }
    }

    /// Ends a transfer that was struck before it was queued. Its notification has no number yet, so none is skipped.
    pub(super) fn end_unqueued(&self, transfer: &Arc<Transfer>) {
        if transfer.spec.notify.is_some() && transfer.take_notification() {
            transfer.set_notification(Notification::NotSent);
        }
        self.abandon(transfer, transfer.units(), Fence::Confirmed, &mut self.after());
    }

    /// Makes the transfer final. `publish` comes after everything that a thread may rely on when it sees the final
    /// state: statistics, the order of later transfers, and the event in the queue.
    fn finish(&self, transfer: &Arc<Transfer>, after: &mut After) {
        if self.engine.commands.health.is_broken() {
            return; // its outcome may be wrong: `api/burial.rs` makes the transfer final
        }
        let state = transfer.conclude();
        if !transfer.spec.flags.has(TransferFlags::PART) {
            self.engine.stats.finished(state, transfer);
        }
        let express_bytes_max = self.engine.express_bytes_max;
        let next = self.outbox.lock().ended(transfer, state == State::Done, express_bytes_max);
        transfer.publish(state);
        if transfer.is_orphan() {
            // A handle that was dropped just now may have removed the transfer already.
            let _ = self.engine.transfers.remove(transfer.handle);
        }
        self.one_less();
        transfer.waiter.notify_all(after.wakers());
        after.wake(transfer.transport());
        match next {
            OrderedNext::Nothing => {}
            OrderedNext::Started(transport, class) => {
                self.strike_stranded();
                match transport {
                    Transport::Tcp => {
                        after.post(transport, class);
                        self.post_notifications(after); // the next transfer may have no data
                    }
                    _ => after.nudge(transport),
                }
            }
            OrderedNext::Doomed => self.sweep_soon(),
        }
    }
}
