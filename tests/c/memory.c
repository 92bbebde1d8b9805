/* Registering, allocating and unregistering memory. */
#define _POSIX_C_SOURCE 200809L
#include "engines.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static unsigned char bytes[4][4096];

static ferry_region_options named(uint32_t access, const char *name)
{
    ferry_region_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.access = access;
    options.name = name;
    return options;
}

static void register_and_unregister(void)
{
    ferry_engine *engine = open_engine();
    ferry_region region = 0;
    CHECK_OK(ferry_region_register(engine, bytes[0], 4096, NULL, &region, NULL));
    CHECK(region != 0);
    CHECK_OK(ferry_region_unregister(engine, region, 0, NULL));
    CHECK_STATUS(ferry_region_unregister(engine, region, 0, NULL), FERRY_ERR_STALE);
    CHECK_STATUS(ferry_region_unregister(engine, region, PATIENCE_NS, NULL), FERRY_ERR_STALE);
    end_engine(engine);
}

static void what_cannot_be_registered(void)
{
    ferry_engine *engine = open_engine();
    ferry_region region = 0, other = 0;
    ferry_error error = new_error();
    ferry_region_options options = named(0, NULL);
    char name[65];
    memset(name, 'n', sizeof name);
    name[64] = '\0';
    CHECK_INVALID(ferry_region_register(engine, bytes[0], 0, NULL, &region, &error));
    CHECK_MESSAGE(error, "length is 0");
    CHECK_INVALID(ferry_region_register(engine, bytes[0], SIZE_MAX, NULL, &region, &error));
    CHECK_MESSAGE(error, "overflows");
    CHECK_INVALID(ferry_region_register(engine, bytes[0], 64, &options, &region, &error));
    CHECK_MESSAGE(error, "access");
    options.access = 4;
    CHECK_INVALID(ferry_region_register(engine, bytes[0], 64, &options, &region, &error));
    options = named(FERRY_ACCESS_REMOTE_READ, name);
    CHECK_INVALID(ferry_region_register(engine, bytes[0], 64, &options, &region, &error));
    CHECK_MESSAGE(error, "64 bytes, more than 63");
    name[63] = '\0';
    CHECK_OK(ferry_region_register(engine, bytes[0], 64, &options, &region, &error));
    CHECK_STATUS(ferry_region_register(engine, bytes[0] + 63, 64, NULL, &other, &error),
                 FERRY_ERR_OVERLAP);
    CHECK(other == 0);
    CHECK_OK(ferry_region_register(engine, bytes[0] + 64, 64, NULL, &other, &error));
    CHECK(other != region);
    end_engine(engine);
}

static void a_batch_is_registered_whole_or_not_at_all(void)
{
    ferry_engine *engine = open_engine();
    void *addresses[3] = {bytes[0], bytes[1], bytes[2]};
    size_t lengths[3] = {4096, 4096, 4096};
    ferry_region regions[3] = {0, 0, 0}, single = 0;
    ferry_error error = new_error();
    addresses[2] = bytes[1] + 4095;
    CHECK_STATUS(ferry_region_register_batch(engine, addresses, lengths, 3, NULL, regions, &error),
                 FERRY_ERR_OVERLAP);
    CHECK(error.request_index == 2 && regions[0] == 0);
    CHECK_OK(ferry_region_register(engine, bytes[0], 4096, NULL, &single, NULL));
    CHECK_OK(ferry_region_unregister(engine, single, 0, NULL));
    addresses[2] = bytes[2];
    CHECK_OK(ferry_region_register_batch(engine, addresses, lengths, 3, NULL, regions, &error));
    for (int i = 0; i < 3; i++) CHECK_OK(ferry_region_unregister(engine, regions[i], 0, NULL));
    end_engine(engine);
}

static void handles_of_others_are_refused(void)
{
    ferry_engine *a = open_engine(), *b = open_engine();
    ferry_region region = 0;
    ferry_queue queue = 0;
    ferry_error error = new_error();
    CHECK_OK(ferry_region_register(a, bytes[0], 4096, NULL, &region, NULL));
    CHECK_OK(ferry_queue_create(a, FERRY_QUEUE_PEERS, 1, &queue, NULL));
    CHECK_STATUS(ferry_region_unregister(b, region, 0, &error), FERRY_ERR_STALE);
    CHECK_MESSAGE(error, "another engine");
    CHECK_INVALID(ferry_region_unregister(a, 0, 0, NULL));
    CHECK_INVALID(ferry_region_unregister(a, queue, 0, NULL));
    CHECK_STATUS(ferry_region_unregister(a, region + 1, 0, NULL), FERRY_ERR_NOT_REGISTERED);
    CHECK_OK(ferry_region_unregister(a, region, 0, NULL));
    end_engine(a);
    end_engine(b);
}

