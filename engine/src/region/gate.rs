//! The gate of one region. It counts the region's users, and shuts so that unregister can wait for the last of them.
//! `region::Region` enters and leaves it (on the data path); `registry` revokes it and waits.
//!
//! ```text
//! 63         62                     0
//! [ revoked ][ uses: the count of users  ]
//! ```
//! Both are in one atomic word, so every enter is ordered before or after the revoke. An enter before the revoke is
//! counted and waited for; an enter after it sees the bit and is refused. `tests/loom_models` compiles this file
//! against loom; therefore the atomics come from `super::sync`.

use super::sync::{now, AtomicU64, Condvar, Mutex, Ordering};
use std::sync::PoisonError;
use std::time::Instant;

const REVOKED: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct Gate {
    state: AtomicU64,
    /// Protects no data. It closes the gap between a waiter's load of `state` and its sleep.
    sleep: Mutex<()>,
    emptied: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate { state: AtomicU64::new(0), sleep: Mutex::new(()), emptied: Condvar::new() }
    }

    /// Enters; false when the gate is revoked. Pairs with `revoke` and `revoke_if_idle`.
    pub(crate) fn enter(&self) -> bool {
        if self.state.fetch_add(1, Ordering::SeqCst) & REVOKED == 0 {
            return true;
        }
        // For a moment a waiter saw this thread as a user. `leave` undoes the entry and wakes that waiter.
        self.leave();
        false
    }

    /// Leaves. Pairs with the loads in `wait_idle` and `revoke_if_idle`: everything done inside happened before those
    /// return true.
    pub(crate) fn leave(&self) {
        let before = self.state.fetch_sub(1, Ordering::SeqCst);
        assert!(before & !REVOKED != 0, "a region was left more often than entered");
        if before == REVOKED | 1 {
            // The waiter loads `state` under this lock. Taking the lock here means that the waiter either loads after
            // the subtraction above, or already sleeps and is woken.
            let _held = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.emptied.notify_all();
        }
    }

    /// Returns the number of users. Only advice: a thread may enter the moment after.
    pub(crate) fn users(&self) -> u64 {
        self.state.load(Ordering::SeqCst) & !REVOKED
    }

    /// Returns whether the gate is revoked. Only advice: the bit may be set the moment after. Pairs with `revoke`.
    pub(crate) fn is_revoked(&self) -> bool {
        self.state.load(Ordering::SeqCst) & REVOKED != 0
    }

    /// Shuts the gate for good if it has no user; otherwise changes nothing. Also true for an empty gate that was shut
    /// before. Pairs with `enter` and `leave`.
    pub(crate) fn revoke_if_idle(&self) -> bool {
        match self.state.compare_exchange(0, REVOKED, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(found) => found == REVOKED,
        }
    }

    /// Shuts the gate for good; present users stay. Pairs with `enter`.
    pub(crate) fn revoke(&self) {
        self.state.fetch_or(REVOKED, Ordering::SeqCst);
    }

    /// Waits until a revoked gate is empty; false when the deadline passed first. Without a deadline the wait is
    /// unbounded. Pairs with `leave`.
    pub(crate) fn wait_idle(&self, deadline: Option<Instant>) -> bool {
        let mut held = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        while self.state.load(Ordering::SeqCst) != REVOKED {
            held = match deadline {
                None => self.emptied.wait(held).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(now());
                    if left.is_zero() {
                        return false;
                    }
                    self.emptied.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }
}
