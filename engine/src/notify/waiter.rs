//! The waiters of a transfer: threads, futures, and threads that wait for any of several transfers. `complete` makes a
//! transfer final and then notifies; `api` waits.
//!
//! No wake-up is lost, because each side writes before it reads what the other side writes:
//! ```text
//! waiter                              notifier
//!   waiting += 1                        make it ready
//!   fence                               fence
//!   ready? then do not sleep            waiting == 0? then wake nobody
//! ```
//! All SeqCst fences have one order, in which one of the two fences comes second. The side of that fence sees the other
//! side's write. `tests/loom_models` compiles this file against loom.

use super::{guard, Wakers};
use crate::sys::atomic::{fence, AtomicUsize, Ordering};
use crate::sys::bare::{Condvar, Mutex, MutexGuard};
use crate::sys::clock;
use std::cell::Cell;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Instant;

/// A signal on which a thread sleeps, and which several waiters can raise.
#[derive(Default)]
pub struct Signal {
    /// Counts notifications, so that a notification between the check and the sleep is seen.
    raised: Mutex<u64>,
    changed: Condvar,
}

impl Signal {
    pub fn new() -> Signal {
        Signal::default()
    }

    /// Wakes all waiting threads to check their condition again.
    pub fn raise(&self) {
        *lock(&self.raised) += 1;
        self.changed.notify_all();
    }

    /// Sleeps until `ready` returns true. Returns false if `deadline` passed first; None is no deadline. `ready` is
    /// called at least once, and under no lock.
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

impl Signal {
    /// Sleeps until `ready` returns a value. None if `deadline` passed first. `ready` is called under no lock.
    pub fn wait_for<R>(&self, ready: impl Fn() -> Option<R>, deadline: Option<Instant>) -> Option<R> {
        let found = Cell::new(None);
        self.wait_until(
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
}

/// One transfer's waiters.
#[derive(Default)]
pub struct Waiter {
    /// The number of sleeping threads, wakers and subscriptions. Written before the call of `ready`; its partner is the
    /// load in `notify_all`, which comes after the transfer became ready.
    waiting: AtomicUsize,
    signal: Signal,
    listeners: Mutex<Listeners>,
}

#[derive(Default)]
struct Listeners {
    /// The task that awaits the transfer.
    future: Option<Waker>,
    /// Tasks of ferry's own.
    own: Vec<Waker>,
    signals: Vec<Arc<Signal>>,
}

impl Listeners {
    /// The number of tasks.
    fn tasks(&self) -> usize {
        self.own.len() + usize::from(self.future.is_some())
    }
}

impl Waiter {
    pub fn new() -> Waiter {
        Waiter::default()
    }

    /// True while nobody waits.
    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0 && lock(&self.listeners).signals.is_empty()
    }

    /// Sleeps until `ready` returns true. Returns false if `deadline` passed first; None is no deadline. The thread
    /// that makes the condition true must call `notify_all` afterwards. `ready` is called under no lock.
    pub fn wait_until(&self, ready: impl Fn() -> bool, deadline: Option<Instant>) -> bool {
        if ready() {
            return true;
        }
        let _counted = Counted::new(&self.waiting);
        self.signal.wait_until(ready, deadline)
    }

    /// Wakes all waiting threads, and leaves tasks to `wakers`. To be called after their condition became true. Costs a
    /// fence and a load if nobody waits.
    pub fn notify_all(&self, wakers: &mut Wakers) {
        // Partner: the fence in `Counted::new` and `add`.
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
        self.waiting.fetch_sub(listeners.tasks(), Ordering::SeqCst);
        wakers.extend(listeners.future.take().into_iter());
        wakers.extend(listeners.own.drain(..));
    }

    /// Registers the task of the transfer's future for the next `notify_all` to wake, instead of the task that polled
    /// the future before. The caller must check its condition once more afterwards, otherwise a wake-up may be lost.
    pub fn register(&self, waker: &Waker) {
        let waker = waker.clone();
        let earlier = self.add(|listeners| listeners.future.replace(waker));
        guard(|| drop(earlier));
    }

    /// Notes that the future no longer waits. The thread that polled it last must call this.
    pub fn forget(&self) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let waker = {
            let mut listeners = lock(&self.listeners);
            let waker = listeners.future.take();
            self.waiting.fetch_sub(usize::from(waker.is_some()), Ordering::SeqCst);
            waker
        };
        guard(|| drop(waker));
    }

    /// As `register`, for a task of ferry's own. A waker that wakes a task already registered is not kept twice.
    pub fn register_own(&self, waker: &Waker) {
        self.add(|listeners| {
            if !listeners.own.iter().any(|known| known.will_wake(waker)) {
                listeners.own.push(waker.clone());
            }
        });
    }

    fn add<R>(&self, add: impl FnOnce(&mut Listeners) -> R) -> R {
        let result = {
            let mut listeners = lock(&self.listeners);
            let before = listeners.tasks();
            let result = add(&mut listeners);
            self.waiting.fetch_add(listeners.tasks() - before, Ordering::SeqCst);
            result
        };
        // Partner: the fence in `notify_all`.
        fence(Ordering::SeqCst);
        result
    }

    /// Registers `signal` for `notify_all` to raise until the subscription is dropped. The caller must check its
    /// condition once more afterwards.
    pub fn subscribe(&self, signal: Arc<Signal>) -> Subscription<'_> {
        lock(&self.listeners).signals.push(signal.clone());
        Subscription { waiter: self, signal, _counted: Counted::new(&self.waiting) }
    }
}

/// The registration of a signal with a waiter.
pub struct Subscription<'a> {
    waiter: &'a Waiter,
    signal: Arc<Signal>,
    _counted: Counted<'a>,
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        let mut listeners = lock(&self.waiter.listeners);
        // Removes one entry only: the same signal may have several subscriptions here.
        if let Some(place) = listeners.signals.iter().position(|signal| Arc::ptr_eq(signal, &self.signal)) {
            listeners.signals.swap_remove(place);
        }
    }
}

/// Sleeps until one of `waiters` has notified and `ready` returns a value. None if `deadline` passed first. `ready`
/// checks the conditions of all waiters, under no lock.
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
    signal.wait_for(ready, deadline)
}

/// Adds one to `waiting` for as long as this lives.
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

/// Takes a lock like `super::lock`, for the standard library's and for loom's mutex.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
