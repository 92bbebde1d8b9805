//! Every interleaving of the region gate: nobody is inside once unregister has its answer, and the one
//! who waits for the last user is always woken. The gate's own source is compiled here against loom's
//! atomics and locks, so this runs in a plain `cargo test`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

#[path = "../src/region/gate.rs"]
mod gate;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
    pub(super) use loom::sync::{Condvar, Mutex};
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

    /// What a transport does. Loom's tracking needs the access itself only, not the value.
    fn visit(&self) {
        if self.gate.enter() {
            self.memory.with(|_| ());
            self.gate.leave();
        }
    }

    /// What the application does once unregister has said OK.
    fn reuse(&self) {
        assert!(self.gate.is_revoked());
        assert!(!self.gate.enter());
        self.memory.with_mut(|_| ());
    }
}

/// Every interleaving with at most three preemptions, which is where such bugs are; without a bound
/// this takes minutes (LOOM_MAX_PREEMPTIONS raises it).
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut explorer = loom::model::Builder::new();
    explorer.preemption_bound = explorer.preemption_bound.or(Some(3));
    explorer.check(model);
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
fn two_who_wait_are_both_woken() {
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
