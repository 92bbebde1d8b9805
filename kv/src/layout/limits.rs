//! The bounds of a layout. `check` enforces them; with them no sum or product of `plan`'s overflows a u64.

/// Bytes of each string of the model's key, and of a layer's name.
pub const NAME_BYTES_MAX: usize = 255;
pub const GROUPS_MAX: usize = 64;
pub const LAYERS_MAX: usize = 1024;
/// Ranks of one instance.
pub const RANKS_MAX: u32 = 1024;
/// KV heads of one layer of the whole model.
pub const HEADS_MAX: u32 = 1 << 16;
/// Elements of one row. A state can be one long row.
pub const ELEMENTS_MAX: u32 = 1 << 30;
pub const ELEMENT_BYTES_MAX: u32 = 256;
pub const BLOCK_TOKENS_MAX: u32 = 1 << 20;
/// Blocks of one layer on one rank.
pub const BLOCKS_MAX: u64 = 1 << 31;
/// Bytes of an exported layout.
pub const EXPORT_BYTES_MAX: usize = 64 << 10;
