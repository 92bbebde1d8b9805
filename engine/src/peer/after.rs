//! What a thread does once it has let go of its locks. A turn has one direction: a transport finds out what happened,
//! and applies that to the peer (`Peer::confirm` and its neighbours), in the order of its lane and under the lane's
//! locks. Nothing is posted there and no task is woken there: both are noted in an `After`, and the thread that drives
//! the turn does them at its end, under no lock.
//!
//! ```text
//! After ─ lock ─ outcomes are applied: transfers become final, others can be posted ─ unlock ─ flush
//! ```

use super::outbox::Class;
use super::{Path, Peer};
use crate::notify::Wakers;
use crate::types::Transport;
use std::sync::Arc;

/// What is left to do for one peer. Made before a lock is taken, so that it is dropped, and done, after that.
#[must_use]
pub struct After<'p> {
    peer: &'p Peer,
    left: Left,
}

/// The same, set aside while a lock is held that outlives the turn.
#[derive(Default)]
pub struct Left {
    /// Transports over which something is to be posted: by their bits, for each class.
    posts: [u64; 3],
    nudges: u64,
    /// Transports whose paths may have a thread asleep in `Path::drive`.
    wakes: u64,
    pub(super) wakers: Wakers,
}

impl Left {
    pub fn is_empty(&self) -> bool {
        self.posts == [0; 3] && self.nudges | self.wakes == 0 && self.wakers.is_empty()
    }

    /// Takes the first transport out of a mask.
    fn take(mask: &mut u64) -> Option<Transport> {
        let number = (*mask != 0).then(|| mask.trailing_zeros())?;
        *mask &= *mask - 1;
        Some(Transport::from_number(number))
    }
}

impl<'p> After<'p> {
    pub(super) fn new(peer: &'p Peer) -> After<'p> {
        After { peer, left: Left::default() }
    }

    /// Goes on with what was set aside.
    pub fn resume(peer: &'p Peer, left: Left) -> After<'p> {
        After { peer, left }
    }

    /// For a turn that ends under a lock of its caller.
    pub fn set_aside(mut self) -> Left {
        std::mem::take(&mut self.left)
    }

    pub(super) fn post(&mut self, transport: Transport, class: Class) {
        self.left.posts[class as usize] |= transport.bit();
    }

    /// Has what is queued for this transport posted.
    pub fn nudge(&mut self, transport: Transport) {
        self.left.nudges |= transport.bit();
    }

    pub(super) fn wake(&mut self, transport: Transport) {
        self.left.wakes |= transport.bit();
    }

    pub(super) fn wakers(&mut self) -> &mut Wakers {
        &mut self.left.wakers
    }

    /// Does what is left. The calling thread holds no lock of the engine.
    pub fn flush(&mut self) {
        if self.left.is_empty() {
            return;
        }
        // What is posted may end at once, and leave more to do here: a chain of transfers needs no stack.
        while let Some((path, act)) = self.next() {
            match act {
                Act::Post(class) => path.post(class, None, self),
                Act::Nudge => path.nudge(self),
                Act::Wake => path.wake(),
            }
        }
        self.left.wakers.wake();
    }

    fn next(&mut self) -> Option<(Arc<dyn Path>, Act)> {
        let Left { posts, nudges, wakes, .. } = &mut self.left;
        loop {
            let wake = Left::take(wakes).map(|transport| (transport, Act::Wake));
            let posts = Class::ALL.into_iter().zip(posts.iter_mut());
            let mut post = posts.filter_map(|(class, mask)| Some((Left::take(mask)?, Act::Post(class))));
            let nudge = || Left::take(nudges).map(|transport| (transport, Act::Nudge));
            let (transport, act) = wake.or_else(|| post.next()).or_else(nudge)?;
            if let Some(path) = self.peer.path(transport) {
                return Some((path, act));
            }
        }
    }
}

enum Act {
    Post(Class),
    Nudge,
    Wake,
}

impl Drop for After<'_> {
    fn drop(&mut self) {
        // Of a broken engine nothing more is posted; tasks are woken by what buries it.
        if !std::thread::panicking() {
            self.flush();
        }
    }
}
