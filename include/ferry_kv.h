/** @file
 * ferry for KV caches: layouts and resharding. Part of libferry.
 *
 * Generated from ffi/src/kv by `UPDATE=1 cargo test -p ferry-ffi --test header`; don't edit. docs/kv.md has
 * an example. These calls need no engine, touch none of the memory that a layout names, and never wait: they
 * compute. The rules of ferry.h hold, and:
 *
 * - A forked child may use what it inherited.
 * - Layouts, plans and moves never change. Any number of threads may use one; only its free must be alone.
 * - In an array of structs that the caller fills, each element has its struct_size, all the same, and the
 *   elements lie that far apart.
 */
#ifndef FERRY_KV_H
#define FERRY_KV_H

#include "ferry.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Descriptions of layouts ------------------------------------------------------------------- */

/* A layout says what one rank holds of a paged KV cache: groups of layers that share their block ids,
   each layer's place in memory, and how the ranks share the heads, layers and tokens. */

/// Each token's keys and values, from the first token on.
#define FERRY_KV_GROUP_FULL 1

/// The keys and values of the last window_tokens tokens.
#define FERRY_KV_GROUP_WINDOW 2

/// A latent vector for each token, alike on all ranks that hold the token. A layer with several sub-caches is several
/// layers.
#define FERRY_KV_GROUP_LATENT 3

/// A state of fixed size instead of one for each token; the blocks are copied whole. Not with context parallelism.
#define FERRY_KV_GROUP_STATE 4

/// Layers that share their block ids. FERRY_KV_GROUP_INIT sets struct_size.
typedef struct ferry_kv_group {
    /// sizeof(ferry_kv_group).
    uint32_t struct_size;
    /// FERRY_KV_GROUP_*.
    uint32_t kind;
    /// Tokens of this rank in one block. 1 for a state.
    uint32_t block_tokens;
    /// Of FERRY_KV_GROUP_WINDOW: the window, at least 1. 0 otherwise.
    uint32_t window_tokens;
} ferry_kv_group;

/// Initializes a ferry_kv_group: its struct_size, and zero in all other fields.
#define FERRY_KV_GROUP_INIT \
    { (uint32_t)sizeof(ferry_kv_group), 0, 0, 0 }

/// One tensor of the cache: of a layer, or of a sub-cache of a layer. The byte of (block, pair, head, token, element)
/// lies at
///
///     address + block * block_stride + pair * pair_stride + head * head_stride + token * token_stride
///             + element * element_stride
///
/// where head counts from the rank's first and token from the block's first. Strides are in bytes. Dimensions are
/// nested in any order: a stride is at least the extent of all that smaller strides reach, and what it leaves out is
/// padding, which is not moved. The stride of a dimension of size 1 has no say. FERRY_KV_LAYER_INIT sets struct_size.
typedef struct ferry_kv_layer {
    /// sizeof(ferry_kv_layer).
    uint32_t struct_size;
    /// Index into ferry_kv_layout_desc.groups.
    uint32_t group;
    /// The same on all ranks and both sides, for example "model.layers.7.self_attn.attn". UTF-8, at most 255 bytes.
    const char *name;
    /// The pipeline stage (pp_rank) that holds this layer.
    uint32_t stage;
    /// KV heads of the whole model; 1 for FERRY_KV_GROUP_LATENT. With tp_size ranks, rank tp_rank holds the heads from
    /// tp_rank * heads / tp_size to before (tp_rank + 1) * heads / tp_size, or one if tp_size is above heads.
    uint32_t heads;
    /// 2 for keys and values, which lie pair_stride apart; 1 if the tensor has one kind of row.
    uint32_t pairs;
    /// Elements of one row: of one token, head, and key or value.
    uint32_t elements;
    /// Bytes of one element.
    uint32_t element_bytes;
    /// Must be 0.
    uint32_t reserved;
    /// Address of block 0 in the process of this rank. 0 for a layer of another stage: blocks and strides are then not
    /// looked at.
    uint64_t address;
    /// How many blocks the tensor has.
    uint64_t blocks;
    /// From one block to the next.
    uint64_t block_stride;
    /// From keys to values.
    uint64_t pair_stride;
    /// From one head to the next.
    uint64_t head_stride;
    /// From one token to the next.
    uint64_t token_stride;
    /// From one element to the next: element_bytes, if there is nothing between them.
    uint64_t element_stride;
} ferry_kv_layer;

