/* See engines.h. */
#define _POSIX_C_SOURCE 200809L
#include "engines.h"

#include <poll.h>

ferry_error new_error(void)
{
    ferry_error error;
    memset(&error, 0, sizeof error);
    error.struct_size = sizeof error;
    return error;
}

ferry_result new_result(void)
{
    ferry_result result;
    memset(&result, 0, sizeof result);
    result.struct_size = sizeof result;
    return result;
}

ferry_transfer_options new_options(void)
{
    ferry_transfer_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    return options;
}

ferry_engine *open_engine_with(const char *key, const char *value)
{
    ferry_config *config = NULL;
    ferry_engine *engine = NULL;
    ferry_error error = new_error();
    CHECK_OK(ferry_config_new(&config, NULL));
    CHECK_OK(ferry_config_set(config, "workers", "1", NULL));
    if (key != NULL && ferry_config_set(config, key, value, &error) != FERRY_OK)
        FAIL("%s", error.message);
    if (ferry_engine_open(config, &engine, &error) != FERRY_OK) FAIL("%s", error.message);
    ferry_config_free(config);
    return engine;
}

ferry_engine *open_engine(void)
{
    return open_engine_with(NULL, NULL);
}

void end_engine(ferry_engine *engine)
{
    CHECK_OK(ferry_engine_close(engine, PATIENCE_NS, NULL));
    ferry_engine_free(engine);
}

const char *address_of(ferry_engine *engine)
{
    static char address[300];
    size_t length = 0;
    CHECK_OK(ferry_engine_address(engine, address, sizeof address, &length, NULL));
    CHECK(strlen(address) == length);
    return address;
}

pair open_pair_with(size_t length, const char *key, const char *value)
{
    pair pair;
    void *a_memory = NULL, *b_memory = NULL;
    ferry_error error = new_error();
    memset(&pair, 0, sizeof pair);
    pair.length = length;
    pair.a = open_engine();
    pair.b = open_engine_with(key, value);
    CHECK_OK(ferry_memory_alloc(pair.a, length, NULL, &a_memory, &pair.a_region, NULL));
    CHECK_OK(ferry_memory_alloc(pair.b, length, NULL, &b_memory, &pair.b_region, NULL));
    pair.a_memory = a_memory;
    pair.b_memory = b_memory;
    if (ferry_peer_connect(pair.a, address_of(pair.b), PATIENCE_NS, &pair.peer, &error) != FERRY_OK)
        FAIL("%s", error.message);
    return pair;
}

pair open_pair(size_t length)
{
    return open_pair_with(length, NULL, NULL);
}

void end_pair(pair *pair)
{
    end_engine(pair->a);
    end_engine(pair->b);
}

ferry_request range(const pair *pair, size_t a_offset, size_t b_offset, size_t length)
{
    ferry_request request;
    request.local = (uint64_t)(uintptr_t)(pair->a_memory + a_offset);
    request.remote = (uint64_t)(uintptr_t)(pair->b_memory + b_offset);
    request.length = length;
    request.remote_region = pair->b_region;
    return request;
}

void fill(unsigned char *memory, size_t length, uint64_t seed)
{
    for (size_t offset = 0; offset + 8 <= length; offset += 8) {
        uint64_t word = seed << 40 | (offset + 1);
        memcpy(memory + offset, &word, 8);
    }
}

int holds(const unsigned char *memory, size_t offset, size_t length, uint64_t seed, size_t from_offset)
{
    for (size_t step = 0; step + 8 <= length; step += 8) {
        uint64_t expected = seed << 40 | (from_offset + step + 1), word;
        memcpy(&word, memory + offset + step, 8);
        if (word != expected) return 0;
    }
    return 1;
}

int is_zero(const unsigned char *memory, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (memory[i] != 0) return 0;
    return 1;
}

int readable(int fd, int timeout_ms)
{
    struct pollfd entry;
    entry.fd = fd;
    entry.events = POLLIN;
    entry.revents = 0;
    CHECK(poll(&entry, 1, timeout_ms) >= 0);
    return entry.revents == POLLIN;
}

ferry_event next_event(ferry_engine *engine, ferry_queue queue)
{
    int fd = -1;
    CHECK_OK(ferry_queue_fd(engine, queue, &fd, NULL));
    for (;;) {
        ferry_event event;
        size_t count = 0;
        CHECK_OK(ferry_queue_drain(engine, queue, &event, sizeof event, 1, &count, NULL));
        if (count == 1) return event;
        CHECK(readable(fd, 60000));
    }
}

ferry_event next_event_of(ferry_engine *engine, ferry_queue queue, uint32_t kind)
{
    for (;;) {
        ferry_event event = next_event(engine, queue);
        if (event.kind == kind) return event;
        ferry_event_release(&event);
    }
}

ferry_peer only_peer(ferry_engine *engine)
{
    ferry_peer peers[2] = {0, 0};
    size_t count = 0;
    CHECK_OK(ferry_peer_list(engine, peers, 2, &count, NULL));
    CHECK(count == 1);
    return peers[0];
}

void await_regions(ferry_engine *engine, ferry_peer peer, size_t count)
{
    size_t seen = SIZE_MAX;
    while (seen != count) {
        CHECK_OK(ferry_peer_regions(engine, peer, NULL, sizeof(ferry_region_info), 0, &seen, NULL));
        /* The answer to a probe comes after the region updates that were sent before it. */
        if (seen != count) CHECK_OK(ferry_peer_probe(engine, peer, PATIENCE_NS, NULL, NULL));
    }
}

/* Notifications that a peer may send before any is drained (engine/src/limits.rs). */
enum { NOTIFICATIONS_AHEAD = 1024 };

ferry_transfer hold_transfer(const pair *pair, const ferry_transfer_options *options)
{
    ferry_request request = range(pair, 0, 0, 8);
    ferry_transfer_options ahead = new_options(), held = options != NULL ? *options : new_options();
    ferry_transfer transfer = 0;
    ahead.notify = held.notify = "ahead";
    ahead.notify_length = held.notify_length = 5;
    held.deadline_ns = FERRY_FOREVER;
    for (int i = 0; i < NOTIFICATIONS_AHEAD; i++)
        CHECK_OK(ferry_write(pair->a, pair->peer, &request, 1, &ahead, NULL, NULL));
    CHECK_OK(ferry_transfer_submit(pair->a, pair->peer, FERRY_OP_WRITE, &request, 1, &held, &transfer,
                                   NULL));
    CHECK_STATUS(ferry_transfer_wait(pair->a, transfer, 0, NULL, NULL), FERRY_PENDING);
    return transfer;
}

void let_go(const pair *pair)
{
    ferry_queue queue = 0;
    CHECK_OK(ferry_queue_create(pair->b, FERRY_QUEUE_NOTIFICATIONS, 1, &queue, NULL));
    for (int i = 0; i <= NOTIFICATIONS_AHEAD; i++) {
        ferry_event event = next_event(pair->b, queue);
        CHECK(event.kind == FERRY_EVENT_NOTIFICATION && event.data_length == 5);
        CHECK(memcmp(event.data, "ahead", 5) == 0);
        ferry_event_release(&event);
    }
    CHECK_OK(ferry_queue_destroy(pair->b, queue, NULL));
}
