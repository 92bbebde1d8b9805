//! Offers: the producer's side of handoffs.

use super::cache::ferry_kv_cache;
use super::convert::required;
use super::id::{ferry_kv_id, id};
use super::lists::{ferry_kv_block_list, read_lists, read_peers};
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::{check_reserved, ferry_peer, timeout};
use crate::options::start;
use crate::pointers::Out;
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use engine::status::Result;
use ferry_kv::handoff::{HandoffId, OfferSpec};
use std::time::Duration;

/// The lease of an offer whose options give none.
const LEASE_MS: u32 = 30_000;
/// Peers that an offer may name.
const ONLY_MAX: usize = 65_536;

/// The options of an offer. FERRY_KV_OFFER_OPTIONS_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_offer_options {
    /// sizeof(ferry_kv_offer_options).
    pub struct_size: u32,
    /// How many consumers take the offer, each with all of its ranks: 1 to 64; 0 means 1. The offer ends when this
    /// many consumers have ended.
    pub takers: u32,
    /// Array with one element for each group of the layout. The elements lie struct_size apart. ferry_kv_offer_extend
    /// can add blocks later.
    pub blocks: *const ferry_kv_block_list,
    /// Length of blocks.
    pub group_count: u64,
    /// The peers that may take the offer. NULL for every peer.
    pub only: *const ferry_peer,
    /// Length of only; 0 for every peer.
    pub only_count: u64,
    /// Length of the lease in milliseconds, counted from ferry_kv_offer_seal. The offer ends if some of its takers
    /// have not arrived when the lease is over. 0 means 30,000.
    pub lease_ms: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_offer_options {
    const SIZE_MIN: usize = 48;
}

/// Offers blocks of a sequence. No token is ready yet: the program calls ferry_kv_offer_ready for tokens that it has
/// computed. Until the offer's terminal event, the caller must not free the blocks, and must not write tokens that it
/// has declared ready.
///
/// FERRY_ERR_INVALID: the blocks are wrong, or the id is in use or has ended. FERRY_ERR_LIMIT: 65,536 offers have not
/// ended, or the offer has more than 1,000,000 blocks. FERRY_ERR_CLOSED: the cache is closed or closing; every call
/// below returns it too.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_offer(
    cache: *mut ferry_kv_cache,
    id: *const ferry_kv_id,
    options: *const ferry_kv_offer_options,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            let id = self::id(id)?;
            let options = required(versioned::read(options, "options")?, "options")?;
            cache.cache.offer(options.spec(id)?)
        })
    }
}

/// Adds blocks to an offer, as they are allocated. `blocks` has one element for each group of the layout; its blocks
/// follow those that the group already has. first_token of an element is read only if the group has no blocks: the list
/// then begins there, or at the earlier list's first_token if that is later.
///
/// FERRY_ERR_INVALID: the blocks are wrong, the offer is sealed, or the id is no offer. FERRY_ERR_STALE: the offer
/// has ended or is ending. FERRY_ERR_BUSY: a ferry_kv_offer_retract of this offer has not succeeded yet.
/// ferry_kv_offer_ready, ferry_kv_offer_ready_after and ferry_kv_offer_seal return FERRY_ERR_BUSY for the same
/// reason.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_offer_extend(
    cache: *mut ferry_kv_cache,
    id: *const ferry_kv_id,
    blocks: *const ferry_kv_block_list,
    group_count: usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            let id = self::id(id)?;
            cache.cache.offer_extend(id, &read_lists(blocks, group_count as u64, "blocks")?)
        })
    }
}

/// Declares that the blocks contain the first `tokens` tokens of the sequence, in the layers from `first_layer` to
/// before `end_layer` (UINT32_MAX for all from first_layer on). `tokens` counts tokens of the whole sequence, with
/// context parallelism too. Layers become ready in their order, again for each chunk of a prefill. ferry may move
/// ready tokens at once.
///
/// FERRY_ERR_INVALID: a layer is already ready up to `tokens`, a layer below first_layer is not ready that far yet,
/// the blocks do not reach that far, the seal has fewer tokens, or the id is no offer. FERRY_ERR_STALE: the offer has
/// ended or is ending.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_offer_ready(
    cache: *mut ferry_kv_cache,
    id: *const ferry_kv_id,
    first_layer: u32,
    end_layer: u32,
    tokens: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            let id = self::id(id)?;
            let end_layer = if end_layer == u32::MAX { cache.layers } else { end_layer };
            cache.cache.offer_ready(id, first_layer..end_layer, tokens)
        })
    }
}

