//! `ferry_kv_block_list`: the blocks of a sequence, by group. `offer` and `take` have them.

use super::arrays::read_array;
use crate::handles::{check_reserved, ferry_peer};
use crate::pointers::slice;
use crate::versioned::Versioned;
use engine::status::Result;
use engine::types::PeerId;
use engine::{Error, Status};
use ferry_kv::handoff::limits::BLOCKS_MAX;
use ferry_kv::handoff::BlockList;
use ferry_kv::layout::limits::GROUPS_MAX;

/// The blocks of one group that hold a sequence, in the order of the sequence. Each block holds the rank's next
/// block_tokens tokens. FERRY_KV_BLOCK_LIST_INIT sets struct_size. It is also the list of a group that is not needed
/// or has no blocks yet.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_block_list {
    /// sizeof(ferry_kv_block_list).
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Position of the first block's first token among the tokens that the rank holds, a multiple of the group's
    /// block_tokens: 0, unless earlier tokens have left a window, or a take skips them. ferry_kv_offer_extend reads it
    /// only for a group that has no blocks.
    pub first_token: u64,
    /// Ids of the blocks; none twice.
    pub blocks: *const u32,
    /// Length of blocks. At most 1,000,000 in all groups together.
    pub block_count: u64,
}

// SAFETY: repr(C), begins with struct_size, integers and a raw pointer, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_block_list {
    const SIZE_MIN: usize = 32;
}

/// Reads the lists of all groups. The errors begin with `what`.
///
/// # Safety
/// `lists` is NULL or points to `count` lists, and each list is as long as it says.
pub(crate) unsafe fn read_lists(
    lists: *const ferry_kv_block_list,
    count: u64,
    what: &str,
) -> Result<Vec<BlockList>> {
    // SAFETY: the caller's promise.
    let lists = unsafe { read_array(lists, count, GROUPS_MAX, what) }?;
    let mut all = Vec::new();
    for (index, list) in lists.iter().enumerate() {
        let name = format!("{what}[{index}]");
        check_reserved(list.reserved, &format!("{name}.reserved"))?;
        if list.block_count > BLOCKS_MAX as u64 {
            let text = format!("{name} has {} blocks, above {BLOCKS_MAX}", list.block_count);
            return Err(Error::new(Status::Limit, text));
        }
        // SAFETY: the caller's promise.
        let ids = unsafe { slice(list.blocks, list.block_count as usize, &format!("{name}.blocks")) }?;
        all.push(BlockList { first_token: list.first_token, ids: ids.to_vec() });
    }
    Ok(all)
}

/// Reads a list of peers.
///
/// # Safety
/// `peers` is NULL or points to `count` peers.
pub(super) unsafe fn read_peers(
    peers: *const ferry_peer,
    count: u64,
    most: usize,
    what: &str,
) -> Result<Vec<PeerId>> {
    if count > most as u64 {
        return Err(Error::new(Status::Limit, format!("{what} has {count} entries; at most {most}")));
    }
    // SAFETY: the caller's promise.
    let peers = unsafe { slice(peers, count as usize, what) }?;
    Ok(peers.iter().map(|peer| PeerId::from_raw(*peer)).collect())
}
