//! `ferry_event`: what queues hand out, and who owns a notification's bytes.
//!
//! The engine's event owns its bytes. A drained event passes them to the caller, who gives them back
//! with ferry_event_release; a callback only borrows them.

use crate::guard::quietly;
use crate::handles::{ferry_peer, ferry_region, ferry_transfer};
use crate::status::{ferry_status, FERRY_OK};
use crate::versioned::Versioned;
use engine::notify::{Event, EventBody};
use std::ffi::c_void;
use std::mem::size_of;
use std::ptr;

/// A transfer is final: transfer, user_data and status are set.
pub const FERRY_EVENT_TRANSFER: u32 = 1;
/// The peer has sent bytes: data and data_length are set.
pub const FERRY_EVENT_NOTIFICATION: u32 = 2;
/// A session with the peer is established, from whichever side.
pub const FERRY_EVENT_PEER_UP: u32 = 3;
/// The peer is lost and nothing of it can land here any more: status is set, and data, if it is known, to a sentence
/// that says why: the operation that failed, the addresses, the system's word for its errno. UTF-8, not terminated.
pub const FERRY_EVENT_PEER_LOST: u32 = 4;
/// Bytes of a peer were applied here after its lease had run out, because this process or its peer stood
/// still in the middle of it: region, address and length are set. What is there is undefined.
pub const FERRY_EVENT_LATE_APPLY: u32 = 5;
/// A ferry_peer_connect_async has ended: user_data and status are set, and peer if it is FERRY_OK.
pub const FERRY_EVENT_PEER_CONNECTED: u32 = 6;

/// One thing that has happened. Fields that its kind doesn't set are 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_event {
    /// How many bytes ferry wrote.
    pub struct_size: u32,
    /// FERRY_EVENT_*; a program should ignore kinds that it doesn't know.
    pub kind: u32,
    /// The peer concerned.
    pub peer: ferry_peer,
    /// Of FERRY_EVENT_TRANSFER.
    pub transfer: ferry_transfer,
    /// From the options of the transfer, or from ferry_peer_connect_async.
    pub user_data: u64,
    /// How it ended, or why the peer is lost.
    pub status: ferry_status,
    /// 0.
    pub reserved: u32,
    /// A notification's bytes, or a sentence of FERRY_EVENT_PEER_LOST; NULL if empty. Of a drained event they are the caller's until
    /// ferry_event_release, of a callback's event ferry's, for the length of the callback.
    pub data: *const c_void,
    /// Bytes at data.
    pub data_length: usize,
    /// Of FERRY_EVENT_LATE_APPLY: the region of this engine.
    pub region: ferry_region,
    /// Where the bytes begin.
    pub address: u64,
    /// How many there may be.
    pub length: u64,
}

// SAFETY: repr(C), begins with struct_size, integers and a raw pointer, no padding (asserted from C).
unsafe impl Versioned for ferry_event {
    const SIZE_MIN: usize = 80;
}

/// Called for each event of a queue, on ferry's callback thread; see ferry_queue_callback.
pub type ferry_callback = Option<unsafe extern "C" fn(context: *mut c_void, event: *const ferry_event)>;

/// Gives back what a drained event owns, and sets its data to NULL. Only notifications and
/// FERRY_EVENT_PEER_LOST own anything; for other events, for NULL, and a second time on the same struct it does nothing. Of copies of an event
/// release one. Any thread; also when the queue or the engine is gone.
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
        reserved: 0,
        data: ptr::null(),
        data_length: 0,
        region: 0,
        address: 0,
        length: 0,
    };

    /// For a callback: the bytes stay the event's.
    pub fn lend(event: &Event) -> ferry_event {
        let mut out = ferry_event { peer: event.peer, ..ferry_event::EMPTY };
        match &event.body {
            EventBody::Transfer { transfer, user_data, status } => {
                out.kind = FERRY_EVENT_TRANSFER;
                (out.transfer, out.user_data, out.status) = (*transfer, *user_data, *status as ferry_status);
            }
            EventBody::Notification { bytes } => {
                out.kind = FERRY_EVENT_NOTIFICATION;
                out.lend_bytes(bytes);
            }
            EventBody::PeerUp => out.kind = FERRY_EVENT_PEER_UP,
            EventBody::PeerLost { status, why } => {
                (out.kind, out.status) = (FERRY_EVENT_PEER_LOST, *status as ferry_status);
                out.lend_bytes(why.as_bytes());
            }
            EventBody::LateApply { region, address, length } => {
                out.kind = FERRY_EVENT_LATE_APPLY;
                (out.region, out.address, out.length) = (*region, *address, *length);
            }
            EventBody::PeerConnect { user_data, status } => {
                out.kind = FERRY_EVENT_PEER_CONNECTED;
                (out.user_data, out.status) = (*user_data, *status as ferry_status);
            }
        }
        out
    }

    /// For a drain: the bytes become the caller's. The sender's credit goes back here, because the
    /// application has the event now.
    pub fn give(mut event: Event) -> ferry_event {
        let mut out = ferry_event::lend(&event);
        let bytes = match &mut event.body {
            EventBody::Notification { bytes } => std::mem::take(bytes),
            EventBody::PeerLost { why, .. } => std::mem::take(why).into_boxed_bytes(),
            _ => return out,
        };
        if !bytes.is_empty() {
            out.data = Box::into_raw(bytes).cast::<c_void>();
        }
        out
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
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::Arc;

    #[test]
    fn a_drained_notification_is_released_once_and_its_credit_goes_back_at_once() {
        let returned = Arc::new(AtomicU32::new(0));
        let count = returned.clone();
        let credit = Credit::new(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        let body = EventBody::Notification { bytes: Box::from(*b"bytes") };
        let mut event = ferry_event::give(Event { peer: 7, body, credit: Some(credit) });
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
        let body = EventBody::LateApply { region: 3, address: 4, length: 5 };
        let event = ferry_event::give(Event::new(2, body));
        assert_eq!((event.kind, event.peer), (FERRY_EVENT_LATE_APPLY, 2));
        assert_eq!((event.region, event.address, event.length), (3, 4, 5));
    }
}
