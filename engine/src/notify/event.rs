//! Events that a queue carries to the application, from `complete` (transfers) or `session` (notifications, peers).

use super::{WHAT_PEERS, WHAT_PEER_STATES};
use crate::status::Status;
use crate::types::{PeerId, RegionId, TransferId};
use std::fmt;
use std::sync::Arc;

/// An event for the application.
#[derive(Debug)]
pub struct Event {
    /// Handle of the peer; 0 if there is none yet.
    pub peer: PeerId,
    pub body: EventBody,
    /// Returned to the sender by its drop, when the application has taken the event.
    pub credit: Option<Credit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventBody {
    /// A transfer is final.
    Transfer { transfer: TransferId, user_data: u64, status: Status },
    /// Bytes from the peer, on one of its channels.
    Notification { channel: u16, bytes: Box<[u8]> },
    /// The peer's session stands, for the first time or `again` after a PeerDown.
    PeerUp { again: bool },
    /// The peer's connection is lost. What was submitted waits while it is made again; PeerUp or PeerLost follows.
    PeerDown {
        status: Status,
        /// The errno behind the loss, or 0.
        os_error: i32,
        /// Why the connection was lost, as text.
        why: Box<str>,
    },
    /// Nothing of the peer can land here any more.
    PeerLost {
        status: Status,
        /// The errno behind the loss, or 0.
        os_error: i32,
        /// Why the session ended, as text.
        why: Box<str>,
    },
    /// Bytes of a fenced transfer landed here: their receive outlasted its lease. If more than one piece of a region is
    /// late, the range spans all of them.
    LateApply { region: RegionId, address: u64, length: u64 },
    /// An asynchronous connect has ended.
    PeerConnect {
        user_data: u64,
        status: Status,
        /// The errno behind a failure, or 0.
        os_error: i32,
        /// Why the connect failed, as text; empty if it succeeded.
        why: Box<str>,
    },
}

impl EventBody {
    /// Returns the kinds of events, `WHAT_` bits, that a queue takes to get this event about a peer.
    pub(super) fn what(&self) -> u32 {
        match self {
            EventBody::PeerDown { .. } | EventBody::PeerUp { again: true } => WHAT_PEER_STATES,
            _ => WHAT_PEERS,
        }
    }

    /// Returns the channel of a notification.
    pub(super) fn channel(&self) -> Option<u16> {
        match self {
            EventBody::Notification { channel, .. } => Some(*channel),
            _ => None,
        }
    }

    /// Makes late bytes include those of an older event in the same region, which this event replaces.
    pub(super) fn include(&mut self, older: &EventBody) {
        if let (
            EventBody::LateApply { address, length, .. },
            EventBody::LateApply { address: before, length: bytes, .. },
        ) = (self, older)
        {
            let end = (*address + *length).max(before + bytes);
            *address = (*address).min(*before);
            *length = end - *address;
        }
    }
}

impl Event {
    pub fn new(peer: PeerId, body: EventBody) -> Event {
        Event { peer, body, credit: None }
    }
}

/// The right of a sender to one more notification that waits here. The drop calls `give_back` once; `give_back` must
/// not panic, because it may run during an unwind.
pub struct Credit(Arc<dyn Fn() + Send + Sync>);

impl Credit {
    pub fn new(give_back: Arc<dyn Fn() + Send + Sync>) -> Credit {
        Credit(give_back)
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl fmt::Debug for Credit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credit")
    }
}
