/*
 * Handing sequences over with ferry_kv.h, between engines of this process: each element that a consumer gets is
 * compared, and each end is told once. kv_handoff_arguments.c has wrong arguments.
 */
#define _POSIX_C_SOURCE 200809L
#include "kv_ranks.h"

#include <pthread.h>

enum { TOKENS = 150 };
static const uint32_t modes[] = {FERRY_KV_MODE_AUTO, FERRY_KV_MODE_PULL, FERRY_KV_MODE_PUSH};

/* A producer and a consumer of one rank each, which are connected. */
static kv_rank producer, consumer;
static ferry_peer peer; /* the producer, as the consumer knows it */

static void open_both(void)
{
    producer = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16);
    consumer = kv_rank_open(FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 0, 1, 32);
    peer = kv_connect(&consumer, &producer);
}

static void close_both(void)
{
    kv_rank_close(&producer);
    kv_rank_close(&consumer);
}

/* The consumer takes the sequence into blocks of its own: those of the takes before have the places before. */
static void take_into(uint32_t place, const ferry_kv_id *id, uint32_t mode, uint32_t flags, uint64_t deadline_ns)
{
    const uint32_t count = (TOKENS + 31) / 32;
    const ferry_kv_block_list list = kv_list(&consumer, place * count, (place + 1) * count);
    ferry_kv_take_options options = kv_take_options(&list, &peer, 1, TOKENS, mode);
    ferry_error error = new_error();
    options.flags = flags;
    options.deadline_ns = deadline_ns;
    if (ferry_kv_take(consumer.kv, id, &options, &error)) FAIL("%s", error.message);
}

static void take_with(const ferry_kv_id *id, uint32_t mode, uint32_t flags, uint64_t deadline_ns)
{
    take_into(0, id, mode, flags, deadline_ns);
}

/* Returns when the take has this many tokens, which must be all that are ready in whole blocks. */
static void await_valid(const ferry_kv_id *id, uint64_t tokens)
{
    ferry_kv_state state;
    do {
        state = kv_state(&consumer, id);
        CHECK(state.kind == FERRY_KV_STATE_TAKING && state.valid_tokens <= tokens);
    } while (state.valid_tokens < tokens);
}

/* Returns when the consumer has begun to take the offer. */
static void await_taker(const ferry_kv_id *id)
{
    ferry_kv_state state;
    do {
        state = kv_state(&producer, id);
        CHECK(state.kind == FERRY_KV_STATE_OFFERED && state.takers <= 1);
    } while (state.takers == 0);
}

/* The terminal event of a take names blocks; these are all of the consumer's blocks from this one on. */
static void check_untrusted(const ferry_kv_event *event, uint32_t first)
{
    const uint32_t end = (TOKENS + 31) / 32;
    CHECK(event->untrusted_count == end - first);
    for (uint32_t i = first; i < end; i++) {
        CHECK(event->untrusted[i - first].group == 0);
        CHECK(event->untrusted[i - first].block == consumer.cache.ids[i]);
    }
}

static void check_message(const ferry_kv_event *event, const char *part)
{
    CHECK(event->message != NULL && strlen(event->message) == event->message_length);
    if (strstr(event->message, part) == NULL) FAIL("the message is \"%s\"", event->message);
}

