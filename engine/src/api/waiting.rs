//! Waits for transfers and events: the work that the waiting thread does for the engine, and how the thread sleeps.

use super::Engine;
use crate::complete::{Transfer as Core, TransferResult};
use crate::notify::{Event, Queue};
use crate::peer::outbox::Class;
use crate::status::{Error, Result, Status};
use crate::sys::clock;
use crate::types::{Monotonic, PeerId, Transport};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

impl Engine {
    /// Polls the transfer's path for completions if the transfer is not final. Needed because no thread polls for small
    /// transfers that nobody waits for.
    pub fn poll(&self, core: &Core) {
        if !core.is_final() {
            // A broken engine takes in nothing more.
            let _ = self.call("polling", || {
                let peer = self.inner.context.peer(core.spec.peer)?;
                if let Some(path) = peer.path(core.transport()) {
                    path.poll();
                }
                Ok(())
            });
        }
    }

    /// Announces that the caller is about to sleep until the transfer is final. PANIC if the engine is broken, because
    /// the caller would sleep in vain.
    pub(super) fn attend(&self, core: &Core) -> Result<()> {
        self.call("waiting for a transfer", || {
            if let Ok(peer) = self.inner.context.peer(core.spec.peer) {
                peer.attend(core);
            }
            Ok(())
        })
    }

    /// Waits until the transfer is final. TIMEOUT if the transfer is not final in time (it continues), BUSY in a
    /// callback.
    pub fn wait(&self, core: &Core, timeout: Option<Duration>) -> Result<TransferResult> {
        self.inner.check_not_forked()?;
        if timeout == Some(Duration::ZERO) {
            self.poll(core);
        } else if !core.is_final() {
            self.check_may_block()?;
            let waited = self.call("waiting for a transfer", || {
                self.wait_final(core, timeout);
                Ok(())
            });
            // A final transfer has its result even if the engine is closed or broken.
            waited.or_else(|error| if core.is_final() { Ok(()) } else { Err(error) })?;
        }
        core.result().ok_or_else(|| self.why_not_final("the transfer is not final yet"))
    }

    fn why_not_final(&self, what: &str) -> Error {
        self.check_health().err().unwrap_or_else(|| Error::new(Status::Timeout, what))
    }

    pub(super) fn check_may_block(&self) -> Result<()> {
        if self.in_callback() {
            return Err(Error::new(Status::Busy, "waiting inside a callback would stop all callbacks"));
        }
        Ok(())
    }

    fn wait_final(&self, core: &Core, timeout: Option<Duration>) {
        let deadline_ns = timeout
            .map_or(Monotonic::NEVER, |timeout| clock::monotonic_ns().saturating_add_duration(timeout));
        // The waiting thread drives a small transfer itself, which avoids a hop through another thread. On this host
        // and over RDMA the thread drives large transfers too.
        if let Ok(peer) = self.inner.context.peer(core.spec.peer) {
            if core.transport() != Transport::Tcp || peer.class_of(core) == Class::Express {
                if let Some(path) = peer.path(core.transport()) {
                    path.drive(core, deadline_ns);
                }
            }
            peer.attend(core);
        }
        let deadline = timeout.and_then(|_| {
            clock::now().checked_add(Duration::from_nanos(deadline_ns.saturating_sub(clock::monotonic_ns())))
        });
        let health = self.inner.context.health();
        core.waiter.wait_until(|| core.is_final() || health.is_broken(), deadline);
    }

    /// Waits until a transfer of the list is final and returns its index. INVALID for an empty list.
    pub fn wait_any(&self, cores: &[Arc<Core>], timeout: Option<Duration>) -> Result<usize> {
        self.inner.check_not_forked()?;
        if cores.is_empty() {
            return Err(Error::invalid("transfers: the list is empty"));
        }
        let found = || cores.iter().position(|core| core.is_final());
        if timeout == Some(Duration::ZERO) {
            cores.iter().for_each(|core| self.poll(core));
        }
        if let Some(index) = found() {
            return Ok(index);
        }
        if timeout != Some(Duration::ZERO) {
            self.check_may_block()?;
            cores.iter().try_for_each(|core| self.attend(core))?;
        }
        let deadline = timeout.and_then(|timeout| clock::now().checked_add(timeout));
        let health = self.inner.context.health();
        let ready = || found().map(Some).or_else(|| health.is_broken().then_some(None));
        let ended = crate::notify::wait_any(cores.iter().map(|core| &core.waiter), ready, deadline);
        ended.flatten().ok_or_else(|| self.why_not_final("none of the transfers is final yet"))
    }

