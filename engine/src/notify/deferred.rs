//! Wakes tasks. An executor may run a task inside its waker, and the task may submit or wait, so wakers are called
//! under no lock. A thread that makes transfers final under a lock collects their wakers in `Wakers`.

use super::guard;
use std::cell::Cell;
use std::task::Waker;

thread_local! {
    /// The depth of nested waker calls on this thread.
    static WAKING: Cell<u32> = const { Cell::new(0) };
}

/// The wakers of tasks that `wake`, or the drop of this, will wake.
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

    /// Wakes the tasks. The calling thread must hold no lock of the engine.
    pub fn wake(&mut self) {
        std::mem::take(&mut self.0).into_iter().for_each(call);
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        self.wake();
    }
}

/// True while this thread wakes a task, which may run inside the waker. A task that waits here must not count on the
/// work of the outer frames of this thread's stack, which stands still meanwhile.
pub fn is_waking() -> bool {
    WAKING.get() > 0
}

/// Wakes one task. The waker is an executor's code: its panic must not end the thread that notifies.
pub(super) fn call(waker: Waker) {
    WAKING.set(WAKING.get() + 1);
    guard(|| waker.wake());
    WAKING.set(WAKING.get() - 1);
}
