//! The paths to a peer: TCP's path, the paths of the other transports, and their states for the router.

use super::path::{Path, PathStatus};
use super::{Peer, PeerState, SWEEP_TURN};
use crate::route::{Asked, Facts, PathState, ORDER};
use crate::sys::atomic::{AtomicU64, Ordering};
use crate::sys::clock;
use crate::types::Transport;
use std::sync::Arc;

/// Why an engine reaches itself by the same-host path alone.
pub const OWN: &str = "the peer is this engine itself";

const STATE_BITS: u32 = 3;
const LOST: u64 = 1 << (STATE_BITS * Transport::COUNT as u32);
const ONE_VERSION: u64 = LOST << 1;

/// The state of each path, whether the peer is lost, and the version of both, in one atomic value, so that a reader
/// sees one consistent moment. Pairs with `Peer::paths` and the outbox: they change before a path becomes Open here,
/// and after it has ceased to be Open.
#[derive(Default)]
pub struct Standing(AtomicU64);

impl Standing {
    fn change(&self, change: impl Fn(u64) -> u64) {
        let next = |word| Some(change(word).wrapping_add(ONE_VERSION));
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    fn set(&self, transport: Transport, state: PathState) {
        let at = STATE_BITS * transport as u32;
        let set = move |word| word & !(((1 << STATE_BITS) - 1) << at) | (state as u64) << at;
        // A lost peer's paths stay as they are; a late change may only shut one.
        self.change(|word| if word & LOST != 0 && state != PathState::Shut { word } else { set(word) });
    }

    fn state(word: u64, transport: usize) -> PathState {
        match word >> (STATE_BITS * transport as u32) & ((1 << STATE_BITS) - 1) {
            1 => PathState::Open,
            2 => PathState::Shut,
            _ => PathState::Pending,
        }
    }
}

impl Peer {
    /// Sets TCP's path, which exists as long as the session. It is open while the session is up (`note_state`).
    pub fn set_tcp_path(&self, path: Option<Arc<dyn Path>>) {
        let gone = || PathStatus::Shut("the session is over".into());
        *self.paths[Transport::Tcp as usize].write() =
            path.map_or_else(gone, |path| PathStatus::Open(path, String::new()));
    }

    /// Returns the path of a transport, if it is open; TCP's as long as the session exists.
    pub fn path(&self, transport: Transport) -> Option<Arc<dyn Path>> {
        // Work that has no transport yet waits for TCP.
        let transport = if transport == Transport::None { Transport::Tcp } else { transport };
        match &*self.paths[transport as usize].read() {
            PathStatus::Open(path, _) => Some(path.clone()),
            PathStatus::Pending(_) | PathStatus::Shut(_) => None,
        }
    }

    /// Returns whether the peer has proven that it is on this host: in the handshake, by the user that it runs as, or
    /// by the same-host path. Addresses prove nothing.
    pub fn same_host(&self) -> bool {
        self.identity.same_host || self.found_here.load(Ordering::Relaxed)
    }

    /// Returns whether the transport's path is still being established.
    pub fn is_pending(&self, transport: Transport) -> bool {
        matches!(&*self.paths[transport as usize].read(), PathStatus::Pending(_))
    }

    pub fn path_status(&self, transport: Transport) -> PathStatus {
        self.paths[transport as usize].read().clone()
    }

    /// Sets the status of a transport other than TCP. If the path is not open, queued work moves to a transport that
    /// may carry it; work that is still allowed no path is struck.
    pub fn set_path(&self, transport: Transport, status: PathStatus) {
        let state = match &status {
            PathStatus::Open(..) => PathState::Open,
            PathStatus::Pending(_) => PathState::Pending,
            PathStatus::Shut(_) => PathState::Shut,
        };
        if transport == Transport::Local && state == PathState::Open {
            self.found_here.store(true, Ordering::Relaxed);
        }
        // The path is entered before its state is Open: a transfer routed to it must find it.
        let more = if state == PathState::Open {
            let more = self.move_lineup(transport, state);
            *self.paths[transport as usize].write() = status;
            self.standing.set(transport, state);
            more
        } else {
            self.standing.set(transport, state);
            *self.paths[transport as usize].write() = status;
            self.move_lineup(transport, state)
        };
        if more {
            self.sweep_soon();
        }
        self.post_all();
    }

    /// Returns whether work is left for a sweep, because one turn is bounded.
    fn move_lineup(&self, transport: Transport, state: PathState) -> bool {
        let mut outbox = self.outbox.lock();
        match state {
            PathState::Open => outbox.open(transport),
            state => outbox.shut(transport, state == PathState::Pending),
        }
        !outbox.relocate(SWEEP_TURN) || outbox.has_stranded()
    }

    /// Opens the paths of an engine to itself. `notifier` stands in TCP's place and carries notifications alone.
    pub fn open_own(&self, local: Arc<dyn Path>, staged: Arc<dyn Path>, notifier: Arc<dyn Path>) {
        self.set_state(PeerState::Up);
        self.set_tcp_path(Some(notifier));
        self.standing.set(Transport::Tcp, PathState::Shut);
        for transport in ORDER.iter().copied().filter(|transport| *transport != Transport::Tcp) {
            let status = match transport {
                Transport::Local => PathStatus::Open(local.clone(), OWN.into()),
                Transport::Staged => PathStatus::Open(staged.clone(), String::new()),
                _ => PathStatus::Shut(OWN.into()),
            };
            self.set_path(transport, status);
        }
        self.note_time();
    }

    /// Ends the paths of an engine to itself.
    pub fn close_own(&self) {
        self.set_path(Transport::Local, PathStatus::Shut(OWN.into()));
        self.set_tcp_path(None);
    }

    /// Takes a sample of the peer's clock, which is this engine's own.
    pub fn note_time(&self) {
        let now_ns = clock::boottime_ns();
        self.clock.sample(now_ns, now_ns);
    }

    /// Derives the state of TCP's path from the session's.
    pub(super) fn note_state(&self, state: PeerState) {
        let path = match state {
            PeerState::Up => PathState::Open,
            PeerState::Connecting | PeerState::Down => PathState::Pending,
            PeerState::Lost => PathState::Shut,
        };
        self.standing.set(Transport::Tcp, path);
    }

    pub(super) fn note_lost(&self) {
        self.standing.change(|word| word | LOST);
        self.note_state(PeerState::Lost);
    }

    /// Starts a new version: a property of a path, or of the memory that it reaches, has changed.
    pub fn note_change(&self) {
        self.standing.change(|word| word);
    }

    pub fn path_state(&self, transport: Transport) -> PathState {
        Standing::state(self.standing.0.load(Ordering::Acquire), transport as usize)
    }

    /// Returns the state of all paths at this moment. Call it before reading the regions, which the version covers too.
    pub fn facts(&self, asked: Asked) -> Facts {
        let word = self.standing.0.load(Ordering::Acquire);
        let version = (word / ONE_VERSION).wrapping_add(self.remote.version());
        let mut facts =
            Facts::new(version, std::array::from_fn(|transport| Standing::state(word, transport)), asked);
        facts.is_lost = word & LOST != 0;
        facts
    }
}
