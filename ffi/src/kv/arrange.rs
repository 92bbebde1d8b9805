//! Where a layer lies: the strides of the usual arrangements, or those of a tensor.

use super::convert::required;
use super::desc::{ferry_kv_layer, ferry_kv_layout_desc};
use crate::error::ferry_error;
use crate::guard::call;
use crate::pointers::{slice, text};
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use engine::status::Result;
use engine::Error;
use ferry_kv::layout::{Arrangement, LayerMemory, Sizes, Strides, Tensor};
use std::ffi::c_char;

/// The order of the dimensions of a contiguous tensor, from the outermost: [2][blocks][tokens][heads][elements], all
/// keys, then all values. The engines call it NHD.
pub const FERRY_KV_PAIR_BLOCK_TOKEN_HEAD: u32 = 1;
/// [2][blocks][heads][tokens][elements]: all keys, then all values. HND.
pub const FERRY_KV_PAIR_BLOCK_HEAD_TOKEN: u32 = 2;
/// [blocks][2][tokens][heads][elements]: a block's keys, then its values. NHD. Also for layers without pairs (pairs
/// is 1).
pub const FERRY_KV_BLOCK_PAIR_TOKEN_HEAD: u32 = 3;
/// [blocks][2][heads][tokens][elements]: a block's keys, then its values. HND.
pub const FERRY_KV_BLOCK_PAIR_HEAD_TOKEN: u32 = 4;
/// [blocks][heads][2][tokens][elements]: a head's keys, then its values.
pub const FERRY_KV_BLOCK_HEAD_PAIR_TOKEN: u32 = 5;

/// Sets the five strides of a layer to those of a contiguous tensor, from its group, heads, pairs, elements,
/// element_bytes and blocks. The call reads tp_rank, tp_size and groups of `desc`, not its layers.
///
/// FERRY_ERR_INVALID: `arrangement` is none of FERRY_KV_PAIR_* and FERRY_KV_BLOCK_*, or the layer's group does not
/// exist. ferry_kv_layout_new checks the rest of the layer.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_layer_arrange(
    desc: *const ferry_kv_layout_desc,
    arrangement: u32,
    layer: *mut ferry_kv_layer,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let desc = required(versioned::read(desc, "desc")?, "desc")?;
            let value = required(versioned::read(layer.cast_const(), "layer")?, "layer")?;
            let groups = desc.groups()?;
            let group = groups.get(value.group as usize).ok_or_else(|| {
                Error::invalid(format!(
                    "layer.group is {}, and desc has {} groups",
                    value.group,
                    groups.len()
                ))
            })?;
            let sizes = Sizes {
                blocks: value.blocks,
                pairs: value.pairs,
                heads: value.named(String::new()).heads_of(&desc.shard()).len() as u32,
                tokens: group.block_tokens,
                elements: value.elements,
                element_bytes: value.element_bytes,
            };
            let strides = Strides::of(self::arrangement(arrangement)?, sizes);
            write_strides(layer, strides);
            Ok(())
        })
    }
}

/// # Safety
/// `layer` is one that `versioned::read` has taken: it has the fields of the first version, and these are among them.
unsafe fn write_strides(layer: *mut ferry_kv_layer, strides: Strides) {
    // SAFETY: the caller's promise.
    unsafe {
        (&raw mut (*layer).block_stride).write(strides.block);
        (&raw mut (*layer).pair_stride).write(strides.pair);
        (&raw mut (*layer).head_stride).write(strides.head);
        (&raw mut (*layer).token_stride).write(strides.token);
        (&raw mut (*layer).element_stride).write(strides.element);
    }
}

/// A tensor of a framework that holds one layer's blocks. FERRY_KV_TENSOR_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_tensor {
    /// sizeof(ferry_kv_tensor).
    pub struct_size: u32,
    /// Bytes of one element.
    pub element_bytes: u32,
    /// Address of the first element, in this process.
    pub address: u64,
    /// Names of the dimensions, from the outermost: the words block, pair, token, head and element, each at most
    /// once, for example "block pair token head element". A dimension without its word has size 1; block and element
    /// are needed.
    pub order: *const c_char,
    /// Length of shape and of strides; as many as order has words.
    pub dimension_count: u64,
    /// The sizes of the dimensions.
    pub shape: *const u64,
    /// Bytes from one element of a dimension to the next. NULL: the tensor is contiguous.
    pub strides: *const u64,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_tensor {
    const SIZE_MIN: usize = 48;
}

/// Places a layer in a tensor: sets pairs, elements, element_bytes, address, blocks and the five strides. The caller
/// sets name, group and stage. heads stays as it is if it is not 0; otherwise it becomes the tensor's heads times
/// tp_size, which is right unless heads are replicated. The call reads the ranks and groups of `desc`, not its layers.
///
/// FERRY_ERR_INVALID: order does not fit the tensor, or the tensor does not fit block_tokens or heads; the message
/// names the dimension. ferry_kv_layout_new checks the rest of the layer.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_layer_of(
    desc: *const ferry_kv_layout_desc,
    tensor: *const ferry_kv_tensor,
    layer: *mut ferry_kv_layer,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let desc = required(versioned::read(desc, "desc")?, "desc")?;
            let tensor = required(versioned::read(tensor, "tensor")?, "tensor")?;
            let value = required(versioned::read(layer.cast_const(), "layer")?, "layer")?;
            let count = match tensor.dimension_count {
                count @ 0..=5 => count as usize,
                count => {
                    let words = "tensor.dimension_count is";
                    return Err(Error::invalid(format!(
                        "{words} {count}: a layer's tensor has at most 5 dimensions"
                    )));
                }
            };
            let strides = if tensor.strides.is_null() {
                None
            } else {
                Some(slice(tensor.strides, count, "tensor.strides")?)
            };
            let described = Tensor {
                address: tensor.address,
                element_bytes: tensor.element_bytes,
                order: text(tensor.order, "tensor.order")?,
                shape: slice(tensor.shape, count, "tensor.shape")?,
                strides,
            };
            let mut placed = value.named(String::new());
            placed.set_tensor(&described, &desc.groups()?, &desc.shard())?;
            let Some(LayerMemory { address, blocks, strides }) = placed.memory else { return Ok(()) };
            (&raw mut (*layer).heads).write(placed.heads);
            (&raw mut (*layer).pairs).write(placed.pairs);
            (&raw mut (*layer).elements).write(placed.elements);
            (&raw mut (*layer).element_bytes).write(placed.element_bytes);
            (&raw mut (*layer).address).write(address);
            (&raw mut (*layer).blocks).write(blocks);
            write_strides(layer, strides);
            Ok(())
        })
    }
}

pub(crate) fn arrangement(number: u32) -> Result<Arrangement> {
    Ok(match number {
        FERRY_KV_PAIR_BLOCK_TOKEN_HEAD => Arrangement::PairBlockTokenHead,
        FERRY_KV_PAIR_BLOCK_HEAD_TOKEN => Arrangement::PairBlockHeadToken,
        FERRY_KV_BLOCK_PAIR_TOKEN_HEAD => Arrangement::BlockPairTokenHead,
        FERRY_KV_BLOCK_PAIR_HEAD_TOKEN => Arrangement::BlockPairHeadToken,
        FERRY_KV_BLOCK_HEAD_PAIR_TOKEN => Arrangement::BlockHeadPairToken,
        _ => {
            let words = "pass one of FERRY_KV_PAIR_* and FERRY_KV_BLOCK_*, for example FERRY_KV_BLOCK_PAIR_TOKEN_HEAD";
            return Err(Error::invalid(format!("arrangement is {number}: {words}")));
        }
    })
}
