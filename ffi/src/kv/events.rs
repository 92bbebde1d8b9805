//! `ferry_kv_event`: what becomes of offers and takes, and the owner of its bytes.

use super::cache::ferry_kv_cache;
use super::id::ferry_kv_id;
use crate::error::ferry_error;
use crate::guard::{call, quietly};
use crate::handles::{ferry_peer, timeout};
use crate::pointers::Out;
use crate::status::{ferry_status, FERRY_OK, FERRY_PENDING};
use crate::versioned::{self, Versioned};
use engine::status::Result;
use engine::Status;
use ferry_kv::handoff::{End, Event};
use std::ffi::{c_char, c_int};
use std::mem::{size_of, take};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

/// In a take with FERRY_KV_TAKE_LAYERS: the layers before `layers` are complete, and may be read. If more layers are
/// complete before the event is taken, it tells the newest number. If the take fails later, these layers stay as they
/// are: the tokens of the take in them are right, unless its status is FERRY_ERR_STALE or FERRY_ERR_CORRUPT. All other
/// kinds are terminal.
pub const FERRY_KV_EVENT_LAYERS: u32 = 1;
/// Every rank of every taker that takes from this rank has received its whole take, from all ranks of the producer.
/// A take that fails leaves none of its offers SENT. Until a take ends, the blocks of each rank that it takes from stay
/// with the offer.
pub const FERRY_KV_EVENT_SENT: u32 = 2;
/// All tokens of the take are in their blocks.
pub const FERRY_KV_EVENT_RECEIVED: u32 = 3;
/// The offer or take has failed; status and message say why.
pub const FERRY_KV_EVENT_FAILED: u32 = 4;
/// The offer or take was ended by ferry_kv_offer_cancel or ferry_kv_take_cancel (FERRY_ERR_CANCELLED), or because the
/// cache was closed (FERRY_ERR_CLOSED).
pub const FERRY_KV_EVENT_CANCELLED: u32 = 5;
/// The offer's lease ended before all takers arrived (FERRY_ERR_TIMEOUT), or the offer was reclaimed
/// (FERRY_ERR_LIMIT).
pub const FERRY_KV_EVENT_EXPIRED: u32 = 6;
/// A peer is lost, or the other side ended the handoff because it lost one; `peer` says who. None of its transfers can
/// touch the blocks any more.
pub const FERRY_KV_EVENT_PEER_LOST: u32 = 7;

/// A block of a group. This struct never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ferry_kv_block {
    /// Index of the group in the layout.
    pub group: u32,
    /// Id of the block.
    pub block: u32,
}

/// An event of an offer or a take, each of which has exactly one terminal event. Nothing touches its blocks after that.
/// Fields that the kind doesn't set are 0, and rank is UINT32_MAX. The caller sets struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_event {
    /// In: sizeof(ferry_kv_event). Out: how many bytes were written.
    pub struct_size: u32,
    /// FERRY_KV_EVENT_*; a program should ignore unknown kinds.
    pub kind: u32,
    /// The offer or take.
    pub id: ferry_kv_id,
    /// In a terminal event: FERRY_OK, or why the offer or take has ended.
    pub status: ferry_status,
    /// In FERRY_KV_EVENT_LAYERS: how many layers, in the order of the layout, are complete.
    pub layers: u32,
    /// In a take's terminal event: the tokens from the beginning of the sequence that are complete in all layers and
    /// groups.
    pub valid_tokens: u64,
    /// In a take's terminal event: blocks whose contents are undefined. NULL if there are none. The event owns the
    /// list.
    pub untrusted: *const ferry_kv_block,
    /// Length of untrusted.
    pub untrusted_count: u64,
    /// Why, in a sentence for people: UTF-8, terminated. NULL for FERRY_OK. The event owns the text.
    pub message: *const c_char,
    /// Bytes of message, without the terminating zero.
    pub message_length: u64,
    /// In a terminal event: the peer that ended the offer or take, was lost, or failed. 0 if no peer is the cause. A
    /// peer that ended it because of another one names that one in the message.
    pub peer: ferry_peer,
    /// The rank of that peer in its instance; UINT32_MAX if there is none.
    pub rank: u32,
    /// Always 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_event {
    const SIZE_MIN: usize = 72;
}

