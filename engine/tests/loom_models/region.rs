//! The region's gate and shared gates: nobody is inside once unregister has its answer, and a thread that waits for the
//! last user is always woken.

use crate::explore;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::sync::Arc;
use loom::thread;

#[path = "../../src/region/gate.rs"]
mod gate;
#[path = "../../src/region/shared_gate.rs"]
mod shared_gate;

mod sync {
    pub(super) use crate::sys::atomic::{fence, AtomicU64, Ordering};
    pub(super) use crate::sys::bare::{Condvar, Mutex};
    pub(super) use crate::sys::clock::now;
}

/// A gate and the memory behind it. Loom reports a read that is not ordered before the owner's write.
struct Guarded {
    gate: gate::Gate,
    memory: UnsafeCell<u64>,
}

impl Guarded {
    fn new() -> Arc<Guarded> {
        Arc::new(Guarded { gate: gate::Gate::new(), memory: UnsafeCell::new(0) })
    }

    /// Acts as a transport. Loom's tracking needs the access only, not the value.
    fn visit(&self) {
        if self.gate.enter() {
            self.memory.with(|_| ());
            self.gate.leave();
        }
    }

    /// Acts as the application after unregister has returned OK.
    fn reuse(&self) {
        assert!(self.gate.is_revoked());
        assert!(!self.gate.enter());
        self.memory.with_mut(|_| ());
    }
}

fn visitors(guarded: &Arc<Guarded>, count: usize) -> Vec<thread::JoinHandle<()>> {
    let visit = |_| {
        let guarded = Arc::clone(guarded);
        thread::spawn(move || guarded.visit())
    };
    (0..count).map(visit).collect()
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn nobody_is_inside_after_revoke_and_wait() {
    explore(|| {
        let guarded = Guarded::new();
        let threads = visitors(&guarded, 2);
        guarded.gate.revoke();
        assert!(guarded.gate.wait_idle(None));
        guarded.reuse();
        join(threads);
        assert!(guarded.gate.users() == 0);
    });
}

#[test]
fn nobody_is_inside_after_a_successful_try() {
    explore(|| {
        let guarded = Guarded::new();
        let threads = visitors(&guarded, 2);
        if guarded.gate.revoke_if_idle() {
            guarded.reuse();
        } else {
            assert!(!guarded.gate.is_revoked());
        }
        join(threads);
    });
}

#[test]
fn two_waiters_are_both_woken() {
    explore(|| {
        let guarded = Guarded::new();
        let mut threads = visitors(&guarded, 1);
        let rival = Arc::clone(&guarded);
        threads.push(thread::spawn(move || {
            rival.gate.revoke();
            assert!(rival.gate.wait_idle(None));
        }));
        guarded.gate.revoke();
        assert!(guarded.gate.wait_idle(None));
        join(threads);
        guarded.reuse();
    });
}

/// A region's gate words as two processes share them, and the memory behind.
struct Shared {
    word: AtomicU64,
    closed: AtomicU64,
    users: [AtomicU64; 2],
    memory: UnsafeCell<u64>,
}

const OPEN: u64 = 1 << 20;

impl Shared {
    fn new() -> Arc<Shared> {
        let word = AtomicU64::new(0);
        shared_gate::open(&word, OPEN);
        Arc::new(Shared {
            word,
            closed: AtomicU64::new(0),
            users: [AtomicU64::new(0), AtomicU64::new(0)],
            memory: UnsafeCell::new(0),
        })
    }

    /// Acts as an initiator; returns whether it got in.
    fn copy(&self, initiator: usize) -> bool {
        let users = &self.users[initiator];
        loop {
            match shared_gate::enter(&self.word, users, &self.closed, OPEN) {
                shared_gate::Entry::Inside => {
                    self.memory.with(|_| ());
                    shared_gate::leave(users);
                    return true;
                }
                shared_gate::Entry::Trying => thread::yield_now(),
                shared_gate::Entry::Shut => return false,
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.users.iter().all(shared_gate::is_empty)
    }
}

fn initiators(shared: &Arc<Shared>) -> Vec<thread::JoinHandle<()>> {
    let copy = |initiator| {
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            shared.copy(initiator);
        })
    };
    (0..2).map(copy).collect()
}

/// Nobody copies any more when the gate is empty after this.
fn ends_all_copies(end: fn(&Shared)) {
    explore(move || {
        let shared = Shared::new();
        let threads = initiators(&shared);
        end(&shared);
        while !shared.is_empty() {
            thread::yield_now();
        }
        shared.memory.with_mut(|_| ());
        join(threads);
    });
}

#[test]
fn no_process_copies_behind_a_shut_gate() {
    ends_all_copies(|shared| shared_gate::shut(&shared.word));
}

#[test]
fn no_process_copies_for_a_closed_session() {
    ends_all_copies(|shared| shared_gate::close(&shared.closed));
}

#[test]
fn a_trial_shuts_an_idle_gate_or_changes_nothing() {
    explore(|| {
        let shared = Shared::new();
        let other = Arc::clone(&shared);
        let copier = thread::spawn(move || other.copy(0));
        assert!(shared_gate::begin_trial(&shared.word, OPEN));
        let empty = shared.is_empty();
        if empty {
            shared.memory.with_mut(|_| ());
        }
        shared_gate::end_trial(&shared.word, OPEN, empty);
        let copied = copier.join().unwrap();
        assert!(copied || empty, "found shut what was never shut");
    });
}

#[test]
fn a_trial_does_not_open_what_somebody_shut() {
    explore(|| {
        let shared = Shared::new();
        let rival = Arc::clone(&shared);
        let shutting = thread::spawn(move || shared_gate::shut(&rival.word));
        if shared_gate::begin_trial(&shared.word, OPEN) {
            shared_gate::end_trial(&shared.word, OPEN, false);
        }
        shutting.join().unwrap();
        assert!(!shared.copy(1));
    });
}
