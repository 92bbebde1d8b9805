/** @file
 * ferry for KV caches: layouts and resharding, handing sequences over, and directories of peers. Part of libferry.
 *
 * Generated from ffi/src/kv by `UPDATE=1 cargo test -p ferry-ffi --test header`; don't edit. Above 500
 * lines, because a program includes one file. docs/kv.md and docs/directory.md have examples. The rules of ferry.h hold, and:
 *
 * - Calls of layouts, plans and moves need no engine, touch none of the memory that a layout names, and never
 *   wait: they compute. A forked child may use what it inherited of these; of an inherited cache, each call
 *   returns FERRY_ERR_CLOSED, and closing and freeing do nothing.
 * - Layouts, plans and moves never change. Any number of threads may use one, or a cache; only its free must
 *   be alone.
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
    /// Tokens of the window in a FERRY_KV_GROUP_WINDOW, at least 1. 0 otherwise.
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
/// where head counts from the rank's first and token from the block's first. Strides are in bytes. Dimensions may be
/// nested in any order, but each stride must be at least the extent of all dimensions with smaller strides. The gaps
/// are padding, which is not moved. The stride of a dimension of size 1 is ignored. FERRY_KV_LAYER_INIT sets
/// struct_size.
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
    /// Address of block 0 in the process of this rank. 0 for a layer of another stage: blocks and strides are then
    /// ignored.
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

/* ---- Where a layer lies ------------------------------------------------------------------------ */

/// The order of the dimensions of a contiguous tensor, from the outermost: [2][blocks][tokens][heads][elements], all
/// keys, then all values. The engines call it NHD.
#define FERRY_KV_PAIR_BLOCK_TOKEN_HEAD 1

/// [2][blocks][heads][tokens][elements]: all keys, then all values. HND.
#define FERRY_KV_PAIR_BLOCK_HEAD_TOKEN 2

/// [blocks][2][tokens][heads][elements]: a block's keys, then its values. NHD. Also for layers without pairs (pairs
/// is 1).
#define FERRY_KV_BLOCK_PAIR_TOKEN_HEAD 3

/// [blocks][2][heads][tokens][elements]: a block's keys, then its values. HND.
#define FERRY_KV_BLOCK_PAIR_HEAD_TOKEN 4

/// [blocks][heads][2][tokens][elements]: a head's keys, then its values.
#define FERRY_KV_BLOCK_HEAD_PAIR_TOKEN 5

/// A tensor of a framework that holds one layer's blocks. FERRY_KV_TENSOR_INIT sets struct_size.
typedef struct ferry_kv_tensor {
    /// sizeof(ferry_kv_tensor).
    uint32_t struct_size;
    /// Bytes of one element.
    uint32_t element_bytes;
    /// Address of the first element, in this process.
    uint64_t address;
    /// Names of the dimensions, from the outermost: the words block, pair, token, head and element, each at most
    /// once, for example "block pair token head element". A dimension without its word has size 1; block and element
    /// are needed.
    const char *order;
    /// Length of shape and of strides; as many as order has words.
    uint64_t dimension_count;
    /// The sizes of the dimensions.
    const uint64_t *shape;
    /// Bytes from one element of a dimension to the next. NULL: the tensor is contiguous.
    const uint64_t *strides;
} ferry_kv_tensor;

/// Initializes a ferry_kv_tensor: its struct_size, and zero in all other fields.
#define FERRY_KV_TENSOR_INIT \
    { (uint32_t)sizeof(ferry_kv_tensor), 0, 0, NULL, 0, NULL, NULL }

/// Sets the five strides of a layer to those of a contiguous tensor, from its group, heads, pairs, elements,
/// element_bytes and blocks. The call reads tp_rank, tp_size and groups of `desc`, not its layers.
///
/// FERRY_ERR_INVALID: `arrangement` is none of FERRY_KV_PAIR_* and FERRY_KV_BLOCK_*, or the layer's group does not
/// exist. ferry_kv_layout_new checks the rest of the layer.
ferry_status ferry_kv_layer_arrange(const ferry_kv_layout_desc *desc,
                                    uint32_t arrangement,
                                    ferry_kv_layer *layer,
                                    ferry_error *error);

/// Places a layer in a tensor: sets pairs, elements, element_bytes, address, blocks and the five strides. The caller
/// sets name, group and stage. heads stays as it is if it is not 0; otherwise it becomes the tensor's heads times
/// tp_size, which is right unless heads are replicated. The call reads the ranks and groups of `desc`, not its layers.
///
/// FERRY_ERR_INVALID: order does not fit the tensor, or the tensor does not fit block_tokens or heads; the message
/// names the dimension. ferry_kv_layout_new checks the rest of the layer.
ferry_status ferry_kv_layer_of(const ferry_kv_layout_desc *desc,
                               const ferry_kv_tensor *tensor,
                               ferry_kv_layer *layer,
                               ferry_error *error);

/* ---- Layouts ----------------------------------------------------------------------------------- */

/// The layout of a paged KV cache in a rank of an inference engine. It never changes; any number of threads may use it.
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
/// The errors name layer and field. FERRY_ERR_INVALID: the description is inconsistent, for example strides that
/// would place two bytes at one address, or two layers of one group that share a byte. Layers of different groups may
/// share memory. FERRY_ERR_LIMIT: a number is too large. FERRY_ERR_UNSUPPORTED: states with context parallelism.
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
/// FERRY_ERR_LIMIT: the layout needs more bytes. Only long names without common prefixes, or about as many shapes as
/// layers, need so many.
ferry_status ferry_kv_layout_export(const ferry_kv_layout *layout,
                                    void *buffer,
                                    size_t capacity,
                                    size_t *out_length,
                                    ferry_error *error);

/// Makes a layout from the bytes of ferry_kv_layout_export. The bytes need not come from a trusted sender; the call
/// checks them as ferry_kv_layout_new checks a description. Free the layout with ferry_kv_layout_free.
///
/// FERRY_ERR_INVALID: the bytes are no layout, or one that makes no sense. FERRY_ERR_VERSION: a later version of ferry
/// wrote them. FERRY_ERR_LIMIT: a number is too large.
ferry_status ferry_kv_layout_import(const void *bytes,
                                    size_t length,
                                    ferry_kv_layout **out_layout,
                                    ferry_error *error);

/* ---- Plans ------------------------------------------------------------------------------------- */

/* Who sends what, from one instance to another that may be sharded differently. */

/// Which ranks of two instances exchange which bytes. Every rank of both instances computes the same plan, without
/// communication. A plan never changes; any number of threads may use it.
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

/// Writes a report for people: the shapes of both sides, and how many bytes each rank sends to which rank, in pieces
/// of what size. Programs must not parse it. Returns texts as ferry_config_get does.
ferry_status ferry_kv_plan_explain(const ferry_kv_plan *plan,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *out_length,
                                   ferry_error *error);

/* ---- Bytes to move ----------------------------------------------------------------------------- */

/// The bytes that one rank of the source sends to one rank of the target. It never changes; any number of threads may
/// use it.
typedef struct ferry_kv_moves ferry_kv_moves;

