/* Passes NULL for every pointer of every function. Each call returns INVALID, names the argument and does nothing. */
#include "arguments.h"

static void null_for_configurations_and_engines(void)
{
    ferry_config *config = NULL;
    ferry_engine *engine = open_engine();
    ferry_stats stats = {0};
    char text[8];
    size_t length = 0;
    CHECK_OK(ferry_config_new(&config, NULL));
    CHECK_NULL(ferry_config_new(NULL, &error), "out_config");
    CHECK_NULL(ferry_config_set(NULL, "lanes", "1", &error), "config");
    CHECK_NULL(ferry_config_set(config, NULL, "1", &error), "key");
    CHECK_NULL(ferry_config_set(config, "lanes", NULL, &error), "value");
    CHECK_NULL(ferry_config_get(NULL, "lanes", text, 8, &length, &error), "config");
    CHECK_NULL(ferry_config_get(config, NULL, text, 8, &length, &error), "key");
    CHECK_NULL(ferry_config_get(config, "lanes", NULL, 8, &length, &error), "buffer");
    CHECK_NULL(ferry_config_get(config, "lanes", text, 8, NULL, &error), "out_length");
    CHECK_NULL(ferry_config_settings(NULL, sizeof(ferry_setting_info), 1, &length, &error),
               "out_settings");
    CHECK_NULL(ferry_config_settings(NULL, sizeof(ferry_setting_info), 0, NULL, &error), "out_count");
    CHECK_NULL(ferry_engine_open(NULL, NULL, &error), "out_engine");
    CHECK_NULL(ferry_engine_close(NULL, 0, &error), "engine");
    CHECK_NULL(ferry_engine_address(NULL, text, 8, &length, &error), "engine");
    CHECK_NULL(ferry_engine_address(engine, NULL, 8, &length, &error), "buffer");
    CHECK_NULL(ferry_engine_address(engine, text, 8, NULL, &error), "out_length");
    CHECK_NULL(ferry_engine_warnings(NULL, text, 8, &length, &error), "engine");
    CHECK_NULL(ferry_engine_warnings(engine, NULL, 8, &length, &error), "buffer");
    CHECK_NULL(ferry_engine_warnings(engine, text, 8, NULL, &error), "out_length");
    stats.struct_size = sizeof stats;
    CHECK_NULL(ferry_engine_get_stats(NULL, &stats, &error), "engine");
    CHECK_NULL(ferry_engine_get_stats(engine, NULL, &error), "out_stats");
    CHECK_NULL(ferry_engine_metrics(NULL, text, 8, &length, &error), "engine");
    CHECK_NULL(ferry_engine_metrics(engine, NULL, 8, &length, &error), "buffer");
    CHECK_NULL(ferry_engine_metrics(engine, text, 8, NULL, &error), "out_length");
    CHECK(length == 0);
    ferry_engine_free(NULL);
    ferry_config_free(config);
    end_engine(engine);
}

static void null_for_memory(void)
{
    ferry_engine *engine = open_engine();
    static unsigned char bytes[64];
    void *memory = bytes;
    size_t length = sizeof bytes;
    uint64_t address = 0;
    ferry_region region = 0;
    CHECK_NULL(ferry_region_register(NULL, bytes, 64, NULL, &region, &error), "engine");
    CHECK_BAD(ferry_region_register(engine, NULL, 64, NULL, &region, &error), "address is null");
    CHECK_NULL(ferry_region_register(engine, bytes, 64, NULL, NULL, &error), "out_region");
    CHECK_NULL(ferry_region_register_batch(NULL, &memory, &length, 1, NULL, &region, &error), "engine");
    CHECK_NULL(ferry_region_register_batch(engine, NULL, &length, 1, NULL, &region, &error), "addresses");
    CHECK_NULL(ferry_region_register_batch(engine, &memory, NULL, 1, NULL, &region, &error), "lengths");
    CHECK_NULL(ferry_region_register_batch(engine, &memory, &length, 1, NULL, NULL, &error),
               "out_regions");
    CHECK_BAD(ferry_region_register_batch(engine, &memory, &length, 0, NULL, &region, &error),
              "count is 0");
    CHECK_NULL(ferry_region_register_file(NULL, 0, 0, 64, NULL, &address, &region, &error), "engine");
    CHECK_NULL(ferry_region_register_file(engine, 0, 0, 64, NULL, NULL, &region, &error), "out_address");
    CHECK_NULL(ferry_region_register_file(engine, 0, 0, 64, NULL, &address, NULL, &error), "out_region");
    CHECK_NULL(ferry_region_unregister(NULL, 1, 0, &error), "engine");
    CHECK_NULL(ferry_memory_alloc(NULL, 64, NULL, &memory, &region, &error), "engine");
    CHECK_NULL(ferry_memory_alloc(engine, 64, NULL, NULL, &region, &error), "out_address");
    CHECK_NULL(ferry_memory_alloc(engine, 64, NULL, &memory, NULL, &error), "out_region");
    CHECK_NULL(ferry_memory_free(NULL, 1, 0, &error), "engine");
    CHECK(region == 0 && memory == bytes);
    end_engine(engine);
}

