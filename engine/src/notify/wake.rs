//! Sleeps until a queue has events. Threads sleep on the queue's signal; tasks leave their wakers. `queue` raises the
//! signal when it has pushed an event, and has the callback thread wake the tasks, because an event is often pushed
//! under locks, under which no task may run. `api` calls this for the application.
//!
//! No event is missed: a waiter is counted under the queue's lock, then looks at the queue, and sleeps only if the
//! signal has not been raised since. A push under the same lock comes before that look, or finds the count.

use super::event::Event;
use super::queue::Queue;
use super::{deferred, guard};
use crate::limits::EVENT_TASKS_MAX;
use crate::status::{Error, Result, Status};
use std::task::Waker;
use std::time::Instant;

/// The wakers of tasks that wait, each with the number of its future. A future that has resolved or was dropped has
/// none, so the bound counts only tasks that wait.
#[derive(Default)]
pub(super) struct Tasks(Vec<(u64, Waker)>);

impl Tasks {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self) -> Tasks {
        std::mem::take(self)
    }

    /// Sets the waker of a future. Returns the earlier one, to be dropped under no lock. LIMIT if too many wait.
    fn set(&mut self, future: u64, waker: &Waker) -> Result<Option<Waker>> {
        if let Some((_, known)) = self.0.iter_mut().find(|(number, _)| *number == future) {
            return Ok((!known.will_wake(waker)).then(|| std::mem::replace(known, waker.clone())));
        }
        if self.0.len() >= EVENT_TASKS_MAX {
            let text = format!("{EVENT_TASKS_MAX} tasks wait for events of the queue");
            return Err(Error::new(Status::Limit, text));
        }
        self.0.push((future, waker.clone()));
        Ok(None)
    }

    /// Removes the waker of a future, to be dropped under no lock.
    fn remove(&mut self, future: u64) -> Option<Waker> {
        let place = self.0.iter().position(|(number, _)| *number == future)?;
        Some(self.0.swap_remove(place).1)
    }

    /// Wakes the tasks. The calling thread must hold no lock of the engine.
    pub fn wake(self) {
        self.0.into_iter().for_each(|(_, waker)| deferred::wake_task(waker));
    }
}

impl Queue {
    /// Sleeps until the queue has events, and takes up to `max`, oldest first. TIMEOUT if `deadline` passed first; None
    /// is no deadline. STALE if the queue was destroyed, otherwise the error of `over`, which says whether the engine
    /// has ended: its last events are still taken.
    pub(crate) fn wait_for_events(
        &self,
        max: usize,
        over: impl Fn() -> Result<()>,
        deadline: Option<Instant>,
    ) -> Result<Vec<Event>> {
        self.inner.lock().sleepers += 1;
        let found = self.signal.wait_for(|| self.look(max, &over), deadline);
        self.inner.lock().sleepers -= 1;
        found.unwrap_or_else(|| Err(Error::new(Status::Timeout, "the queue has no event yet")))
    }

    /// Returns a number for a future that waits for events.
    pub(crate) fn next_future(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.futures += 1;
        inner.futures
    }

    /// Takes the next event for a task; None if there is none and more may come: then the callback thread wakes the
    /// task with the next event. `future` is the number under which the task waits. Errors as in `wait_for_events`,
    /// and LIMIT if too many tasks wait.
    pub(crate) fn poll(
        &self,
        future: u64,
        waker: &Waker,
        over: impl Fn() -> Result<()>,
    ) -> Option<Result<Event>> {
        let earlier = self.inner.lock().tasks.set(future, waker);
        match earlier {
            Ok(earlier) => guard(|| drop(earlier)),
            Err(full) => return Some(Err(full)),
        }
        // After the task was added: an event that comes later wakes the task.
        let events = self.look(1, over)?;
        self.forget(future);
        events.map(|mut events| events.pop()).transpose()
    }

    /// Notes that the future with this number no longer waits.
    pub(crate) fn forget(&self, future: u64) {
        let waker = self.inner.lock().tasks.remove(future);
        guard(|| drop(waker));
    }

    /// Takes events; None if there is none and more may come.
    fn look(&self, max: usize, over: impl Fn() -> Result<()>) -> Option<Result<Vec<Event>>> {
        // Check for the end before looking for events, because the last events come before the end.
        let over = over();
        let mut inner = self.inner.lock();
        if !inner.pending.is_empty() {
            let mut events = Vec::new();
            self.take(&mut inner, &mut events, max);
            return Some(Ok(events));
        }
        if inner.closed {
            return Some(Err(Error::new(Status::Stale, "the queue has been destroyed")));
        }
        over.err().map(Err)
    }
}
