//! Dispenses transfer numbers to the threads of one run until the run is over.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::workload::Limit;

/// Hands out transfer numbers until the run's limit. The clock starts with it.
pub struct Dispenser {
    next: AtomicU64,
    start: Instant,
    limit: Limit,
    stopped: AtomicBool,
}

impl Dispenser {
    pub fn new(limit: Limit) -> Dispenser {
        Dispenser { next: AtomicU64::new(0), start: Instant::now(), limit, stopped: AtomicBool::new(false) }
    }

    pub fn start(&self) -> Instant {
        self.start
    }

    /// Returns the number of transfers handed out, once all connections are done.
    pub fn transfers(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Refuses all later callers, whatever the limit.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Returns the next number, or `None` once the limit is reached.
    pub fn take(&self) -> Option<u64> {
        match self.limit {
            _ if self.stopped.load(Ordering::Relaxed) => None,
            Limit::Seconds(seconds) if self.start.elapsed().as_secs_f64() >= seconds => None,
            Limit::Seconds(_) => Some(self.next.fetch_add(1, Ordering::Relaxed)),
            Limit::Transfers(count) => self
                .next
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| (next < count).then_some(next + 1))
                .ok(),
        }
    }
}
