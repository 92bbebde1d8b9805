//! The stage's state of one peer.

use super::bridge_target::Exposures;
use super::lending::Borrower;
use super::mapped::Reached;
use super::serve::ServedOperations;
use super::wire::{Message, MESSAGE_BYTES};
use crate::command::{Command, Commands};
use crate::peer::Peer;
use crate::sys::map::HashMap;
use crate::types::{SessionId, TransferId, Transport};
use std::sync::Arc;
use std::task::Waker;

/// The stage's state of one peer; `Stage::sides` has it by handle.
pub struct StagedPeer {
    pub peer: Arc<Peer>,
    /// The current session, if any.
    session: Option<SessionId>,
    /// Encoded messages to send.
    out: Vec<u8>,
    lost: bool,
    pub served: ServedOperations,
    /// The wakers that report when one of these transfers is struck.
    pub watched: HashMap<TransferId, Waker>,
    pub reached: Reached,
    pub borrower: Borrower,
    pub exposures: Exposures,
}

impl StagedPeer {
    pub fn new(peer: Arc<Peer>) -> StagedPeer {
        StagedPeer {
            peer,
            session: None,
            out: Vec::new(),
            lost: false,
            served: ServedOperations::default(),
            watched: HashMap::default(),
            reached: Reached::default(),
            borrower: Borrower::default(),
            exposures: Exposures::default(),
        }
    }

    pub fn begin(&mut self, session: SessionId) {
        (self.session, self.lost) = (Some(session), false);
    }

    /// Ends the session, and all that does not outlast it.
    pub fn end(&mut self) {
        self.session = None;
        self.out.clear();
        self.reached.clear();
        self.borrower.disconnected();
    }

    pub fn lose(&mut self) {
        self.lost = true;
    }

    pub fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns whether a lost peer has nothing left here but perhaps operations of this side.
    pub fn is_over(&self) -> bool {
        self.lost && self.served.is_over()
    }

    /// Queues a message until `flush`.
    pub fn push(&mut self, message: &Message, commands: &Commands) {
        message.encode(&mut self.out);
        if self.out.len() > MESSAGE_BYTES {
            self.flush(commands);
        }
    }

    /// Sends the queued messages; drops them while there is no session.
    pub fn flush(&mut self, commands: &Commands) {
        if self.out.is_empty() {
            return;
        }
        let body = std::mem::take(&mut self.out);
        let Some(session_id) = self.session else { return };
        let (peer, transport, why) = (self.peer.handle, Transport::Staged, String::new());
        commands.push(Command::ServiceMessage { peer, session_id, transport, body, why });
    }
}
