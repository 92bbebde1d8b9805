/*
 * KV caches in this process, for the tests of ferry_kv.h: each element encodes its layer, pair, head, token and
 * place in its row. Places are computed by hand, not by ferry's strides.
 */
#ifndef KV_CACHE_H
#define KV_CACHE_H

#include "engines.h"
#include "ferry_kv.h"

enum { KV_LAYERS = 2, KV_HEADS = 8, KV_ELEMENTS = 6, KV_BLOCKS = 40 };

/* One rank's cache of a sequence. */
typedef struct {
    uint32_t arrangement, tp_rank, tp_size, block_tokens, heads;
    ferry_kv_group group;
    ferry_kv_layer layers[KV_LAYERS];
    ferry_kv_layout_desc desc;
    ferry_kv_layout *layout;
    uint32_t *memory[KV_LAYERS]; /* of kv_layer_elements elements each */
    int owns_memory;
    uint32_t ids[KV_BLOCKS]; /* the blocks of the sequence, in its order */
} kv_cache;

/* Describes a cache of zeros with the strides of ferry_kv_layer_arrange. `memory` has room for all layers, or is
 * NULL. The layout is not made. */
void kv_describe(kv_cache *cache, uint32_t arrangement, uint32_t tp_rank, uint32_t tp_size,
                 uint32_t block_tokens, void *memory);
/* Returns the same with its layout; desc has neither groups nor layers any more. */
kv_cache kv_open(uint32_t arrangement, uint32_t tp_rank, uint32_t tp_size, uint32_t block_tokens, void *memory);
void kv_close(kv_cache *cache);

size_t kv_layer_elements(const kv_cache *cache);
/* Writes the elements of these tokens. */
void kv_write(kv_cache *cache, uint32_t first_token, uint32_t end_token);
/* True if the cache has the elements of these tokens, and zeros in all other places. */
int kv_holds(const kv_cache *cache, uint32_t first_token, uint32_t end_token);

#endif
