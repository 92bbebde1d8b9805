//! Takes: the consumer's side of handoffs.

use super::cache::ferry_kv_cache;
use super::convert::required;
use super::id::{ferry_kv_id, id};
use super::lists::{ferry_kv_block_list, read_lists, read_peers};
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::{check_reserved, ferry_peer, timeout};
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use engine::status::Result;
use engine::Error;
use ferry_kv::handoff::{HandoffId, Mode, TakeSpec};
use ferry_kv::layout::limits::RANKS_MAX;

/// Pull on the same host, else push.
pub const FERRY_KV_MODE_AUTO: u32 = 0;
/// The consumer READs the producer's memory.
pub const FERRY_KV_MODE_PULL: u32 = 1;
/// The producer WRITEs into the consumer's memory.
pub const FERRY_KV_MODE_PUSH: u32 = 2;

/// Flag of a take: FERRY_KV_EVENT_LAYERS reports layers as they become complete.
pub const FERRY_KV_TAKE_LAYERS: u32 = 1;

/// The options of a take. FERRY_KV_TAKE_OPTIONS_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_take_options {
    /// sizeof(ferry_kv_take_options).
    pub struct_size: u32,
    /// FERRY_KV_MODE_*.
    pub mode: u32,
    /// The peers of all ranks of the producer, in the order of their rank numbers; connect to them before the take.
    pub producers: *const ferry_peer,
    /// Length of producers.
    pub producer_count: u64,
    /// A number that all ranks of one consumer share and no other consumer of the offer uses.
    pub taker: u64,
    /// Array with one element for each group of the layout, which lie struct_size apart.
    pub blocks: *const ferry_kv_block_list,
    /// Length of blocks.
    pub group_count: u64,
    /// Tokens at the beginning that the consumer has already, for example of a cached prefix.
    pub skip_tokens: u64,
    /// Where the tokens end; not below skip_tokens.
    pub tokens: u64,
    /// Nanoseconds from now until which the take must be complete; it fails with FERRY_ERR_TIMEOUT otherwise. 0 and
    /// FERRY_FOREVER: no deadline.
    pub deadline_ns: u64,
    /// FERRY_KV_TAKE_* bits.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_take_options {
    const SIZE_MIN: usize = 80;
}

/// Takes a handoff: ferry moves the tokens into the blocks as they become ready at the producer. The take may begin
/// before its offer exists. Until the take's terminal event, the caller must not free the blocks, nor read or write
/// their tokens from skip_tokens on. The caller may read layers that FERRY_KV_EVENT_LAYERS has reported.
///
/// A take from several ranks of a producer also ends by FERRY_KV_EVENT_PEER_LOST if a rank is lost after it has sent
/// its part and before the other ranks have sent theirs: the lost rank may have taken tokens back since. A rank that
/// closed its cache (ferry_kv_cache_close) before is no longer needed.
///
/// FERRY_ERR_INVALID: the blocks or tokens are wrong, another take that has not ended writes a block that this one
/// would write (blocks of skipped tokens alone are not written), or the id is in use or has ended. FERRY_ERR_STALE
/// and others: ferry_peer_get_info of a producer fails so. FERRY_ERR_LIMIT: 16,384 takes have not ended, or the take
/// has more than 1,000,000 blocks. FERRY_ERR_CLOSED: the cache is closed or closing.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_take(
    cache: *mut ferry_kv_cache,
    id: *const ferry_kv_id,
    options: *const ferry_kv_take_options,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            let id = self::id(id)?;
            let options = required(versioned::read(options, "options")?, "options")?;
            cache.cache.take(options.spec(id)?)
        })
    }
}

/// Asks a take to end. The caller owns the take's blocks after the terminal event: FERRY_KV_EVENT_CANCELLED, or
/// another kind if the take ended for another reason first. FERRY_ERR_INVALID: the id is no take. FERRY_ERR_STALE:
/// the take has ended.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_take_cancel(
    cache: *mut ferry_kv_cache,
    id: *const ferry_kv_id,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || ferry_kv_cache::own(cache)?.cache.take_cancel(self::id(id)?)) }
}

impl ferry_kv_take_options {
    /// # Safety
    /// The pointers are NULL or point to what their documentation says.
    unsafe fn spec(&self, id: HandoffId) -> Result<TakeSpec> {
        check_reserved(self.reserved, "options.reserved")?;
        let mode = mode(self.mode)?;
        check_reserved(self.flags & !FERRY_KV_TAKE_LAYERS, "options.flags without FERRY_KV_TAKE_*")?;
        // SAFETY: the caller's promise.
        let (producers, blocks) = unsafe {
            let most = RANKS_MAX as usize;
            (
                read_peers(self.producers, self.producer_count, most, "options.producers")?,
                read_lists(self.blocks, self.group_count, "options.blocks")?,
            )
        };
        Ok(TakeSpec {
            id,
            producers,
            taker: self.taker,
            blocks,
            skip_tokens: self.skip_tokens,
            tokens: self.tokens,
            mode,
            deadline: timeout(self.deadline_ns).filter(|deadline| !deadline.is_zero()),
            tell_layers: self.flags & FERRY_KV_TAKE_LAYERS != 0,
        })
    }
}

fn mode(number: u32) -> Result<Mode> {
    Ok(match number {
        FERRY_KV_MODE_AUTO => Mode::Auto,
        FERRY_KV_MODE_PULL => Mode::Pull,
        FERRY_KV_MODE_PUSH => Mode::Push,
        _ => {
            return Err(Error::invalid(format!("options.mode is {number}, which is none of FERRY_KV_MODE_*")))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::FERRY_FOREVER;
    use std::ptr;
    use std::time::Duration;

    #[test]
    fn every_field_arrives_where_it_belongs() {
        let producers = [10, 11];
        let options = ferry_kv_take_options {
            struct_size: 80,
            mode: FERRY_KV_MODE_PUSH,
            producers: producers.as_ptr(),
            producer_count: 2,
            taker: 3,
            blocks: ptr::null(),
            group_count: 0,
            skip_tokens: 4,
            tokens: 5,
            deadline_ns: 6,
            flags: FERRY_KV_TAKE_LAYERS,
            reserved: 0,
        };
        let id = HandoffId::from_bytes([1; 16]);
        // SAFETY: all pointers are to what lives here.
        let spec = |options: ferry_kv_take_options| unsafe { options.spec(id) }.unwrap();
        let whole = spec(options);
        assert_eq!((whole.id, whole.mode, whole.taker, whole.tell_layers), (id, Mode::Push, 3, true));
        assert_eq!((whole.skip_tokens, whole.tokens), (4, 5));
        assert_eq!(whole.producers.iter().map(|peer| peer.raw()).collect::<Vec<_>>(), producers);
        assert_eq!(whole.deadline, Some(Duration::from_nanos(6)));
        for deadline_ns in [0, FERRY_FOREVER] {
            let spec = spec(ferry_kv_take_options { deadline_ns, mode: 1, flags: 0, ..options });
            assert_eq!((spec.deadline, spec.mode, spec.tell_layers), (None, Mode::Pull, false));
        }
        assert_eq!(spec(ferry_kv_take_options { mode: 0, ..options }).mode, Mode::Auto);
    }
}
