//! Processes that inherit a cache by fork.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{path, rank, shape};

/// Forks; the child does `work`, and ends. Returns whether it has done that, within five seconds.
fn child_ends(work: impl FnOnce()) -> bool {
    // SAFETY: the child does what is meant to be safe in the forked child of a process with threads, and `_exit`.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return false;
    }
    if pid == 0 {
        // SAFETY: ends the child if it hangs.
        unsafe { libc::alarm(5) };
        work();
        // SAFETY: ends the child at once, without the parent's destructors.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` lives on this stack; the child is ours.
    let is_it = unsafe { libc::waitpid(pid, &mut status, 0) } == pid;
    is_it && libc::WIFEXITED(status)
}

/// The cache's lock may have been taken when the process was forked, and then is taken for ever.
#[test]
fn a_forked_child_can_drop_a_cache() {
    let node = rank(shape(1, 4), 0, &path(), 0);
    let is_over = AtomicBool::new(false);
    let all_end = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Takes the lock again and again.
            while !is_over.load(Ordering::Relaxed) {
                node.cache.stats();
            }
        });
        let drops = || {
            // SAFETY: the child does not use the cache again, and its own destructor does not run.
            drop(unsafe { std::ptr::read(&node.cache) });
        };
        let all_end = (0..20).all(|_| child_ends(drops));
        is_over.store(true, Ordering::Relaxed);
        all_end
    });
    assert!(all_end, "a child has not dropped its cache");
    node.cache.stats();
}
