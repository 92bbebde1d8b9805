/* Parts of chunks, of ferry_pool.h: an engine gets what another one has put, and wrong arguments. */
#include "arguments.h"
#include "pool_nodes.h"

static const uint64_t lent[] = {32 << 20};
static pool_node nodes[POOL_NODES_MAX];

/* Blocks of 4 tokens become one of 8, and tokens of heads become heads of tokens. */
static void an_engine_gets_what_another_one_has_put_in_its_own_layout(void)
{
    const uint32_t two[] = {1, 0}, one[] = {0};
    ferry_pool_cut cut = FERRY_POOL_CUT_INIT;
    ferry_kv_block_list blocks = FERRY_KV_BLOCK_LIST_INIT;
    ferry_kv_layout *layout;
    ferry_pool_parts *parts = NULL;
    ferry_pool_value_list *list = NULL;
    const ferry_pool_value *values = NULL;
    const ferry_pool_key chunk = pool_key(1);
    ferry_pool_key keys[3];
    ferry_pool_result results[POOL_HEADS];
    size_t count = 7;
    pool_open(nodes, 1, lent);
    fill(nodes[0].memory, POOL_CACHE, 5);
    cut.chunk_tokens = POOL_TOKENS;
    cut.head_parts = POOL_HEADS;
    for (size_t side = 0; side < 2; side++) {
        const size_t tokens = side == 0 ? 4 : 8;
        layout = pool_layout(&nodes[0], side * POOL_CACHE, (uint32_t)tokens,
                             side == 0 ? FERRY_KV_BLOCK_PAIR_TOKEN_HEAD : FERRY_KV_PAIR_BLOCK_HEAD_TOKEN);
        CHECK_OK(ferry_pool_parts_new(layout, &cut, &parts, NULL));
        ferry_kv_layout_free(layout);
        memset(keys, 0, sizeof keys);
        CHECK_OK(ferry_pool_parts_keys(parts, &chunk, 1, keys, 3, &count, NULL));
        CHECK(count == POOL_HEADS && memcmp(&keys[0], &keys[1], sizeof chunk) != 0 && is_zero(keys[2].bytes, 32));
        blocks.blocks = side == 0 ? two : one;
        blocks.block_count = POOL_TOKENS / tokens;
        CHECK_OK(ferry_pool_parts_values(parts, &chunk, 1, 0, &blocks, 1, &list, NULL));
        ferry_pool_parts_free(parts);
        CHECK_OK(ferry_pool_value_list_get(list, &values, &count, NULL));
        CHECK(count == POOL_HEADS && memcmp(&values[1].key, &keys[1], sizeof chunk) == 0);
        if (side == 0)
            CHECK_OK(ferry_pool_put(nodes[0].pool, values, count, NULL, PATIENCE_NS, results, NULL));
        else
            CHECK_OK(ferry_pool_get(nodes[0].pool, values, count, NULL, PATIENCE_NS, results, NULL));
        ferry_pool_value_list_free(list);
        CHECK_OK(ferry_pool_results_fold(results, POOL_HEADS, 1, results, NULL));
        CHECK(results[0].outcome == FERRY_POOL_OUTCOME_OK && results[0].bytes == POOL_CACHE);
    }
    for (size_t token = 0; token < POOL_TOKENS; token++)
        for (size_t pair = 0; pair < 2; pair++)
            for (size_t head = 0; head < POOL_HEADS; head++) {
                const size_t block = two[token / 4];
                const size_t from = (((block * 2 + pair) * 4 + token % 4) * POOL_HEADS + head) * POOL_ROW;
                const size_t to = POOL_CACHE + ((pair * POOL_HEADS + head) * POOL_TOKENS + token) * POOL_ROW;
                CHECK(memcmp(nodes[0].memory + from, nodes[0].memory + to, POOL_ROW) == 0);
            }
    ferry_pool_value_list_free(NULL);
    ferry_pool_parts_free(NULL);
    pool_close(nodes, 1);
}

