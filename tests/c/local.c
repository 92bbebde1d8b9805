/* The same-host path through the C ABI: two engines that may use no other path. */
#include "engines.h"

enum { LARGE = 3 << 20 };

static pair local_pair(size_t length)
{
    pair pair;
    void *a_memory = NULL, *b_memory = NULL;
    memset(&pair, 0, sizeof pair);
    pair.length = length;
    pair.a = open_engine_with("transports", "local");
    pair.b = open_engine_with("transports", "local");
    CHECK_OK(ferry_memory_alloc(pair.a, length, NULL, &a_memory, &pair.a_region, NULL));
    CHECK_OK(ferry_memory_alloc(pair.b, length, NULL, &b_memory, &pair.b_region, NULL));
    pair.a_memory = a_memory;
    pair.b_memory = b_memory;
    CHECK_OK(ferry_peer_connect(pair.a, address_of(pair.b), PATIENCE_NS, &pair.peer, NULL));
    return pair;
}

static uint64_t bytes_local(ferry_engine *engine)
{
    ferry_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    CHECK_OK(ferry_engine_get_stats(engine, &stats, NULL));
    return stats.bytes_local;
}

static void fill_places(unsigned char *memory, size_t length)
{
    for (size_t i = 0; i < length; i++) memory[i] = (unsigned char)(i * 131 + i / 251);
}

/* Small transfers end in the submitting call, large transfers in pieces. */
static void write_and_read_of_every_size(void)
{
    static const size_t lengths[] = {1, 8, 4095, 4096, 65536, 65537, LARGE};
    pair pair = local_pair(LARGE);
    uint64_t moved = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        ferry_request request = range(&pair, 0, 0, lengths[i]);
        ferry_result result = new_result();
        memset(pair.b_memory, 0, LARGE);
        fill_places(pair.a_memory, LARGE);
        CHECK_OK(ferry_write(pair.a, pair.peer, &request, 1, NULL, &result, NULL));
        CHECK(result.state == FERRY_STATE_DONE && result.transport == FERRY_TRANSPORT_LOCAL);
        CHECK(result.bytes_confirmed == lengths[i] && result.fence == FERRY_FENCE_CONFIRMED);
        CHECK(result.submitted_ns <= result.started_ns && result.started_ns <= result.finished_ns);
        CHECK(memcmp(pair.a_memory, pair.b_memory, lengths[i]) == 0);
        CHECK(is_zero(pair.b_memory + lengths[i], LARGE - lengths[i]));
        memset(pair.a_memory, 0, LARGE);
        CHECK_OK(ferry_read(pair.a, pair.peer, &request, 1, NULL, &result, NULL));
        CHECK(result.transport == FERRY_TRANSPORT_LOCAL);
        CHECK(memcmp(pair.a_memory, pair.b_memory, lengths[i]) == 0);
        CHECK(is_zero(pair.a_memory + lengths[i], LARGE - lengths[i]));
        moved += 2 * lengths[i];
    }
    CHECK(bytes_local(pair.a) == moved && bytes_local(pair.b) == 0);
    end_pair(&pair);
}

/* Between two regions of one engine, whose setting names another transport for peers. */
static void an_engine_moves_between_its_own_regions(void)
{
    ferry_engine *engine = open_engine_with("transports", "tcp");
    void *from = NULL, *to = NULL;
    ferry_region regions[2];
    ferry_peer own = 0, again = 0, listed = 0;
    ferry_peer_info info = {0};
    ferry_result result = new_result();
    size_t count = 1;
    CHECK_OK(ferry_memory_alloc(engine, LARGE, NULL, &from, &regions[0], NULL));
    CHECK_OK(ferry_memory_alloc(engine, LARGE, NULL, &to, &regions[1], NULL));
    CHECK_OK(ferry_engine_own_peer(engine, &own, NULL));
    CHECK_OK(ferry_engine_own_peer(engine, &again, NULL));
    CHECK_OK(ferry_peer_list(engine, &listed, 1, &count, NULL));
    CHECK(own != 0 && own == again && count == 0);
    info.struct_size = sizeof info;
    CHECK_OK(ferry_peer_get_info(engine, own, &info, NULL));
    CHECK(info.state == FERRY_PEER_UP);
    fill_places(from, LARGE);
    for (size_t length = 8; length <= LARGE; length *= LARGE / 8) {
        ferry_request request = {(uintptr_t)from, (uintptr_t)to, length, regions[1]};
        memset(to, 0, LARGE);
        CHECK_OK(ferry_write(engine, own, &request, 1, NULL, &result, NULL));
        CHECK(result.transport == FERRY_TRANSPORT_LOCAL && result.bytes_confirmed == length);
        CHECK(memcmp(from, to, length) == 0 && is_zero((unsigned char *)to + length, LARGE - length));
    }
    CHECK_OK(ferry_peer_probe(engine, own, 0, NULL, NULL));
    CHECK_OK(ferry_peer_fence(engine, own, 0, NULL));
    CHECK_STATUS(ferry_peer_close(engine, own, 0, NULL), FERRY_ERR_INVALID);
    CHECK_OK(ferry_memory_free(engine, regions[0], 0, NULL));
    CHECK_OK(ferry_memory_free(engine, regions[1], 0, NULL));
    end_engine(engine);
}

