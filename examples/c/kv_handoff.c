/*
 * Two prefill ranks hand the KV cache of a sequence to a decode rank that arranges it otherwise, by ferry_kv.h. Each of
 * ferry's languages has this program; any three can talk. handoff.c does such a thing with transfers alone.
 *
 *   kv_handoff prefill RANK               prints "ADDRESS host:port", reads an id, and offers its heads layer by layer
 *   kv_handoff decode ADDRESS0 ADDRESS1   prints "ID hex", takes, and checks the bytes; exits with 3 if the take fails
 *
 * cc -std=c99 kv_handoff.c -lferry
 */
#define _POSIX_C_SOURCE 200809L
#include <ferry_kv.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 32, HEADS = 4, BLOCKS = 16, BLOCK_TOKENS = 16, TOKENS = BLOCKS * BLOCK_TOKENS, ELEMENTS = 64 };

static ferry_error error = FERRY_ERROR_INIT;
static ferry_engine *engine;
static ferry_kv_cache *cache;
static int prefills;
static uint32_t rank, heads, blocks[BLOCKS]; /* this rank's heads, and the sequence's blocks */
static size_t layer_size; /* in elements */
static ferry_kv_id id;
static void *memory;

/* If a call has failed, prints the reason and exits. */
#define MUST(call) must(call, #call)
static void must(ferry_status status, const char *call)
{
    if (status == FERRY_OK) return;
    fprintf(stderr, "%s: %s: %s\n", call, ferry_status_name(status), status < 0 ? error.message : "");
    exit(1);
}

/* The prefill ranks share the four heads. The decode rank has all of them, and the sequence's blocks in reverse. */
static void open_rank(void)
{
    const char *order = prefills ? "block pair head token element" : "block pair token head element";
    const uint64_t shape[] = {BLOCKS, 2, prefills ? heads : BLOCK_TOKENS, prefills ? BLOCK_TOKENS : heads, ELEMENTS};
    ferry_kv_tensor tensor = {sizeof tensor, sizeof(uint16_t), 0, order, 5, shape, NULL};
    const ferry_kv_group group = {sizeof group, FERRY_KV_GROUP_FULL, BLOCK_TOKENS, 0};
    ferry_kv_memory range = {sizeof range, 0, 0, 0, LAYERS * layer_size * sizeof(uint16_t)};
    ferry_kv_layout_desc desc = FERRY_KV_LAYOUT_DESC_INIT;
    ferry_kv_layer layers[LAYERS];
    ferry_kv_layout *layout;
    char names[LAYERS][16];
    MUST(ferry_engine_open(NULL, &engine, &error));
    MUST(ferry_memory_alloc(engine, range.length, NULL, &memory, &range.region, &error));
    range.address = (uint64_t)(uintptr_t)memory;
    desc.model = "example", desc.revision = "1", desc.cache = "fp16", desc.rope = "none";
    desc.tp_rank = rank, desc.tp_size = HEADS / heads, desc.pp_size = 1;
    desc.groups = &group, desc.group_count = 1, desc.layers = layers, desc.layer_count = LAYERS;
    for (size_t i = 0; i < LAYERS; i++) {
        snprintf(names[i], sizeof names[i], "layers.%zu", i);
        layers[i] = (ferry_kv_layer){.struct_size = sizeof *layers, .name = names[i]};
        tensor.address = (uint64_t)(uintptr_t)((uint16_t *)memory + i * layer_size);
        MUST(ferry_kv_layer_of(&desc, &tensor, &layers[i], &error));
    }
    MUST(ferry_kv_layout_new(&desc, &layout, &error));
    MUST(ferry_kv_cache_open(engine, layout, &range, 1, NULL, &cache, &error));
    ferry_kv_layout_free(layout);
    for (uint32_t i = 0; i < BLOCKS; i++) blocks[i] = prefills ? i : BLOCKS - 1 - i;
}

/* What the model computes for an element of a layer in this rank's memory. */
static uint16_t value(size_t layer, size_t i)
{
    const size_t rows = heads * BLOCK_TOKENS, row = i / ELEMENTS % rows, pair = i / ELEMENTS / rows;
    const size_t head = rank * heads + (prefills ? row / BLOCK_TOKENS : row % heads);
    const size_t token = blocks[pair / 2] * BLOCK_TOKENS + (prefills ? row % BLOCK_TOKENS : row / heads);
    return (uint16_t)(layer * 7919 + pair % 2 * 104729 + head * 1299709 + token * 31 + i % ELEMENTS);
}

