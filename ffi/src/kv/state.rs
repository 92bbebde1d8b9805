//! `ferry_kv_state`: what a cache knows of an id, without an event.

use super::cache::ferry_kv_cache;
use super::events::kind_of;
use super::id::{ferry_kv_id, id};
use crate::error::ferry_error;
use crate::guard::call;
use crate::pointers::Out;
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use ferry_kv::handoff::HandoffState;
use std::mem::size_of;

/// No offer and no take of this cache has the id, or it ended long ago.
pub const FERRY_KV_STATE_UNKNOWN: u32 = 0;
/// An offer that has not ended: is_sealed and takers are set.
pub const FERRY_KV_STATE_OFFERED: u32 = 1;
/// A take that has not ended: valid_tokens is set.
pub const FERRY_KV_STATE_TAKING: u32 = 2;
/// A call, a failure, a lease or a deadline has stopped the offer or take; the caller does not own its blocks yet.
pub const FERRY_KV_STATE_ENDING: u32 = 3;
/// The offer or take has ended: event is set. The program may not have taken the event from the cache yet. The cache
/// remembers the id for ten minutes, or until 65,536 others have ended.
pub const FERRY_KV_STATE_ENDED: u32 = 4;

/// The state of an id in a cache. Fields that the kind doesn't set are 0. The caller sets struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_state {
    /// In: sizeof(ferry_kv_state). Out: how many bytes were written.
    pub struct_size: u32,
    /// FERRY_KV_STATE_*.
    pub kind: u32,
    /// 1 after ferry_kv_offer_seal.
    pub is_sealed: u32,
    /// How many consumers have begun to take the offer.
    pub takers: u32,
    /// Tokens from the beginning of the sequence that are complete in all layers and groups.
    pub valid_tokens: u64,
    /// The kind of the terminal event.
    pub event: u32,
    /// Always 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_state {
    const SIZE_MIN: usize = 32;
}

/// Returns the state of an id. A closed cache still answers.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_get_state(
    cache: *const ferry_kv_cache,
    id: *const ferry_kv_id,
    out_state: *mut ferry_kv_state,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            let id = self::id(id)?;
            let out = versioned::Out::new(out_state, "out_state")?;
            out.set(&ferry_kv_state::of(cache.cache.state(id)));
            Ok(())
        })
    }
}

/// Returns how many blocks belong to handoffs with silent peers that could not be fenced. Such a peer is a process of
/// this host that was stopped in the middle of a copy. Its handoffs end when the process continues or ends. The call
/// also works on a closed cache.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_unfenced_blocks(
    cache: *const ferry_kv_cache,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            Out::new(out_count, "out_count")?.set(cache.cache.unfenced_blocks());
            Ok(())
        })
    }
}

impl ferry_kv_state {
    fn of(state: HandoffState) -> ferry_kv_state {
        let mut out = ferry_kv_state {
            struct_size: size_of::<ferry_kv_state>() as u32,
            kind: FERRY_KV_STATE_UNKNOWN,
            is_sealed: 0,
            takers: 0,
            valid_tokens: 0,
            event: 0,
            reserved: 0,
        };
        match state {
            HandoffState::Unknown => {}
            HandoffState::Offered { sealed, takers } => {
                (out.kind, out.is_sealed, out.takers) = (FERRY_KV_STATE_OFFERED, sealed.into(), takers);
            }
            HandoffState::Taking { valid_tokens } => {
                (out.kind, out.valid_tokens) = (FERRY_KV_STATE_TAKING, valid_tokens);
            }
            HandoffState::Ending => out.kind = FERRY_KV_STATE_ENDING,
            HandoffState::Ended(end) => (out.kind, out.event) = (FERRY_KV_STATE_ENDED, kind_of(end)),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_kv::handoff::End;

    #[test]
    fn every_field_arrives_where_it_belongs() {
        let told = |state| {
            let out = ferry_kv_state::of(state);
            (out.kind, out.is_sealed, out.takers, out.valid_tokens, out.event)
        };
        assert_eq!(told(HandoffState::Unknown), (0, 0, 0, 0, 0));
        assert_eq!(told(HandoffState::Offered { sealed: false, takers: 3 }), (1, 0, 3, 0, 0));
        assert_eq!(told(HandoffState::Offered { sealed: true, takers: 0 }), (1, 1, 0, 0, 0));
        assert_eq!(told(HandoffState::Taking { valid_tokens: 5 }), (2, 0, 0, 5, 0));
        assert_eq!(told(HandoffState::Ending), (3, 0, 0, 0, 0));
        assert_eq!(told(HandoffState::Ended(End::Expired)), (4, 0, 0, 0, 6));
    }
}