/* From `ranks` ranks, in two chunks; every element of the consumer is compared. */
static void hand_over(uint32_t ranks, uint32_t mode)
{
    kv_rank sources[2];
    ferry_peer peers[2];
    ferry_kv_event event;
    const ferry_kv_id id = kv_new_id();
    kv_rank target = kv_rank_open(FERRY_KV_BLOCK_HEAD_PAIR_TOKEN, 0, 1, 32);
    const ferry_kv_block_list list = kv_list(&target, 0, (TOKENS + 31) / 32);
    ferry_kv_take_options options = kv_take_options(&list, peers, ranks, TOKENS, mode);
    for (uint32_t i = 0; i < ranks; i++) {
        sources[i] = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, i, ranks, 16);
        peers[i] = kv_connect(&target, &sources[i]);
    }
    CHECK_OK(ferry_kv_take(target.kv, &id, &options, NULL));
    for (uint32_t i = 0; i < ranks; i++) {
        const ferry_kv_block_list more = kv_list(&sources[i], 4, (TOKENS + 15) / 16);
        kv_offer(&sources[i], &id, 64, 0);
        kv_compute(&sources[i], &id, 0, 60);
        CHECK_OK(ferry_kv_offer_extend(sources[i].kv, &id, &more, 1, NULL));
        kv_write(&sources[i].cache, 60, TOKENS);
        for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
            CHECK_OK(ferry_kv_offer_ready(sources[i].kv, &id, layer, layer + 1, TOKENS, NULL));
        CHECK_OK(ferry_kv_offer_seal(sources[i].kv, &id, TOKENS, NULL));
    }
    event = kv_next(&target, &id, FERRY_KV_EVENT_RECEIVED);
    CHECK(event.status == FERRY_OK && event.valid_tokens == TOKENS && event.layers == 0);
    CHECK(event.untrusted == NULL && event.untrusted_count == 0 && event.message == NULL);
    ferry_kv_event_release(&event);
    CHECK(kv_holds(&target.cache, 0, TOKENS));
    for (uint32_t i = 0; i < ranks; i++) {
        kv_expect(&sources[i], &id, FERRY_KV_EVENT_SENT);
        CHECK(kv_holds(&sources[i].cache, 0, TOKENS));
        kv_rank_close(&sources[i]);
    }
    kv_rank_close(&target);
}

static void what_is_taken_equals_what_was_offered(void)
{
    for (uint32_t ranks = 1; ranks <= 2; ranks++)
        for (size_t i = 0; i < 3; i++) hand_over(ranks, modes[i]);
}

static void tokens_that_the_consumer_has_stay_as_they_are(void)
{
    for (size_t i = 0; i < 3; i++) {
        const ferry_kv_id id = kv_new_id();
        ferry_kv_block_list list;
        ferry_kv_take_options options;
        open_both();
        list = kv_list(&consumer, 0, (TOKENS + 31) / 32);
        options = kv_take_options(&list, &peer, 1, TOKENS, modes[i]);
        options.skip_tokens = 64;
        kv_offer(&producer, &id, TOKENS, 0);
        kv_compute(&producer, &id, 0, TOKENS);
        CHECK_OK(ferry_kv_offer_seal(producer.kv, &id, TOKENS, NULL));
        CHECK_OK(ferry_kv_take(consumer.kv, &id, &options, NULL));
        kv_expect(&consumer, &id, FERRY_KV_EVENT_RECEIVED);
        CHECK(kv_holds(&consumer.cache, 64, TOKENS));
        close_both();
    }
}

static void layers_are_told_to_takes_that_ask(void)
{
    for (uint32_t flags = 0; flags <= FERRY_KV_TAKE_LAYERS; flags++) {
        const ferry_kv_id id = kv_new_id();
        open_both();
        take_with(&id, FERRY_KV_MODE_PUSH, flags, 0);
        kv_offer(&producer, &id, TOKENS, 0);
        kv_write(&producer.cache, 0, TOKENS);
        CHECK_OK(ferry_kv_offer_ready(producer.kv, &id, 0, 1, TOKENS, NULL));
        if (flags == FERRY_KV_TAKE_LAYERS) {
            ferry_kv_event event = kv_next(&consumer, &id, FERRY_KV_EVENT_LAYERS);
            CHECK(event.layers == 1 && event.status == FERRY_OK && event.valid_tokens == 0);
            ferry_kv_event_release(&event);
        }
        CHECK_OK(ferry_kv_offer_ready(producer.kv, &id, 1, 2, TOKENS, NULL));
        CHECK_OK(ferry_kv_offer_seal(producer.kv, &id, TOKENS, NULL));
        if (flags == FERRY_KV_TAKE_LAYERS) {
            ferry_kv_event event = kv_next(&consumer, &id, FERRY_KV_EVENT_LAYERS);
            CHECK(event.layers == 2);
        }
        kv_expect(&consumer, &id, FERRY_KV_EVENT_RECEIVED);
        kv_expect(&producer, &id, FERRY_KV_EVENT_SENT);
        close_both();
    }
}

