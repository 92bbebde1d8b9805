/* submit_blocks and submit_layers: paged memory by block ids, permuted on both sides. */
#include "engines.h"

enum { LAYERS = 3, BLOCKS = 32, PAIRS = 12, BLOCK_BYTES = 512 };

/* Blocks of 512 bytes, one after the other, layer after layer. */
typedef struct {
    uint64_t local_base[LAYERS], remote_base[LAYERS], stride[LAYERS], block_bytes[LAYERS];
    ferry_region region[LAYERS];
    ferry_blocks blocks;
} table;

static void make_table(table *table, const pair *pair)
{
    for (size_t layer = 0; layer < LAYERS; layer++) {
        size_t offset = layer * BLOCKS * BLOCK_BYTES;
        table->local_base[layer] = (uintptr_t)pair->a_memory + offset;
        table->remote_base[layer] = (uintptr_t)pair->b_memory + offset;
        table->stride[layer] = table->block_bytes[layer] = BLOCK_BYTES;
        table->region[layer] = pair->b_region;
    }
    memset(&table->blocks, 0, sizeof table->blocks);
    table->blocks.struct_size = sizeof table->blocks;
    table->blocks.layer_count = LAYERS;
    table->blocks.local_base = table->local_base;
    table->blocks.remote_base = table->remote_base;
    table->blocks.local_stride = table->blocks.remote_stride = table->stride;
    table->blocks.block_bytes = table->block_bytes;
    table->blocks.remote_region = table->region;
    table->blocks.pair_count = PAIRS;
}

/* Consecutive runs (5 6 7, 12 13) and single ids, unsorted; no remote block twice. */
static const int32_t local32[PAIRS] = {5, 6, 7, 12, 13, 31, 0, 20, 9, 2, 28, 17};
static const int32_t remote32[PAIRS] = {2, 3, 4, 8, 9, 0, 31, 14, 25, 27, 11, 20};
static const int64_t local64[PAIRS] = {5, 6, 7, 12, 13, 31, 0, 20, 9, 2, 28, 17};
static const int64_t remote64[PAIRS] = {2, 3, 4, 8, 9, 0, 31, 14, 25, 27, 11, 20};

/* Every block of b has the content of its pair, and no other block changed. */
static int is_in_place(const pair *pair, uint64_t seed)
{
    for (size_t layer = 0; layer < LAYERS; layer++) {
        for (size_t block = 0; block < BLOCKS; block++) {
            size_t offset = (layer * BLOCKS + block) * BLOCK_BYTES;
            size_t i = 0;
            while (i < PAIRS && (size_t)remote32[i] != block) i++;
            if (i == PAIRS) {
                if (!is_zero(pair->b_memory + offset, BLOCK_BYTES)) return 0;
            } else {
                size_t from = (layer * BLOCKS + (size_t)local32[i]) * BLOCK_BYTES;
                if (!holds(pair->b_memory, offset, BLOCK_BYTES, seed, from)) return 0;
            }
        }
    }
    return 1;
}

static void permuted_ids_of_either_size_go_where_they_belong(void)
{
    pair pair = open_pair(LAYERS * BLOCKS * BLOCK_BYTES);
    table table;
    make_table(&table, &pair);
    for (uint32_t id_bytes = 4; id_bytes <= 8; id_bytes += 4) {
        ferry_transfer transfer = 0;
        ferry_result result = new_result();
        table.blocks.id_bytes = id_bytes;
        table.blocks.local_blocks = id_bytes == 4 ? (const void *)local32 : local64;
        table.blocks.remote_blocks = id_bytes == 4 ? (const void *)remote32 : remote64;
        fill(pair.a_memory, pair.length, id_bytes);
        memset(pair.b_memory, 0, pair.length);
        CHECK_OK(ferry_transfer_submit_blocks(pair.a, pair.peer, FERRY_OP_WRITE, &table.blocks, NULL,
                                              &transfer, NULL));
        CHECK_OK(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, &result, NULL));
        CHECK(result.requests_in == LAYERS * PAIRS);
        /* 5 6 7 and 12 13 are consecutive on both sides: two slices, and seven single blocks. */
        CHECK(result.slices_out == LAYERS * 9);
        CHECK(is_in_place(&pair, id_bytes));
        CHECK_OK(ferry_transfer_release(pair.a, transfer, NULL));
    }
    end_pair(&pair);
}

