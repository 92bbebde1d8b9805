//! The door of one region: counts who is inside, and shuts so that unregister can wait for the last.
//! Used by `region::Region` (readers, on the data path) and `registry` (revoke and wait).
//!
//! ```text
//! 63         62                     0
//! [ revoked ][ uses: how many entered and have not left ]
//! ```
//! Both live in one word, so every enter is ordered before or after the revoke: one before it is
//! counted and waited for, one after it sees the bit and turns back. `tests/loom_region.rs` compiles
//! this file against loom, which is why its atomics come from `super::sync`.

use super::sync::{now, AtomicU64, Condvar, Mutex, Ordering};
use std::sync::PoisonError;
use std::time::Instant;

const REVOKED: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct Gate {
    state: AtomicU64,
    /// Held for no data: it closes the gap between a waiter's look at `state` and its sleep.
    sleep: Mutex<()>,
    emptied: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate { state: AtomicU64::new(0), sleep: Mutex::new(()), emptied: Condvar::new() }
    }

    /// Goes in; false when the gate is revoked. Pairs with `revoke` and `revoke_if_idle`.
    pub(crate) fn enter(&self) -> bool {
        if self.state.fetch_add(1, Ordering::SeqCst) & REVOKED == 0 {
            return true;
        }
        // For a moment a waiter saw us as a user. Undo it as a user would, so that it is woken.
        self.leave();
        false
    }

    /// Goes out. Pairs with the loads in `wait_idle` and `revoke_if_idle`: what was done inside
    /// happened before the caller of those gets true.
    pub(crate) fn leave(&self) {
        let before = self.state.fetch_sub(1, Ordering::SeqCst);
        assert!(before & !REVOKED != 0, "a region was left more often than entered");
        if before == REVOKED | 1 {
            // The waiter looks at `state` under this lock; taking it here means that it either
            // looked after our subtraction or sleeps already and hears the notification.
            let _held = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.emptied.notify_all();
        }
    }

    /// Whether nobody is inside; advice, since someone may be the moment after.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.load(Ordering::SeqCst) & !REVOKED == 0
    }

    /// Pairs with `revoke`; only advice, since the bit may be set the moment after.
    pub(crate) fn is_revoked(&self) -> bool {
        self.state.load(Ordering::SeqCst) & REVOKED != 0
    }

    /// Shuts the gate for good if nobody is inside; otherwise changes nothing. True too when it was
    /// shut before and is empty. Pairs with `enter` and `leave`.
    pub(crate) fn revoke_if_idle(&self) -> bool {
        match self.state.compare_exchange(0, REVOKED, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(found) => found == REVOKED,
        }
    }

    /// Shuts the gate for good; those inside stay. Pairs with `enter`.
    pub(crate) fn revoke(&self) {
        self.state.fetch_or(REVOKED, Ordering::SeqCst);
    }

    /// Waits until a revoked gate is empty; false when the deadline passed first. Without a deadline
    /// it waits as long as it takes. Pairs with `leave`.
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
