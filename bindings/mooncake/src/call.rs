//! Every entry point runs inside these functions. They turn a panic and an error into a number of the
//! interface, and log the text.

use crate::log;
use ferry::status::Result;
use ferry::{Error, Status};
use std::ffi::c_int;
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Runs a function whose failures are negative.
pub fn negative(name: &str, body: impl FnOnce() -> Result<()>) -> c_int {
    caught(name, body).map_or_else(|error| -number(error.status), |()| 0)
}

/// Runs a function whose failures are positive: those that submit, check and free batches.
pub fn positive(name: &str, body: impl FnOnce() -> Result<()>) -> c_int {
    caught(name, body).map_or_else(|error| number(error.status), |()| 0)
}

/// Runs a function that returns a value, or `failed`.
pub fn value<T>(name: &str, failed: T, body: impl FnOnce() -> Result<T>) -> T {
    caught(name, body).unwrap_or(failed)
}

/// Runs the body of the entry point `name` and logs a failure.
pub fn caught<T>(name: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    static QUIET: Once = Once::new();
    // The standard library's panic hook prints. This library has its own copy of the hook, so other code's panics are
    // not affected; under `cargo test` the harness prints panics.
    QUIET.call_once(|| {
        if !cfg!(test) {
            set_hook(Box::new(|panic| log::line(format_args!("a bug in ferry: {panic}"))));
        }
    });
    // Unwind safety: a panic can leave only state under locks half changed, and `lock` ignores poison.
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        // The payload may panic when it is dropped.
        std::mem::forget(payload);
        Err(Error::new(Status::Panic, "a bug in ferry; the call's effect is unknown"))
    });
    outcome.inspect_err(|failed| log::line(format_args!("{name}: {failed}")))
}

/// Locks a mutex and ignores poison: the code under the locks of this crate keeps the data consistent at each
/// step.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the interface's number for a failure, without its sign.
fn number(status: Status) -> c_int {
    match status {
        Status::Limit => 2,
        Status::NotRegistered | Status::Access => 3,
        Status::Busy => 4,
        Status::Overlap => 7,
        Status::Unsupported | Status::Unavailable => 8,
        Status::Unreachable | Status::PeerLost | Status::Timeout => 102,
        Status::Refused | Status::Version | Status::NotFerry => 104,
        Status::Closed | Status::Cancelled | Status::System | Status::Panic => 202,
        Status::NoMemory => 302,
        // The caller's mistakes. The other statuses are no failures, or belong to a transfer and not to a
        // call.
        Status::Invalid | Status::Stale => 1,
        Status::Ok | Status::Pending | Status::Draining | Status::Corrupt | Status::Partial => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_a_number_and_a_sign() {
        for &status in Status::ALL {
            assert!(number(status) > 0, "{status}");
        }
        assert_eq!(negative("f", || Err(Error::new(Status::Overlap, "o"))), -7);
        assert_eq!(positive("f", || Err(Error::new(Status::Busy, "b"))), 4);
        assert_eq!((negative("f", || Ok(())), positive("f", || Ok(()))), (0, 0));
    }

    #[test]
    fn a_panic_becomes_a_number() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("the second one");
            }
        }
        assert_eq!(negative("f", || panic!("expected to fail")), -202);
        assert_eq!(positive("f", || std::panic::panic_any(Bomb)), 202);
        assert_eq!(value("f", 7, || panic!("expected to fail")), 7);
    }
}
