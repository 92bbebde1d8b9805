//! What a transfer's waiters sleep on: threads, futures, and threads that wait for any of several.
//! `complete` makes a transfer final and then notifies; `api` waits.
//!
//! Nothing is lost because each side writes before it reads what the other writes:
//! ```text
//! waiter                              notifier
//!   waiting += 1                        make it ready
//!   fence                               fence
//!   ready? then do not sleep            waiting == 0? then wake nobody
//! ```
//! In the one order that all SeqCst fences have, one of the two fences comes second, and its side
//! sees what the other wrote.

// The crate's manifest does not know `loom`, which is set by hand for the model at the end:
// cargo rustc -p ferry --lib --profile test -- --cfg loom, then run the binary it names on `model`.
#![allow(unexpected_cfgs)]

use super::{deferred, Wakers};
use crate::sys::clock;
use std::cell::Cell;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Instant;

#[cfg(all(test, loom))]
use loom::sync::{
    atomic::{fence, AtomicUsize, Ordering},
    Condvar, Mutex, MutexGuard,
};
#[cfg(not(all(test, loom)))]
use std::sync::{
    atomic::{fence, AtomicUsize, Ordering},
    Condvar, Mutex, MutexGuard,
};

/// Wakers of one waiter. Beyond, the oldest is woken: its task polls again and queues behind.
const WAKERS_MAX: usize = 64;

/// Something to sleep on that several waiters can notify.
#[derive(Default)]
pub struct Signal {
    /// Counts notifications, so that one that comes between the look and the sleep is seen.
    raised: Mutex<u64>,
    changed: Condvar,
}

impl Signal {
    pub fn new() -> Signal {
        Signal::default()
    }

    /// Has everyone who waits look again.
    pub fn raise(&self) {
        *lock(&self.raised) += 1;
        self.changed.notify_all();
    }

    /// Sleeps until `ready` says true; false when `deadline` came first (None never does). `ready` is
    /// asked once at least, and under no lock.
    pub fn wait_until(&self, ready: impl Fn() -> bool, deadline: Option<Instant>) -> bool {
        loop {
            let seen = *lock(&self.raised);
            if ready() {
                return true;
            }
            let mut raised = lock(&self.raised);
            while *raised == seen {
                let Some(deadline) = deadline else {
                    raised = self.changed.wait(raised).unwrap_or_else(PoisonError::into_inner);
                    continue;
                };
                let left = deadline.saturating_duration_since(clock::now());
                if left.is_zero() {
                    return false;
                }
                raised = self.changed.wait_timeout(raised, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// One transfer's waiters.
#[derive(Default)]
pub struct Waiter {
    /// Sleeping threads, wakers and subscriptions. Written before `ready` is looked at; its partner
    /// is the load in `notify_all`, which comes after what makes ready.
    waiting: AtomicUsize,
    signal: Signal,
    listeners: Mutex<Listeners>,
}

#[derive(Default)]
struct Listeners {
    /// Oldest first.
    wakers: Vec<Waker>,
    signals: Vec<Arc<Signal>>,
}

impl Waiter {
    pub fn new() -> Waiter {
        Waiter::default()
    }

    /// Sleeps until `ready` says true; false when `deadline` came first (None never does). Whoever
    /// makes it ready calls `notify_all` afterwards. `ready` is asked under no lock.
    pub fn wait_until(&self, ready: impl Fn() -> bool, deadline: Option<Instant>) -> bool {
        if ready() {
            return true;
        }
        let _counted = Counted::new(&self.waiting);
        self.signal.wait_until(ready, deadline)
    }

    /// Wakes everyone who waits. Call after making ready what they wait for. Costs a fence and a load
    /// when nobody waits.
    /// Tasks are left to `wakers`.
    pub fn notify_all(&self, wakers: &mut Wakers) {
        // Partner: the fence in `Counted::new` and `register_waker`.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            self.wake_all(wakers);
        }
    }

    #[cold]
    fn wake_all(&self, wakers: &mut Wakers) {
        self.signal.raise();
        let mut listeners = lock(&self.listeners);
        listeners.signals.iter().for_each(|signal| signal.raise());
        self.waiting.fetch_sub(listeners.wakers.len(), Ordering::SeqCst);
        wakers.extend(listeners.wakers.drain(..));
    }

    /// Has the next `notify_all` wake a task. The caller looks once more whether it is ready after
    /// this returns: only then is nothing lost. A waker that wakes a task already registered is not
    /// kept twice.
    pub fn register_waker(&self, waker: &Waker) {
        let displaced = {
            let mut listeners = lock(&self.listeners);
            if listeners.wakers.iter().any(|known| known.will_wake(waker)) {
                None
            } else {
                let full = listeners.wakers.len() >= WAKERS_MAX;
                let displaced = full.then(|| listeners.wakers.remove(0));
                listeners.wakers.push(waker.clone());
                self.waiting.fetch_add(usize::from(!full), Ordering::SeqCst);
                displaced
            }
        };
        // Partner: the fence in `notify_all`.
        fence(Ordering::SeqCst);
        if let Some(oldest) = displaced {
            deferred::call(oldest);
        }
    }

    /// Has `notify_all` raise `signal` too, until the subscription is dropped. Look whether it is
    /// ready after this returns.
    pub fn subscribe(&self, signal: Arc<Signal>) -> Subscription<'_> {
        lock(&self.listeners).signals.push(signal.clone());
        Subscription { waiter: self, signal, _counted: Counted::new(&self.waiting) }
    }
}

/// A signal's place among a waiter's listeners.
pub struct Subscription<'a> {
    waiter: &'a Waiter,
    signal: Arc<Signal>,
    _counted: Counted<'a>,
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        let mut listeners = lock(&self.waiter.listeners);
        // One place for each subscription, though a signal may have several here.
        if let Some(place) = listeners.signals.iter().position(|signal| Arc::ptr_eq(signal, &self.signal)) {
            listeners.signals.swap_remove(place);
        }
    }
}

/// Sleeps until one of `waiters` has notified and `ready` finds something; None when `deadline` came
/// first. `ready` looks at what all of them wait for, under no lock.
pub fn wait_any<'a, R>(
    waiters: impl IntoIterator<Item = &'a Waiter>,
    ready: impl Fn() -> Option<R>,
    deadline: Option<Instant>,
) -> Option<R> {
    if let Some(found) = ready() {
        return Some(found);
    }
    let signal = Arc::new(Signal::new());
    let _subscriptions: Vec<_> = waiters.into_iter().map(|waiter| waiter.subscribe(signal.clone())).collect();
    let found = Cell::new(None);
    signal.wait_until(
        || {
            let result = ready();
            let is_ready = result.is_some();
            found.set(result);
            is_ready
        },
        deadline,
    );
    found.into_inner()
}

/// One in `waiting`, for as long as this lives.
struct Counted<'a>(&'a AtomicUsize);

impl Counted<'_> {
    fn new(waiting: &AtomicUsize) -> Counted<'_> {
        waiting.fetch_add(1, Ordering::SeqCst);
        // Partner: the fence in `notify_all`.
        fence(Ordering::SeqCst);
        Counted(waiting)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// As `super::lock`, for either kind of mutex.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, loom))]
#[path = "waiter_model.rs"]
mod model;
#[cfg(all(test, not(loom)))]
#[path = "waiter_tests.rs"]
mod tests;
