/*
 * Wrong arguments of the caches, offers and takes of ferry_kv.h: each call fails, names the argument and does nothing.
 * A closed cache and a forked child refuse each call.
 */
#define _POSIX_C_SOURCE 200809L
#include "arguments.h"
#include "every_call.h"
#include "kv_ranks.h"

#include <sys/wait.h>
#include <unistd.h>

/* Kept reachable, so that valgrind does not report the memory that a child leaves alone as lost. */
static kv_rank rank;
static ferry_kv_block_list list;
static ferry_kv_offer_options offer;
static ferry_kv_take_options take;
static const ferry_peer nobody[] = {77};

/* Opens a rank, and describes an offer and a take that are in order, but for the take's peer. */
static void open_rank(void)
{
    const ferry_kv_offer_options empty = FERRY_KV_OFFER_OPTIONS_INIT;
    rank = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16);
    list = kv_list(&rank, 0, 4);
    offer = empty;
    offer.blocks = &list;
    offer.group_count = 1;
    take = kv_take_options(&list, nobody, 1, 64, FERRY_KV_MODE_AUTO);
}

static void null_pointers(void)
{
    const ferry_kv_id id = kv_new_id();
    ferry_kv_cache *cache = NULL;
    ferry_kv_event event = FERRY_KV_EVENT_INIT;
    ferry_kv_state state = FERRY_KV_STATE_INIT;
    size_t count = 7;
    int fd = -7;
    open_rank();
#define OPEN(engine, layout, memory, out) ferry_kv_cache_open(engine, layout, memory, 1, NULL, out, &error)
    CHECK_NULL(OPEN(NULL, rank.cache.layout, &rank.memory, &cache), "engine");
    CHECK_NULL(OPEN(rank.engine, NULL, &rank.memory, &cache), "layout");
    CHECK_NULL(OPEN(rank.engine, rank.cache.layout, NULL, &cache), "memory");
    CHECK_NULL(OPEN(rank.engine, rank.cache.layout, &rank.memory, NULL), "out_cache");
#undef OPEN
    CHECK_NULL(ferry_kv_cache_close(NULL, 0, &error), "cache");
    CHECK_NULL(ferry_kv_id_new(NULL, &error), "out_id");
    CHECK_NULL(ferry_kv_offer(NULL, &id, &offer, &error), "cache");
    CHECK_NULL(ferry_kv_offer(rank.kv, NULL, &offer, &error), "id");
    CHECK_NULL(ferry_kv_offer(rank.kv, &id, NULL, &error), "options");
    CHECK_NULL(ferry_kv_offer_extend(NULL, &id, &list, 1, &error), "cache");
    CHECK_NULL(ferry_kv_offer_extend(rank.kv, NULL, &list, 1, &error), "id");
    CHECK_NULL(ferry_kv_offer_extend(rank.kv, &id, NULL, 1, &error), "blocks");
    CHECK_NULL(ferry_kv_offer_ready(NULL, &id, 0, 1, 1, &error), "cache");
    CHECK_NULL(ferry_kv_offer_ready(rank.kv, NULL, 0, 1, 1, &error), "id");
    CHECK_NULL(ferry_kv_offer_seal(NULL, &id, 1, &error), "cache");
    CHECK_NULL(ferry_kv_offer_seal(rank.kv, NULL, 1, &error), "id");
    CHECK_NULL(ferry_kv_offer_retract(NULL, &id, 0, 0, &error), "cache");
    CHECK_NULL(ferry_kv_offer_retract(rank.kv, NULL, 0, 0, &error), "id");
    CHECK_NULL(ferry_kv_offer_retract_window(NULL, &id, 0, 0, 0, &error), "cache");
    CHECK_NULL(ferry_kv_offer_retract_window(rank.kv, NULL, 0, 0, 0, &error), "id");
    CHECK_NULL(ferry_kv_offer_cancel(NULL, &id, &error), "cache");
    CHECK_NULL(ferry_kv_offer_cancel(rank.kv, NULL, &error), "id");
    CHECK_NULL(ferry_kv_reclaim(NULL, 1, &count, &error), "cache");
    CHECK_NULL(ferry_kv_reclaim(rank.kv, 1, NULL, &error), "out_freed");
    CHECK_NULL(ferry_kv_take(NULL, &id, &take, &error), "cache");
    CHECK_NULL(ferry_kv_take(rank.kv, NULL, &take, &error), "id");
    CHECK_NULL(ferry_kv_take(rank.kv, &id, NULL, &error), "options");
    CHECK_NULL(ferry_kv_take_cancel(NULL, &id, &error), "cache");
    CHECK_NULL(ferry_kv_take_cancel(rank.kv, NULL, &error), "id");
    CHECK_NULL(ferry_kv_get_state(NULL, &id, &state, &error), "cache");
    CHECK_NULL(ferry_kv_get_state(rank.kv, NULL, &state, &error), "id");
    CHECK_NULL(ferry_kv_get_state(rank.kv, &id, NULL, &error), "out_state");
    CHECK_NULL(ferry_kv_unfenced_blocks(NULL, &count, &error), "cache");
    CHECK_NULL(ferry_kv_unfenced_blocks(rank.kv, NULL, &error), "out_count");
    CHECK_NULL(ferry_kv_poll(NULL, &event, &error), "cache");
    CHECK_NULL(ferry_kv_poll(rank.kv, NULL, &error), "out_event");
    CHECK_NULL(ferry_kv_wait(NULL, 0, &event, &error), "cache");
    CHECK_NULL(ferry_kv_wait(rank.kv, FERRY_FOREVER, NULL, &error), "out_event");
    CHECK_NULL(ferry_kv_fd(NULL, &fd, &error), "cache");
    CHECK_NULL(ferry_kv_fd(rank.kv, NULL, &error), "out_fd");
    CHECK(cache == NULL && count == 7 && fd == -7);
    kv_rank_close(&rank);
}