static void states_are_told(void)
{
    const ferry_kv_id id = kv_new_id(), other = kv_new_id();
    ferry_kv_state state;
    size_t count = 7;
    open_both();
    CHECK(kv_state(&producer, &id).kind == FERRY_KV_STATE_UNKNOWN);
    kv_offer(&producer, &id, TOKENS, 0);
    state = kv_state(&producer, &id);
    CHECK(state.kind == FERRY_KV_STATE_OFFERED && !state.is_sealed && state.takers == 0 && state.event == 0);
    take_with(&id, FERRY_KV_MODE_PUSH, FERRY_KV_TAKE_LAYERS, 0);
    state = kv_state(&consumer, &id);
    CHECK(state.kind == FERRY_KV_STATE_TAKING && state.valid_tokens == 0 && state.takers == 0);
    kv_compute(&producer, &id, 0, 64);
    await_valid(&id, 64);
    CHECK(kv_state(&producer, &id).takers == 1);
    kv_compute(&producer, &id, 64, TOKENS);
    kv_expect(&consumer, &id, FERRY_KV_EVENT_LAYERS);
    kv_expect(&consumer, &id, FERRY_KV_EVENT_RECEIVED);
    CHECK(kv_state(&producer, &id).kind == FERRY_KV_STATE_OFFERED);
    CHECK_OK(ferry_kv_offer_seal(producer.kv, &id, TOKENS, NULL));
    kv_expect(&producer, &id, FERRY_KV_EVENT_SENT);
    state = kv_state(&producer, &id);
    CHECK(state.kind == FERRY_KV_STATE_ENDED && state.event == FERRY_KV_EVENT_SENT && !state.is_sealed);
    CHECK(kv_state(&consumer, &id).event == FERRY_KV_EVENT_RECEIVED);
    kv_offer(&producer, &other, TOKENS, 0);
    CHECK_OK(ferry_kv_offer_seal(producer.kv, &other, 0, NULL));
    CHECK(kv_state(&producer, &other).is_sealed == 1);
    CHECK_OK(ferry_kv_unfenced_blocks(producer.kv, &count, NULL));
    CHECK(count == 0);
    close_both();
}

static void a_cancelled_take_gives_its_blocks_back(void)
{
    for (size_t i = 0; i < 3; i++) {
        const ferry_kv_id id = kv_new_id();
        ferry_kv_event event;
        open_both();
        kv_offer(&producer, &id, TOKENS, 0);
        take_with(&id, modes[i], FERRY_KV_TAKE_LAYERS, 0);
        kv_write(&producer.cache, 0, TOKENS);
        CHECK_OK(ferry_kv_offer_ready(producer.kv, &id, 0, KV_LAYERS, 100, NULL));
        await_valid(&id, 96);
        CHECK_OK(ferry_kv_take_cancel(consumer.kv, &id, NULL));
        event = kv_next(&consumer, &id, FERRY_KV_EVENT_CANCELLED);
        CHECK(event.status == FERRY_ERR_CANCELLED && event.valid_tokens == 96);
        check_message(&event, "the consumer cancelled the take");
        check_untrusted(&event, 3);
        ferry_kv_event_release(&event);
        ferry_kv_event_release(&event);
        CHECK_STATUS(ferry_kv_take_cancel(consumer.kv, &id, NULL), FERRY_ERR_STALE);
        /* The offer ends with its only taker, sealed or not. */
        event = kv_next(&producer, &id, FERRY_KV_EVENT_FAILED);
        CHECK(event.untrusted_count == 0 && event.valid_tokens == 0 && event.status != FERRY_OK);
        CHECK(event.peer != 0 && event.rank == 0 && event.reserved == 0);
        check_message(&event, "rank 0 of the consumer (");
        ferry_kv_event_release(&event);
        close_both();
    }
}

