//! Transfers and events as futures, for any runtime. The thread that makes the transfer final calls the waker, for
//! events the callback thread; no thread or timer of a runtime is needed.

use super::transfers::Transfer;
use super::Engine;
use crate::complete::TransferResult;
use crate::notify::{Event, Queue};
use crate::status::Result;
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
            core.waiter.register_waker(context.waker());
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

/// Resolves to the next event of a queue: see [`Engine::event`].
pub struct EventFuture {
    engine: Engine,
    queue: Arc<Queue>,
}

impl Engine {
    /// Returns a future of the queue's next event. Errors as of `wait_event`, without TIMEOUT and BUSY; SYSTEM if the
    /// callback thread, which calls the wakers, cannot be started. No event is lost if the future is dropped.
    ///
    /// An executor may run the task inside the waker. Calls that wait are BUSY there, as in a callback.
    pub fn event(&self, queue: &Arc<Queue>) -> EventFuture {
        EventFuture { engine: self.clone(), queue: queue.clone() }
    }
}

impl Future for EventFuture {
    type Output = Result<Event>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.engine.poll_event(&self.queue, context.waker()) {
            Some(found) => Poll::Ready(found),
            None => Poll::Pending,
        }
    }
}
