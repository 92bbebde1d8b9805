/*
 * Counters of a cache of ferry_kv.h: handoffs by their end, bytes, leases, and the text for Prometheus. Numbers of what
 * exists return to zero.
 */
#define _POSIX_C_SOURCE 200809L
#include "arguments.h"
#include "kv_ranks.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKENS = 150 };

/* Kept reachable for the child. */
static kv_rank producer, consumer;

static ferry_kv_stats metrics_of(const kv_rank *rank)
{
    ferry_kv_stats metrics = FERRY_KV_STATS_INIT;
    CHECK_OK(ferry_kv_get_stats(rank->kv, &metrics, NULL));
    CHECK(metrics.struct_size == sizeof metrics && metrics.reserved == 0);
    return metrics;
}

static uint64_t failed_with(const kv_rank *rank, ferry_status status)
{
    uint64_t count = 77;
    CHECK_OK(ferry_kv_ended_failed(rank->kv, status, &count, NULL));
    return count;
}

static void check_nothing_is_left(const ferry_kv_stats *metrics)
{
    CHECK(metrics->offers == 0 && metrics->takes == 0 && metrics->takes_waiting == 0);
    CHECK(metrics->parts == 0 && metrics->transfers == 0 && metrics->unfenced_blocks == 0);
    CHECK(metrics->leased_blocks == 0 && metrics->oldest_lease_ns == 0);
}

static void open_both(void)
{
    producer = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16);
    consumer = kv_rank_open(FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 0, 1, 32);
}

static void close_both(void)
{
    kv_rank_close(&producer);
    kv_rank_close(&consumer);
}

static void a_handoff_is_counted_at_both_sides(void)
{
    const uint64_t bytes = (uint64_t)TOKENS * KV_LAYERS * 2 * KV_HEADS * KV_ELEMENTS * sizeof(uint32_t);
    const uint32_t modes[] = {FERRY_KV_MODE_PULL, FERRY_KV_MODE_PUSH};
    for (size_t i = 0; i < 2; i++) {
        const ferry_kv_id id = kv_new_id();
        ferry_kv_stats sent, received;
        ferry_kv_block_list list;
        ferry_kv_take_options options;
        ferry_peer peer;
        open_both();
        peer = kv_connect(&consumer, &producer);
        list = kv_list(&consumer, 0, (TOKENS + 31) / 32);
        options = kv_take_options(&list, &peer, 1, TOKENS, modes[i]);
        kv_offer(&producer, &id, TOKENS, 0);
        kv_compute(&producer, &id, 0, TOKENS);
        sent = metrics_of(&producer);
        CHECK(sent.offers == 1 && sent.leased_blocks == 0 && sent.oldest_lease_ns == 0);
        CHECK_OK(ferry_kv_offer_seal(producer.kv, &id, TOKENS, NULL));
        sent = metrics_of(&producer);
        CHECK(sent.leased_blocks == (TOKENS + 15) / 16 && sent.oldest_lease_ns > 0 && sent.ended_sent == 0);
        CHECK_OK(ferry_kv_take(consumer.kv, &id, &options, NULL));
        kv_expect(&consumer, &id, FERRY_KV_EVENT_RECEIVED);
        kv_expect(&producer, &id, FERRY_KV_EVENT_SENT);
        sent = metrics_of(&producer);
        received = metrics_of(&consumer);
        CHECK(sent.ended_sent == 1 && sent.ended_received == 0 && sent.bytes_sent == bytes);
        CHECK(received.ended_received == 1 && received.ended_sent == 0 && received.bytes_received == bytes);
        CHECK(sent.bytes_received == 0 && received.bytes_sent == 0);
        check_nothing_is_left(&sent);
        check_nothing_is_left(&received);
        close_both();
    }
}

static void ends_are_counted_by_their_cause(void)
{
    const ferry_kv_id aborted = kv_new_id(), lapsed = kv_new_id(), reclaimed = kv_new_id(), late = kv_new_id();
    ferry_kv_stats metrics;
    ferry_kv_block_list list;
    ferry_kv_take_options options;
    ferry_peer peer;
    size_t freed = 0;
    open_both();
    peer = kv_connect(&consumer, &producer);
    kv_offer(&producer, &aborted, TOKENS, 0);
    CHECK_OK(ferry_kv_offer_cancel(producer.kv, &aborted, NULL));
    kv_expect(&producer, &aborted, FERRY_KV_EVENT_CANCELLED);
    kv_offer(&producer, &lapsed, TOKENS, 1);
    CHECK_OK(ferry_kv_offer_seal(producer.kv, &lapsed, TOKENS, NULL));
    kv_expect(&producer, &lapsed, FERRY_KV_EVENT_EXPIRED);
    for (size_t i = 0; i < 2; i++) {
        const ferry_kv_id id = i == 0 ? reclaimed : kv_new_id();
        kv_offer(&producer, &id, TOKENS, 0);
        CHECK_OK(ferry_kv_offer_seal(producer.kv, &id, TOKENS, NULL));
    }
    CHECK_OK(ferry_kv_reclaim(producer.kv, 100, &freed, NULL));
    metrics = metrics_of(&producer);
    CHECK(metrics.ended_cancelled == 1 && metrics.ended_expired_lease == 1 && metrics.ended_expired_pressure == 2);
    CHECK(metrics.ended_failed == 0 && metrics.ended_peer_lost == 0 && metrics.late_applies == 0);
    check_nothing_is_left(&metrics);
    list = kv_list(&consumer, 0, (TOKENS + 31) / 32);
    options = kv_take_options(&list, &peer, 1, TOKENS, FERRY_KV_MODE_PULL);
    options.deadline_ns = 1000000;
    CHECK_OK(ferry_kv_take(consumer.kv, &late, &options, NULL));
    kv_expect(&consumer, &late, FERRY_KV_EVENT_FAILED);
    metrics = metrics_of(&consumer);
    CHECK(metrics.ended_failed == 1 && failed_with(&consumer, FERRY_ERR_TIMEOUT) == 1);
    CHECK(failed_with(&consumer, FERRY_ERR_CORRUPT) == 0 && failed_with(&producer, FERRY_ERR_TIMEOUT) == 0);
    close_both();
}

