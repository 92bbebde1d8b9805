/* Caches of known elements, described and compared; kv_cache.h says what for. */
#include "kv_cache.h"

static const char *const names[KV_LAYERS] = {"model.layers.0.attn", "model.layers.1.attn"};

/* Index of an element of this rank's `head`, of a token in a block. */
static size_t place(const kv_cache *cache, size_t block, size_t pair, size_t head, size_t token,
                    size_t element)
{
    const size_t heads = cache->heads, tokens = cache->block_tokens, blocks = KV_BLOCKS;
    size_t row = 0;
    switch (cache->arrangement) {
    case FERRY_KV_PAIR_BLOCK_TOKEN_HEAD: row = ((pair * blocks + block) * tokens + token) * heads + head; break;
    case FERRY_KV_PAIR_BLOCK_HEAD_TOKEN: row = ((pair * blocks + block) * heads + head) * tokens + token; break;
    case FERRY_KV_BLOCK_PAIR_TOKEN_HEAD: row = ((block * 2 + pair) * tokens + token) * heads + head; break;
    case FERRY_KV_BLOCK_PAIR_HEAD_TOKEN: row = ((block * 2 + pair) * heads + head) * tokens + token; break;
    case FERRY_KV_BLOCK_HEAD_PAIR_TOKEN: row = ((block * heads + head) * 2 + pair) * tokens + token; break;
    default: FAIL("no arrangement %u", cache->arrangement);
    }
    return row * KV_ELEMENTS + element;
}

size_t kv_layer_elements(const kv_cache *cache)
{
    return (size_t)KV_BLOCKS * 2 * cache->heads * cache->block_tokens * KV_ELEMENTS;
}

static ferry_kv_layer describe_layer(const kv_cache *cache, uint32_t l)
{
    ferry_kv_layer layer = FERRY_KV_LAYER_INIT;
    layer.name = names[l];
    layer.heads = KV_HEADS;
    layer.pairs = 2;
    layer.elements = KV_ELEMENTS;
    layer.element_bytes = sizeof(uint32_t);
    layer.address = (uintptr_t)cache->memory[l];
    layer.blocks = KV_BLOCKS;
    CHECK_OK(ferry_kv_layer_arrange(&cache->desc, cache->arrangement, &layer, NULL));
    return layer;
}

void kv_describe(kv_cache *cache, uint32_t arrangement, uint32_t tp_rank, uint32_t tp_size,
                 uint32_t block_tokens, void *memory)
{
    memset(cache, 0, sizeof *cache);
    cache->arrangement = arrangement;
    cache->tp_rank = tp_rank;
    cache->tp_size = tp_size;
    cache->block_tokens = block_tokens;
    cache->heads = KV_HEADS / tp_size;
    cache->owns_memory = memory == NULL;
    if (memory == NULL) memory = calloc(KV_LAYERS * kv_layer_elements(cache), sizeof(uint32_t));
    CHECK(memory != NULL);
    cache->group.struct_size = sizeof cache->group;
    cache->group.kind = FERRY_KV_GROUP_FULL;
    cache->group.block_tokens = block_tokens;
    cache->desc.struct_size = sizeof cache->desc;
    cache->desc.model = "llama";
    cache->desc.revision = "main";
    cache->desc.cache = "u32";
    cache->desc.rope = "";
    cache->desc.tp_rank = tp_rank;
    cache->desc.tp_size = tp_size;
    cache->desc.pp_size = 1;
    cache->desc.groups = &cache->group;
    cache->desc.group_count = 1;
    for (uint32_t l = 0; l < KV_LAYERS; l++) {
        cache->memory[l] = (uint32_t *)memory + l * kv_layer_elements(cache);
        cache->layers[l] = describe_layer(cache, l);
    }
    cache->desc.layers = cache->layers;
    cache->desc.layer_count = KV_LAYERS;
    /* No two caches use the same blocks, and none uses neighbours. */
    for (uint32_t i = 0; i < KV_BLOCKS; i++) cache->ids[i] = (i * 7 + tp_size + tp_rank) % KV_BLOCKS;
}

kv_cache kv_open(uint32_t arrangement, uint32_t tp_rank, uint32_t tp_size, uint32_t block_tokens,
                 void *memory)
{
    kv_cache cache;
    ferry_error error = new_error();
    kv_describe(&cache, arrangement, tp_rank, tp_size, block_tokens, memory);
    if (ferry_kv_layout_new(&cache.desc, &cache.layout, &error) != FERRY_OK) FAIL("%s", error.message);
    cache.desc.groups = NULL;
    cache.desc.layers = NULL;
    return cache;
}

void kv_close(kv_cache *cache)
{
    ferry_kv_layout_free(cache->layout);
    if (cache->owns_memory) free(cache->memory[0]);
}

static void write_layer(const kv_cache *cache, uint32_t *memory, uint32_t layer, uint32_t first, uint32_t end)
{
    for (uint32_t token = first; token < end; token++)
        for (uint32_t pair = 0; pair < 2; pair++)
            for (uint32_t head = 0; head < cache->heads; head++)
                for (uint32_t element = 0; element < KV_ELEMENTS; element++) {
                    const uint32_t of_model = cache->tp_rank * cache->heads + head;
                    const size_t at = place(cache, cache->ids[token / cache->block_tokens], pair, head,
                                            token % cache->block_tokens, element);
                    memory[at] =
                        1 + element + 8 * (pair + 2 * (layer + KV_LAYERS * (of_model + KV_HEADS * token)));
                }
}

void kv_write(kv_cache *cache, uint32_t first_token, uint32_t end_token)
{
    for (uint32_t l = 0; l < KV_LAYERS; l++) write_layer(cache, cache->memory[l], l, first_token, end_token);
}

int kv_holds(const kv_cache *cache, uint32_t first_token, uint32_t end_token)
{
    int holds = 1;
    for (uint32_t l = 0; l < KV_LAYERS && holds; l++) {
        uint32_t *expected = calloc(kv_layer_elements(cache), sizeof *expected);
        CHECK(expected != NULL);
        write_layer(cache, expected, l, first_token, end_token);
        holds = memcmp(expected, cache->memory[l], kv_layer_elements(cache) * sizeof *expected) == 0;
        free(expected);
    }
    return holds;
}
