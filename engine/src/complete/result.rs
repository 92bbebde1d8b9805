//! The result of a transfer: the final state, the fence that allowed it, and the confirmed bytes of each request.
//! Filled in by `transfer`, read by `api`.

use crate::status::Status;
use crate::sys::clock;
use crate::types::{Monotonic, Shown, Transport};

crate::types::display_as_debug!(State, Fence, Notification);

/// Where a transfer stands. Only Done, Failed, Cancelled and TimedOut are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    Pending = 1,
    Draining = 2,
    Done = 3,
    Failed = 4,
    Cancelled = 5,
    TimedOut = 6,
}

impl State {
    pub fn is_final(self) -> bool {
        self as u32 >= State::Done as u32
    }
}

/// The proof that nothing of the transfer can touch memory any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Fence {
    /// The target acknowledged the transfer or its fence, or nothing was ever posted.
    Confirmed = 1,
    /// The peer's process is known to be gone.
    Dead = 2,
    /// The target's lease on the data ran out.
    Lease = 3,
}

/// Whether the peer has the notification of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Notification {
    /// The transfer had none.
    None = 0,
    Delivered = 1,
    NotSent = 2,
    /// Posted, but given up, or the peer lost, before the notification was acknowledged.
    Unknown = 3,
}

/// The progress of a transfer. `bytes_confirmed` never decreases, and equals the result's once the transfer is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub bytes_confirmed: u64,
    /// The bytes of all requests.
    pub bytes_total: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferResult {
    pub state: State,
    pub status: Status,
    pub fence: Fence,
    pub notification: Notification,
    pub user_data: u64,
    pub bytes_confirmed: u64,
    pub requests_failed: u64,
    /// Nanoseconds, CLOCK_MONOTONIC. `started_ns` is 0 when nothing was posted.
    pub submitted_ns: Shown,
    pub started_ns: Shown,
    pub finished_ns: Shown,
    pub requests_in: u64,
    pub slices_out: u64,
    pub transport: Transport,
    /// errno behind the failure, or 0.
    pub os_error: i32,
}

impl TransferResult {
    /// Returns the result of a transfer that this thread copied in one piece since `submitted_ns`.
    pub(crate) fn at_once(user_data: u64, bytes: u64, submitted_ns: Monotonic) -> TransferResult {
        let finished_ns = clock::monotonic_ns();
        let [submitted_ns, finished_ns] = clock::shown(finished_ns, [submitted_ns, finished_ns]);
        TransferResult {
            state: State::Done,
            status: Status::Ok,
            fence: Fence::Confirmed,
            notification: Notification::None,
            user_data,
            bytes_confirmed: bytes,
            requests_failed: 0,
            submitted_ns,
            started_ns: submitted_ns,
            finished_ns,
            requests_in: 1,
            slices_out: 1,
            transport: Transport::Local,
            os_error: 0,
        }
    }
}

/// The result of one request of a final transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestResult {
    pub index: u64,
    pub status: Status,
    pub transport: Transport,
    pub bytes_confirmed: u64,
    pub os_error: i32,
    /// A device library's own code (the status of a work completion), or 0.
    pub vendor_error: i32,
}