/* Opens a second cache, which would be BUSY if everything else were right, with one thing changed. */
static void memory_and_options_of_a_cache(void)
{
    ferry_kv_memory memory[2];
    ferry_kv_cache_options options = FERRY_KV_CACHE_OPTIONS_INIT;
    ferry_kv_cache *cache = NULL;
    size_t count = 2;
    open_rank();
#define OPEN ferry_kv_cache_open(rank.engine, rank.cache.layout, memory, count, &options, &cache, &error)
    memory[0] = memory[1] = rank.memory;
    CHECK_NAMES(OPEN, FERRY_ERR_BUSY, "channel 1");
    memory[1].reserved = 1;
    CHECK_BAD(OPEN, "memory[1].reserved");
    memory[1] = rank.memory;
    memory[1].struct_size = 24;
    CHECK_BAD(OPEN, "memory[1].struct_size is 24");
    memory[1] = rank.memory;
    memory[1].region = rank.memory.region + 1000;
    error = new_error();
    CHECK(OPEN < 0);
    CHECK_MESSAGE(error, "memory[1].region");
    memory[1] = rank.memory;
    memory[0].length--;
    count = 1;
    CHECK_BAD(OPEN, "memory: none has layer model.layers.1.attn");
    memory[0] = rank.memory;
    memory[0].address++;
    CHECK_BAD(OPEN, "memory: none has layer model.layers.0.attn");
    count = 1025;
    CHECK_NAMES(OPEN, FERRY_ERR_LIMIT, "memory has 1025 entries");
    count = 0;
    CHECK_BAD(OPEN, "memory: none has layer");
    options.struct_size = 7;
    CHECK_BAD(OPEN, "options.struct_size is 7");
#undef OPEN
    CHECK(cache == NULL);
    kv_rank_close(&rank);
}

/* Calls with one thing changed; `restore` undoes the change. */
#define WRONG(call, change, expected, part, restore)                                               \
    do {                                                                                           \
        change;                                                                                    \
        CHECK_NAMES(call, expected, part);                                                         \
        restore;                                                                                   \
    } while (0)

