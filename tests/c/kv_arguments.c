/*
 * Wrong arguments of ferry_kv.h: NULL, structs of wrong sizes, fields that must be zero, numbers without a meaning,
 * caches that do not fit. Each call fails, names the argument and does nothing.
 */
#include "arguments.h"
#include "kv_cache.h"

/* Describes a cache, which each test breaks in one place. */
static void describe(kv_cache *cache)
{
    static uint32_t memory[KV_LAYERS * KV_BLOCKS * 2 * KV_HEADS * 16 * KV_ELEMENTS];
    kv_describe(cache, FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 2, 16, memory);
}

/* Makes a layout and frees it. */
static ferry_status make(const kv_cache *cache)
{
    ferry_kv_layout *layout = NULL;
    const ferry_status status = ferry_kv_layout_new(&cache->desc, &layout, &error);
    CHECK((layout == NULL) == (status != FERRY_OK));
    ferry_kv_layout_free(layout);
    return status;
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
    ferry_kv_blocks blocks = FERRY_KV_BLOCKS_INIT;
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

/* Breaks one field of a description. */
#define REFUSED(change, expected, part)                                                            \
    do {                                                                                           \
        kv_cache cache;                                                                            \
        describe(&cache);                                                                          \
        change;                                                                                    \
        CHECK_NAMES(make(&cache), expected, part);                                                 \
    } while (0)

static void fields_of_a_description(void)
{
    kv_cache intact;
    const char *const long_name =
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "01234567890123456789012345678901234567890123456789012345";
    describe(&intact);
    CHECK_OK(make(&intact));
    REFUSED(cache.desc.reserved = 1, FERRY_ERR_INVALID, "desc.reserved");
    REFUSED(cache.desc.model = NULL, FERRY_ERR_INVALID, "desc.model is NULL");
    REFUSED(cache.desc.revision = NULL, FERRY_ERR_INVALID, "desc.revision is NULL");
    REFUSED(cache.desc.cache = NULL, FERRY_ERR_INVALID, "desc.cache is NULL");
    REFUSED(cache.desc.rope = NULL, FERRY_ERR_INVALID, "desc.rope is NULL");
    REFUSED(cache.desc.rope = "\xff", FERRY_ERR_INVALID, "desc.rope is not UTF-8");
    REFUSED(cache.desc.model = long_name, FERRY_ERR_LIMIT, "model");
    REFUSED(cache.desc.tp_size = 0, FERRY_ERR_INVALID, "tp_size");
    REFUSED(cache.desc.pp_size = 0, FERRY_ERR_INVALID, "pp_size");
    REFUSED(cache.desc.tp_rank = 2, FERRY_ERR_INVALID, "tp_rank");
    REFUSED(cache.desc.pcp_rank = 1, FERRY_ERR_INVALID, "pcp_rank 1 of 1");
    REFUSED(cache.desc.dcp_size = 3, FERRY_ERR_INVALID, "dcp_size");
    REFUSED(cache.desc.groups = NULL, FERRY_ERR_INVALID, "desc.groups is NULL");
    REFUSED(cache.desc.group_count = 0, FERRY_ERR_INVALID, "groups");
    REFUSED(cache.desc.group_count = 65, FERRY_ERR_LIMIT, "desc.groups");
    REFUSED(cache.desc.layer_count = 0, FERRY_ERR_INVALID, "layers");
    REFUSED(cache.desc.layer_count = UINT64_MAX, FERRY_ERR_LIMIT, "desc.layers");
    REFUSED(cache.group.kind = 0, FERRY_ERR_INVALID, "desc.groups[0].kind is 0");
    REFUSED(cache.group.kind = 5, FERRY_ERR_INVALID, "desc.groups[0].kind is 5");
    REFUSED(cache.group.window_tokens = 1, FERRY_ERR_INVALID, "desc.groups[0].window_tokens");
    REFUSED(cache.group.kind = FERRY_KV_GROUP_WINDOW, FERRY_ERR_INVALID, "window");
    REFUSED(cache.group.block_tokens = 0, FERRY_ERR_INVALID, "block_tokens");
    REFUSED(cache.layers[1].reserved = 1, FERRY_ERR_INVALID, "desc.layers[1].reserved");
    REFUSED(cache.layers[1].name = NULL, FERRY_ERR_INVALID, "desc.layers[1].name is NULL");
    REFUSED(cache.layers[1].name = cache.layers[0].name, FERRY_ERR_INVALID, "another layer has this name");
    REFUSED(cache.layers[1].group = 1, FERRY_ERR_INVALID, "group 1");
    REFUSED(cache.layers[1].stage = 1, FERRY_ERR_INVALID, "stage 1");
    REFUSED(cache.layers[1].heads = 0, FERRY_ERR_INVALID, "heads");
    REFUSED(cache.layers[1].pairs = 3, FERRY_ERR_LIMIT, "pairs");
    REFUSED(cache.layers[1].elements = 0, FERRY_ERR_INVALID, "elements");
    REFUSED(cache.layers[1].element_bytes = 0, FERRY_ERR_INVALID, "element_bytes");
    REFUSED(cache.layers[1].address = 0, FERRY_ERR_INVALID, "memory is missing");
    REFUSED(cache.layers[1].address = UINT64_MAX - 5, FERRY_ERR_INVALID, "layers[1]");
    REFUSED(cache.layers[1].blocks = 0, FERRY_ERR_INVALID, "blocks");
    REFUSED(cache.layers[1].block_stride--, FERRY_ERR_INVALID, "strides.block");
    REFUSED(cache.layers[1].pair_stride--, FERRY_ERR_INVALID, "strides.pair");
    REFUSED(cache.layers[1].head_stride--, FERRY_ERR_INVALID, "strides.head");
    REFUSED(cache.layers[1].token_stride--, FERRY_ERR_INVALID, "strides.token");
    REFUSED(cache.layers[1].element_stride--, FERRY_ERR_INVALID, "strides.element");
}

/* What zero means, and layers of another stage. */
static void defaults_of_a_description(void)
{
    kv_cache cache;
    describe(&cache);
    cache.desc.pcp_size = cache.desc.dcp_size = cache.desc.turn_tokens = 1;
    CHECK_OK(make(&cache));
    cache.desc.pp_size = 2;
    cache.layers[1].stage = 1;
    CHECK_NAMES(make(&cache), FERRY_ERR_INVALID, "memory of stage 1");
    cache.layers[1].address = 0;
    CHECK_OK(make(&cache));
    cache.layers[1].block_stride = 1;
    CHECK_OK(make(&cache));
}

static void arrangements(void)
{
    kv_cache cache;
    ferry_kv_layer layer;
    describe(&cache);
    layer = cache.layers[0];
    layer.struct_size--;
    CHECK_BAD(ferry_kv_layer_arrange(&cache.desc, 1, &layer, &error), "layer.struct_size");
    layer.struct_size++;
    layer.block_stride = 7;
    CHECK_BAD(ferry_kv_layer_arrange(&cache.desc, 0, &layer, &error), "arrangement is 0");
    CHECK_BAD(ferry_kv_layer_arrange(&cache.desc, 6, &layer, &error), "arrangement is 6");
    layer.group = 1;
    CHECK_BAD(ferry_kv_layer_arrange(&cache.desc, 1, &layer, &error), "layer.group is 1");
    CHECK(layer.block_stride == 7);
}

static void struct_sizes(void)
{
    struct {
        ferry_kv_layer known;
        uint64_t newer;
    } layers[KV_LAYERS];
    kv_cache cache;
    ferry_kv_layout *layout = NULL;
    ferry_kv_layout_info info = FERRY_KV_LAYOUT_INFO_INIT;
    describe(&cache);
    REFUSED(cache.desc.struct_size = 0, FERRY_ERR_INVALID, "sizeof(ferry_kv_layout_desc) is 104");
    REFUSED(cache.group.struct_size--, FERRY_ERR_INVALID, "desc.groups[0].struct_size");
    REFUSED(cache.layers[1].struct_size = 0, FERRY_ERR_INVALID, "desc.layers[1].struct_size is 0");
    memset(layers, 0, sizeof layers);
    for (size_t l = 0; l < KV_LAYERS; l++) {
        layers[l].known = cache.layers[l];
        layers[l].known.struct_size = sizeof layers[l];
    }
    cache.desc.layers = &layers[0].known;
    CHECK_OK(ferry_kv_layout_new(&cache.desc, &layout, &error));
    info.struct_size--;
    CHECK_BAD(ferry_kv_layout_get_info(layout, &info, &error), "out_info.struct_size");
    ferry_kv_layout_free(layout);
    layers[1].newer = 1;
    CHECK_NAMES(ferry_kv_layout_new(&cache.desc, &layout, &error), FERRY_ERR_UNSUPPORTED, "desc.layers[1]");
    layers[1].newer = 0;
    layers[1].known.struct_size = sizeof(ferry_kv_layer);
    CHECK_BAD(ferry_kv_layout_new(&cache.desc, &layout, &error), "the elements of an array have one size");
}

static void bytes_that_are_no_layout(void)
{
    kv_cache cache = kv_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 2, 16, NULL);
    ferry_kv_layout *layout = NULL;
    unsigned char bytes[1024];
    size_t length = 0;
    CHECK_OK(ferry_kv_layout_export(cache.layout, bytes, sizeof bytes, &length, &error));
    for (size_t cut = 0; cut < length; cut++)
        CHECK_INVALID(ferry_kv_layout_import(bytes, cut, &layout, &error));
    bytes[4] = 2;
    CHECK_STATUS(ferry_kv_layout_import(bytes, length, &layout, &error), FERRY_ERR_VERSION);
    CHECK(layout == NULL);
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
    ferry_kv_blocks blocks = FERRY_KV_BLOCKS_INIT;
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

SUITE(kv_arguments, CASE(null_pointers), CASE(fields_of_a_description), CASE(defaults_of_a_description),
      CASE(arrangements), CASE(struct_sizes), CASE(bytes_that_are_no_layout), CASE(caches_that_do_not_fit),
      CASE(parts_and_ranks));