static void allocated_memory_is_zero_and_goes_by_its_own_functions(void)
{
    ferry_engine *engine = open_engine();
    void *memory = NULL, *other = NULL;
    ferry_status status;
    ferry_region region = 0, registered = 0, second = 0;
    ferry_error error = new_error();
    CHECK_OK(ferry_memory_alloc(engine, 10000, NULL, &memory, &region, NULL));
    CHECK((uintptr_t)memory % 4096 == 0 && is_zero(memory, 10000));
    memset(memory, 1, 10000);
    CHECK_OK(ferry_memory_alloc(engine, 1, NULL, &other, &second, NULL));
    CHECK_INVALID(ferry_memory_alloc(engine, 0, NULL, &other, &registered, &error));
    CHECK_MESSAGE(error, "length is 0");
    status = ferry_memory_alloc(engine, SIZE_MAX / 4, NULL, &other, &registered, &error);
    /* The kernel returns ENOMEM, valgrind EINVAL. */
    CHECK(status == FERRY_ERR_NO_MEMORY || (status == FERRY_ERR_SYSTEM && error.os_error == EINVAL));
    CHECK(registered == 0);
    /* Unregistered memory stays mapped until it is freed. */
    CHECK_OK(ferry_region_unregister(engine, region, 0, NULL));
    CHECK_STATUS(ferry_region_unregister(engine, region, 0, NULL), FERRY_ERR_STALE);
    memset(memory, 2, 10000);
    CHECK_OK(ferry_region_register(engine, bytes[0], 64, NULL, &registered, NULL));
    CHECK_INVALID(ferry_memory_free(engine, registered, 0, &error));
    CHECK_MESSAGE(error, "unregister");
    CHECK_OK(ferry_memory_free(engine, region, 0, NULL));
    CHECK_STATUS(ferry_memory_free(engine, region, 0, NULL), FERRY_ERR_STALE);
    CHECK_INVALID(ferry_memory_free(engine, 0, 0, NULL));
    /* ferry_engine_free frees `second`; valgrind checks that. */
    end_engine(engine);
}

typedef struct {
    const pair *pair;
    pthread_t thread;
    ferry_status status;
} freeing;

