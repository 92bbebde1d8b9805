//! What the service behind same-host paths keeps of each, under one lock.

use super::draining::Draining;
use super::path::LocalPath;
use super::session::Session;
use crate::schedule::Schedule;
use crate::types::PeerId;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// Sessions told of a region that has gone, before whoever waits for the lock gets it.
const TOLD_PER_TURN: usize = 4096;

pub struct Sessions {
    /// By the peer's handle, from the session's beginning to its end.
    pub sessions: HashMap<PeerId, Session>,
    /// The same by the session's id, with which the dialer comes.
    pub by_id: HashMap<[u8; 16], PeerId>,
    /// Those that have something to look at: whoever changes one puts it here, but for who looks after it.
    pub work: BTreeSet<PeerId>,
    /// When the others are looked at next, as they stood when they were last looked after.
    pub times: Schedule<Instant, PeerId>,
    /// Regions that have gone, and that no session was told of yet.
    pub gone: VecDeque<u64>,
    pub open: HashMap<PeerId, Arc<LocalPath>>,
    /// What was said about an open path.
    pub how: HashMap<PeerId, String>,
    /// The processes of paths that were opened, until their sessions end.
    pub processes: HashMap<PeerId, (u64, Arc<LocalPath>)>,
    /// Over, but its process was still copying here, or had memory of a device mapped; by peer.
    pub draining: HashMap<PeerId, Vec<Draining>>,
    /// When they are looked at again.
    pub fading_times: Schedule<Instant, PeerId>,
    /// Copying threads of paths that are over.
    pub leaving: Vec<JoinHandle<()>>,
    /// Came, and have not said for which session.
    pub strangers: HashMap<u64, OwnedFd>,
    /// How long they may take.
    pub strangers_times: Schedule<Instant>,
    /// Whose socket or process a token stands for.
    pub tokens: HashMap<u64, PeerId>,
    pub next_token: u64,
}

impl Sessions {
    /// None yet. Tokens begin after this one.
    pub fn new(next_token: u64) -> Sessions {
        Sessions {
            sessions: HashMap::new(),
            by_id: HashMap::new(),
            work: BTreeSet::new(),
            times: Schedule::new(),
            gone: VecDeque::new(),
            open: HashMap::new(),
            how: HashMap::new(),
            processes: HashMap::new(),
            draining: HashMap::new(),
            fading_times: Schedule::new(),
            leaving: Vec::new(),
            strangers: HashMap::new(),
            strangers_times: Schedule::new(),
            tokens: HashMap::new(),
            next_token,
        }
    }

    pub fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// When something has to be done unless something comes.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        if !self.work.is_empty() || !self.gone.is_empty() {
            return Some(now);
        }
        [self.times.first(), self.fading_times.first(), self.strangers_times.first()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Tells sessions which regions have gone, a turn of it.
    pub fn tell_gone(&mut self) {
        let mut told = 0;
        while told < TOLD_PER_TURN {
            let Some(id) = self.gone.pop_front() else { return };
            for (peer, session) in &mut self.sessions {
                session.tell_gone(id);
                if session.has_outgoing() {
                    self.work.insert(*peer);
                }
            }
            told += self.sessions.len().max(1);
        }
    }
}
