/* Nodes of a pool in this process, for the tests of ferry_pool.h: each on an engine of its own, with memory for values. */
#ifndef POOL_NODES_H
#define POOL_NODES_H

#include "engines.h"
#include "ferry_pool.h"

enum { POOL_NODES_MAX = 3, POOL_MEMORY = 1 << 20 };

typedef struct {
    ferry_engine *engine;
    ferry_pool *pool;
    unsigned char *memory; /* of POOL_MEMORY bytes, which peers may read and write */
    ferry_region region;
} pool_node;

/* Opens nodes "node 0", "node 1" and so on that lend so many bytes each, and waits until they know one another. */
void pool_open(pool_node *nodes, size_t count, const uint64_t *lent_bytes);
void pool_close(pool_node *nodes, size_t count);

/* Returns a key, which is the same for the same number. */
ferry_pool_key pool_key(uint64_t number);
/* Returns the value of a key in the node's memory; `range` holds its place. */
ferry_pool_value pool_value(const pool_node *node, uint64_t number, ferry_pool_range *range, size_t offset,
                            size_t length);

/* One key's call, whose outcome is returned by its name. */
const char *pool_put(const pool_node *node, uint64_t number, size_t offset, size_t length);
const char *pool_get(const pool_node *node, uint64_t number, size_t offset, size_t length);

enum { POOL_TOKENS = 8, POOL_HEADS = 2, POOL_ROW = 16, POOL_CACHE = 2 * POOL_TOKENS * POOL_HEADS * POOL_ROW };

/* Returns the layout of one layer at an offset of the node's memory: POOL_TOKENS tokens in POOL_CACHE bytes. */
ferry_kv_layout *pool_layout(const pool_node *node, size_t offset, uint32_t block_tokens, uint32_t arrangement);

#define CHECK_OUTCOME(call, expected)                                                              \
    do {                                                                                           \
        const char *outcome_ = (call);                                                             \
        if (strcmp(outcome_, expected) != 0)                                                       \
            FAIL("%s\n      ended with %s, not %s", #call, outcome_, expected);                     \
    } while (0)

#endif
