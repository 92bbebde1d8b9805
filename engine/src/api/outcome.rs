//! Makes the error for the owner of a transfer that is not DONE. Its sentence names the first failed request and the
//! range that the peer refused. `complete` has the result; `waiting` and `future` bring it here.

use super::Engine;
use crate::complete::transfer::{Awaited, Failure};
use crate::complete::{RequestResult, State, Transfer, TransferFlags, TransferResult};
use crate::limits::NOTIFY_CREDITS;
use crate::status::{Error, Result, Status};
use crate::types::{RegionId, Slice};

impl Engine {
    /// Returns Ok if the transfer is DONE. Otherwise returns an error that names the first failed request, the range of
    /// the peer's memory that was refused and, if that may be the reason, why the peer's last lane was lost. `result`
    /// must be this transfer's.
    pub fn result_or_error(&self, core: &Transfer, result: TransferResult) -> Result<TransferResult> {
        if result.state == State::Done {
            return Ok(result);
        }
        let first = core.results().into_iter().find(|request| request.status != Status::Ok);
        let why = first.map_or(result.status, |request| request.status);
        let vendor_error = first.map_or(0, |request| request.vendor_error);
        let code = if vendor_error == 0 { String::new() } else { format!(", code {vendor_error}") };
        let (failed, all) = (result.requests_failed, result.requests_in);
        let mut text = match (first, core.awaited()) {
            (Some(_), _) => format!("{failed} of {all} requests failed, the first with {why}{code}"),
            (None, Some(Awaited::Credit)) => {
                let channel = core.spec.channel;
                format!(
                    "the notification was not sent before the deadline: {NOTIFY_CREDITS} notifications of channel \
                     {channel} wait at the peer; its program takes none (a queue of notifications takes them)"
                )
            }
            (None, _) => format!("the peer did not confirm the notification: {why}"),
        };
        if core.awaited() == Some(Awaited::Turn) {
            text += "; it waited for an earlier ORDERED transfer to the peer, which has not ended";
        }
        // A cancel by request has the errno ECANCELED.
        if why == Status::Cancelled && result.os_error == 0 && core.spec.flags.has(TransferFlags::ORDERED) {
            text += "; an earlier ORDERED transfer to the peer failed";
        }
        if let Some(refusal) = first.and_then(|first| refusal(core, &first)) {
            text += &format!("; the peer: {refusal}");
        }
        let may_be = matches!(why, Status::PeerLost | Status::Timeout | Status::Corrupt);
        let peer = self.inner.context.peer(core.spec.peer).ok().filter(|_| may_be);
        if let Some(loss) = peer.and_then(|peer| peer.last_loss()) {
            text += &format!("; last lost: {}", loss.text);
        }
        let mut error = Error::new(result.status, text).over(result.transport);
        error.os_error = result.os_error;
        error.vendor_error = vendor_error;
        error.request_index = first.map(|request| request.index);
        Err(error)
    }
}

/// Returns which range of the peer's memory was refused, and why; None if the peer refused nothing of the request.
fn refusal(core: &Transfer, first: &RequestResult) -> Option<String> {
    let (Failure { status, os_error, vendor_error, .. }, slice) = core.first_failure(first)?;
    // A vendor code comes from a device library's copy or, with EREMOTEIO, from the answer of the peer's NIC.
    if vendor_error != 0 && os_error != libc::EREMOTEIO {
        return None;
    }
    // Submit has checked the ranges of known regions. INVALID and UNSUPPORTED then mean that device memory, on either
    // side, has changed since.
    let is_compared = !core.spec.flags.has(TransferFlags::UNKNOWN);
    let is_ours = core.spec.regions.iter().any(|region| region.is_device());
    if (is_compared || is_ours) && matches!(status, Status::Invalid | Status::Unsupported) {
        return None;
    }
    why_refused(status, &slice, core.spec.op.name())
}

/// Returns the sentence on a slice for the status that the target answered: the rules of `region::admit`.
fn why_refused(status: Status, slice: &Slice, op: &str) -> Option<String> {
    let Slice { remote, length, region, .. } = *slice;
    let range = format!("remote {remote:#x} + {length}");
    Some(match status {
        Status::NotRegistered => format!("{range} is in no region registered there"),
        Status::Stale if region == RegionId::NONE => {
            format!("{range} is in a region that is being unregistered there")
        }
        Status::Stale => format!("{range} names region {region:#x}, which is no longer registered there"),
        Status::Access if region == RegionId::NONE => {
            format!("{range} is in a region that does not grant {op}")
        }
        Status::Access => format!("{range} is in region {region:#x}, which does not grant {op}"),
        Status::Invalid => format!("{range} is not inside region {region:#x}, which the request names"),
        Status::Unsupported => format!("{range} is memory of a device there, which this path does not reach"),
        _ => return None,
    })
}
