//! The structs that describe a layout. `arrange` fills in the strides of a layer; `convert` makes a
//! layout of them.

use crate::versioned::Versioned;
use std::ffi::c_char;

/// Each token's keys and values, from the first token on.
pub const FERRY_KV_GROUP_FULL: u32 = 1;
/// The keys and values of the last window_tokens tokens.
pub const FERRY_KV_GROUP_WINDOW: u32 = 2;
/// A latent vector for each token, alike on all ranks that hold the token. A layer with several sub-caches is several
/// layers.
pub const FERRY_KV_GROUP_LATENT: u32 = 3;
/// A state of fixed size instead of one for each token; the blocks are copied whole. Not with context parallelism.
pub const FERRY_KV_GROUP_STATE: u32 = 4;

/// Layers that share their block ids. FERRY_KV_GROUP_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_group {
    /// sizeof(ferry_kv_group).
    pub struct_size: u32,
    /// FERRY_KV_GROUP_*.
    pub kind: u32,
    /// Tokens of this rank in one block. 1 for a state.
    pub block_tokens: u32,
    /// Tokens of the window in a FERRY_KV_GROUP_WINDOW, at least 1. 0 otherwise.
    pub window_tokens: u32,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_group {
    const SIZE_MIN: usize = 16;
}

/// One tensor of the cache: of a layer, or of a sub-cache of a layer. The byte of (block, pair, head, token, element)
/// lies at
///
///     address + block * block_stride + pair * pair_stride + head * head_stride + token * token_stride
///             + element * element_stride
///
/// where head counts from the rank's first and token from the block's first. Strides are in bytes. Dimensions may be
/// nested in any order, but each stride must be at least the extent of all dimensions with smaller strides. The gaps
/// are padding, which is not moved. The stride of a dimension of size 1 is ignored. FERRY_KV_LAYER_INIT sets
/// struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_layer {
    /// sizeof(ferry_kv_layer).
    pub struct_size: u32,
    /// Index into ferry_kv_layout_desc.groups.
    pub group: u32,
    /// The same on all ranks and both sides, for example "model.layers.7.self_attn.attn". UTF-8, at most 255 bytes.
    pub name: *const c_char,
    /// The pipeline stage (pp_rank) that holds this layer.
    pub stage: u32,
    /// KV heads of the whole model; 1 for FERRY_KV_GROUP_LATENT. With tp_size ranks, rank tp_rank holds the heads from
    /// tp_rank * heads / tp_size to before (tp_rank + 1) * heads / tp_size, or one if tp_size is above heads.
    pub heads: u32,
    /// 2 for keys and values, which lie pair_stride apart; 1 if the tensor has one kind of row.
    pub pairs: u32,
    /// Elements of one row: of one token, head, and key or value.
    pub elements: u32,
    /// Bytes of one element.
    pub element_bytes: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Address of block 0 in the process of this rank. 0 for a layer of another stage: blocks and strides are then
    /// ignored.
    pub address: u64,
    /// How many blocks the tensor has.
    pub blocks: u64,
    /// From one block to the next.
    pub block_stride: u64,
    /// From keys to values.
    pub pair_stride: u64,
    /// From one head to the next.
    pub head_stride: u64,
    /// From one token to the next.
    pub token_stride: u64,
    /// From one element to the next: element_bytes, if there is nothing between them.
    pub element_stride: u64,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_layer {
    const SIZE_MIN: usize = 96;
}

/// One rank's cache. It names every layer of the model, and describes the memory of those that its own rank holds, so
/// all ranks of one instance differ only in their ranks and in memory. The four texts must be equal on both sides; ""
/// is a text. FERRY_KV_LAYOUT_DESC_INIT sets struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_layout_desc {
    /// sizeof(ferry_kv_layout_desc).
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Name of the model. Each of the four texts is UTF-8 of at most 255 bytes.
    pub model: *const c_char,
    /// Its revision.
    pub revision: *const c_char,
    /// The data type of the cache and how its scales are found, for example "fp8_e4m3, scales per tensor".
    pub cache: *const c_char,
    /// The position encoding and its scaling.
    pub rope: *const c_char,
    /// Tensor parallelism: the heads are divided among the ranks. With more ranks than heads, heads are replicated.
    pub tp_rank: u32,
    /// Not 0.
    pub tp_size: u32,
    /// Pipeline parallelism: each layer names its stage.
    pub pp_rank: u32,
    /// Not 0.
    pub pp_size: u32,
    /// Prefill context parallelism: tokens are divided among the ranks.
    pub pcp_rank: u32,
    /// 0 means 1.
    pub pcp_size: u32,
    /// Decode context parallelism: ranks that would hold replicas of a head divide its tokens; the rank within it is
    /// tp_rank % dcp_size. 0 means 1.
    pub dcp_size: u32,
    /// Context parallel ranks take turns of this many tokens: rank pcp_rank * dcp_size + tp_rank % dcp_size has the
    /// turns of its number. 0 means 1.
    pub turn_tokens: u32,
    /// Array of group_count groups, which lie struct_size apart.
    pub groups: *const ferry_kv_group,
    /// 1 to 64.
    pub group_count: u64,
    /// Array of the layers of all stages in the order of computation, which lie struct_size apart.
    pub layers: *const ferry_kv_layer,
    /// 1 to 1,024.
    pub layer_count: u64,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_layout_desc {
    const SIZE_MIN: usize = 104;
}
