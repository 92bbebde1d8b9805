//! The last step of the data path: how the application learns of what happened without polling.
//!
//! ```text
//! complete, session ──► hub ──► queue ──► drain (eventfd says when)      pending: the events themselves
//!                                   └───► dispatcher ──► callback
//! complete ──► waiter ──► threads and futures that wait for one transfer, or for any of several
//!                └──────► later: the futures' wakers, when the thread's locks are gone
//! ```
//! Nothing here blocks a worker: pushing takes a short lock, never waits for room, and never runs
//! user code. Locks are taken in the order hub, queue, dispatcher; user code, credits and wakers run
//! under none.

mod deferred;
mod dispatcher;
mod event;
mod hub;
mod pending;
mod queue;
#[cfg(test)]
mod tests;
mod waiter;

pub use deferred::{is_waking, Wakers};
pub use dispatcher::Callback;
pub use event::{Credit, Event, EventBody};
pub use hub::Hub;
pub use queue::Queue;
pub use waiter::{wait_any, Signal, Subscription, Waiter};

use crate::sys::health;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// What a queue takes, bits of the C ABI's `what`: events of transfers submitted with this queue.
pub const WHAT_TRANSFERS: u32 = 1;
/// Notifications of all peers; one queue at a time.
pub const WHAT_NOTIFICATIONS: u32 = 2;
/// Peers that come and go.
pub const WHAT_PEERS: u32 = 4;

/// Events a queue may have room for.
const QUEUE_CAPACITY_MAX: usize = 1 << 20;
/// Queues of one engine.
const QUEUES_MAX: usize = 4096;

/// Runs user code. Its panic ends here, and so does one of the panic's own payload: neither is the engine's.
fn guard(user_code: impl FnOnce()) {
    if let Err(payload) = health::outside(|| catch_unwind(AssertUnwindSafe(user_code))) {
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(second);
        }
    }
}
