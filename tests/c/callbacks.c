/* Callbacks: their events, the calls that they may make, and that their removal waits for them. */
#define _POSIX_C_SOURCE 200809L
#include "engines.h"

#include <pthread.h>
#include <semaphore.h>

/* Shared by a callback and its test. The callback thread writes it before it posts `done`. */
typedef struct {
    pair pair;
    ferry_queue queue;
    sem_t entered, go_on, done;
    int stage;
    ferry_event event;
    char data[16];
    pthread_t thread;
    ferry_transfer submitted;
    ferry_status statuses[16];
} shared;

static void wait_for(sem_t *semaphore)
{
    struct timespec until;
    CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_sec += 60;
    CHECK(sem_timedwait(semaphore, &until) == 0);
}

static void open_shared(shared *shared, uint32_t what)
{
    memset(shared, 0, sizeof *shared);
    shared->pair = open_pair(4096);
    CHECK(sem_init(&shared->entered, 0, 0) == 0 && sem_init(&shared->go_on, 0, 0) == 0);
    CHECK(sem_init(&shared->done, 0, 0) == 0);
    CHECK_OK(ferry_queue_create(shared->pair.a, what, 16, &shared->queue, NULL));
}

static void end_shared(shared *shared)
{
    end_pair(&shared->pair);
    sem_destroy(&shared->entered);
    sem_destroy(&shared->go_on);
    sem_destroy(&shared->done);
}

static ferry_transfer submit_one(shared *shared)
{
    ferry_request request = range(&shared->pair, 0, 0, 8);
    ferry_transfer_options options = new_options();
    ferry_transfer transfer = 0;
    options.queue = shared->queue;
    CHECK_OK(ferry_transfer_submit(shared->pair.a, shared->pair.peer, FERRY_OP_WRITE, &request, 1, &options,
                                   &transfer, NULL));
    return transfer;
}

static void remember(void *context, const ferry_event *event)
{
    shared *shared = context;
    shared->event = *event;
    if (event->data_length <= sizeof shared->data && event->data != NULL)
        memcpy(shared->data, event->data, event->data_length);
    shared->thread = pthread_self();
    sem_post(&shared->done);
}

static void a_callback_gets_events_on_another_thread(void)
{
    shared shared;
    ferry_transfer transfer;
    open_shared(&shared, FERRY_QUEUE_TRANSFERS | FERRY_QUEUE_NOTIFICATIONS);
    CHECK_OK(ferry_queue_callback(shared.pair.a, shared.queue, remember, &shared, NULL));
    transfer = submit_one(&shared);
    wait_for(&shared.done);
    CHECK(shared.event.kind == FERRY_EVENT_TRANSFER && shared.event.transfer == transfer);
    CHECK(shared.event.struct_size == sizeof shared.event);
    CHECK(!pthread_equal(shared.thread, pthread_self()));
    CHECK_OK(ferry_notify(shared.pair.b, only_peer(shared.pair.b), "borrowed", 8, 0, NULL));
    wait_for(&shared.done);
    CHECK(shared.event.kind == FERRY_EVENT_NOTIFICATION && shared.event.data_length == 8);
    CHECK(memcmp(shared.data, "borrowed", 8) == 0);
    end_shared(&shared);
}

/* The first event submits another transfer; the second event is of that transfer. */
static void submit_inside(void *context, const ferry_event *event)
{
    shared *shared = context;
    if (shared->stage++ == 0) {
        ferry_request request = range(&shared->pair, 0, 0, 8);
        ferry_transfer_options options = new_options();
        options.queue = shared->queue;
        shared->statuses[0] =
            ferry_transfer_submit(shared->pair.a, shared->pair.peer, FERRY_OP_WRITE, &request, 1, &options,
                                  &shared->submitted, NULL);
        return;
    }
    shared->event = *event;
    sem_post(&shared->done);
}

static void a_callback_may_submit(void)
{
    shared shared;
    open_shared(&shared, FERRY_QUEUE_TRANSFERS);
    CHECK_OK(ferry_queue_callback(shared.pair.a, shared.queue, submit_inside, &shared, NULL));
    submit_one(&shared);
    wait_for(&shared.done);
    CHECK(shared.statuses[0] == FERRY_OK && shared.event.transfer == shared.submitted);
    end_shared(&shared);
}

