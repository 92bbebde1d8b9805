//! `ferry_kv_timeline_entry`: the recorded timeline of a cache, the application's marks in it, and its picture.

use super::arrays::read_array;
use super::cache::ferry_kv_cache;
use super::events::kind_of;
use super::id::{ferry_kv_id, id};
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::ferry_peer;
use crate::pointers::{BytesOut, Out};
use crate::status::ferry_status;
use crate::versioned::{OutArray, Versioned};
use engine::status::Result;
use engine::types::PeerId;
use engine::{Error, Status};
use ferry_kv::handoff::limits::TIMELINE_ENTRIES_MAX;
use ferry_kv::handoff::{End, Entry, Moved, What, MARK_COMPUTE};
use std::ffi::c_char;
use std::mem::size_of;

/// An offer was made.
pub const FERRY_KV_TIMELINE_OFFERED: u32 = 1;
/// A take was made.
pub const FERRY_KV_TIMELINE_TAKEN: u32 = 2;
/// The layers from first_layer to before end_layer are ready up to end_token.
pub const FERRY_KV_TIMELINE_READY: u32 = 3;
/// In a take by pull: the producer told peer, or peer told the consumer, what may be read.
pub const FERRY_KV_TIMELINE_GRANTED: u32 = 4;
/// A transfer of these layers and tokens was posted; transfer is its number.
pub const FERRY_KV_TIMELINE_POSTED: u32 = 5;
/// The transfer of this number is final, with detail as its status. It began when it was posted.
pub const FERRY_KV_TIMELINE_FINAL: u32 = 6;
/// In a take by push: these layers and tokens have arrived.
pub const FERRY_KV_TIMELINE_ARRIVED: u32 = 7;
/// In a take: the layers before end_layer are complete.
pub const FERRY_KV_TIMELINE_LAYERS: u32 = 8;
/// The offer is whole, with end_token tokens.
pub const FERRY_KV_TIMELINE_SEALED: u32 = 9;
/// The terminal event: first_layer is its kind (FERRY_KV_EVENT_*), and detail its status.
pub const FERRY_KV_TIMELINE_ENDED: u32 = 10;
/// A mark by ferry_kv_timeline_mark: first_layer is the layer, and detail the kind.
pub const FERRY_KV_TIMELINE_MARK: u32 = 11;

/// A mark of compute. Other kinds are the application's own.
pub const FERRY_KV_MARK_COMPUTE: u32 = 1;
const _: () = assert!(FERRY_KV_MARK_COMPUTE == MARK_COMPUTE);

const ENDS: [End; 6] = [End::Sent, End::Received, End::Failed, End::Cancelled, End::Expired, End::PeerLost];

/// One step of a handoff, or one of the application's marks. Fields that `what` doesn't set are 0. In an array that the
/// caller fills, each element has its struct_size.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ferry_kv_timeline_entry {
    /// sizeof(ferry_kv_timeline_entry); as an output, how many bytes were written.
    pub struct_size: u32,
    /// FERRY_KV_TIMELINE_*.
    pub what: u32,
    /// Rises by one with each entry of a recording, from 0 on.
    pub number: u64,
    /// On CLOCK_MONOTONIC.
    pub begin_ns: u64,
    /// The same as begin_ns for an entry without a duration.
    pub end_ns: u64,
    /// The first four bytes of the handoff's id, the first one highest, as messages show them.
    pub id: u32,
    /// See the constants: a status, or the kind of a mark.
    pub detail: i32,
    /// Layers of transfers are those of the consumer's layout.
    pub first_layer: u32,
    /// One past the last layer.
    pub end_layer: u32,
    /// First token.
    pub first_token: u64,
    /// One past the last token.
    pub end_token: u64,
    /// Payload bytes of a transfer.
    pub bytes: u64,
    /// The other side of a transfer.
    pub peer: ferry_peer,
    /// The number of a transfer.
    pub transfer: u64,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_timeline_entry {
    const SIZE_MIN: usize = 88;
}

/// Starts to record a timeline of the cache's handoffs, and discards an earlier recording. The recording holds at
/// most `entries_max` entries, 1 to 1,048,576. New entries overwrite the oldest; ferry_kv_stats counts the
/// overwritten entries. A cache records nothing until this call.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_timeline_start(
    cache: *mut ferry_kv_cache,
    entries_max: usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || ferry_kv_cache::own(cache)?.cache.record(entries_max)) }
}

/// Ends the recording and discards it. The call does nothing if there is no recording.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_timeline_stop(
    cache: *mut ferry_kv_cache,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || ferry_kv_cache::own(cache)?.cache.stop_recording()) }
}

