//! Closes an engine: in good order, or after the teardown of a broken engine.

use super::engine::{Inner, CLOSED, CLOSING, OPEN};
use crate::command::Command;
use crate::complete::transfer::Strike;
use crate::notify;
use crate::peer::TransportService;
use crate::status::{Error, Result, Status};
use crate::sys::atomic::{AtomicU32, Ordering};
use crate::sys::clock;
use crate::sys::fork::ForkGuard;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::pause;
use crate::sys::thread;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The pause between two checks whether another call has ended. Closing is rare.
pub(super) const PAUSE: Duration = Duration::from_micros(200);

impl Inner {
    pub(super) fn close(&self, timeout: Option<Duration>) -> Result<()> {
        if self.guard.is_child() {
            return Ok(());
        }
        if self.context.hub.in_callback() {
            return Err(Error::new(Status::Busy, "an engine cannot be closed inside one of its callbacks"));
        }
        // The waker runs on a thread of an engine, or inside another call that closes.
        if notify::is_waking() && self.check_state_below(CLOSED).is_ok() {
            return Err(Error::new(
                Status::Busy,
                "an engine cannot be closed inside a waker that ferry calls",
            ));
        }
        let deadline = timeout.and_then(|timeout| clock::now().checked_add(timeout));
        let _ = self.state.compare_exchange(OPEN, CLOSING, Ordering::AcqRel, Ordering::Acquire);
        let Some(turn) = self.turn_to_close(deadline)? else { return Ok(()) };
        let health = self.context.health();
        if let Err(error) = health.call("closing", || self.end(deadline)) {
            if error.status != Status::Panic {
                return Err(error);
            }
            health.wait_over(deadline)?;
            self.clear_away();
        }
        // Replies that are still queued, or pushed by concurrent calls, answer CLOSED.
        self.context.commands.close();
        if !self.context.hub.close(deadline) {
            return Err(Error::new(
                Status::Busy,
                "a callback has not returned; the engine is still closing, and calls no further one",
            ));
        }
        health.set_undertaker(None);
        self.state.store(CLOSED, Ordering::Release);
        // Wake the threads and tasks that wait for an event, because none will come. No lock is held: an executor may
        // run a task here, and the task may also close the engine.
        drop(turn);
        self.context.hub.rouse();
        Ok(())
    }

    /// Waits while another call closes. None: the engine is closed. BUSY after the deadline.
    fn turn_to_close(&self, deadline: Option<Instant>) -> Result<Option<MutexGuard<'_, ()>>> {
        let is_closed = || self.state.load(Ordering::Acquire) == CLOSED;
        loop {
            if is_closed() {
                return Ok(None);
            }
            if let Some(turn) = self.closing.try_lock() {
                return Ok((!is_closed()).then_some(turn));
            }
            if deadline.is_some_and(|deadline| clock::now() >= deadline) {
                return Err(Error::new(Status::Busy, "another call is closing the engine"));
            }
            pause::sleep(PAUSE);
        }
    }

    /// Drops what the threads of a broken engine left. The threads have ended.
    fn clear_away(&self) {
        let control = self.control.lock().take();
        control.into_iter().for_each(|thread| drop(thread.join()));
        let _ = catch_unwind(AssertUnwindSafe(|| self.workers.stop()));
        // State that a panic left half written may panic again; the other threads are stopped nevertheless.
        for service in self.services.iter().rev() {
            let _ = catch_unwind(AssertUnwindSafe(|| service.stop()));
        }
        let _ = catch_unwind(AssertUnwindSafe(|| self.drivers.stop()));
        let _ = catch_unwind(AssertUnwindSafe(|| self.files.close_all()));
    }

    /// Ends everything in good order.
    fn end(&self, deadline: Option<Instant>) -> Result<()> {
        // Refuses a submit to the engine itself that began before the close.
        self.context.own.get().inspect(|own| own.set_lost(Status::Closed));
        self.finish_transfers(deadline)?;
        self.wait_own_quiet(deadline)?;
        self.context.commands.push(Command::Stop);
        // The control loop ends first, because it starts threads and hands lanes to the workers.
        let mut held = self.control.lock();
        if !held.as_ref().is_none_or(|control| thread::ends(control, deadline)) {
            return Err(Error::new(
                Status::Busy,
                "sessions have not ended, or a process of this host is still copying from or to registered memory; \
                 the engine is still closing",
            ));
        }
        let control = held.take();
        drop(held);
        control.into_iter().for_each(|thread| drop(thread.join()));
        self.services.iter().rev().for_each(|service| service.stop());
        self.drivers.stop();
        self.files.close_all();
        self.workers.stop();
        Ok(())
    }

    /// Waits until no thread and no device copies between the engine's own regions. No session's end waits for them.
    fn wait_own_quiet(&self, deadline: Option<Instant>) -> Result<()> {
        let Some(own) = self.context.own.get() else { return Ok(()) };
        while own.active() > 0 || !self.own.stage.is_quiet(own.handle) {
            self.context.health().check()?;
            if deadline.is_some_and(|deadline| clock::now() >= deadline) {
                let text =
                    "a copy between the engine's own regions has not ended; the engine is still closing";
                return Err(Error::new(Status::Busy, text));
            }
            pause::sleep(PAUSE);
        }
        Ok(())
    }

    /// Strikes every transfer and waits until all are final. New transfers are refused already.
    fn finish_transfers(&self, deadline: Option<Instant>) -> Result<()> {
        let (transfers, health) = (&self.context.transfers, self.context.health());
        loop {
            transfers.each(|transfer| {
                if let Ok(peer) = self.context.peer(transfer.spec.peer) {
                    peer.strike(&transfer, Strike { status: Status::Closed, os_error: 0 });
                }
            });
            let (mut were_open, mut all_end) = (false, true);
            transfers.each(|transfer| {
                if all_end && !transfer.is_final() {
                    let ends = || transfer.is_final() || health.is_broken();
                    (were_open, all_end) = (true, transfer.waiter.wait_until(ends, deadline));
                }
            });
            if !all_end {
                return Err(Error::new(
                    Status::Busy,
                    "transfers are still draining; the engine is still closing",
                ));
            }
            // Repeated, because a submit that began before the close may add a transfer behind the strikes.
            if !were_open {
                return Ok(());
            }
            health.check()?;
        }
    }
}

