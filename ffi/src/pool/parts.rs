//! `ferry_pool_parts`: what engines that are sharded differently put and get of a chunk, and the values of their
//! blocks.

use super::key::ferry_pool_key;
use super::results::ferry_pool_result;
use super::values::{ferry_pool_range, ferry_pool_value, read_keys};
use crate::error::ferry_error;
use crate::guard::{call, quietly};
use crate::handles::check_reserved;
use crate::kv::arrange::arrangement;
use crate::kv::layout::ferry_kv_layout;
use crate::kv::lists::{ferry_kv_block_list, read_lists};
use crate::pointers::{reference, slice, Out, OutList};
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use ::ferry_pool::limits::KEYS_OF_CALL_MAX;
use ::ferry_pool::{parts, Cut, KeyEnd, NodeId, Outcome, Parts, Value};
use engine::status::Result;
use engine::{Error, Status};
use ferry_kv::plan::BlockSlice;
use std::mem::size_of;
use std::ptr;

/// How chunks are cut into parts. Engines share what they cut alike: what another engine has cut in another way, an
/// engine does not find unless the part is the same. FERRY_POOL_CUT_INIT sets struct_size; all other fields may be 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_cut {
    /// sizeof(ferry_pool_cut).
    pub struct_size: u32,
    /// Tokens of a chunk, as in ferry_pool_chain_options; 0 means 256.
    pub chunk_tokens: u32,
    /// Into how many parts the heads of a layer are divided: a common multiple of the tensor parallel sizes of the
    /// engines, at most 1,024. A layer of fewer heads is divided into single heads. 0 means 1.
    pub head_parts: u32,
    /// Into how many parts the layers are divided, in their order. No part may have layers of two stages of an engine.
    /// 0 means 1.
    pub layer_parts: u32,
    /// The order of the bytes of a layer in a part, FERRY_KV_PAIR_* or FERRY_KV_BLOCK_*; 0 means
    /// FERRY_KV_BLOCK_PAIR_TOKEN_HEAD. That of most engines makes the fewest pieces.
    pub arrangement: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_pool_cut {
    const SIZE_MIN: usize = 24;
}

/// The parts of a chunk of one model, and what of them one rank of an engine holds. It needs no engine and never
/// changes. Threads may share it, and a forked child may use it.
pub struct ferry_pool_parts {
    parts: Parts,
}

/// Values whose memory is that of blocks. It owns its arrays, and none of the memory that the values name.
pub struct ferry_pool_value_list {
    values: Vec<ferry_pool_value>,
    /// The pieces that the values point to.
    _memory: Vec<Vec<ferry_pool_range>>,
}

/// Makes the parts that a rank with this layout puts and gets. A part has neighbouring heads of neighbouring layers,
/// and is a value with a key of its own, which depends on the chunk's key and on all that decides the bytes of the
/// part: the model and the names, shapes and order of its layers in `layout`, and `cut`. Replicated heads and latent
/// vectors, which several ranks hold alike, are one part. `cut` NULL means the defaults. The layout may be freed before
/// the parts. Free the parts with ferry_pool_parts_free.
///
/// FERRY_ERR_INVALID: the rank would hold a piece of a part; the message says which field of the cut must be larger. Or
/// a field cannot be. FERRY_ERR_UNSUPPORTED: the layout has windows, states or context parallelism. FERRY_ERR_LIMIT: a
/// part would be longer than 2^40 bytes, head_parts is above 1,024, or the plan takes too many steps.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_parts_new(
    layout: *const ferry_kv_layout,
    cut: *const ferry_pool_cut,
    out_parts: *mut *mut ferry_pool_parts,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let layout = &reference(layout, "layout")?.layout;
            let cut = versioned::read(cut, "cut")?.map_or(Ok(Cut::default()), |cut| cut.cut())?;
            let out = Out::new(out_parts, "out_parts")?;
            let parts = Parts::new(layout, &cut)?;
            out.set(Box::into_raw(Box::new(ferry_pool_parts { parts })));
            Ok(())
        })
    }
}

