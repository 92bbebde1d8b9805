//! Random numbers of the operating system. A simulation draws its own.

use super::atomic::{AtomicU64, Ordering};
use snow::resolvers::{BoxedCryptoResolver, DefaultResolver};

/// Fills the bytes from the operating system's generator.
pub fn fill(bytes: &mut [u8]) -> std::io::Result<()> {
    Ok(getrandom::fill(bytes)?)
}

/// Returns a number that follows the one before in this process; the first is random.
pub fn next_u64() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if NEXT.load(Ordering::Relaxed) == 0 {
        let _ =
            NEXT.compare_exchange(0, crate::sys::random_u64().max(1), Ordering::Relaxed, Ordering::Relaxed);
    }
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the primitives of the Noise handshake; the keys are drawn from the operating system's generator.
pub fn resolver() -> BoxedCryptoResolver {
    Box::new(DefaultResolver)
}
