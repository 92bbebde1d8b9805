//! How fast an endpoint moves data, by which `path` chooses among the endpoints of a peer.

use super::endpoint::CHAIN_BYTES;
use crate::sys::atomic::{AtomicU64, Ordering};
use crate::sys::clock;
use crate::types::Monotonic;

#[derive(Default)]
pub struct Pace {
    /// Payload in flight.
    bytes_out: AtomicU64,
    rate: AtomicU64,
}

impl Pace {
    pub fn posted(&self, bytes: u32) {
        self.bytes_out.fetch_add(u64::from(bytes), Ordering::Relaxed);
    }

    /// Notes the bytes of a chain that has completed, and measures the rate.
    pub fn moved(&self, bytes: u64, posted_ns: Monotonic) {
        let out = self.bytes_out.fetch_sub(bytes, Ordering::Relaxed);
        // About everything in flight has left in the time that this chain took. Small chains say nothing about the
        // rate.
        if bytes >= u64::from(CHAIN_BYTES) / 4 {
            let took_ns = clock::monotonic_ns().saturating_sub(posted_ns).max(1);
            let seen = (out as u128 * 1_000_000_000 / took_ns as u128).min(u64::MAX as u128) as u64;
            let old = self.rate();
            let new = if old == 0 { seen } else { old - old / 8 + seen / 8 };
            self.rate.store(new, Ordering::Relaxed);
        }
    }

    /// Returns the measured bytes per second; 0 before the first measurement.
    pub fn rate(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// Returns the nanoseconds after which one more chain would have left, at `rate` bytes per second.
    pub fn delay_with(&self, rate: u64) -> u64 {
        let queued = self.bytes_out.load(Ordering::Relaxed) + u64::from(CHAIN_BYTES);
        ((queued as u128 * 1_000_000_000) / rate.max(1) as u128).min(u64::MAX as u128 / 2) as u64
    }
}
