//! Notices between engines. A notice has a name and a message, and travels as a ferry notification: the
//! name's length (32 bits, little-endian), the name, the message.

use crate::call::{lock, negative, value};
use crate::engine::Engine;
use crate::pointers::{bytes, null, opened, Out};
use crate::types::NotifyMsg;
use ferry::notify::{Event, EventBody, Queue, WHAT_NOTIFICATIONS};
use ferry::status::Result;
use ferry::{Deadline, Error, Status};
use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::{Arc, Mutex};

const LENGTH: usize = size_of::<u32>();

/// Returns the notice as the bytes of a ferry notification.
///
/// # Safety
/// Both pointers are NULL or terminated strings that the caller keeps for the length of the call.
pub unsafe fn encode(notice: &NotifyMsg) -> Result<Vec<u8>> {
    // SAFETY: the caller's promise.
    let name = unsafe { bytes(notice.name, "notify_msg.name") }?;
    // SAFETY: as above.
    let message = unsafe { bytes(notice.msg, "notify_msg.msg") }?;
    let length = u32::try_from(name.len()).map_err(|_| Error::invalid("notify_msg.name is too long"))?;
    Ok([&length.to_le_bytes(), name, message].concat())
}

/// Returns name and message; None for bytes in another format.
fn decode(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk::<LENGTH>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// Notices that have arrived and that the caller has not taken yet. ferry bounds them: 1,024 notices of each peer wait
/// here, and further notices wait at the peer.
pub struct Inbox {
    queue: Arc<Queue>,
    /// Drained, and not yet returned to the caller.
    found: Mutex<Vec<Event>>,
}

impl Inbox {
    pub fn new(engine: &ferry::Engine) -> Result<Inbox> {
        Ok(Inbox { queue: engine.queue(WHAT_NOTIFICATIONS, 1)?, found: Mutex::default() })
    }

    /// Returns a list that `freeNotifsMsgBuf` frees, and its length; NULL if it is empty.
    fn take(&self) -> Result<(*mut NotifyMsg, c_int)> {
        let mut found = lock(&self.found);
        let room = c_int::MAX as usize - found.len();
        self.queue.drain(&mut found, room);
        let notices: Vec<_> = found.iter().filter_map(notice).collect();
        let list = if notices.is_empty() { ptr::null_mut() } else { allocate_list(&notices)? };
        let count = notices.len() as c_int;
        drop(notices);
        // Each drained notice makes room for one more from its sender.
        found.clear();
        Ok((list, count))
    }
}

fn notice(event: &Event) -> Option<(&[u8], &[u8])> {
    match &event.body {
        EventBody::Notification { bytes, .. } => decode(bytes),
        _ => None,
    }
}

/// Copies all notices, or none and returns NO_MEMORY.
fn allocate_list(notices: &[(&[u8], &[u8])]) -> Result<*mut NotifyMsg> {
    // SAFETY: calloc has no preconditions; zeroed entries are NULL pointers.
    let list: *mut NotifyMsg = unsafe { libc::calloc(notices.len(), size_of::<NotifyMsg>()) }.cast();
    if list.is_null() {
        return Err(Error::new(Status::NoMemory, "no memory for the notices"));
    }
    for (index, (name, message)) in notices.iter().enumerate() {
        // SAFETY: `index` is below the number of allocated entries, and no other code has them.
        let entry = unsafe { &mut *list.add(index) };
        *entry = NotifyMsg { name: allocate_text(name), msg: allocate_text(message) };
        if entry.name.is_null() || entry.msg.is_null() {
            // SAFETY: made above; texts that are not copied yet are NULL.
            unsafe { free_list(list, notices.len()) };
            return Err(Error::new(Status::NoMemory, "no memory for the notices"));
        }
    }
    Ok(list)
}

/// Returns a terminated copy, up to a zero byte if the text has one; NULL without memory.
fn allocate_text(text: &[u8]) -> *mut c_char {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    // SAFETY: malloc has no preconditions.
    let copy: *mut c_char = unsafe { libc::malloc(text.len() + 1) }.cast();
    if !copy.is_null() {
        // SAFETY: the copy has room for the text and one byte more.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), copy.cast(), text.len());
            copy.add(text.len()).write(0);
        }
    }
    copy
}