static void null_for_peers(void)
{
    ferry_engine *engine = open_engine();
    ferry_peer peer = 0;
    size_t count = 0;
    ferry_peer_info info = {0};
    char descriptor[512];
    CHECK_NULL(ferry_peer_connect(NULL, "127.0.0.1:1", 0, &peer, &error), "engine");
    CHECK_NULL(ferry_peer_connect(engine, NULL, 0, &peer, &error), "address");
    CHECK_NULL(ferry_peer_connect(engine, "127.0.0.1:1", 0, NULL, &error), "out_peer");
    CHECK_NULL(ferry_peer_connect_async(NULL, "127.0.0.1:1", 0, 1, 0, &error), "engine");
    CHECK_NULL(ferry_peer_connect_async(engine, NULL, 0, 1, 0, &error), "address");
    CHECK_NULL(ferry_engine_own_peer(NULL, &peer, &error), "engine");
    CHECK_NULL(ferry_engine_own_peer(engine, NULL, &error), "out_peer");
    CHECK_NULL(ferry_peer_list(NULL, &peer, 1, &count, &error), "engine");
    CHECK_NULL(ferry_peer_list(engine, NULL, 1, &count, &error), "out_peers");
    CHECK_NULL(ferry_peer_list(engine, &peer, 1, NULL, &error), "out_count");
    CHECK_NULL(ferry_peer_probe(NULL, 1, 0, NULL, &error), "engine");
    CHECK_NULL(ferry_peer_fence(NULL, 1, 0, &error), "engine");
    CHECK_NULL(ferry_peer_close(NULL, 1, 0, &error), "engine");
    info.struct_size = sizeof info;
    CHECK_NULL(ferry_peer_get_info(NULL, 1, &info, &error), "engine");
    CHECK_NULL(ferry_peer_get_info(engine, 1, NULL, &error), "out_info");
    CHECK_NULL(ferry_peer_regions(NULL, 1, NULL, sizeof(ferry_region_info), 0, &count, &error), "engine");
    CHECK_NULL(ferry_peer_regions(engine, 1, NULL, sizeof(ferry_region_info), 1, &count, &error),
               "out_regions");
    CHECK_NULL(ferry_peer_regions(engine, 1, NULL, sizeof(ferry_region_info), 0, NULL, &error),
               "out_count");
    CHECK_NULL(ferry_peer_paths(NULL, 1, NULL, sizeof(ferry_path_info), 0, &count, &error), "engine");
    CHECK_NULL(ferry_peer_paths(engine, 1, NULL, sizeof(ferry_path_info), 1, &count, &error),
               "out_paths");
    CHECK_NULL(ferry_peer_paths(engine, 1, NULL, sizeof(ferry_path_info), 0, NULL, &error), "out_count");
    CHECK_NULL(ferry_descriptor_export(NULL, descriptor, 512, &count, &error), "engine");
    CHECK_NULL(ferry_descriptor_export(engine, NULL, 512, &count, &error), "buffer");
    CHECK_NULL(ferry_descriptor_export(engine, descriptor, 512, NULL, &error), "out_length");
    CHECK_NULL(ferry_descriptor_import(NULL, descriptor, 512, 0, &peer, &error), "engine");
    CHECK_NULL(ferry_descriptor_import(engine, NULL, 512, 0, &peer, &error), "descriptor");
    CHECK_NULL(ferry_descriptor_import(engine, descriptor, 512, 0, NULL, &error), "out_peer");
    CHECK(peer == 0 && count == 0);
    end_engine(engine);
}