/// Does as ferry_kv_offer_ready, once the program's work on a device has reached a point. `event_kind` is
/// FERRY_START_AFTER_CUDA_EVENT, FERRY_START_AFTER_CUDA_STREAM or FERRY_START_AFTER_ACL_STREAM, and `event` is the
/// event or the stream. With FERRY_START_NOW and 0 the call is ferry_kv_offer_ready. The call fixes the point: the
/// event as it is recorded now, or the work that the stream has been given so far. Afterwards the program may record
/// the event again, or destroy it. An event that was recorded in a stream under capture is not supported.
///
/// The layers of an offer become ready in the order of these calls and the calls of ferry_kv_offer_ready. A call of
/// ferry_kv_offer_ready therefore waits for earlier events too. If the work before an event fails, the offer fails
/// with the device's status. An offer that ends stops waiting for events.
///
/// The call returns the errors of ferry_kv_offer_ready. FERRY_ERR_UNSUPPORTED: FERRY_START_AFTER_ACL_EVENT, because
/// AscendCL cannot wait for an event this way: pass its stream. FERRY_ERR_UNAVAILABLE: there is no such device.
/// FERRY_ERR_LIMIT: 4,096 calls wait for events.
#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn ferry_kv_offer_ready_after(
    cache: *mut ferry_kv_cache,
    id: *const ferry_kv_id,
    first_layer: u32,
    end_layer: u32,
    tokens: u64,
    event_kind: u32,
    event: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            let id = self::id(id)?;
            let layers = first_layer..if end_layer == u32::MAX { cache.layers } else { end_layer };
            match start(event_kind, event, "")? {
                None => cache.cache.offer_ready(id, layers, tokens),
                Some((kind, at)) => cache.cache.offer_ready_after(id, layers, tokens, kind, at),
            }
        })
    }
}

/// Seals the offer: the sequence has `tokens` tokens, and no more blocks follow. The lease begins. Layers may still
/// become ready.
///
/// FERRY_ERR_INVALID: more tokens are ready, the offer is sealed, or the id is no offer. FERRY_ERR_STALE: the offer has
/// ended or ends.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_offer_seal(
    cache: *mut ferry_kv_cache,
    id: *const ferry_kv_id,
    tokens: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || ferry_kv_cache::own(cache)?.cache.offer_seal(self::id(id)?, tokens)) }
}

/// Takes back the tokens of an offer from `from_token` on, in all groups, and removes the seal, for example because
/// the sequence was preempted. Blocks that hold no token before `from_token` leave the offer. The blocks of a
/// FERRY_KV_GROUP_STATE group hold the state after the last ready token, so they leave when that token is taken back.
///
/// The call waits until nothing reads these tokens any more and all takers have dropped them. After FERRY_OK the
/// caller owns the blocks that left, and may write the other blocks from `from_token` on. The offer goes on: call
/// ferry_kv_offer_extend to add blocks from there, then ferry_kv_offer_ready, and ferry_kv_offer_seal with any number
/// of tokens. A take fails with FERRY_ERR_STALE if it has reported complete layers (FERRY_KV_TAKE_LAYERS) that
/// include one of these tokens. A take that has ended keeps its tokens.
///
/// FERRY_ERR_BUSY: a taker has not answered within the timeout. No block is freed, but the tokens stay taken back:
/// call again, with the same or an earlier token, until the call succeeds, or abort the offer. The offer gives up a
/// silent taker after ferry_kv_cache_options.silence_ms. The call also returns FERRY_ERR_BUSY inside a callback,
/// unless the timeout is 0. FERRY_ERR_STALE: the offer has ended or is ending; the caller owns its blocks after its
/// terminal event. FERRY_ERR_INVALID: the id is no offer, or an earlier call is already taking back tokens before
/// `from_token`.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_offer_retract(
    cache: *mut ferry_kv_cache,
    id: *const ferry_kv_id,
    from_token: u64,
    timeout_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::blocking(cache, timeout_ns)?;
            let timeout = timeout(timeout_ns).unwrap_or(Duration::MAX);
            cache.cache.offer_retract(self::id(id)?, from_token, timeout)
        })
    }
}

