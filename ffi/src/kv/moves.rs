//! `ferry_kv_moves`: the bytes to move for some tokens of a sequence, by strides. A program moves them by itself, or
//! hands them to ferry_transfer_submit_blocks.

use super::arrays::read_array;
use super::convert::required;
use super::layout::ferry_kv_layout;
use super::plan::ferry_kv_plan;
use crate::error::ferry_error;
use crate::guard::{call, quietly};
use crate::handles::check_reserved;
use crate::pointers::{reference, slice, Out};
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use engine::status::Result;
use engine::Error;
use ferry_kv::layout::limits::GROUPS_MAX;
use ferry_kv::plan::{BlockList, GroupBlocks, Strided};
use std::mem::size_of;

/// The blocks of one sequence in one group of the target, on both sides. Each list holds the ids of blocks that store
/// consecutive tokens of the rank. In a state group, the two lists pair their blocks one to one.
/// FERRY_KV_BLOCK_PAIRS_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_block_pairs {
    /// sizeof(ferry_kv_block_pairs).
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Ids of the source's blocks, in the source's group that has the same layers.
    pub source_blocks: *const u32,
    /// Length of source_blocks.
    pub source_count: u64,
    /// Position of the first block's first token among the tokens that the source's rank holds: a multiple of its
    /// block_tokens. Ignored for a state.
    pub source_first_token: u64,
    /// Ids of the target's blocks; none twice.
    pub target_blocks: *const u32,
    /// Length of target_blocks.
    pub target_count: u64,
    /// The same position among the tokens of the target's rank.
    pub target_first_token: u64,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_block_pairs {
    const SIZE_MIN: usize = 56;
}

/// Which part of a sequence to move. FERRY_KV_PART_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_part {
    /// sizeof(ferry_kv_part).
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// First token of the sequence. In a window group, only the last tokens before end_token are moved. In a state
    /// group, all listed blocks are moved, whatever the tokens; pass empty lists to move none.
    pub first_token: u64,
    /// One past the last token; not below first_token.
    pub end_token: u64,
    /// First layer, as an index into the target's layers.
    pub first_layer: u32,
    /// One past the last layer; not below first_layer. UINT32_MAX means all layers from first_layer on.
    pub end_layer: u32,
    /// Array with one element for each group of the target. The elements lie struct_size apart.
    pub blocks: *const ferry_kv_block_pairs,
    /// Length of blocks.
    pub group_count: u64,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_part {
    const SIZE_MIN: usize = 48;
}

/// Bytes of one layer, by strides. For each i below pair_count, and each step of four nested loops, `bytes` contiguous
/// bytes go
///
///     from source + source_blocks[i] * source_stride + a * source_steps[0] + b * source_steps[1]
///                 + c * source_steps[2] + d * source_steps[3]
///     to   target + target_blocks[i] * target_stride + a * target_steps[0] + b * target_steps[1]
///                 + c * target_steps[2] + d * target_steps[3]
///
/// with a below counts[0], b below counts[1], c below counts[2] and d below counts[3]. Loops that are not needed have
/// the count 1. The caller sets struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_move {
    /// In: sizeof(ferry_kv_move). Out: how many bytes were written.
    pub struct_size: u32,
    /// Index into the target's layers.
    pub layer: u32,
    /// Where the first bytes of the source's block 0 would lie, in the process of the source's rank.
    pub source: u64,
    /// Where the first bytes of the target's block 0 would lie, in the process of the target's rank.
    pub target: u64,
    /// From one block of the source to the next.
    pub source_stride: u64,
    /// From one block of the target to the next.
    pub target_stride: u64,
    /// Contiguous bytes of each step.
    pub bytes: u64,
    /// How often each of the loops runs, the outermost first; at least 1.
    pub counts: [u64; 4],
    /// From one step of a loop to the next, at the source.
    pub source_steps: [u64; 4],
    /// From one step of a loop to the next, at the target.
    pub target_steps: [u64; 4],
    /// Length of the two lists.
    pub pair_count: u64,
    /// Ids of the source's blocks. The list belongs to the ferry_kv_moves.
    pub source_blocks: *const u32,
    /// Ids of the target's blocks, paired with source_blocks. The list belongs to the ferry_kv_moves.
    pub target_blocks: *const u32,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_move {
    const SIZE_MIN: usize = 168;
}

/// The bytes that one rank of the source sends to one rank of the target. It never changes; any number of threads may
/// use it.
pub struct ferry_kv_moves {
    strided: Vec<Strided>,
    /// For each of `strided`, how many moves there are up to its end: it has one for each of its layers.
    ends: Vec<usize>,
}

