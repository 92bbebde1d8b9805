/* Two engines move data; waiting, cancelling, releasing. */
#include "engines.h"

#include <pthread.h>

enum { MIB = 1 << 20, STACK_BYTES = 64 << 10 };

static void write_and_read_move_exactly_what_they_name(void)
{
    pair pair = open_pair(4 * MIB);
    static const size_t lengths[] = {8, 64, 4096, 65536, 65544, MIB, 3 * MIB};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        size_t length = lengths[i];
        ferry_request request = range(&pair, 4096, 8192, length);
        ferry_result result = new_result();
        fill(pair.a_memory, pair.length, i + 1);
        memset(pair.b_memory, 0, pair.length);
        CHECK_OK(ferry_write(pair.a, pair.peer, &request, 1, NULL, &result, NULL));
        CHECK(result.state == FERRY_STATE_DONE && result.status == FERRY_OK);
        CHECK(result.bytes_confirmed == length && result.requests_in == 1 && result.requests_failed == 0);
        CHECK(result.fence == FERRY_FENCE_CONFIRMED && result.transport == FERRY_TRANSPORT_TCP);
        CHECK(result.notification == FERRY_NOTIFICATION_NONE && result.slices_out >= 1);
        CHECK(result.submitted_ns <= result.started_ns && result.started_ns <= result.finished_ns);
        CHECK(holds(pair.b_memory, 8192, length, i + 1, 4096));
        CHECK(is_zero(pair.b_memory, 8192));
        CHECK(is_zero(pair.b_memory + 8192 + length, pair.length - 8192 - length));
        memset(pair.a_memory, 0, pair.length);
        CHECK_OK(ferry_read(pair.a, pair.peer, &request, 1, NULL, &result, NULL));
        CHECK(result.bytes_confirmed == length);
        CHECK(holds(pair.a_memory, 4096, length, i + 1, 4096));
        CHECK(is_zero(pair.a_memory, 4096));
        CHECK(is_zero(pair.a_memory + 4096 + length, pair.length - 4096 - length));
    }
    end_pair(&pair);
}

static void the_target_can_write_back(void)
{
    pair pair = open_pair(4096);
    ferry_request request = range(&pair, 0, 0, 4096);
    ferry_request back;
    back.local = request.remote;
    back.remote = request.local;
    back.length = 4096;
    back.remote_region = pair.a_region;
    fill(pair.b_memory, 4096, 9);
    CHECK_OK(ferry_write(pair.b, only_peer(pair.b), &back, 1, NULL, NULL, NULL));
    CHECK(holds(pair.a_memory, 0, 4096, 9, 0));
    end_pair(&pair);
}

static void options_with_every_flag_move_data_too(void)
{
    pair pair = open_pair(65536);
    ferry_request requests[8];
    ferry_transfer_options options = new_options();
    ferry_result result = new_result();
    fill(pair.a_memory, pair.length, 2);
    for (size_t i = 0; i < 8; i++) requests[i] = range(&pair, i * 4096, i * 4096, 4096);
    CHECK_OK(ferry_write(pair.a, pair.peer, requests, 8, &options, &result, NULL));
    CHECK(result.requests_in == 8 && result.slices_out == 1);
    options.flags = FERRY_TRANSFER_NO_COALESCE | FERRY_TRANSFER_ORDERED | FERRY_TRANSFER_CHECKSUM |
                    FERRY_TRANSFER_ACKED_ONLY;
    options.user_data = 99;
    options.priority = 3;
    options.transports_allowed = FERRY_ALLOW_TCP | FERRY_ALLOW_RDMA;
    options.deadline_ns = FERRY_FOREVER;
    memset(pair.b_memory, 0, pair.length);
    CHECK_OK(ferry_write(pair.a, pair.peer, requests, 8, &options, &result, NULL));
    CHECK(result.requests_in == 8 && result.slices_out == 8 && result.user_data == 99);
    CHECK(holds(pair.b_memory, 0, 32768, 2, 0) && is_zero(pair.b_memory + 32768, 32768));
    end_pair(&pair);
}