static void options_of_an_offer(void)
{
    const ferry_kv_id id = kv_new_id();
    uint32_t ids[] = {1, 2, 3, 4};
    open_rank();
    list.blocks = ids;
#define OFFER ferry_kv_offer(rank.kv, &id, &offer, &error)
#define REFUSED(change, part, restore) WRONG(OFFER, change, FERRY_ERR_INVALID, part, restore)
    REFUSED(offer.struct_size--, "options.struct_size is 47", offer.struct_size++);
    REFUSED(offer.reserved = 1, "options.reserved", offer.reserved = 0);
    REFUSED(offer.takers = 65, "takers: 65 is not 1 to 64", offer.takers = 0);
    REFUSED(offer.blocks = NULL, "options.blocks is NULL", offer.blocks = &list);
    REFUSED(offer.group_count = 0, "blocks: 0 lists, and the layout has 1 groups", offer.group_count = 1);
    REFUSED(offer.only_count = 1, "options.only is NULL", offer.only_count = 0);
    REFUSED(list.struct_size--, "options.blocks[0].struct_size", list.struct_size++);
    REFUSED(list.reserved = 1, "options.blocks[0].reserved", list.reserved = 0);
    REFUSED(list.blocks = NULL, "options.blocks[0].blocks is NULL", list.blocks = ids);
    REFUSED(list.first_token = 8, "blocks[0].first_token: 8", list.first_token = 0);
    REFUSED(ids[3] = 1, "blocks[0]: block 1 is there twice", ids[3] = 4);
    REFUSED(ids[3] = KV_BLOCKS, "blocks[0]: block 40 is beyond the 40 blocks", ids[3] = 4);
    WRONG(OFFER, offer.group_count = 65, FERRY_ERR_LIMIT, "options.blocks has 65", offer.group_count = 1);
    WRONG(OFFER, offer.only_count = UINT64_MAX, FERRY_ERR_LIMIT, "options.only has", offer.only_count = 0);
    WRONG(OFFER, list.block_count = UINT64_MAX, FERRY_ERR_LIMIT, "options.blocks[0] has", list.block_count = 4);
    CHECK(kv_state(&rank, &id).kind == FERRY_KV_STATE_UNKNOWN);
    CHECK_OK(OFFER);
    CHECK_BAD(OFFER, "is in use");
#undef REFUSED
#undef OFFER
    CHECK_BAD(ferry_kv_offer_extend(rank.kv, &id, &list, 1, &error), "blocks[0]: block 1 is there twice");
    CHECK_BAD(ferry_kv_offer_extend(rank.kv, &id, &list, 0, &error), "blocks: 0 lists");
    CHECK_BAD(ferry_kv_offer_ready(rank.kv, &id, 1, 1, 16, &error), "layers: 1 to 1");
    CHECK_BAD(ferry_kv_offer_ready(rank.kv, &id, 0, 3, 16, &error), "layers: 0 to 3");
    CHECK_BAD(ferry_kv_offer_ready(rank.kv, &id, 0, 1, 65, &error), "tokens: the tokens 0 to 65");
    CHECK_BAD(ferry_kv_offer_ready(rank.kv, &id, 1, UINT32_MAX, 16, &error), "layer 0 is ready up to token 0");
    CHECK_OK(ferry_kv_offer_ready(rank.kv, &id, 0, UINT32_MAX, 16, &error));
    CHECK_BAD(ferry_kv_offer_ready(rank.kv, &id, 0, 1, 16, &error), "ready up to token 16 already");
    CHECK_BAD(ferry_kv_offer_seal(rank.kv, &id, 15, &error), "tokens: 15 are less than the 16");
    CHECK_OK(ferry_kv_offer_seal(rank.kv, &id, 64, &error));
    CHECK_BAD(ferry_kv_offer_seal(rank.kv, &id, 64, &error), "is sealed");
    CHECK_BAD(ferry_kv_take_cancel(rank.kv, &id, &error), "is no take");
    CHECK_OK(ferry_kv_offer_cancel(rank.kv, &id, NULL));
    kv_expect(&rank, &id, FERRY_KV_EVENT_CANCELLED);
    CHECK_BAD(ferry_kv_offer(rank.kv, &id, &offer, &error), "has ended");
    CHECK_BAD(ferry_kv_take(rank.kv, &id, &take, &error), "producers[0]");
    kv_rank_close(&rank);
}

static void options_of_a_take(void)
{
    const ferry_kv_id id = kv_new_id(), used = kv_new_id();
    kv_rank other = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16);
    uint32_t ids[] = {1, 2, 3, 4};
    ferry_peer peers[2];
    open_rank();
    list.blocks = ids;
    peers[0] = peers[1] = kv_connect(&rank, &other);
    take.producers = peers;
