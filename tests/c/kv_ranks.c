/* See kv_ranks.h. */
#include "kv_ranks.h"

kv_rank kv_rank_open(uint32_t arrangement, uint32_t tp_rank, uint32_t tp_size, uint32_t block_tokens)
{
    return kv_rank_open_with(arrangement, tp_rank, tp_size, block_tokens, 60000);
}

kv_rank kv_rank_open_with(uint32_t arrangement, uint32_t tp_rank, uint32_t tp_size, uint32_t block_tokens,
                          uint32_t silence_ms)
{
    kv_rank rank;
    ferry_kv_cache_options options = FERRY_KV_CACHE_OPTIONS_INIT;
    ferry_error error = new_error();
    const size_t heads = KV_HEADS / tp_size;
    const size_t length = KV_LAYERS * KV_BLOCKS * 2 * heads * block_tokens * KV_ELEMENTS * sizeof(uint32_t);
    void *memory = NULL;
    memset(&rank, 0, sizeof rank);
    rank.engine = open_engine();
    rank.memory.struct_size = sizeof rank.memory;
    rank.memory.length = length;
    CHECK_OK(ferry_memory_alloc(rank.engine, length, NULL, &memory, &rank.memory.region, NULL));
    rank.memory.address = (uintptr_t)memory;
    rank.cache = kv_open(arrangement, tp_rank, tp_size, block_tokens, memory);
    options.silence_ms = silence_ms;
    if (ferry_kv_cache_open(rank.engine, rank.cache.layout, &rank.memory, 1, &options, &rank.kv, &error))
        FAIL("%s", error.message);
    return rank;
}

void kv_rank_close(kv_rank *rank)
{
    CHECK_OK(ferry_kv_cache_close(rank->kv, PATIENCE_NS, NULL));
    ferry_kv_cache_free(rank->kv);
    kv_close(&rank->cache);
    end_engine(rank->engine);
}

ferry_peer kv_connect(const kv_rank *rank, const kv_rank *other)
{
    ferry_peer peer = 0;
    ferry_error error = new_error();
    if (ferry_peer_connect(rank->engine, address_of(other->engine), PATIENCE_NS, &peer, &error))
        FAIL("%s", error.message);
    return peer;
}

ferry_kv_block_list kv_list(const kv_rank *rank, uint32_t first, uint32_t end)
{
    ferry_kv_block_list list = FERRY_KV_BLOCK_LIST_INIT;
    list.blocks = rank->cache.ids + first;
    list.block_count = end - first;
    return list;
}

void kv_offer(const kv_rank *rank, const ferry_kv_id *id, uint32_t tokens, uint32_t lease_ms)
{
    const uint32_t block = rank->cache.block_tokens;
    const ferry_kv_block_list list = kv_list(rank, 0, (tokens + block - 1) / block);
    ferry_kv_offer_options options = FERRY_KV_OFFER_OPTIONS_INIT;
    ferry_error error = new_error();
    options.blocks = &list;
    options.group_count = 1;
    options.lease_ms = lease_ms;
    if (ferry_kv_offer(rank->kv, id, &options, &error)) FAIL("%s", error.message);
}

void kv_compute(kv_rank *rank, const ferry_kv_id *id, uint32_t first_token, uint32_t end_token)
{
    ferry_error error = new_error();
    kv_write(&rank->cache, first_token, end_token);
    if (ferry_kv_offer_ready(rank->kv, id, 0, UINT32_MAX, end_token, &error)) FAIL("%s", error.message);
}

ferry_kv_take_options kv_take_options(const ferry_kv_block_list *list, const ferry_peer *producers, size_t count,
                                      uint64_t tokens, uint32_t mode)
{
    ferry_kv_take_options options = FERRY_KV_TAKE_OPTIONS_INIT;
    options.mode = mode;
    options.producers = producers;
    options.producer_count = count;
    options.taker = 1;
    options.blocks = list;
    options.group_count = 1;
    options.tokens = tokens;
    return options;
}

ferry_kv_event kv_next(const kv_rank *rank, const ferry_kv_id *id, uint32_t kind)
{
    ferry_kv_event event = FERRY_KV_EVENT_INIT;
    ferry_error error = new_error();
    const ferry_status status = ferry_kv_wait(rank->kv, PATIENCE_NS, &event, &error);
    if (status != FERRY_OK) FAIL("no event: %s %s", ferry_status_name(status), error.message);
    if (event.kind != kind)
        FAIL("the event has kind %u, not %u: %s", event.kind, kind, event.message ? event.message : "");
    CHECK(event.struct_size == sizeof event && memcmp(&event.id, id, sizeof *id) == 0);
    return event;
}

void kv_expect(const kv_rank *rank, const ferry_kv_id *id, uint32_t kind)
{
    ferry_kv_event event = kv_next(rank, id, kind);
    ferry_kv_event_release(&event);
}

ferry_kv_id kv_new_id(void)
{
    ferry_kv_id id;
    CHECK_OK(ferry_kv_id_new(&id, NULL));
    return id;
}

ferry_kv_state kv_state(const kv_rank *rank, const ferry_kv_id *id)
{
    ferry_kv_state state = FERRY_KV_STATE_INIT;
    CHECK_OK(ferry_kv_get_state(rank->kv, id, &state, NULL));
    CHECK(state.struct_size == sizeof state);
    return state;
}