/// Adds the application's own work on a layer, with its times on CLOCK_MONOTONIC, in nanoseconds. `kind` is
/// FERRY_KV_MARK_COMPUTE, or a number of the application's. Nothing is recorded while no recording is on; the id need
/// not be that of an offer or a take. FERRY_ERR_INVALID: the work ends before it begins.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_timeline_mark(
    cache: *mut ferry_kv_cache,
    id: *const ferry_kv_id,
    kind: u32,
    layer: u32,
    begin_ns: u64,
    end_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            cache.cache.mark(self::id(id)?, kind, layer, begin_ns..end_ns)
        })
    }
}

/// Returns up to `capacity` entries from the number `first` on, oldest first; *out_count gets the number of returned
/// entries. The entries stay recorded. To read on, pass the number of the last entry + 1. Overwritten entries are
/// missing: the first entry then has a higher number than `first`. Elements are `element_size` bytes apart, normally
/// sizeof(ferry_kv_timeline_entry). A closed cache still answers.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_timeline_read(
    cache: *const ferry_kv_cache,
    first: u64,
    out_entries: *mut ferry_kv_timeline_entry,
    element_size: usize,
    capacity: usize,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            let entries = OutArray::new(out_entries, element_size, capacity, "out_entries")?;
            let count = Out::new(out_count, "out_count")?;
            let found = cache.cache.timeline(first, capacity);
            count.set(entries.fill(found.iter().map(ferry_kv_timeline_entry::of)));
            Ok(())
        })
    }
}

/// Draws entries as a picture, SVG: a lane for each layer, with compute and transfers as bars, and the ends of
/// handoffs as lines. The entries may be of several caches of one host, in any order, and some may be left out, such
/// as those of other handoffs. Needs no cache, and computes only. Returns texts as ferry_config_get does; for the
/// same entries the text is the same.
///
/// FERRY_ERR_LIMIT: more than 1,048,576 entries, or the buffer is too small.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_timeline_svg(
    entries: *const ferry_kv_timeline_entry,
    count: usize,
    buffer: *mut c_char,
    capacity: usize,
    out_length: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let entries = read_array(entries, count as u64, TIMELINE_ENTRIES_MAX, "entries")?;
            let entries: Result<Vec<Entry>> =
                entries.iter().enumerate().map(|(index, entry)| entry.entry(index)).collect();
            let out = BytesOut::new(buffer.cast(), capacity, out_length)?;
            out.put_text(&ferry_kv::timeline::plot(&entries?))
        })
    }
}

impl ferry_kv_timeline_entry {
    fn of(entry: &Entry) -> ferry_kv_timeline_entry {
        let mut out = ferry_kv_timeline_entry {
            struct_size: size_of::<ferry_kv_timeline_entry>() as u32,
            what: 0,
            number: entry.number,
            begin_ns: entry.begin_ns,
            end_ns: entry.end_ns,
            id: entry.id,
            detail: 0,
            first_layer: 0,
            end_layer: 0,
            first_token: 0,
            end_token: 0,
            bytes: 0,
            peer: 0,
            transfer: 0,
        };
        match &entry.what {
            What::Offered => out.what = FERRY_KV_TIMELINE_OFFERED,
            What::Taken => out.what = FERRY_KV_TIMELINE_TAKEN,
            What::Ready { layers, tokens } => {
                (out.what, out.end_token) = (FERRY_KV_TIMELINE_READY, *tokens);
                (out.first_layer, out.end_layer) = (layers.start, layers.end);
            }
            What::Granted { peer } => (out.what, out.peer) = (FERRY_KV_TIMELINE_GRANTED, peer.raw()),
            What::Posted(moved) => out.set(FERRY_KV_TIMELINE_POSTED, moved),
            What::Final(moved, status) => {
                out.set(FERRY_KV_TIMELINE_FINAL, moved);
                out.detail = *status as ferry_status;
            }
            What::Arrived(moved) => out.set(FERRY_KV_TIMELINE_ARRIVED, moved),
            What::Layers(layers) => (out.what, out.end_layer) = (FERRY_KV_TIMELINE_LAYERS, *layers),
            What::Sealed { tokens } => (out.what, out.end_token) = (FERRY_KV_TIMELINE_SEALED, *tokens),
            What::Ended(end, status) => {
                (out.what, out.detail) = (FERRY_KV_TIMELINE_ENDED, *status as ferry_status);
                out.first_layer = kind_of(*end);
            }
            What::Mark { kind, layer } => {
                (out.what, out.detail, out.first_layer) = (FERRY_KV_TIMELINE_MARK, *kind as i32, *layer);
            }
        }
        out
    }