/* Makes every call that waits; `submitted` is a held transfer. */
static void wait_inside(void *context, const ferry_event *event)
{
    shared *shared = context;
    ferry_engine *a = shared->pair.a;
    ferry_request request = range(&shared->pair, 0, 0, 8);
    ferry_peer peer = 0;
    ferry_transfer left = 0;
    size_t index = 0;
    int i = 0;
    (void)event;
    shared->statuses[i++] = ferry_transfer_wait(a, shared->submitted, FERRY_FOREVER, NULL, NULL);
    shared->statuses[i++] = ferry_transfer_wait_any(a, &shared->submitted, 1, 1, &index, NULL);
    shared->statuses[i++] = ferry_engine_close(a, FERRY_FOREVER, NULL);
    shared->statuses[i++] = ferry_write(a, shared->pair.peer, &request, 1, NULL, NULL, NULL);
    shared->statuses[i++] = ferry_read(a, shared->pair.peer, &request, 1, NULL, NULL, NULL);
    shared->statuses[i++] = ferry_transfer_run(a, shared->pair.peer, FERRY_OP_WRITE, &request, 1, NULL, 1, &left, NULL,
                                               NULL);
    shared->statuses[i++] = ferry_notify(a, shared->pair.peer, "x", 1, 0, NULL);
    shared->statuses[i++] = ferry_peer_connect(a, "127.0.0.1:1", FERRY_FOREVER, &peer, NULL);
    shared->statuses[i++] = ferry_peer_probe(a, shared->pair.peer, 1, NULL, NULL);
    shared->statuses[i++] = ferry_peer_fence(a, shared->pair.peer, 1, NULL);
    shared->statuses[i++] = ferry_peer_close(a, shared->pair.peer, 1, NULL);
    shared->statuses[i++] = ferry_memory_free(a, shared->pair.a_region, 1, NULL);
    shared->statuses[i++] = ferry_descriptor_import(a, "x", 1, 1, &peer, NULL);
    shared->statuses[i++] = ferry_queue_destroy(a, shared->queue, NULL);
    /* A timeout of 0 does not wait. */
    shared->statuses[i++] = ferry_transfer_wait(a, shared->submitted, 0, NULL, NULL);
    shared->statuses[i++] = ferry_transfer_try(a, shared->pair.peer, FERRY_OP_WRITE, &request, 1, NULL, NULL, NULL);
    sem_post(&shared->done);
}

static void a_callback_may_not_wait_nor_close(void)
{
    shared shared;
    ferry_stats before, after;
    open_shared(&shared, FERRY_QUEUE_TRANSFERS);
    shared.submitted = hold_transfer(&shared.pair, NULL);
    before.struct_size = after.struct_size = sizeof before;
    CHECK_OK(ferry_queue_callback(shared.pair.a, shared.queue, wait_inside, &shared, NULL));
    submit_one(&shared);
    CHECK_OK(ferry_engine_get_stats(shared.pair.a, &before, NULL));
    wait_for(&shared.done);
    for (int i = 0; i < 14; i++)
        if (shared.statuses[i] != FERRY_ERR_BUSY)
            FAIL("call %d returned %s", i, ferry_status_name(shared.statuses[i]));
    CHECK(shared.statuses[14] == FERRY_PENDING && shared.statuses[15] == FERRY_PENDING);
    CHECK_OK(ferry_engine_get_stats(shared.pair.a, &after, NULL));
    CHECK(before.transfers_submitted == after.transfers_submitted);
    let_go(&shared.pair);
    end_shared(&shared);
}

static void stay_inside(void *context, const ferry_event *event)
{
    shared *shared = context;
    (void)event;
    sem_post(&shared->entered);
    while (sem_wait(&shared->go_on) != 0) {
    }
    shared->stage = 1;
}

static void *let_it_go_on(void *context)
{
    shared *shared = context;
    sem_post(&shared->go_on);
    return NULL;
}

