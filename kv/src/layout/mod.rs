//! The part of a paged KV cache that one rank of an inference engine holds. `plan` compares two layouts; `wire` turns a
//! layout into the bytes that peers exchange.
//!
//! | | |
//! |---|---|
//! | `shard` | numbers of ranks, and which heads a rank holds |
//! | `memory` | strides of the usual arrangements; addresses that a layer spans |
//! | `tensor` | a layer's memory from a tensor of a framework |
//! | `check` | whether a layout makes sense |
//! | `overlap` | whether layers of a group share bytes |
//! | `wire` | a layout as bytes |
//! | [`limits`] | the bounds |
//!
//! A layout names every layer of the model, and describes the memory of those that its own rank holds. All ranks of
//! one instance differ only in their [`Shard`]'s ranks and in their memory, so either side can tell from one layout
//! which heads, layers and tokens each rank of the other side has.

mod check;
pub mod limits;
mod memory;
mod overlap;
mod shard;
mod tensor;
#[cfg(test)]
mod tests;
mod wire;

pub use memory::{Arrangement, Sizes};
pub use tensor::Tensor;

/// The layout of one rank's cache. `check` tells whether it makes sense; `plan` takes no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub key: ModelKey,
    pub shard: Shard,
    pub groups: Vec<Group>,
    /// The layers of all stages, in the order of computation.
    pub layers: Vec<Layer>,
}

/// Two caches can use each other's bytes only if their keys are equal, field by field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelKey {
    pub model: String,
    pub revision: String,
    /// The data type of the cache and how its scales are found, for example "fp8_e4m3, scales per tensor".
    pub cache: String,
    /// The position encoding and its scaling.
    pub rope: String,
}

impl ModelKey {
    pub fn new(model: &str, revision: &str, cache: &str, rope: &str) -> ModelKey {
        let [model, revision, cache, rope] = [model, revision, cache, rope].map(String::from);
        ModelKey { model, revision, cache, rope }
    }
}

/// How many ranks share a cache, and which of them this rank is. The number of a rank is
/// `(pp_rank * pcp_size + pcp_rank) * tp_size + tp_rank`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Tensor parallelism: the heads are divided among the ranks. With more ranks than heads, heads are replicated.
    pub tp_rank: u32,
    pub tp_size: u32,
    /// Pipeline parallelism: each layer names its stage.
    pub pp_rank: u32,
    pub pp_size: u32,
    /// Prefill context parallelism: tokens are divided among the ranks.
    pub pcp_rank: u32,
    pub pcp_size: u32,
    /// Decode context parallelism: ranks that would hold replicas of a head divide its tokens. The rank within it is
    /// `tp_rank % dcp_size`. Divides the replicas of every head; 1 without it.
    pub dcp_size: u32,
    /// Context parallel ranks take turns of this many tokens. The rank of a token's turn is
    /// `pcp_rank * dcp_size + tp_rank % dcp_size`. With one such rank, any number from 1 on.
    pub turn_tokens: u32,
}

/// One rank that has everything.
impl Default for Shard {
    fn default() -> Shard {
        Shard {
            tp_rank: 0,
            tp_size: 1,
            pp_rank: 0,
            pp_size: 1,
            pcp_rank: 0,
            pcp_size: 1,
            dcp_size: 1,
            turn_tokens: 1,
        }
    }
}

/// Layers that share their block ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub kind: GroupKind,
    /// Tokens of this rank in one block. 1 for State.
    pub block_tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Each token's keys and values, from the first token on.
    Full,
    /// The keys and values of the last `tokens` tokens; at least 1.
    Window { tokens: u32 },
    /// A latent vector for each token, alike on all ranks that hold the token. A layer with several sub-caches is
    /// several layers.
    Latent,
    /// A state of fixed size instead of one for each token; the blocks are copied whole. Not with context parallelism.
    State,
}

impl Group {
    pub const fn full(block_tokens: u32) -> Group {
        Group { kind: GroupKind::Full, block_tokens }
    }

    pub const fn window(block_tokens: u32, tokens: u32) -> Group {
        Group { kind: GroupKind::Window { tokens }, block_tokens }
    }

    pub const fn latent(block_tokens: u32) -> Group {
        Group { kind: GroupKind::Latent, block_tokens }
    }

    pub const fn state() -> Group {
        Group { kind: GroupKind::State, block_tokens: 1 }
    }
}

/// One tensor of the cache: of a layer, or of a sub-cache of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The same on all ranks and both sides, for example "model.layers.7.self_attn.attn".
    pub name: String,
    /// Index into `Layout::groups`.
    pub group: u32,
    /// The pipeline stage (`Shard::pp_rank`) that holds this layer.
    pub stage: u32,
    /// KV heads of the whole model; 1 for Latent. `heads_of` tells which ones a rank holds.
    pub heads: u32,
    /// 2 for keys and values, which lie `strides.pair` apart; 1 if the tensor has one kind of row.
    pub pairs: u32,
    /// Elements of one row: of one token, head, and key or value.
    pub elements: u32,
    /// Bytes of one element.
    pub element_bytes: u32,
    /// Where the layer lies; in the layouts of its stage, and in no other.
    pub memory: Option<LayerMemory>,
}

/// The place of the byte of (block, pair, head, token, element):
/// `address + block * strides.block + pair * strides.pair + head * strides.head + token * strides.token
///  + element * strides.element`, where head counts from the rank's first and token from the block's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerMemory {
    pub address: u64,
    pub blocks: u64,
    pub strides: Strides,
}

/// In bytes. The space that a stride leaves between elements is padding, which is not moved. Dimensions nest in any
/// order: a stride is at least the extent of all that smaller strides reach. That of a dimension of size 1 has no say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    pub block: u64,
    pub pair: u64,
    pub head: u64,
    pub token: u64,
    pub element: u64,
}