static void the_ids_are_borrowed_for_the_call_only(void)
{
    pair pair = open_pair(LAYERS * BLOCKS * BLOCK_BYTES);
    table table;
    int32_t *local = malloc(sizeof local32), *remote = malloc(sizeof remote32);
    ferry_transfer transfer = 0;
    CHECK(local != NULL && remote != NULL);
    memcpy(local, local32, sizeof local32);
    memcpy(remote, remote32, sizeof remote32);
    make_table(&table, &pair);
    table.blocks.id_bytes = 4;
    table.blocks.local_blocks = local;
    table.blocks.remote_blocks = remote;
    fill(pair.a_memory, pair.length, 7);
    CHECK_OK(ferry_transfer_submit_blocks(pair.a, pair.peer, FERRY_OP_WRITE, &table.blocks, NULL,
                                          &transfer, NULL));
    free(local);
    free(remote);
    memset(&table, 0xff, sizeof table);
    CHECK_OK(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, NULL, NULL));
    CHECK(is_in_place(&pair, 7));
    end_pair(&pair);
}

static void blocks_can_be_pulled(void)
{
    pair pair = open_pair(LAYERS * BLOCKS * BLOCK_BYTES);
    table table;
    ferry_transfer transfer = 0;
    make_table(&table, &pair);
    table.blocks.id_bytes = 8;
    table.blocks.local_blocks = local64;
    table.blocks.remote_blocks = remote64;
    table.blocks.remote_region = NULL;
    fill(pair.b_memory, pair.length, 3);
    CHECK_OK(ferry_transfer_submit_blocks(pair.a, pair.peer, FERRY_OP_READ, &table.blocks, NULL, &transfer,
                                          NULL));
    CHECK_OK(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, NULL, NULL));
    for (size_t i = 0; i < PAIRS; i++)
        CHECK(holds(pair.a_memory, (size_t)local32[i] * BLOCK_BYTES, BLOCK_BYTES, 3,
                    (size_t)remote32[i] * BLOCK_BYTES));
    end_pair(&pair);
}

static void wrong_lists_are_named(void)
{
    pair pair = open_pair(LAYERS * BLOCKS * BLOCK_BYTES);
    table table;
    ferry_transfer transfer = 0;
    ferry_error error = new_error();
    int32_t negative[PAIRS];
/* The table is refused after the change; then it is as it was. */
#define CHECK_REFUSED(change, part)                                                                \
    do {                                                                                           \
        change;                                                                                    \
        CHECK_INVALID(ferry_transfer_submit_blocks(pair.a, pair.peer, FERRY_OP_WRITE, &table.blocks, \
                                                   NULL, &transfer, &error));                      \
        CHECK_MESSAGE(error, part);                                                                \
        make_table(&table, &pair);                                                                 \
        table.blocks.id_bytes = 4;                                                                 \
        table.blocks.local_blocks = local32;                                                       \
        table.blocks.remote_blocks = remote32;                                                     \
    } while (0)
    make_table(&table, &pair);
    CHECK_REFUSED(table.blocks.id_bytes = 0, "blocks.id_bytes is 0");
    CHECK_REFUSED(table.blocks.id_bytes = 2, "blocks.id_bytes is 2");
    CHECK_REFUSED(table.blocks.struct_size = 80, "blocks.struct_size");
    CHECK_REFUSED(table.blocks.local_blocks = NULL, "blocks.local_blocks is NULL");
    CHECK_REFUSED(table.blocks.remote_blocks = NULL, "blocks.remote_blocks is NULL");
    CHECK_REFUSED(table.blocks.local_base = NULL, "blocks.local_base is NULL");
    CHECK_REFUSED(table.blocks.remote_base = NULL, "blocks.remote_base is NULL");
    CHECK_REFUSED(table.blocks.local_stride = NULL, "blocks.local_stride is NULL");
    CHECK_REFUSED(table.blocks.remote_stride = NULL, "blocks.remote_stride is NULL");
    CHECK_REFUSED(table.blocks.block_bytes = NULL, "blocks.block_bytes is NULL");
    CHECK_REFUSED(table.blocks.layer_count = 0, "layers is empty");
    CHECK_REFUSED(table.blocks.pair_count = 0, "is empty");
    CHECK_REFUSED(table.stride[1] = BLOCK_BYTES - 1, "layers[1]");
    memcpy(negative, local32, sizeof negative);
    negative[4] = -1;
    CHECK_REFUSED(table.blocks.local_blocks = negative, "local_ids[4] is negative");
#undef CHECK_REFUSED
    CHECK(transfer == 0);
    end_pair(&pair);
}

static ferry_uniform_blocks new_layers(const pair *pair)
{
    ferry_uniform_blocks layers = FERRY_UNIFORM_BLOCKS_INIT;
    layers.layer_count = LAYERS;
    layers.local_base = (uintptr_t)pair->a_memory;
    layers.remote_base = (uintptr_t)pair->b_memory;
    layers.local_layer_stride = layers.remote_layer_stride = BLOCKS * BLOCK_BYTES;
    layers.block_bytes = BLOCK_BYTES;
    layers.remote_region = pair->b_region;
    layers.pair_count = PAIRS;
    return layers;
}

