//! The loops of an engine's threads. The work of a thread is an object with one function, `turn`, which takes the time
//! and what the thread's sleeper reported, and answers when it wants to be called next. One driver, here, owns the
//! object, reads the clock and sleeps. A simulation replaces this driver: it calls the turns at times of its choice.
//!
//! ```text
//!  ┌─────────────────────── Again ───────────────────────┐
//!  ▼                                                     │
//! clock ─▶ turn(now, ready) ─▶ Next ── At, WhenWoken ─▶ sleeper ─▶ clock
//!                               └───── Over ─▶ the thread ends
//! ```
//! A turn does not sleep, and uses `now` for timers alone: a lease is checked against the clock at the moment of the
//! access, because a turn may outlast it (contract 4). `tests/imports.rs` checks that threads sleep only here.

use super::clock;
use super::health;
use super::hook::Point;
use super::local::local;
use super::lock::{Condvar, Mutex, MutexGuard};
use super::pause;
use super::poller::{Poller, Ready};
use super::thread::{self, JoinHandle};
use crate::types::Monotonic;
use std::cell::Cell;
use std::io;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

local! {
    static KEEPS_AWAY: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread must not touch registered memory, where a page fault may never end: its other work would
/// wait.
pub fn keeps_away() -> bool {
    KEEPS_AWAY.with(Cell::get)
}

/// Lets this thread touch registered memory: another thread takes over its work if it does not return.
pub fn may_touch_memory() {
    KEEPS_AWAY.with(|keeps_away| keeps_away.set(false));
}

/// When a thread's next turn begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once. The sleeper is not asked, and nothing is ready in that turn.
    Again,
    /// When the thread is woken, at this time at the latest. If the time is over, the sleeper is asked without a sleep.
    At(Monotonic),
    WhenWoken,
    /// Never: the thread ends.
    Over,
}

impl Next {
    /// Asks the sleeper for what is ready, without a sleep.
    pub const AFTER_A_LOOK: Next = Next::At(Monotonic::ZERO);

    /// At this time; when woken if there is none.
    pub fn at(time: Option<Monotonic>) -> Next {
        time.map_or(Next::WhenWoken, Next::At)
    }
}

/// The work of a thread.
pub trait Turns {
    /// Works for a bounded time, without sleeping. `now` is the time at which the turn began; `ready` is what the
    /// sleeper reported before.
    fn turn(&mut self, now: Monotonic, ready: &[Ready]) -> Next;

    /// Called instead of further turns if a turn has panicked or was stopped, before the engine's teardown begins. The
    /// turn's locks are released, and the locks taken here do not stop the thread.
    fn abandon(self: Box<Self>) {}
}

/// Where a thread sleeps between its turns.
pub trait Sleeper: Send + Sync {
    /// Returns when the thread is woken or the time is over, and replaces the contents of `ready`. `None` sleeps
    /// without limit, `Some(0)` does not sleep.
    fn sleep(&self, ready: &mut Vec<Ready>, timeout_ns: Option<u64>);

    /// Ends the sleep in progress. Called by any thread, under any lock, so it neither waits nor locks.
    fn wake(&self);
}

impl Sleeper for Poller {
    fn sleep(&self, ready: &mut Vec<Ready>, timeout_ns: Option<u64>) {
        if self.wait(ready, timeout_ns).is_err() {
            // Only a broken descriptor table leads here; what the thread serves then fails by its timeouts.
            pause::yield_now();
        }
    }

    fn wake(&self) {
        Poller::wake(self);
    }
}

/// Says whether a thread that is about to sleep must work instead.
pub trait HasWork {
    fn has_work(&self) -> bool;
}

/// State through which other threads give a thread its work: the thread sleeps while the state has none.
#[derive(Default)]
pub struct Awaited<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T> Awaited<T> {
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock()
    }

    /// Wakes one thread that sleeps here. Called after the state was given work.
    pub fn wake_one(&self) {
        self.changed.notify_one();
    }
}

impl<T: HasWork + Send> Sleeper for Awaited<T> {
    fn sleep(&self, ready: &mut Vec<Ready>, timeout_ns: Option<u64>) {
        ready.clear();
        let state = self.state.lock();
        if state.has_work() || timeout_ns == Some(0) {
            return;
        }
        drop(match timeout_ns {
            Some(timeout_ns) => self.changed.wait_timeout(state, Duration::from_nanos(timeout_ns)).0,
            None => self.changed.wait(state),
        });
    }

    fn wake(&self) {
        self.changed.notify_all();
    }
}

/// Starts a thread of the engine for which the calling thread works. The thread makes its work itself, by `make`, and
/// ends if `make` returns None. `doing` is its job, for the text of a panic.
pub fn start<W: Turns>(
    name: impl Into<String>,
    doing: &'static str,
    sleeper: Arc<dyn Sleeper>,
    make: impl FnOnce() -> Option<W> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    thread::spawn(name, move || run(doing, &*sleeper, make))
}

/// Starts a thread that touches no registered memory and runs the program's code, which can't be stopped. If the engine
/// breaks, the thread runs `after` once the engine is over. A panic in `after` is not reported.
pub fn start_apart<W: Turns, A: Turns>(
    name: impl Into<String>,
    doing: &'static str,
    sleeper: Arc<dyn Sleeper>,
    make: impl FnOnce() -> Option<W> + Send + 'static,
    after: impl FnOnce() -> Option<A> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let same = sleeper.clone();
    let after = move || {
        // Unwind safety: nothing of `after` is used later.
        let _ = catch_unwind(AssertUnwindSafe(|| run(doing, &*same, after)));
    };
    let make = || {
        may_touch_memory();
        make()
    };
    thread::spawn_apart(name, move || run(doing, &*sleeper, make), after)
}

fn run<W: Turns>(doing: &'static str, sleeper: &dyn Sleeper, make: impl FnOnce() -> Option<W>) {
    health::woken_by(&|| sleeper.wake(), || {
        health::doing(doing);
        KEEPS_AWAY.with(|keeps_away| keeps_away.set(true));
        let Some(mut work) = make().map(Box::new) else { return };
        health::doing(doing);
        // Unwind safety: after a panic the work is only abandoned.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drive(&mut *work, sleeper))) {
            // Contract 14: a panic outside locks has not marked the engine yet, and `abandon` drops replies.
            health::releases_in_panic();
            health::exempt(|| work.abandon());
            resume_unwind(payload);
        }
    });
}

/// Calls turns until one says that it was the last.
fn drive(work: &mut impl Turns, sleeper: &dyn Sleeper) {
    let mut ready = Vec::new();
    loop {
        health::check();
        let now = clock::monotonic_ns();
        health::pass(Point::Turn);
        let timeout_ns = match work.turn(now, &ready) {
            Next::Again => {
                ready.clear();
                continue;
            }
            Next::At(at) if at <= now => Some(0),
            Next::At(at) => Some(at.saturating_sub(clock::monotonic_ns())),
            Next::WhenWoken => None,
            Next::Over => return,
        };
        sleeper.sleep(&mut ready, timeout_ns);
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