static void an_aborted_offer_ends_its_take(void)
{
    for (size_t i = 0; i < 3; i++) {
        const ferry_kv_id id = kv_new_id();
        ferry_kv_event event;
        open_both();
        kv_offer(&producer, &id, TOKENS, 0);
        take_with(&id, modes[i], 0, 0);
        await_taker(&id);
        CHECK_OK(ferry_kv_offer_cancel(producer.kv, &id, NULL));
        event = kv_next(&producer, &id, FERRY_KV_EVENT_CANCELLED);
        CHECK(event.status == FERRY_ERR_CANCELLED && event.peer == 0 && event.rank == UINT32_MAX);
        check_message(&event, "the producer aborted the offer");
        ferry_kv_event_release(&event);
        event = kv_next(&consumer, &id, FERRY_KV_EVENT_FAILED);
        CHECK(event.status == FERRY_ERR_CANCELLED && event.valid_tokens == 0);
        CHECK(event.peer != 0 && event.rank == 0);
        check_message(&event, ") ended its offer: the producer aborted the offer");
        check_untrusted(&event, 0);
        ferry_kv_event_release(&event);
        CHECK_STATUS(ferry_kv_offer_cancel(producer.kv, &id, NULL), FERRY_ERR_STALE);
        CHECK_STATUS(ferry_kv_offer_ready(producer.kv, &id, 0, 1, 1, NULL), FERRY_ERR_STALE);
        close_both();
    }
}

static void a_lease_that_nobody_takes_expires(void)
{
    const ferry_kv_id id = kv_new_id();
    ferry_kv_event event = FERRY_KV_EVENT_INIT;
    open_both();
    kv_offer(&producer, &id, TOKENS, 1);
    kv_compute(&producer, &id, 0, TOKENS);
    CHECK_STATUS(ferry_kv_wait(producer.kv, 20 * 1000000, &event, NULL), FERRY_PENDING);
    CHECK_OK(ferry_kv_offer_seal(producer.kv, &id, TOKENS, NULL));
    event = kv_next(&producer, &id, FERRY_KV_EVENT_EXPIRED);
    CHECK(event.status == FERRY_ERR_TIMEOUT);
    check_message(&event, "the lease of the offer is over");
    ferry_kv_event_release(&event);
    close_both();
}

static void a_take_whose_deadline_passes_fails(void)
{
    const ferry_kv_id id = kv_new_id(), lasting = kv_new_id(), lasting_too = kv_new_id();
    ferry_kv_event event;
    open_both();
    take_into(1, &lasting, FERRY_KV_MODE_AUTO, 0, 0);
    take_into(2, &lasting_too, FERRY_KV_MODE_AUTO, 0, FERRY_FOREVER);
    take_into(0, &id, FERRY_KV_MODE_AUTO, 0, 1000000);
    event = kv_next(&consumer, &id, FERRY_KV_EVENT_FAILED);
    CHECK(event.status == FERRY_ERR_TIMEOUT);
    check_message(&event, "deadline");
    check_untrusted(&event, 0);
    ferry_kv_event_release(&event);
    CHECK(kv_state(&consumer, &lasting).kind == FERRY_KV_STATE_TAKING);
    CHECK(kv_state(&consumer, &lasting_too).kind == FERRY_KV_STATE_TAKING);
    close_both();
}

