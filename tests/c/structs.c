/*
 * Structs of wrong sizes, fields that must be zero, numbers without a meaning. Each call returns INVALID (or
 * UNSUPPORTED), names the field and does nothing.
 */
#include "arguments.h"
#include "ferry_kv.h"
#include "ferry_pool.h"

static const char bytes_of_notification_max[FERRY_NOTIFY_BYTES_MAX + 1];

static void element_sizes(void)
{
    pair pair = open_pair(4096);
    char room[1024];
    size_t count = 7;
    CHECK_BAD(ferry_config_settings((void *)room, sizeof(ferry_setting_info) - 8, 1, &count, &error),
              "element_size");
    CHECK_BAD(ferry_peer_regions(pair.a, pair.peer, (void *)room, 8, 1, &count, &error), "element_size");
    CHECK_BAD(ferry_peer_paths(pair.a, pair.peer, (void *)room, 0, 1, &count, &error), "element_size");
    CHECK_BAD(ferry_transfer_results(pair.a, 1, 0, (void *)room, 36, 1, &count, &error), "element_size");
    CHECK_BAD(ferry_queue_drain(pair.a, 1, (void *)room, sizeof(ferry_event) + 4, 1, &count, &error),
              "alignment");
    CHECK(count == 7);
    end_pair(&pair);
}

/* The initializer of a struct sets its size, and zeroes all other bytes. */
#define CHECK_INIT(type, initializer)                                                              \
    do {                                                                                           \
        const type made = initializer;                                                             \
        type expected;                                                                             \
        memset(&expected, 0, sizeof expected);                                                     \
        expected.struct_size = sizeof expected;                                                    \
        CHECK(memcmp(&made, &expected, sizeof made) == 0);                                         \
    } while (0)

static void initializers(void)
{
    static ferry_transfer_options of_static_duration = FERRY_TRANSFER_OPTIONS_INIT;
    CHECK(of_static_duration.struct_size == sizeof of_static_duration);
    CHECK_INIT(ferry_error, FERRY_ERROR_INIT);
    CHECK_INIT(ferry_setting_info, FERRY_SETTING_INFO_INIT);
    CHECK_INIT(ferry_region_options, FERRY_REGION_OPTIONS_INIT);
    CHECK_INIT(ferry_alloc_options, FERRY_ALLOC_OPTIONS_INIT);
    CHECK_INIT(ferry_peer_info, FERRY_PEER_INFO_INIT);
    CHECK_INIT(ferry_region_info, FERRY_REGION_INFO_INIT);
    CHECK_INIT(ferry_path_info, FERRY_PATH_INFO_INIT);
    CHECK_INIT(ferry_transfer_options, FERRY_TRANSFER_OPTIONS_INIT);
    CHECK_INIT(ferry_request_result, FERRY_REQUEST_RESULT_INIT);
    CHECK_INIT(ferry_result, FERRY_RESULT_INIT);
    CHECK_INIT(ferry_blocks, FERRY_BLOCKS_INIT);
    CHECK_INIT(ferry_uniform_blocks, FERRY_UNIFORM_BLOCKS_INIT);
    CHECK_INIT(ferry_event, FERRY_EVENT_INIT);
    CHECK_INIT(ferry_stats, FERRY_STATS_INIT);
    CHECK_INIT(ferry_kv_group, FERRY_KV_GROUP_INIT);
    CHECK_INIT(ferry_kv_layer, FERRY_KV_LAYER_INIT);
    CHECK_INIT(ferry_kv_layout_desc, FERRY_KV_LAYOUT_DESC_INIT);
    CHECK_INIT(ferry_kv_layout_info, FERRY_KV_LAYOUT_INFO_INIT);
    CHECK_INIT(ferry_kv_block_pairs, FERRY_KV_BLOCK_PAIRS_INIT);
    CHECK_INIT(ferry_kv_part, FERRY_KV_PART_INIT);
    CHECK_INIT(ferry_kv_move, FERRY_KV_MOVE_INIT);
    CHECK_INIT(ferry_kv_memory, FERRY_KV_MEMORY_INIT);
    CHECK_INIT(ferry_kv_cache_options, FERRY_KV_CACHE_OPTIONS_INIT);
    CHECK_INIT(ferry_kv_block_list, FERRY_KV_BLOCK_LIST_INIT);
    CHECK_INIT(ferry_kv_offer_options, FERRY_KV_OFFER_OPTIONS_INIT);
    CHECK_INIT(ferry_kv_take_options, FERRY_KV_TAKE_OPTIONS_INIT);
    CHECK_INIT(ferry_kv_event, FERRY_KV_EVENT_INIT);
    CHECK_INIT(ferry_kv_state, FERRY_KV_STATE_INIT);
    CHECK_INIT(ferry_directory_options, FERRY_DIRECTORY_OPTIONS_INIT);
    CHECK_INIT(ferry_directory_entry, FERRY_DIRECTORY_ENTRY_INIT);
    CHECK_INIT(ferry_directory_info, FERRY_DIRECTORY_INFO_INIT);
    CHECK_INIT(ferry_pool_identity, FERRY_POOL_IDENTITY_INIT);
    CHECK_INIT(ferry_pool_extra, FERRY_POOL_EXTRA_INIT);
    CHECK_INIT(ferry_pool_chain_options, FERRY_POOL_CHAIN_OPTIONS_INIT);
    CHECK_INIT(ferry_pool_options, FERRY_POOL_OPTIONS_INIT);
    CHECK_INIT(ferry_pool_node_info, FERRY_POOL_NODE_INFO_INIT);
    CHECK_INIT(ferry_pool_value, FERRY_POOL_VALUE_INIT);
    CHECK_INIT(ferry_pool_cut, FERRY_POOL_CUT_INIT);
    CHECK_INIT(ferry_pool_call_options, FERRY_POOL_CALL_OPTIONS_INIT);
    CHECK_INIT(ferry_pool_cost_options, FERRY_POOL_COST_OPTIONS_INIT);
    CHECK_INIT(ferry_pool_cost, FERRY_POOL_COST_INIT);
    CHECK_INIT(ferry_pool_event, FERRY_POOL_EVENT_INIT);
    CHECK_INIT(ferry_pool_stats, FERRY_POOL_STATS_INIT);
}

