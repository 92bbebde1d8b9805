/*
 * Wrong arguments of ferry_kv.h: NULL, caches that do not fit, parts without a meaning. Each call fails, names the
 * argument and does nothing. kv_descriptions.c has wrong descriptions.
 */
#include "arguments.h"
#include "kv_cache.h"

/* Describes a cache, which each test breaks in one place. */
static void describe(kv_cache *cache)
{
    static uint32_t memory[KV_LAYERS * KV_BLOCKS * 2 * KV_HEADS * 16 * KV_ELEMENTS];
    kv_describe(cache, FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 2, 16, memory);
}

static void null_pointers(void)
{
    kv_cache cache = kv_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 2, 16, NULL);
    ferry_kv_layout *const layout = cache.layout;
    ferry_kv_layout *made = NULL;
    ferry_kv_layout_info info = FERRY_KV_LAYOUT_INFO_INIT;
    ferry_kv_plan *plan = NULL;
    ferry_kv_part part = FERRY_KV_PART_INIT;
    ferry_kv_moves *moves = NULL;
    ferry_kv_move move = FERRY_KV_MOVE_INIT;
    ferry_kv_block_pairs blocks = FERRY_KV_BLOCK_PAIRS_INIT;
    unsigned char bytes[8];
    uint32_t rank = 7;
    size_t length = 7;
    part.blocks = &blocks;
    part.group_count = 1;
    cache.desc.groups = &cache.group;
    cache.desc.layers = cache.layers;
    CHECK_NULL(ferry_kv_layer_arrange(NULL, 1, cache.layers, &error), "desc");
    CHECK_NULL(ferry_kv_layer_arrange(&cache.desc, 1, NULL, &error), "layer");
    CHECK_NULL(ferry_kv_layout_new(NULL, &made, &error), "desc");
    CHECK_NULL(ferry_kv_layout_new(&cache.desc, NULL, &error), "out_layout");
    CHECK_NULL(ferry_kv_layout_get_info(NULL, &info, &error), "layout");
    CHECK_NULL(ferry_kv_layout_get_info(layout, NULL, &error), "out_info");
    CHECK_NULL(ferry_kv_layout_export(NULL, bytes, 8, &length, &error), "layout");
    CHECK_NULL(ferry_kv_layout_export(layout, NULL, 8, &length, &error), "buffer");
    CHECK_NULL(ferry_kv_layout_export(layout, bytes, 8, NULL, &error), "out_length");
    CHECK_NULL(ferry_kv_layout_import(NULL, 8, &made, &error), "bytes");
    CHECK_NULL(ferry_kv_layout_import(bytes, 8, NULL, &error), "out_layout");
    CHECK_NULL(ferry_kv_plan_new(NULL, layout, &plan, &error), "source");
    CHECK_NULL(ferry_kv_plan_new(layout, NULL, &plan, &error), "target");
    CHECK_NULL(ferry_kv_plan_new(layout, layout, NULL, &error), "out_plan");
    CHECK(made == NULL && plan == NULL);
    CHECK_OK(ferry_kv_plan_new(layout, layout, &plan, &error));
    CHECK_NULL(ferry_kv_plan_sources(NULL, 0, &rank, 1, &length, &error), "plan");
    CHECK_NULL(ferry_kv_plan_sources(plan, 0, NULL, 1, &length, &error), "out_ranks");
    CHECK_NULL(ferry_kv_plan_sources(plan, 0, &rank, 1, NULL, &error), "out_count");
    CHECK_NULL(ferry_kv_plan_targets(NULL, 0, &rank, 1, &length, &error), "plan");
    CHECK_NULL(ferry_kv_plan_targets(plan, 0, NULL, 1, &length, &error), "out_ranks");
    CHECK_NULL(ferry_kv_plan_targets(plan, 0, &rank, 1, NULL, &error), "out_count");
    CHECK_NULL(ferry_kv_plan_explain(NULL, (char *)bytes, 8, &length, &error), "plan");
    CHECK_NULL(ferry_kv_plan_explain(plan, NULL, 8, &length, &error), "buffer");
    CHECK_NULL(ferry_kv_plan_explain(plan, (char *)bytes, 8, NULL, &error), "out_length");
    CHECK_NULL(ferry_kv_plan_lower(NULL, layout, layout, &part, &moves, &error), "plan");
    CHECK_NULL(ferry_kv_plan_lower(plan, NULL, layout, &part, &moves, &error), "source");
    CHECK_NULL(ferry_kv_plan_lower(plan, layout, NULL, &part, &moves, &error), "target");
    CHECK_NULL(ferry_kv_plan_lower(plan, layout, layout, NULL, &moves, &error), "part");
    CHECK_NULL(ferry_kv_plan_lower(plan, layout, layout, &part, NULL, &error), "out_moves");
    CHECK_OK(ferry_kv_plan_lower(plan, layout, layout, &part, &moves, &error));
    CHECK_NULL(ferry_kv_moves_count(NULL, &length, &error), "moves");
    CHECK_NULL(ferry_kv_moves_count(moves, NULL, &error), "out_count");
    CHECK_NULL(ferry_kv_moves_get(NULL, 0, &move, &error), "moves");
    CHECK_NULL(ferry_kv_moves_get(moves, 0, NULL, &error), "out_move");
    CHECK(rank == 7 && length == 7);
    ferry_kv_moves_free(moves);
    ferry_kv_moves_free(NULL);
    ferry_kv_plan_free(plan);
    ferry_kv_plan_free(NULL);
    ferry_kv_layout_free(NULL);
    kv_close(&cache);
}