    /// Waits until every transfer of the list is final, and returns the index of the first that is not DONE; None if
    /// each is. TIMEOUT, with the index of the first that is not final, if the time is over first: all go on. BUSY in a
    /// callback. INVALID for an empty list.
    pub fn wait_all(&self, cores: &[Arc<Core>], timeout: Option<Duration>) -> Result<Option<usize>> {
        self.inner.check_not_forked()?;
        if cores.is_empty() {
            return Err(Error::invalid("transfers: the list is empty"));
        }
        let deadline = timeout.and_then(|timeout| clock::now().checked_add(timeout));
        for (index, core) in cores.iter().enumerate() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(clock::now()));
            self.wait(core, left).map_err(|error| error.at_request(index as u64))?;
        }
        Ok(cores.iter().position(|core| core.concluded_status() != Status::Ok))
    }

    /// Waits until the queue has an event, and takes the oldest. TIMEOUT if none comes in time, BUSY in a callback
    /// unless there is an event, STALE if the queue is destroyed, CLOSED when the engine is closed and its last event
    /// is taken.
    pub fn wait_event(&self, queue: &Queue, timeout: Option<Duration>) -> Result<Event> {
        let mut events = self.wait_events(queue, 1, timeout)?;
        events.pop().ok_or_else(|| Error::invalid("max is 0"))
    }

    /// Waits like `wait_event`, and takes up to `max` events, at least one, oldest first.
    pub fn wait_events(&self, queue: &Queue, max: usize, timeout: Option<Duration>) -> Result<Vec<Event>> {
        if max == 0 {
            return Err(Error::invalid("max is 0"));
        }
        self.inner.check_not_forked()?;
        let over = || self.over();
        let now = || queue.wait_for_events(max, over, Some(clock::now()));
        match now() {
            Err(error) if error.status == Status::Timeout && timeout != Some(Duration::ZERO) => {
                self.check_may_block()?;
                let deadline = timeout.and_then(|timeout| clock::now().checked_add(timeout));
                queue.wait_for_events(max, over, deadline)
            }
            looked => looked,
        }
    }

    /// Waits for an event as briefly as a small transfer of a conversation takes, for at most the engine's `spin_us`,
    /// and receives on this thread meanwhile: an answer of `peer` then costs no hop through another thread. Ends when
    /// `is_wanted`, too. False: the queue has no event, and to spin is no use now.
    pub fn spin_for_event(&self, queue: &Queue, peer: PeerId, is_wanted: &dyn Fn() -> bool) -> bool {
        let has_event = || queue.pending() > 0 || is_wanted();
        if has_event() {
            return true;
        }
        let listened = self.call("waiting for an event", || {
            let path = self.inner.context.peers.get(peer)?.path(Transport::Tcp);
            Ok(path.is_some_and(|path| path.listen(&has_event)))
        });
        listened.unwrap_or(false) || has_event()
    }

    /// Takes the queue's next event. None if the queue has no event yet: then the next event wakes the task.
    pub(super) fn poll_event(&self, queue: &Queue, future: u64, task: &Waker) -> Option<Result<Event>> {
        // A thread that wakes tasks is not started for an engine that has ended; its last events can still be taken.
        if let Err(error) = self.over().and_then(|()| self.inner.context.hub.start_waking()) {
            return Some(self.wait_event(queue, Some(Duration::ZERO)).map_err(|_| error));
        }
        queue.poll(future, task, || self.over())
    }

    /// Returns an error that says how the engine ended; Ok if it has not ended.
    fn over(&self) -> Result<()> {
        self.check_not_closed().and_then(|()| self.check_health())
    }
}