/// Frees parts, which no other call uses any more. NULL does nothing. Lists that were made from them stay.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_parts_free(parts: *mut ferry_pool_parts) {
    quietly(|| {
        if !parts.is_null() {
            // SAFETY: from `ferry_pool_parts_new` and not freed before; the caller gives it up.
            drop(unsafe { Box::from_raw(parts) });
        }
    });
}

/// Makes the keys of all parts of chunks, those of other ranks too: all of the first chunk, then all of the second, and
/// so on. They are for ferry_pool_exists and ferry_pool_remove. Writes `capacity` keys at most, and to *out_count how
/// many there are: equally many for each chunk. Never waits. FERRY_ERR_LIMIT: more than 65,536 keys.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_parts_keys(
    parts: *const ferry_pool_parts,
    chunks: *const ferry_pool_key,
    chunk_count: usize,
    out_keys: *mut ferry_pool_key,
    capacity: usize,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let parts = &reference(parts, "parts")?.parts;
            let chunks = read_keys(chunks, chunk_count, "chunks")?;
            let keys = OutList::new(out_keys, capacity, "out_keys")?;
            let count = Out::new(out_count, "out_count")?;
            keys.fill(parts.keys(&chunks)?.into_iter().map(|key| ferry_pool_key { bytes: key.0 }));
            count.set(chunks.len() * parts.count());
            Ok(())
        })
    }
}

/// Makes the values of the parts that this rank holds, for ferry_pool_put and ferry_pool_get: all of the first chunk,
/// then all of the second, and so on, equally many for each. `chunks` has the keys of consecutive chunks of a sequence,
/// of which the first is chunk `first_chunk`, counted from 0. `blocks` has a list for each group of the layout, whose
/// blocks hold at least the tokens of the chunks. Blocks and chunks need not begin together. Each layer's memory must
/// lie in one registered region. Never waits, and touches none of the memory. Free the list with
/// ferry_pool_value_list_free.
///
/// FERRY_ERR_INVALID: a list of `blocks` lacks a token of the chunks, names a block twice, or names one that a layer
/// does not have. FERRY_ERR_LIMIT: more than 65,536 values, a value in more than 65,536 pieces, or 2^22 pieces in all,
/// before neighbours are joined; the message says what mends it.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_parts_values(
    parts: *const ferry_pool_parts,
    chunks: *const ferry_pool_key,
    chunk_count: usize,
    first_chunk: u64,
    blocks: *const ferry_kv_block_list,
    group_count: u64,
    out_list: *mut *mut ferry_pool_value_list,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let parts = &reference(parts, "parts")?.parts;
            let chunks = read_keys(chunks, chunk_count, "chunks")?;
            let lists = read_lists(blocks, group_count, "blocks")?;
            let out = Out::new(out_list, "out_list")?;
            let lists: Vec<BlockSlice> = lists
                .iter()
                .map(|list| BlockSlice { ids: &list.ids, first_token: list.first_token })
                .collect();
            let values = parts.values(&chunks, first_chunk, &lists)?;
            out.set(Box::into_raw(Box::new(ferry_pool_value_list::new(values))));
            Ok(())
        })
    }
}

/// Returns the array of a list, which belongs to the list; *out_values is NULL if it is empty.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_value_list_get(
    list: *const ferry_pool_value_list,
    out_values: *mut *const ferry_pool_value,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let values = &reference(list, "list")?.values;
            let (out, count) = (Out::new(out_values, "out_values")?, Out::new(out_count, "out_count")?);
            out.set(if values.is_empty() { ptr::null() } else { values.as_ptr() });
            count.set(values.len());
            Ok(())
        })
    }
}

/// Frees a list. NULL does nothing. A call that was made of it has copied it.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_value_list_free(list: *mut ferry_pool_value_list) {
    quietly(|| {
        if !list.is_null() {
            // SAFETY: from `ferry_pool_parts_values` and not freed before; the caller gives it up.
            drop(unsafe { Box::from_raw(list) });
        }
    });
}

