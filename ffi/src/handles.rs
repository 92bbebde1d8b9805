//! Handle types, and the small numbers that many calls take: timeouts and operations. The engine checks
//! handles.

use engine::status::Result;
use engine::types::Op;
use engine::Error;
use std::time::Duration;

/// A registered region of this engine or of a peer. 0 is no region.
pub type ferry_region = u64;
/// A peer: a remote engine, whichever side connected. 0 is no peer.
pub type ferry_peer = u64;
/// A transfer, from its submission to its release. 0 is no transfer.
pub type ferry_transfer = u64;
/// A queue of events. 0 is no queue.
pub type ferry_queue = u64;

/// A timeout or deadline that never ends.
pub const FERRY_FOREVER: u64 = u64::MAX;

/// Converts `timeout_ns`: 0 only looks, FERRY_FOREVER waits for ever.
pub(crate) fn timeout(timeout_ns: u64) -> Option<Duration> {
    (timeout_ns != FERRY_FOREVER).then(|| Duration::from_nanos(timeout_ns))
}

pub(crate) fn op(number: u32) -> Result<Op> {
    [Op::Read, Op::Write]
        .into_iter()
        .find(|op| *op as u32 == number)
        .ok_or_else(|| Error::invalid(format!("op is {number}, neither FERRY_OP_READ nor FERRY_OP_WRITE")))
}

/// Returns INVALID and names the field unless the reserved field is 0.
pub(crate) fn check_reserved(value: impl Into<u64>, what: &str) -> Result<()> {
    match value.into() {
        0 => Ok(()),
        value => Err(Error::invalid(format!("{what} is {value}, but must be 0"))),
    }
}