/* Prints each event up to the terminal one, after which the blocks are this rank's again. 3 if it is a failure. */
static int end(void)
{
    ferry_kv_event event = FERRY_KV_EVENT_INIT;
    ferry_peer_info peer = FERRY_PEER_INFO_INIT;
    MUST(ferry_kv_wait(cache, FERRY_FOREVER, &event, &error));
    if (event.kind == FERRY_KV_EVENT_LAYERS) return printf("LAYERS %u\n", event.layers), end();
    if (event.status == FERRY_OK) return puts(ferry_kv_event_name(event.kind)), 0;
    printf("ended: %s %s", ferry_kv_event_name(event.kind), ferry_status_name(event.status));
    if (event.peer != 0 && ferry_peer_get_info(engine, event.peer, &peer, NULL) == FERRY_OK)
        printf(" by rank %u (peer %s)", event.rank, peer.address);
    printf(": %s; %d tokens valid\n", event.message, (int)event.valid_tokens);
    ferry_kv_event_release(&event);
    return 3;
}

static int prefill(const ferry_kv_block_list *list)
{
    const ferry_kv_offer_options offer = {.struct_size = sizeof offer, .blocks = list, .group_count = 1};
    ferry_status status = FERRY_OK;
    char text[300] = "";
    size_t length;
    MUST(ferry_engine_address(engine, text, sizeof text, &length, &error));
    printf("ADDRESS %s\n", text);
    if (scanf("%299s", text) == 1) MUST(ferry_kv_id_parse(text, &id, &error));
    MUST(ferry_kv_offer(cache, &id, &offer, &error));
    for (uint32_t layer = 0; status == FERRY_OK && layer < LAYERS; layer++) { /* until the offer ends */
        for (size_t i = 0; i < layer_size; i++) ((uint16_t *)memory)[layer * layer_size + i] = value(layer, i);
        nanosleep(&(struct timespec){0, 5000000}, NULL); /* the model's work */
        status = ferry_kv_offer_ready(cache, &id, layer, layer + 1, TOKENS, NULL);
    }
    if (status == FERRY_OK) ferry_kv_offer_seal(cache, &id, TOKENS, NULL);
    return end();
}

static int decode(const ferry_kv_block_list *list, char **addresses)
{
    ferry_peer peers[2];
    ferry_kv_take_options take = {.struct_size = sizeof take, .producers = peers, .producer_count = 2, .blocks = list,
                                  .group_count = 1, .tokens = TOKENS, .flags = FERRY_KV_TAKE_LAYERS};
    char text[FERRY_KV_ID_TEXT_BYTES];
    for (int i = 0; i < 2; i++) MUST(ferry_peer_connect(engine, addresses[i], FERRY_FOREVER, &peers[i], &error));
    MUST(ferry_kv_id_new(&id, &error));
    MUST(ferry_kv_id_format(&id, text, sizeof text, &error));
    MUST(ferry_kv_take(cache, &id, &take, &error));
    printf("ID %s\n", text);
    int status = end();
    for (size_t i = 0; status == 0 && i < LAYERS * layer_size; i++)
        status = ((uint16_t *)memory)[i] != value(i / layer_size, i % layer_size);
    return status;
}

int main(int argc, char **argv)
{
    ferry_kv_block_list list = {sizeof list, 0, 0, blocks, BLOCKS};
    prefills = argc == 3;
    if (!prefills && argc != 4) return fputs("usage: prefill RANK | decode ADDRESS0 ADDRESS1\n", stderr), 2;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    rank = prefills && argv[2][0] == '1', heads = prefills ? HEADS / 2 : HEADS;
    layer_size = (size_t)2 * TOKENS * heads * ELEMENTS;
    open_rank();
    const int status = prefills ? prefill(&list) : decode(&list, argv + 2);
    MUST(ferry_kv_cache_close(cache, FERRY_FOREVER, &error));
    ferry_kv_cache_free(cache);
    ferry_engine_free(engine);
    return status;
}
