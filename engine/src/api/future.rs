//! Transfers as futures, for any runtime: the waker is called by whichever thread makes the transfer
//! final; there is no thread or timer of a runtime behind it.

use super::transfers::Transfer;
use crate::complete::TransferResult;
use crate::status::Result;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Resolves when the transfer is final: Ok when it is DONE, else the error of `Transfer::wait_done`.
/// Dropping it does not stop the transfer.
///
/// The waker is called under no lock of ferry's, so an executor may run the task where it is woken, and the task
/// may submit. It had better not wait: the thread may be one of ferry's, and what else that serves waits, too.
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
            // Looked at after registering, too: an engine that breaks later wakes.
            if let Err(error) = self.0.engine.attend(core) {
                if !core.is_final() {
                    return Poll::Ready(Err(error));
                }
            }
        }
        // Looked at after registering: a completion in between is seen here, a later one wakes.
        match core.result() {
            Some(result) => Poll::Ready(self.0.engine.result_or_error(core, result)),
            None => Poll::Pending,
        }
    }
}
