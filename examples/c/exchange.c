/*
 * Two programs exchange a MiB by READ and WRITE. Each of ferry's languages has this example, and any two of them can
 * talk.
 *
 *   exchange serve              prints "ADDRESS host:port", waits for "done", checks its memory
 *   exchange connect HOST:PORT  reads and checks the server's memory, overwrites it and notifies "done"
 *
 * Each prints OK and exits with 0, or prints the reason and exits with 1.
 *
 * cc -std=c99 exchange.c -lferry
 */
#define _POSIX_C_SOURCE 200809L
#include <ferry.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECOND UINT64_C(1000000000)
enum { BYTES = 1 << 20, PATIENCE_S = 30, REGIONS_MAX = 64 };

static ferry_error error;

/* The bytes of the server at the start, and the bytes that the client writes. */
static unsigned char first(size_t i) { return (unsigned char)(i * 7 + 3); }
static unsigned char second(size_t i) { return (unsigned char)(i * 11 + 5); }

static void fail(const char *why)
{
    fprintf(stderr, "%s\n", why);
    exit(1);
}

/* If a call has failed, prints the reason and exits. */
static void must(ferry_status status, const char *what)
{
    if (status == FERRY_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, ferry_status_name(status), error.message);
    exit(1);
}

static void fill(unsigned char *memory, unsigned char (*pattern)(size_t))
{
    for (size_t i = 0; i < BYTES; i++) memory[i] = pattern(i);
}

static void check(const unsigned char *memory, unsigned char (*pattern)(size_t))
{
    for (size_t i = 0; i < BYTES; i++) {
        if (memory[i] == pattern(i)) continue;
        fprintf(stderr, "byte %zu is %d, not %d\n", i, memory[i], pattern(i));
        exit(1);
    }
}

static unsigned char *allocate(ferry_engine *engine, const char *name)
{
    ferry_alloc_options options;
    ferry_region region;
    void *memory;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.access = FERRY_ACCESS_REMOTE_READ | FERRY_ACCESS_REMOTE_WRITE;
    options.name = name;
    must(ferry_memory_alloc(engine, BYTES, &options, &memory, &region, &error), "alloc");
    return memory;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits for an event of this kind, and with this text unless it is NULL; returns 0 if none came in time. */
static int await(ferry_engine *engine, ferry_queue queue, uint32_t kind, const char *text, int timeout_s)
{
    struct pollfd entry = {-1, POLLIN, 0};
    int64_t end_ms = now_ms() + timeout_s * 1000;
    must(ferry_queue_eventfd(engine, queue, &entry.fd, &error), "eventfd");
    for (;;) {
        ferry_event event;
        size_t count;
        int64_t left_ms = end_ms - now_ms();
        must(ferry_queue_drain(engine, queue, &event, sizeof event, 1, &count, &error), "drain");
        if (count == 1) {
            int found = event.kind == kind
                && (text == NULL
                    || (event.data_length == strlen(text) && memcmp(event.data, text, event.data_length) == 0));
            ferry_event_release(&event);
            if (found) return 1;
        } else if (left_ms <= 0 || poll(&entry, 1, (int)left_ms) <= 0) {
            return 0;
        }
    }
}

static void serve(ferry_engine *engine)
{
    unsigned char *memory = allocate(engine, "exchange");
    ferry_queue queue;
    char address[300];
    size_t length;
    fill(memory, first);
    must(ferry_queue_create(engine, FERRY_QUEUE_NOTIFICATIONS | FERRY_QUEUE_PEERS, 8, &queue, &error), "queue");
    must(ferry_engine_address(engine, address, sizeof address, &length, &error), "address");
    printf("ADDRESS %s\n", address);
    fflush(stdout);
    if (!await(engine, queue, FERRY_EVENT_NOTIFICATION, "done", PATIENCE_S)) fail("nobody sent \"done\"");
    check(memory, second);
    puts("OK");
    /* The client must learn that its transfer is done before this engine closes; the client ends the session. */
    await(engine, queue, FERRY_EVENT_PEER_LOST, NULL, 5);
}

static void use(ferry_engine *engine, const char *address)
{
    unsigned char *memory = allocate(engine, NULL);
    ferry_region_info regions[REGIONS_MAX];
    ferry_transfer_options options;
    ferry_request all;
    ferry_peer peer;
    size_t count, found = 0;
    must(ferry_peer_connect(engine, address, PATIENCE_S * SECOND, &peer, &error), "connect");
    must(ferry_peer_regions(engine, peer, regions, sizeof regions[0], REGIONS_MAX, &count, &error), "regions");
    if (count > REGIONS_MAX) count = REGIONS_MAX;
    while (found < count && strcmp(regions[found].name, "exchange") != 0) found++;
    if (found == count) fail("the peer has no region named \"exchange\"");
    if (regions[found].length != BYTES) fail("the region is not of 1 MiB");
    all.local = (uint64_t)(uintptr_t)memory;
    all.remote = regions[found].address;
    all.length = BYTES;
    all.remote_region = regions[found].region;
    must(ferry_read(engine, peer, &all, 1, NULL, NULL, &error), "read");
    check(memory, first);
    fill(memory, second);
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.notify = "done";
    options.notify_length = 4;
    must(ferry_write(engine, peer, &all, 1, &options, NULL, &error), "write");
    puts("OK");
}

int main(int argc, char **argv)
{
    ferry_engine *engine;
    error.struct_size = sizeof error;
    must(ferry_engine_open(NULL, &engine, &error), "open");
    if (argc == 2 && strcmp(argv[1], "serve") == 0) {
        serve(engine);
    } else if (argc == 3 && strcmp(argv[1], "connect") == 0) {
        use(engine, argv[2]);
    } else {
        fputs("usage: exchange serve | exchange connect HOST:PORT\n", stderr);
        return 1;
    }
    must(ferry_engine_close(engine, 10 * SECOND, &error), "close");
    ferry_engine_free(engine);
    return 0;
}
