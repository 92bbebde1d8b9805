//! `ferry_transfer_submit_blocks`: paged memory, by block ids instead of addresses.

use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::{ferry_peer, ferry_region, ferry_transfer, op};
use crate::options::{self, ferry_transfer_options};
use crate::pointers::{slice, Out};
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use engine::blocks::{expand, BlockIds, Layer};
use engine::status::Result;
use engine::types::{PeerId, RegionId};
use engine::{Error, Status};
use std::ffi::c_void;

/// Pairs of blocks, the same in every layer of a cache. ferry makes one request for each layer l and pair i:
///
///     local  = local_base[l]  + local_blocks[i]  * local_stride[l]
///     remote = remote_base[l] + remote_blocks[i] * remote_stride[l]
///     length = block_bytes[l]
///
/// with the index l * pair_count + i. ferry merges neighbours: local ids 5 6 7 12 13 with remote ids 2 3 4 8
/// 9 become two slices per layer if the strides equal block_bytes. Zero the struct, set struct_size to
/// sizeof, then set the other fields. ferry borrows nothing after the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_blocks {
    /// sizeof(ferry_blocks).
    pub struct_size: u32,
    /// Size of one block id: 4 for int32_t, 8 for int64_t.
    pub id_bytes: u32,
    /// Length of the next six arrays.
    pub layer_count: usize,
    /// Address of block 0 in this process, for each layer.
    pub local_base: *const u64,
    /// Address of block 0 in the peer's process, for each layer.
    pub remote_base: *const u64,
    /// Bytes from one local block to the next; at least block_bytes.
    pub local_stride: *const u64,
    /// Bytes from one block of the peer to the next; at least block_bytes.
    pub remote_stride: *const u64,
    /// Bytes of one block; not 0.
    pub block_bytes: *const u64,
    /// ferry_request.remote_region for each layer. NULL means 0 for every layer.
    pub remote_region: *const ferry_region,
    /// Length of the two lists of ids.
    pub pair_count: usize,
    /// Ids of the local blocks.
    pub local_blocks: *const c_void,
    /// Ids of the peer's blocks, paired with local_blocks.
    pub remote_blocks: *const c_void,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_blocks {
    const SIZE_MIN: usize = 88;
}

/// Starts a transfer of blocks. Behaves as ferry_transfer_submit otherwise.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_submit_blocks(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    op: u32,
    blocks: *const ferry_blocks,
    options: *const ferry_transfer_options,
    out_transfer: *mut ferry_transfer,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call, and the memory that the blocks
    // name until the transfer is final.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out = Out::new(out_transfer, "out_transfer")?;
            let op = self::op(op)?;
            let blocks = versioned::read(blocks, "blocks")?;
            let blocks = blocks.ok_or_else(|| Error::invalid("blocks is NULL"))?;
            let options = options::read(engine, options)?;
            let pairs = blocks.pair_count;
            let local = ids(blocks.id_bytes, blocks.local_blocks, pairs, "blocks.local_blocks")?;
            let remote = ids(blocks.id_bytes, blocks.remote_blocks, pairs, "blocks.remote_blocks")?;
            let requests = expand(&layers(&blocks)?, local, remote)?;
            out.set(engine.engine.submit_core(PeerId::from_raw(peer), op, &requests, &options)?.handle.raw());
            Ok(())
        })
    }
}

/// Returns a list of block ids. The error names the struct of the list, which is the beginning of `what`.
///
/// # Safety
/// `list` is NULL or `pairs` ids of `id_bytes` that are the caller's for `'a`.
pub unsafe fn ids<'a>(id_bytes: u32, list: *const c_void, pairs: usize, what: &str) -> Result<BlockIds<'a>> {
    // SAFETY: the caller's promise.
    unsafe {
        match id_bytes {
            4 => Ok(BlockIds::I32(slice(list.cast(), pairs, what)?)),
            8 => Ok(BlockIds::I64(slice(list.cast(), pairs, what)?)),
            size => {
                let of = what.split('.').next().unwrap_or_default();
                Err(Error::invalid(format!("{of}.id_bytes is {size}, neither 4 nor 8")))
            }
        }
    }
}

/// # Safety
/// The arrays of `blocks` are NULL or `layer_count` long, and the caller's for the length of the call.
unsafe fn layers(blocks: &ferry_blocks) -> Result<Vec<Layer>> {
    let count = blocks.layer_count;
    // SAFETY: the caller's promise, for each of the six.
    let (local_base, remote_base, local_stride, remote_stride, block_bytes, remote_region) = unsafe {
        (
            slice(blocks.local_base, count, "blocks.local_base")?,
            slice(blocks.remote_base, count, "blocks.remote_base")?,
            slice(blocks.local_stride, count, "blocks.local_stride")?,
            slice(blocks.remote_stride, count, "blocks.remote_stride")?,
            slice(blocks.block_bytes, count, "blocks.block_bytes")?,
            if blocks.remote_region.is_null() {
                None
            } else {
                Some(slice(blocks.remote_region, count, "blocks.remote_region")?)
            },
        )
    };
    let mut layers = Vec::new();
    let no_memory = |_| Error::new(Status::NoMemory, format!("no memory for {count} layers"));
    layers.try_reserve_exact(count).map_err(no_memory)?;
    layers.extend((0..count).map(|layer| Layer {
        local_base: local_base[layer],
        remote_base: remote_base[layer],
        local_stride: local_stride[layer],
        remote_stride: remote_stride[layer],
        block_bytes: block_bytes[layer],
        remote_region: RegionId::from_raw(remote_region.map_or(0, |regions| regions[layer])),
    }));
    Ok(layers)
}