static void a_try_is_done_at_once_or_not_at_all(void)
{
    pair pair = local_pair(LARGE), tcp = open_pair(4096);
    ferry_request small = range(&pair, 0, 0, 65536), large = range(&pair, 0, 0, 65537), other = range(&tcp, 0, 0, 8);
    ferry_request two[2] = {range(&pair, 0, 0, 8), range(&pair, 8, 8, 8)};
    ferry_transfer_options options = new_options();
    ferry_result result = new_result();
    ferry_error error = new_error();
    fill_places(pair.a_memory, LARGE);
    CHECK_STATUS(ferry_transfer_try(pair.a, pair.peer, FERRY_OP_WRITE, &large, 1, NULL, &result, NULL), FERRY_PENDING);
    CHECK_STATUS(ferry_transfer_try(pair.a, pair.peer, FERRY_OP_WRITE, two, 2, NULL, &result, NULL), FERRY_PENDING);
    CHECK_STATUS(ferry_transfer_try(tcp.a, tcp.peer, FERRY_OP_WRITE, &other, 1, NULL, &result, NULL), FERRY_PENDING);
    options.flags = FERRY_TRANSFER_ORDERED;
    CHECK_STATUS(ferry_transfer_try(pair.a, pair.peer, FERRY_OP_WRITE, &small, 1, &options, &result, NULL),
                 FERRY_PENDING);
    CHECK(result.state == 0 && is_zero(pair.b_memory, LARGE) && bytes_local(pair.a) == 0);
    options.flags = 0;
    options.user_data = 5;
    CHECK_OK(ferry_transfer_try(pair.a, pair.peer, FERRY_OP_WRITE, &small, 1, &options, &result, NULL));
    CHECK(result.state == FERRY_STATE_DONE && result.bytes_confirmed == 65536 && result.user_data == 5);
    CHECK(memcmp(pair.a_memory, pair.b_memory, 65536) == 0 && is_zero(pair.b_memory + 65536, LARGE - 65536));
    memset(pair.a_memory, 0, LARGE);
    CHECK_OK(ferry_transfer_try(pair.a, pair.peer, FERRY_OP_READ, &small, 1, NULL, NULL, NULL));
    CHECK(memcmp(pair.a_memory, pair.b_memory, 65536) == 0);
    CHECK_OK(ferry_queue_create(pair.a, FERRY_QUEUE_TRANSFERS, 1, &options.queue, NULL));
    CHECK_INVALID(ferry_transfer_try(pair.a, pair.peer, FERRY_OP_WRITE, &small, 1, &options, NULL, &error));
    CHECK_MESSAGE(error, "options.queue");
    end_pair(&tcp);
    end_pair(&pair);
}

static unsigned char own[2][LARGE];

static void memory_of_the_caller_s_own(void)
{
    pair pair = local_pair(4096);
    ferry_region there = 0, here = 0;
    ferry_request request;
    ferry_result result = new_result();
    ferry_transfer transfer = 0;
    memset(own, 0, sizeof own);
    fill_places(own[0], LARGE);
    CHECK_OK(ferry_region_register(pair.a, own[0], LARGE, NULL, &here, NULL));
    CHECK_OK(ferry_region_register(pair.b, own[1], LARGE, NULL, &there, NULL));
    request.local = (uint64_t)(uintptr_t)own[0];
    request.remote = (uint64_t)(uintptr_t)own[1];
    request.length = LARGE;
    request.remote_region = there;
    CHECK_OK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, &request, 1, NULL, &transfer, NULL));
    CHECK_OK(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, &result, NULL));
    CHECK(result.transport == FERRY_TRANSPORT_LOCAL && memcmp(own[0], own[1], LARGE) == 0);
    CHECK_OK(ferry_transfer_release(pair.a, transfer, NULL));
    CHECK_OK(ferry_region_unregister(pair.b, there, 0, NULL));
    CHECK_STATUS(ferry_write(pair.a, pair.peer, &request, 1, NULL, &result, NULL), FERRY_ERR_STALE);
    CHECK(result.transport == FERRY_TRANSPORT_LOCAL && result.bytes_confirmed == 0);
    CHECK_OK(ferry_region_unregister(pair.a, here, 0, NULL));
    end_pair(&pair);
}

static void the_path_is_named_and_the_others_too(void)
{
    pair pair = local_pair(4096);
    ferry_path_info paths[8];
    size_t count = 0, chosen = 0;
    CHECK_OK(ferry_peer_paths(pair.a, pair.peer, paths, sizeof paths[0], 8, &count, NULL));
    for (size_t i = 0; i < count; i++) {
        CHECK(paths[i].why[0] != '\0');
        if (paths[i].chosen) {
            chosen++;
            CHECK(paths[i].transport == FERRY_TRANSPORT_LOCAL);
            CHECK(strstr(paths[i].why, "process_vm") != NULL);
        }
        if (paths[i].transport == FERRY_TRANSPORT_TCP) CHECK(strstr(paths[i].why, "allowed") != NULL);
    }
    CHECK(chosen == 1);
    end_pair(&pair);
}

static void a_checksum_needs_something_that_is_sent(void)
{
    pair pair = local_pair(4096);
    ferry_request request = range(&pair, 0, 0, 64);
    ferry_transfer_options options = new_options();
    ferry_error error = new_error();
    options.flags = FERRY_TRANSFER_CHECKSUM;
    CHECK_STATUS(ferry_write(pair.a, pair.peer, &request, 1, &options, NULL, &error), FERRY_ERR_UNAVAILABLE);
    CHECK_MESSAGE(error, "checksums");
    end_pair(&pair);
}

SUITE(local, CASE(write_and_read_of_every_size), CASE(an_engine_moves_between_its_own_regions),
      CASE(a_try_is_done_at_once_or_not_at_all), CASE(memory_of_the_caller_s_own), CASE(the_path_is_named_and_the_others_too),
      CASE(a_checksum_needs_something_that_is_sent));
