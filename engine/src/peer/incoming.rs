//! Incoming notifications of a peer. Transports deliver them; `inbox` restores their order; the hub passes them to the
//! application, which returns credits by taking them.

use super::inbox::{Accepted, Arrival};
use super::Peer;
use crate::command::Command;
use crate::notify::{Credit, Event, EventBody};
use crate::types::RegionId;
use std::sync::Arc;

/// A frame with data and a notification that a lane is receiving. Dropping the guard ends the arrival.
pub struct Arriving {
    peer: Arc<Peer>,
    sequence: u64,
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.peer.inbox.lock().departs(self.sequence);
    }
}

impl Peer {
    /// Begins to receive data that carries this notification. Returns whether to apply the data; with Fresh, also a
    /// guard.
    pub fn arrives(self: &Arc<Self>, sequence: u64) -> (Arrival, Option<Arriving>) {
        let arrival = self.inbox.lock().arrives(sequence);
        let fresh = arrival == Arrival::Fresh;
        (arrival, fresh.then(|| Arriving { peer: self.clone(), sequence }))
    }

    /// Delivers a notification (None: a skip). Returns false if the peer exceeded its credits.
    pub fn deliver(&self, sequence: u64, body: Option<Box<[u8]>>) -> bool {
        // The hub is entered under the lock, so that two lanes cannot swap their notifications.
        let mut inbox = self.inbox.lock();
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
                body: EventBody::Notification { bytes },
                credit: Some(self.credit()),
            });
        }
        if let Some(limit) = inbox.grant() {
            self.engine.commands.push(Command::Grant { peer: self.handle, limit });
        }
        true
    }

    fn credit(&self) -> Credit {
        let (inbox, commands, peer) = (self.inbox.clone(), self.engine.commands.clone(), self.handle);
        Credit::new(Arc::new(move || {
            if let Some(limit) = inbox.lock().take() {
                commands.push(Command::Grant { peer, limit });
            }
        }))
    }

    /// Returns the limit of notification numbers that was last granted.
    pub fn granted(&self) -> u64 {
        self.inbox.lock().granted()
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
