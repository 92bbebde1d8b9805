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
#include <ferry.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND UINT64_C(1000000000)
enum { BYTES = 1 << 20, PATIENCE_S = 30 };

static ferry_error error = FERRY_ERROR_INIT;

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
    ferry_alloc_options options = FERRY_ALLOC_OPTIONS_INIT;
    ferry_region region;
    void *memory;
    options.access = FERRY_ACCESS_REMOTE_READ | FERRY_ACCESS_REMOTE_WRITE;
    options.name = name;
    must(ferry_memory_alloc(engine, BYTES, &options, &memory, &region, &error), "alloc");
    return memory;
}

/* Waits for an event of this kind, and with this text unless it is NULL; returns 0 if none came in time. Each event may
   take the whole time: of other events there are few. */
static int await(ferry_engine *engine, ferry_queue queue, uint32_t kind, const char *text, int timeout_s)
{
    for (;;) {
        ferry_event event;
        size_t count;
        int found;
        ferry_status status = ferry_queue_wait(engine, queue, timeout_s * SECOND, &event, sizeof event, 1, &count, &error);
        if (status == FERRY_PENDING) return 0;
        must(status, "wait");
        found = event.kind == kind
            && (text == NULL
                || (event.data_length == strlen(text) && memcmp(event.data, text, event.data_length) == 0));
        ferry_event_release(&event);
        if (found) return 1;
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
    ferry_region_info region = FERRY_REGION_INFO_INIT;
    ferry_transfer_options options = FERRY_TRANSFER_OPTIONS_INIT;
    ferry_request all;
    ferry_peer peer;
    must(ferry_peer_connect(engine, address, PATIENCE_S * SECOND, &peer, &error), "connect");
    must(ferry_peer_region(engine, peer, "exchange", &region, &error), "region");
    if (region.length != BYTES) fail("the region is not of 1 MiB");
    all.local = (uint64_t)(uintptr_t)memory;
    all.remote = region.address;
    all.length = BYTES;
    all.remote_region = region.region;
    must(ferry_read(engine, peer, &all, 1, NULL, NULL, &error), "read");
    check(memory, first);
    fill(memory, second);
    options.notify = "done";
    options.notify_length = 4;
    must(ferry_write(engine, peer, &all, 1, &options, NULL, &error), "write");
    puts("OK");
}

int main(int argc, char **argv)
{
    ferry_engine *engine;
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