static void submit_wait_results_release(void)
{
    pair pair = open_pair(65536);
    ferry_request requests[2];
    ferry_transfer transfer = 0;
    ferry_result result = new_result();
    ferry_request_result results[3];
    size_t count = 0;
    requests[0] = range(&pair, 0, 4096, 512);
    requests[1] = range(&pair, 8192, 0, 256);
    fill(pair.a_memory, pair.length, 4);
    CHECK_OK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, requests, 2, NULL, &transfer, NULL));
    CHECK_OK(ferry_transfer_wait(pair.a, transfer, FERRY_FOREVER, &result, NULL));
    CHECK(result.bytes_confirmed == 768);
    CHECK_OK(ferry_transfer_wait(pair.a, transfer, 0, &result, NULL));
    CHECK_OK(ferry_transfer_wait(pair.a, transfer, 0, NULL, NULL));
    CHECK_OK(ferry_transfer_cancel(pair.a, transfer, NULL));
    CHECK_OK(ferry_transfer_wait(pair.a, transfer, 0, &result, NULL));
    CHECK(result.state == FERRY_STATE_DONE);
    CHECK_OK(ferry_transfer_results(pair.a, transfer, FERRY_RESULTS_ALL, results, sizeof results[0], 3,
                                    &count, NULL));
    CHECK(count == 2);
    for (size_t i = 0; i < 2; i++) {
        CHECK(results[i].struct_size == sizeof results[0] && results[i].status == FERRY_OK);
        CHECK(results[i].request_index == i && results[i].bytes_confirmed == requests[i].length);
        CHECK(results[i].transport == FERRY_TRANSPORT_TCP && results[i].os_error == 0);
        CHECK(results[i].vendor_error == 0 && results[i].reserved == 0);
    }
    CHECK_OK(ferry_transfer_results(pair.a, transfer, FERRY_RESULTS_FAILED, results, sizeof results[0], 3,
                                    &count, NULL));
    CHECK(count == 0);
    CHECK_INVALID(ferry_transfer_results(pair.a, transfer, 2, results, sizeof results[0], 3, &count, NULL));
    CHECK_STATUS(ferry_transfer_stream_wait(pair.a, transfer, 1, FERRY_MEMORY_HOST, NULL), FERRY_ERR_INVALID);
    CHECK_OK(ferry_transfer_release(pair.a, transfer, NULL));
    CHECK(holds(pair.b_memory, 4096, 512, 4, 0) && holds(pair.b_memory, 0, 256, 4, 8192));
    end_pair(&pair);
}

static void a_released_transfer_is_stale(void)
{
    pair pair = open_pair(4096);
    ferry_request request = range(&pair, 0, 0, 8);
    ferry_transfer transfer = 0;
    uint64_t bytes = 7;
    size_t index = 7;
    CHECK_OK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_READ, &request, 1, NULL, &transfer, NULL));
    CHECK_OK(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, NULL, NULL));
    CHECK_STATUS(ferry_transfer_release(pair.b, transfer, NULL), FERRY_ERR_STALE);
    CHECK_OK(ferry_transfer_release(pair.a, transfer, NULL));
    CHECK_STATUS(ferry_transfer_release(pair.a, transfer, NULL), FERRY_ERR_STALE);
    CHECK_STATUS(ferry_transfer_wait(pair.a, transfer, 0, NULL, NULL), FERRY_ERR_STALE);
    CHECK_STATUS(ferry_transfer_cancel(pair.a, transfer, NULL), FERRY_ERR_STALE);
    CHECK_STATUS(ferry_transfer_wait_any(pair.a, &transfer, 1, 0, &index, NULL), FERRY_ERR_STALE);
    CHECK_STATUS(ferry_transfer_progress(pair.a, transfer, &bytes, &bytes, NULL), FERRY_ERR_STALE);
    CHECK_STATUS(ferry_transfer_stream_wait(pair.a, transfer, 1, 1, NULL), FERRY_ERR_STALE);
    CHECK_STATUS(ferry_transfer_results(pair.a, transfer, 0, NULL, sizeof(ferry_request_result), 0, &index,
                                        NULL), FERRY_ERR_STALE);
    CHECK_INVALID(ferry_transfer_wait(pair.a, 0, 0, NULL, NULL));
    CHECK_INVALID(ferry_transfer_wait(pair.a, pair.peer, 0, NULL, NULL));
    CHECK(index == 7 && bytes == 7);
    end_pair(&pair);
}