    fn set(&mut self, what: u32, moved: &Moved) {
        let Moved { transfer, peer, layers, tokens, bytes } = moved;
        (self.what, self.transfer, self.peer, self.bytes) = (what, *transfer, peer.raw(), *bytes);
        (self.first_layer, self.end_layer) = (layers.start, layers.end);
        (self.first_token, self.end_token) = (tokens.start, tokens.end);
    }

    fn entry(&self, index: usize) -> Result<Entry> {
        let status = || {
            let known = Status::from_number(self.detail);
            known.ok_or_else(|| Error::invalid(format!("entries[{index}].detail is {}", self.detail)))
        };
        let moved = || Moved {
            transfer: self.transfer,
            peer: PeerId::from_raw(self.peer),
            layers: self.first_layer..self.end_layer,
            tokens: self.first_token..self.end_token,
            bytes: self.bytes,
        };
        let what = match self.what {
            FERRY_KV_TIMELINE_OFFERED => What::Offered,
            FERRY_KV_TIMELINE_TAKEN => What::Taken,
            FERRY_KV_TIMELINE_READY => {
                What::Ready { layers: self.first_layer..self.end_layer, tokens: self.end_token }
            }
            FERRY_KV_TIMELINE_GRANTED => What::Granted { peer: PeerId::from_raw(self.peer) },
            FERRY_KV_TIMELINE_POSTED => What::Posted(moved()),
            FERRY_KV_TIMELINE_FINAL => What::Final(moved(), status()?),
            FERRY_KV_TIMELINE_ARRIVED => What::Arrived(moved()),
            FERRY_KV_TIMELINE_LAYERS => What::Layers(self.end_layer),
            FERRY_KV_TIMELINE_SEALED => What::Sealed { tokens: self.end_token },
            FERRY_KV_TIMELINE_ENDED => {
                let kind = self.first_layer;
                let end = ENDS.into_iter().find(|end| kind_of(*end) == kind);
                let text =
                    || Error::invalid(format!("entries[{index}].first_layer is {kind}, no terminal event"));
                What::Ended(end.ok_or_else(text)?, status()?)
            }
            FERRY_KV_TIMELINE_MARK => What::Mark { kind: self.detail as u32, layer: self.first_layer },
            what => return Err(Error::invalid(format!("entries[{index}].what is {what}"))),
        };
        let Self { number, begin_ns, end_ns, id, .. } = *self;
        Ok(Entry { number, begin_ns, end_ns, id, what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries that are read back equal those recorded, and every field is there once.
    #[test]
    fn entries_go_out_and_come_back() {
        let moved =
            Moved { transfer: 21, peer: PeerId::from_raw(22), layers: 23..24, tokens: 25..26, bytes: 27 };
        let all = [
            What::Offered,
            What::Taken,
            What::Ready { layers: 5..6, tokens: 7 },
            What::Granted { peer: PeerId::from_raw(8) },
            What::Posted(moved.clone()),
            What::Final(moved.clone(), Status::Cancelled),
            What::Arrived(moved),
            What::Layers(9),
            What::Sealed { tokens: 10 },
            What::Ended(End::Expired, Status::Limit),
            What::Mark { kind: 0xffff_fff0, layer: 11 },
        ];
        for (number, what) in all.into_iter().enumerate() {
            let entry = Entry { number: number as u64, begin_ns: 1, end_ns: 2, id: 3, what };
            let out = ferry_kv_timeline_entry::of(&entry);
            assert_eq!((out.what, out.struct_size), (number as u32 + 1, 88));
            assert_eq!((out.begin_ns, out.end_ns, out.id), (1, 2, 3));
            assert_eq!(out.entry(0).unwrap(), entry);
        }
    }

    #[test]
    fn entries_that_cannot_be_are_named() {
        let entry = Entry { number: 0, begin_ns: 0, end_ns: 0, id: 0, what: What::Offered };
        let entry = ferry_kv_timeline_entry::of(&entry);
        let refused = |what, detail, first_layer| {
            let entry = ferry_kv_timeline_entry { what, detail, first_layer, ..entry };
            entry.entry(4).unwrap_err().message
        };
        assert_eq!(refused(0, 0, 0), "entries[4].what is 0");
        assert_eq!(refused(12, 0, 0), "entries[4].what is 12");
        assert_eq!(refused(FERRY_KV_TIMELINE_FINAL, 77, 0), "entries[4].detail is 77");
        let text = "entries[4].first_layer is 1, no terminal event";
        assert_eq!(refused(FERRY_KV_TIMELINE_ENDED, 0, 1), text);
    }
}
