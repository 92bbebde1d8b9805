//! The notifications of one endpoint: those sent but not acknowledged, and those received whose acknowledgement is
//! owed. The completion of a SEND only proves that the target's NIC has it, so the target's engine acknowledges as
//! well.

use super::batch::{Batch, Builder};
use super::endpoint::Endpoint;
use super::notifications::{SendBody, ACKS_MAX};
use crate::complete::Transfer;
use crate::limits::RDMA_OWED_MAX;
use crate::peer::outbox::Pulled;
use crate::peer::After;
use crate::peer::What;
use crate::sys::atomic::Ordering;
use crate::sys::lock::Mutex;
use crate::sys::map::HashMap;
use crate::types::{Monotonic, TransferId};
use std::sync::Arc;

#[derive(Default)]
pub struct Unacknowledged {
    /// By their numbers among the peer's notifications, with the time of posting.
    unacked: Mutex<HashMap<u64, (What, Monotonic)>>,
    owed: Mutex<Vec<u64>>,
}

impl Unacknowledged {
    /// Enters a notification. Must be called before it is posted: the answer may come at once.
    pub fn sent(&self, number: u64, what: What, posted_ns: Monotonic) {
        self.unacked.lock().insert(number, (what, posted_ns));
    }

    /// Removes and returns the notification or skip that the target acknowledged.
    pub fn acknowledged(&self, number: u64) -> Option<What> {
        self.unacked.lock().remove(&number).map(|(what, _)| what)
    }

    /// Notes an acknowledgement to be sent. Returns false if the peer keeps sending but receives no acknowledgements.
    pub fn owe(&self, number: u64) -> bool {
        let mut owed = self.owed.lock();
        owed.push(number);
        owed.len() <= RDMA_OWED_MAX
    }

    pub fn owes(&self) -> bool {
        !self.owed.lock().is_empty()
    }

    /// Takes up to `most` of the owed numbers, for one SEND.
    pub fn take_owed(&self, most: usize) -> Vec<u64> {
        let mut owed = self.owed.lock();
        let count = owed.len().min(most);
        owed.drain(..count).collect()
    }

    pub fn carries(&self, transfer: TransferId) -> bool {
        let ours = |it: &Arc<Transfer>| it.handle == transfer;
        self.unacked.lock().values().any(|(what, _)| matches!(what, What::Notify(transfer) if ours(transfer)))
    }

    /// Takes all that is unacknowledged when the endpoint ends, with the times of posting.
    pub fn take_unacked(&self) -> Vec<(What, Monotonic)> {
        self.unacked.lock().drain().map(|(_, sent)| sent).collect()
    }
}

impl Endpoint {
    /// Handles a SEND from the peer. Returns true if it must be acknowledged.
    pub fn handle_send(&self, body: Option<SendBody>, after: &mut After) -> bool {
        let (number, body) = match body {
            Some(SendBody::Notify(number, body)) => (number, Some(Box::from(body))),
            Some(SendBody::Skip(number)) => (number, None),
            Some(SendBody::Acks(numbers)) => {
                let known = numbers.into_iter().filter_map(|number| self.unacknowledged.acknowledged(number));
                known.for_each(|what| {
                    if let What::Notify(transfer) = what {
                        self.peer.confirm_notification(&transfer, after);
                    }
                });
                return false;
            }
            None => {
                self.fail("the peer sent an invalid notification".into());
                return false;
            }
        };
        // Contract 10: acknowledged only after the inbox has taken the notification.
        if !self.peer.deliver(number, body) {
            self.fail("the peer sends more notifications than it was granted".into());
            return false;
        }
        if !self.unacknowledged.owe(number) {
            self.fail("the peer sends notifications but receives no acknowledgements".into());
        }
        true
    }

    /// True if an acknowledgement is owed and can be posted now.
    pub fn owes(&self) -> bool {
        self.unacknowledged.owes() && self.room(true).is_some()
    }

    /// Adds a notification or a skip to a chain.
    pub(super) fn add_notification(
        &self,
        builder: &mut Builder,
        slot: Option<u32>,
        pulled: Pulled,
        (sequence, posted_ns): (u64, Monotonic),
    ) {
        // `PullLimits` allows notifications only with a slot.
        let Some(slot) = slot else { return };
        match pulled {
            Pulled::Notify(transfer) | Pulled::Slices { transfer, .. } => {
                let number = transfer.notify_sequence.load(Ordering::Relaxed);
                let body = transfer.spec.notify.as_deref().unwrap_or_default();
                builder.add_send(slot, &SendBody::Notify(number, body), sequence);
                self.unacknowledged.sent(number, What::Notify(transfer), posted_ns);
            }
            Pulled::Skip(number) => {
                builder.add_send(slot, &SendBody::Skip(number), sequence);
                self.unacknowledged.sent(number, What::Skip(number), posted_ns);
            }
        }
    }