static void a_pending_transfer_answers_at_once_and_holds_its_memory(void)
{
    pair pair = open_pair(4096);
    ferry_transfer transfer = hold_transfer(&pair, NULL);
    ferry_result result = new_result();
    ferry_error error = new_error();
    size_t index = 7, count = 7;
    CHECK_STATUS(ferry_transfer_wait(pair.a, transfer, 0, &result, NULL), FERRY_PENDING);
    CHECK_STATUS(ferry_transfer_wait(pair.a, transfer, 1000, &result, NULL), FERRY_PENDING);
    CHECK(result.state == 0);
    CHECK_STATUS(ferry_transfer_wait_any(pair.a, &transfer, 1, 0, &index, NULL), FERRY_PENDING);
    CHECK_STATUS(ferry_transfer_wait_any(pair.a, &transfer, 1, 1000, &index, NULL), FERRY_PENDING);
    CHECK_STATUS(ferry_transfer_results(pair.a, transfer, 0, NULL, sizeof(ferry_request_result), 0, &count,
                                        NULL), FERRY_PENDING);
    CHECK(index == 7 && count == 7);
    CHECK_STATUS(ferry_transfer_release(pair.a, transfer, NULL), FERRY_ERR_BUSY);
    CHECK_STATUS(ferry_memory_free(pair.a, pair.a_region, 0, &error), FERRY_ERR_BUSY);
    CHECK_MESSAGE(error, "is in use: at 0x");
    let_go(&pair);
    CHECK_OK(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, &result, NULL));
    CHECK(result.notification == FERRY_NOTIFICATION_DELIVERED);
    CHECK_OK(ferry_memory_free(pair.a, pair.a_region, 0, NULL));
    CHECK_OK(ferry_transfer_release(pair.a, transfer, NULL));
    end_pair(&pair);
}

static void cancel(void)
{
    pair pair = open_pair(4096);
    ferry_transfer_options options = new_options();
    ferry_transfer transfer;
    ferry_result result = new_result();
    ferry_error error = new_error();
    options.user_data = 5;
    transfer = hold_transfer(&pair, &options);
    CHECK_OK(ferry_transfer_cancel(pair.a, transfer, NULL));
    CHECK_STATUS(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, &result, &error),
                 FERRY_ERR_CANCELLED);
    CHECK(result.state == FERRY_STATE_CANCELLED && result.status == FERRY_ERR_CANCELLED);
    CHECK(result.notification == FERRY_NOTIFICATION_NOT_SENT && result.user_data == 5);
    CHECK(result.fence == FERRY_FENCE_CONFIRMED && error.status == FERRY_ERR_CANCELLED);
    CHECK_OK(ferry_transfer_release(pair.a, transfer, NULL));
    end_pair(&pair);
}

/* One transfer that is slow enough to be seen in the middle, and one that ends. */
static void progress_tells_how_far_a_transfer_is(void)
{
    enum { ROUNDS = 4096 };
    static ferry_request rounds[ROUNDS];
    pair pair = open_pair(4 * MIB);
    ferry_transfer_options options = new_options();
    ferry_result result = new_result();
    ferry_transfer transfer = 0;
    uint64_t confirmed = 0, total = 0, last = 0;
    options.flags = FERRY_TRANSFER_NO_COALESCE;
    for (size_t i = 0; i < ROUNDS; i++) rounds[i] = range(&pair, 0, 0, 4 * MIB);
    CHECK_OK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, rounds, ROUNDS, &options, &transfer, NULL));
    for (int steps = 0; steps < 3; last = confirmed) {
        CHECK_OK(ferry_transfer_progress(pair.a, transfer, &confirmed, &total, NULL));
        CHECK(total == UINT64_C(4) * MIB * ROUNDS && last <= confirmed && confirmed < total);
        steps += confirmed > last;
    }
    CHECK_OK(ferry_transfer_cancel(pair.a, transfer, NULL));
    CHECK_STATUS(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, &result, NULL), FERRY_ERR_CANCELLED);
    CHECK_OK(ferry_transfer_progress(pair.a, transfer, &confirmed, &total, NULL));
    CHECK(last <= confirmed && confirmed == result.bytes_confirmed && total == UINT64_C(4) * MIB * ROUNDS);
    CHECK_OK(ferry_transfer_release(pair.a, transfer, NULL));
    CHECK_OK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, rounds, 1, NULL, &transfer, NULL));
    CHECK_OK(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, NULL, NULL));
    CHECK_OK(ferry_transfer_progress(pair.a, transfer, &confirmed, &total, NULL));
    CHECK(confirmed == 4 * MIB && total == 4 * MIB);
    CHECK_OK(ferry_transfer_release(pair.a, transfer, NULL));
    end_pair(&pair);
}

