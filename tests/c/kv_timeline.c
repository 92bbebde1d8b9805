/*
 * The recorded timeline of ferry_kv.h: what a handoff leaves in it, the application's marks, and its picture. And layers
 * that become ready after an event, as far as no device is needed.
 */
#define _POSIX_C_SOURCE 200809L
#include "arguments.h"
#include "kv_ranks.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TOKENS = 150, ENTRIES = 64 };

/* Kept reachable for the child. */
static kv_rank producer, consumer;

static uint64_t monotonic_ns(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static size_t read_all(const kv_rank *rank, uint64_t first, ferry_kv_timeline_entry *entries, size_t capacity)
{
    size_t count = 77;
    CHECK_OK(ferry_kv_timeline_read(rank->kv, first, entries, sizeof *entries, capacity, &count, NULL));
    CHECK(count <= capacity);
    return count;
}

/* Returns how many entries of this kind there are; *out_last gets the last one. */
static size_t count_of(const ferry_kv_timeline_entry *entries, size_t count, uint32_t what,
                       ferry_kv_timeline_entry *out_last)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        CHECK(entries[i].struct_size == sizeof entries[i] && entries[i].begin_ns <= entries[i].end_ns);
        CHECK(entries[i].number == i);
        if (entries[i].what != what) continue;
        found++;
        if (out_last != NULL) *out_last = entries[i];
    }
    return found;
}

static size_t bars_of(const char *picture, const char *class)
{
    char begin[64];
    size_t count = 0;
    snprintf(begin, sizeof begin, "<rect class=\"%s\"", class);
    for (const char *at = strstr(picture, begin); at != NULL; at = strstr(at + 1, begin)) count++;
    return count;
}

/* Whether an entry of this kind ends at this layer. */
static int ends_at(const ferry_kv_timeline_entry *entries, size_t count, uint32_t what, uint32_t layer)
{
    for (size_t i = 0; i < count; i++)
        if (entries[i].what == what && entries[i].end_layer == layer) return 1;
    return 0;
}

