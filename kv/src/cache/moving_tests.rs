//! Posts of any size, with transfers that end when a test says so.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::handoff::MemoryRange;
use crate::plan::{Bases, BlockPairs, Loop};

/// Counts how often it was cancelled.
type Fake = Rc<Cell<u32>>;

impl Cancel for Fake {
    fn stop(&self) {
        self.set(self.get() + 1);
    }
}

/// Pieces of eight bytes in one block: as many as 2^20 to the power of `loops`.
fn moves(loops: usize) -> Vec<Strided> {
    let inner = |at: usize| Loop { count: 1 << 20, source_stride: 16 << at, target_stride: 24 << at };
    vec![Strided {
        layers: vec![Bases { layer: 0, source: 0, target: 0 }],
        pairs: Arc::new(BlockPairs { source: vec![0], target: vec![0] }),
        source_stride: 1 << 40,
        target_stride: 1 << 40,
        inner: (0..loops).map(inner).collect(),
        bytes: 8,
    }]
}

struct Rig {
    moving: Moving<Fake>,
    number: u64,
    requests: Vec<Request>,
}

impl Rig {
    fn new() -> Rig {
        Rig { moving: Moving::new(), number: 0, requests: Vec::new() }
    }

    fn add(&mut self, post: u64, peer: u64, loops: usize) {
        let regions = Regions::new(vec![MemoryRange { address: 0, bytes: u64::MAX, region: 7 }]);
        self.moving.add(PostId(post), PeerId::from_raw(peer), Op::Write, moves(loops), regions);
    }

    fn next(&mut self) -> Option<Job> {
        self.number += 1;
        self.moving.next(self.number, 0)
    }

    /// Submits the next pieces. Returns the post, and the transfer.
    fn submit(&mut self) -> Option<(u64, Fake)> {
        let mut job = self.next()?;
        job.requests(&mut self.requests).unwrap();
        let (post, fake) = (job.post.0, Fake::default());
        self.moving.submitted(job, Ok((fake.clone(), self.requests.len() as u64)), 5);
        Some((post, fake))
    }
}

fn cancelled() -> Error {
    Error::new(Status::Cancelled, "cancelled")
}

/// Two posts of more than 2^64 pieces, and one of a piece: what is under way is bounded for each peer, peers and posts
/// take turns, and each end makes room for one more.
#[test]
fn posts_without_an_end_are_bounded_and_take_turns() {
    let mut rig = Rig::new();
    rig.add(1, 1, 4);
    rig.add(2, 1, 4);
    rig.add(3, 2, 4);
    let mut posts = Vec::new();
    while let Some((post, _)) = rig.submit() {
        assert_eq!(rig.requests.len(), PIECES_MAX);
        posts.push(post);
    }
    assert_eq!(posts[..8], [1, 3, 2, 3, 1, 3, 2, 3]);
    let most = (PIECES_OF_PEER_MAX / PIECES_MAX as u64) as usize;
    assert_eq!(posts.len(), 2 * most);
    assert_eq!(rig.moving.next_at(0), None);
    rig.add(4, 1, 0);
    assert!(rig.submit().is_none(), "the peer has no room");
    assert!(rig.moving.ended(PostId(1), 1).is_some());
    rig.submit().unwrap();
    assert_eq!(rig.submit().map(|(post, _)| post), None);
}

/// A stop between a submit's beginning and its end: the post fails, although all that was submitted is done.
#[test]
fn what_is_stopped_while_pieces_are_submitted_does_not_count_as_moved() {
    let mut rig = Rig::new();
    rig.add(1, 1, 1);
    let mut job = rig.next().unwrap();
    rig.moving.stop(PostId(1), cancelled());
    assert!(rig.moving.take_final(PostId(1)).is_none(), "its pieces are being submitted");
    job.requests(&mut rig.requests).unwrap();
    let (number, fake) = (job.number, Fake::default());
    rig.moving.submitted(job, Ok((fake.clone(), 4)), 0);
    assert_eq!(fake.get(), 1);
    assert!(rig.next().is_none() && rig.moving.take_final(PostId(1)).is_none());
    rig.moving.ended(PostId(1), number).unwrap();
    let error = rig.moving.take_final(PostId(1)).unwrap().unwrap_err();
    assert_eq!(error.status, Status::Cancelled);
    assert!(rig.moving.posts.is_empty() && rig.moving.peers.is_empty());
}

/// One transfer fails: the others are cancelled, nothing more is submitted, and the first error is told after the last.
#[test]
fn a_post_ends_with_its_first_error_when_nothing_of_it_is_under_way() {
    let mut rig = Rig::new();
    rig.add(1, 1, 1);
    let fakes: Vec<Fake> = (0..3).map(|_| rig.submit().unwrap().1).collect();
    rig.moving.ended(PostId(1), 2).unwrap();
    rig.moving.failed(PostId(1), Error::new(Status::Stale, "stale"));
    assert_eq!(fakes.iter().map(|fake| fake.get()).collect::<Vec<_>>(), [1, 0, 1]);
    for number in [1, 3] {
        assert!(rig.moving.take_final(PostId(1)).is_none() && rig.next().is_none());
        rig.moving.ended(PostId(1), number).unwrap();
        rig.moving.failed(PostId(1), cancelled());
    }
    assert_eq!(rig.moving.take_final(PostId(1)).unwrap().unwrap_err().status, Status::Stale);
}

/// A post that had no room is tried again in time, from the same piece on; a stop ends the wait.
#[test]
fn what_has_no_room_is_tried_again() {
    let mut rig = Rig::new();
    rig.add(1, 1, 1);
    let mut first = rig.next().unwrap();
    first.requests(&mut rig.requests).unwrap();
    let begins = rig.requests[0];
    let full = || Err(Error::new(Status::Limit, "full"));
    rig.moving.submitted(first, full(), 5);
    assert_eq!((rig.moving.next_at(0), rig.next().is_none()), (Some(5), true));
    let mut again = rig.moving.next(9, 5).unwrap();
    again.requests(&mut rig.requests).unwrap();
    assert_eq!(rig.requests[0], begins);
    rig.moving.submitted(again, full(), 10);
    rig.moving.room_came();
    assert_eq!(rig.moving.next_at(6), Some(6));
    rig.moving.stop(PostId(1), cancelled());
    assert!(rig.moving.take_final(PostId(1)).unwrap().is_err());
    assert_eq!(rig.moving.next_at(6), None);
}

#[test]
fn a_post_is_done_when_its_last_transfer_is() {
    let mut rig = Rig::new();
    rig.add(1, 1, 1);
    let count = (1u64 << 20) / PIECES_MAX as u64;
    for number in 1..=count {
        assert!(rig.submit().is_some() && rig.moving.take_final(PostId(1)).is_none(), "{number}");
        rig.moving.ended(PostId(1), number).unwrap();
    }
    assert!(rig.next().is_none());
    assert!(rig.moving.take_final(PostId(1)).unwrap().is_ok());
}