/* Of three offers, the first is taken and the second is the older one of those that nobody takes. */
static void memory_pressure_ends_offers_that_nobody_takes(void)
{
    const ferry_kv_id ids[] = {kv_new_id(), kv_new_id(), kv_new_id()};
    ferry_kv_event event;
    size_t freed = 0;
    open_both();
    for (size_t i = 0; i < 3; i++) {
        kv_offer(&producer, &ids[i], TOKENS, 0);
        CHECK_OK(ferry_kv_offer_seal(producer.kv, &ids[i], TOKENS, NULL));
    }
    take_with(&ids[0], FERRY_KV_MODE_PUSH, 0, 0);
    await_taker(&ids[0]);
    CHECK_OK(ferry_kv_reclaim(producer.kv, 3, &freed, NULL));
    CHECK(freed == 10);
    event = kv_next(&producer, &ids[1], FERRY_KV_EVENT_EXPIRED);
    CHECK(event.status == FERRY_ERR_LIMIT);
    check_message(&event, "reclaimed");
    ferry_kv_event_release(&event);
    CHECK_OK(ferry_kv_reclaim(producer.kv, 100, &freed, NULL));
    CHECK(freed == 10);
    kv_expect(&producer, &ids[2], FERRY_KV_EVENT_EXPIRED);
    CHECK(kv_state(&producer, &ids[0]).kind == FERRY_KV_STATE_OFFERED);
    close_both();
}

/* Two consumers take one offer; a third, and one that the offer does not name, are refused. */
static void an_offer_has_as_many_takers_as_it_says(void)
{
    const ferry_kv_id id = kv_new_id(), named = kv_new_id();
    kv_rank third;
    ferry_kv_block_list list, mine;
    ferry_kv_offer_options offer = FERRY_KV_OFFER_OPTIONS_INIT;
    ferry_kv_take_options take;
    ferry_kv_event event;
    ferry_peer only[2] = {0, 0}, third_peer;
    open_both();
    third = kv_rank_open(FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 0, 1, 32);
    third_peer = kv_connect(&third, &producer);
    list = kv_list(&producer, 0, (TOKENS + 15) / 16);
    offer.blocks = &list;
    offer.group_count = 1;
    offer.takers = 2;
    CHECK_OK(ferry_kv_offer(producer.kv, &id, &offer, NULL));
    kv_compute(&producer, &id, 0, TOKENS);
    CHECK_OK(ferry_kv_offer_seal(producer.kv, &id, TOKENS, NULL));
    take_with(&id, FERRY_KV_MODE_PULL, 0, 0);
    kv_expect(&consumer, &id, FERRY_KV_EVENT_RECEIVED);
    CHECK(kv_state(&producer, &id).kind == FERRY_KV_STATE_OFFERED);
    mine = kv_list(&third, 0, (TOKENS + 31) / 32);
    take = kv_take_options(&mine, &third_peer, 1, TOKENS, FERRY_KV_MODE_PULL);
    take.taker = 2;
    CHECK_OK(ferry_kv_take(third.kv, &id, &take, NULL));
    kv_expect(&third, &id, FERRY_KV_EVENT_RECEIVED);
    CHECK(kv_holds(&third.cache, 0, TOKENS) && kv_holds(&consumer.cache, 0, TOKENS));
    kv_expect(&producer, &id, FERRY_KV_EVENT_SENT);
    only[0] = kv_connect(&producer, &consumer);
    offer.takers = 0;
    offer.only = only;
    offer.only_count = 1;
    CHECK_OK(ferry_kv_offer(producer.kv, &named, &offer, NULL));
    CHECK_OK(ferry_kv_take(third.kv, &named, &take, NULL));
    event = kv_next(&third, &named, FERRY_KV_EVENT_FAILED);
    CHECK(event.status == FERRY_ERR_REFUSED);
    check_message(&event, "for other peers");
    ferry_kv_event_release(&event);
    take_with(&named, FERRY_KV_MODE_PULL, 0, 0);
    CHECK_OK(ferry_kv_offer_ready(producer.kv, &named, 0, UINT32_MAX, TOKENS, NULL));
    CHECK_OK(ferry_kv_offer_seal(producer.kv, &named, TOKENS, NULL));
    kv_expect(&consumer, &named, FERRY_KV_EVENT_RECEIVED);
    kv_expect(&producer, &named, FERRY_KV_EVENT_SENT);
    kv_rank_close(&third);
    close_both();
}