/// Initializes a ferry_kv_layer: its struct_size, and zero in all other fields.
#define FERRY_KV_LAYER_INIT \
    { (uint32_t)sizeof(ferry_kv_layer), 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/// One rank's cache. It names every layer of the model, and describes the memory of those that its own rank holds, so
/// all ranks of one instance differ only in their ranks and in memory. The four texts must be equal on both sides; ""
/// is a text. FERRY_KV_LAYOUT_DESC_INIT sets struct_size.
typedef struct ferry_kv_layout_desc {
    /// sizeof(ferry_kv_layout_desc).
    uint32_t struct_size;
    /// Must be 0.
    uint32_t reserved;
    /// Name of the model. Each of the four texts is UTF-8 of at most 255 bytes.
    const char *model;
    /// Its revision.
    const char *revision;
    /// The data type of the cache and how its scales are found, for example "fp8_e4m3, scales per tensor".
    const char *cache;
    /// The position encoding and its scaling.
    const char *rope;
    /// Tensor parallelism: the heads are divided among the ranks. With more ranks than heads, heads are replicated.
    uint32_t tp_rank;
    /// Not 0.
    uint32_t tp_size;
    /// Pipeline parallelism: each layer names its stage.
    uint32_t pp_rank;
    /// Not 0.
    uint32_t pp_size;
    /// Prefill context parallelism: tokens are divided among the ranks.
    uint32_t pcp_rank;
    /// 0 means 1.
    uint32_t pcp_size;
    /// Decode context parallelism: ranks that would hold replicas of a head divide its tokens; the rank within it is
    /// tp_rank % dcp_size. 0 means 1.
    uint32_t dcp_size;
    /// Context parallel ranks take turns of this many tokens: rank pcp_rank * dcp_size + tp_rank % dcp_size has the
    /// turns of its number. 0 means 1.
    uint32_t turn_tokens;
    /// Array of group_count groups, which lie struct_size apart.
    const ferry_kv_group *groups;
    /// 1 to 64.
    uint64_t group_count;
    /// Array of the layers of all stages in the order of computation, which lie struct_size apart.
    const ferry_kv_layer *layers;
    /// 1 to 1,024.
    uint64_t layer_count;
} ferry_kv_layout_desc;

/// Initializes a ferry_kv_layout_desc: its struct_size, and zero in all other fields.
#define FERRY_KV_LAYOUT_DESC_INIT \
    { (uint32_t)sizeof(ferry_kv_layout_desc), 0, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, NULL, 0 }

/* ---- Usual arrangements ------------------------------------------------------------------------ */

/// The order of the dimensions of a contiguous tensor, from the outermost: [2][blocks][tokens][heads][elements], all
/// keys, then all values. The engines call it NHD.
#define FERRY_KV_PAIR_BLOCK_TOKEN_HEAD 1

/// [2][blocks][heads][tokens][elements]: all keys, then all values. HND.
#define FERRY_KV_PAIR_BLOCK_HEAD_TOKEN 2

/// [blocks][2][tokens][heads][elements]: a block's keys, then its values. NHD. Also if there are no pairs.
#define FERRY_KV_BLOCK_PAIR_TOKEN_HEAD 3

/// [blocks][2][heads][tokens][elements]: a block's keys, then its values. HND.
#define FERRY_KV_BLOCK_PAIR_HEAD_TOKEN 4

/// [blocks][heads][2][tokens][elements]: a head's keys, then its values. vLLM on CPUs.
#define FERRY_KV_BLOCK_HEAD_PAIR_TOKEN 5

/// Sets the five strides of a layer to those of a contiguous tensor, from its group, heads, pairs, elements,
/// element_bytes and blocks. Of `desc`, tp_rank, tp_size and groups are looked at, not its layers.
///
/// FERRY_ERR_INVALID: `arrangement` is none of FERRY_KV_PAIR_* and FERRY_KV_BLOCK_*, or the layer's group does not
/// exist. ferry_kv_layout_new refuses what else is wrong.
ferry_status ferry_kv_layer_arrange(const ferry_kv_layout_desc *desc,
                                    uint32_t arrangement,
                                    ferry_kv_layer *layer,
                                    ferry_error *error);

/* ---- Layouts ----------------------------------------------------------------------------------- */

/// What one rank of an inference engine holds of a paged KV cache. It never changes; any number of threads may use it.
typedef struct ferry_kv_layout ferry_kv_layout;

/// Numbers of a layout. The caller sets struct_size before the call.
typedef struct ferry_kv_layout_info {
    /// In: sizeof(ferry_kv_layout_info). Out: how many bytes were written.
    uint32_t struct_size;
    /// Number of this rank in its instance: (pp_rank * pcp_size + pcp_rank) * tp_size + tp_rank.
    uint32_t rank;
    /// How many ranks the instance has.
    uint32_t ranks;
    /// How many groups.
    uint32_t group_count;
    /// How many layers, of all stages.
    uint32_t layer_count;
    /// Always 0.
    uint32_t reserved;
} ferry_kv_layout_info;

/// Initializes a ferry_kv_layout_info: its struct_size, and zero in all other fields.
#define FERRY_KV_LAYOUT_INFO_INIT \
    { (uint32_t)sizeof(ferry_kv_layout_info), 0, 0, 0, 0, 0 }

/// Makes a layout from its description, which is copied. The memory that it names is not touched, now or later. Free
/// it with ferry_kv_layout_free.
///
/// The errors name layer and field. FERRY_ERR_INVALID: something makes no sense, as strides with which two bytes would
/// share a place. FERRY_ERR_LIMIT: a number is too large. FERRY_ERR_UNSUPPORTED: states with context parallelism.
ferry_status ferry_kv_layout_new(const ferry_kv_layout_desc *desc,
                                 ferry_kv_layout **out_layout,
                                 ferry_error *error);

/// Frees a layout. NULL does nothing. Plans and moves that were made from it keep what they need.
void ferry_kv_layout_free(ferry_kv_layout *layout);

/// Returns numbers of a layout.
ferry_status ferry_kv_layout_get_info(const ferry_kv_layout *layout,
                                      ferry_kv_layout_info *out_info,
                                      ferry_error *error);

/// Writes a layout as bytes, for the other ranks: at most 64 KiB, with a version. Returns bytes as ferry_config_get
/// does.
///
/// FERRY_ERR_LIMIT: the layout takes more, which needs long names without common starts or as many shapes as layers.
ferry_status ferry_kv_layout_export(const ferry_kv_layout *layout,
                                    void *buffer,
                                    size_t capacity,
                                    size_t *out_length,
                                    ferry_error *error);

/// Makes a layout from the bytes of ferry_kv_layout_export. The bytes may be anyone's; they are checked as
/// ferry_kv_layout_new checks its description. Free it with ferry_kv_layout_free.
///
/// FERRY_ERR_INVALID: the bytes are no layout, or one that makes no sense. FERRY_ERR_VERSION: a later version of ferry
/// wrote them. FERRY_ERR_LIMIT: a number is too large.
ferry_status ferry_kv_layout_import(const void *bytes,
                                    size_t length,
                                    ferry_kv_layout **out_layout,
                                    ferry_error *error);

/* ---- Plans ------------------------------------------------------------------------------------- */

/* Who sends what, from one instance to another that may be sharded differently. */

/// Who sends what, for two instances. Any rank of either instance makes the same plan, without a word to the others. It
/// never changes; any number of threads may use it.
typedef struct ferry_kv_plan ferry_kv_plan;

/// Plans how the instance of `target` gets what the instance of `source` holds. Each layout may be that of any rank of
/// its instance. Free the plan with ferry_kv_plan_free; the layouts may be freed before.
///
/// FERRY_ERR_INVALID: the caches are of different models; the message says what differs. FERRY_ERR_UNSUPPORTED: the
/// target cannot be filled from the source; the message names the layer. FERRY_ERR_LIMIT: the plan takes too many
/// steps, of which each is a rank, layer and head.
ferry_status ferry_kv_plan_new(const ferry_kv_layout *source,
                               const ferry_kv_layout *target,
                               ferry_kv_plan **out_plan,
                               ferry_error *error);

/// Frees a plan. NULL does nothing. Moves that were made from it stay.
void ferry_kv_plan_free(ferry_kv_plan *plan);

/// Lists the ranks of the source that send to a rank of the target, in their order. Returns lists as
/// ferry_config_settings does, without element_size. FERRY_ERR_INVALID: the target has no such rank.
ferry_status ferry_kv_plan_sources(const ferry_kv_plan *plan,
                                   uint32_t target_rank,
                                   uint32_t *out_ranks,
                                   size_t capacity,
                                   size_t *out_count,
                                   ferry_error *error);

/// Lists the ranks of the target to which a rank of the source sends, in their order; none if it sends nothing. Returns
/// lists as ferry_config_settings does, without element_size. FERRY_ERR_INVALID: the source has no such rank.
ferry_status ferry_kv_plan_targets(const ferry_kv_plan *plan,
                                   uint32_t source_rank,
                                   uint32_t *out_ranks,
                                   size_t capacity,
                                   size_t *out_count,
                                   ferry_error *error);

/// Writes a page for people: the shapes of both sides, who sends how much to whom, and in pieces of what size. Programs
/// must not parse it. Returns texts as ferry_config_get does.
ferry_status ferry_kv_plan_explain(const ferry_kv_plan *plan,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *out_length,
                                   ferry_error *error);

/* ---- Bytes to move ----------------------------------------------------------------------------- */

/// The bytes that one rank of the source sends to one rank of the target. It never changes; any number of threads may
/// use it.
typedef struct ferry_kv_moves ferry_kv_moves;

/// The blocks of one sequence in one group of the target, on both sides. Each list has the ids of blocks that hold
/// consecutive tokens of the rank; of a state, the blocks are paired one to one. FERRY_KV_BLOCKS_INIT sets struct_size.
typedef struct ferry_kv_blocks {
    /// sizeof(ferry_kv_blocks).
    uint32_t struct_size;
    /// Must be 0.
    uint32_t reserved;
    /// Ids of the source's blocks, of that group of the source which has the same layers.
    const uint32_t *source_blocks;
    /// Length of source_blocks.
    uint64_t source_count;
    /// Position of the first block's first token among the tokens that the source's rank holds: a multiple of its
    /// block_tokens. Not looked at for a state.
    uint64_t source_first_token;
    /// Ids of the target's blocks; none twice.
    const uint32_t *target_blocks;
    /// Length of target_blocks.
    uint64_t target_count;
    /// The same position among the tokens of the target's rank.
    uint64_t target_first_token;
} ferry_kv_blocks;

/// Initializes a ferry_kv_blocks: its struct_size, and zero in all other fields.
#define FERRY_KV_BLOCKS_INIT \
    { (uint32_t)sizeof(ferry_kv_blocks), 0, NULL, 0, 0, NULL, 0, 0 }

/// Which part of a sequence to move. FERRY_KV_PART_INIT sets struct_size.
typedef struct ferry_kv_part {
    /// sizeof(ferry_kv_part).
    uint32_t struct_size;
    /// Must be 0.
    uint32_t reserved;
    /// First token of the sequence. Of a window only the last tokens before end_token are moved. The blocks of a state
    /// are moved whatever the tokens: give empty lists when they shall not move.
    uint64_t first_token;
    /// The token behind the last; not below first_token.
    uint64_t end_token;
    /// First layer, as an index into the target's layers.
    uint32_t first_layer;
    /// The layer behind the last, not below first_layer; UINT32_MAX for all from first_layer on.
    uint32_t end_layer;
    /// Array with one element for each group of the target, which lie struct_size apart.
    const ferry_kv_blocks *blocks;
    /// Length of blocks.
    uint64_t group_count;
} ferry_kv_part;

/// Initializes a ferry_kv_part: its struct_size, and zero in all other fields.
#define FERRY_KV_PART_INIT \
    { (uint32_t)sizeof(ferry_kv_part), 0, 0, 0, 0, 0, NULL, 0 }

/// Bytes of one layer, by strides. For each i below pair_count, and each step of four nested loops, `bytes` contiguous
/// bytes go
///
///     from source + source_blocks[i] * source_stride + a * source_steps[0] + b * source_steps[1]
///                 + c * source_steps[2] + d * source_steps[3]
///     to   target + target_blocks[i] * target_stride + a * target_steps[0] + b * target_steps[1]
///                 + c * target_steps[2] + d * target_steps[3]
///
/// with a below counts[0], b below counts[1], c below counts[2] and d below counts[3]. Loops that are not needed have
/// the count 1. The caller sets struct_size before the call.
typedef struct ferry_kv_move {
    /// In: sizeof(ferry_kv_move). Out: how many bytes were written.
    uint32_t struct_size;
    /// Index into the target's layers.
    uint32_t layer;
    /// Where the first bytes of the source's block 0 would lie, in the process of the source's rank.
    uint64_t source;
    /// Where the first bytes of the target's block 0 would lie, in the process of the target's rank.
    uint64_t target;
    /// From one block of the source to the next.
    uint64_t source_stride;
    /// From one block of the target to the next.
    uint64_t target_stride;
    /// Contiguous bytes of each step.
    uint64_t bytes;
    /// How often each of the loops runs, the outermost first; at least 1.
    uint64_t counts[4];
    /// From one step of a loop to the next, at the source.
    uint64_t source_steps[4];
    /// From one step of a loop to the next, at the target.
    uint64_t target_steps[4];
    /// Length of the two lists.
    uint64_t pair_count;
    /// Ids of the source's blocks. The list belongs to the ferry_kv_moves.
    const uint32_t *source_blocks;
    /// Ids of the target's blocks, paired with source_blocks. The list belongs to the ferry_kv_moves.
    const uint32_t *target_blocks;
} ferry_kv_move;

/// Initializes a ferry_kv_move: its struct_size, and zero in all other fields.
#define FERRY_KV_MOVE_INIT \
    { (uint32_t)sizeof(ferry_kv_move), 0, 0, 0, 0, 0, 0, {0}, {0}, {0}, 0, NULL, NULL }

/// Finds the bytes that the rank of `source` sends to the rank of `target` for a part of a sequence; none if the two
/// exchange nothing. The layouts are those of these two ranks, with their memory, and may be freed before the moves.
/// Nothing is moved. Free the moves with ferry_kv_moves_free.
///
/// FERRY_ERR_INVALID: the layouts are not those of the plan, a list lacks a token of the part that its rank holds, a
/// block is beyond a layer's blocks, or a block of the target is twice in its list; the message names the list.
ferry_status ferry_kv_plan_lower(const ferry_kv_plan *plan,
                                 const ferry_kv_layout *source,
                                 const ferry_kv_layout *target,
                                 const ferry_kv_part *part,
                                 ferry_kv_moves **out_moves,
                                 ferry_error *error);

/// Frees moves. NULL does nothing.
void ferry_kv_moves_free(ferry_kv_moves *moves);

/// Returns how many moves there are.
ferry_status ferry_kv_moves_count(const ferry_kv_moves *moves,
                                  size_t *out_count,
                                  ferry_error *error);

/// Returns one move. FERRY_ERR_INVALID: there is no move of this index.
ferry_status ferry_kv_moves_get(const ferry_kv_moves *moves,
                                size_t index,
                                ferry_kv_move *out_move,
                                ferry_error *error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FERRY_KV_H */
