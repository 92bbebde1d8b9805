/* Closing an engine: transfers become final, waits return, and every later call is refused. */
#define _POSIX_C_SOURCE 200809L
#include "every_call.h"

#include <pthread.h>

static void every_call_on_a_closed_engine_is_refused(void)
{
    pair pair = open_pair(4096);
    ferry_request request = range(&pair, 0, 0, 8);
    ferry_queue queue = 0;
    ferry_transfer transfer = 0;
    ferry_error error = new_error();
    const char *call;
    CHECK_OK(ferry_queue_create(pair.a, FERRY_QUEUE_TRANSFERS | FERRY_QUEUE_NOTIFICATIONS, 4, &queue, NULL));
    CHECK_OK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, &request, 1, NULL, &transfer, NULL));
    CHECK_OK(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, NULL, NULL));
    CHECK_OK(ferry_engine_close(pair.a, PATIENCE_NS, NULL));
    call = first_not_closed(&pair, queue, transfer);
    if (call != NULL) FAIL("%s", call);
    CHECK_STATUS(ferry_engine_metrics(pair.a, NULL, 0, NULL, &error), FERRY_ERR_CLOSED);
    CHECK_MESSAGE(error, "closed");
    CHECK_OK(ferry_engine_close(pair.a, 0, NULL));
    CHECK_OK(ferry_engine_close(pair.a, FERRY_FOREVER, NULL));
    ferry_engine_free(pair.a);
    end_engine(pair.b);
}

typedef struct {
    const pair *pair;
    ferry_transfer transfer;
    ferry_status status;
    ferry_result result;
} waiting;

static void *wait_for_ever(void *context)
{
    waiting *waiting = context;
    waiting->status = ferry_transfer_wait(waiting->pair->a, waiting->transfer, FERRY_FOREVER,
                                          &waiting->result, NULL);
    return NULL;
}

static void closing_makes_transfers_final_and_returns_waits(void)
{
    pair pair = open_pair(4096);
    ferry_transfer_options options = new_options();
    ferry_queue queue = 0;
    ferry_event event;
    size_t count = 0;
    pthread_t thread;
    waiting waiting;
    CHECK_OK(ferry_queue_create(pair.a, FERRY_QUEUE_TRANSFERS, 1, &queue, NULL));
    options.queue = queue;
    options.user_data = 11;
    waiting.pair = &pair;
    waiting.result = new_result();
    waiting.transfer = hold_transfer(&pair, &options);
    CHECK(pthread_create(&thread, NULL, wait_for_ever, &waiting) == 0);
    CHECK_OK(ferry_engine_close(pair.a, PATIENCE_NS, NULL));
    CHECK(pthread_join(thread, NULL) == 0);
    /* The wait may have begun only after the close; then it was refused. */
    CHECK(waiting.status == FERRY_ERR_CLOSED);
    CHECK(waiting.result.state == 0 || waiting.result.state == FERRY_STATE_FAILED);
    /* The queue still returns its events; then it is closed like the engine. */
    CHECK_OK(ferry_queue_drain(pair.a, queue, &event, sizeof event, 1, &count, NULL));
    CHECK(count == 1 && event.user_data == 11 && event.status == FERRY_ERR_CLOSED);
    CHECK_STATUS(ferry_queue_drain(pair.a, queue, &event, sizeof event, 1, &count, NULL),
                 FERRY_ERR_CLOSED);
    ferry_engine_free(pair.a);
    end_engine(pair.b);
}

static void an_engine_that_was_not_closed_is_closed_by_free(void)
{
    pair pair = open_pair(4096);
    ferry_queue queue = 0;
    ferry_event event;
    CHECK_OK(ferry_queue_create(pair.b, FERRY_QUEUE_PEERS, 4, &queue, NULL));
    ferry_engine_free(pair.a);
    event = next_event_of(pair.b, queue, FERRY_EVENT_PEER_LOST);
    CHECK(event.status < 0);
    ferry_event_release(&event);
    end_engine(pair.b);
}

/* The data of one thread of the next test. */
typedef struct {
    unsigned char bytes[64];
    int failed;
} own;

/* Each thread opens, uses and closes its own engines. */
static void *open_and_close(void *context)
{
    own *own = context;
    own->failed = 1;
    for (int i = 0; i < 3; i++) {
        ferry_engine *engine = NULL;
        ferry_region region = 0;
        if (ferry_engine_open(NULL, &engine, NULL) != FERRY_OK) return NULL;
        if (ferry_region_register(engine, own->bytes, sizeof own->bytes, NULL, &region, NULL) != FERRY_OK)
            return NULL;
        if (ferry_engine_close(engine, FERRY_FOREVER, NULL) != FERRY_OK) return NULL;
        ferry_engine_free(engine);
    }
    own->failed = 0;
    return NULL;
}

static void engines_of_several_threads_do_not_meet(void)
{
    pthread_t threads[4];
    own own[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, open_and_close, &own[i]) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(!own[i].failed);
}

SUITE(closing, CASE(every_call_on_a_closed_engine_is_refused),
      CASE(closing_makes_transfers_final_and_returns_waits),
      CASE(an_engine_that_was_not_closed_is_closed_by_free),
      CASE(engines_of_several_threads_do_not_meet));
