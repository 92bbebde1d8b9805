/*
 * A prefill worker pushes a KV cache to a decode worker, layer by layer, with transfers and notifications of ferry.h; both
 * have the same layout. Each of ferry's languages has this program; any two can talk. kv_handoff.c is the program of the
 * KV layer, which does the bookkeeping, and arranges the cache as the decode worker has it.
 *
 *   handoff decode                        prints "ADDRESS host:port", and OK when it has a whole cache
 *   handoff prefill HOST:PORT [DIES_IN]   pushes a cache; with DIES_IN it kills itself while that layer moves
 *
 * cc -std=c99 handoff.c -lferry
 */
#include <ferry.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND UINT64_C(1000000000)
enum { LAYERS = 64, BLOCKS = 16, BLOCK_BYTES = 16384, LAYER_BYTES = BLOCKS * BLOCK_BYTES };

static ferry_error error = FERRY_ERROR_INIT;
static ferry_engine *engine;

/* If a call has failed, prints the reason and exits. */
static void must(ferry_status status, const char *what)
{
    if (status == FERRY_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, ferry_status_name(status), status < 0 ? error.message : "not in time");
    exit(1);
}

static unsigned char content(size_t layer, size_t i) { return (unsigned char)(layer * 37 + i * 11); }

static void compute(unsigned char *cache, size_t layer)
{
    for (size_t i = 0; i < LAYER_BYTES; i++) cache[layer * LAYER_BYTES + i] = content(layer, i);
}

static void check(const unsigned char *cache, size_t layer, const char *whose)
{
    for (size_t i = 0; i < LAYER_BYTES; i++) {
        if (cache[layer * LAYER_BYTES + i] == content(layer, i)) continue;
        fprintf(stderr, "layer %zu is wrong in the %s cache\n", layer, whose);
        exit(1);
    }
}

static unsigned char *allocate(void)
{
    ferry_alloc_options options = FERRY_ALLOC_OPTIONS_INIT;
    ferry_region region;
    void *memory;
    options.access = FERRY_ACCESS_REMOTE_READ | FERRY_ACCESS_REMOTE_WRITE;
    options.name = "kv";
    must(ferry_memory_alloc(engine, LAYERS * LAYER_BYTES, &options, &memory, &region, &error), "alloc");
    return memory;
}

/* Returns the places of all layers, here and in the peer's cache. */
static ferry_uniform_blocks both(ferry_peer peer, const unsigned char *cache)
{
    ferry_region_info remote = FERRY_REGION_INFO_INIT;
    ferry_uniform_blocks layers = FERRY_UNIFORM_BLOCKS_INIT;
    must(ferry_peer_region(engine, peer, "kv", &remote, &error), "region");
    layers.layer_count = LAYERS;
    layers.local_base = (uint64_t)(uintptr_t)cache;
    layers.remote_base = remote.address;
    layers.remote_region = remote.region;
    layers.local_layer_stride = layers.remote_layer_stride = LAYER_BYTES;
    layers.block_bytes = BLOCK_BYTES;
    layers.pair_count = BLOCKS;
    return layers;
}

static ferry_event next(ferry_queue queue)
{
    ferry_event event;
    size_t count;
    must(ferry_queue_wait(engine, queue, 60 * SECOND, &event, sizeof event, 1, &count, &error), "an event");
    return event;
}

static int says(const ferry_event *event, const char *text)
{
    return event->kind == FERRY_EVENT_NOTIFICATION && event->data_length == strlen(text) &&
           memcmp(event->data, text, event->data_length) == 0;
}

static void pull(ferry_peer peer)
{
    unsigned char *copy = allocate();
    ferry_uniform_blocks all = both(peer, copy);
    ferry_transfer transfer;
    must(ferry_transfer_submit_uniform(engine, peer, FERRY_OP_READ, &all, NULL, &transfer, &error), "submit");
    must(ferry_transfer_wait(engine, transfer, FERRY_FOREVER, NULL, &error), "pull");
    for (size_t layer = 0; layer < LAYERS; layer++) check(copy, layer, "pulled");
    must(ferry_notify(engine, peer, "done", 4, 0, &error), "notify");
}