/* Changes one field of the target, and plans. */
#define NO_PLAN(change, expected, part)                                                            \
    do {                                                                                           \
        kv_cache cache;                                                                            \
        ferry_kv_layout *target = NULL;                                                            \
        ferry_kv_plan *plan = NULL;                                                                \
        describe(&cache);                                                                          \
        change;                                                                                    \
        CHECK_OK(ferry_kv_layout_new(&cache.desc, &target, &error));                               \
        CHECK_NAMES(ferry_kv_plan_new(source.layout, target, &plan, &error), expected, part);      \
        CHECK(plan == NULL);                                                                       \
        ferry_kv_layout_free(target);                                                              \
    } while (0)

static void caches_that_do_not_fit(void)
{
    kv_cache source = kv_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 2, 16, NULL);
    NO_PLAN(cache.desc.model = "qwen", FERRY_ERR_INVALID, "the key's model differs");
    NO_PLAN(cache.desc.rope = "yarn", FERRY_ERR_INVALID, "the key's rope differs");
    NO_PLAN(cache.layers[1].name = "mtp", FERRY_ERR_UNSUPPORTED, "the source has no layer mtp");
    NO_PLAN(cache.layers[1].elements--, FERRY_ERR_UNSUPPORTED, "the elements of layer model.layers.1.attn");
    NO_PLAN((cache.group.kind = FERRY_KV_GROUP_WINDOW, cache.group.window_tokens = 9), FERRY_ERR_UNSUPPORTED,
            "group kind");
    kv_close(&source);
}

static void parts_and_ranks(void)
{
    kv_cache cache = kv_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 2, 16, NULL);
    kv_cache next = kv_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 4, 16, NULL);
    ferry_kv_plan *plan = NULL;
    ferry_kv_moves *moves = NULL;
    ferry_kv_block_pairs blocks = FERRY_KV_BLOCK_PAIRS_INIT;
    ferry_kv_part part = FERRY_KV_PART_INIT;
    ferry_kv_move move = FERRY_KV_MOVE_INIT;
    size_t count = 7;
    uint32_t source[2] = {1, 0}, target[2] = {3, 3};
    blocks.source_blocks = source;
    blocks.source_count = 2;
    blocks.target_blocks = target;
    blocks.target_count = 2;
    part.end_token = 32;
    part.end_layer = KV_LAYERS;
    part.blocks = &blocks;
    part.group_count = 1;
#define LOWER ferry_kv_plan_lower(plan, cache.layout, cache.layout, &part, &moves, &error)
    CHECK_OK(ferry_kv_plan_new(cache.layout, cache.layout, &plan, &error));
    CHECK_BAD(ferry_kv_plan_sources(plan, 2, source, 2, &count, &error), "target_rank is 2");
    CHECK_BAD(ferry_kv_plan_targets(plan, 2, source, 2, &count, &error), "source_rank is 2");
    CHECK(count == 7 && source[0] == 1);
    CHECK_BAD(LOWER, "block id 3 is twice in the target's list of group 0");
    target[1] = KV_BLOCKS;
    CHECK_BAD(LOWER, "block id 40 of the target's list");
    target[1] = 4;
    part.end_token = 33;
    CHECK_BAD(LOWER, "the source's list of group 0 is too short");
    part.first_token = 34;
    CHECK_BAD(LOWER, "part.end_token is 33, below part.first_token 34");
    part.first_token = part.end_token = 0;
    part.first_layer = 3;
    CHECK_BAD(LOWER, "part.end_layer is 2, below part.first_layer 3");
    part.first_layer = 0;
    part.end_token = 32;
    part.reserved = 1;
    CHECK_BAD(LOWER, "part.reserved");
    part.reserved = 0;
    part.struct_size--;
    CHECK_BAD(LOWER, "part.struct_size");
    part.struct_size++;
    part.group_count = 0;
    CHECK_BAD(LOWER, "blocks has 0 groups");
    part.group_count = 65;
    CHECK_NAMES(LOWER, FERRY_ERR_LIMIT, "part.blocks has 65 entries");
    part.group_count = 1;
    part.blocks = NULL;
    CHECK_BAD(LOWER, "part.blocks is NULL");
    part.blocks = &blocks;
    blocks.reserved = 1;
    CHECK_BAD(LOWER, "part.blocks[0].reserved");
    blocks.reserved = 0;
    blocks.source_blocks = NULL;
    CHECK_BAD(LOWER, "part.blocks[0].source_blocks is NULL");
    blocks.source_blocks = source;
    blocks.target_count = UINT64_MAX;
    CHECK_BAD(LOWER, "part.blocks[0].target_blocks has");
    blocks.target_count = 2;
    blocks.target_first_token = 1;
    CHECK_BAD(LOWER, "first_token of the target's list");
    blocks.target_first_token = 0;
    CHECK_BAD(ferry_kv_plan_lower(plan, cache.layout, next.layout, &part, &moves, &error),
              "the layout of the target");
    CHECK(moves == NULL);
    CHECK_OK(LOWER);
    move.struct_size--;
    CHECK_BAD(ferry_kv_moves_get(moves, 0, &move, &error), "out_move.struct_size");
    CHECK(move.bytes == 0);
#undef LOWER
    ferry_kv_moves_free(moves);
    ferry_kv_plan_free(plan);
    kv_close(&cache);
    kv_close(&next);
}

SUITE(kv_arguments, CASE(null_pointers), CASE(caches_that_do_not_fit), CASE(parts_and_ranks));