static void the_descriptor_is_readable_while_there_are_events(void)
{
    const ferry_kv_id id = kv_new_id();
    ferry_kv_event event = FERRY_KV_EVENT_INIT;
    int fd = -1;
    open_both();
    CHECK_OK(ferry_kv_fd(producer.kv, &fd, NULL));
    CHECK(!readable(fd, 0));
    CHECK_STATUS(ferry_kv_poll(producer.kv, &event, NULL), FERRY_PENDING);
    CHECK(event.kind == 0);
    kv_offer(&producer, &id, TOKENS, 0);
    CHECK_OK(ferry_kv_offer_cancel(producer.kv, &id, NULL));
    CHECK(readable(fd, 60000));
    CHECK_OK(ferry_kv_poll(producer.kv, &event, NULL));
    CHECK(event.kind == FERRY_KV_EVENT_CANCELLED);
    ferry_kv_event_release(&event);
    CHECK(!readable(fd, 0));
    CHECK_STATUS(ferry_kv_wait(producer.kv, 0, &event, NULL), FERRY_PENDING);
    CHECK_OK(ferry_kv_cache_close(producer.kv, PATIENCE_NS, NULL));
    CHECK_STATUS(ferry_kv_poll(producer.kv, &event, NULL), FERRY_ERR_CLOSED);
    CHECK(readable(fd, 0));
    close_both();
}

static void *wait_for_ever(void *context)
{
    ferry_kv_event event = FERRY_KV_EVENT_INIT;
    ferry_status *status = context;
    do {
        *status = ferry_kv_wait(consumer.kv, FERRY_FOREVER, &event, NULL);
        ferry_kv_event_release(&event);
    } while (*status == FERRY_OK);
    return NULL;
}

static void closing_ends_what_is_open_and_who_waits(void)
{
    const ferry_kv_id id = kv_new_id(), other = kv_new_id();
    ferry_kv_event event;
    ferry_status status = FERRY_OK;
    pthread_t thread;
    open_both();
    kv_offer(&producer, &id, TOKENS, 0);
    take_with(&id, FERRY_KV_MODE_PUSH, 0, 0);
    await_taker(&id);
    CHECK(pthread_create(&thread, NULL, wait_for_ever, &status) == 0);
    CHECK_OK(ferry_kv_cache_close(consumer.kv, FERRY_FOREVER, NULL));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(status == FERRY_ERR_CLOSED);
    CHECK(kv_state(&consumer, &id).event == FERRY_KV_EVENT_CANCELLED);
    CHECK_OK(ferry_kv_cache_close(consumer.kv, 0, NULL));
    kv_offer(&producer, &other, TOKENS, 0);
    CHECK_OK(ferry_kv_cache_close(producer.kv, PATIENCE_NS, NULL));
    /* The offer that was taken ended with the take or with the close; the other one by the close. */
    for (int i = 0; i < 2; i++) {
        memset(&event, 0, sizeof event);
        event.struct_size = sizeof event;
        CHECK_OK(ferry_kv_poll(producer.kv, &event, NULL));
        if (memcmp(&event.id, &other, sizeof other) == 0)
            CHECK(event.kind == FERRY_KV_EVENT_CANCELLED && event.status == FERRY_ERR_CLOSED);
        ferry_kv_event_release(&event);
    }
    CHECK_STATUS(ferry_kv_poll(producer.kv, &event, NULL), FERRY_ERR_CLOSED);
    close_both();
}

static void an_engine_that_closes_ends_its_cache(void)
{
    const ferry_kv_id id = kv_new_id();
    ferry_kv_event event;
    open_both();
    kv_offer(&producer, &id, TOKENS, 0);
    take_with(&id, FERRY_KV_MODE_PUSH, 0, 0);
    CHECK_OK(ferry_engine_close(consumer.engine, PATIENCE_NS, NULL));
    event = kv_next(&consumer, &id, FERRY_KV_EVENT_PEER_LOST);
    check_untrusted(&event, 0);
    CHECK_STATUS(ferry_kv_take_cancel(consumer.kv, &id, NULL), FERRY_ERR_CLOSED);
    CHECK_OK(ferry_kv_cache_close(consumer.kv, PATIENCE_NS, NULL));
    /* The event is the caller's when the cache and the engine are gone. */
    ferry_kv_cache_free(consumer.kv);
    kv_close(&consumer.cache);
    end_engine(consumer.engine);
    check_message(&event, "");
    ferry_kv_event_release(&event);
    kv_rank_close(&producer);
}

