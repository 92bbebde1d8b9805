//! The strides of the usual arrangements of a layer.

use super::convert::required;
use super::desc::{ferry_kv_layer, ferry_kv_layout_desc};
use crate::error::ferry_error;
use crate::guard::call;
use crate::status::ferry_status;
use crate::versioned;
use engine::status::Result;
use engine::Error;
use ferry_kv::layout::{Arrangement, Sizes, Strides};

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
            // The caller's struct has the fields of the first version, and these are among them.
            (&raw mut (*layer).block_stride).write(strides.block);
            (&raw mut (*layer).pair_stride).write(strides.pair);
            (&raw mut (*layer).head_stride).write(strides.head);
            (&raw mut (*layer).token_stride).write(strides.token);
            (&raw mut (*layer).element_stride).write(strides.element);
            Ok(())
        })
    }
}

fn arrangement(number: u32) -> Result<Arrangement> {
    Ok(match number {
        FERRY_KV_PAIR_BLOCK_TOKEN_HEAD => Arrangement::PairBlockTokenHead,
        FERRY_KV_PAIR_BLOCK_HEAD_TOKEN => Arrangement::PairBlockHeadToken,
        FERRY_KV_BLOCK_PAIR_TOKEN_HEAD => Arrangement::BlockPairTokenHead,
        FERRY_KV_BLOCK_PAIR_HEAD_TOKEN => Arrangement::BlockPairHeadToken,
        FERRY_KV_BLOCK_HEAD_PAIR_TOKEN => Arrangement::BlockHeadPairToken,
        _ => return Err(Error::invalid(format!("arrangement is {number}, which is none of FERRY_KV_*"))),
    })
}