static void wrong_arguments(void)
{
    const uint32_t ids[] = {0, 1, 2};
    const ferry_pool_key chunk = pool_key(1);
    ferry_pool_cut cut = FERRY_POOL_CUT_INIT;
    ferry_kv_block_list blocks = FERRY_KV_BLOCK_LIST_INIT;
    ferry_kv_layout *layout;
    ferry_pool_parts *parts = NULL;
    ferry_pool_value_list *list = NULL;
    const ferry_pool_value *values = NULL;
    ferry_pool_key key;
    ferry_pool_result result;
    size_t count = 7;
    pool_open(nodes, 1, lent);
    layout = pool_layout(&nodes[0], 0, 4, FERRY_KV_BLOCK_PAIR_TOKEN_HEAD);
#define NEW ferry_pool_parts_new(layout, &cut, &parts, &error)
    CHECK_NULL(ferry_pool_parts_new(NULL, NULL, &parts, &error), "layout");
    CHECK_NULL(ferry_pool_parts_new(layout, NULL, NULL, &error), "out_parts");
    cut.chunk_tokens = 65537;
    CHECK_BAD(NEW, "chunk_tokens: 65537");
    cut.chunk_tokens = POOL_TOKENS;
    cut.layer_parts = 2;
    CHECK_BAD(NEW, "layer_parts is 2; it must be 1 to 1, the number of layers");
    cut.layer_parts = 0;
    cut.arrangement = 6;
    CHECK_BAD(NEW, "arrangement is 6");
    cut.arrangement = 0;
    cut.reserved = 1;
    CHECK_BAD(NEW, "cut.reserved");
    cut.reserved = 0;
    cut.struct_size--;
    CHECK_BAD(NEW, "cut.struct_size");
    cut.struct_size++;
    CHECK(parts == NULL);
    CHECK_OK(NEW);
#undef NEW
    CHECK_NULL(ferry_pool_parts_keys(NULL, &chunk, 1, &key, 1, &count, &error), "parts");
    CHECK_NULL(ferry_pool_parts_keys(parts, NULL, 1, &key, 1, &count, &error), "chunks");
    CHECK_NULL(ferry_pool_parts_keys(parts, &chunk, 1, NULL, 1, &count, &error), "out_keys");
    CHECK_NULL(ferry_pool_parts_keys(parts, &chunk, 1, &key, 1, NULL, &error), "out_count");
    blocks.blocks = ids;
    blocks.block_count = 1;
#define VALUES ferry_pool_parts_values(parts, &chunk, 1, 0, &blocks, 1, &list, &error)
    CHECK_NULL(ferry_pool_parts_values(NULL, &chunk, 1, 0, &blocks, 1, &list, &error), "parts");
    CHECK_NULL(ferry_pool_parts_values(parts, NULL, 1, 0, &blocks, 1, &list, &error), "chunks");
    CHECK_NULL(ferry_pool_parts_values(parts, &chunk, 1, 0, NULL, 1, &list, &error), "blocks");
    CHECK_NULL(ferry_pool_parts_values(parts, &chunk, 1, 0, &blocks, 1, NULL, &error), "out_list");
    CHECK_BAD(ferry_pool_parts_values(parts, &chunk, 1, 0, &blocks, 0, &list, &error), "blocks: 0 lists");
    CHECK_BAD(VALUES, "list of group 0 is too short: its 1 blocks end");
    blocks.blocks = ids + 1;
    blocks.block_count = 2;
    CHECK_BAD(VALUES, "block id 2 of the target's list of group 0 is beyond the 2 blocks");
    blocks.blocks = ids;
    CHECK(list == NULL);
    CHECK_OK(VALUES);
#undef VALUES
    CHECK_NULL(ferry_pool_value_list_get(NULL, &values, &count, &error), "list");
    CHECK_NULL(ferry_pool_value_list_get(list, NULL, &count, &error), "out_values");
    CHECK_NULL(ferry_pool_value_list_get(list, &values, NULL, &error), "out_count");
    memset(&result, 0, sizeof result);
    CHECK_NULL(ferry_pool_results_fold(NULL, 1, 1, &result, &error), "results");
    CHECK_NULL(ferry_pool_results_fold(&result, 1, 1, NULL, &error), "out_results");
    CHECK_BAD(ferry_pool_results_fold(&result, 1, 2, &result, &error), "ends: 1 are not equally many");
    CHECK_NAMES(ferry_pool_results_fold(&result, 1, SIZE_MAX, &result, &error), FERRY_ERR_LIMIT, "chunk_count is");
    result.outcome = 12;
    CHECK_BAD(ferry_pool_results_fold(&result, 1, 1, &result, &error), "results: 12 is no FERRY_POOL_OUTCOME_*");
    CHECK(count == 7 && values == NULL);
    ferry_pool_value_list_free(list);
    ferry_pool_parts_free(parts);
    ferry_kv_layout_free(layout);
    pool_close(nodes, 1);
}

SUITE(pool_parts, CASE(an_engine_gets_what_another_one_has_put_in_its_own_layout), CASE(wrong_arguments));
