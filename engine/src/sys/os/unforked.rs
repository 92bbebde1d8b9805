//! Work that a fork by another thread must not interrupt: loading a library, or calling one that locks. The child would
//! find the lock taken for good, and the work half done, by a thread that it does not have. `children` has the
//! handlers.

use super::children;
use std::cell::{Cell, UnsafeCell};

/// The C library's mutex, because a Rust lock cannot be released by a function other than the one that took it.
struct Lock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a mutex is for all threads.
unsafe impl Sync for Lock {}

static LOCK: Lock = Lock(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

thread_local! {
    /// This thread runs such work. If the work itself forks, the fork does not wait.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs the work; forks of other threads wait for its end.
pub fn unforked<T>(work: impl FnOnce() -> T) -> T {
    if INSIDE.get() || cfg!(miri) || children::watch().is_err() {
        return work();
    }
    keep_forks_away();
    INSIDE.set(true);
    let _ends = Ends;
    work()
}

struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        INSIDE.set(false);
        let_forks_go();
    }
}

/// Called by the thread that forks, before it does.
pub(super) fn keep_forks_away() {
    if !INSIDE.get() {
        // SAFETY: a mutex that lives as long as the program.
        unsafe { libc::pthread_mutex_lock(LOCK.0.get()) };
    }
}

/// Called by that thread in the parent, and by its copy in the child.
pub(super) fn let_forks_go() {
    if !INSIDE.get() {
        // SAFETY: as above; this thread, or the one that it is a copy of, has locked it.
        let error = unsafe { libc::pthread_mutex_unlock(LOCK.0.get()) };
        // Without the assertion the unlock would be a tail call, which ThreadSanitizer takes for a call by the C
        // library: a program that ignores this library's calls (`called_from_lib`) would get a report of an unlock
        // without a lock.
        assert_eq!(error, 0, "the lock is held");
    }
}
