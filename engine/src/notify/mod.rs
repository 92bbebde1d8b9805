//! The last step of the data path: how the application learns of events without polling.
//!
//! ```text
//! complete, session ──► hub ──► queue ──► drain (eventfd says when)      pending: the events themselves
//!                                   ├───► wake: threads that sleep until there is an event, and tasks
//!                                   └───► dispatcher ──► callback, and the wakers of tasks
//! complete ──► waiter ──► threads and futures that wait for one transfer, or for any of several
//!                └──────► later: the futures' wakers, when the thread's locks are gone
//! ```
//! Nothing here blocks a worker: a push takes a short lock, never waits for room, and never runs user code. Locks are
//! taken in the order hub, queue, dispatcher. User code, credits and wakers run under no lock.

mod deferred;
mod dispatcher;
mod event;
mod hub;
mod pending;
mod queue;
#[cfg(test)]
mod tests;
mod waiter;
#[cfg(test)]
mod waiter_tests;
mod wake;

pub(crate) use deferred::{is_waking, wake_task, Wakers};
pub use dispatcher::Callback;
#[doc(hidden)]
pub use event::Credit;
pub use event::{Event, EventBody};
pub(crate) use hub::check_channel;
#[doc(hidden)]
pub use hub::Hub;
pub use queue::Queue;
pub(crate) use waiter::{wait_any, Waiter};

use crate::sys::health;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// The kinds of events that a queue takes, as bits of the C ABI's `what`. This bit: the ends of transfers that were
/// submitted with the queue.
pub const WHAT_TRANSFERS: u32 = 1;
/// Notifications of all peers on one channel; only one queue at a time takes those of a channel.
pub const WHAT_NOTIFICATIONS: u32 = 2;
/// Peers that appear or are lost.
pub const WHAT_PEERS: u32 = 4;
/// Connections of known peers that go down or stand again.
pub const WHAT_PEER_STATES: u32 = 8;
const WHAT_ALL: u32 = WHAT_TRANSFERS | WHAT_NOTIFICATIONS | WHAT_PEERS | WHAT_PEER_STATES;

/// The most events for which a queue may have room.
const QUEUE_CAPACITY_MAX: usize = 1 << 20;
/// The most queues of an engine.
const QUEUES_MAX: usize = 4096;

/// Runs user code. A panic in the user code, or in the drop of that panic's payload, ends here and does not break the
/// engine.
fn guard(user_code: impl FnOnce()) {
    if let Err(payload) = health::outside(|| catch_unwind(AssertUnwindSafe(user_code))) {
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(second);
        }
    }
}