static void a_cache_that_is_freed_open_is_closed(void)
{
    const ferry_kv_id id = kv_new_id();
    ferry_kv_cache *next = NULL;
    ferry_status status;
    open_both();
    kv_offer(&producer, &id, TOKENS, 0);
    CHECK_STATUS(ferry_kv_cache_open(producer.engine, producer.cache.layout, &producer.memory, 1, NULL, &next,
                                     NULL), FERRY_ERR_BUSY);
    ferry_kv_cache_free(producer.kv);
    /* Its thread leaves the engine to the next cache when all has ended. */
    do {
        status = ferry_kv_cache_open(producer.engine, producer.cache.layout, &producer.memory, 1, NULL, &next,
                                     NULL);
    } while (status == FERRY_ERR_BUSY);
    CHECK_OK(status);
    producer.kv = next;
    CHECK(kv_state(&producer, &id).kind == FERRY_KV_STATE_UNKNOWN);
    close_both();
    ferry_kv_cache_free(NULL);
    ferry_kv_event_release(NULL);
}

/* An engine without a cache answers nothing, and nothing of it can land: a take waits for the cache. */
static void an_engine_without_a_cache_is_waited_for(void)
{
    const ferry_kv_id id = kv_new_id();
    ferry_engine *late = open_engine();
    kv_rank hasty = kv_rank_open_with(FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 0, 1, 32, 50);
    ferry_kv_block_list list = kv_list(&hasty, 0, (TOKENS + 31) / 32);
    ferry_kv_take_options options;
    ferry_kv_event event = FERRY_KV_EVENT_INIT;
    ferry_peer of_hasty = 0;
    CHECK_OK(ferry_peer_connect(hasty.engine, address_of(late), PATIENCE_NS, &of_hasty, NULL));
    options = kv_take_options(&list, &of_hasty, 1, TOKENS, FERRY_KV_MODE_PULL);
    CHECK_OK(ferry_kv_take(hasty.kv, &id, &options, NULL));
    CHECK_STATUS(ferry_kv_wait(hasty.kv, 300000000, &event, NULL), FERRY_PENDING);
    CHECK(kv_state(&hasty, &id).kind == FERRY_KV_STATE_TAKING);
    end_engine(late);
    event = kv_next(&hasty, &id, FERRY_KV_EVENT_PEER_LOST);
    CHECK(event.status == FERRY_ERR_PEER_LOST && event.valid_tokens == 0);
    check_message(&event, "");
    ferry_kv_event_release(&event);
    kv_rank_close(&hasty);
}

static void ids_are_random(void)
{
    const ferry_kv_id first = kv_new_id(), second = kv_new_id();
    const ferry_kv_id zero = {{0}};
    CHECK(memcmp(&first, &second, sizeof first) != 0 && memcmp(&first, &zero, sizeof first) != 0);
}

SUITE(kv_handoff, CASE(what_is_taken_equals_what_was_offered),
      CASE(tokens_that_the_consumer_has_stay_as_they_are), CASE(layers_are_told_to_takes_that_ask),
      CASE(states_are_told), CASE(a_cancelled_take_gives_its_blocks_back), CASE(an_aborted_offer_ends_its_take),
      CASE(a_lease_that_nobody_takes_expires), CASE(a_take_whose_deadline_passes_fails),
      CASE(memory_pressure_ends_offers_that_nobody_takes), CASE(an_offer_has_as_many_takers_as_it_says),
      CASE(the_descriptor_is_readable_while_there_are_events), CASE(closing_ends_what_is_open_and_who_waits),
      CASE(an_engine_that_closes_ends_its_cache), CASE(a_cache_that_is_freed_open_is_closed),
      CASE(an_engine_without_a_cache_is_waited_for), CASE(ids_are_random));