impl Inner {
    /// Gives the engine to a new thread, which may wait for the close. If no thread starts, the engine is leaked and
    /// continues to run.
    fn close_elsewhere(&mut self) {
        let Ok(guard) = ForkGuard::new() else { return };
        let rest = Inner {
            context: self.context.clone(),
            guard,
            address: String::new(),
            workers: self.workers.clone(),
            services: self.services.clone(),
            rdma: self.rdma.clone(),
            drivers: self.drivers.clone(),
            own: self.own.clone(),
            files: self.files.clone(),
            control: Mutex::new(self.control.get_mut().take()),
            state: AtomicU32::new(self.state.load(Ordering::Acquire)),
            closing: Mutex::new(()),
        };
        let rest = Arc::new(Mutex::new(Some(rest)));
        let left = rest.clone();
        if thread::spawn_outside("ferry-closing", move || drop(left.lock().take())).is_err() {
            std::mem::forget(rest.lock().take());
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let must_not_wait = self.context.hub.in_callback() || notify::is_waking();
        if must_not_wait && !self.guard.is_child() && self.check_state_below(CLOSED).is_ok() {
            return self.close_elsewhere();
        }
        // A forked child must not end the threads, sessions and locks of its parent: the drop would wait for threads
        // that do not exist in the child. A broken engine must not free memory while something may still move. In both
        // cases the memory is leaked.
        let left_alone =
            self.guard.is_child() || (self.close(None).is_err() && self.context.health().is_broken());
        if left_alone {
            std::mem::forget(self.context.clone());
            std::mem::forget(self.workers.clone());
            std::mem::forget(self.services.clone());
            std::mem::forget(self.rdma.clone());
            std::mem::forget(self.drivers.clone());
            std::mem::forget(self.control.get_mut().take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::{Event, WHAT_NOTIFICATIONS};
    use crate::{Config, Deadline, Engine};

    const BOUND: Duration = Duration::from_secs(20);

    fn engine() -> Engine {
        let mut config = Config::default();
        config.set("transports", "tcp").unwrap();
        Engine::open(config).unwrap()
    }

    /// A callback has the last handle of its engine.
    #[test]
    fn an_engine_that_is_dropped_in_its_callback_closes() {
        let (a, b) = (engine(), engine());
        let peer = b.connect(a.address(), Some(BOUND)).unwrap();
        let queue = a.queue(WHAT_NOTIFICATIONS, 8).unwrap();
        let last = std::sync::Mutex::new(Some(a.clone()));
        let callback = move |_: &Event| drop(last.lock().unwrap().take());
        a.hub().unwrap().set_callback(queue.handle(), Some(Arc::new(callback))).unwrap();
        drop(a);
        // The engine may end before it acknowledges this.
        let _ = b.notify(peer, b"the end", Deadline::Default);
        let since = Instant::now();
        while !b.is_peer_over(peer) {
            assert!(since.elapsed() < BOUND, "the engine goes on");
            pause::sleep(PAUSE);
        }
    }

    /// After the timeout only the callback of the engine is left, and the next close ends when the callback does.
    #[test]
    fn a_close_beside_a_callback_keeps_its_timeout() {
        let (a, b) = (engine(), engine());
        let queue = a.queue(WHAT_NOTIFICATIONS, 8).unwrap();
        let (inside, outside) = (Arc::new(std::sync::Barrier::new(2)), Arc::new(std::sync::Barrier::new(2)));
        let (enter, leave) = (inside.clone(), outside.clone());
        let callback = move |_: &Event| {
            enter.wait();
            leave.wait();
        };
        a.hub().unwrap().set_callback(queue.handle(), Some(Arc::new(callback))).unwrap();
        let peer = b.connect(a.address(), Some(BOUND)).unwrap();
        b.notify(peer, b"once", Deadline::Default).unwrap();
        inside.wait();
        for timeout in [Duration::from_millis(50), Duration::ZERO] {
            let since = Instant::now();
            let error = a.close(Some(timeout)).unwrap_err();
            assert!(error.status == Status::Busy && error.message.contains("callback"), "{error}");
            assert!(since.elapsed() >= timeout && since.elapsed() < BOUND / 2);
        }
        outside.wait();
        a.close(Some(BOUND)).unwrap();
    }

    #[test]
    fn a_close_beside_another_keeps_its_timeout() {
        let engine = engine();
        let turn = engine.inner.closing.lock();
        for timeout in [Duration::ZERO, Duration::from_millis(5)] {
            assert_eq!(engine.close(Some(timeout)).unwrap_err().status, Status::Busy);
        }
        drop(turn);
        engine.close(None).unwrap();
    }
}
