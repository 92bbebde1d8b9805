//! Closes an engine: in good order, or after the teardown of a broken engine.

use super::engine::{Inner, CLOSED, CLOSING, OPEN};
use crate::command::Command;
use crate::complete::transfer::Strike;
use crate::complete::Transfer;
use crate::status::{Error, Result, Status};
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::sys::pause;
use crate::sys::thread::JoinHandle;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Inner {
    pub(super) fn close(&self, timeout: Option<Duration>) -> Result<()> {
        if self.guard.is_child() {
            return Ok(());
        }
        if self.context.hub.in_callback() {
            return Err(Error::new(Status::Busy, "an engine cannot be closed inside one of its callbacks"));
        }
        let deadline = timeout.and_then(|timeout| clock::now().checked_add(timeout));
        let _ = self.state.compare_exchange(OPEN, CLOSING, Ordering::AcqRel, Ordering::Acquire);
        let turn = self.closing.lock();
        if self.state.load(Ordering::Acquire) == CLOSED {
            return Ok(());
        }
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
        self.context.hub.close();
        health.set_undertaker(None);
        self.state.store(CLOSED, Ordering::Release);
        // Who waits for an event learns that there will be none. Under no lock: an executor may run a task here, and
        // the task may close, too.
        drop(turn);
        self.context.hub.rouse();
        Ok(())
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
    }

    /// Ends everything in good order.
    fn end(&self, deadline: Option<Instant>) -> Result<()> {
        self.finish_transfers(deadline)?;
        self.context.commands.push(Command::Stop);
        // The control loop ends first, because it starts threads and hands lanes to the workers.
        let mut held = self.control.lock();
        if !held.as_ref().is_none_or(|control| ends(control, deadline)) {
            return Err(Error::new(
                Status::Busy,
                "a process of this host is still copying from or to registered memory; the engine is still \
                 closing",
            ));
        }
        let control = held.take();
        drop(held);
        control.into_iter().for_each(|thread| drop(thread.join()));
        self.services.iter().rev().for_each(|service| service.stop());
        self.drivers.stop();
        self.workers.stop();
        Ok(())
    }

    /// Strikes every transfer and waits until all are final. New transfers are refused already.
    fn finish_transfers(&self, deadline: Option<Instant>) -> Result<()> {
        loop {
            let all = self.context.transfers.list();
            for transfer in &all {
                if let Ok(peer) = self.context.peers.get(transfer.spec.peer) {
                    peer.strike(transfer, Strike { status: Status::Closed, os_error: 0 });
                }
            }
            // Repeated, because a submit that began before the close may add a transfer after the list was taken.
            let open: Vec<_> = all.into_iter().filter(|transfer| !transfer.is_final()).collect();
            if open.is_empty() {
                return Ok(());
            }
            let health = self.context.health();
            let ends = |transfer: &Arc<Transfer>| {
                transfer.waiter.wait_until(|| transfer.is_final() || health.is_broken(), deadline)
            };
            if !open.iter().all(ends) {
                return Err(Error::new(
                    Status::Busy,
                    "transfers are still draining; the engine is still closing",
                ));
            }
            health.check()?;
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
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

/// True if the thread ends before the deadline. Polls, because the standard library has no join with a timeout, and
/// closing with a timeout is rare and short.
fn ends(thread: &JoinHandle<()>, deadline: Option<Instant>) -> bool {
    let Some(deadline) = deadline else { return true };
    while !thread.is_finished() {
        if clock::now() >= deadline {
            return false;
        }
        pause::sleep(Duration::from_micros(200));
    }
    true
}