static void a_handoff_is_recorded_and_drawn(void)
{
    const ferry_kv_id id = kv_new_id();
    const uint64_t before = monotonic_ns();
    const uint32_t prefix = (uint32_t)id.bytes[0] << 24 | (uint32_t)id.bytes[1] << 16 |
                            (uint32_t)id.bytes[2] << 8 | (uint32_t)id.bytes[3];
    ferry_kv_timeline_entry entries[ENTRIES], last;
    ferry_kv_block_list list;
    ferry_kv_take_options options;
    ferry_peer peer;
    size_t count, length = 0, needed = 0;
    char *picture;
    producer = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16);
    consumer = kv_rank_open(FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 0, 1, 32);
    peer = kv_connect(&consumer, &producer);
    CHECK_OK(ferry_kv_timeline_start(producer.kv, ENTRIES, NULL));
    list = kv_list(&consumer, 0, (TOKENS + 31) / 32);
    options = kv_take_options(&list, &peer, 1, TOKENS, FERRY_KV_MODE_PUSH);
    kv_offer(&producer, &id, TOKENS, 0);
    CHECK_OK(ferry_kv_take(consumer.kv, &id, &options, NULL));
    for (uint32_t layer = 0; layer < KV_LAYERS; layer++) {
        const uint64_t begin = monotonic_ns();
        kv_write(&producer.cache, 0, TOKENS);
        CHECK_OK(ferry_kv_timeline_mark(producer.kv, &id, FERRY_KV_MARK_COMPUTE, layer, begin, monotonic_ns(), NULL));
        CHECK_OK(ferry_kv_offer_ready_after(producer.kv, &id, layer, layer + 1, TOKENS, FERRY_START_NOW, 0, NULL));
    }
    CHECK_OK(ferry_kv_offer_seal(producer.kv, &id, TOKENS, NULL));
    kv_expect(&consumer, &id, FERRY_KV_EVENT_RECEIVED);
    kv_expect(&producer, &id, FERRY_KV_EVENT_SENT);
    count = read_all(&producer, 0, entries, ENTRIES);
    CHECK(count_of(entries, count, FERRY_KV_TIMELINE_OFFERED, &last) == 1);
    CHECK(last.id == prefix && last.begin_ns >= before && last.end_ns <= monotonic_ns());
    CHECK(count_of(entries, count, FERRY_KV_TIMELINE_MARK, &last) == KV_LAYERS);
    CHECK(last.detail == (int32_t)FERRY_KV_MARK_COMPUTE && last.first_layer == KV_LAYERS - 1 && last.id == prefix);
    CHECK(count_of(entries, count, FERRY_KV_TIMELINE_READY, &last) == KV_LAYERS);
    CHECK(last.first_layer == KV_LAYERS - 1 && last.end_layer == KV_LAYERS && last.end_token == TOKENS);
    CHECK(count_of(entries, count, FERRY_KV_TIMELINE_POSTED, NULL) >= 1);
    CHECK(count_of(entries, count, FERRY_KV_TIMELINE_FINAL, &last) ==
          count_of(entries, count, FERRY_KV_TIMELINE_POSTED, NULL));
    CHECK(last.detail == FERRY_OK && last.bytes > 0 && last.peer != 0);
    CHECK(last.first_token == 0 && last.end_token == TOKENS);
    /* Transfers of several layers may become final in any order. */
    CHECK(ends_at(entries, count, FERRY_KV_TIMELINE_FINAL, KV_LAYERS));
    CHECK(count_of(entries, count, FERRY_KV_TIMELINE_SEALED, &last) == 1 && last.end_token == TOKENS);
    CHECK(count_of(entries, count, FERRY_KV_TIMELINE_ENDED, &last) == 1);
    CHECK(last.first_layer == FERRY_KV_EVENT_SENT && last.detail == FERRY_OK && last.number == count - 1);
    CHECK(read_all(&producer, count - 1, entries, 1) == 1 && entries[0].what == FERRY_KV_TIMELINE_ENDED);
    CHECK(read_all(&producer, count, entries, ENTRIES) == 0 && read_all(&consumer, 0, entries, ENTRIES) == 0);
    count = read_all(&producer, 0, entries, ENTRIES);
    CHECK_OK(ferry_kv_timeline_svg(entries, count, NULL, 0, &needed, NULL));
    picture = malloc(needed + 1);
    CHECK(picture != NULL);
    CHECK_STATUS(ferry_kv_timeline_svg(entries, count, picture, needed, &length, NULL), FERRY_ERR_LIMIT);
    CHECK_OK(ferry_kv_timeline_svg(entries, count, picture, needed + 1, &length, NULL));
    CHECK(length == needed && strlen(picture) == needed);
    CHECK(strncmp(picture, "<svg ", 5) == 0 && strcmp(picture + needed - 7, "</svg>\n") == 0);
    CHECK(bars_of(picture, "compute") == KV_LAYERS && bars_of(picture, "transfer") == KV_LAYERS);
    free(picture);
    CHECK_OK(ferry_kv_timeline_stop(producer.kv, NULL));
    CHECK(read_all(&producer, 0, entries, ENTRIES) == 0);
    kv_rank_close(&producer);
    kv_rank_close(&consumer);
}

static void the_oldest_entries_are_overwritten(void)
{
    const ferry_kv_id id = kv_new_id();
    ferry_kv_timeline_entry entries[4];
    ferry_kv_stats metrics = FERRY_KV_STATS_INIT;
    producer = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16);
    CHECK_OK(ferry_kv_timeline_start(producer.kv, 3, NULL));
    for (uint32_t layer = 0; layer < 5; layer++)
        CHECK_OK(ferry_kv_timeline_mark(producer.kv, &id, 7, layer, layer, layer + 1, NULL));
    CHECK(read_all(&producer, 0, entries, 4) == 3);
    for (size_t i = 0; i < 3; i++) CHECK(entries[i].number == i + 2 && entries[i].first_layer == i + 2);
    CHECK_OK(ferry_kv_get_stats(producer.kv, &metrics, NULL));
    CHECK(metrics.timeline_overwritten == 2);
    kv_rank_close(&producer);
}

