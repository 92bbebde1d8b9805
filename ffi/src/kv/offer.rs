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

/// The lease of an offer that names none.
const LEASE_MS: u32 = 30_000;
/// Peers that an offer may name.
const ONLY_MAX: usize = 65_536;

/// The options of an offer. FERRY_KV_OFFER_OPTIONS_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_offer_options {
    /// sizeof(ferry_kv_offer_options).
    pub struct_size: u32,
    /// Consumers that take the offer, each with all of its ranks, 1 to 64; 0 means 1. The offer ends when that many
    /// have ended.
    pub takers: u32,
    /// Array with one element for each group of the layout, which lie struct_size apart. More blocks may come by
    /// ferry_kv_offer_extend.
    pub blocks: *const ferry_kv_block_list,
    /// Length of blocks.
    pub group_count: u64,
    /// The peers that may take the offer. NULL for every peer.
    pub only: *const ferry_peer,
    /// Length of only; 0 for every peer.
    pub only_count: u64,
    /// Milliseconds from ferry_kv_offer_seal on: the offer ends when not all of its takers are there by then. 0 means
    /// 30,000.
    pub lease_ms: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_offer_options {
    const SIZE_MIN: usize = 48;
}

/// Offers blocks of a sequence. Nothing is ready yet: ferry_kv_offer_ready says what is computed. The caller must not
/// free the blocks before the offer's terminal event, and must not write what it has said to be ready.
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

/// Adds blocks to an offer, as they are allocated. `blocks` has one element for each group of the layout, whose blocks
/// follow those that the group has. Their first_token counts only if the group has no blocks yet and it is above the
/// offer's: the list then begins there.
///
/// FERRY_ERR_INVALID: the blocks are wrong, the offer is sealed, or the id is no offer. FERRY_ERR_STALE: the offer has
/// ended or ends. FERRY_ERR_BUSY: ferry_kv_offer_retract has not succeeded yet; the next two calls
/// return it too.
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

/// Says that the first `tokens` tokens of the sequence are in their blocks, in the layers from `first_layer` to before
/// `end_layer` (UINT32_MAX for all from first_layer on). With context parallelism, too, these are tokens of the whole
/// sequence. Layers become ready in their order, anew for each chunk of a prefill; what is ready may move at once.
///
/// FERRY_ERR_INVALID: a layer is ready up to there already, or comes before the layers below it; the blocks do not
/// reach that far; or the id is no offer. FERRY_ERR_STALE: the offer has ended or ends.
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

/// As ferry_kv_offer_ready, once the program's own work on a device has come to a point: `event_kind` is one of
/// FERRY_START_AFTER_CUDA_EVENT, FERRY_START_AFTER_CUDA_STREAM and FERRY_START_AFTER_ACL_STREAM, and `event` the
/// event or the stream; with FERRY_START_NOW and 0 the call is ferry_kv_offer_ready. The point is taken in the call:
/// the event as it is recorded now, or the work that the stream has been given so far. Afterwards the program may
/// record the event anew, or destroy it. An event that is recorded in a stream that is being captured is not
/// supported.
///
/// The layers of an offer become ready in the order of these calls and those of ferry_kv_offer_ready, which then wait
/// for earlier events too. If the work before an event fails, the offer fails with the device's status. An offer that
/// ends waits for no event any more.
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

/// Says that the offer is whole: the sequence has `tokens` tokens, and no more blocks come. The lease begins. Layers
/// may still become ready.
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

/// Takes back the tokens of an offer from `from_token` on, in all groups, and its seal: the sequence was preempted,
/// say. The blocks that hold no token before `from_token` leave the offer. The state of a group FERRY_KV_GROUP_STATE is
/// that of the last ready token, so its blocks leave with that.
///
/// The call waits until nothing reads these tokens any more, and until all takers have dropped them. After FERRY_OK the
/// blocks that left are the caller's, and a block that stays may be written from `from_token` on. The offer goes on:
/// ferry_kv_offer_extend adds blocks from there, then ferry_kv_offer_ready, and ferry_kv_offer_seal with any number of
/// tokens. A take that has told of complete layers (FERRY_KV_TAKE_LAYERS) with one of these tokens fails, with
/// FERRY_ERR_STALE. A take that has ended keeps what it has.
///
/// FERRY_ERR_BUSY: a taker has not answered within the timeout. Nothing is freed, and the tokens are taken back all the
/// same: call again until it succeeds, with the same token or an earlier one, or abort the offer. A taker that stays
/// silent is given up after ferry_kv_cache_options.silence_ms. Also FERRY_ERR_BUSY inside a callback, unless the
/// timeout is 0. FERRY_ERR_STALE: the offer has ended or ends; its blocks are the caller's with its terminal event.
/// FERRY_ERR_INVALID: the id is no offer, or tokens before `from_token` are being taken back already.
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

/// Frees the blocks of a window, the group `group` of the layout, that have only tokens before `before_token`: they
/// have left the window. The call waits until nothing reads them any more. After FERRY_OK they are the caller's;
/// everything else of the offer stays as it is.
///
/// Takes of the whole sequence do not need them. A take that ends earlier may; it fails with FERRY_ERR_STALE, unless
/// all layers of the group are on their way to it.
///
/// FERRY_ERR_BUSY: such a take has not got them within the timeout. Nothing is freed: call again. The blocks that were
/// asked for are given to no further take. Also FERRY_ERR_BUSY inside a callback, unless the timeout is 0.
/// FERRY_ERR_STALE: the offer has ended or ends. FERRY_ERR_INVALID: the group is no window, or the id is no offer.
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

/// Asks an offer to end. Its blocks are the caller's with its terminal event, FERRY_KV_EVENT_CANCELLED or another that
/// was earlier. FERRY_ERR_INVALID: the id is no offer. FERRY_ERR_STALE: the offer has ended or ends.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_offer_abort(
    cache: *mut ferry_kv_cache,
    id: *const ferry_kv_id,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || ferry_kv_cache::own(cache)?.cache.offer_abort(self::id(id)?)) }
}

/// Ends sealed offers that nobody has taken, those first whose lease ends first, until `blocks` blocks are free;
/// *out_freed gets how many are, more or fewer. Their terminal event is FERRY_KV_EVENT_EXPIRED.
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
