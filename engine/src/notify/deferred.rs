//! When tasks are woken. An executor may run a task where it is woken, and the task may submit, or wait: so
//! wakers are called under no lock. Whoever settles transfers under one makes a `WakeLater` first.
//!
//! ```text
//! WakeLater ─ lock ─ transfers become final, their wakers are kept ─ unlock ─ drop: the wakers are called
//! ```

use super::guard;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::task::Waker;

thread_local! {
    /// How many `WakeLater` there are on this thread.
    static HOLDERS: Cell<u32> = const { Cell::new(0) };
    /// How many wakers are being called on this thread, one inside the other.
    static WAKING: Cell<u32> = const { Cell::new(0) };
    static KEPT: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// While one lives on a thread, tasks that would be woken there are not; they are when the last goes. Made
/// before a lock is taken, so that it goes after that.
#[must_use]
pub struct WakeLater(PhantomData<*const ()>);

impl WakeLater {
    pub fn begin() -> WakeLater {
        HOLDERS.set(HOLDERS.get() + 1);
        WakeLater(PhantomData)
    }
}

impl Drop for WakeLater {
    fn drop(&mut self) {
        HOLDERS.set(HOLDERS.get() - 1);
        if HOLDERS.get() > 0 {
            return;
        }
        let Ok(mut wakers) = KEPT.try_with(RefCell::take) else { return };
        if !wakers.is_empty() {
            wakers.drain(..).for_each(call);
            let _ = KEPT.try_with(|kept| kept.replace(wakers)); // its room is used again
        }
    }
}

/// Wakes a task, now or when the thread's locks are gone.
pub(super) fn wake(waker: Waker) {
    let mut waker = Some(waker);
    if HOLDERS.get() > 0 {
        // A thread that is ending has nothing to keep it in any more.
        let _ = KEPT.try_with(|kept| kept.borrow_mut().extend(waker.take()));
    }
    waker.into_iter().for_each(call);
}

/// Whether this thread is waking a task, and what runs here may be that task. What the thread did before,
/// further out on its stack, it does not do meanwhile.
pub fn is_waking() -> bool {
    WAKING.get() > 0
}

/// Executors' code: its panic must not end the worker that notifies.
fn call(waker: Waker) {
    WAKING.set(WAKING.get() + 1);
    guard(|| waker.wake());
    WAKING.set(WAKING.get() - 1);
}