/// The blocks of one sequence in one group of the target, on both sides. Each list holds the ids of blocks that store
/// consecutive tokens of the rank. In a state group, the two lists pair their blocks one to one.
/// FERRY_KV_BLOCK_PAIRS_INIT sets struct_size.
typedef struct ferry_kv_block_pairs {
    /// sizeof(ferry_kv_block_pairs).
    uint32_t struct_size;
    /// Must be 0.
    uint32_t reserved;
    /// Ids of the source's blocks, in the source's group that has the same layers.
    const uint32_t *source_blocks;
    /// Length of source_blocks.
    uint64_t source_count;
    /// Position of the first block's first token among the tokens that the source's rank holds: a multiple of its
    /// block_tokens. Ignored for a state.
    uint64_t source_first_token;
    /// Ids of the target's blocks; none twice.
    const uint32_t *target_blocks;
    /// Length of target_blocks.
    uint64_t target_count;
    /// The same position among the tokens of the target's rank.
    uint64_t target_first_token;
} ferry_kv_block_pairs;

/// Initializes a ferry_kv_block_pairs: its struct_size, and zero in all other fields.
#define FERRY_KV_BLOCK_PAIRS_INIT \
    { (uint32_t)sizeof(ferry_kv_block_pairs), 0, NULL, 0, 0, NULL, 0, 0 }

