//! The structs that describe a layout. `arrange` fills in the strides of a layer; `layout` makes a layout of them.

use super::arrays::read_array;
use crate::handles::check_reserved;
use crate::pointers::text;
use crate::versioned::Versioned;
use engine::status::Result;
use engine::Error;
use ferry_kv::layout::limits::{GROUPS_MAX, LAYERS_MAX};
use ferry_kv::layout::{Group, GroupKind, Layer, LayerMemory, Layout, ModelKey, Shard, Strides};
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
    /// Of FERRY_KV_GROUP_WINDOW: the window, at least 1. 0 otherwise.
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
/// where head counts from the rank's first and token from the block's first. Strides are in bytes. Dimensions are
/// nested in any order: a stride is at least the extent of all that smaller strides reach, and what it leaves out is
/// padding, which is not moved. The stride of a dimension of size 1 has no say. FERRY_KV_LAYER_INIT sets struct_size.
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
    /// Address of block 0 in the process of this rank. 0 for a layer of another stage: blocks and strides are then not
    /// looked at.
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

/// Returns INVALID for a struct that was NULL.
pub(super) fn required<T>(value: Option<T>, what: &str) -> Result<T> {
    value.ok_or_else(|| Error::invalid(format!("{what} is NULL")))
}

impl ferry_kv_layout_desc {
    /// # Safety
    /// The pointers are NULL or point to what their documentation says.
    pub(super) unsafe fn layout(&self) -> Result<Layout> {
        check_reserved(self.reserved, "desc.reserved")?;
        // SAFETY: the caller's promise.
        let (key, groups, layers) = unsafe {
            let key = ModelKey {
                model: text(self.model, "desc.model")?.to_owned(),
                revision: text(self.revision, "desc.revision")?.to_owned(),
                cache: text(self.cache, "desc.cache")?.to_owned(),
                rope: text(self.rope, "desc.rope")?.to_owned(),
            };
            (key, self.groups()?, read_array(self.layers, self.layer_count, LAYERS_MAX, "desc.layers")?)
        };
        let mut described = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            // SAFETY: the caller's promise.
            described.push(unsafe { layer.layer(&format!("desc.layers[{index}]")) }?);
        }
        Ok(Layout { key, shard: self.shard(), groups, layers: described })
    }

    pub(super) fn shard(&self) -> Shard {
        Shard {
            tp_rank: self.tp_rank,
            tp_size: self.tp_size,
            pp_rank: self.pp_rank,
            pp_size: self.pp_size,
            pcp_rank: self.pcp_rank,
            pcp_size: self.pcp_size.max(1),
            dcp_size: self.dcp_size.max(1),
            turn_tokens: self.turn_tokens.max(1),
        }
    }

    /// # Safety
    /// `groups` is NULL or points to `group_count` groups.
    pub(super) unsafe fn groups(&self) -> Result<Vec<Group>> {
        // SAFETY: the caller's promise.
        let groups = unsafe { read_array(self.groups, self.group_count, GROUPS_MAX, "desc.groups") }?;
        groups.iter().enumerate().map(|(index, group)| group.group(index)).collect()
    }
}

impl ferry_kv_group {
    fn group(&self, index: usize) -> Result<Group> {
        let kind = match self.kind {
            FERRY_KV_GROUP_FULL => GroupKind::Full,
            FERRY_KV_GROUP_WINDOW => GroupKind::Window { tokens: self.window_tokens },
            FERRY_KV_GROUP_LATENT => GroupKind::Latent,
            FERRY_KV_GROUP_STATE => GroupKind::State,
            kind => {
                let text = format!("desc.groups[{index}].kind is {kind}, which is none of FERRY_KV_GROUP_*");
                return Err(Error::invalid(text));
            }
        };
        if self.kind != FERRY_KV_GROUP_WINDOW {
            check_reserved(self.window_tokens, &format!("desc.groups[{index}].window_tokens"))?;
        }
        Ok(Group { kind, block_tokens: self.block_tokens })
    }
}

impl ferry_kv_layer {
    /// # Safety
    /// `name` is NULL or a terminated text.
    unsafe fn layer(&self, what: &str) -> Result<Layer> {
        check_reserved(self.reserved, &format!("{what}.reserved"))?;
        // SAFETY: the caller's promise.
        let name = unsafe { text(self.name, &format!("{what}.name")) }?;
        Ok(self.named(name.to_owned()))
    }

    pub(super) fn named(&self, name: String) -> Layer {
        let strides = Strides {
            block: self.block_stride,
            pair: self.pair_stride,
            head: self.head_stride,
            token: self.token_stride,
            element: self.element_stride,
        };
        let memory = LayerMemory { address: self.address, blocks: self.blocks, strides };
        Layer {
            name,
            group: self.group,
            stage: self.stage,
            heads: self.heads,
            pairs: self.pairs,
            elements: self.elements,
            element_bytes: self.element_bytes,
            memory: (self.address != 0).then_some(memory),
        }
    }
}