/* What was recorded can be read, and stays as it is. */
static void check_closed(const kv_rank *rank, const ferry_kv_id *id)
{
    ferry_kv_timeline_entry entries[2];
    CHECK_STATUS(ferry_kv_timeline_start(rank->kv, 2, NULL), FERRY_ERR_CLOSED);
    CHECK_STATUS(ferry_kv_timeline_mark(rank->kv, id, 7, 0, 1, 2, NULL), FERRY_ERR_CLOSED);
    CHECK_STATUS(ferry_kv_timeline_stop(rank->kv, NULL), FERRY_ERR_CLOSED);
    CHECK(read_all(rank, 0, entries, 2) == 1 && entries[0].what == FERRY_KV_TIMELINE_MARK);
}

static void the_timeline_of_a_closed_cache_is_only_read(void)
{
    const ferry_kv_id id = kv_new_id();
    for (int closes_engine = 0; closes_engine < 2; closes_engine++) {
        size_t count = 77;
        producer = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16);
        CHECK_OK(ferry_kv_timeline_start(producer.kv, 2, NULL));
        CHECK_OK(ferry_kv_timeline_mark(producer.kv, &id, 7, 0, 1, 2, NULL));
        if (closes_engine)
            CHECK_OK(ferry_engine_close(producer.engine, PATIENCE_NS, NULL));
        else
            CHECK_OK(ferry_kv_cache_close(producer.kv, PATIENCE_NS, NULL));
        check_closed(&producer, &id);
        CHECK_OK(ferry_kv_unfenced_blocks(producer.kv, &count, NULL));
        CHECK(count == 0);
        kv_rank_close(&producer);
    }
}

static void wrong_arguments(void)
{
    const ferry_kv_id id = kv_new_id();
    ferry_kv_timeline_entry entry = FERRY_KV_TIMELINE_ENTRY_INIT;
    const size_t size = sizeof entry;
    size_t count = 77;
    char text[8];
    producer = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16);
    CHECK_NULL(ferry_kv_timeline_start(NULL, 1, &error), "cache");
    CHECK_BAD(ferry_kv_timeline_start(producer.kv, 0, &error), "entries_max: 0 is not 1 to 1048576");
    CHECK_BAD(ferry_kv_timeline_start(producer.kv, (1 << 20) + 1, &error), "entries_max: 1048577");
    CHECK_NULL(ferry_kv_timeline_stop(NULL, &error), "cache");
    CHECK_NULL(ferry_kv_timeline_mark(NULL, &id, 1, 0, 1, 2, &error), "cache");
    CHECK_NULL(ferry_kv_timeline_mark(producer.kv, NULL, 1, 0, 1, 2, &error), "id");
    CHECK_BAD(ferry_kv_timeline_mark(producer.kv, &id, 1, 0, 2, 1, &error), "end_ns: 1 is before begin_ns, 2");
    CHECK_NULL(ferry_kv_timeline_read(NULL, 0, &entry, size, 1, &count, &error), "cache");
    CHECK_NULL(ferry_kv_timeline_read(producer.kv, 0, NULL, size, 1, &count, &error), "out_entries");
    CHECK_NULL(ferry_kv_timeline_read(producer.kv, 0, &entry, size, 1, NULL, &error), "out_count");
    CHECK_BAD(ferry_kv_timeline_read(producer.kv, 0, &entry, 80, 1, &count, &error), "element_size is 80");
    CHECK_NULL(ferry_kv_timeline_svg(NULL, 1, text, sizeof text, &count, &error), "entries");
    CHECK_NULL(ferry_kv_timeline_svg(&entry, 0, NULL, 8, &count, &error), "buffer");
    CHECK_NULL(ferry_kv_timeline_svg(&entry, 0, text, sizeof text, NULL, &error), "out_length");
    CHECK_BAD(ferry_kv_timeline_svg(&entry, 1, NULL, 0, &count, &error), "entries[0].what is 0");
    entry.struct_size--;
    CHECK_BAD(ferry_kv_timeline_svg(&entry, 1, NULL, 0, &count, &error), "entries[0].struct_size is 87");
    CHECK_NAMES(ferry_kv_timeline_svg(&entry, (1 << 20) + 1, NULL, 0, &count, &error), FERRY_ERR_LIMIT, "entries has");
    CHECK(count == 77);
    kv_rank_close(&producer);
}

