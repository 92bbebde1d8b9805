/* See every_call.h. */
#include "every_call.h"

#define REFUSES(call)                                                                              \
    do {                                                                                           \
        if ((call) != FERRY_ERR_CLOSED) return #call;                                              \
    } while (0)

static void ignore(void *context, const ferry_event *event)
{
    (void)context;
    (void)event;
}

static const char *first_of_transfers(const pair *pair, ferry_queue queue, ferry_transfer transfer)
{
    ferry_engine *a = pair->a;
    ferry_request request = range(pair, 0, 0, 8);
    ferry_transfer_options options = new_options();
    uint64_t address = (uintptr_t)pair->a_memory, stride = 8;
    int32_t block = 0;
    ferry_blocks blocks;
    ferry_uniform_blocks layers = FERRY_UNIFORM_BLOCKS_INIT;
    uint64_t done = 0, total = 0;
    size_t count = 0;
    memset(&blocks, 0, sizeof blocks);
    blocks.struct_size = sizeof blocks;
    blocks.id_bytes = 4;
    blocks.layer_count = blocks.pair_count = 1;
    blocks.local_base = blocks.remote_base = &address;
    blocks.local_stride = blocks.remote_stride = blocks.block_bytes = &stride;
    blocks.local_blocks = blocks.remote_blocks = &block;
    layers.layer_count = layers.pair_count = 1;
    layers.local_base = layers.remote_base = address;
    layers.block_bytes = stride;
    options.queue = queue;
    REFUSES(ferry_transfer_submit(a, pair->peer, FERRY_OP_WRITE, &request, 1, &options, &transfer, NULL));
    REFUSES(ferry_transfer_submit_blocks(a, pair->peer, FERRY_OP_WRITE, &blocks, NULL, &transfer, NULL));
    REFUSES(ferry_transfer_submit_uniform(a, pair->peer, FERRY_OP_WRITE, &layers, NULL, &transfer, NULL));
    REFUSES(ferry_transfer_wait(a, transfer, FERRY_FOREVER, NULL, NULL));
    REFUSES(ferry_transfer_wait(a, transfer, 0, NULL, NULL));
    REFUSES(ferry_transfer_wait_any(a, &transfer, 1, FERRY_FOREVER, &count, NULL));
    REFUSES(ferry_transfer_wait_all(a, &transfer, 1, FERRY_FOREVER, &count, NULL));
    REFUSES(ferry_transfer_progress(a, transfer, &done, &total, NULL));
    REFUSES(ferry_transfer_cancel(a, transfer, NULL));
    REFUSES(ferry_transfer_results(a, transfer, 0, NULL, sizeof(ferry_request_result), 0, &count, NULL));
    REFUSES(ferry_transfer_release(a, transfer, NULL));
    REFUSES(ferry_transfer_stream_wait(a, transfer, 1, 1, NULL));
    REFUSES(ferry_write(a, pair->peer, &request, 1, NULL, NULL, NULL));
    REFUSES(ferry_read(a, pair->peer, &request, 1, NULL, NULL, NULL));
    REFUSES(ferry_transfer_try(a, pair->peer, FERRY_OP_WRITE, &request, 1, NULL, NULL, NULL));
    REFUSES(ferry_transfer_run(a, pair->peer, FERRY_OP_WRITE, &request, 1, NULL, 0, &transfer, NULL, NULL));
    REFUSES(ferry_notify(a, pair->peer, "x", 1, 0, NULL));
    return NULL;
}

static const char *first_of_peers(const pair *pair, ferry_queue queue)
{
    ferry_engine *a = pair->a;
    ferry_peer peer = 0;
    ferry_peer_info info;
    ferry_region_info region = FERRY_REGION_INFO_INIT;
    char descriptor[512];
    size_t count = 0;
    info.struct_size = sizeof info;
    REFUSES(ferry_peer_connect(a, "127.0.0.1:1", FERRY_FOREVER, &peer, NULL));
    REFUSES(ferry_peer_connect_async(a, "127.0.0.1:1", FERRY_FOREVER, queue, 0, NULL));
    REFUSES(ferry_engine_own_peer(a, &peer, NULL));
    REFUSES(ferry_peer_list(a, &peer, 1, &count, NULL));
    REFUSES(ferry_peer_probe(a, pair->peer, FERRY_FOREVER, NULL, NULL));
    REFUSES(ferry_peer_fence(a, pair->peer, FERRY_FOREVER, NULL));
    REFUSES(ferry_peer_close(a, pair->peer, FERRY_FOREVER, NULL));
    REFUSES(ferry_peer_get_info(a, pair->peer, &info, NULL));
    REFUSES(ferry_peer_regions(a, pair->peer, NULL, sizeof(ferry_region_info), 0, &count, NULL));
    REFUSES(ferry_peer_region(a, pair->peer, "name", &region, NULL));
    REFUSES(ferry_peer_paths(a, pair->peer, NULL, sizeof(ferry_path_info), 0, &count, NULL));
    REFUSES(ferry_descriptor_export(a, descriptor, sizeof descriptor, &count, NULL));
    REFUSES(ferry_descriptor_import(a, "FERRYDSC", 8, FERRY_FOREVER, &peer, NULL));
    return NULL;
}