static void layers_of_equal_shape_need_no_table(void)
{
    pair pair = open_pair(LAYERS * BLOCKS * BLOCK_BYTES);
    ferry_uniform_blocks layers = new_layers(&pair);
    ferry_transfer transfers[LAYERS];
    ferry_result result = new_result();
    size_t index = 0;
    /* Layer by layer, as a program that pushes each layer when the layer is computed. */
    fill(pair.a_memory, pair.length, 5);
    layers.layer_count = 1;
    layers.id_bytes = 4;
    layers.local_blocks = local32;
    layers.remote_blocks = remote32;
    for (; layers.first_layer < LAYERS; layers.first_layer++)
        CHECK_OK(ferry_transfer_submit_uniform(pair.a, pair.peer, FERRY_OP_WRITE, &layers, NULL,
                                              &transfers[layers.first_layer], NULL));
    CHECK_OK(ferry_transfer_wait_all(pair.a, transfers, LAYERS, PATIENCE_NS, NULL, NULL));
    CHECK(is_in_place(&pair, 5));
    /* Without ids: the first blocks of the last two layers, with gaps between the local blocks, as one slice each. */
    memset(pair.a_memory, 0, pair.length);
    fill(pair.b_memory, pair.length, 6);
    layers = new_layers(&pair);
    layers.first_layer = 1;
    layers.layer_count = 2;
    layers.local_stride = 2 * BLOCK_BYTES;
    CHECK_OK(ferry_transfer_submit_uniform(pair.a, pair.peer, FERRY_OP_READ, &layers, NULL, transfers, NULL));
    CHECK_OK(ferry_transfer_wait_all(pair.a, transfers, 1, PATIENCE_NS, &index, NULL));
    CHECK_OK(ferry_transfer_wait(pair.a, transfers[0], 0, &result, NULL));
    CHECK(result.requests_in == 2 * PAIRS);
    CHECK(is_zero(pair.a_memory, BLOCKS * BLOCK_BYTES));
    for (size_t i = 0; i < 2 * PAIRS; i++) {
        size_t layer = 1 + i / PAIRS, block = i % PAIRS, from = (layer * BLOCKS + block) * BLOCK_BYTES;
        CHECK(holds(pair.a_memory, from + block * BLOCK_BYTES, BLOCK_BYTES, 6, from));
        CHECK(is_zero(pair.a_memory + from + (block + 1) * BLOCK_BYTES, BLOCK_BYTES));
    }
    end_pair(&pair);
}

static void wrong_layers_are_named(void)
{
    pair pair = open_pair(LAYERS * BLOCKS * BLOCK_BYTES);
    ferry_uniform_blocks layers;
    ferry_transfer transfer = 0;
    ferry_error error = new_error();
#define CHECK_REFUSED(change, part)                                                                \
    do {                                                                                           \
        layers = new_layers(&pair);                                                                \
        change;                                                                                    \
        CHECK_INVALID(ferry_transfer_submit_uniform(pair.a, pair.peer, FERRY_OP_WRITE, &layers, NULL, \
                                                   &transfer, &error));                            \
        CHECK_MESSAGE(error, part);                                                                \
    } while (0)
    CHECK_REFUSED(layers.layer_count = 0, "layers is empty");
    CHECK_REFUSED(layers.pair_count = 0, "is empty");
    CHECK_REFUSED(layers.block_bytes = 0, "block_bytes is 0");
    CHECK_REFUSED(layers.struct_size = 80, "layers.struct_size");
    CHECK_REFUSED(layers.local_blocks = local32, "layers.id_bytes is 0");
    CHECK_REFUSED(layers.remote_stride = BLOCK_BYTES - 1, "remote_stride 511 is less than block_bytes 512");
    CHECK_REFUSED(layers.first_layer = SIZE_MAX, "layers.first_layer + layers.layer_count overflows");
    CHECK_REFUSED(layers.remote_layer_stride = UINT64_MAX, "layer 1: remote_base");
#undef CHECK_REFUSED
    CHECK(transfer == 0);
    end_pair(&pair);
}

SUITE(blocks, CASE(permuted_ids_of_either_size_go_where_they_belong),
      CASE(the_ids_are_borrowed_for_the_call_only), CASE(blocks_can_be_pulled),
      CASE(wrong_lists_are_named), CASE(layers_of_equal_shape_need_no_table), CASE(wrong_layers_are_named));
