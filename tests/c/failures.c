/* Transfers that cannot succeed, in whole or in part, and report it. */
#include "engines.h"

static void addresses_outside_what_is_registered(void)
{
    pair pair = open_pair(4096);
    ferry_request good = range(&pair, 0, 0, 4096), request;
    ferry_request list[2];
    ferry_error error = new_error();
    static unsigned char unregistered[64];
    request = good;
    request.local = (uintptr_t)unregistered;
    request.length = 64;
    CHECK_STATUS(ferry_write(pair.a, pair.peer, &request, 1, NULL, NULL, &error),
                 FERRY_ERR_NOT_REGISTERED);
    list[0] = good;
    list[1] = good;
    list[1].local += 1;
    CHECK_STATUS(ferry_write(pair.a, pair.peer, list, 2, NULL, NULL, &error), FERRY_ERR_NOT_REGISTERED);
    CHECK(error.request_index == 1);
    CHECK_MESSAGE(error, "requests[1].local");
    request = good;
    request.remote += 1;
    CHECK_INVALID(ferry_write(pair.a, pair.peer, &request, 1, NULL, NULL, &error));
    CHECK_MESSAGE(error, "leaves the remote region");
    request = good;
    request.length = 0;
    CHECK_INVALID(ferry_write(pair.a, pair.peer, &request, 1, NULL, NULL, NULL));
    request = good;
    request.remote = UINT64_MAX - 7;
    CHECK_INVALID(ferry_write(pair.a, pair.peer, &request, 1, NULL, NULL, &error));
    CHECK_MESSAGE(error, "overflows");
    CHECK(is_zero(pair.b_memory, 4096));
    end_pair(&pair);
}

static void access_that_was_not_granted(void)
{
    pair pair = open_pair(4096);
    static unsigned char bytes[64];
    ferry_region_options options = {0};
    ferry_region region = 0;
    ferry_request request = range(&pair, 0, 0, 64);
    options.struct_size = sizeof options;
    options.access = FERRY_ACCESS_REMOTE_READ;
    CHECK_OK(ferry_region_register(pair.b, bytes, 64, &options, &region, NULL));
    await_regions(pair.a, pair.peer, 2);
    request.remote = (uintptr_t)bytes;
    request.remote_region = region;
    fill(pair.a_memory, 64, 1);
    CHECK_STATUS(ferry_write(pair.a, pair.peer, &request, 1, NULL, NULL, NULL), FERRY_ERR_ACCESS);
    CHECK(is_zero(bytes, 64));
    CHECK_OK(ferry_read(pair.a, pair.peer, &request, 1, NULL, NULL, NULL));
    CHECK(is_zero(pair.a_memory, 64));
    end_pair(&pair);
}

/* Two of four requests name a region that has been unregistered; its bytes are still mapped at the peer. */
static void one_stale_region_fails_its_requests_only(void)
{
    pair pair = open_pair(4096);
    static unsigned char gone[64];
    ferry_region region = 0;
    ferry_request requests[4];
    ferry_transfer transfer = 0;
    ferry_transfer_options options = new_options();
    ferry_result result = new_result();
    ferry_request_result results[4];
    ferry_error error = new_error();
    size_t count = 0;
    CHECK_OK(ferry_region_register(pair.b, gone, 64, NULL, &region, NULL));
    CHECK_OK(ferry_region_unregister(pair.b, region, PATIENCE_NS, NULL));
    fill(pair.a_memory, 4096, 6);
    for (size_t i = 0; i < 4; i++) {
        requests[i] = range(&pair, i * 32, i * 32, 32);
        if (i % 2 == 0) continue;
        requests[i].remote = (uintptr_t)gone + (i - 1) * 16;
        requests[i].remote_region = region;
    }
    options.notify = "all there";
    options.notify_length = 9;
    CHECK_OK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, requests, 4, &options, &transfer,
                                   NULL));
    CHECK_STATUS(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, &result, &error), FERRY_ERR_PARTIAL);
    CHECK(result.state == FERRY_STATE_FAILED && result.status == FERRY_ERR_PARTIAL);
    CHECK(result.requests_failed == 2 && result.bytes_confirmed == 64);
    CHECK(result.notification == FERRY_NOTIFICATION_NOT_SENT);
    CHECK(error.request_index == 1 && error.transport == FERRY_TRANSPORT_TCP);
    CHECK_MESSAGE(error, "2 of 4 requests failed, the first with STALE; the peer: remote 0x");
    CHECK_MESSAGE(error, "+ 32 names region 0x");
    CHECK_MESSAGE(error, "which is no longer registered there");
    CHECK_OK(ferry_transfer_results(pair.a, transfer, FERRY_RESULTS_ALL, results, sizeof results[0], 4,
                                    &count, NULL));
    CHECK(count == 4);
    for (size_t i = 0; i < 4; i++) {
        CHECK(results[i].request_index == i);
        CHECK(results[i].status == (i % 2 == 0 ? FERRY_OK : FERRY_ERR_STALE));
        CHECK(results[i].bytes_confirmed == (i % 2 == 0 ? 32u : 0u));
    }
    CHECK_OK(ferry_transfer_results(pair.a, transfer, FERRY_RESULTS_FAILED, results, sizeof results[0], 1,
                                    &count, NULL));
    CHECK(count == 2 && results[0].request_index == 1);
    CHECK_OK(ferry_transfer_release(pair.a, transfer, NULL));
    CHECK(holds(pair.b_memory, 0, 32, 6, 0) && holds(pair.b_memory, 64, 32, 6, 64));
    CHECK(is_zero(gone, 64));
    end_pair(&pair);
}

