//! Incoming notifications of a peer. Transports deliver them; `inbox` restores their order; the hub passes them to the
//! application, which returns credits by taking them.

use super::inbox::{Accepted, Arrival};
use super::Peer;
use crate::command::Command;
use crate::notify::{Credit, Event, EventBody};
use crate::sys::atomic::Ordering;
use crate::types::numbers::{channel_of, number};
use crate::types::RegionId;
use std::sync::Arc;

/// A frame with data and a notification that a lane is receiving. Dropping the guard ends the arrival.
pub struct Arriving {
    peer: Arc<Peer>,
    sequence: u64,
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if let Some((inbox, place)) = self.peer.inbox.lock().of(self.sequence) {
            inbox.departs(place);
        }
    }
}

impl Peer {
    /// Begins to receive data that carries this notification. Returns whether to apply the data; with Fresh, also a
    /// guard. None if the number's channel does not exist.
    pub fn arrives(self: &Arc<Self>, sequence: u64) -> Option<(Arrival, Option<Arriving>)> {
        let mut inboxes = self.inbox.lock();
        let (inbox, place) = inboxes.of(sequence)?;
        let arrival = inbox.arrives(place);
        let fresh = arrival == Arrival::Fresh;
        Some((arrival, fresh.then(|| Arriving { peer: self.clone(), sequence })))
    }

    /// Delivers a notification (None: a skip). Returns false if the peer exceeded its credits, or if the number's
    /// channel does not exist.
    pub fn deliver(&self, sequence: u64, body: Option<Box<[u8]>>) -> bool {
        let channel = channel_of(sequence);
        // The hub is entered under the lock, so that two lanes cannot swap their notifications.
        let mut inboxes = self.inbox.lock();
        let Some((inbox, sequence)) = inboxes.of(sequence) else { return false };
        let Accepted::Deliver(ready) = (match inbox.accept(sequence, body) {
            Accepted::Overrun => return false,
            other => other,
        }) else {
            return true;
        };
        for bytes in ready {
            self.engine.stats.notification_received();
            self.engine.hub.notification(Event {
                peer: self.handle,
                body: EventBody::Notification { channel, bytes },
                credit: Some(self.credit(channel)),
            });
        }
        if let Some(limit) = inbox.grant() {
            self.engine.commands.push(Command::Grant { peer: self.handle, limit: number(channel, limit) });
        }
        true
    }

    fn credit(&self, channel: u16) -> Credit {
        let (inbox, commands, peer) = (self.inbox.clone(), self.engine.commands.clone(), self.handle);
        Credit::new(Arc::new(move || {
            let limit = inbox.lock().of(number(channel, 0)).and_then(|(inbox, _)| inbox.take());
            if let Some(limit) = limit {
                commands.push(Command::Grant { peer, limit: number(channel, limit) });
            }
        }))
    }

    /// Returns the limits of notification numbers that were last granted; the first is channel 0's.
    pub fn granted(&self) -> Vec<u64> {
        self.inbox.lock().granted()
    }

    /// Notes that nothing of the lost peer can land here any more. Called before PEER_LOST is reported.
    pub fn set_over(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Reports that data of the peer may have been applied after its lease was over.
    pub fn late_apply(&self, region: RegionId, address: u64, length: u64) {
        self.engine.stats.late_apply();
        self.engine.hub.peer_event(Event {
            peer: self.handle,
            body: EventBody::LateApply { region, address, length },
            credit: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::peer;
    use super::*;
    use crate::limits::NOTIFY_CREDITS;

    /// If all transfers of a peer fail, the peer gives up its notification numbers one after another. No application
    /// takes these notifications, but the peer gets its credits back all the same.
    #[test]
    fn skips_alone_are_granted_again() {
        let peer = peer();
        let mut limit = u64::from(NOTIFY_CREDITS);
        for sequence in 0..3 * u64::from(NOTIFY_CREDITS) {
            assert!(sequence < limit, "the channel is blocked: no credit is left for {sequence}");
            assert!(peer.deliver(sequence, None));
            for command in peer.engine.commands.take() {
                match command {
                    Command::Grant { limit: granted, .. } => limit = granted,
                    _ => panic!("only grants follow"),
                }
            }
        }
    }
}