static void a_deadline_ends_a_transfer(void)
{
    pair pair = open_pair(4096);
    ferry_transfer_options options = new_options();
    ferry_request request = range(&pair, 0, 0, 8);
    ferry_result result = new_result();
    ferry_transfer held = hold_transfer(&pair, NULL);
    options.deadline_ns = 20 * UINT64_C(1000000);
    options.notify = "late";
    options.notify_length = 4;
    CHECK_STATUS(ferry_write(pair.a, pair.peer, &request, 1, &options, &result, NULL), FERRY_ERR_TIMEOUT);
    CHECK(result.state == FERRY_STATE_TIMED_OUT && result.status == FERRY_ERR_TIMEOUT);
    CHECK_STATUS(ferry_notify(pair.a, pair.peer, "late", 4, options.deadline_ns, NULL),
                 FERRY_ERR_TIMEOUT);
    let_go(&pair);
    CHECK_OK(ferry_transfer_wait(pair.a, held, PATIENCE_NS, NULL, NULL));
    end_pair(&pair);
}

static void a_run_that_is_not_final_in_time_is_left_to_its_caller(void)
{
    pair pair = open_pair(4096);
    ferry_transfer_options options = new_options();
    ferry_request request = range(&pair, 0, 0, 8);
    ferry_result result = new_result();
    ferry_transfer left = 1;
    ferry_transfer held;
    CHECK_OK(ferry_transfer_run(pair.a, pair.peer, FERRY_OP_WRITE, &request, 1, NULL, PATIENCE_NS, &left, &result,
                                NULL));
    CHECK(left == 0 && result.state == FERRY_STATE_DONE);
    held = hold_transfer(&pair, NULL);
    options.notify = "x";
    options.notify_length = 1;
    result = new_result();
    CHECK_STATUS(ferry_transfer_run(pair.a, pair.peer, FERRY_OP_WRITE, &request, 1, &options, 1000000, &left, &result,
                                    NULL), FERRY_PENDING);
    CHECK(left != 0 && result.state == 0);
    let_go(&pair);
    CHECK_OK(ferry_transfer_wait(pair.a, left, PATIENCE_NS, &result, NULL));
    CHECK(result.state == FERRY_STATE_DONE && result.notification == FERRY_NOTIFICATION_DELIVERED);
    CHECK_OK(ferry_transfer_release(pair.a, left, NULL));
    CHECK_OK(ferry_transfer_wait(pair.a, held, PATIENCE_NS, NULL, NULL));
    end_pair(&pair);
}

static void wait_any_says_which(void)
{
    pair pair = open_pair(4096);
    ferry_request request = range(&pair, 0, 0, 8);
    ferry_transfer transfers[3] = {hold_transfer(&pair, NULL)};
    ferry_error error = new_error();
    size_t index = 7;
    CHECK_OK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_READ, &request, 1, NULL, &transfers[1],
                                   NULL));
    transfers[2] = 0;
    CHECK_INVALID(ferry_transfer_wait_any(pair.a, transfers, 3, PATIENCE_NS, &index, &error));
    CHECK(error.request_index == 2);
    CHECK_OK(ferry_transfer_wait_any(pair.a, transfers, 2, PATIENCE_NS, &index, NULL));
    CHECK(index == 1);
    CHECK_OK(ferry_transfer_release(pair.a, transfers[1], NULL));
    let_go(&pair);
    CHECK_OK(ferry_transfer_wait_any(pair.a, transfers, 1, PATIENCE_NS, &index, NULL));
    CHECK(index == 0);
    end_pair(&pair);
}

