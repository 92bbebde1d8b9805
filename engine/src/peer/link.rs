//! What a transport is to a peer: a way to post (`Link`), and, for one that lives beside sessions that
//! another transport keeps, what those tell it (`Companion`).

use super::outbox::Class;
use super::{Peer, Posted};
use crate::complete::Transfer;
use crate::region::grants::Use;
use crate::region::RemoteMap;
use crate::status::Result;
use crate::sys::proven::Proven;
use crate::types::{MemoryKind, Op, Range, Slice, Transport};
use std::sync::Arc;

/// See `Link::keep`.
pub type Kept = Box<dyn Send + Sync>;

/// One transport's way to a peer. Implemented by transports.
pub trait Link: Send + Sync {
    /// Whether a transfer of these ranges can go this way; `known` are the peer's regions. `alone`: there is
    /// no other way, so what nobody here knows may be tried. Changes nothing: asking is not using.
    fn carries(&self, ranges: &[Range], known: &RemoteMap, alone: bool) -> bool;
    /// A caller queued something of this class: have it posted, by a worker unless it is EXPRESS, which
    /// the calling thread sends itself.
    fn post(&self, class: Class);
    /// The same for what the calling thread has just submitted, at `submitted_ns` (CLOCK_MONOTONIC).
    fn post_new(&self, class: Class, _submitted_ns: u64) {
        self.post(class);
    }
    /// Something may be queued: have it posted. From any thread, and without keeping it.
    fn nudge(&self);
    /// Moves one small piece before it returns, if that is how this transport moves what is small. False:
    /// it has not, or not all of it; submitting it tells why, or does better. The caller has entered the
    /// local region. `now_ns`: CLOCK_MONOTONIC.
    fn at_once(&self, _op: Op, _slice: &Slice, _now_ns: u64) -> bool {
        false
    }
    /// Drives the link from the calling thread until the transfer is final or `deadline_ns`
    /// (CLOCK_MONOTONIC) has passed. Returns early, without harm, when another thread drives it.
    fn drive(&self, transfer: &Transfer, deadline_ns: u64);
    /// Takes in what has completed, and returns.
    fn poll(&self) {}
    /// Somebody is about to sleep until a transfer is final that is attended from now on.
    fn attend(&self) {}
    /// Wakes a thread that sleeps in `drive`, because something it may wait for has changed.
    fn wake(&self);
    /// Whether nothing can go this way at this moment, though nobody has said yet what becomes of it.
    fn is_broken(&self) -> bool {
        false
    }
    /// Whether it was given up because nobody used it, and waits to be roused.
    fn is_resting(&self) -> bool {
        false
    }
    /// A path that rests is wanted again.
    fn rouse(&self) {}
    /// Keeps a region of the peer's registered from here until what is returned is dropped. None: not by this
    /// way.
    fn keep(&self, _region: u64, _use: Use) -> Option<Result<Kept>> {
        None
    }
    /// The peer's process, where this way has proven which one it is.
    fn process(&self) -> Option<Arc<Proven>> {
        None
    }
    /// Why memory of devices of this kind does not go this way by itself, when it was last tried.
    fn obstacle(&self, _kind: MemoryKind) -> Option<String> {
        None
    }
    /// Whether devices of this kind reach those of other hosts by themselves.
    fn crosses(&self, _kind: MemoryKind) -> bool {
        false
    }
    /// Lanes in use, for the statistics.
    fn lanes(&self) -> usize;
}

/// What became of a companion's lane that was to be closed.
pub enum Closed {
    /// It moves nothing any more on this side; what it carried.
    Quiet(Vec<Posted>),
    /// Nothing new begins on it, but its device is not through with it. `Command::LaneLost` comes when it is,
    /// and whoever closes it again has what it carried. Until then nobody may be told that it is closed.
    Soon,
}

/// A transport that comes and goes with sessions, which somebody else keeps: the same-host path, RDMA.
/// Implemented by transports, driven by the control loop. Nothing here waits for another process.
pub trait Companion: Send + Sync {
    /// A session stands. Each side's companion may tell the other's what it needs, by `Command::Tell`;
    /// `Command::CompanionSettled` tells, soon, what became of it, and again whenever that changes.
    fn begin(&self, ticket: Ticket);
    /// The other side's companion says something. False: no engine in good order says that, or as much of it, and
    /// the session is to end.
    fn message(&self, peer: u64, body: &[u8]) -> bool;
    /// The other side will not come, and says why. False as for `message`.
    fn refused(&self, peer: u64, why: String) -> bool;
    /// The path, once it is settled and as long as there is one; with what makes it fast or slow.
    fn link(&self, peer: u64) -> Option<(Arc<dyn Link>, String)>;
    /// Regions of this engine came, or are there as the session begins: what the other side's companion is to hear
    /// before its engine hears of them, and before it hears what is told by `Command::Tell` from then on.
    fn regions_added(&self, peer: u64, ids: &[u64]) -> Vec<Vec<u8>>;
    fn regions_removed(&self, ids: &[u64]);
    /// The lanes on which something of this transfer is posted. Their numbers are no TCP lane's.
    fn carriers(&self, _peer: u64, _transfer: u64) -> Vec<u32> {
        Vec::new()
    }
    /// Closes a lane, or hands over what one carried that has been closed since. None if there is no such lane.
    fn close_lane(&self, _peer: u64, _lane: u32) -> Option<Closed> {
        None
    }
    /// The session is over: nothing more is posted from here, and no new access of the peer is let in.
    /// The lanes that were closed for it.
    fn end(&self, peer: u64) -> Vec<(u32, Closed)>;
    /// The peer is lost for good: its process need not be watched any more.
    fn forget(&self, peer: u64);
    /// Nothing of a lost peer can land here any more, whatever would have carried it.
    fn all_quiet(&self, _peer: u64) {}
    /// Whether nothing of a peer whose session is over can land here any more. `Command::CompanionQuiet`
    /// comes when an answer of false becomes true.
    fn is_quiet(&self, peer: u64) -> bool;
}

/// A companion's place beside the sessions: it, or why this engine has none.
pub struct Beside {
    pub transport: Transport,
    pub companion: std::result::Result<Arc<dyn Companion>, String>,
}

/// A session, as a `Companion` must know it.
pub struct Ticket {
    pub peer: Arc<Peer>,
    pub dialer: bool,
    pub session_id: [u8; 16],
    /// Known to the two engines alone.
    pub key: [u8; 32],
}

/// A transport's way to the peer, or why there is none.
#[derive(Clone)]
pub enum Way {
    /// With what makes it fast or slow.
    Open(Arc<dyn Link>, String),
    /// There is none at this moment, with the reason: it is being made, or made again.
    Pending(String),
    /// With the reason.
    Shut(String),
}
