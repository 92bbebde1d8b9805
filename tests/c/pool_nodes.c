/* See pool_nodes.h. */
#include "pool_nodes.h"

void pool_open(pool_node *nodes, size_t count, const uint64_t *lent_bytes)
{
    static char addresses[POOL_NODES_MAX][300];
    const char *list[POOL_NODES_MAX];
    ferry_error error = new_error();
    memset(nodes, 0, count * sizeof *nodes);
    for (size_t i = 0; i < count; i++) {
        nodes[i].engine = open_engine();
        strcpy(addresses[i], address_of(nodes[i].engine));
        list[i] = addresses[i];
    }
    for (size_t i = 0; i < count; i++) {
        ferry_pool_options options = FERRY_POOL_OPTIONS_INIT;
        void *memory = NULL;
        char name[16];
        snprintf(name, sizeof name, "node %u", (unsigned)i);
        options.name = name;
        options.nodes = list;
        options.node_count = count;
        options.memory_bytes = lent_bytes[i];
        if (ferry_pool_open(nodes[i].engine, &options, &nodes[i].pool, &error) != FERRY_OK) FAIL("%s", error.message);
        CHECK_OK(ferry_memory_alloc(nodes[i].engine, POOL_MEMORY, NULL, &memory, &nodes[i].region, NULL));
        nodes[i].memory = memory;
    }
    for (size_t i = 0; i < count; i++)
        if (ferry_pool_wait_nodes(nodes[i].pool, count, PATIENCE_NS, &error) != FERRY_OK) FAIL("%s", error.message);
    /* The index is made when the nodes have met: until then what nobody has is UNKNOWN. */
    for (size_t i = 0; i < count; i++) {
        const ferry_pool_key nobody = pool_key(UINT64_MAX);
        ferry_pool_result result = {0};
        for (int tries = 0; tries < 20000 && result.outcome != FERRY_POOL_OUTCOME_ABSENT; tries++)
            CHECK_OK(ferry_pool_exists(nodes[i].pool, &nobody, 1, NULL, PATIENCE_NS, &result, NULL));
    }
}

void pool_close(pool_node *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        CHECK_OK(ferry_pool_close(nodes[i].pool, PATIENCE_NS, NULL));
        CHECK_OK(ferry_pool_close(nodes[i].pool, 0, NULL));
        ferry_pool_free(nodes[i].pool);
        end_engine(nodes[i].engine);
    }
}

ferry_pool_key pool_key(uint64_t number)
{
    ferry_pool_identity identity = FERRY_POOL_IDENTITY_INIT;
    ferry_pool_keyspace *keyspace = NULL;
    ferry_pool_key key;
    identity.tenant = "tests";
    identity.model = "llama";
    CHECK_OK(ferry_pool_keyspace_new(&identity, &keyspace, NULL));
    CHECK_OK(ferry_pool_key_of(keyspace, &number, sizeof number, &key, NULL));
    ferry_pool_keyspace_free(keyspace);
    return key;
}

ferry_pool_value pool_value(const pool_node *node, uint64_t number, ferry_pool_range *range, size_t offset,
                            size_t length)
{
    ferry_pool_value value = FERRY_POOL_VALUE_INIT;
    range->address = (uintptr_t)(node->memory + offset);
    range->length = length;
    value.key = pool_key(number);
    value.memory = range;
    value.memory_count = 1;
    return value;
}

const char *pool_put(const pool_node *node, uint64_t number, size_t offset, size_t length)
{
    ferry_pool_range range;
    const ferry_pool_value value = pool_value(node, number, &range, offset, length);
    ferry_pool_result result;
    CHECK_OK(ferry_pool_put(node->pool, &value, 1, NULL, PATIENCE_NS, &result, NULL));
    return ferry_pool_outcome_name(result.outcome);
}

const char *pool_get(const pool_node *node, uint64_t number, size_t offset, size_t length)
{
    ferry_pool_range range;
    const ferry_pool_value value = pool_value(node, number, &range, offset, length);
    ferry_pool_result result;
    CHECK_OK(ferry_pool_get(node->pool, &value, 1, NULL, PATIENCE_NS, &result, NULL));
    return ferry_pool_outcome_name(result.outcome);
}

ferry_kv_layout *pool_layout(const pool_node *node, size_t offset, uint32_t block_tokens, uint32_t arrangement)
{
    ferry_kv_group group = FERRY_KV_GROUP_INIT;
    ferry_kv_layer layer = FERRY_KV_LAYER_INIT;
    ferry_kv_layout_desc desc = FERRY_KV_LAYOUT_DESC_INIT;
    ferry_kv_layout *layout = NULL;
    group.kind = FERRY_KV_GROUP_FULL;
    group.block_tokens = block_tokens;
    layer.name = "layers.0";
    layer.heads = POOL_HEADS;
    layer.pairs = 2;
    layer.elements = POOL_ROW / 2;
    layer.element_bytes = 2;
    layer.address = (uintptr_t)node->memory + offset;
    layer.blocks = POOL_TOKENS / block_tokens;
    desc.model = "llama";
    desc.revision = desc.cache = desc.rope = "";
    desc.tp_size = desc.pp_size = 1;
    desc.groups = &group;
    desc.layers = &layer;
    desc.group_count = desc.layer_count = 1;
    CHECK_OK(ferry_kv_layer_arrange(&desc, arrangement, &layer, NULL));
    CHECK_OK(ferry_kv_layout_new(&desc, &layout, NULL));
    return layout;
}