static void wait_all_names_the_first_that_is_not_done(void)
{
    pair pair = open_pair(MIB);
    ferry_error error = new_error();
    ferry_transfer all[4] = {0};
    size_t index = 9;
    for (size_t i = 0; i < 3; i++) {
        // Ranges of their own: transfers that write one range, from several lanes at once, race.
        ferry_request request = range(&pair, i * (MIB / 4), i * (MIB / 4), MIB / 4);
        CHECK_OK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, &request, 1, NULL, &all[i], NULL));
    }
    CHECK_OK(ferry_transfer_wait_all(pair.a, all, 3, PATIENCE_NS, &index, NULL));
    CHECK(index == SIZE_MAX);
    all[3] = all[2];
    all[2] = hold_transfer(&pair, NULL);
    CHECK_STATUS(ferry_transfer_wait_all(pair.a, all, 4, 0, &index, NULL), FERRY_PENDING);
    CHECK(index == 2);
    CHECK_STATUS(ferry_transfer_wait_all(pair.a, all, 4, 1000000, &index, NULL), FERRY_PENDING);
    CHECK(index == 2);
    CHECK_OK(ferry_transfer_cancel(pair.a, all[2], NULL));
    CHECK_STATUS(ferry_transfer_wait_all(pair.a, all, 4, PATIENCE_NS, &index, &error), FERRY_ERR_CANCELLED);
    CHECK(index == 2);
    CHECK_MESSAGE(error, "the notification: CANCELLED");
    CHECK_OK(ferry_transfer_release(pair.a, all[1], NULL));
    CHECK_STATUS(ferry_transfer_wait_all(pair.a, all, 4, 0, &index, &error), FERRY_ERR_STALE);
    CHECK(index == SIZE_MAX && error.request_index == 1);
    end_pair(&pair);
}

/* Runs on a small stack; returns the status of its last call. */
typedef struct {
    const char *transports, *target;
    ferry_status status;
} small;

static void *live_in_a_small_stack(void *argument)
{
    small *small = argument;
    ferry_config *config = NULL;
    ferry_engine *engine = NULL;
    ferry_peer peer = 0;
    ferry_request request;
    ferry_error error = new_error();
    void *memory = NULL;
    ferry_region region = 0;
    ferry_region_info remote = FERRY_REGION_INFO_INIT;
#define TRY(call)                                                                                  \
    if ((small->status = (call)) != FERRY_OK) return NULL
    TRY(ferry_config_new(&config, &error));
    TRY(ferry_config_set(config, "transports", small->transports, &error));
    TRY(ferry_engine_open(config, &engine, &error));
    ferry_config_free(config);
    TRY(ferry_memory_alloc(engine, MIB, NULL, &memory, &region, &error));
    TRY(ferry_peer_connect(engine, small->target, PATIENCE_NS, &peer, &error));
    TRY(ferry_peer_region(engine, peer, "target", &remote, &error));
    request.local = (uintptr_t)memory;
    request.remote = remote.address;
    request.length = MIB;
    request.remote_region = remote.region;
    TRY(ferry_write(engine, peer, &request, 1, NULL, NULL, &error));
    TRY(ferry_read(engine, peer, &request, 1, NULL, NULL, &error));
    TRY(ferry_peer_fence(engine, peer, PATIENCE_NS, &error));
    TRY(ferry_engine_close(engine, PATIENCE_NS, &error));
#undef TRY
    ferry_engine_free(engine);
    return NULL;
}

static void a_thread_needs_no_larger_stack_than_the_header_says(void)
{
    static const char *const transports[] = {"tcp", "local"};
    for (size_t i = 0; i < 2; i++) {
        ferry_engine *target = open_engine_with("transports", transports[i]);
        ferry_alloc_options named = FERRY_ALLOC_OPTIONS_INIT;
        void *memory = NULL;
        ferry_region region = 0;
        named.name = "target";
        named.access = FERRY_ACCESS_REMOTE_READ | FERRY_ACCESS_REMOTE_WRITE;
        CHECK_OK(ferry_memory_alloc(target, MIB, &named, &memory, &region, NULL));
        small small = {transports[i], address_of(target), FERRY_OK};
        pthread_attr_t attributes;
        pthread_t thread;
        CHECK(pthread_attr_init(&attributes) == 0);
        CHECK(pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0);
        CHECK(pthread_create(&thread, &attributes, live_in_a_small_stack, &small) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(pthread_attr_destroy(&attributes) == 0);
        CHECK_OK(small.status);
        end_engine(target);
    }
}

SUITE(transfers, CASE(a_thread_needs_no_larger_stack_than_the_header_says), CASE(wait_all_names_the_first_that_is_not_done), CASE(write_and_read_move_exactly_what_they_name), CASE(the_target_can_write_back),
      CASE(options_with_every_flag_move_data_too), CASE(submit_wait_results_release),
      CASE(a_released_transfer_is_stale), CASE(a_pending_transfer_answers_at_once_and_holds_its_memory),
      CASE(cancel), CASE(progress_tells_how_far_a_transfer_is), CASE(a_deadline_ends_a_transfer),
      CASE(a_run_that_is_not_final_in_time_is_left_to_its_caller), CASE(wait_any_says_which));