/// Finds the bytes that the rank of `source` sends to the rank of `target` for a part of a sequence. There are no
/// moves if the two ranks exchange nothing. Each layout describes its rank and that rank's memory, and may be freed
/// before the moves. This call moves nothing. Free the moves with ferry_kv_moves_free.
///
/// FERRY_ERR_INVALID: the layouts do not belong to the plan, a list lacks a token of the part that its rank holds, a
/// block id is beyond a layer's blocks, or the target's list names a block twice. The message names the list.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_plan_lower(
    plan: *const ferry_kv_plan,
    source: *const ferry_kv_layout,
    target: *const ferry_kv_layout,
    part: *const ferry_kv_part,
    out_moves: *mut *mut ferry_kv_moves,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let plan = &reference(plan, "plan")?.plan;
            let source = &reference(source, "source")?.layout;
            let target = &reference(target, "target")?.layout;
            let part = required(versioned::read(part, "part")?, "part")?;
            let out = Out::new(out_moves, "out_moves")?;
            part.check()?;
            let blocks = read_array(part.blocks, part.group_count, GROUPS_MAX, "part.blocks")?;
            let lists: Result<Vec<GroupBlocks>> =
                blocks.iter().enumerate().map(|(index, blocks)| blocks.lists(index)).collect();
            let exchange = plan.exchange(source.shard.rank(), target.shard.rank())?;
            let tokens = part.first_token..part.end_token;
            let strided =
                exchange.lower(source, target, &lists?, tokens, part.first_layer..part.end_layer)?;
            out.set(Box::into_raw(Box::new(ferry_kv_moves::new(strided))));
            Ok(())
        })
    }
}

/// Frees moves. NULL does nothing.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_moves_free(moves: *mut ferry_kv_moves) {
    quietly(|| {
        if !moves.is_null() {
            // SAFETY: from `ferry_kv_plan_lower`, and the caller gives it up.
            drop(unsafe { Box::from_raw(moves) });
        }
    });
}

/// Returns the number of moves.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_moves_count(
    moves: *const ferry_kv_moves,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let moves = reference(moves, "moves")?;
            Out::new(out_count, "out_count")?.set(moves.count());
            Ok(())
        })
    }
}

/// Returns one move. FERRY_ERR_INVALID: the index is not below ferry_kv_moves_count.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_moves_get(
    moves: *const ferry_kv_moves,
    index: usize,
    out_move: *mut ferry_kv_move,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let moves = reference(moves, "moves")?;
            let out = versioned::Out::new(out_move, "out_move")?;
            let found = moves.get(index);
            out.set(&found.ok_or_else(|| {
                Error::invalid(format!("index is {index}, and there are {} moves", moves.count()))
            })?);
            Ok(())
        })
    }
}

impl ferry_kv_part {
    fn check(&self) -> Result<()> {
        check_reserved(self.reserved, "part.reserved")?;
        for (what, first, end) in [
            ("token", self.first_token, self.end_token),
            ("layer", self.first_layer.into(), self.end_layer.into()),
        ] {
            if end < first {
                return Err(Error::invalid(format!(
                    "part.end_{what} is {end}, below part.first_{what} {first}"
                )));
            }
        }
        Ok(())
    }
}

impl ferry_kv_block_pairs {
    /// # Safety
    /// Each list is NULL or as long as its count says, and is not written to for `'a`.
    unsafe fn lists<'a>(&self, index: usize) -> Result<GroupBlocks<'a>> {
        check_reserved(self.reserved, &format!("part.blocks[{index}].reserved"))?;
        let list = |ids, count: u64, side: &str, first_token| -> Result<BlockList<'a>> {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            // SAFETY: the caller's promise.
            let ids = unsafe { slice(ids, count, &format!("part.blocks[{index}].{side}_blocks")) }?;
            Ok(BlockList { ids, first_token })
        };
        Ok(GroupBlocks {
            source: list(self.source_blocks, self.source_count, "source", self.source_first_token)?,
            target: list(self.target_blocks, self.target_count, "target", self.target_first_token)?,
        })
    }
}

impl ferry_kv_moves {
    fn new(strided: Vec<Strided>) -> ferry_kv_moves {
        let mut end = 0;
        let count_to = |strided: &Strided| {
            end += strided.layers.len();
            end
        };
        let ends = strided.iter().map(count_to).collect();
        ferry_kv_moves { strided, ends }
    }

    fn count(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn get(&self, index: usize) -> Option<ferry_kv_move> {
        let at = self.ends.partition_point(|&end| end <= index);
        let strided = self.strided.get(at)?;
        let start = self.ends.get(at)? - strided.layers.len();
        let bases = strided.layers.get(index - start)?;
        let mut found = ferry_kv_move {
            struct_size: size_of::<ferry_kv_move>() as u32,
            layer: bases.layer,
            source: bases.source,
            target: bases.target,
            source_stride: strided.source_stride,
            target_stride: strided.target_stride,
            bytes: strided.bytes,
            counts: [1; 4],
            source_steps: [0; 4],
            target_steps: [0; 4],
            pair_count: strided.pairs.source.len() as u64,
            source_blocks: strided.pairs.source.as_ptr(),
            target_blocks: strided.pairs.target.as_ptr(),
        };
        // There are four dimensions within a block, and no more loops than that.
        for (at, inner) in strided.inner.iter().enumerate().take(4) {
            found.counts[at] = inner.count;
            found.source_steps[at] = inner.source_stride;
            found.target_steps[at] = inner.target_stride;
        }
        Some(found)
    }
}