static void decode(void)
{
    unsigned char *cache = allocate();
    ferry_queue queue;
    ferry_peer prefill = 0;
    char address[300], text[32];
    size_t length, come = 0;
    const uint32_t what = FERRY_QUEUE_NOTIFICATIONS | FERRY_QUEUE_PEERS | FERRY_QUEUE_PEER_STATES;
    must(ferry_queue_create(engine, what, 8, &queue, &error), "queue");
    must(ferry_engine_address(engine, address, sizeof address, &length, &error), "address");
    printf("ADDRESS %s\n", address);
    fflush(stdout);
    for (;;) {
        ferry_event event = next(queue);
        if (event.kind == FERRY_EVENT_PEER_UP) {
            prefill = event.peer;
            come = 0;
        } else if (says(&event, "pull")) {
            ferry_event_release(&event);
            break;
        } else if (event.kind == FERRY_EVENT_NOTIFICATION) {
            /* Every byte of the layer is here: the notification comes behind the data. */
            snprintf(text, sizeof text, "%.*s", (int)event.data_length, (const char *)event.data);
            check(cache, strtoul(text + strlen("layer "), NULL, 10) % LAYERS, "pushed");
            come++;
        } else if (event.peer == prefill && event.kind != FERRY_EVENT_LATE_APPLY) { /* PEER_DOWN, or PEER_LOST */
            /* After the fence nothing of the dead worker lands in the cache: the next one may have it. */
            must(ferry_peer_fence(engine, prefill, 10 * SECOND, &error), "fence");
            printf("LOST after %zu layers: %.*s\n", come, (int)event.data_length, (const char *)event.data);
            fflush(stdout);
            prefill = 0;
        }
        ferry_event_release(&event);
    }
    if (come != LAYERS) {
        fprintf(stderr, "%zu layers of %d have come\n", come, LAYERS);
        exit(1);
    }
    pull(prefill);
}

static void prefill(const char *address, size_t dies_in)
{
    unsigned char *cache = allocate();
    ferry_transfer_options options = FERRY_TRANSFER_OPTIONS_INIT;
    ferry_transfer pushes[LAYERS];
    ferry_uniform_blocks one;
    ferry_peer peer;
    ferry_queue queue;
    ferry_event event;
    char told[32];
    must(ferry_queue_create(engine, FERRY_QUEUE_NOTIFICATIONS, 8, &queue, &error), "queue");
    must(ferry_peer_connect(engine, address, 10 * SECOND, &peer, &error), "connect");
    one = both(peer, cache);
    one.layer_count = 1;
    for (size_t layer = 0; layer < LAYERS; layer++) {
        compute(cache, layer);
        one.first_layer = layer;
        options.notify = told;
        options.notify_length = (size_t)snprintf(told, sizeof told, "layer %zu", layer);
        must(ferry_transfer_submit_uniform(engine, peer, FERRY_OP_WRITE, &one, &options, &pushes[layer], &error), "push");
        if (layer == dies_in) raise(SIGKILL);
    }
    must(ferry_transfer_wait_all(engine, pushes, LAYERS, FERRY_FOREVER, NULL, &error), "push");
    must(ferry_notify(engine, peer, "pull", 4, 0, &error), "notify");
    event = next(queue);
    if (!says(&event, "done")) {
        fputs("the decoder is not done\n", stderr);
        exit(1);
    }
    ferry_event_release(&event);
}

int main(int argc, char **argv)
{
    must(ferry_engine_open(NULL, &engine, &error), "open");
    if (argc == 2 && strcmp(argv[1], "decode") == 0) {
        decode();
    } else if ((argc == 3 || argc == 4) && strcmp(argv[1], "prefill") == 0) {
        prefill(argv[2], argc == 4 ? strtoul(argv[3], NULL, 10) : LAYERS);
    } else {
        fputs("usage: handoff decode | prefill HOST:PORT [DIES_IN]\n", stderr);
        return 1;
    }
    must(ferry_engine_close(engine, 10 * SECOND, &error), "close");
    ferry_engine_free(engine);
    puts("OK");
    return 0;
}
