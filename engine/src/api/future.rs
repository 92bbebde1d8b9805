//! Transfers and events as futures, for any runtime. The thread that makes the transfer final calls the waker, for
//! events the callback thread; no thread or timer of a runtime is needed.

use super::transfers::Transfer;
use super::Engine;
use crate::complete::TransferResult;
use crate::notify::{Event, Queue};
use crate::status::Result;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Resolves when the transfer is final: Ok if the transfer is DONE, otherwise the error of `Transfer::wait_done`.
/// Dropping the future does not stop the transfer.
///
/// The waker is called under no lock of ferry's, so an executor may run the task inside the waker, and the task may
/// submit. The task should not block: the thread may be one of ferry's, and everything that thread serves would wait.
pub struct TransferFuture(Transfer);

impl fmt::Debug for TransferFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TransferFuture").field(&self.0).finish()
    }
}

impl IntoFuture for Transfer {
    type Output = Result<TransferResult>;
    type IntoFuture = TransferFuture;

    fn into_future(self) -> TransferFuture {
        TransferFuture(self)
    }
}

impl Future for TransferFuture {
    type Output = Result<TransferResult>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let core = &self.0.core;
        if core.result().is_none() {
            // In a forked child, the waiter's lock may be taken for ever.
            self.0.engine.inner.check_not_forked()?;
            core.waiter.register(context.waker());
            // Checked after registering: if the engine breaks later, the waker is called.
            if let Err(error) = self.0.engine.attend(core) {
                if !core.is_final() {
                    return Poll::Ready(Err(error));
                }
            }
        }
        // Checked after registering: a completion in between is seen here, and a later completion calls the waker.
        match core.result() {
            Some(result) => Poll::Ready(self.0.engine.result_or_error(core, result)),
            None => Poll::Pending,
        }
    }
}

impl Drop for TransferFuture {
    fn drop(&mut self) {
        if !self.0.engine.is_forked() {
            self.0.core.waiter.forget();
        }
    }
}

/// Resolves to the next event of a queue: see [`Engine::event`].
pub struct EventFuture {
    engine: Engine,
    queue: Arc<Queue>,
    /// The number under which the queue knows the task; 0 before the first poll.
    number: u64,
}

impl fmt::Debug for EventFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventFuture").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Engine {
    /// Returns a future of the queue's next event. Errors as of `wait_event`, without TIMEOUT and BUSY; SYSTEM if the
    /// callback thread, which calls the wakers, cannot be started. No event is lost if the future is dropped.
    ///
    /// LIMIT if 1,024 other tasks wait for events of the queue.
    ///
    /// An executor may run the task inside the waker. On the callback thread calls that wait are BUSY, as in callbacks.
    /// The end of a queue or an engine wakes the task on the thread that ends the queue or the engine.
    pub fn event(&self, queue: &Arc<Queue>) -> EventFuture {
        EventFuture { engine: self.clone(), queue: queue.clone(), number: 0 }
    }
}

impl Future for EventFuture {
    type Output = Result<Event>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.engine.inner.check_not_forked()?;
        if self.number == 0 {
            self.number = self.queue.next_future();
        }
        match self.engine.poll_event(&self.queue, self.number, context.waker()) {
            Some(found) => Poll::Ready(found),
            None => Poll::Pending,
        }
    }
}

impl Drop for EventFuture {
    fn drop(&mut self) {
        if self.number != 0 && !self.engine.is_forked() {
            self.queue.forget(self.number);
        }
    }
}