#define TAKE ferry_kv_take(rank.kv, &id, &take, &error)
#define REFUSED(change, part, restore) WRONG(TAKE, change, FERRY_ERR_INVALID, part, restore)
    REFUSED(take.struct_size--, "options.struct_size is 79", take.struct_size++);
    REFUSED(take.reserved = 1, "options.reserved", take.reserved = 0);
    REFUSED(take.mode = 3, "options.mode is 3", take.mode = 0);
    REFUSED(take.flags = 2, "options.flags", take.flags = 0);
    REFUSED(take.producers = NULL, "options.producers is NULL", take.producers = peers);
    REFUSED(take.producer_count = 0, "producers: the list is empty", take.producer_count = 1);
    REFUSED(take.blocks = NULL, "options.blocks is NULL", take.blocks = &list);
    REFUSED(take.group_count = 0, "blocks: 0 lists", take.group_count = 1);
    REFUSED(take.skip_tokens = 65, "skip_tokens: 65 are more than the 64", take.skip_tokens = 0);
    REFUSED(take.tokens = 65, "tokens: the tokens 0 to 65 need more", take.tokens = 64);
    REFUSED(list.reserved = 1, "options.blocks[0].reserved", list.reserved = 0);
    REFUSED(list.blocks = NULL, "options.blocks[0].blocks is NULL", list.blocks = ids);
    REFUSED(list.first_token = 16, "blocks[0], which begin at the rank's token 16", list.first_token = 0);
    REFUSED(ids[3] = 1, "blocks[0]: block 1 is there twice", ids[3] = 4);
    REFUSED(ids[3] = KV_BLOCKS, "blocks[0]: block 40 is beyond", ids[3] = 4);
    WRONG(TAKE, take.producer_count = 1025, FERRY_ERR_LIMIT, "options.producers has", take.producer_count = 1);
    WRONG(TAKE, list.block_count = 1000001, FERRY_ERR_LIMIT, "options.blocks[0] has", list.block_count = 4);
    error = new_error();
    take.producers = nobody;
    CHECK(TAKE < 0);
    CHECK_MESSAGE(error, "producers[0]");
    take.producers = peers;
    CHECK(kv_state(&rank, &id).kind == FERRY_KV_STATE_UNKNOWN);
    CHECK_OK(TAKE);
    CHECK_BAD(TAKE, "is in use");
    CHECK_OK(ferry_kv_take_cancel(rank.kv, &id, NULL));
    kv_expect(&rank, &id, FERRY_KV_EVENT_CANCELLED);
    CHECK_BAD(TAKE, "has ended");
#undef REFUSED
#undef TAKE
    /* How many ranks the producer has is known later. */
    take.producer_count = 2;
    CHECK_OK(ferry_kv_take(rank.kv, &used, &take, NULL));
    ferry_kv_event event = kv_next(&rank, &used, FERRY_KV_EVENT_FAILED);
    CHECK(event.status == FERRY_ERR_INVALID && strstr(event.message, "producers: 2 peers") != NULL);
    ferry_kv_event_release(&event);
    kv_rank_close(&rank);
    kv_rank_close(&other);
}

/* Outputs of other versions. An event is not lost to a struct that cannot take it. */
static void struct_sizes_of_outputs(void)
{
    const ferry_kv_id id = kv_new_id();
    ferry_kv_state state = FERRY_KV_STATE_INIT;
    struct {
        ferry_kv_event known;
        uint64_t newer;
    } event;
    memset(&event, 0, sizeof event);
    event.newer = 7;
    open_rank();
    CHECK_OK(ferry_kv_offer(rank.kv, &id, &offer, NULL));
    CHECK_OK(ferry_kv_offer_cancel(rank.kv, &id, NULL));
    CHECK_BAD(ferry_kv_poll(rank.kv, &event.known, &error), "out_event.struct_size is 0");
    /* The first version ended before peer. */
    event.known.struct_size = (uint32_t)offsetof(ferry_kv_event, peer) - 1;
    CHECK_BAD(ferry_kv_wait(rank.kv, PATIENCE_NS, &event.known, &error), "out_event.struct_size is 71");
    event.known.struct_size = sizeof event;
    CHECK_OK(ferry_kv_wait(rank.kv, PATIENCE_NS, &event.known, &error));
    CHECK(event.known.struct_size == sizeof event.known && event.newer == 7);
    CHECK(event.known.kind == FERRY_KV_EVENT_CANCELLED);
    ferry_kv_event_release(&event.known);
    state.struct_size--;
    CHECK_BAD(ferry_kv_get_state(rank.kv, &id, &state, &error), "out_state.struct_size is 31");
    kv_rank_close(&rank);
}

static void a_closed_cache_refuses_work(void)
{
    const ferry_kv_id id = kv_new_id();
    size_t count = 7;
    int fd = -1;
    const char *call;
    open_rank();
    CHECK_OK(ferry_kv_cache_close(rank.kv, PATIENCE_NS, NULL));
    call = first_kv_not_closed(rank.kv, &id, &offer, &take);
    if (call != NULL) FAIL("%s", call);
    CHECK(kv_state(&rank, &id).kind == FERRY_KV_STATE_UNKNOWN);
    CHECK_OK(ferry_kv_unfenced_blocks(rank.kv, &count, NULL));
    CHECK_OK(ferry_kv_fd(rank.kv, &fd, NULL));
    CHECK(count == 0 && fd >= 0);
    kv_rank_close(&rank);
}

