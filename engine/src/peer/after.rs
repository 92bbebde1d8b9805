//! Work that a thread does after it has released its locks. In a turn, a transport finds out what happened and applies
//! that to the peer (`Peer::confirm` and its neighbours), in the order of its lane and under the lane's locks. Under
//! those locks nothing is posted and no task is woken: both are noted in an `After`. The thread that drives the turn
//! does them at its end, under no lock.
//!
//! ```text
//! After ─ lock ─ outcomes are applied: transfers become final, others can be posted ─ unlock ─ flush
//! ```

use super::outbox::Class;
use super::{Path, Peer};
use crate::notify::Wakers;
use crate::sys::thread;
use crate::types::Transport;
use std::sync::Arc;

/// The work left for one peer. Create it before a lock is taken, so that its drop, which does the work, follows the
/// unlock.
#[must_use]
pub struct After<'p> {
    peer: &'p Peer,
    left: Left,
}

/// The same work, set aside because the caller's lock outlives the turn.
#[derive(Default)]
pub struct Left {
    /// Transports on which to post: a mask of `Transport::bit` for each class.
    posts: [u64; 3],
    nudges: u64,
    /// Transports whose path may have a thread that sleeps in `Path::drive`.
    wakes: u64,
    pub(super) wakers: Wakers,
}

impl Left {
    pub fn is_empty(&self) -> bool {
        self.posts == [0; 3] && self.nudges | self.wakes == 0 && self.wakers.is_empty()
    }

    /// Removes the first transport from a mask.
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

    /// Continues with work that was set aside.
    pub fn resume(peer: &'p Peer, left: Left) -> After<'p> {
        After { peer, left }
    }

    /// Returns the work, for a turn that ends under a lock of its caller.
    pub fn set_aside(mut self) -> Left {
        std::mem::take(&mut self.left)
    }

    pub(super) fn post(&mut self, transport: Transport, class: Class) {
        self.left.posts[class as usize] |= transport.bit();
    }

    /// Notes that queued work of this transport is to be posted.
    pub fn nudge(&mut self, transport: Transport) {
        self.left.nudges |= transport.bit();
    }

    /// Takes over what is to be posted by this transport. Returns whether something is.
    pub fn take(&mut self, transport: Transport) -> bool {
        let Left { posts, nudges, .. } = &mut self.left;
        let masks = posts.iter_mut().chain([nudges]);
        masks.fold(false, |any, mask| {
            let is_set = *mask & transport.bit() != 0;
            *mask &= !transport.bit();
            any | is_set
        })
    }

    pub(super) fn wake(&mut self, transport: Transport) {
        self.left.wakes |= transport.bit();
    }

    pub(super) fn wakers(&mut self) -> &mut Wakers {
        &mut self.left.wakers
    }

    /// Does the work. The calling thread holds no lock of the engine.
    pub fn flush(&mut self) {
        if self.left.is_empty() {
            return;
        }
        // Posted work may complete at once and add to this list: the loop handles a chain of transfers without
        // recursion.
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
        // A broken engine posts nothing more; its teardown wakes the tasks.
        if !thread::panicking() {
            self.flush();
        }
    }
}