static void a_stale_region_alone_fails_with_stale(void)
{
    pair pair = open_pair(4096);
    ferry_request request = range(&pair, 0, 0, 64);
    ferry_result result = new_result();
    CHECK_OK(ferry_memory_free(pair.b, pair.b_region, PATIENCE_NS, NULL));
    CHECK_STATUS(ferry_read(pair.a, pair.peer, &request, 1, NULL, &result, NULL), FERRY_ERR_STALE);
    CHECK(result.state == FERRY_STATE_FAILED && result.requests_failed == 1);
    /* A handle of another incarnation is known to be stale before any byte is sent. */
    request.remote_region ^= UINT64_C(1) << 48;
    result = new_result();
    CHECK_STATUS(ferry_read(pair.a, pair.peer, &request, 1, NULL, &result, NULL), FERRY_ERR_STALE);
    CHECK(result.state == 0);
    /* Without a region the peer checks the address itself. */
    request.remote_region = 0;
    CHECK_STATUS(ferry_read(pair.a, pair.peer, &request, 1, NULL, NULL, NULL), FERRY_ERR_NOT_REGISTERED);
    end_pair(&pair);
}

static void without_a_region_the_address_is_enough(void)
{
    pair pair = open_pair(4096);
    ferry_request request = range(&pair, 0, 0, 4096);
    request.remote_region = 0;
    fill(pair.a_memory, 4096, 8);
    CHECK_OK(ferry_write(pair.a, pair.peer, &request, 1, NULL, NULL, NULL));
    CHECK(holds(pair.b_memory, 0, 4096, 8, 0));
    end_pair(&pair);
}

static void one_failed_ordered_transfer_fails_the_next(void)
{
    pair pair = open_pair(4096);
    static unsigned char gone[64];
    ferry_region region = 0;
    ferry_request bad = range(&pair, 0, 0, 64), good = range(&pair, 64, 64, 64);
    ferry_transfer_options options = new_options();
    ferry_transfer held, first = 0, second = 0;
    ferry_result result = new_result();
    CHECK_OK(ferry_region_register(pair.b, gone, 64, NULL, &region, NULL));
    CHECK_OK(ferry_region_unregister(pair.b, region, PATIENCE_NS, NULL));
    bad.remote = (uintptr_t)gone;
    bad.remote_region = region;
    fill(pair.a_memory, 4096, 1);
    /* Both wait behind the held transfer, so that the first has not failed when the second is submitted. */
    options.deadline_ns = FERRY_FOREVER;
    options.flags = FERRY_TRANSFER_ORDERED;
    held = hold_transfer(&pair, &options);
    CHECK_OK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, &bad, 1, &options, &first, NULL));
    CHECK_OK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, &good, 1, &options, &second, NULL));
    CHECK_STATUS(ferry_transfer_wait(pair.a, second, 0, NULL, NULL), FERRY_PENDING);
    let_go(&pair);
    CHECK_OK(ferry_transfer_wait(pair.a, held, PATIENCE_NS, NULL, NULL));
    CHECK_STATUS(ferry_transfer_wait(pair.a, first, PATIENCE_NS, NULL, NULL), FERRY_ERR_STALE);
    CHECK_STATUS(ferry_transfer_wait(pair.a, second, PATIENCE_NS, &result, NULL), FERRY_ERR_CANCELLED);
    CHECK(result.bytes_confirmed == 0 && is_zero(pair.b_memory + 64, 64));
    end_pair(&pair);
}

SUITE(failures, CASE(addresses_outside_what_is_registered), CASE(access_that_was_not_granted),
      CASE(one_stale_region_fails_its_requests_only), CASE(a_stale_region_alone_fails_with_stale),
      CASE(without_a_region_the_address_is_enough), CASE(one_failed_ordered_transfer_fails_the_next));
