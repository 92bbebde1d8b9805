//! Wakes tasks. An executor may run a task inside its waker, and the task may submit or wait, so wakers are called
//! under no lock. A thread that makes transfers final under a lock collects their wakers in `Wakers`.

use super::guard;
use crate::sys::local::local;
use std::cell::Cell;
use std::task::Waker;

local! {
    /// The depth of nested waker calls on this thread.
    static WAKING: Cell<u32> = const { Cell::new(0) };
    /// The buffer of this thread's last `Wakers`, for the next one.
    static SPARE: Cell<Vec<Waker>> = const { Cell::new(Vec::new()) };
}

/// A larger buffer is freed: after a burst a thread keeps at most 16 KiB.
const SPARE_WAKERS_MAX: usize = 1024;

/// The wakers of tasks that `wake`, or the drop of this, will wake. A thread's lists use one buffer in turn; a list
/// without tasks has no buffer.
#[derive(Default)]
#[must_use]
pub struct Wakers(Vec<Waker>);

impl Wakers {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn extend(&mut self, wakers: impl ExactSizeIterator<Item = Waker>) {
        if self.0.capacity() == 0 && wakers.len() != 0 {
            // Fails while the thread ends: then the list gets a buffer of its own.
            self.0 = SPARE.try_with(Cell::take).unwrap_or_default();
        }
        self.0.extend(wakers);
    }

    /// Wakes the tasks. The calling thread must hold no lock of the engine.
    pub fn wake(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let mut wakers = std::mem::take(&mut self.0);
        wakers.drain(..).for_each(wake_task);
        if wakers.capacity() <= SPARE_WAKERS_MAX {
            let _ = SPARE.try_with(|spare| spare.set(wakers));
        }
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
pub(crate) fn wake_task(waker: Waker) {
    WAKING.set(WAKING.get() + 1);
    guard(|| waker.wake());
    WAKING.set(WAKING.get() - 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;
    use std::task::Wake;

    /// A task whose waker ends a turn of its own, in which this many tasks wait.
    struct Task(usize, AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(1, Ordering::Relaxed);
            turn(self.0, 0);
        }
    }

    /// Collects the wakers of this many tasks and wakes the tasks. Returns the room of the buffer.
    fn turn(tasks: usize, each: usize) -> usize {
        let task = Arc::new(Task(each, AtomicUsize::new(0)));
        let waker = Waker::from(task.clone());
        let mut wakers = Wakers::default();
        wakers.extend(vec![waker; tasks].into_iter());
        let room = wakers.0.capacity();
        wakers.wake();
        assert!(wakers.is_empty() && task.1.load(Ordering::Relaxed) == tasks);
        room
    }

    #[test]
    fn the_lists_of_a_thread_use_one_buffer_in_turn() {
        assert_eq!(turn(0, 0), 0, "where no task waits, no buffer is taken");
        let room = turn(100, 0);
        assert_eq!([turn(1, 0), turn(0, 0), turn(100, 0)], [room, 0, room]);
        // The tasks that a waker wakes within a turn are in another buffer.
        assert_eq!([turn(100, 3), turn(1, 0)], [room; 2]);
        turn(SPARE_WAKERS_MAX + 1, 0);
        assert!(turn(1, 0) < SPARE_WAKERS_MAX, "a burst leaves no large buffer");
    }
}