/// Frees blocks of the window group `group` of the layout whose tokens are all before `before_token`, because these
/// tokens have left the window. The call waits until nothing reads the blocks any more. After FERRY_OK the caller
/// owns the blocks; the rest of the offer stays as it is.
///
/// Takes of the whole sequence do not need these blocks. A take that ends at an earlier token may need them; such a
/// take fails with FERRY_ERR_STALE, unless all layers of the group are on their way to it.
///
/// FERRY_ERR_BUSY: such a take has not received the blocks within the timeout. No block is freed: call again. No
/// further take gets these blocks. The call also returns FERRY_ERR_BUSY inside a callback, unless the timeout is 0.
/// FERRY_ERR_STALE: the offer has ended or is ending. FERRY_ERR_INVALID: the group is no window, or the id is no
/// offer.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_offer_retract_window(
    cache: *mut ferry_kv_cache,
    id: *const ferry_kv_id,
    group: u32,
    before_token: u64,
    timeout_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::blocking(cache, timeout_ns)?;
            let timeout = timeout(timeout_ns).unwrap_or(Duration::MAX);
            cache.cache.offer_retract_window(self::id(id)?, group, before_token, timeout)
        })
    }
}

/// Asks an offer to end. The caller owns the offer's blocks after the terminal event: FERRY_KV_EVENT_CANCELLED, or
/// another kind if the offer ended for another reason first. FERRY_ERR_INVALID: the id is no offer. FERRY_ERR_STALE:
/// the offer has ended or is ending.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_offer_cancel(
    cache: *mut ferry_kv_cache,
    id: *const ferry_kv_id,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || ferry_kv_cache::own(cache)?.cache.offer_cancel(self::id(id)?)) }
}

/// Ends sealed offers that nobody has taken until they free at least `blocks` blocks or no such offer is left. The
/// offer whose lease ends first goes first. *out_freed gets the number of blocks in the ended offers. Their terminal
/// event is FERRY_KV_EVENT_EXPIRED.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_reclaim(
    cache: *mut ferry_kv_cache,
    blocks: usize,
    out_freed: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            let out = Out::new(out_freed, "out_freed")?;
            out.set(cache.cache.reclaim(blocks)?);
            Ok(())
        })
    }
}

impl ferry_kv_offer_options {
    /// # Safety
    /// The pointers are NULL or point to what their documentation says.
    unsafe fn spec(&self, id: HandoffId) -> Result<OfferSpec> {
        check_reserved(self.reserved, "options.reserved")?;
        let or = |value, default| if value == 0 { default } else { value };
        // SAFETY: the caller's promise.
        let (blocks, only) = unsafe {
            (
                read_lists(self.blocks, self.group_count, "options.blocks")?,
                read_peers(self.only, self.only_count, ONLY_MAX, "options.only")?,
            )
        };
        let lease = Duration::from_millis(or(self.lease_ms, LEASE_MS).into());
        Ok(OfferSpec { id, blocks, takers: or(self.takers, 1), only, lease })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::lists::ferry_kv_block_list;

    #[test]
    fn every_field_arrives_where_it_belongs() {
        let (ids, only) = ([7, 8, 9], [10, 11]);
        let list = |first_token, at: usize, block_count| ferry_kv_block_list {
            struct_size: 32,
            reserved: 0,
            first_token,
            blocks: &ids[at],
            block_count,
        };
        let lists = [list(16, 0, 1), list(32, 1, 2)];
        let options = ferry_kv_offer_options {
            struct_size: 48,
            takers: 3,
            blocks: lists.as_ptr(),
            group_count: 2,
            only: only.as_ptr(),
            only_count: 2,
            lease_ms: 4,
            reserved: 0,
        };
        let id = HandoffId::from_bytes([1; 16]);
        // SAFETY: all pointers are to what lives here.
        let (spec, usual) = unsafe {
            let usual = ferry_kv_offer_options { takers: 0, lease_ms: 0, only_count: 0, ..options };
            (options.spec(id).unwrap(), usual.spec(id).unwrap())
        };
        let blocks: Vec<_> = spec.blocks.into_iter().map(|list| (list.first_token, list.ids)).collect();
        assert_eq!(blocks, [(16, vec![7]), (32, vec![8, 9])]);
        assert_eq!((spec.id, spec.takers, spec.lease), (id, 3, Duration::from_millis(4)));
        assert_eq!(spec.only.iter().map(|peer| peer.raw()).collect::<Vec<_>>(), only);
        assert_eq!((usual.takers, usual.lease), (1, Duration::from_secs(30)));
        assert!(usual.only.is_empty());
    }
}