static void structs_of_other_sizes(void)
{
    pair pair = open_pair(4096);
    ferry_request request = range(&pair, 0, 0, 64);
    ferry_region region = 0;
    ferry_result result = new_result();
    struct {
        ferry_transfer_options known;
        uint64_t newer;
    } options;
    ferry_region_options region_options = {0};
    memset(&options, 0, sizeof options);
    options.known.struct_size = sizeof options;
    CHECK_OK(ferry_write(pair.a, pair.peer, &request, 1, &options.known, NULL, NULL));
    options.newer = 1;
    CHECK_NAMES(ferry_write(pair.a, pair.peer, &request, 1, &options.known, NULL, &error),
                FERRY_ERR_UNSUPPORTED, "offset 80");
    options.known.struct_size = sizeof options.known;
    CHECK_OK(ferry_write(pair.a, pair.peer, &request, 1, &options.known, NULL, NULL));
    /* As a program was built that knows no channels. */
    options.known.struct_size = offsetof(ferry_transfer_options, channel);
    CHECK_OK(ferry_write(pair.a, pair.peer, &request, 1, &options.known, NULL, NULL));
    options.known.struct_size--;
    CHECK_BAD(ferry_write(pair.a, pair.peer, &request, 1, &options.known, NULL, &error),
              "sizeof(ferry_transfer_options) is 80");
    result.struct_size = 8;
    CHECK_BAD(ferry_write(pair.a, pair.peer, &request, 1, NULL, &result, &error), "out_result.struct_size");
    region_options.access = FERRY_ACCESS_REMOTE_READ;
    CHECK_BAD(ferry_region_register(pair.a, &request, sizeof request, &region_options, &region, &error),
              "options.struct_size");
    CHECK(region == 0);
    end_pair(&pair);
}

