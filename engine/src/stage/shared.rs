//! The part of the stage that other threads see: the paths to the peers, and how much of what peers asked for is still
//! under way here. Everything else of the stage belongs to its thread.

use super::path::StagedPath;
use crate::command::{Command, Commands};
use crate::limits::STAGE_QUEUED_BYTES_MAX;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::map::HashMap;
use crate::types::PeerId;
use std::sync::Arc;

pub struct Shared {
    commands: Arc<Commands>,
    peers: Mutex<Peers>,
}

#[derive(Default)]
struct Peers {
    paths: HashMap<PeerId, Arc<StagedPath>>,
    /// The peers' copies from and to devices here. An entry exists while the peer's session stands or copies are under
    /// way.
    served: HashMap<PeerId, ServedPeer>,
}

#[derive(Default)]
struct ServedPeer {
    copying: u32,
    may_begin: bool,
    /// Bytes of messages from the peer that the thread has not decoded yet.
    queued_bytes: usize,
}

impl Shared {
    pub fn new(commands: Arc<Commands>) -> Shared {
        Shared { commands, peers: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock()
    }

    /// Begins a session: the peer has a path, and its copies may begin.
    pub fn begin(&self, peer: PeerId, path: impl FnOnce() -> StagedPath) {
        let mut peers = self.lock();
        peers.paths.entry(peer).or_insert_with(|| Arc::new(path()));
        peers.served.entry(peer).or_default().may_begin = true;
    }

    /// Lets no further copy of the peer begin.
    pub fn end(&self, peer: PeerId) {
        if let Some(served_peer) = self.lock().served.get_mut(&peer) {
            served_peer.may_begin = false;
        }
    }

    pub fn path(&self, peer: PeerId) -> Option<Arc<StagedPath>> {
        self.lock().paths.get(&peer).cloned()
    }

    pub fn forget_path(&self, peer: PeerId) {
        self.lock().paths.remove(&peer);
    }

    /// Forgets the copies of a peer that is over.
    pub fn forget_copies(&self, peer: PeerId) {
        self.lock().served.remove(&peer);
    }

    /// Counts a message that is left for the thread. Returns false if more bytes wait than a correct engine sends.
    pub fn received(&self, peer: PeerId, bytes: usize) -> bool {
        self.lock().served.get_mut(&peer).is_none_or(|served_peer| {
            served_peer.queued_bytes += bytes;
            served_peer.queued_bytes <= STAGE_QUEUED_BYTES_MAX
        })
    }

    /// Ends the count of a message that the thread takes in.
    pub fn taken_in(&self, peer: PeerId, bytes: usize) {
        if let Some(served_peer) = self.lock().served.get_mut(&peer) {
            served_peer.queued_bytes = served_peer.queued_bytes.saturating_sub(bytes);
        }
    }

    /// Begins a copy that the peer asked for; false when its session is over.
    pub fn begin_copy(&self, peer: PeerId) -> bool {
        let mut peers = self.lock();
        let served_peer = peers.served.get_mut(&peer).filter(|served_peer| served_peer.may_begin);
        served_peer.map(|served_peer| served_peer.copying += 1).is_some()
    }

    /// Ends a copy that `begin_copy` began.
    pub fn end_copy(&self, peer: PeerId) {
        let mut peers = self.lock();
        let Some(served_peer) = peers.served.get_mut(&peer) else { return };
        served_peer.copying -= 1;
        if served_peer.copying == 0 && !served_peer.may_begin {
            self.commands.push(Command::TransportQuiet { peer });
        }
    }

    /// Returns the number of the peer's copies under way.
    pub fn copying(&self, peer: PeerId) -> u32 {
        self.lock().served.get(&peer).map_or(0, |served_peer| served_peer.copying)
    }
}