static void taking_a_callback_away_waits_for_its_end(void)
{
    shared shared;
    pthread_t helper;
    ferry_event event;
    ferry_transfer later;
    open_shared(&shared, FERRY_QUEUE_TRANSFERS);
    CHECK_OK(ferry_queue_callback(shared.pair.a, shared.queue, stay_inside, &shared, NULL));
    submit_one(&shared);
    wait_for(&shared.entered);
    CHECK(pthread_create(&helper, NULL, let_it_go_on, &shared) == 0);
    CHECK_OK(ferry_queue_callback(shared.pair.a, shared.queue, NULL, NULL, NULL));
    CHECK(shared.stage == 1);
    CHECK(pthread_join(helper, NULL) == 0);
    /* From now on events stay in the queue. */
    later = submit_one(&shared);
    event = next_event(shared.pair.a, shared.queue);
    CHECK(event.transfer == later);
    end_shared(&shared);
}

static void *close_for_ever(void *context)
{
    shared *shared = context;
    shared->statuses[0] = ferry_engine_close(shared->pair.a, FERRY_FOREVER, NULL);
    return NULL;
}

/* Returns when another thread has begun to close engine a, which still waits for its callback thread. */
static void await_closing(shared *shared)
{
    ferry_request request = range(&shared->pair, 0, 0, 8);
    struct timespec now;
    time_t last;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    last = now.tv_sec + 60;
    while (ferry_write(shared->pair.a, shared->pair.peer, &request, 1, NULL, NULL, NULL) != FERRY_ERR_CLOSED) {
        CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
        CHECK(now.tv_sec < last);
    }
}

/* The main thread's call is to begin before; that it has begun cannot be seen. */
static void *let_it_go_on_later(void *context)
{
    struct timespec later = {0, 100000000};
    nanosleep(&later, NULL);
    return let_it_go_on(context);
}

/* By ferry_queue_callback, or by ferry_queue_destroy alone: the caller frees the context after either. */
static void take_away_while_it_closes(int destroy)
{
    shared shared;
    pthread_t closing, helper;
    ferry_status status;
    int ended;
    open_shared(&shared, FERRY_QUEUE_TRANSFERS);
    CHECK_OK(ferry_queue_callback(shared.pair.a, shared.queue, stay_inside, &shared, NULL));
    submit_one(&shared);
    wait_for(&shared.entered);
    CHECK(pthread_create(&closing, NULL, close_for_ever, &shared) == 0);
    await_closing(&shared);
    CHECK_STATUS(ferry_queue_callback(shared.pair.a, shared.queue, remember, &shared, NULL), FERRY_ERR_CLOSED);
    CHECK(pthread_create(&helper, NULL, let_it_go_on_later, &shared) == 0);
    if (destroy)
        status = ferry_queue_destroy(shared.pair.a, shared.queue, NULL);
    else
        status = ferry_queue_callback(shared.pair.a, shared.queue, NULL, NULL, NULL);
    ended = shared.stage;
    CHECK(pthread_join(helper, NULL) == 0 && pthread_join(closing, NULL) == 0);
    CHECK(ended == 1);
    /* CLOSED if this thread came late, on a busy machine: the engine closes as soon as the callback has ended. */
    CHECK(status == FERRY_OK || status == FERRY_ERR_CLOSED);
    CHECK(shared.statuses[0] == FERRY_OK);
    end_shared(&shared);
}

static void a_callback_is_taken_away_while_the_engine_closes(void)
{
    take_away_while_it_closes(0);
    take_away_while_it_closes(1);
}

static void take_itself_away(void *context, const ferry_event *event)
{
    shared *shared = context;
    (void)event;
    shared->stage++;
    shared->statuses[0] = ferry_queue_callback(shared->pair.a, shared->queue, NULL, NULL, NULL);
    sem_post(&shared->done);
}

static void a_callback_may_take_itself_away(void)
{
    shared shared;
    ferry_transfer later;
    open_shared(&shared, FERRY_QUEUE_TRANSFERS);
    CHECK_OK(ferry_queue_callback(shared.pair.a, shared.queue, take_itself_away, &shared, NULL));
    submit_one(&shared);
    wait_for(&shared.done);
    CHECK(shared.statuses[0] == FERRY_OK);
    later = submit_one(&shared);
    CHECK(next_event(shared.pair.a, shared.queue).transfer == later);
    CHECK(shared.stage == 1);
    end_shared(&shared);
}

SUITE(callbacks, CASE(a_callback_gets_events_on_another_thread), CASE(a_callback_may_submit),
      CASE(a_callback_may_not_wait_nor_close), CASE(taking_a_callback_away_waits_for_its_end),
      CASE(a_callback_is_taken_away_while_the_engine_closes), CASE(a_callback_may_take_itself_away));
