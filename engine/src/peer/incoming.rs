//! What a peer's notifications do here: whichever transport brought them, they are put into order by the `inbox`
//! and handed to the application, which gives credit for more by taking them.

use super::inbox::{Accepted, Arrival};
use super::Peer;
use crate::command::Command;
use crate::notify::{Credit, Event, EventBody};
use std::sync::Arc;

/// A frame with data and a notification, while a lane takes it in.
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
    /// Data comes with this notification: whether it is to be applied. A guard comes with Fresh.
    pub fn arrives(self: &Arc<Self>, sequence: u64) -> (Arrival, Option<Arriving>) {
        let arrival = self.inbox.lock().arrives(sequence);
        let fresh = arrival == Arrival::Fresh;
        (arrival, fresh.then(|| Arriving { peer: self.clone(), sequence }))
    }

    /// A notification arrived (None: a skip). False when the peer overran its credits.
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
            self.around.stats.notification_received();
            self.around.hub.notification(Event {
                peer: self.handle,
                body: EventBody::Notification { bytes },
                credit: Some(self.credit()),
            });
        }
        if let Some(limit) = inbox.grant() {
            self.around.commands.push(Command::Grant { peer: self.handle, limit });
        }
        true
    }

    fn credit(&self) -> Credit {
        let (inbox, commands, peer) = (self.inbox.clone(), self.around.commands.clone(), self.handle);
        Credit::new(Arc::new(move || {
            if let Some(limit) = inbox.lock().take() {
                commands.push(Command::Grant { peer, limit });
            }
        }))
    }

    /// The limit of notifications last granted.
    pub fn granted(&self) -> u64 {
        self.inbox.lock().granted()
    }

    /// Something of the peer may have been applied after its lease had run out.
    pub fn late_apply(&self, region: u64, address: u64, length: u64) {
        self.around.stats.late_apply();
        self.around.hub.peer_event(Event {
            peer: self.handle,
            body: EventBody::LateApply { region, address, length },
            credit: None,
        });
    }
}