/* Runs in the child and returns its exit status, 0 for success. Makes only async-signal-safe calls and ferry's. */
static int in_the_child(const ferry_kv_id *id)
{
    ferry_kv_state state = FERRY_KV_STATE_INIT;
    ferry_kv_cache *cache = NULL;
    ferry_kv_id own;
    size_t count = 0;
    int fd = -1;
    const char *call = first_kv_not_closed(rank.kv, id, &offer, &take);
    if (call != NULL) return write(STDOUT_FILENO, call, strlen(call)) < 0 ? 8 : 9;
    if (ferry_kv_get_state(rank.kv, id, &state, NULL) != FERRY_ERR_CLOSED) return 1;
    if (ferry_kv_unfenced_blocks(rank.kv, &count, NULL) != FERRY_ERR_CLOSED) return 2;
    if (ferry_kv_fd(rank.kv, &fd, NULL) != FERRY_ERR_CLOSED) return 3;
    if (ferry_kv_cache_open(rank.engine, rank.cache.layout, &rank.memory, 1, NULL, &cache, NULL) !=
        FERRY_ERR_CLOSED)
        return 4;
    if (ferry_kv_cache_close(rank.kv, FERRY_FOREVER, NULL) != FERRY_OK) return 5;
    ferry_kv_cache_free(rank.kv);
    if (ferry_kv_poll(rank.kv, NULL, NULL) != FERRY_ERR_CLOSED) return 6;
    if (ferry_kv_id_new(&own, NULL) != FERRY_OK) return 7;
    return 0;
}

static void a_forked_child_is_refused(void)
{
    const ferry_kv_id id = kv_new_id();
    int status = -1;
    pid_t child;
    open_rank();
    CHECK_OK(ferry_kv_offer(rank.kv, &id, &offer, NULL));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) leave_child(in_the_child(&id));
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) FAIL("the child ended with %d", WEXITSTATUS(status));
    CHECK(kv_state(&rank, &id).kind == FERRY_KV_STATE_OFFERED);
    CHECK_OK(ferry_kv_offer_cancel(rank.kv, &id, NULL));
    kv_expect(&rank, &id, FERRY_KV_EVENT_CANCELLED);
    kv_rank_close(&rank);
}

/* What a callback of the engine got from calls that wait, and from one that does not. */
static ferry_status in_callback[5];

static void call_from_callback(void *context, const ferry_event *event)
{
    ferry_kv_event out = FERRY_KV_EVENT_INIT;
    (void)event;
    in_callback[0] = ferry_kv_wait(rank.kv, 1, &out, NULL);
    in_callback[1] = ferry_kv_cache_close(rank.kv, FERRY_FOREVER, NULL);
    in_callback[2] = ferry_kv_poll(rank.kv, &out, NULL);
    in_callback[3] = ferry_kv_offer_retract(rank.kv, &out.id, 0, 1, NULL);
    in_callback[4] = ferry_kv_offer_retract_window(rank.kv, &out.id, 0, 0, 1, NULL);
    __atomic_store_n((int *)context, 1, __ATOMIC_RELEASE);
}

static void calls_that_wait_are_refused_inside_a_callback(void)
{
    kv_rank other = kv_rank_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16);
    ferry_queue queue = 0;
    int done = 0;
    open_rank();
    CHECK_OK(ferry_queue_create(rank.engine, FERRY_QUEUE_PEERS, 4, &queue, NULL));
    CHECK_OK(ferry_queue_callback(rank.engine, queue, call_from_callback, &done, NULL));
    kv_connect(&rank, &other);
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) continue;
    CHECK_OK(ferry_queue_callback(rank.engine, queue, NULL, NULL, NULL));
    CHECK(in_callback[0] == FERRY_ERR_BUSY && in_callback[1] == FERRY_ERR_BUSY);
    CHECK(in_callback[2] == FERRY_PENDING);
    CHECK(in_callback[3] == FERRY_ERR_BUSY && in_callback[4] == FERRY_ERR_BUSY);
    kv_rank_close(&rank);
    kv_rank_close(&other);
}

SUITE(kv_handoff_arguments, CASE(null_pointers), CASE(memory_and_options_of_a_cache), CASE(options_of_an_offer),
      CASE(options_of_a_take), CASE(struct_sizes_of_outputs), CASE(a_closed_cache_refuses_work),
      CASE(a_forked_child_is_refused), CASE(calls_that_wait_are_refused_inside_a_callback));
