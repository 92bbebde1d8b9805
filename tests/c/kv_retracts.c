/*
 * Taking back what was offered: a sequence that is computed again in other blocks arrives as it is then, blocks that
 * left a window are the caller's, and leases are bounded.
 */
#include "kv_ranks.h"

enum { TOKENS = 150, FROM = 40 };

/* A rank whose only group is a window of `window` tokens, or is full for 0. */
static kv_rank open_rank(uint32_t block_tokens, uint32_t window, uint64_t leased_blocks_max)
{
    kv_rank rank = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, block_tokens);
    ferry_kv_cache_options options = FERRY_KV_CACHE_OPTIONS_INIT;
    kv_cache again;
    options.silence_ms = 60000;
    options.leased_blocks_max = leased_blocks_max;
    if (window == 0 && leased_blocks_max == 0) return rank;
    CHECK_OK(ferry_kv_cache_close(rank.kv, PATIENCE_NS, NULL));
    ferry_kv_cache_free(rank.kv);
    kv_describe(&again, FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, block_tokens,
                (void *)(uintptr_t)rank.memory.address);
    if (window > 0) {
        again.group.kind = FERRY_KV_GROUP_WINDOW;
        again.group.window_tokens = window;
    }
    ferry_kv_layout_free(rank.cache.layout);
    again.desc.groups = &again.group;
    again.desc.layers = again.layers;
    CHECK_OK(ferry_kv_layout_new(&again.desc, &rank.cache.layout, NULL));
    CHECK_OK(ferry_kv_cache_open(rank.engine, rank.cache.layout, &rank.memory, 1, &options, &rank.kv, NULL));
    return rank;
}

/* Overwrites the elements of all blocks: what is read from them is wrong. */
static void poison(kv_rank *rank)
{
    memset((void *)(uintptr_t)rank->memory.address, 0xee, (size_t)rank->memory.length);
}

/* The sequence goes on in other blocks from block `first` on. */
static void move_blocks(kv_rank *rank, uint32_t first)
{
    uint32_t last = rank->cache.ids[KV_BLOCKS - 1];
    for (uint32_t i = KV_BLOCKS - 1; i > first; i--) rank->cache.ids[i] = rank->cache.ids[i - 1];
    rank->cache.ids[first] = last;
}

static void what_is_computed_again_arrives(void)
{
    const uint32_t modes[] = {FERRY_KV_MODE_AUTO, FERRY_KV_MODE_PULL, FERRY_KV_MODE_PUSH};
    for (size_t i = 0; i < 3; i++) {
        const ferry_kv_id id = kv_new_id();
        kv_rank producer = open_rank(16, 0, 0), consumer = open_rank(16, 0, 0);
        ferry_peer peer = kv_connect(&consumer, &producer);
        const ferry_kv_block_list list = kv_list(&consumer, 0, (TOKENS + 15) / 16);
        const ferry_kv_take_options take = kv_take_options(&list, &peer, 1, TOKENS, modes[i]);
        ferry_kv_block_list more;
        ferry_error error = new_error();
        CHECK_OK(ferry_kv_take(consumer.kv, &id, &take, NULL));
        kv_offer(&producer, &id, TOKENS, 0);
        kv_compute(&producer, &id, 0, 100);
        kv_write(&producer.cache, 100, TOKENS);
        CHECK_OK(ferry_kv_offer_ready(producer.kv, &id, 0, 1, TOKENS, NULL));
        if (ferry_kv_offer_retract(producer.kv, &id, FROM, PATIENCE_NS, &error)) FAIL("%s", error.message);
        CHECK(kv_state(&consumer, &id).kind == FERRY_KV_STATE_TAKING);
        CHECK(kv_state(&consumer, &id).valid_tokens <= FROM);
        /* Blocks 0 to 2 have the first 40 tokens. The others are anybody's. */
        while (kv_state(&consumer, &id).valid_tokens < FROM / 16 * 16) continue;
        poison(&producer);
        move_blocks(&producer, 3);
        more = kv_list(&producer, 3, (TOKENS + 15) / 16);
        kv_write(&producer.cache, 0, TOKENS);
        CHECK_OK(ferry_kv_offer_extend(producer.kv, &id, &more, 1, NULL));
        CHECK_OK(ferry_kv_offer_ready(producer.kv, &id, 0, UINT32_MAX, TOKENS, NULL));
        CHECK_OK(ferry_kv_offer_seal(producer.kv, &id, TOKENS, NULL));
        kv_expect(&consumer, &id, FERRY_KV_EVENT_RECEIVED);
        CHECK(kv_holds(&consumer.cache, 0, TOKENS));
        kv_expect(&producer, &id, FERRY_KV_EVENT_SENT);
        CHECK_STATUS(ferry_kv_offer_retract(producer.kv, &id, 0, 0, NULL), FERRY_ERR_STALE);
        kv_rank_close(&producer);
        kv_rank_close(&consumer);
    }
}