/// Takes the next event, oldest first. Never waits. Release it with ferry_kv_event_release.
///
/// FERRY_PENDING: there is none, and *out_event is as it was. FERRY_ERR_CLOSED: the cache or its engine is closed, and
/// there are no more. Several threads may take events of one cache; each event goes to one thread.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_poll(
    cache: *mut ferry_kv_cache,
    out_event: *mut ferry_kv_event,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || next(cache, 0, out_event)) }
}

/// Waits until there is an event, then takes it as ferry_kv_poll does.
///
/// FERRY_PENDING: the timeout has passed. FERRY_ERR_BUSY: the call was made inside a callback with a timeout other
/// than 0. FERRY_ERR_CLOSED: as for ferry_kv_poll; closing the cache ends the wait. Signals do not end it.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_wait(
    cache: *mut ferry_kv_cache,
    timeout_ns: u64,
    out_event: *mut ferry_kv_event,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || next(cache, timeout_ns, out_event)) }
}

/// Returns a descriptor for poll, epoll or an event loop. It is readable when ferry_kv_poll has an event, and when the
/// cache or its engine is closed.
///
/// ferry owns the descriptor: don't read, write or close it. So poll, take events until ferry_kv_poll returns
/// FERRY_PENDING, and poll again. The descriptor is valid until the cache is freed.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_fd(
    cache: *mut ferry_kv_cache,
    out_fd: *mut c_int,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            Out::new(out_fd, "out_fd")?.set(cache.cache.as_fd().as_raw_fd());
            Ok(())
        })
    }
}

/// Frees the list and the text of an event and sets them to NULL. The call does nothing for NULL, for an event without
/// them, and for the same struct a second time. Release only one copy of an event. Any thread; also after the
/// cache is gone.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_event_release(event: *mut ferry_kv_event) {
    quietly(|| {
        // SAFETY: NULL, or an event that ferry filled and the caller owns.
        let Some(event) = (unsafe { event.as_mut() }) else { return };
        let untrusted = std::mem::replace(&mut event.untrusted, ptr::null()).cast_mut();
        let message = std::mem::replace(&mut event.message, ptr::null()).cast_mut().cast::<u8>();
        let (count, length) = (take(&mut event.untrusted_count), take(&mut event.message_length));
        if !untrusted.is_null() {
            // SAFETY: `give` took both from a Box, and the NULL above keeps it from coming twice.
            drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(untrusted, count as usize)) });
        }
        if !message.is_null() {
            // SAFETY: as above; the text has a terminating zero.
            drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(message, length as usize + 1)) });
        }
    });
}

/// Takes an event, if one comes in time.
///
/// # Safety
/// `cache` is NULL or a cache that is not freed meanwhile; `out_event` as of `versioned::Out::new`.
unsafe fn next(
    cache: *const ferry_kv_cache,
    timeout_ns: u64,
    out_event: *mut ferry_kv_event,
) -> Result<ferry_status> {
    // SAFETY: the caller's promise.
    let (cache, out) = unsafe {
        (ferry_kv_cache::blocking(cache, timeout_ns)?, versioned::Out::new(out_event, "out_event")?)
    };
    match cache.cache.wait(timeout(timeout_ns)) {
        Ok(event) => {
            out.set(&ferry_kv_event::give(event));
            Ok(FERRY_OK)
        }
        Err(error) if error.status == Status::Timeout => Ok(FERRY_PENDING),
        Err(error) => Err(error),
    }
}

/// The terminal kind of an end.
pub(super) fn kind_of(end: End) -> u32 {
    match end {
        End::Sent => FERRY_KV_EVENT_SENT,
        End::Received => FERRY_KV_EVENT_RECEIVED,
        End::Failed => FERRY_KV_EVENT_FAILED,
        End::Cancelled => FERRY_KV_EVENT_CANCELLED,
        End::Expired => FERRY_KV_EVENT_EXPIRED,
        End::PeerLost => FERRY_KV_EVENT_PEER_LOST,
    }
}