/* The text has the numbers of the struct, and remains when the cache is closed. */
static void the_text_has_the_numbers(void)
{
    const ferry_kv_id id = kv_new_id();
    char text[16384];
    size_t length = 0, needed = 0;
    open_both();
    kv_offer(&producer, &id, TOKENS, 0);
    CHECK_OK(ferry_kv_metrics(producer.kv, text, sizeof text, &length, NULL));
    CHECK(length == strlen(text) && strstr(text, "\nferry_kv_offers 1\n") != NULL);
    CHECK_OK(ferry_kv_metrics(producer.kv, NULL, 0, &needed, NULL));
    CHECK(needed == length);
    CHECK_STATUS(ferry_kv_metrics(producer.kv, text, length, &needed, NULL), FERRY_ERR_LIMIT);
    CHECK_OK(ferry_kv_cache_close(producer.kv, PATIENCE_NS, NULL));
    CHECK_OK(ferry_kv_metrics(producer.kv, text, sizeof text, &length, NULL));
    CHECK(strstr(text, "\nferry_kv_offers 0\n") != NULL);
    CHECK(strstr(text, "\nferry_kv_handoffs_total{end=\"cancelled\"} 1\n") != NULL);
    CHECK(metrics_of(&producer).ended_cancelled == 1 && failed_with(&producer, FERRY_ERR_CLOSED) == 0);
    close_both();
}

static void wrong_arguments(void)
{
    ferry_kv_stats metrics = FERRY_KV_STATS_INIT;
    uint64_t count = 77;
    size_t length = 77;
    char text[8];
    producer = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16);
    CHECK_NULL(ferry_kv_get_stats(NULL, &metrics, &error), "cache");
    CHECK_NULL(ferry_kv_get_stats(producer.kv, NULL, &error), "out_metrics");
    CHECK_NULL(ferry_kv_ended_failed(NULL, FERRY_ERR_LIMIT, &count, &error), "cache");
    CHECK_NULL(ferry_kv_ended_failed(producer.kv, FERRY_ERR_LIMIT, NULL, &error), "out_count");
    CHECK_BAD(ferry_kv_ended_failed(producer.kv, FERRY_OK, &count, &error), "status: 0 is no error");
    CHECK_BAD(ferry_kv_ended_failed(producer.kv, FERRY_PENDING, &count, &error), "status: 1 is no error");
    CHECK_BAD(ferry_kv_ended_failed(producer.kv, -999, &count, &error), "status: -999 is no error");
    CHECK_NULL(ferry_kv_metrics(NULL, text, sizeof text, &length, &error), "cache");
    CHECK_NULL(ferry_kv_metrics(producer.kv, NULL, 8, &length, &error), "buffer");
    CHECK_NULL(ferry_kv_metrics(producer.kv, text, sizeof text, NULL, &error), "out_length");
    metrics.struct_size--;
    CHECK_BAD(ferry_kv_get_stats(producer.kv, &metrics, &error), "out_metrics.struct_size is 159");
    CHECK(count == 77 && length == 77);
    kv_rank_close(&producer);
}

/* Makes only async-signal-safe calls and ferry's. */
static int in_the_child(void)
{
    ferry_kv_stats metrics = FERRY_KV_STATS_INIT;
    uint64_t count = 0;
    size_t length = 0;
    if (ferry_kv_get_stats(producer.kv, &metrics, NULL) != FERRY_ERR_CLOSED) return 1;
    if (ferry_kv_ended_failed(producer.kv, FERRY_ERR_LIMIT, &count, NULL) != FERRY_ERR_CLOSED) return 2;
    if (ferry_kv_metrics(producer.kv, NULL, 0, &length, NULL) != FERRY_ERR_CLOSED) return 3;
    return 0;
}

static void a_forked_child_is_refused(void)
{
    int status = -1;
    pid_t child;
    producer = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) leave_child(in_the_child());
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) FAIL("the child ended with %d", WEXITSTATUS(status));
    kv_rank_close(&producer);
}

SUITE(kv_metrics, CASE(a_handoff_is_counted_at_both_sides), CASE(ends_are_counted_by_their_cause),
      CASE(the_text_has_the_numbers), CASE(wrong_arguments), CASE(a_forked_child_is_refused));
