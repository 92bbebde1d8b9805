/*
 * Wrong descriptions of layouts for ferry_kv.h: structs of wrong sizes, fields that must be zero, numbers without a
 * meaning, bytes that are no layout. Each call fails, names the field and does nothing.
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

static void layers_in_tensors(void)
{
    kv_cache cache;
    ferry_kv_layer layer, expected;
    ferry_kv_tensor tensor = FERRY_KV_TENSOR_INIT;
    uint64_t shape[5] = {KV_BLOCKS, 2, 0, 0, KV_ELEMENTS}, strides[5];
    describe(&cache);
    expected = cache.layers[0];
    CHECK_OK(ferry_kv_layer_arrange(&cache.desc, FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, &expected, &error));
    shape[2] = cache.block_tokens;
    shape[3] = cache.heads;
    strides[0] = expected.block_stride;
    strides[1] = expected.pair_stride;
    strides[2] = expected.token_stride;
    strides[3] = expected.head_stride;
    strides[4] = expected.element_stride;
    tensor.element_bytes = sizeof(uint32_t);
    tensor.address = expected.address;
    tensor.order = "block pair token head element";
    tensor.dimension_count = 5;
    tensor.shape = shape;
    for (int with_strides = 0; with_strides < 2; with_strides++) {
        memset(&layer, 0, sizeof layer);
        layer.struct_size = sizeof layer;
        layer.name = expected.name;
        tensor.strides = with_strides ? strides : NULL;
        CHECK_OK(ferry_kv_layer_of(&cache.desc, &tensor, &layer, &error));
        CHECK(memcmp(&layer, &expected, sizeof layer) == 0);
    }
    layer.heads = 1;
    CHECK_BAD(ferry_kv_layer_of(&cache.desc, &tensor, &layer, &error), "counts those of the whole model");
    tensor.order = "block kv token head element";
    CHECK_BAD(ferry_kv_layer_of(&cache.desc, &tensor, &layer, &error), "\"kv\" is none of block, pair");
    tensor.order = NULL;
    CHECK_BAD(ferry_kv_layer_of(&cache.desc, &tensor, &layer, &error), "tensor.order is NULL");
    layer.heads = expected.heads;
    CHECK(memcmp(&layer, &expected, sizeof layer) == 0);
    tensor.dimension_count = 6;
    CHECK_BAD(ferry_kv_layer_of(&cache.desc, &tensor, &layer, &error), "tensor.dimension_count is 6");
    CHECK_BAD(ferry_kv_layer_of(&cache.desc, NULL, &layer, &error), "tensor is NULL");
    CHECK_BAD(ferry_kv_layer_of(NULL, &tensor, &layer, &error), "desc is NULL");
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

SUITE(kv_descriptions, CASE(fields_of_a_description), CASE(defaults_of_a_description), CASE(arrangements), CASE(layers_in_tensors),
      CASE(struct_sizes), CASE(bytes_that_are_no_layout));
