//! Moves the pieces of the machine's posts. A post may have any number of pieces, so it becomes transfers of bounded
//! numbers of pieces, which are submitted as earlier ones end:
//!
//! ```text
//! Action::Post ─ add ─▶ pieces ── next ─▶ requests (no lock) ─▶ submit (no lock) ── submitted ─▶ transfers under way
//!                          ▲                                                              │ ended
//!                          └───────────── the next pieces ◀──────────────────────────────┘─▶ `moved`, after the last
//! ```
//! The cache's thread alone makes requests, a bounded number in a turn, and serves messages between two turns.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use ferry::status::{Error, Result};
use ferry::types::{Op, PeerId, RegionId, Request};
use ferry::{Status, Transfer, TransferOptions};

use super::state::{Inner, UnderWay};
use super::Shared;
use crate::handoff::{PostId, Regions};
use crate::plan::{Pieces, Place, Strided};

/// Pieces of one transfer, and of one turn: about a millisecond of work.
const PIECES_MAX: usize = 4 << 10;
/// Pieces of one peer's transfers that are under way; a further transfer waits. They take some 150 bytes each.
const PIECES_OF_PEER_MAX: u64 = 16 * PIECES_MAX as u64;
/// Making and submitting a transfer costs as much as this many pieces, in addition to its own.
const TRANSFER_COST: usize = 64;
/// How often a submission that the engine had no room for is tried again. The application makes room too, when its own
/// transfers end, and no event reports that.
pub const NO_ROOM_NS: u64 = 10_000_000;

/// The part of a transfer that this file uses.
pub trait Cancel {
    fn stop(&self);
}

impl Cancel for Transfer {
    fn stop(&self) {
        // A transfer that is final cannot be cancelled, and says so by itself.
        let _ = self.cancel();
    }
}

/// The posts that are not final.
pub struct Moving<T = Transfer> {
    posts: BTreeMap<PostId, Moves<T>>,
    peers: BTreeMap<PeerId, Waiting>,
    /// The peer that had the last turn.
    last: PeerId,
    /// The engine had no room: until this time, or until something has ended.
    full_until: Option<u64>,
}

struct Moves<T> {
    peer: PeerId,
    op: Op,
    moves: Arc<[Strided]>,
    /// The next piece.
    place: Place,
    /// There are further pieces, and they are to be moved.
    has_more: bool,
    /// The thread makes requests of it.
    is_busy: bool,
    /// Pieces may continue each other.
    merges: bool,
    regions: Regions,
    /// The transfers that are not final, by their numbers, with their pieces.
    under_way: BTreeMap<u64, (T, u64)>,
    failed: Option<Error>,
}

/// One peer's posts that have further pieces, the next one first, and its pieces under way.
#[derive(Default)]
struct Waiting {
    posts: VecDeque<PostId>,
    pieces: u64,
}

/// The next pieces of a post.
struct Job {
    post: PostId,
    number: u64,
    peer: PeerId,
    op: Op,
    pieces: Pieces<Arc<[Strided]>>,
    merges: bool,
    regions: Regions,
}

impl Waiting {
    fn has_turn(&self) -> bool {
        !self.posts.is_empty() && self.pieces < PIECES_OF_PEER_MAX
    }
}

impl<T: Cancel> Moving<T> {
    pub fn new() -> Moving<T> {
        Moving { posts: BTreeMap::new(), peers: BTreeMap::new(), last: PeerId::NONE, full_until: None }
    }

    pub fn add(&mut self, post: PostId, peer: PeerId, op: Op, moves: Vec<Strided>, regions: Regions) {
        let merges = moves.iter().any(Strided::merges);
        let moves = Moves {
            peer,
            op,
            moves: moves.into(),
            place: Place::default(),
            has_more: true,
            is_busy: false,
            merges,
            regions,
            under_way: BTreeMap::new(),
            failed: None,
        };
        self.posts.insert(post, moves);
        self.peers.entry(peer).or_default().posts.push_back(post);
    }

    /// Moves nothing more of a post, and cancels what is under way.
    pub fn stop(&mut self, post: PostId, error: Error) {
        let Some(moves) = self.posts.get_mut(&post) else { return };
        moves.stop(error);
        if let Some(waiting) = self.peers.get_mut(&moves.peer) {
            waiting.posts.retain(|waits| *waits != post);
        }
    }

    /// A transfer of a post is final. Returns the transfer.
    pub fn ended(&mut self, post: PostId, number: u64) -> Option<T> {
        let moves = self.posts.get_mut(&post)?;
        let (transfer, pieces) = moves.under_way.remove(&number)?;
        if let Some(waiting) = self.peers.get_mut(&moves.peer) {
            waiting.pieces = waiting.pieces.saturating_sub(pieces);
        }
        Some(transfer)
    }

    /// A transfer of a post has failed: the post does, with the first error.
    pub fn failed(&mut self, post: PostId, error: Error) {
        if let Some(moves) = self.posts.get_mut(&post) {
            moves.failed.get_or_insert_with(|| error.clone());
        }
        self.stop(post, error);
    }

    /// Takes out a post that is final, and returns how it has ended.
    pub fn take_final(&mut self, post: PostId) -> Option<Result<()>> {
        let is_final = |moves: &Moves<T>| !moves.has_more && !moves.is_busy && moves.under_way.is_empty();
        let peer = self.posts.get(&post).filter(|moves| is_final(moves))?.peer;
        let moves = self.posts.remove(&post)?;
        let is_idle = |waiting: &Waiting| waiting.posts.is_empty() && waiting.pieces == 0;
        if self.peers.get(&peer).is_some_and(is_idle) {
            self.peers.remove(&peer);
        }
        Some(moves.failed.map_or(Ok(()), Err))
    }