static void events_without_a_device(void)
{
    const ferry_kv_id id = kv_new_id();
    producer = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16);
    kv_offer(&producer, &id, TOKENS, 0);
#define AFTER(kind, event) ferry_kv_offer_ready_after(producer.kv, &id, 0, UINT32_MAX, 16, kind, event, &error)
    CHECK_NULL(ferry_kv_offer_ready_after(NULL, &id, 0, 1, 16, FERRY_START_NOW, 0, &error), "cache");
    CHECK_NULL(ferry_kv_offer_ready_after(producer.kv, NULL, 0, 1, 16, FERRY_START_NOW, 0, &error), "id");
    CHECK_BAD(AFTER(FERRY_START_NOW, 1), "event (with FERRY_START_NOW)");
    CHECK_BAD(AFTER(FERRY_START_AFTER_CUDA_EVENT, 0), "event is 0, which is no event");
    CHECK_BAD(AFTER(5, 0), "event_kind is 5, not a FERRY_START_* value");
    CHECK_NAMES(AFTER(FERRY_START_AFTER_CUDA_EVENT, 16), FERRY_ERR_UNAVAILABLE, "event: ");
    CHECK_OK(AFTER(FERRY_START_NOW, 0));
    CHECK_BAD(AFTER(FERRY_START_NOW, 0), "layer 0 is ready up to token 16 already");
#undef AFTER
    kv_rank_close(&producer);
}

/* Makes only async-signal-safe calls and ferry's. */
static int in_the_child(const ferry_kv_id *id)
{
    ferry_kv_timeline_entry entry = FERRY_KV_TIMELINE_ENTRY_INIT;
    size_t count = 0;
    if (ferry_kv_timeline_start(producer.kv, 1, NULL) != FERRY_ERR_CLOSED) return 1;
    if (ferry_kv_timeline_stop(producer.kv, NULL) != FERRY_ERR_CLOSED) return 2;
    if (ferry_kv_timeline_mark(producer.kv, id, 1, 0, 1, 2, NULL) != FERRY_ERR_CLOSED) return 3;
    if (ferry_kv_timeline_read(producer.kv, 0, &entry, sizeof entry, 1, &count, NULL) != FERRY_ERR_CLOSED) return 4;
    if (ferry_kv_offer_ready_after(producer.kv, id, 0, 1, 1, FERRY_START_AFTER_CUDA_STREAM, 0, NULL) !=
        FERRY_ERR_CLOSED)
        return 5;
    entry.what = FERRY_KV_TIMELINE_OFFERED;
    if (ferry_kv_timeline_svg(&entry, 1, NULL, 0, &count, NULL) != FERRY_OK) return 6;
    return 0;
}

static void a_forked_child_is_refused(void)
{
    const ferry_kv_id id = kv_new_id();
    int status = -1;
    pid_t child;
    producer = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) leave_child(in_the_child(&id));
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) FAIL("the child ended with %d", WEXITSTATUS(status));
    kv_rank_close(&producer);
}

SUITE(kv_timeline, CASE(a_handoff_is_recorded_and_drawn), CASE(the_oldest_entries_are_overwritten),
      CASE(the_timeline_of_a_closed_cache_is_only_read), CASE(wrong_arguments),
      CASE(events_without_a_device), CASE(a_forked_child_is_refused));