/// Makes one result for each chunk of the results of a call whose keys or values came from ferry_pool_parts: a chunk is
/// FERRY_POOL_OUTCOME_OK if all of its parts are, FERRY_POOL_OUTCOME_HERE if all were; otherwise it is what the first
/// of its parts is that was neither, with 0 bytes. `out_results` has room for chunk_count results, and may be
/// `results`.
///
/// FERRY_ERR_INVALID: the results are not equally many for each chunk, or an outcome is no FERRY_POOL_OUTCOME_*.
/// FERRY_ERR_LIMIT: more than 65,536 chunks.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_results_fold(
    results: *const ferry_pool_result,
    count: usize,
    chunk_count: usize,
    out_results: *mut ferry_pool_result,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            check_count(chunk_count)?;
            let ends = slice(results, count, "results")?.iter().map(end).collect::<Result<Vec<KeyEnd>>>()?;
            let out = OutList::new(out_results, chunk_count, "out_results")?;
            out.fill(parts::fold(&ends, chunk_count)?.into_iter().map(ferry_pool_result::from));
            Ok(())
        })
    }
}

impl ferry_pool_cut {
    fn cut(&self) -> Result<Cut> {
        check_reserved(self.reserved, "cut.reserved")?;
        let known = Cut::default();
        let or = |number: u32, default| if number == 0 { default } else { number };
        let arrangement = match self.arrangement {
            0 => known.arrangement,
            number => arrangement(number)?,
        };
        Ok(Cut {
            chunk_tokens: or(self.chunk_tokens, known.chunk_tokens),
            head_parts: or(self.head_parts, known.head_parts),
            layer_parts: or(self.layer_parts, known.layer_parts),
            arrangement,
        })
    }
}

impl ferry_pool_value_list {
    fn new(values: Vec<Value>) -> ferry_pool_value_list {
        let mut memory: Vec<Vec<ferry_pool_range>> = Vec::with_capacity(values.len());
        let c_value = |value: Value| {
            let ranges: Vec<ferry_pool_range> = value
                .memory
                .into_iter()
                .map(|(address, length)| ferry_pool_range { address, length })
                .collect();
            let (start, count) = (ranges.as_ptr(), ranges.len() as u64);
            memory.push(ranges);
            ferry_pool_value {
                struct_size: size_of::<ferry_pool_value>() as u32,
                reserved: 0,
                key: ferry_pool_key { bytes: value.key.0 },
                memory: start,
                memory_count: count,
            }
        };
        let values = values.into_iter().map(c_value).collect();
        ferry_pool_value_list { values, _memory: memory }
    }
}

fn check_count(chunks: usize) -> Result<()> {
    if chunks > KEYS_OF_CALL_MAX {
        let text = format!("chunk_count is {chunks}; at most {KEYS_OF_CALL_MAX}");
        return Err(Error::new(Status::Limit, text));
    }
    Ok(())
}

fn end(result: &ferry_pool_result) -> Result<KeyEnd> {
    let outcome = Outcome::from_number(result.outcome)
        .ok_or_else(|| Error::invalid(format!("results: {} is no FERRY_POOL_OUTCOME_*", result.outcome)))?;
    Ok(KeyEnd { outcome, bytes: result.bytes, node: Some(NodeId(result.node)).filter(|node| node.0 != 0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_cut_arrives_where_it_belongs() {
        let cut = ferry_pool_cut {
            struct_size: 24,
            chunk_tokens: 1,
            head_parts: 2,
            layer_parts: 3,
            arrangement: crate::kv::arrange::FERRY_KV_BLOCK_PAIR_HEAD_TOKEN,
            reserved: 0,
        };
        let read = cut.cut().unwrap();
        assert_eq!((read.chunk_tokens, read.head_parts, read.layer_parts), (1, 2, 3));
        assert_eq!(read.arrangement, ferry_kv::Arrangement::BlockPairHeadToken);
        let empty = ferry_pool_cut { chunk_tokens: 0, head_parts: 0, layer_parts: 0, arrangement: 0, ..cut };
        assert_eq!(empty.cut().unwrap(), Cut::default());
    }
}