/// Which part of a sequence to move. FERRY_KV_PART_INIT sets struct_size.
typedef struct ferry_kv_part {
    /// sizeof(ferry_kv_part).
    uint32_t struct_size;
    /// Must be 0.
    uint32_t reserved;
    /// First token of the sequence. In a window group, only the last tokens before end_token are moved. In a state
    /// group, all listed blocks are moved, whatever the tokens; pass empty lists to move none.
    uint64_t first_token;
    /// One past the last token; not below first_token.
    uint64_t end_token;
    /// First layer, as an index into the target's layers.
    uint32_t first_layer;
    /// One past the last layer; not below first_layer. UINT32_MAX means all layers from first_layer on.
    uint32_t end_layer;
    /// Array with one element for each group of the target. The elements lie struct_size apart.
    const ferry_kv_block_pairs *blocks;
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

/// Finds the bytes that the rank of `source` sends to the rank of `target` for a part of a sequence. There are no
/// moves if the two ranks exchange nothing. Each layout describes its rank and that rank's memory, and may be freed
/// before the moves. This call moves nothing. Free the moves with ferry_kv_moves_free.
///
/// FERRY_ERR_INVALID: the layouts do not belong to the plan, a list lacks a token of the part that its rank holds, a
/// block id is beyond a layer's blocks, or the target's list names a block twice. The message names the list.
ferry_status ferry_kv_plan_lower(const ferry_kv_plan *plan,
                                 const ferry_kv_layout *source,
                                 const ferry_kv_layout *target,
                                 const ferry_kv_part *part,
                                 ferry_kv_moves **out_moves,
                                 ferry_error *error);

/// Frees moves. NULL does nothing.
void ferry_kv_moves_free(ferry_kv_moves *moves);

/// Returns the number of moves.
ferry_status ferry_kv_moves_count(const ferry_kv_moves *moves,
                                  size_t *out_count,
                                  ferry_error *error);

/// Returns one move. FERRY_ERR_INVALID: the index is not below ferry_kv_moves_count.
ferry_status ferry_kv_moves_get(const ferry_kv_moves *moves,
                                size_t index,
                                ferry_kv_move *out_move,
                                ferry_error *error);

/* ---- Handing a sequence over ------------------------------------------------------------------- */

/* A producer offers blocks, consumers take them. ferry moves the tokens as they become ready, and tells both
   sides when their blocks are theirs again. docs/internals/handoff.md has the rules. */

/// Length of an id as text: 32 hexadecimal digits and the terminating zero.
#define FERRY_KV_ID_TEXT_BYTES 33

/// 128 random bits that name one attempt to hand a sequence over. The router of the request draws the id, sends it to
/// the producer and the consumer, and never uses it again. Anyone who knows an id may take its offer.
typedef struct ferry_kv_id {
    /// The bits. Compare ids with memcmp.
    uint8_t bytes[16];
} ferry_kv_id;

/// Draws an id. Needs no engine. FERRY_ERR_SYSTEM: the system gives no random bits.
ferry_status ferry_kv_id_new(ferry_kv_id *out_id, ferry_error *error);

/// Writes an id as 32 hexadecimal digits, for the message that carries the id to another process. `buffer` has room for
/// FERRY_KV_ID_TEXT_BYTES; `capacity` is its size. Keep the text out of logs: anyone who knows an id may take its
/// offer. FERRY_ERR_LIMIT: the buffer is smaller.
ferry_status ferry_kv_id_format(const ferry_kv_id *id,
                                char *buffer,
                                size_t capacity,
                                ferry_error *error);

/// Reads an id as ferry_kv_id_format writes it. FERRY_ERR_INVALID: `text` is not 32 hexadecimal digits.
ferry_status ferry_kv_id_parse(const char *text,
                               ferry_kv_id *out_id,
                               ferry_error *error);

/* ---- Caches ------------------------------------------------------------------------------------ */

/// One rank's cache in registered memory of an engine: hands sequences over to the caches of other engines, and takes
/// theirs. All threads may use a cache at the same time; only ferry_kv_cache_free must be alone.
typedef struct ferry_kv_cache ferry_kv_cache;

/// Registered memory that holds layers of a cache. FERRY_KV_MEMORY_INIT sets struct_size.
typedef struct ferry_kv_memory {
    /// sizeof(ferry_kv_memory).
    uint32_t struct_size;
    /// Must be 0.
    uint32_t reserved;
    /// The region. Offers need FERRY_ACCESS_REMOTE_READ, takes FERRY_ACCESS_REMOTE_WRITE, for peers that move the
    /// bytes.
    ferry_region region;
    /// Where the memory begins.
    uint64_t address;
    /// Its bytes.
    uint64_t length;
} ferry_kv_memory;

/// Initializes a ferry_kv_memory: its struct_size, and zero in all other fields.
#define FERRY_KV_MEMORY_INIT \
    { (uint32_t)sizeof(ferry_kv_memory), 0, 0, 0, 0 }

/// Options of a cache. FERRY_KV_CACHE_OPTIONS_INIT sets struct_size.
typedef struct ferry_kv_cache_options {
    /// sizeof(ferry_kv_cache_options).
    uint32_t struct_size;
    /// When the cache expects something of a peer that has been silent for half of this time, the cache asks the peer
    /// for a sign of life. If the peer gives none within the other half, its handoffs end, and the peer is fenced if
    /// its own transfers may touch their blocks. A peer that answers is also fenced if it does not end such transfers
    /// within ten times this time after it was asked to end them. Milliseconds; 0 means 1,000.
    uint32_t silence_ms;
    /// Most blocks in sealed offers that nobody has taken; 0 means no bound. A seal that exceeds the bound ends the
    /// oldest of these offers, as ferry_kv_reclaim does.
    uint64_t leased_blocks_max;
} ferry_kv_cache_options;

/// Initializes a ferry_kv_cache_options: its struct_size, and zero in all other fields.
#define FERRY_KV_CACHE_OPTIONS_INIT \
    { (uint32_t)sizeof(ferry_kv_cache_options), 0, 0 }

/// Opens the cache that a layout describes. End it with ferry_kv_cache_close, then ferry_kv_cache_free.
///
/// Each layer of the rank's own stage lies in one of the `count` elements of `memory`, whose regions stay registered
/// until the cache is closed. The layout is copied. `options` NULL means the defaults. The cache takes the engine's
/// notifications of channel 1, and has a thread.
///
/// FERRY_ERR_BUSY: the engine has a cache, or another queue takes channel 1. FERRY_ERR_INVALID: `memory` lacks a
/// layer; the message names it. FERRY_ERR_STALE, FERRY_ERR_NOT_REGISTERED: no such region. FERRY_ERR_LIMIT: the
/// exported layout would have more than 64 KiB. FERRY_ERR_SYSTEM: the system is out of descriptors or threads.
ferry_status ferry_kv_cache_open(ferry_engine *engine,
                                 const ferry_kv_layout *layout,
                                 const ferry_kv_memory *memory,
                                 size_t count,
                                 const ferry_kv_cache_options *options,
                                 ferry_kv_cache **out_cache,
                                 ferry_error *error);

/// Closes a cache: refuses new work, ends all offers and takes, and waits until nothing touches their blocks and the
/// peers have been told. The call gives up a peer that takes no messages after the silence_ms of the cache's options.
/// ferry_kv_poll still returns all terminal events afterwards. A later call returns FERRY_OK again.
///
/// FERRY_ERR_BUSY: that took longer than the timeout. The cache is still closing; call again. Also FERRY_ERR_BUSY
/// inside a callback, unless the timeout is 0. Closing the engine closes its cache too. In a forked child the call does
/// nothing and returns FERRY_OK.
ferry_status ferry_kv_cache_close(ferry_kv_cache *cache,
                                  uint64_t timeout_ns,
                                  ferry_error *error);

/// Frees a cache and the events that were not taken. NULL does nothing. The engine may be freed before or after.
///
/// Call it only after ferry_kv_cache_close has returned FERRY_OK, and while no other call uses the cache. If the
/// cache is not closed, this call closes it and does not wait. The cache's thread then ends the remaining handoffs,
/// and the caller does not learn when it owns their blocks again; only ferry_engine_close makes that certain. In a
/// forked child the call does nothing.
void ferry_kv_cache_free(ferry_kv_cache *cache);

/* ---- Lists of blocks --------------------------------------------------------------------------- */

/// The blocks of one group that hold a sequence, in the order of the sequence. Each block holds the rank's next
/// block_tokens tokens. FERRY_KV_BLOCK_LIST_INIT sets struct_size. It is also the list of a group that is not needed
/// or has no blocks yet.
typedef struct ferry_kv_block_list {
    /// sizeof(ferry_kv_block_list).
    uint32_t struct_size;
    /// Must be 0.
    uint32_t reserved;
    /// Position of the first block's first token among the tokens that the rank holds, a multiple of the group's
    /// block_tokens: 0, unless earlier tokens have left a window, or a take skips them. ferry_kv_offer_extend reads it
    /// only for a group that has no blocks.
    uint64_t first_token;
    /// Ids of the blocks; none twice.
    const uint32_t *blocks;
    /// Length of blocks. At most 1,000,000 in all groups together.
    uint64_t block_count;
} ferry_kv_block_list;

/// Initializes a ferry_kv_block_list: its struct_size, and zero in all other fields.
#define FERRY_KV_BLOCK_LIST_INIT \
    { (uint32_t)sizeof(ferry_kv_block_list), 0, 0, NULL, 0 }

/* ---- Offers ------------------------------------------------------------------------------------ */

/// The options of an offer. FERRY_KV_OFFER_OPTIONS_INIT sets struct_size.
typedef struct ferry_kv_offer_options {
    /// sizeof(ferry_kv_offer_options).
    uint32_t struct_size;
    /// How many consumers take the offer, each with all of its ranks: 1 to 64; 0 means 1. The offer ends when this
    /// many consumers have ended.
    uint32_t takers;
    /// Array with one element for each group of the layout. The elements lie struct_size apart. ferry_kv_offer_extend
    /// can add blocks later.
    const ferry_kv_block_list *blocks;
    /// Length of blocks.
    uint64_t group_count;
    /// The peers that may take the offer. NULL for every peer.
    const ferry_peer *only;
    /// Length of only; 0 for every peer.
    uint64_t only_count;
    /// Length of the lease in milliseconds, counted from ferry_kv_offer_seal. The offer ends if some of its takers
    /// have not arrived when the lease is over. 0 means 30,000.
    uint32_t lease_ms;
    /// Must be 0.
    uint32_t reserved;
} ferry_kv_offer_options;

/// Initializes a ferry_kv_offer_options: its struct_size, and zero in all other fields.
#define FERRY_KV_OFFER_OPTIONS_INIT \
    { (uint32_t)sizeof(ferry_kv_offer_options), 0, NULL, 0, NULL, 0, 0, 0 }

/// Offers blocks of a sequence. No token is ready yet: the program calls ferry_kv_offer_ready for tokens that it has
/// computed. Until the offer's terminal event, the caller must not free the blocks, and must not write tokens that it
/// has declared ready.
///
/// FERRY_ERR_INVALID: the blocks are wrong, or the id is in use or has ended. FERRY_ERR_LIMIT: 65,536 offers have not
/// ended, or the offer has more than 1,000,000 blocks. FERRY_ERR_CLOSED: the cache is closed or closing; every call
/// below returns it too.
ferry_status ferry_kv_offer(ferry_kv_cache *cache,
                            const ferry_kv_id *id,
                            const ferry_kv_offer_options *options,
                            ferry_error *error);

/// Adds blocks to an offer, as they are allocated. `blocks` has one element for each group of the layout; its blocks
/// follow those that the group already has. first_token of an element is read only if the group has no blocks: the list
/// then begins there, or at the earlier list's first_token if that is later.
///
/// FERRY_ERR_INVALID: the blocks are wrong, the offer is sealed, or the id is no offer. FERRY_ERR_STALE: the offer
/// has ended or is ending. FERRY_ERR_BUSY: a ferry_kv_offer_retract of this offer has not succeeded yet.
/// ferry_kv_offer_ready, ferry_kv_offer_ready_after and ferry_kv_offer_seal return FERRY_ERR_BUSY for the same
/// reason.
ferry_status ferry_kv_offer_extend(ferry_kv_cache *cache,
                                   const ferry_kv_id *id,
                                   const ferry_kv_block_list *blocks,
                                   size_t group_count,
                                   ferry_error *error);

/// Declares that the blocks contain the first `tokens` tokens of the sequence, in the layers from `first_layer` to
/// before `end_layer` (UINT32_MAX for all from first_layer on). `tokens` counts tokens of the whole sequence, with
/// context parallelism too. Layers become ready in their order, again for each chunk of a prefill. ferry may move
/// ready tokens at once.
///
/// FERRY_ERR_INVALID: a layer is already ready up to `tokens`, a layer below first_layer is not ready that far yet,
/// the blocks do not reach that far, the seal has fewer tokens, or the id is no offer. FERRY_ERR_STALE: the offer has
/// ended or is ending.
ferry_status ferry_kv_offer_ready(ferry_kv_cache *cache,
                                  const ferry_kv_id *id,
                                  uint32_t first_layer,
                                  uint32_t end_layer,
                                  uint64_t tokens,
                                  ferry_error *error);

/// Does as ferry_kv_offer_ready, once the program's work on a device has reached a point. `event_kind` is
/// FERRY_START_AFTER_CUDA_EVENT, FERRY_START_AFTER_CUDA_STREAM or FERRY_START_AFTER_ACL_STREAM, and `event` is the
/// event or the stream. With FERRY_START_NOW and 0 the call is ferry_kv_offer_ready. The call fixes the point: the
/// event as it is recorded now, or the work that the stream has been given so far. Afterwards the program may record
/// the event again, or destroy it. An event that was recorded in a stream under capture is not supported.
///
/// The layers of an offer become ready in the order of these calls and the calls of ferry_kv_offer_ready. A call of
/// ferry_kv_offer_ready therefore waits for earlier events too. If the work before an event fails, the offer fails
/// with the device's status. An offer that ends stops waiting for events.
///
/// The call returns the errors of ferry_kv_offer_ready. FERRY_ERR_UNSUPPORTED: FERRY_START_AFTER_ACL_EVENT, because
/// AscendCL cannot wait for an event this way: pass its stream. FERRY_ERR_UNAVAILABLE: there is no such device.
/// FERRY_ERR_LIMIT: 4,096 calls wait for events.
ferry_status ferry_kv_offer_ready_after(ferry_kv_cache *cache,
                                        const ferry_kv_id *id,
                                        uint32_t first_layer,
                                        uint32_t end_layer,
                                        uint64_t tokens,
                                        uint32_t event_kind,
                                        uint64_t event,
                                        ferry_error *error);

/// Seals the offer: the sequence has `tokens` tokens, and no more blocks follow. The lease begins. Layers may still
/// become ready.
///
/// FERRY_ERR_INVALID: more tokens are ready, the offer is sealed, or the id is no offer. FERRY_ERR_STALE: the offer has
/// ended or ends.
ferry_status ferry_kv_offer_seal(ferry_kv_cache *cache,
                                 const ferry_kv_id *id,
                                 uint64_t tokens,
                                 ferry_error *error);

/// Takes back the tokens of an offer from `from_token` on, in all groups, and removes the seal, for example because
/// the sequence was preempted. Blocks that hold no token before `from_token` leave the offer. The blocks of a
/// FERRY_KV_GROUP_STATE group hold the state after the last ready token, so they leave when that token is taken back.
///
/// The call waits until nothing reads these tokens any more and all takers have dropped them. After FERRY_OK the
/// caller owns the blocks that left, and may write the other blocks from `from_token` on. The offer goes on: call
/// ferry_kv_offer_extend to add blocks from there, then ferry_kv_offer_ready, and ferry_kv_offer_seal with any number
/// of tokens. A take fails with FERRY_ERR_STALE if it has reported complete layers (FERRY_KV_TAKE_LAYERS) that
/// include one of these tokens. A take that has ended keeps its tokens.
///
/// FERRY_ERR_BUSY: a taker has not answered within the timeout. No block is freed, but the tokens stay taken back:
/// call again, with the same or an earlier token, until the call succeeds, or abort the offer. The offer gives up a
/// silent taker after ferry_kv_cache_options.silence_ms. The call also returns FERRY_ERR_BUSY inside a callback,
/// unless the timeout is 0. FERRY_ERR_STALE: the offer has ended or is ending; the caller owns its blocks after its
/// terminal event. FERRY_ERR_INVALID: the id is no offer, or an earlier call is already taking back tokens before
/// `from_token`.
ferry_status ferry_kv_offer_retract(ferry_kv_cache *cache,
                                    const ferry_kv_id *id,
                                    uint64_t from_token,
                                    uint64_t timeout_ns,
                                    ferry_error *error);

/// Frees blocks of the window group `group` of the layout whose tokens are all before `before_token`, because these
/// tokens have left the window. The call waits until nothing reads the blocks any more. After FERRY_OK the caller
/// owns the blocks; the rest of the offer stays as it is.
///
/// Takes of the whole sequence do not need these blocks. A take that ends at an earlier token may need them; such a
/// take fails with FERRY_ERR_STALE, unless all layers of the group are on their way to it.
///
/// FERRY_ERR_BUSY: such a take has not received the blocks within the timeout. No block is freed: call again. No
/// further take gets these blocks. The call also returns FERRY_ERR_BUSY inside a callback, unless the timeout is 0.
/// FERRY_ERR_STALE: the offer has ended or is ending. FERRY_ERR_INVALID: the group is no window, or the id is no
/// offer.
ferry_status ferry_kv_offer_retract_window(ferry_kv_cache *cache,
                                           const ferry_kv_id *id,
                                           uint32_t group,
                                           uint64_t before_token,
                                           uint64_t timeout_ns,
                                           ferry_error *error);

/// Asks an offer to end. The caller owns the offer's blocks after the terminal event: FERRY_KV_EVENT_CANCELLED, or
/// another kind if the offer ended for another reason first. FERRY_ERR_INVALID: the id is no offer. FERRY_ERR_STALE:
/// the offer has ended or is ending.
ferry_status ferry_kv_offer_cancel(ferry_kv_cache *cache,
                                   const ferry_kv_id *id,
                                   ferry_error *error);

/// Ends sealed offers that nobody has taken until they free at least `blocks` blocks or no such offer is left. The
/// offer whose lease ends first goes first. *out_freed gets the number of blocks in the ended offers. Their terminal
/// event is FERRY_KV_EVENT_EXPIRED.
ferry_status ferry_kv_reclaim(ferry_kv_cache *cache,
                              size_t blocks,
                              size_t *out_freed,
                              ferry_error *error);

/* ---- Takes ------------------------------------------------------------------------------------- */

/// Pull on the same host, else push.
#define FERRY_KV_MODE_AUTO 0

/// The consumer READs the producer's memory.
#define FERRY_KV_MODE_PULL 1

/// The producer WRITEs into the consumer's memory.
#define FERRY_KV_MODE_PUSH 2

/// Flag of a take: FERRY_KV_EVENT_LAYERS reports layers as they become complete.
#define FERRY_KV_TAKE_LAYERS 1

/// The options of a take. FERRY_KV_TAKE_OPTIONS_INIT sets struct_size.
typedef struct ferry_kv_take_options {
    /// sizeof(ferry_kv_take_options).
    uint32_t struct_size;
    /// FERRY_KV_MODE_*.
    uint32_t mode;
    /// The peers of all ranks of the producer, in the order of their rank numbers; connect to them before the take.
    const ferry_peer *producers;
    /// Length of producers.
    uint64_t producer_count;
    /// A number that all ranks of one consumer share and no other consumer of the offer uses.
    uint64_t taker;
    /// Array with one element for each group of the layout, which lie struct_size apart.
    const ferry_kv_block_list *blocks;
    /// Length of blocks.
    uint64_t group_count;
    /// Tokens at the beginning that the consumer has already, for example of a cached prefix.
    uint64_t skip_tokens;
    /// Where the tokens end; not below skip_tokens.
    uint64_t tokens;
    /// Nanoseconds from now until which the take must be complete; it fails with FERRY_ERR_TIMEOUT otherwise. 0 and
    /// FERRY_FOREVER: no deadline.
    uint64_t deadline_ns;
    /// FERRY_KV_TAKE_* bits.
    uint32_t flags;
    /// Must be 0.
    uint32_t reserved;
} ferry_kv_take_options;

/// Initializes a ferry_kv_take_options: its struct_size, and zero in all other fields.
#define FERRY_KV_TAKE_OPTIONS_INIT \
    { (uint32_t)sizeof(ferry_kv_take_options), 0, NULL, 0, 0, NULL, 0, 0, 0, 0, 0, 0 }

/// Takes a handoff: ferry moves the tokens into the blocks as they become ready at the producer. The take may begin
/// before its offer exists. Until the take's terminal event, the caller must not free the blocks, nor read or write
/// their tokens from skip_tokens on. The caller may read layers that FERRY_KV_EVENT_LAYERS has reported.
///
/// A take from several ranks of a producer also ends by FERRY_KV_EVENT_PEER_LOST if a rank is lost after it has sent
/// its part and before the other ranks have sent theirs: the lost rank may have taken tokens back since. A rank that
/// closed its cache (ferry_kv_cache_close) before is no longer needed.
///
/// FERRY_ERR_INVALID: the blocks or tokens are wrong, another take that has not ended writes a block that this one
/// would write (blocks of skipped tokens alone are not written), or the id is in use or has ended. FERRY_ERR_STALE
/// and others: ferry_peer_get_info of a producer fails so. FERRY_ERR_LIMIT: 16,384 takes have not ended, or the take
/// has more than 1,000,000 blocks. FERRY_ERR_CLOSED: the cache is closed or closing.
ferry_status ferry_kv_take(ferry_kv_cache *cache,
                           const ferry_kv_id *id,
                           const ferry_kv_take_options *options,
                           ferry_error *error);

/// Asks a take to end. The caller owns the take's blocks after the terminal event: FERRY_KV_EVENT_CANCELLED, or
/// another kind if the take ended for another reason first. FERRY_ERR_INVALID: the id is no take. FERRY_ERR_STALE:
/// the take has ended.
ferry_status ferry_kv_take_cancel(ferry_kv_cache *cache,
                                  const ferry_kv_id *id,
                                  ferry_error *error);

/* ---- Events of a cache ------------------------------------------------------------------------- */

/// In a take with FERRY_KV_TAKE_LAYERS: the layers before `layers` are complete, and may be read. If more layers are
/// complete before the event is taken, it tells the newest number. If the take fails later, these layers stay as they
/// are: the tokens of the take in them are right, unless its status is FERRY_ERR_STALE or FERRY_ERR_CORRUPT. All other
/// kinds are terminal.
#define FERRY_KV_EVENT_LAYERS 1

/// Every rank of every taker that takes from this rank has received its whole take, from all ranks of the producer.
/// A take that fails leaves none of its offers SENT. Until a take ends, the blocks of each rank that it takes from stay
/// with the offer.
#define FERRY_KV_EVENT_SENT 2

/// All tokens of the take are in their blocks.
#define FERRY_KV_EVENT_RECEIVED 3

/// The offer or take has failed; status and message say why.
#define FERRY_KV_EVENT_FAILED 4

/// The offer or take was ended by ferry_kv_offer_cancel or ferry_kv_take_cancel (FERRY_ERR_CANCELLED), or because the
/// cache was closed (FERRY_ERR_CLOSED).
#define FERRY_KV_EVENT_CANCELLED 5

/// The offer's lease ended before all takers arrived (FERRY_ERR_TIMEOUT), or the offer was reclaimed
/// (FERRY_ERR_LIMIT).
#define FERRY_KV_EVENT_EXPIRED 6

/// A peer is lost, or the other side ended the handoff because it lost one; `peer` says who. None of its transfers can
/// touch the blocks any more.
#define FERRY_KV_EVENT_PEER_LOST 7

/// A block of a group. This struct never grows.
typedef struct ferry_kv_block {
    /// Index of the group in the layout.
    uint32_t group;
    /// Id of the block.
    uint32_t block;
} ferry_kv_block;

/// An event of an offer or a take, each of which has exactly one terminal event. Nothing touches its blocks after that.
/// Fields that the kind doesn't set are 0, and rank is UINT32_MAX. The caller sets struct_size before the call.
typedef struct ferry_kv_event {
    /// In: sizeof(ferry_kv_event). Out: how many bytes were written.
    uint32_t struct_size;
    /// FERRY_KV_EVENT_*; a program should ignore unknown kinds.
    uint32_t kind;
    /// The offer or take.
    ferry_kv_id id;
    /// In a terminal event: FERRY_OK, or why the offer or take has ended.
    ferry_status status;
    /// In FERRY_KV_EVENT_LAYERS: how many layers, in the order of the layout, are complete.
    uint32_t layers;
    /// In a take's terminal event: the tokens from the beginning of the sequence that are complete in all layers and
    /// groups.
    uint64_t valid_tokens;
    /// In a take's terminal event: blocks whose contents are undefined. NULL if there are none. The event owns the
    /// list.
    const ferry_kv_block *untrusted;
    /// Length of untrusted.
    uint64_t untrusted_count;
    /// Why, in a sentence for people: UTF-8, terminated. NULL for FERRY_OK. The event owns the text.
    const char *message;
    /// Bytes of message, without the terminating zero.
    uint64_t message_length;
    /// In a terminal event: the peer that ended the offer or take, was lost, or failed. 0 if no peer is the cause. A
    /// peer that ended it because of another one names that one in the message.
    ferry_peer peer;
    /// The rank of that peer in its instance; UINT32_MAX if there is none.
    uint32_t rank;
    /// Always 0.
    uint32_t reserved;
} ferry_kv_event;

/// Initializes a ferry_kv_event: its struct_size, and zero in all other fields.
#define FERRY_KV_EVENT_INIT \
    { (uint32_t)sizeof(ferry_kv_event), 0, {{0}}, 0, 0, 0, NULL, 0, NULL, 0, 0, 0, 0 }

/// Takes the next event, oldest first. Never waits. Release it with ferry_kv_event_release.
///
/// FERRY_PENDING: there is none, and *out_event is as it was. FERRY_ERR_CLOSED: the cache or its engine is closed, and
/// there are no more. Several threads may take events of one cache; each event goes to one thread.
ferry_status ferry_kv_poll(ferry_kv_cache *cache,
                           ferry_kv_event *out_event,
                           ferry_error *error);

/// Waits until there is an event, then takes it as ferry_kv_poll does.
///
/// FERRY_PENDING: the timeout has passed. FERRY_ERR_BUSY: the call was made inside a callback with a timeout other
/// than 0. FERRY_ERR_CLOSED: as for ferry_kv_poll; closing the cache ends the wait. Signals do not end it.
ferry_status ferry_kv_wait(ferry_kv_cache *cache,
                           uint64_t timeout_ns,
                           ferry_kv_event *out_event,
                           ferry_error *error);

/// Returns a descriptor for poll, epoll or an event loop. It is readable when ferry_kv_poll has an event, and when the
/// cache or its engine is closed.
///
/// ferry owns the descriptor: don't read, write or close it. So poll, take events until ferry_kv_poll returns
/// FERRY_PENDING, and poll again. The descriptor is valid until the cache is freed.
ferry_status ferry_kv_fd(ferry_kv_cache *cache,
                         int *out_fd,
                         ferry_error *error);

/// Frees the list and the text of an event and sets them to NULL. The call does nothing for NULL, for an event without
/// them, and for the same struct a second time. Release only one copy of an event. Any thread; also after the
/// cache is gone.
void ferry_kv_event_release(ferry_kv_event *event);

/* ---- States ------------------------------------------------------------------------------------ */

/// No offer and no take of this cache has the id, or it ended long ago.
#define FERRY_KV_STATE_UNKNOWN 0

/// An offer that has not ended: is_sealed and takers are set.
#define FERRY_KV_STATE_OFFERED 1

/// A take that has not ended: valid_tokens is set.
#define FERRY_KV_STATE_TAKING 2

/// A call, a failure, a lease or a deadline has stopped the offer or take; the caller does not own its blocks yet.
#define FERRY_KV_STATE_ENDING 3

/// The offer or take has ended: event is set. The program may not have taken the event from the cache yet. The cache
/// remembers the id for ten minutes, or until 65,536 others have ended.
#define FERRY_KV_STATE_ENDED 4

/// The state of an id in a cache. Fields that the kind doesn't set are 0. The caller sets struct_size before the call.
typedef struct ferry_kv_state {
    /// In: sizeof(ferry_kv_state). Out: how many bytes were written.
    uint32_t struct_size;
    /// FERRY_KV_STATE_*.
    uint32_t kind;
    /// 1 after ferry_kv_offer_seal.
    uint32_t is_sealed;
    /// How many consumers have begun to take the offer.
    uint32_t takers;
    /// Tokens from the beginning of the sequence that are complete in all layers and groups.
    uint64_t valid_tokens;
    /// The kind of the terminal event.
    uint32_t event;
    /// Always 0.
    uint32_t reserved;
} ferry_kv_state;

/// Initializes a ferry_kv_state: its struct_size, and zero in all other fields.
#define FERRY_KV_STATE_INIT \
    { (uint32_t)sizeof(ferry_kv_state), 0, 0, 0, 0, 0, 0 }

/// Returns the state of an id. A closed cache still answers.
ferry_status ferry_kv_get_state(const ferry_kv_cache *cache,
                                const ferry_kv_id *id,
                                ferry_kv_state *out_state,
                                ferry_error *error);

/// Returns how many blocks belong to handoffs with silent peers that could not be fenced. Such a peer is a process of
/// this host that was stopped in the middle of a copy. Its handoffs end when the process continues or ends. The call
/// also works on a closed cache.
ferry_status ferry_kv_unfenced_blocks(const ferry_kv_cache *cache,
                                      size_t *out_count,
                                      ferry_error *error);

/* ---- Metrics of a cache ------------------------------------------------------------------------ */

/// Counters since the cache was opened, and the current number of what exists, all of one moment. The caller sets
/// struct_size before the call.
typedef struct ferry_kv_stats {
    /// In: sizeof(ferry_kv_stats). Out: how many bytes were written.
    uint32_t struct_size;
    /// Always 0.
    uint32_t reserved;
    /// Offers that have not ended.
    uint64_t offers;
    /// Takes that have not ended.
    uint64_t takes;
    /// Takes of peers that wait for an offer of this cache.
    uint64_t takes_waiting;
    /// Pairs of a producer's and a consumer's rank whose exchange is not over; of offers and of takes.
    uint64_t parts;
    /// Transfers of handoffs that are not final.
    uint64_t transfers;
    /// Blocks of sealed offers that have not ended.
    uint64_t leased_blocks;
    /// Nanoseconds since the first of these offers was sealed; 0 if there is none.
    uint64_t oldest_lease_ns;
    /// See ferry_kv_unfenced_blocks.
    uint64_t unfenced_blocks;
    /// Payload bytes of offers that were written to consumers, or read by consumers whose take by pull has everything.
    uint64_t bytes_sent;
    /// Payload bytes of takes that have arrived.
    uint64_t bytes_received;
    /// Ends of offers by FERRY_KV_EVENT_SENT.
    uint64_t ended_sent;
    /// Ends of takes by FERRY_KV_EVENT_RECEIVED.
    uint64_t ended_received;
    /// Ends by FERRY_KV_EVENT_FAILED; by status from ferry_kv_ended_failed.
    uint64_t ended_failed;
    /// Ends by FERRY_KV_EVENT_CANCELLED.
    uint64_t ended_cancelled;
    /// Ends by FERRY_KV_EVENT_EXPIRED because the lease was over.
    uint64_t ended_expired_lease;
    /// Ends by FERRY_KV_EVENT_EXPIRED because of ferry_kv_reclaim.
    uint64_t ended_expired_pressure;
    /// Ends by FERRY_KV_EVENT_PEER_LOST.
    uint64_t ended_peer_lost;
    /// FERRY_EVENT_LATE_APPLY events in blocks of an offer or a take; that offer or take failed.
    uint64_t late_applies;
    /// Entries of the timeline that newer ones have overwritten.
    uint64_t timeline_overwritten;
} ferry_kv_stats;

/// Initializes a ferry_kv_stats: its struct_size, and zero in all other fields.
#define FERRY_KV_STATS_INIT \
    { (uint32_t)sizeof(ferry_kv_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/// Reads the cache's counts. A closed cache still answers.
ferry_status ferry_kv_get_stats(const ferry_kv_cache *cache,
                                ferry_kv_stats *out_metrics,
                                ferry_error *error);

/// Returns how many offers and takes have ended by FERRY_KV_EVENT_FAILED with this status, one of FERRY_ERR_*. A
/// closed cache still answers.
ferry_status ferry_kv_ended_failed(const ferry_kv_cache *cache,
                                   ferry_status status,
                                   uint64_t *out_count,
                                   ferry_error *error);

/// Returns all of these numbers in Prometheus' text format. The text grows with the counters, so leave some room in the
/// buffer. Returns texts as ferry_config_get does. A closed cache still answers.
ferry_status ferry_kv_metrics(const ferry_kv_cache *cache,
                              char *buffer,
                              size_t capacity,
                              size_t *out_length,
                              ferry_error *error);

/* ---- Timeline of a cache ----------------------------------------------------------------------- */

/// An offer was made.
#define FERRY_KV_TIMELINE_OFFERED 1

/// A take was made.
#define FERRY_KV_TIMELINE_TAKEN 2

/// The layers from first_layer to before end_layer are ready up to end_token.
#define FERRY_KV_TIMELINE_READY 3

/// In a take by pull: the producer told peer, or peer told the consumer, what may be read.
#define FERRY_KV_TIMELINE_GRANTED 4

/// A transfer of these layers and tokens was posted; transfer is its number.
#define FERRY_KV_TIMELINE_POSTED 5

/// The transfer of this number is final, with detail as its status. It began when it was posted.
#define FERRY_KV_TIMELINE_FINAL 6

/// In a take by push: these layers and tokens have arrived.
#define FERRY_KV_TIMELINE_ARRIVED 7

/// In a take: the layers before end_layer are complete.
#define FERRY_KV_TIMELINE_LAYERS 8

/// The offer is whole, with end_token tokens.
#define FERRY_KV_TIMELINE_SEALED 9

/// The terminal event: first_layer is its kind (FERRY_KV_EVENT_*), and detail its status.
#define FERRY_KV_TIMELINE_ENDED 10

/// A mark by ferry_kv_timeline_mark: first_layer is the layer, and detail the kind.
#define FERRY_KV_TIMELINE_MARK 11

/// A mark of compute. Other kinds are the application's own.
#define FERRY_KV_MARK_COMPUTE 1

/// One step of a handoff, or one of the application's marks. Fields that `what` doesn't set are 0. In an array that the
/// caller fills, each element has its struct_size.
typedef struct ferry_kv_timeline_entry {
    /// sizeof(ferry_kv_timeline_entry); as an output, how many bytes were written.
    uint32_t struct_size;
    /// FERRY_KV_TIMELINE_*.
    uint32_t what;
    /// Rises by one with each entry of a recording, from 0 on.
    uint64_t number;
    /// On CLOCK_MONOTONIC.
    uint64_t begin_ns;
    /// The same as begin_ns for an entry without a duration.
    uint64_t end_ns;
    /// The first four bytes of the handoff's id, the first one highest, as messages show them.
    uint32_t id;
    /// See the constants: a status, or the kind of a mark.
    int32_t detail;
    /// Layers of transfers are those of the consumer's layout.
    uint32_t first_layer;
    /// One past the last layer.
    uint32_t end_layer;
    /// First token.
    uint64_t first_token;
    /// One past the last token.
    uint64_t end_token;
    /// Payload bytes of a transfer.
    uint64_t bytes;
    /// The other side of a transfer.
    ferry_peer peer;
    /// The number of a transfer.
    uint64_t transfer;
} ferry_kv_timeline_entry;

/// Initializes a ferry_kv_timeline_entry: its struct_size, and zero in all other fields.
#define FERRY_KV_TIMELINE_ENTRY_INIT \
    { (uint32_t)sizeof(ferry_kv_timeline_entry), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/// Starts to record a timeline of the cache's handoffs, and discards an earlier recording. The recording holds at
/// most `entries_max` entries, 1 to 1,048,576. New entries overwrite the oldest; ferry_kv_stats counts the
/// overwritten entries. A cache records nothing until this call.
ferry_status ferry_kv_timeline_start(ferry_kv_cache *cache,
                                     size_t entries_max,
                                     ferry_error *error);

/// Ends the recording and discards it. The call does nothing if there is no recording.
ferry_status ferry_kv_timeline_stop(ferry_kv_cache *cache, ferry_error *error);

/// Adds the application's own work on a layer, with its times on CLOCK_MONOTONIC, in nanoseconds. `kind` is
/// FERRY_KV_MARK_COMPUTE, or a number of the application's. Nothing is recorded while no recording is on; the id need
/// not be that of an offer or a take. FERRY_ERR_INVALID: the work ends before it begins.
ferry_status ferry_kv_timeline_mark(ferry_kv_cache *cache,
                                    const ferry_kv_id *id,
                                    uint32_t kind,
                                    uint32_t layer,
                                    uint64_t begin_ns,
                                    uint64_t end_ns,
                                    ferry_error *error);

/// Returns up to `capacity` entries from the number `first` on, oldest first; *out_count gets the number of returned
/// entries. The entries stay recorded. To read on, pass the number of the last entry + 1. Overwritten entries are
/// missing: the first entry then has a higher number than `first`. Elements are `element_size` bytes apart, normally
/// sizeof(ferry_kv_timeline_entry). A closed cache still answers.
ferry_status ferry_kv_timeline_read(const ferry_kv_cache *cache,
                                    uint64_t first,
                                    ferry_kv_timeline_entry *out_entries,
                                    size_t element_size,
                                    size_t capacity,
                                    size_t *out_count,
                                    ferry_error *error);

/// Draws entries as a picture, SVG: a lane for each layer, with compute and transfers as bars, and the ends of
/// handoffs as lines. The entries may be of several caches of one host, in any order, and some may be left out, such
/// as those of other handoffs. Needs no cache, and computes only. Returns texts as ferry_config_get does; for the
/// same entries the text is the same.
///
/// FERRY_ERR_LIMIT: more than 1,048,576 entries, or the buffer is too small.
ferry_status ferry_kv_timeline_svg(const ferry_kv_timeline_entry *entries,
                                   size_t count,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *out_length,
                                   ferry_error *error);

/* ---- Directories: structs ---------------------------------------------------------------------- */

/* A directory finds peers by name: in a list, or in etcd. docs/directory.md has examples. */

/// ferry_directory_open does not wait for etcd: the directory goes on trying.
#define FERRY_DIRECTORY_NO_WAIT 1

/// Options of a directory in etcd; a `static:` directory has no use for them. Texts are copied; NULL means the
/// variable of the environment that is named. FERRY_DIRECTORY_OPTIONS_INIT sets struct_size.
typedef struct ferry_directory_options {
    /// sizeof(ferry_directory_options).
    uint32_t struct_size;
    /// How long etcd keeps the names of an engine that it does not hear from: 1 to 3,600 seconds; 0 means 10.
    uint32_t ttl_s;
    /// How long ferry_directory_open waits for etcd's first answer: milliseconds; 0 means 5,000.
    uint32_t open_timeout_ms;
    /// FERRY_DIRECTORY_* bits.
    uint32_t flags;
    /// etcd's user; NULL: FERRY_ETCD_USER.
    const char *user;
    /// The user's password, which goes with user; NULL: FERRY_ETCD_PASSWORD.
    const char *password;
    /// PEM file with the CA certificates that may sign etcd's certificate, for https; NULL: FERRY_ETCD_CA.
    const char *ca_file;
    /// File with this client's certificate, in PEM; NULL: FERRY_ETCD_CERT.
    const char *cert_file;
    /// File with the certificate's key, in PEM, which goes with cert_file; NULL: FERRY_ETCD_KEY.
    const char *key_file;
} ferry_directory_options;

/// Initializes a ferry_directory_options: its struct_size, and zero in all other fields.
#define FERRY_DIRECTORY_OPTIONS_INIT \
    { (uint32_t)sizeof(ferry_directory_options), 0, 0, 0, NULL, NULL, NULL, NULL, NULL }

/// A directory's entry for a name. The caller sets struct_size before the call.
typedef struct ferry_directory_entry {
    /// In: sizeof(ferry_directory_entry). Out: how many bytes were written.
    uint32_t struct_size;
    /// 1 if engine_id and incarnation are known, which they are in etcd, else 0.
    uint32_t has_identity;
    /// Identity of the engine.
    uint8_t engine_id[16];
    /// Number of the engine's start.
    uint64_t incarnation;
    /// The name, terminated.
    char name[264];
    /// "host:port", terminated.
    char address[264];
} ferry_directory_entry;

/// Initializes a ferry_directory_entry: its struct_size, and zero in all other fields.
#define FERRY_DIRECTORY_ENTRY_INIT \
    { (uint32_t)sizeof(ferry_directory_entry), 0, {0}, 0, {0}, {0} }

/// How a directory stands. The caller sets struct_size before the call.
typedef struct ferry_directory_info {
    /// In: sizeof(ferry_directory_info). Out: how many bytes were written.
    uint32_t struct_size;
    /// 1 while the table is kept up to date, as always in a `static:` directory; else 0.
    uint32_t is_connected;
    /// For how long etcd has not answered, in milliseconds. 0 while it does, and before its first answer.
    uint64_t cut_off_ms;
    /// Entries that the directory knows.
    uint64_t entries;
    /// How many values of etcd the directory has ignored since it opened: they are no entries, or exceed the bound of
    /// 65,536.
    uint64_t ignored;
    /// Names that this directory registers.
    uint32_t names;
    /// Names among them that etcd has, as far as this side knows.
    uint32_t names_published;
    /// How often etcd was reached anew.
    uint64_t sessions;
    /// Why etcd is not reached, or a name is not published; terminated, cut if it is too long.
    char why[240];
} ferry_directory_info;

/// Initializes a ferry_directory_info: its struct_size, and zero in all other fields.
#define FERRY_DIRECTORY_INFO_INIT \
    { (uint32_t)sizeof(ferry_directory_info), 0, 0, 0, 0, 0, 0, 0, {0} }

/* ---- Directories ------------------------------------------------------------------------------- */

/// A name has appeared that no engine had before.
#define FERRY_DIRECTORY_ADDED 1

/// A name has another engine, incarnation or address than before.
#define FERRY_DIRECTORY_CHANGED 2

/// No engine has the name any more; the entry shows its last values.
#define FERRY_DIRECTORY_REMOVED 3

/// More than 4,096 names have changed, and the directory dropped changes: list the names again. The entry is empty.
#define FERRY_DIRECTORY_LIST_ANEW 4

/// Peers by name. All threads may use a directory at the same time; only ferry_directory_free must be alone.
typedef struct ferry_directory ferry_directory;

/// Opens a directory of an engine's peers. `url` is `static:name=host:port,...`, `static:/file` with an entry a line,
/// `static:` for which names are addresses, or `etcd:http://host:port,.../prefix` (or https). `options` NULL means the
/// defaults. A directory in etcd has a thread. End the directory with ferry_directory_free.
///
/// FERRY_ERR_INVALID names what is wrong in `url` or `options`. FERRY_ERR_UNREACHABLE: etcd does not answer in time;
/// with FERRY_DIRECTORY_NO_WAIT the call does not wait. FERRY_ERR_REFUSED: etcd refuses the user.
/// FERRY_ERR_BUSY inside a callback.
ferry_status ferry_directory_open(ferry_engine *engine,
                                  const char *url,
                                  const ferry_directory_options *options,
                                  ferry_directory **out_directory,
                                  ferry_error *error);

/// Makes the directory's engine known under a name, until ferry_directory_unregister, ferry_directory_close or the end
/// of the process. A name has letters, digits and `. _ : -`, in parts that `/` divides, 127 bytes at most.
///
/// The call returns when etcd has the name. If another engine has it, the call waits until that engine has withdrawn
/// it or its lease is over; an engine that was registered at this engine's address is gone, and gives way at once.
/// Later the directory keeps the name by itself, after etcd was restarted, lost its data or was cut off.
///
/// FERRY_ERR_BUSY: the timeout has passed, and another engine has the name; the message says which.
/// FERRY_ERR_UNREACHABLE: it has passed, and etcd does not answer. FERRY_ERR_REFUSED: etcd does not let the user write
/// there. FERRY_ERR_INVALID: the directory has registered the name already, or the list of a `static:` directory,
/// which makes nothing known, lacks it. FERRY_ERR_UNAVAILABLE: the engine does not listen. FERRY_ERR_LIMIT: the
/// directory has registered 1,024 names. FERRY_ERR_BUSY inside a callback. A call that fails registers nothing.
ferry_status ferry_directory_register(ferry_directory *directory,
                                      const char *name,
                                      uint64_t timeout_ns,
                                      ferry_error *error);

/// Withdraws a name, and returns when etcd has it no longer.
///
/// FERRY_ERR_TIMEOUT: etcd has not answered; the name is withdrawn when it does, or when its lease is over.
/// FERRY_ERR_INVALID: this directory has not registered the name. FERRY_ERR_BUSY inside a callback.
ferry_status ferry_directory_unregister(ferry_directory *directory,
                                        const char *name,
                                        uint64_t timeout_ns,
                                        ferry_error *error);

/// Returns the directory's entry for a name. Never waits: etcd sends changes to the directory, and the last known
/// entry holds while etcd is unreachable. FERRY_ERR_UNREACHABLE: no engine has the name.
ferry_status ferry_directory_lookup(const ferry_directory *directory,
                                    const char *name,
                                    ferry_directory_entry *out_entry,
                                    ferry_error *error);

/// Connects to the engine that has the name, and waits until transfers can be submitted. The peer is the incarnation
/// that the directory names.
///
/// The call retries with the directory's current entry while the name is missing, nothing answers at the name's
/// address, or another engine answers there. After the timeout the call returns FERRY_ERR_UNREACHABLE or
/// FERRY_ERR_TIMEOUT, or FERRY_ERR_STALE if another engine answers. Any other error of ferry_peer_connect ends the
/// call at once. A name that is missing from a `static:` directory ends it at once too.
ferry_status ferry_directory_connect(ferry_directory *directory,
                                     const char *name,
                                     uint64_t timeout_ns,
                                     ferry_peer *out_peer,
                                     ferry_error *error);

/// Lists the entries whose names begin with `prefix`, in order of the names; "" lists all. Returns lists as
/// ferry_config_settings does. FERRY_ERR_INVALID: no name can begin with `prefix`.
ferry_status ferry_directory_list(const ferry_directory *directory,
                                  const char *prefix,
                                  ferry_directory_entry *out_entries,
                                  size_t element_size,
                                  size_t capacity,
                                  size_t *out_count,
                                  ferry_error *error);

/// Takes the next change: *out_kind gets a FERRY_DIRECTORY_*, *out_entry the entry. Never waits. Several changes of
/// one name become one change. The first changes of a directory in etcd report the entries that existed when it
/// opened.
///
/// FERRY_PENDING: there is none, and the outputs are as they were. Several threads may take changes; each goes to one.
ferry_status ferry_directory_poll(ferry_directory *directory,
                                  uint32_t *out_kind,
                                  ferry_directory_entry *out_entry,
                                  ferry_error *error);

/// Returns a descriptor for poll, epoll or an event loop. It is readable while ferry_directory_poll has a change, and
/// when the directory is closed. ferry owns the descriptor: don't read, write or close it.
ferry_status ferry_directory_fd(const ferry_directory *directory,
                                int *out_fd,
                                ferry_error *error);

/// Tells how the directory stands: whether etcd answers, and which names are published.
ferry_status ferry_directory_get_info(const ferry_directory *directory,
                                      ferry_directory_info *out_status,
                                      ferry_error *error);

/// Closes a directory: its names are withdrawn, its thread ends, and all calls return FERRY_ERR_CLOSED. Peers stay
/// connected. If etcd does not answer within a second, the names stay until their lease is over. After FERRY_OK the
/// call returns FERRY_OK again; in a forked child it does nothing. FERRY_ERR_BUSY inside a callback.
ferry_status ferry_directory_close(ferry_directory *directory,
                                   ferry_error *error);

/// Closes a directory, as ferry_directory_close does, and frees it. NULL does nothing. Call it while no other call uses
/// the directory. The engine may be freed before or after. In a forked child the call does nothing.
void ferry_directory_free(ferry_directory *directory);

/* ---- Names of numbers -------------------------------------------------------------------------- */

/* For logs. */

/// Returns the name of a kind of event: its constant without FERRY_KV_EVENT_, for example "RECEIVED". Returns "UNKNOWN"
/// for any other number, as all functions here do. The text is static. Never fails; any thread.
const char *ferry_kv_event_name(uint32_t kind);

/// Returns the name of a FERRY_KV_STATE_*, for example "OFFERED".
const char *ferry_kv_state_name(uint32_t kind);

/// Returns the name of a directory's change, for example "ADDED".
const char *ferry_directory_change_name(uint32_t kind);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FERRY_KV_H */
