//! Sleeps until a queue has events. Threads sleep on the queue's signal; tasks leave their wakers. `queue` raises the
//! signal when it has pushed an event, and has the callback thread wake the tasks, because an event is often pushed
//! under locks, under which no task may run. `api` calls this for the application.
//!
//! No event is missed: who waits is counted under the queue's lock, looks at the queue afterwards, and sleeps only if
//! the signal has not been raised since. A push under the same lock comes before that look, or finds the count.

use super::deferred;
use super::event::Event;
use super::queue::Queue;
use crate::status::{Error, Result, Status};
use std::task::Waker;
use std::time::Instant;

/// The most tasks that wait for one queue. Beyond this number the oldest task is woken: it looks and registers again.
pub(super) const TASKS_MAX: usize = 64;

/// The wakers of tasks, oldest first.
#[derive(Default)]
pub(super) struct Tasks(Vec<Waker>);

impl Tasks {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self) -> Tasks {
        std::mem::take(self)
    }

    /// Adds a task unless it is here already. Returns the task that has to make room.
    fn add(&mut self, waker: &Waker) -> Option<Waker> {
        if self.0.iter().any(|known| known.will_wake(waker)) {
            return None;
        }
        let oldest = (self.0.len() >= TASKS_MAX).then(|| self.0.remove(0));
        self.0.push(waker.clone());
        oldest
    }

    /// Wakes the tasks. The calling thread must hold no lock of the engine.
    pub fn wake(&self) {
        self.0.iter().cloned().for_each(deferred::call);
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

    /// Takes the next event for a task; None if there is none and more may come: then the callback thread wakes the
    /// task with the next event. Errors as in `wait_for_events`.
    pub(crate) fn poll(&self, waker: &Waker, over: impl Fn() -> Result<()>) -> Option<Result<Event>> {
        let displaced = self.inner.lock().tasks.add(waker);
        displaced.into_iter().for_each(deferred::call);
        // After the task was added: an event that comes later wakes the task.
        let events = self.look(1, over)?;
        events.map(|mut events| events.pop()).transpose()
    }

    /// Takes events; None if there is none and more may come.
    fn look(&self, max: usize, over: impl Fn() -> Result<()>) -> Option<Result<Vec<Event>>> {
        // Asked before the look, because the last events come before the end.
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
