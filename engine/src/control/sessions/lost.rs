//! Peers that are lost: whose posted data may still land here, and whose handles are still known.

use crate::command::Reply;
use crate::peer::Peer;
use crate::status::Status;
use crate::sys::map::HashMap;
use crate::types::{Incarnation, PeerId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Number of lost peers whose handles still answer PEER_LOST; older handles become STALE.
pub const LOST_PEERS_KEPT: usize = 1024;

/// A lost peer whose posted data may still land here.
pub struct Draining {
    pub peer: Arc<Peer>,
    pub why: Status,
    /// Replies to send when nothing of the peer can land here any more.
    pub waiting: Vec<Reply<()>>,
}

#[derive(Default)]
pub struct Lost {
    /// The PeerLost event follows when nothing of the peer can land here any more.
    draining: HashMap<PeerId, Draining>,
    /// Peers whose sessions are over, in that order.
    retired: VecDeque<PeerId>,
}

impl Lost {
    pub fn drain(&mut self, peer: Arc<Peer>, why: Status) {
        self.draining.insert(peer.handle, Draining { peer, why, waiting: Vec::new() });
    }

    pub fn draining(&self, peer: PeerId) -> Option<&Draining> {
        self.draining.get(&peer)
    }

    pub fn is_any_draining(&self) -> bool {
        !self.draining.is_empty()
    }

    /// Returns the lost peers of this incarnation whose data can still land here.
    pub fn draining_of(&self, theirs: Incarnation) -> impl Iterator<Item = PeerId> + '_ {
        let is_theirs = move |peer: &Peer| (peer.identity.engine_id, peer.identity.incarnation) == theirs;
        self.draining.iter().filter(move |(_, it)| is_theirs(&it.peer)).map(|(handle, _)| *handle)
    }

    /// Replies when nothing of this peer, whose session is over, can land here any more.
    pub fn answer_when_drained(&mut self, peer: PeerId, reply: Reply<()>) {
        match self.draining.get_mut(&peer) {
            Some(draining) => {
                draining.waiting.retain(Reply::is_awaited);
                draining.waiting.push(reply)
            }
            None => reply.send(Ok(())),
        }
    }

    pub fn end_drain(&mut self, peer: PeerId) -> Option<Draining> {
        self.draining.remove(&peer)
    }

    /// Keeps the handle of a peer whose session is over. Returns a handle to forget, if more than LOST_PEERS_KEPT are
    /// kept.
    pub fn retire(&mut self, peer: PeerId) -> Option<PeerId> {
        self.retired.push_back(peer);
        if self.retired.len() > LOST_PEERS_KEPT {
            self.retired.pop_front()
        } else {
            None
        }
    }

    /// Returns the number of handles that are kept.
    pub fn kept(&self) -> usize {
        self.retired.len()
    }

    /// Returns the handle that was kept first, to forget it.
    pub fn take_oldest(&mut self) -> Option<PeerId> {
        self.retired.pop_front()
    }
}
