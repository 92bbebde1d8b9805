//! Transfers as futures, for any runtime. The thread that makes the transfer final calls the waker; no thread or timer
//! of a runtime is needed.

use super::transfers::Transfer;
use crate::complete::TransferResult;
use crate::status::Result;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
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