    /// Adds the owed acknowledgements to a chain, ahead of its other work.
    pub(super) fn add_acks(&self, builder: &mut Builder, next_sequence: &mut u64, staged: &mut Vec<Batch>) {
        while self.unacknowledged.owes() && builder.chain.len() + 2 < builder.chain.capacity() {
            let Some(slot) = self.device.take_slot() else { return };
            *next_sequence += 1;
            builder.add_send(slot, &SendBody::Acks(self.unacknowledged.take_owed(ACKS_MAX)), *next_sequence);
            let (sequence, failures) = (*next_sequence, Vec::new());
            staged.push(Batch {
                sequence,
                run: None,
                failures,
                slot: Some(slot),
                posted_ns: Monotonic::NEVER,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_acknowledged_is_known_once_and_the_rest_comes_back() {
        let unacknowledged = Unacknowledged::default();
        (0..3).for_each(|number| unacknowledged.sent(number, What::Skip(number), Monotonic::ZERO));
        assert!(matches!(unacknowledged.acknowledged(1), Some(What::Skip(1))));
        assert!(unacknowledged.acknowledged(1).is_none());
        assert_eq!(unacknowledged.take_unacked().len(), 2);
        assert!(unacknowledged.take_unacked().is_empty());
    }

    /// The records of a lost endpoint return to the peer, as `control` releases them.
    #[test]
    fn a_number_whose_endpoint_is_lost_with_it_is_skipped_or_goes_again() {
        use crate::complete::transfer::Strike;
        use crate::complete::Notification;
        use crate::peer::tests::{open, peer, pull_notification, skips, submit};
        use crate::status::Status;
        use crate::types::Transport;
        let (peer, unacknowledged) = (peer(), Unacknowledged::default());
        open(&peer, Transport::Rdma);
        let transfers: Vec<_> = (0..3).map(|handle| submit(&peer, handle + 1, 0)).collect();
        let lose = |unacknowledged: &Unacknowledged| {
            for (what, _) in unacknowledged.take_unacked() {
                match what {
                    What::Notify(transfer) => peer.release_notification(&transfer, &mut peer.after()),
                    What::Skip(number) => peer.release_skip(number),
                    What::Slices { .. } => panic!("unacknowledged carries no data"),
                }
            }
        };
        let post = |unacknowledged: &Unacknowledged| match pull_notification(&peer, Transport::Rdma) {
            Some(Pulled::Notify(it)) => unacknowledged.sent(
                it.notify_sequence.load(Ordering::Relaxed),
                What::Notify(it),
                Monotonic::ZERO,
            ),
            Some(Pulled::Skip(number)) => unacknowledged.sent(number, What::Skip(number), Monotonic::ZERO),
            _ => panic!("nothing is queued"),
        };
        (0..3).for_each(|_| post(&unacknowledged));
        assert!(peer.strike(&transfers[0], Strike { status: Status::Timeout, os_error: 0 }));
        assert!(unacknowledged.acknowledged(2).is_some());
        lose(&unacknowledged);
        assert_eq!(transfers[0].result().unwrap().notification, Notification::Unknown);
        // Both are sent again, lost again, and come back.
        (0..2).for_each(|_| post(&unacknowledged));
        lose(&unacknowledged);
        (0..2).for_each(|_| post(&unacknowledged));
        assert!(matches!(unacknowledged.acknowledged(0), Some(What::Skip(0))));
        assert!(matches!(unacknowledged.acknowledged(1), Some(What::Notify(_))));
        assert!(skips(&peer, Transport::Rdma).is_empty());
    }

    #[test]
    fn debts_are_paid_in_order_and_in_parts() {
        let unacknowledged = Unacknowledged::default();
        assert!(!unacknowledged.owes());
        (0..5).for_each(|number| assert!(unacknowledged.owe(number)));
        assert_eq!(
            (unacknowledged.take_owed(3), unacknowledged.take_owed(3), unacknowledged.owes()),
            (vec![0, 1, 2], vec![3, 4], false)
        );
    }

    #[test]
    fn debts_are_bounded() {
        let unacknowledged = Unacknowledged::default();
        assert!((0..RDMA_OWED_MAX as u64).all(|number| unacknowledged.owe(number)));
        assert!(!unacknowledged.owe(0));
    }
}
