//! Models of the engine's lock-free code under loom. Loom runs every interleaving of the threads, and lets a load see
//! each value that the memory orders allow. The sources themselves are compiled here against loom's atomics and locks.

mod lease_clock;
mod region;
mod waiters;

/// The names that the sources take from the engine.
mod sys {
    pub mod atomic {
        pub use loom::sync::atomic::{fence, AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
    }

    pub mod bare {
        pub use loom::sync::{Condvar, Mutex, MutexGuard};
    }

    pub mod clock {
        pub use std::time::Instant;

        pub fn now() -> Instant {
            Instant::now()
        }
    }
}

#[allow(dead_code)]
#[path = "../../src/types/time.rs"]
mod types;

/// Explores every interleaving with at most three preemptions, which finds such bugs; without a bound this takes
/// minutes (LOOM_MAX_PREEMPTIONS raises it).
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut explorer = loom::model::Builder::new();
    explorer.preemption_bound = explorer.preemption_bound.or(Some(3));
    explorer.check(model);
}