/* Without a taker it is over in the call, even with no time; the seal is open again, and so are the blocks. */
static void an_offer_that_nobody_takes_is_taken_back_at_once(void)
{
    const ferry_kv_id id = kv_new_id(), none = kv_new_id();
    kv_rank producer = open_rank(16, 0, 0);
    ferry_error error = new_error();
    const ferry_kv_block_list kept = kv_list(&producer, 2, 3), freed = kv_list(&producer, 3, 10);
    kv_offer(&producer, &id, TOKENS, 0);
    kv_compute(&producer, &id, 0, TOKENS);
    CHECK_OK(ferry_kv_offer_seal(producer.kv, &id, TOKENS, NULL));
    CHECK_OK(ferry_kv_offer_retract(producer.kv, &id, FROM, 0, NULL));
    CHECK(!kv_state(&producer, &id).is_sealed);
    CHECK_STATUS(ferry_kv_offer_extend(producer.kv, &id, &kept, 1, NULL), FERRY_ERR_INVALID);
    CHECK_OK(ferry_kv_offer_extend(producer.kv, &id, &freed, 1, NULL));
    CHECK_STATUS(ferry_kv_offer_ready(producer.kv, &id, 0, 1, FROM, NULL), FERRY_ERR_INVALID);
    CHECK_OK(ferry_kv_offer_ready(producer.kv, &id, 0, 1, FROM + 1, NULL));
    CHECK_STATUS(ferry_kv_offer_retract(producer.kv, &none, 0, PATIENCE_NS, &error), FERRY_ERR_INVALID);
    CHECK_MESSAGE(error, "is no offer");
    CHECK_STATUS(ferry_kv_offer_retract_window(producer.kv, &id, 0, 16, PATIENCE_NS, &error), FERRY_ERR_INVALID);
    CHECK_MESSAGE(error, "group: 0 is no window");
    CHECK_OK(ferry_kv_offer_cancel(producer.kv, &id, NULL));
    kv_expect(&producer, &id, FERRY_KV_EVENT_CANCELLED);
    kv_rank_close(&producer);
}

static void blocks_that_have_left_a_window_are_free(void)
{
    const ferry_kv_id id = kv_new_id(), early = kv_new_id();
    kv_rank producer = open_rank(16, 20, 0), consumer = open_rank(16, 20, 0);
    ferry_peer peer = kv_connect(&consumer, &producer);
    const ferry_kv_block_list list = kv_list(&consumer, 0, (TOKENS + 15) / 16);
    ferry_kv_take_options take = kv_take_options(&list, &peer, 1, TOKENS, FERRY_KV_MODE_PULL);
    const uint32_t first = (TOKENS - 20) / 16;
    ferry_kv_event event;
    CHECK_OK(ferry_kv_take(consumer.kv, &id, &take, NULL));
    kv_offer(&producer, &id, TOKENS, 0);
    kv_compute(&producer, &id, 0, 100);
    CHECK_OK(ferry_kv_offer_retract_window(producer.kv, &id, 0, 80, PATIENCE_NS, NULL));
    /* A second time, and what is left of another block. */
    CHECK_OK(ferry_kv_offer_retract_window(producer.kv, &id, 0, 95, 0, NULL));
    kv_compute(&producer, &id, 100, TOKENS);
    CHECK_OK(ferry_kv_offer_retract_window(producer.kv, &id, 0, TOKENS - 20, PATIENCE_NS, NULL));
    CHECK_OK(ferry_kv_offer_seal(producer.kv, &id, TOKENS, NULL));
    kv_expect(&consumer, &id, FERRY_KV_EVENT_RECEIVED);
    kv_expect(&producer, &id, FERRY_KV_EVENT_SENT);
    /* The window is the last 20 tokens, in the same blocks. */
    for (uint32_t layer = 0; layer < KV_LAYERS; layer++) {
        const size_t row = KV_HEADS * KV_ELEMENTS, block = 16 * row;
        const uint32_t *from = producer.cache.memory[layer], *to = consumer.cache.memory[layer];
        for (uint32_t token = TOKENS - 20; token < TOKENS; token++) {
            const size_t at = 2 * block * producer.cache.ids[token / 16] + token % 16 * row;
            const size_t other = 2 * block * consumer.cache.ids[token / 16] + token % 16 * row;
            CHECK(memcmp(from + at, to + other, row * sizeof *from) == 0);
        }
    }
    CHECK(first == 8);
    /* A take of the first 90 tokens needs token 70. */
    kv_offer(&producer, &early, TOKENS, 0);
    take.tokens = 90;
    CHECK_OK(ferry_kv_take(consumer.kv, &early, &take, NULL));
    while (kv_state(&producer, &early).takers == 0) continue;
    CHECK_OK(ferry_kv_offer_ready(producer.kv, &early, 0, 1, 89, NULL));
    /* The offer ends with its only taker. */
    CHECK_STATUS(ferry_kv_offer_retract_window(producer.kv, &early, 0, 80, PATIENCE_NS, NULL), FERRY_ERR_STALE);
    event = kv_next(&consumer, &early, FERRY_KV_EVENT_FAILED);
    CHECK(event.status == FERRY_ERR_STALE && strstr(event.message, "window") != NULL);
    ferry_kv_event_release(&event);
    kv_expect(&producer, &early, FERRY_KV_EVENT_FAILED);
    kv_rank_close(&producer);
    kv_rank_close(&consumer);
}

static void leases_are_bounded_by_an_option(void)
{
    const ferry_kv_id ids[] = {kv_new_id(), kv_new_id(), kv_new_id()};
    kv_rank producer = open_rank(16, 0, 20);
    ferry_kv_event event;
    for (size_t i = 0; i < 3; i++) {
        kv_offer(&producer, &ids[i], TOKENS, 0);
        CHECK_OK(ferry_kv_offer_seal(producer.kv, &ids[i], TOKENS, NULL));
    }
    event = kv_next(&producer, &ids[0], FERRY_KV_EVENT_EXPIRED);
    CHECK(event.status == FERRY_ERR_LIMIT && strstr(event.message, "leased_blocks_max") != NULL);
    ferry_kv_event_release(&event);
    CHECK(kv_state(&producer, &ids[1]).is_sealed && kv_state(&producer, &ids[2]).is_sealed);
    kv_rank_close(&producer);
}

SUITE(kv_retracts, CASE(what_is_computed_again_arrives), CASE(an_offer_that_nobody_takes_is_taken_back_at_once),
      CASE(blocks_that_have_left_a_window_are_free), CASE(leases_are_bounded_by_an_option));
