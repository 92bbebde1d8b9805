//! `ferry_transfer_submit_uniform`: blocks of layers of equal shape, without a table for each layer.

use crate::blocks::ids;
use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::{ferry_peer, ferry_region, ferry_transfer, op};
use crate::options::{self, ferry_transfer_options};
use crate::pointers::Out;
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use engine::blocks::{expand, BlockIds, EqualLayers};
use engine::status::Result;
use engine::types::{PeerId, RegionId};
use engine::Error;
use std::ffi::c_void;

/// Pairs of blocks in layers of equal shape, one layer behind the other at equal distances, as in a cache that is one
/// tensor on each side. ferry makes one request for each l of layer_count layers, from first_layer on, and each pair i:
///
///     local  = local_base  + (first_layer + l) * local_layer_stride  + local_blocks[i]  * local_stride
///     remote = remote_base + (first_layer + l) * remote_layer_stride + remote_blocks[i] * remote_stride
///     length = block_bytes
///
/// with the index l * pair_count + i. Zero the struct, set struct_size to sizeof, then set the other fields. ferry
/// borrows nothing after the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_uniform_blocks {
    /// sizeof(ferry_uniform_blocks).
    pub struct_size: u32,
    /// Size of one block id: 4 for int32_t, 8 for int64_t. Not looked at without lists of ids.
    pub id_bytes: u32,
    /// Number of the first layer.
    pub first_layer: usize,
    /// How many layers; not 0.
    pub layer_count: usize,
    /// Address of block 0 of layer 0 in this process.
    pub local_base: u64,
    /// Address of block 0 of layer 0 in the peer's process.
    pub remote_base: u64,
    /// Bytes from one local layer to the next.
    pub local_layer_stride: u64,
    /// Bytes from one layer of the peer to the next.
    pub remote_layer_stride: u64,
    /// Bytes from one local block to the next, at least block_bytes; 0 means block_bytes.
    pub local_stride: u64,
    /// Bytes from one block of the peer to the next, at least block_bytes; 0 means block_bytes.
    pub remote_stride: u64,
    /// Bytes of one block; not 0.
    pub block_bytes: u64,
    /// ferry_request.remote_region of all requests.
    pub remote_region: ferry_region,
    /// How many pairs of blocks; not 0.
    pub pair_count: usize,
    /// Ids of the local blocks. NULL means 0 to pair_count - 1.
    pub local_blocks: *const c_void,
    /// Ids of the peer's blocks, paired with local_blocks. NULL means 0 to pair_count - 1.
    pub remote_blocks: *const c_void,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_uniform_blocks {
    const SIZE_MIN: usize = 112;
}

/// Starts a transfer of blocks in layers of equal shape. Behaves as ferry_transfer_submit otherwise.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_submit_uniform(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    op: u32,
    layers: *const ferry_uniform_blocks,
    options: *const ferry_transfer_options,
    out_transfer: *mut ferry_transfer,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call, and the memory that the layers
    // name until the transfer is final.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out = Out::new(out_transfer, "out_transfer")?;
            let op = self::op(op)?;
            let layers = versioned::read(layers, "layers")?;
            let layers = layers.ok_or_else(|| Error::invalid("layers is NULL"))?;
            let options = options::read(engine, options)?;
            let list = |list: *const c_void, what| {
                if list.is_null() {
                    Ok(BlockIds::First(layers.pair_count))
                } else {
                    ids(layers.id_bytes, list, layers.pair_count, what)
                }
            };
            let local = list(layers.local_blocks, "layers.local_blocks")?;
            let remote = list(layers.remote_blocks, "layers.remote_blocks")?;
            let requests = expand(&layers.numbered()?, local, remote)?;
            out.set(engine.engine.submit_core(PeerId::from_raw(peer), op, &requests, &options)?.handle.raw());
            Ok(())
        })
    }
}

impl ferry_uniform_blocks {
    fn numbered(&self) -> Result<Vec<engine::blocks::Layer>> {
        let end = self.first_layer.checked_add(self.layer_count);
        let end = end.ok_or_else(|| Error::invalid("layers.first_layer + layers.layer_count overflows"))?;
        let equal = EqualLayers {
            local_base: self.local_base,
            remote_base: self.remote_base,
            local_layer_stride: self.local_layer_stride,
            remote_layer_stride: self.remote_layer_stride,
            local_stride: self.local_stride,
            remote_stride: self.remote_stride,
            block_bytes: self.block_bytes,
            remote_region: RegionId::from_raw(self.remote_region),
        };
        equal.layers(self.first_layer..end)
    }
}
