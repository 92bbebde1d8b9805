//! `ferry_event`: the events of a queue, and the owner of their bytes.
//!
//! The engine's event owns its bytes. A drained event passes them to the caller, and ferry_event_release
//! frees them. A callback borrows them.

use crate::guard::quietly;
use crate::handles::{ferry_peer, ferry_region, ferry_transfer};
use crate::status::{ferry_status, FERRY_OK};
use crate::versioned::Versioned;
use engine::notify::{Event, EventBody};
use engine::Status;
use std::ffi::c_void;
use std::mem::size_of;
use std::ptr;

/// A transfer is final: transfer, user_data and status are set.
pub const FERRY_EVENT_TRANSFER: u32 = 1;
/// The peer has sent bytes: data and data_length are set.
pub const FERRY_EVENT_NOTIFICATION: u32 = 2;
/// A session with the peer is established; either side may have connected. A queue that takes
/// FERRY_QUEUE_PEER_STATES gets the event again when the peer's connection stands again.
pub const FERRY_EVENT_PEER_UP: u32 = 3;
/// The peer is lost, and none of its transfers can land here any more: status and os_error are set. If the
/// reason is known, data has a sentence: the failed operation, the addresses, the system's text for errno.
/// UTF-8, not terminated.
pub const FERRY_EVENT_PEER_LOST: u32 = 4;
/// Bytes of a peer were applied here after their lease had ended, because this process or the peer was
/// suspended in the middle: region, address and length are set. The contents of that memory are undefined. If
/// more bytes of a region are late before the event is drained, one event names the range that spans all of them.
pub const FERRY_EVENT_LATE_APPLY: u32 = 5;
/// A ferry_peer_connect_async has ended: user_data and status are set. If status is FERRY_OK, peer is set.
/// Otherwise os_error is set, and data has the sentence that ferry_peer_connect would have put into its
/// ferry_error. UTF-8, not terminated.
pub const FERRY_EVENT_PEER_CONNECTED: u32 = 6;

/// The connection to the peer is lost: status and os_error are set, and data has a sentence that says why. UTF-8,
/// not terminated. ferry connects again, and what was submitted waits; FERRY_EVENT_PEER_UP follows, or
/// FERRY_EVENT_PEER_LOST. If the state changes again before the event is drained, the newest state is told.
pub const FERRY_EVENT_PEER_DOWN: u32 = 7;

/// One event. Fields that the kind doesn't set are 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_event {
    /// Out: how many bytes were written.
    pub struct_size: u32,
    /// FERRY_EVENT_*; a program should ignore unknown kinds.
    pub kind: u32,
    /// The peer of the event.
    pub peer: ferry_peer,
    /// The transfer, for FERRY_EVENT_TRANSFER.
    pub transfer: ferry_transfer,
    /// The value from ferry_transfer_options or from ferry_peer_connect_async.
    pub user_data: u64,
    /// How the transfer or connect ended, or why the peer is lost or down.
    pub status: ferry_status,
    /// errno of the operating system behind a peer that is lost or down, or a failed connect, or 0.
    pub os_error: i32,
    /// The bytes of a notification, or the sentence of FERRY_EVENT_PEER_LOST, of FERRY_EVENT_PEER_DOWN or of a
    /// failed FERRY_EVENT_PEER_CONNECTED; NULL if empty. The caller owns the data of a drained event until
    /// ferry_event_release. In a callback ferry owns the data, and it is valid until the callback returns.
    pub data: *const c_void,
    /// Length of data in bytes.
    pub data_length: usize,
    /// The region of this engine, for FERRY_EVENT_LATE_APPLY.
    pub region: ferry_region,
    /// Where the late bytes begin.
    pub address: u64,
    /// How many late bytes there may be.
    pub length: u64,
    /// The channel of a notification.
    pub channel: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with struct_size, integers and a raw pointer, no padding (asserted from C).
unsafe impl Versioned for ferry_event {
    const SIZE_MIN: usize = 80;
}

/// The function that ferry calls for each event of a queue, on its callback thread; see ferry_queue_callback.
pub type ferry_callback = Option<unsafe extern "C" fn(context: *mut c_void, event: *const ferry_event)>;

/// Frees the data of a drained event and sets it to NULL. FERRY_EVENT_NOTIFICATION, FERRY_EVENT_PEER_LOST,
/// FERRY_EVENT_PEER_DOWN and a failed FERRY_EVENT_PEER_CONNECTED have data. The call does nothing for other
/// events, for NULL, and for the same struct a second time. Release only one copy of an event. Any
/// thread; also after the queue or engine is gone.
#[no_mangle]
pub unsafe extern "C" fn ferry_event_release(event: *mut ferry_event) {
    quietly(|| {
        // SAFETY: NULL, or an event that ferry filled and the caller owns.
        let Some(event) = (unsafe { event.as_mut() }) else { return };
        let data = std::mem::replace(&mut event.data, ptr::null()).cast_mut().cast::<u8>();
        let length = std::mem::replace(&mut event.data_length, 0);
        if !data.is_null() {
            // SAFETY: `give` took both from a Box<[u8]>, and the NULL above keeps it from coming twice.
            drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(data, length)) });
        }
    });
}

