//! The engine's own peer, which has no session: what crosses a connection to other peers arrives here at once.

use super::Control;
use crate::command::Command;
use crate::peer::Peer;
use crate::types::PeerId;
use std::sync::Arc;

impl Control {
    /// Returns the peer with a session, or the engine's own.
    pub(super) fn known(&self, peer: PeerId) -> Option<Arc<Peer>> {
        let session = self.sessions.get(peer).map(|session| &session.peer);
        session.or_else(|| self.context.own_peer(peer)).cloned()
    }

    /// Carries out a command to the engine's own peer; returns other commands.
    pub(super) fn command_to_own(&self, command: Command) -> Option<Command> {
        let own = |peer: &PeerId| self.context.own_peer(*peer);
        match command {
            Command::Grant { peer, limit } if own(&peer).is_some() => {
                own(&peer)?.grant(limit);
            }
            Command::Ask { peer } if own(&peer).is_some() => {
                own(&peer)?.asked();
                own(&peer)?.note_time();
            }
            Command::ServiceMessage { peer, transport, body, .. } if own(&peer).is_some() => {
                self.service(transport)?.message(peer, &body);
            }
            other => return Some(other),
        }
        None
    }
}
