//! Decides which call takes an unregistered region down. Releasing its memory from devices and drivers may take long,
//! and several calls may find the region idle. One call takes it down; no other call returns before that is over.

use crate::sys::clock;
use crate::sys::lock::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(super) struct Teardown {
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Standing,
    /// A thread has the `Claim`.
    Ending,
    /// The handle's index and its slot may belong to another region.
    Gone,
}

pub(super) enum Claimed<'a> {
    /// The caller takes the region down.
    Mine(Claim<'a>),
    /// Another call took it down.
    Gone,
    /// Another call was still taking it down at the deadline.
    Late,
}

/// The right to take a region down. If it is dropped before `finish`, the next caller gets the right.
pub(super) struct Claim<'a> {
    teardown: &'a Teardown,
    end: Stage,
}

impl Teardown {
    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock()
    }

    /// Runs `act` under the lock, unless the region is being taken down or gone. So state that is kept by handle or by
    /// slot still belongs to this region during `act`. `act` does not wait.
    pub fn if_standing<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let stage = self.lock();
        (*stage == Stage::Standing).then(act)
    }

    pub fn is_gone(&self) -> bool {
        *self.lock() == Stage::Gone
    }

    /// Waits while another call takes the region down. Without a deadline the wait is unbounded.
    pub fn claim(&self, deadline: Option<Instant>) -> Claimed<'_> {
        let mut stage = self.lock();
        loop {
            match *stage {
                Stage::Gone => return Claimed::Gone,
                Stage::Standing => {
                    *stage = Stage::Ending;
                    return Claimed::Mine(Claim { teardown: self, end: Stage::Standing });
                }
                Stage::Ending => {}
            }
            let left =
                deadline.map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(clock::now()));
            if left.is_zero() {
                return Claimed::Late;
            }
            stage = self.changed.wait_timeout(stage, left).0;
        }
    }
}

impl Claim<'_> {
    /// Records that nothing of the region is left.
    pub fn finish(mut self) {
        self.end = Stage::Gone;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        *self.teardown.lock() = self.end;
        self.teardown.changed.notify_all();
    }
}