static const char *first_of_the_rest(const pair *pair, ferry_queue queue)
{
    ferry_engine *a = pair->a;
    static unsigned char bytes[64];
    void *memory = bytes;
    size_t length = sizeof bytes, count = 0;
    uint64_t address = 0;
    ferry_region region = 0;
    ferry_queue other = 0;
    ferry_event event;
    ferry_stats stats;
    char text[8];
    int fd = -1;
    stats.struct_size = sizeof stats;
    REFUSES(ferry_region_register(a, bytes, 64, NULL, &region, NULL));
    REFUSES(ferry_region_register_batch(a, &memory, &length, 1, NULL, &region, NULL));
    REFUSES(ferry_region_register_file(a, 0, 0, 64, NULL, &address, &region, NULL));
    REFUSES(ferry_region_unregister(a, pair->a_region, FERRY_FOREVER, NULL));
    REFUSES(ferry_memory_alloc(a, 64, NULL, &memory, &region, NULL));
    REFUSES(ferry_memory_free(a, pair->a_region, FERRY_FOREVER, NULL));
    REFUSES(ferry_queue_create(a, FERRY_QUEUE_PEERS, 1, &other, NULL));
    REFUSES(ferry_queue_create_channel(a, FERRY_QUEUE_PEERS, 1, 1, &other, NULL));
    REFUSES(ferry_queue_fd(a, queue, &fd, NULL));
    REFUSES(ferry_queue_drain(a, queue, &event, sizeof event, 1, &count, NULL));
    REFUSES(ferry_queue_wait(a, queue, FERRY_FOREVER, &event, sizeof event, 1, &count, NULL));
    REFUSES(ferry_queue_callback(a, queue, ignore, NULL, NULL));
    REFUSES(ferry_queue_callback(a, queue, NULL, NULL, NULL));
    REFUSES(ferry_queue_destroy(a, queue, NULL));
    REFUSES(ferry_engine_address(a, text, sizeof text, &count, NULL));
    REFUSES(ferry_engine_warnings(a, text, sizeof text, &count, NULL));
    REFUSES(ferry_engine_get_stats(a, &stats, NULL));
    REFUSES(ferry_engine_metrics(a, NULL, 0, &count, NULL));
    return NULL;
}

const char *first_not_closed(const pair *pair, ferry_queue queue, ferry_transfer transfer)
{
    const char *first = first_of_transfers(pair, queue, transfer);
    if (first == NULL) first = first_of_peers(pair, queue);
    if (first == NULL) first = first_of_the_rest(pair, queue);
    return first;
}

const char *first_kv_not_closed(ferry_kv_cache *cache, const ferry_kv_id *id, const ferry_kv_offer_options *offer,
                                const ferry_kv_take_options *take)
{
    ferry_kv_event event = FERRY_KV_EVENT_INIT;
    size_t freed = 0;
    REFUSES(ferry_kv_offer(cache, id, offer, NULL));
    REFUSES(ferry_kv_offer_extend(cache, id, offer->blocks, offer->group_count, NULL));
    REFUSES(ferry_kv_offer_ready(cache, id, 0, UINT32_MAX, 1, NULL));
    REFUSES(ferry_kv_offer_seal(cache, id, 1, NULL));
    REFUSES(ferry_kv_offer_retract(cache, id, 0, FERRY_FOREVER, NULL));
    REFUSES(ferry_kv_offer_retract_window(cache, id, 0, 0, FERRY_FOREVER, NULL));
    REFUSES(ferry_kv_offer_cancel(cache, id, NULL));
    REFUSES(ferry_kv_reclaim(cache, 1, &freed, NULL));
    REFUSES(ferry_kv_take(cache, id, take, NULL));
    REFUSES(ferry_kv_take_cancel(cache, id, NULL));
    REFUSES(ferry_kv_poll(cache, &event, NULL));
    REFUSES(ferry_kv_wait(cache, FERRY_FOREVER, &event, NULL));
    return NULL;
}
