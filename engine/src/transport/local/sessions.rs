//! The state of all same-host sessions, under one lock.

use super::draining::Draining;
use super::path::LocalPath;
use super::session::Session;
use crate::schedule::{Schedule, SessionTable};
use crate::sys::fd::OwnedFd;
use crate::sys::map::HashMap;
use crate::sys::thread::JoinHandle;
use crate::types::{Monotonic, PeerId, RegionId, SessionId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Sessions told of removed regions in one turn, before the lock is released to other threads.
const ANNOUNCED_PER_TURN: usize = 4096;

pub struct Sessions {
    /// A thread that changes a session notes it there, except in `serve`.
    pub all: SessionTable<Session>,
    /// The peers by session id, which the dialer's ATTACH names.
    pub by_id: HashMap<SessionId, PeerId>,
    /// Removed regions that the sessions were not told of yet.
    pub gone: VecDeque<RegionId>,
    /// The open paths, each with the text for `ferry_peer_paths`.
    pub open: HashMap<PeerId, (Arc<LocalPath>, String)>,
    /// The processes of opened paths with their tokens, until another session begins or the peer is forgotten.
    pub processes: HashMap<PeerId, (u64, Arc<LocalPath>)>,
    /// Ended paths by which a process still copies, or whose peer has device memory mapped; by peer.
    pub draining: HashMap<PeerId, Vec<Draining>>,
    /// When the draining paths are checked next.
    pub draining_times: Schedule<Monotonic, PeerId>,
    /// The threads that look at peers' memory: at most one of each peer.
    pub proving: HashMap<PeerId, JoinHandle<()>>,
    /// Copy threads of paths that have ended, and threads of looks that have ended.
    pub ending_threads: Vec<JoinHandle<()>>,
    /// Accepted connections that have not sent a packet yet, by token.
    pub strangers: HashMap<u64, OwnedFd>,
    /// When their time is over.
    pub strangers_times: Schedule<Monotonic>,
    /// The peer whose socket or process a token stands for.
    pub tokens: HashMap<u64, PeerId>,
    pub next_token: u64,
}

impl Sessions {
    /// Returns an empty state. Tokens begin above `next_token`.
    pub fn new(next_token: u64) -> Sessions {
        Sessions {
            all: SessionTable::new(),
            by_id: HashMap::default(),
            gone: VecDeque::new(),
            open: HashMap::default(),
            processes: HashMap::default(),
            draining: HashMap::default(),
            draining_times: Schedule::new(),
            proving: HashMap::default(),
            ending_threads: Vec::new(),
            strangers: HashMap::default(),
            strangers_times: Schedule::new(),
            tokens: HashMap::default(),
            next_token,
        }
    }

    pub fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// Notes that looks at these peers' memory have ended.
    pub fn proofs_ended(&mut self, peers: Vec<PeerId>) {
        for peer in peers {
            self.ending_threads.extend(self.proving.remove(&peer));
            self.all.changed(peer);
        }
    }

    /// Returns when the next timer is due; `now` if work waits.
    pub fn next_due(&self, now: Monotonic) -> Option<Monotonic> {
        if !self.gone.is_empty() {
            return Some(now);
        }
        [self.all.next_due(now), self.draining_times.first(), self.strangers_times.first()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Tells sessions which regions were removed, one turn of it.
    pub fn announce_gone(&mut self) {
        let mut announced = 0;
        while announced < ANNOUNCED_PER_TURN {
            let Some(id) = self.gone.pop_front() else { return };
            self.all.change_all(|session| {
                session.announce_gone(id);
                session.has_outgoing()
            });
            announced += self.all.values().len().max(1);
        }
    }
}