/// # Safety
/// `list` is NULL, or a list from `allocate_list` with `count` entries that no code uses any more.
unsafe fn free_list(list: *mut NotifyMsg, count: usize) {
    if list.is_null() {
        return;
    }
    for index in 0..count {
        // SAFETY: within the list, as the caller promises; its texts are malloc's or NULL.
        unsafe {
            libc::free((*list.add(index)).name.cast());
            libc::free((*list.add(index)).msg.cast());
        }
    }
    // SAFETY: the list is calloc's, as the caller promises.
    unsafe { libc::free(list.cast()) };
}

#[no_mangle]
pub extern "C" fn getNotifsFromEngine(engine: Option<&Engine>, size: Out<c_int>) -> *mut NotifyMsg {
    value("getNotifsFromEngine", ptr::null_mut(), || {
        let size = size.ok_or_else(|| null("size"))?.write(0);
        let (list, count) = opened(engine)?.inbox.take()?;
        *size = count;
        Ok(list)
    })
}

#[no_mangle]
pub unsafe extern "C" fn freeNotifsMsgBuf(msg: *mut NotifyMsg, size: c_int) -> c_int {
    negative("freeNotifsMsgBuf", || {
        let size = usize::try_from(size).map_err(|_| Error::invalid(format!("size is {size}")))?;
        // SAFETY: `msg` is a result of `getNotifsFromEngine` with its size, as the header demands.
        unsafe { free_list(msg, size) };
        Ok(())
    })
}

/// Sends a notice, and waits until the peer has received it.
#[no_mangle]
pub unsafe extern "C" fn genNotifyInEngine(
    engine: Option<&Engine>,
    target_id: u64,
    notify_msg: NotifyMsg,
) -> c_int {
    negative("genNotifyInEngine", || {
        let engine = opened(engine)?;
        // SAFETY: its strings are NULL or terminated, and the caller keeps them for the length of the call.
        let notice = unsafe { encode(&notify_msg) }?;
        let number = i32::try_from(target_id)
            .map_err(|_| Error::invalid(format!("target_id: there is no segment {target_id}")))?;
        let peer = engine.segments.peer(&engine.ferry, number)?;
        engine.ferry.notify(peer, &notice, Deadline::Default)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_anything_else_is_not() {
        let (name, msg) = (c"layer", c"17");
        let notice = NotifyMsg { name: name.as_ptr().cast_mut(), msg: msg.as_ptr().cast_mut() };
        // SAFETY: literals.
        let data = unsafe { encode(&notice) }.unwrap();
        assert_eq!(data, b"\x05\0\0\0layer17");
        assert_eq!(decode(&data), Some((&b"layer"[..], &b"17"[..])));
        assert_eq!(decode(&data[..9]), Some((&b"layer"[..], &b""[..])));
        for cut in 0..9 {
            assert_eq!(decode(&data[..cut]), None);
        }
        assert_eq!(decode(&[255; 64]), None);
        // SAFETY: NULL is allowed.
        let error = unsafe { encode(&NotifyMsg { msg: ptr::null_mut(), ..notice }) }.unwrap_err();
        assert_eq!(error.message, "notify_msg.msg is NULL");
    }

    #[test]
    fn a_text_ends_at_a_zero_byte() {
        let copy = allocate_text(b"one\0two");
        // SAFETY: a fresh copy, freed once.
        unsafe {
            assert_eq!(bytes(copy, "copy").unwrap(), b"one");
            libc::free(copy.cast());
        }
    }
}
