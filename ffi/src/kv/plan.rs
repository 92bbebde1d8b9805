//! `ferry_kv_plan`: which ranks of two instances exchange which bytes. `moves` takes it for each sequence.

use super::layout::ferry_kv_layout;
use crate::error::ferry_error;
use crate::guard::{call, quietly};
use crate::pointers::{reference, BytesOut, Out, OutList};
use crate::status::ferry_status;
use engine::status::Result;
use engine::Error;
use ferry_kv::plan::Plan;
use std::ffi::c_char;

/// Which ranks of two instances exchange which bytes. Every rank of both instances computes the same plan, without
/// communication. A plan never changes; any number of threads may use it.
pub struct ferry_kv_plan {
    pub(super) plan: Plan,
    source_ranks: u32,
    target_ranks: u32,
}

/// Plans how the instance of `target` gets what the instance of `source` holds. Each layout may be that of any rank of
/// its instance. Free the plan with ferry_kv_plan_free; the layouts may be freed before.
///
/// FERRY_ERR_INVALID: the caches are of different models; the message says what differs. FERRY_ERR_UNSUPPORTED: the
/// target cannot be filled from the source; the message names the layer. FERRY_ERR_LIMIT: the plan takes too many
/// steps, of which each is a rank, layer and head.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_plan_new(
    source: *const ferry_kv_layout,
    target: *const ferry_kv_layout,
    out_plan: *mut *mut ferry_kv_plan,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let source = &reference(source, "source")?.layout;
            let target = &reference(target, "target")?.layout;
            let out = Out::new(out_plan, "out_plan")?;
            let (source_ranks, target_ranks) = (source.shard.ranks(), target.shard.ranks());
            let plan = Plan::between(source, target)?;
            out.set(Box::into_raw(Box::new(ferry_kv_plan { plan, source_ranks, target_ranks })));
            Ok(())
        })
    }
}

/// Frees a plan. NULL does nothing. Moves that were made from it stay.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_plan_free(plan: *mut ferry_kv_plan) {
    quietly(|| {
        if !plan.is_null() {
            // SAFETY: from `ferry_kv_plan_new`, and the caller gives it up.
            drop(unsafe { Box::from_raw(plan) });
        }
    });
}

/// Lists the ranks of the source that send to a rank of the target, in their order. Returns lists as
/// ferry_config_settings does, without element_size. FERRY_ERR_INVALID: the target has no such rank.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_plan_sources(
    plan: *const ferry_kv_plan,
    target_rank: u32,
    out_ranks: *mut u32,
    capacity: usize,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let plan = reference(plan, "plan")?;
            check_rank("target_rank", target_rank, plan.target_ranks)?;
            put(plan.plan.sources_of(target_rank), out_ranks, capacity, out_count)
        })
    }
}

/// Lists the ranks of the target to which a rank of the source sends, in their order; none if it sends nothing. Returns
/// lists as ferry_config_settings does, without element_size. FERRY_ERR_INVALID: the source has no such rank.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_plan_targets(
    plan: *const ferry_kv_plan,
    source_rank: u32,
    out_ranks: *mut u32,
    capacity: usize,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let plan = reference(plan, "plan")?;
            check_rank("source_rank", source_rank, plan.source_ranks)?;
            put(plan.plan.targets_of(source_rank), out_ranks, capacity, out_count)
        })
    }
}

/// Writes a report for people: the shapes of both sides, and how many bytes each rank sends to which rank, in pieces
/// of what size. Programs must not parse it. Returns texts as ferry_config_get does.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_plan_explain(
    plan: *const ferry_kv_plan,
    buffer: *mut c_char,
    capacity: usize,
    out_length: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let plan = reference(plan, "plan")?;
            let out = BytesOut::new(buffer.cast(), capacity, out_length)?;
            out.put_text(&plan.plan.explain())
        })
    }
}

fn check_rank(what: &str, rank: u32, ranks: u32) -> Result<()> {
    if rank < ranks {
        return Ok(());
    }
    Err(Error::invalid(format!("{what} is {rank}, and that side has {ranks} ranks")))
}

/// # Safety
/// The pointers are NULL or may be written to, `out_ranks` for `capacity` numbers.
unsafe fn put(ranks: &[u32], out_ranks: *mut u32, capacity: usize, out_count: *mut usize) -> Result<()> {
    // SAFETY: the caller's promise.
    let list = unsafe { OutList::new(out_ranks, capacity, "out_ranks") }?;
    // SAFETY: as above.
    let count = unsafe { Out::new(out_count, "out_count") }?;
    list.fill(ranks.iter().copied());
    count.set(ranks.len());
    Ok(())
}
