//! Whose it is to take an unregistered region down. Taking its memory off devices and out of drivers may take long,
//! and several calls may find the region idle: one does it, and no other answers before it has.

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
    /// Somebody has a `Claim`.
    Leaving,
    /// Its handle, and its slot, may be another's.
    Gone,
}

pub(super) enum Claimed<'a> {
    /// The caller takes it down.
    Mine(Claim<'a>),
    /// Somebody else did.
    Gone,
    /// Somebody else was still at it when the deadline came.
    Late,
}

/// The right to take a region down. Dropped before `finish`, the next caller gets it.
pub(super) struct Claim<'a> {
    teardown: &'a Teardown,
    end: Stage,
}

impl Teardown {
    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock()
    }

    /// Runs `act` if nobody takes the region down, and not while somebody does: what is kept by handle or by slot
    /// is still the region's own there. `act` doesn't wait for anybody.
    pub fn if_standing<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let stage = self.lock();
        (*stage == Stage::Standing).then(act)
    }

    pub fn is_gone(&self) -> bool {
        *self.lock() == Stage::Gone
    }

    /// Waits while somebody else takes the region down. Without a deadline it waits as long as it takes.
    pub fn claim(&self, deadline: Option<Instant>) -> Claimed<'_> {
        let mut stage = self.lock();
        loop {
            match *stage {
                Stage::Gone => return Claimed::Gone,
                Stage::Standing => {
                    *stage = Stage::Leaving;
                    return Claimed::Mine(Claim { teardown: self, end: Stage::Standing });
                }
                Stage::Leaving => {}
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
    /// Nothing of the region is left.
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