static void null_for_transfers(void)
{
    pair pair = open_pair(4096);
    ferry_engine *a = pair.a;
    ferry_request request = range(&pair, 0, 0, 64);
    ferry_transfer transfer = 0;
    ferry_blocks blocks = {0};
    ferry_uniform_blocks layers = FERRY_UNIFORM_BLOCKS_INIT;
    uint64_t done = 7;
    size_t index = 0;
    blocks.struct_size = sizeof blocks;
    blocks.id_bytes = 4;
    CHECK_NULL(ferry_transfer_submit(NULL, pair.peer, FERRY_OP_READ, &request, 1, NULL, &transfer, &error),
               "engine");
    CHECK_NULL(ferry_transfer_submit(a, pair.peer, FERRY_OP_READ, NULL, 1, NULL, &transfer, &error),
               "requests");
    CHECK_NULL(ferry_transfer_submit(a, pair.peer, FERRY_OP_READ, &request, 1, NULL, NULL, &error),
               "out_transfer");
    CHECK_BAD(ferry_transfer_submit(a, pair.peer, FERRY_OP_READ, &request, 0, NULL, &transfer, &error),
              "requests");
    CHECK_NULL(ferry_transfer_submit_blocks(NULL, pair.peer, FERRY_OP_READ, &blocks, NULL, &transfer,
                                            &error), "engine");
    CHECK_NULL(ferry_transfer_submit_blocks(a, pair.peer, FERRY_OP_READ, NULL, NULL, &transfer, &error),
               "blocks");
    CHECK_NULL(ferry_transfer_submit_blocks(a, pair.peer, FERRY_OP_READ, &blocks, NULL, NULL, &error),
               "out_transfer");
    CHECK_NULL(ferry_transfer_submit_uniform(NULL, pair.peer, FERRY_OP_READ, &layers, NULL, &transfer, &error),
               "engine");
    CHECK_NULL(ferry_transfer_submit_uniform(a, pair.peer, FERRY_OP_READ, NULL, NULL, &transfer, &error),
               "layers");
    CHECK_NULL(ferry_transfer_submit_uniform(a, pair.peer, FERRY_OP_READ, &layers, NULL, NULL, &error),
               "out_transfer");
    CHECK_NULL(ferry_transfer_wait(NULL, 1, 0, NULL, &error), "engine");
    CHECK_NULL(ferry_transfer_wait_any(NULL, &transfer, 1, 0, &index, &error), "engine");
    CHECK_NULL(ferry_transfer_wait_any(a, NULL, 1, 0, &index, &error), "transfers");
    CHECK_NULL(ferry_transfer_wait_any(a, &transfer, 1, 0, NULL, &error), "out_index");
    CHECK_BAD(ferry_transfer_wait_any(a, &transfer, 0, 0, &index, &error), "the list is empty");
    CHECK_NULL(ferry_transfer_wait_all(NULL, &transfer, 1, 0, &index, &error), "engine");
    CHECK(index == SIZE_MAX);
    CHECK_NULL(ferry_transfer_wait_all(a, NULL, 1, 0, &index, &error), "transfers");
    CHECK_BAD(ferry_transfer_wait_all(a, &transfer, 0, 0, NULL, &error), "the list is empty");
    CHECK_NULL(ferry_transfer_progress(NULL, 1, &done, &done, &error), "engine");
    CHECK_NULL(ferry_transfer_progress(a, 1, NULL, &done, &error), "out_bytes_confirmed");
    CHECK_NULL(ferry_transfer_progress(a, 1, &done, NULL, &error), "out_bytes_total");
    CHECK_NULL(ferry_transfer_cancel(NULL, 1, &error), "engine");
    CHECK_NULL(ferry_transfer_results(NULL, 1, FERRY_RESULTS_ALL, NULL, sizeof(ferry_request_result), 0,
                                      &index, &error), "engine");
    CHECK_NULL(ferry_transfer_results(a, 1, FERRY_RESULTS_ALL, NULL, sizeof(ferry_request_result), 1,
                                      &index, &error), "out_results");
    CHECK_NULL(ferry_transfer_results(a, 1, FERRY_RESULTS_ALL, NULL, sizeof(ferry_request_result), 0,
                                      NULL, &error), "out_count");
    CHECK_NULL(ferry_transfer_release(NULL, 1, &error), "engine");
    CHECK_NULL(ferry_transfer_stream_wait(NULL, 1, 0, 0, &error), "engine");
    CHECK_NULL(ferry_transfer_try(NULL, pair.peer, FERRY_OP_READ, &request, 1, NULL, NULL, &error), "engine");
    CHECK_NULL(ferry_transfer_try(a, pair.peer, FERRY_OP_READ, NULL, 1, NULL, NULL, &error), "requests");
    CHECK_BAD(ferry_transfer_try(a, pair.peer, 3, &request, 1, NULL, NULL, &error), "op");
    CHECK_NULL(ferry_transfer_run(NULL, pair.peer, FERRY_OP_READ, &request, 1, NULL, 0, &transfer, NULL, &error), "engine");
    CHECK_NULL(ferry_transfer_run(a, pair.peer, FERRY_OP_READ, NULL, 1, NULL, 0, &transfer, NULL, &error), "requests");
    CHECK_NULL(ferry_transfer_run(a, pair.peer, FERRY_OP_READ, &request, 1, NULL, 0, NULL, NULL, &error),
               "out_transfer");
    CHECK_NULL(ferry_write(NULL, pair.peer, &request, 1, NULL, NULL, &error), "engine");
    CHECK_NULL(ferry_write(a, pair.peer, NULL, 1, NULL, NULL, &error), "requests");
    CHECK_NULL(ferry_read(NULL, pair.peer, &request, 1, NULL, NULL, &error), "engine");
    CHECK_NULL(ferry_read(a, pair.peer, NULL, 1, NULL, NULL, &error), "requests");
    CHECK_NULL(ferry_notify(NULL, pair.peer, "x", 1, 0, &error), "engine");
    CHECK_NULL(ferry_notify(a, pair.peer, NULL, 1, 0, &error), "bytes");
    CHECK(transfer == 0 && done == 7);
    end_pair(&pair);
}

