//! When tasks are woken. An executor may run a task where the task is woken, and the task may submit, or wait: so
//! wakers are called under no lock. A thread that makes transfers final under one collects their wakers in `Wakers`.

use super::guard;
use std::cell::Cell;
use std::task::Waker;

thread_local! {
    /// How many wakers are being called on this thread, one inside the other.
    static WAKING: Cell<u32> = const { Cell::new(0) };
}

/// The wakers of tasks that are to be woken: by `wake`, or when this is dropped.
#[derive(Default)]
#[must_use]
pub struct Wakers(Vec<Waker>);

impl Wakers {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn extend(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        self.0.extend(wakers);
    }

    /// Wakes the tasks. The calling thread holds no lock of the engine.
    pub fn wake(&mut self) {
        std::mem::take(&mut self.0).into_iter().for_each(call);
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        self.wake();
    }
}

/// Whether this thread is waking a task, and what runs here may be that task. What the thread did before, further out
/// on its stack, the thread does not do meanwhile: a task that waits must not count on that.
pub fn is_waking() -> bool {
    WAKING.get() > 0
}

/// Wakes one task. An executor's code: its panic must not end the thread that notifies.
pub(super) fn call(waker: Waker) {
    WAKING.set(WAKING.get() + 1);
    guard(|| waker.wake());
    WAKING.set(WAKING.get() - 1);
}
