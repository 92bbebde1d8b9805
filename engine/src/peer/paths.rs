//! Which ways to the peer there are at this moment: TCP's link, and those of other transports; and how they stand,
//! for the router.

use super::path::{Path, PathStatus};
use super::{Peer, PeerState, SWEEP_TURN};
use crate::route::{Asked, Facts, PathState};
use crate::types::Transport;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

const STATE_BITS: u32 = 3;
const LOST: u64 = 1 << (STATE_BITS * Transport::COUNT as u32);
const ONE_VERSION: u64 = LOST << 1;

/// How each path stands, whether the peer is lost, and the version of all that: in one word, so that who looks at it
/// sees one moment. Partners: the ways and the outbox, which change before a path is Open here, and after it has
/// ceased to be.
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
        // What is lost stays so, whoever comes late.
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
    pub fn set_tcp_path(&self, path: Option<Arc<dyn Path>>) {
        *self.path.write() = path;
    }

    pub fn tcp_path(&self) -> Option<Arc<dyn Path>> {
        self.path.read().clone()
    }

    /// The link of a transport, while there is one.
    pub fn path(&self, transport: Transport) -> Option<Arc<dyn Path>> {
        match transport {
            Transport::None | Transport::Tcp => self.tcp_path(),
            _ => match &*self.paths[transport as usize].read() {
                PathStatus::Open(path, _) => Some(path.clone()),
                PathStatus::Pending(_) | PathStatus::Shut(_) => None,
            },
        }
    }

    /// Whether it is not known yet what becomes of this way.
    pub fn is_pending(&self, transport: Transport) -> bool {
        matches!(&*self.paths[transport as usize].read(), PathStatus::Pending(_))
    }

    pub fn path_status(&self, transport: Transport) -> PathStatus {
        self.paths[transport as usize].read().clone()
    }

    /// A transport besides TCP, or why there is none. What waited for it moves to TCP when it is not open,
    /// or is struck if it may not.
    pub fn set_path(&self, transport: Transport, status: PathStatus) {
        let state = match &status {
            PathStatus::Open(..) => PathState::Open,
            PathStatus::Pending(_) => PathState::Pending,
            PathStatus::Shut(_) => PathState::Shut,
        };
        // Who is told that it is open finds it so: what was decided for it would go another way otherwise.
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

    /// Whether there is more to be done than one turn does.
    fn move_lineup(&self, transport: Transport, state: PathState) -> bool {
        let mut outbox = self.outbox.lock();
        match state {
            PathState::Open => outbox.open(transport),
            state => outbox.shut(transport, state == PathState::Pending),
        }
        !outbox.relocate(SWEEP_TURN) || outbox.has_stranded()
    }

    /// What becomes of TCP's path follows the session.
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

    /// Something that a link says of itself or of what it reaches has changed: decisions before and after this are of
    /// different versions.
    pub fn note_change(&self) {
        self.standing.change(|word| word);
    }

    pub fn path_state(&self, transport: Transport) -> PathState {
        Standing::state(self.standing.0.load(Ordering::Acquire), transport as usize)
    }

    /// What is known of the paths at this moment. To be taken before the regions are looked at, which the version
    /// covers too.
    pub fn facts(&self, asked: Asked) -> Facts {
        let word = self.standing.0.load(Ordering::Acquire);
        let version = (word / ONE_VERSION).wrapping_add(self.remote.version());
        let mut facts =
            Facts::new(version, std::array::from_fn(|transport| Standing::state(word, transport)), asked);
        facts.is_lost = word & LOST != 0;
        facts
    }
}