impl ferry_event {
    const EMPTY: ferry_event = ferry_event {
        struct_size: size_of::<ferry_event>() as u32,
        kind: 0,
        peer: 0,
        transfer: 0,
        user_data: 0,
        status: FERRY_OK,
        os_error: 0,
        data: ptr::null(),
        data_length: 0,
        region: 0,
        address: 0,
        length: 0,
        channel: 0,
        reserved: 0,
    };

    /// Makes the event of a callback; `event` keeps its bytes.
    pub fn lend(event: &Event) -> ferry_event {
        let mut out = ferry_event { peer: event.peer.raw(), ..ferry_event::EMPTY };
        match &event.body {
            EventBody::Transfer { transfer, user_data, status } => {
                out.kind = FERRY_EVENT_TRANSFER;
                (out.transfer, out.user_data, out.status) =
                    (transfer.raw(), *user_data, *status as ferry_status);
            }
            EventBody::Notification { channel, bytes } => {
                (out.kind, out.channel) = (FERRY_EVENT_NOTIFICATION, u32::from(*channel));
                out.lend_bytes(bytes);
            }
            EventBody::PeerUp { .. } => out.kind = FERRY_EVENT_PEER_UP,
            EventBody::PeerDown { status, os_error, why } => {
                out.kind = FERRY_EVENT_PEER_DOWN;
                out.lend_loss(*status, *os_error, why);
            }
            EventBody::PeerLost { status, os_error, why } => {
                out.kind = FERRY_EVENT_PEER_LOST;
                out.lend_loss(*status, *os_error, why);
            }
            EventBody::LateApply { region, address, length } => {
                out.kind = FERRY_EVENT_LATE_APPLY;
                (out.region, out.address, out.length) = (region.raw(), *address, *length);
            }
            EventBody::PeerConnect { user_data, status, os_error, why } => {
                (out.kind, out.user_data) = (FERRY_EVENT_PEER_CONNECTED, *user_data);
                out.lend_loss(*status, *os_error, why);
            }
        }
        out
    }

    /// Makes the event of a drain; the caller gets the bytes. The sender's credit returns here, because the
    /// application has the event now.
    pub fn give(mut event: Event) -> ferry_event {
        let mut out = ferry_event::lend(&event);
        let bytes = match &mut event.body {
            EventBody::Notification { bytes, .. } => std::mem::take(bytes),
            EventBody::PeerDown { why, .. }
            | EventBody::PeerLost { why, .. }
            | EventBody::PeerConnect { why, .. } => std::mem::take(why).into_boxed_bytes(),
            _ => return out,
        };
        if !bytes.is_empty() {
            out.data = Box::into_raw(bytes).cast::<c_void>();
        }
        out
    }

    fn lend_loss(&mut self, status: Status, os_error: i32, why: &str) {
        (self.status, self.os_error) = (status as ferry_status, os_error);
        self.lend_bytes(why.as_bytes());
    }

    fn lend_bytes(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            (self.data, self.data_length) = (bytes.as_ptr().cast(), bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::notify::Credit;
    use engine::types::{PeerId, RegionId};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::Arc;

    #[test]
    fn the_sentence_of_a_peer_that_is_down_is_the_callers() {
        let why: Box<str> = "control connection: the peer closed the connection".into();
        let body = EventBody::PeerDown { status: Status::PeerLost, os_error: 104, why: why.clone() };
        let mut event = ferry_event::give(Event::new(PeerId::from_raw(9), body));
        let told = (event.kind, event.peer, event.status, event.os_error);
        assert_eq!(told, (FERRY_EVENT_PEER_DOWN, 9, Status::PeerLost as ferry_status, 104));
        // SAFETY: the bytes that the event owns until its release.
        let bytes = unsafe { std::slice::from_raw_parts(event.data.cast::<u8>(), event.data_length) };
        assert_eq!(bytes, why.as_bytes());
        // SAFETY: an event that ferry filled.
        unsafe { ferry_event_release(&mut event) };
        assert!(event.data.is_null());
    }

    #[test]
    fn a_drained_notification_is_released_once_and_its_credit_goes_back_at_once() {
        let returned = Arc::new(AtomicU32::new(0));
        let count = returned.clone();
        let credit = Credit::new(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        let body = EventBody::Notification { channel: 0, bytes: Box::from(*b"bytes") };
        let mut event = ferry_event::give(Event { peer: PeerId::from_raw(7), body, credit: Some(credit) });
        assert_eq!(returned.load(Ordering::Relaxed), 1);
        assert_eq!((event.kind, event.peer, event.data_length), (FERRY_EVENT_NOTIFICATION, 7, 5));
        // SAFETY: five bytes that this test owns; then an event of ferry's, twice.
        unsafe {
            assert_eq!(std::slice::from_raw_parts(event.data.cast::<u8>(), 5), b"bytes");
            ferry_event_release(&mut event);
            assert!(event.data.is_null());
            ferry_event_release(&mut event);
        }
    }

    #[test]
    fn a_late_apply_says_where() {
        let body = EventBody::LateApply { region: RegionId::from_raw(3), address: 4, length: 5 };
        let event = ferry_event::give(Event::new(PeerId::from_raw(2), body));
        assert_eq!((event.kind, event.peer), (FERRY_EVENT_LATE_APPLY, 2));
        assert_eq!((event.region, event.address, event.length), (3, 4, 5));
    }
}