    /// When the next pieces can be submitted; None if none waits, or only for others of its peer to end.
    pub fn next_at(&self, now: u64) -> Option<u64> {
        self.peers.values().any(Waiting::has_turn).then(|| self.full_until.unwrap_or(now))
    }

    /// Something has ended, so there may be room again.
    pub fn room_came(&mut self) {
        self.full_until = None;
    }

    pub fn clear(&mut self) {
        *self = Moving::new();
    }

    /// The next pieces that have room: peers take turns, and so do the posts of a peer.
    fn next(&mut self, number: u64, now: u64) -> Option<Job> {
        if self.full_until.is_some_and(|until| now < until) {
            return None;
        }
        let after = (Bound::Excluded(self.last), Bound::Unbounded);
        let mut in_turn = self.peers.range(after).chain(self.peers.range(..=self.last));
        let peer = *in_turn.find(|(_, waiting)| waiting.has_turn())?.0;
        let post = self.peers.get_mut(&peer)?.posts.pop_front()?;
        self.last = peer;
        let moves = self.posts.get_mut(&post)?;
        moves.is_busy = true;
        let pieces = Pieces::from(moves.moves.clone(), moves.place);
        let (op, merges, regions) = (moves.op, moves.merges, moves.regions.clone());
        Some(Job { post, number, peer, op, pieces, merges, regions })
    }

    /// The next pieces of a post are submitted, up to a place, or will never be.
    fn submitted(&mut self, job: Job, submitted: Result<(T, u64)>, no_room_until: u64) {
        let Some(moves) = self.posts.get_mut(&job.post) else { return };
        moves.is_busy = false;
        let waiting = self.peers.entry(job.peer).or_default();
        match submitted {
            Ok((transfer, pieces)) => {
                moves.place = job.pieces.place();
                moves.has_more &= job.pieces.clone().next().is_some();
                moves.under_way.insert(job.number, (transfer, pieces));
                waiting.pieces += pieces;
                if moves.failed.is_some() {
                    // Stopped meanwhile.
                    moves.cancel();
                } else if moves.has_more {
                    waiting.posts.push_back(job.post);
                }
            }
            Err(error) if error.status == Status::Limit => {
                self.full_until = Some(no_room_until);
                if moves.has_more {
                    waiting.posts.push_front(job.post);
                }
            }
            Err(error) => moves.stop(error),
        }
    }
}

impl<T: Cancel> Moves<T> {
    /// With pieces left, the post fails; without, the transfers under way decide how it ends.
    fn stop(&mut self, error: Error) {
        if std::mem::take(&mut self.has_more) {
            self.failed.get_or_insert(error);
        }
        self.cancel();
    }

    fn cancel(&self) {
        self.under_way.values().for_each(|(transfer, _)| transfer.stop());
    }
}

impl Shared {
    /// Submits the next pieces that have room, a turn's worth.
    pub(super) fn move_on(&self, requests: &mut Vec<Request>) {
        let mut count = 0;
        while count < PIECES_MAX {
            let mut inner = self.lock();
            let number = inner.next_number + 1;
            let Some(mut job) = inner.moving.next(number, self.now()) else { return };
            inner.next_number = number;
            inner.under_way.insert(number, UnderWay::Post(job.post));
            drop(inner);
            let submitted = job.requests(requests).and_then(|()| {
                let options = TransferOptions { no_coalesce: !job.merges, ..self.options(number, None) };
                Ok((self.engine.submit(job.peer, job.op, requests, &options)?, requests.len() as u64))
            });
            count += requests.len() + TRANSFER_COST;
            let mut inner = self.lock();
            if submitted.is_err() {
                inner.under_way.remove(&number);
            }
            let post = job.post;
            inner.moving.submitted(job, submitted, self.now().saturating_add(NO_ROOM_NS));
            self.settle_post(&mut inner, post);
            self.act(&mut inner);
        }
    }

    /// Tells the machine if a post has come to its end.
    pub(super) fn settle_post(&self, inner: &mut Inner, post: PostId) {
        if let Some(result) = inner.moving.take_final(post) {
            inner.machine.moved(post, result, self.now());
        }
    }
}

impl Job {
    /// Puts the requests of the next pieces into the list. Each names the region of the peer's cache that has the bytes.
    fn requests(&mut self, requests: &mut Vec<Request>) -> Result<()> {
        requests.clear();
        for piece in self.pieces.by_ref().take(PIECES_MAX) {
            let (local, remote) = match self.op {
                Op::Write => (piece.source, piece.target),
                Op::Read => (piece.target, piece.source),
            };
            let Some(range) = self.regions.find(remote, piece.bytes) else {
                let text = "the peer's layout names memory that its cache does not have";
                return Err(Error::new(Status::NotRegistered, text));
            };
            let room = requests.try_reserve(1);
            room.map_err(|_| Error::new(Status::NoMemory, "no memory for the requests of a transfer"))?;
            let remote_region = RegionId::from_raw(range.region);
            requests.push(Request { local, remote, length: piece.bytes, remote_region });
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "moving_tests.rs"]
mod tests;