impl ferry_kv_event {
    const EMPTY: ferry_kv_event = ferry_kv_event {
        struct_size: size_of::<ferry_kv_event>() as u32,
        kind: 0,
        id: ferry_kv_id { bytes: [0; 16] },
        status: FERRY_OK,
        layers: 0,
        valid_tokens: 0,
        untrusted: ptr::null(),
        untrusted_count: 0,
        message: ptr::null(),
        message_length: 0,
        peer: 0,
        rank: u32::MAX,
        reserved: 0,
    };

    /// Makes the event of the caller, who gets the list and the text.
    fn give(event: Event) -> ferry_kv_event {
        let of = |id: ferry_kv::handoff::HandoffId| ferry_kv_id { bytes: id.bytes() };
        match event {
            Event::Layers { id, layers } => {
                ferry_kv_event { kind: FERRY_KV_EVENT_LAYERS, id: of(id), layers, ..ferry_kv_event::EMPTY }
            }
            Event::Ended { id, end, status, why, valid_tokens, untrusted, by } => {
                let (untrusted_count, message_length) = (untrusted.len() as u64, why.len() as u64);
                ferry_kv_event {
                    kind: kind_of(end),
                    id: of(id),
                    status: status as ferry_status,
                    valid_tokens,
                    untrusted: give_blocks(untrusted),
                    untrusted_count,
                    message: give_text(why),
                    message_length,
                    peer: by.map_or(0, |by| by.peer.raw()),
                    rank: by.map_or(u32::MAX, |by| by.rank),
                    ..ferry_kv_event::EMPTY
                }
            }
        }
    }
}

fn give_blocks(blocks: Vec<(u32, u32)>) -> *const ferry_kv_block {
    let blocks: Box<[ferry_kv_block]> =
        blocks.into_iter().map(|(group, block)| ferry_kv_block { group, block }).collect();
    if blocks.is_empty() {
        return ptr::null();
    }
    Box::into_raw(blocks).cast()
}

fn give_text(text: String) -> *const c_char {
    if text.is_empty() {
        return ptr::null();
    }
    let mut bytes = text.into_bytes();
    bytes.push(0);
    Box::into_raw(bytes.into_boxed_slice()).cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::types::PeerId;
    use ferry_kv::handoff::{HandoffId, Other};

    #[test]
    fn the_list_and_the_sentence_of_an_event_are_the_callers_until_released() {
        let (id, why) = (HandoffId::from_bytes([7; 16]), "the deadline has passed".to_owned());
        let untrusted = vec![(0, 5), (1, 6)];
        let event = Event::Ended {
            id,
            end: End::Failed,
            status: Status::Timeout,
            why: why.clone(),
            valid_tokens: 9,
            untrusted,
            by: Some(Other { peer: PeerId::from_raw(77), rank: 3 }),
        };
        let mut event = ferry_kv_event::give(event);
        assert_eq!((event.kind, event.id.bytes, event.valid_tokens), (FERRY_KV_EVENT_FAILED, [7; 16], 9));
        assert_eq!((event.peer, event.rank), (77, 3));
        assert_eq!((event.status, event.layers), (Status::Timeout as ferry_status, 0));
        // SAFETY: what the event owns until its release, which may come twice.
        unsafe {
            let blocks = std::slice::from_raw_parts(event.untrusted, event.untrusted_count as usize);
            assert_eq!(blocks.iter().map(|b| (b.group, b.block)).collect::<Vec<_>>(), [(0, 5), (1, 6)]);
            assert_eq!(std::ffi::CStr::from_ptr(event.message).to_str(), Ok(&*why));
            assert_eq!(event.message_length, why.len() as u64);
            ferry_kv_event_release(&mut event);
            assert!(event.untrusted.is_null() && event.message.is_null());
            assert_eq!((event.untrusted_count, event.message_length), (0, 0));
            ferry_kv_event_release(&mut event);
            ferry_kv_event_release(ptr::null_mut());
        }
    }

    #[test]
    fn each_end_has_its_kind() {
        let ends = [End::Sent, End::Received, End::Failed, End::Cancelled, End::Expired, End::PeerLost];
        assert_eq!(ends.map(kind_of), [2, 3, 4, 5, 6, 7]);
    }
}