static void *free_it(void *context)
{
    freeing *freeing = context;
    freeing->status = ferry_memory_free(freeing->pair->a, freeing->pair->a_region, FERRY_FOREVER, NULL);
    return NULL;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void memory_that_several_threads_free_is_freed_once(void)
{
    pair pair = open_pair(4096);
    freeing first, second;
    ferry_error error = new_error();
    uint64_t begun;
    const ferry_transfer held = hold_transfer(&pair, NULL);
    first.pair = second.pair = &pair;
    CHECK(pthread_create(&first.thread, NULL, free_it, &first) == 0);
    begun = now_ns();
    while (strstr(error.message, "another call is freeing") == NULL) {
        CHECK_STATUS(ferry_memory_free(pair.a, pair.a_region, 0, &error), FERRY_ERR_BUSY);
        /* Gives the first thread a turn between two looks. */
        CHECK_STATUS(ferry_transfer_wait(pair.a, held, 1000000, NULL, NULL), FERRY_PENDING);
        CHECK(now_ns() - begun < PATIENCE_NS);
    }
    /* The first thread is inside. Others wait as long as they say. */
    begun = now_ns();
    CHECK_STATUS(ferry_memory_free(pair.a, pair.a_region, 20000000, &error), FERRY_ERR_BUSY);
    CHECK(now_ns() - begun >= 20000000);
    CHECK_MESSAGE(error, "another call is freeing");
    CHECK(pthread_create(&second.thread, NULL, free_it, &second) == 0);
    let_go(&pair);
    CHECK(pthread_join(first.thread, NULL) == 0 && pthread_join(second.thread, NULL) == 0);
    CHECK(first.status == FERRY_OK);
    CHECK(second.status == FERRY_ERR_STALE);
    end_pair(&pair);
}

static void peers_see_names_and_access(void)
{
    pair pair = open_pair(4096);
    ferry_region_options options = named(FERRY_ACCESS_REMOTE_READ, "weights");
    ferry_region_info infos[4];
    ferry_region region = 0;
    size_t count = 0;
    int seen = 0;
    CHECK_OK(ferry_region_register(pair.b, bytes[3], 4096, &options, &region, NULL));
    await_regions(pair.a, pair.peer, 2);
    CHECK_OK(ferry_peer_regions(pair.a, pair.peer, infos, sizeof infos[0], 4, &count, NULL));
    CHECK(count == 2 && infos[0].address < infos[1].address);
    for (size_t i = 0; i < count; i++) {
        CHECK(infos[i].struct_size == sizeof infos[i]);
        if (infos[i].region != region) continue;
        seen = 1;
        CHECK(strcmp(infos[i].name, "weights") == 0 && infos[i].access == FERRY_ACCESS_REMOTE_READ);
        CHECK(infos[i].address == (uintptr_t)bytes[3] && infos[i].length == 4096);
        CHECK(infos[1 - i].order > 0 && infos[1 - i].order < infos[i].order);
    }
    CHECK(seen);
    CHECK_OK(ferry_region_unregister(pair.b, region, PATIENCE_NS, NULL));
    await_regions(pair.a, pair.peer, 1);
    end_pair(&pair);
}

static void a_file_is_read_and_written_as_memory(void)
{
    pair pair = open_pair(65536);
    char path[] = "/tmp/ferry-file-XXXXXX";
    const int fd = mkstemp(path);
    static unsigned char found[8192];
    uint64_t address = 0;
    ferry_region region = 0;
    ferry_region_options options = named(FERRY_ACCESS_REMOTE_READ | FERRY_ACCESS_REMOTE_WRITE, "file");
    ferry_transfer_options durable = new_options();
    ferry_request request = range(&pair, 0, 0, 8192);
    ferry_error error = new_error();
    int pipe_ends[2];
    CHECK(fd >= 0 && unlink(path) == 0);
    options.kind = FERRY_MEMORY_FILE;
    CHECK_OK(ferry_region_register_file(pair.b, fd, 100, 65536, &options, &address, &region, NULL));
    CHECK(region != 0 && address >= (uint64_t)1 << 62);
    await_regions(pair.a, pair.peer, 2);
    fill(pair.a_memory, 8192, 5);
    request.remote = address + 4096;
    request.remote_region = region;
    durable.flags = FERRY_TRANSFER_DURABLE;
    CHECK_OK(ferry_write(pair.a, pair.peer, &request, 1, &durable, NULL, NULL));
    CHECK(pread(fd, found, 8192, 4196) == 8192 && holds(found, 0, 8192, 5, 0));
    memset(pair.a_memory, 0, 8192);
    CHECK_OK(ferry_read(pair.a, pair.peer, &request, 1, NULL, NULL, NULL));
    CHECK(holds(pair.a_memory, 0, 8192, 5, 0));
    request.remote = address + 40000;
    CHECK_STATUS(ferry_read(pair.a, pair.peer, &request, 1, NULL, NULL, &error), FERRY_ERR_SYSTEM);
    CHECK(error.os_error == ENODATA);
    CHECK_OK(ferry_region_unregister(pair.b, region, PATIENCE_NS, NULL));
    CHECK_INVALID(ferry_region_register_file(pair.b, -1, 0, 64, NULL, &address, &region, &error));
    CHECK_MESSAGE(error, "no descriptor");
    CHECK(pipe(pipe_ends) == 0);
    CHECK_INVALID(ferry_region_register_file(pair.b, pipe_ends[0], 0, 64, NULL, &address, &region, &error));
    CHECK_MESSAGE(error, "a pipe");
    CHECK(close(pipe_ends[0]) == 0 && close(pipe_ends[1]) == 0);
    CHECK_INVALID(ferry_region_register_file(pair.b, pipe_ends[0], 0, 64, NULL, &address, &region, &error));
    CHECK(error.os_error == EBADF && close(fd) == 0);
    end_pair(&pair);
}

SUITE(memory, CASE(register_and_unregister), CASE(what_cannot_be_registered),
      CASE(a_batch_is_registered_whole_or_not_at_all), CASE(handles_of_others_are_refused),
      CASE(allocated_memory_is_zero_and_goes_by_its_own_functions),
      CASE(memory_that_several_threads_free_is_freed_once), CASE(peers_see_names_and_access),
      CASE(a_file_is_read_and_written_as_memory));