static void fields_that_must_be_zero(void)
{
    ferry_engine *engine = open_engine();
    static unsigned char bytes[64];
    void *memory = NULL;
    ferry_region region = 0;
    ferry_region_options options = {0};
    ferry_alloc_options alloc = {0};
    options.struct_size = sizeof options;
    options.access = FERRY_ACCESS_REMOTE_READ;
    options.reserved = 1;
    CHECK_BAD(ferry_region_register(engine, bytes, 64, &options, &region, &error), "options.reserved");
    options.reserved = 0;
    options.grant_scope = 1;
    CHECK_BAD(ferry_region_register(engine, bytes, 64, &options, &region, &error), "options.grant_scope");
    options.grant_scope = 0;
    options.device = 1;
    CHECK_BAD(ferry_region_register(engine, bytes, 64, &options, &region, &error), "options.device");
    options.device = 0;
    options.kind = 9;
    CHECK_BAD(ferry_region_register(engine, bytes, 64, &options, &region, &error), "options.kind");
    options.kind = FERRY_MEMORY_CUDA;
    CHECK_NAMES(ferry_region_register(engine, bytes, 64, &options, &region, &error),
                FERRY_ERR_UNAVAILABLE, "libcuda");
    options.kind = FERRY_MEMORY_ASCEND;
    CHECK_NAMES(ferry_region_register(engine, bytes, 64, &options, &region, &error),
                FERRY_ERR_UNAVAILABLE, "libascendcl");
    alloc.struct_size = sizeof alloc;
    alloc.access = FERRY_ACCESS_REMOTE_READ;
    alloc.flags = 1;
    CHECK_BAD(ferry_memory_alloc(engine, 64, &alloc, &memory, &region, &error), "options.flags");
    alloc.flags = 0;
    alloc.reserved = 1;
    CHECK_BAD(ferry_memory_alloc(engine, 64, &alloc, &memory, &region, &error), "options.reserved");
    alloc.reserved = 0;
    alloc.kind = FERRY_MEMORY_CUDA;
    CHECK_NAMES(ferry_memory_alloc(engine, 64, &alloc, &memory, &region, &error), FERRY_ERR_UNSUPPORTED,
                "options.kind");
    CHECK(region == 0 && memory == NULL);
    end_engine(engine);
}

static void transfer_options_that_mean_nothing(void)
{
    pair pair = open_pair(4096);
    ferry_request request = range(&pair, 0, 0, 64);
    ferry_transfer transfer = 0;
    ferry_transfer_options options = new_options();
    ferry_stats stats = {0};
#define SUBMIT \
    ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, &request, 1, &options, &transfer, &error)
    options.flags = 32;
    CHECK_BAD(SUBMIT, "options.flags");
    options = new_options();
    options.transports_allowed = 1;
    CHECK_BAD(SUBMIT, "options.transports_allowed");
    options.transports_allowed = FERRY_ALLOW_RDMA;
    CHECK_NAMES(SUBMIT, FERRY_ERR_UNAVAILABLE, "transports_allowed");
    options = new_options();
    options.notify_length = 1;
    CHECK_BAD(SUBMIT, "options.notify_length");
    options = new_options();
    options.notify = bytes_of_notification_max;
    options.notify_length = FERRY_NOTIFY_BYTES_MAX + 1;
    CHECK_NAMES(SUBMIT, FERRY_ERR_LIMIT, "notify_length");
    options = new_options();
    options.event = 1;
    CHECK_BAD(SUBMIT, "options.event");
    options.event_kind = FERRY_START_AFTER_CUDA_EVENT;
    options.event = 0;
    CHECK_BAD(SUBMIT, "options.event");
    options.event = 64;
    CHECK_NAMES(SUBMIT, FERRY_ERR_UNAVAILABLE, "libcuda");
    options.event_kind = FERRY_START_AFTER_ACL_STREAM;
    CHECK_NAMES(SUBMIT, FERRY_ERR_UNAVAILABLE, "libascendcl");
    options.event_kind = 5;
    CHECK_BAD(SUBMIT, "options.event_kind");
#undef SUBMIT
    CHECK_BAD(ferry_transfer_submit(pair.a, pair.peer, 0, &request, 1, NULL, &transfer, &error), "op is 0");
    CHECK_BAD(ferry_transfer_submit(pair.a, pair.peer, 3, &request, 1, NULL, &transfer, &error), "op is 3");
    stats.struct_size = sizeof stats;
    CHECK_OK(ferry_engine_get_stats(pair.a, &stats, NULL));
    CHECK(stats.transfers_submitted == 0 && transfer == 0);
    end_pair(&pair);
}

static void misaligned_pointers(void)
{
    pair pair = open_pair(4096);
    union {
        ferry_request requests[2];
        char bytes[64];
    } room;
    room.requests[0] = room.requests[1] = range(&pair, 0, 0, 64);
    CHECK_BAD(ferry_write(pair.a, pair.peer, (const ferry_request *)(void *)(room.bytes + 1), 1, NULL,
                          NULL, &error), "requests is misaligned");
    end_pair(&pair);
}

SUITE(structs, CASE(element_sizes), CASE(initializers), CASE(structs_of_other_sizes),
      CASE(fields_that_must_be_zero),
      CASE(transfer_options_that_mean_nothing), CASE(misaligned_pointers));