static void null_for_queues(void)
{
    ferry_engine *engine = open_engine();
    ferry_queue queue = 0;
    ferry_event event;
    size_t count = 7;
    int fd = -7;
    CHECK_NULL(ferry_queue_create(NULL, FERRY_QUEUE_PEERS, 1, &queue, &error), "engine");
    CHECK_NULL(ferry_queue_create(engine, FERRY_QUEUE_PEERS, 1, NULL, &error), "out_queue");
    CHECK_NULL(ferry_queue_create_channel(NULL, FERRY_QUEUE_PEERS, 1, 1, &queue, &error), "engine");
    CHECK_NULL(ferry_queue_create_channel(engine, FERRY_QUEUE_PEERS, 1, 1, NULL, &error), "out_queue");
    CHECK_OK(ferry_queue_create(engine, FERRY_QUEUE_PEERS, 1, &queue, NULL));
    CHECK_NULL(ferry_queue_fd(NULL, queue, &fd, &error), "engine");
    CHECK_NULL(ferry_queue_fd(engine, queue, NULL, &error), "out_fd");
    CHECK_NULL(ferry_queue_drain(NULL, queue, &event, sizeof event, 1, &count, &error), "engine");
    CHECK_NULL(ferry_queue_drain(engine, queue, NULL, sizeof event, 1, &count, &error), "out_events");
    CHECK_NULL(ferry_queue_drain(engine, queue, &event, sizeof event, 1, NULL, &error), "out_count");
    CHECK_BAD(ferry_queue_drain(engine, queue, &event, sizeof event, 0, &count, &error), "capacity is 0");
    CHECK_NULL(ferry_queue_wait(NULL, queue, 0, &event, sizeof event, 1, &count, &error), "engine");
    CHECK_NULL(ferry_queue_wait(engine, queue, 0, NULL, sizeof event, 1, &count, &error), "out_events");
    CHECK_NULL(ferry_queue_wait(engine, queue, 0, &event, sizeof event, 1, NULL, &error), "out_count");
    CHECK_BAD(ferry_queue_wait(engine, queue, 0, &event, sizeof event, 0, &count, &error), "capacity is 0");
    CHECK_NULL(ferry_queue_callback(NULL, queue, NULL, NULL, &error), "engine");
    CHECK_NULL(ferry_queue_destroy(NULL, queue, &error), "engine");
    CHECK(fd == -7 && count == 7);
    ferry_event_release(NULL);
    end_engine(engine);
}

SUITE(arguments, CASE(null_for_configurations_and_engines), CASE(null_for_memory), CASE(null_for_peers),
      CASE(null_for_transfers), CASE(null_for_queues));
