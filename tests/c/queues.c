/* Queues: room, arming and draining as poll(2) sees them, handles. */
#include "engines.h"

#include <pthread.h>

static ferry_transfer submit_to(const pair *pair, ferry_queue queue, uint64_t user_data)
{
    ferry_request request = range(pair, 0, 0, 8);
    ferry_transfer_options options = new_options();
    ferry_transfer transfer = 0;
    options.queue = queue;
    options.user_data = user_data;
    CHECK_OK(ferry_transfer_submit(pair->a, pair->peer, FERRY_OP_WRITE, &request, 1, &options, &transfer,
                                   NULL));
    return transfer;
}

static void what_cannot_be_created(void)
{
    ferry_engine *engine = open_engine();
    ferry_queue queue = 0, first = 0;
    CHECK_INVALID(ferry_queue_create(engine, 0, 1, &queue, NULL));
    CHECK_INVALID(ferry_queue_create(engine, 16, 1, &queue, NULL));
    CHECK_INVALID(ferry_queue_create(engine, FERRY_QUEUE_TRANSFERS, 0, &queue, NULL));
    CHECK_INVALID(ferry_queue_create(engine, FERRY_QUEUE_TRANSFERS, (1 << 20) + 1, &queue, NULL));
    CHECK_OK(ferry_queue_create(engine, FERRY_QUEUE_NOTIFICATIONS, 1, &first, NULL));
    CHECK_STATUS(ferry_queue_create(engine, FERRY_QUEUE_NOTIFICATIONS, 1, &queue, NULL), FERRY_ERR_BUSY);
    CHECK(queue == 0);
    CHECK_OK(ferry_queue_destroy(engine, first, NULL));
    CHECK_OK(ferry_queue_create(engine, FERRY_QUEUE_NOTIFICATIONS, 1, &queue, NULL));
    end_engine(engine);
}

static void the_descriptor_is_readable_until_a_drain_comes_short(void)
{
    pair pair = open_pair(4096);
    ferry_queue queue = 0;
    ferry_event events[4];
    ferry_transfer transfers[3];
    size_t count = 0, seen = 0;
    int fd = -1;
    CHECK_OK(ferry_queue_create(pair.a, FERRY_QUEUE_TRANSFERS, 8, &queue, NULL));
    CHECK_OK(ferry_queue_fd(pair.a, queue, &fd, NULL));
    CHECK(fd >= 0 && !readable(fd, 0));
    CHECK_OK(ferry_queue_drain(pair.a, queue, events, sizeof events[0], 4, &count, NULL));
    CHECK(count == 0);
    for (uint64_t i = 0; i < 3; i++) transfers[i] = submit_to(&pair, queue, i);
    for (uint64_t i = 0; i < 3; i++)
        CHECK_OK(ferry_transfer_wait(pair.a, transfers[i], PATIENCE_NS, NULL, NULL));
    CHECK(readable(fd, 60000));
    /* A full drain does not arm, because events may be left. The third event may come after its waiter. */
    CHECK_OK(ferry_queue_drain(pair.a, queue, events, sizeof events[0], 1, &count, NULL));
    CHECK(count == 1 && readable(fd, 0));
    seen = 1;
    while (seen < 3) {
        CHECK(readable(fd, 60000));
        CHECK_OK(ferry_queue_drain(pair.a, queue, events + seen, sizeof events[0], 4 - seen, &count, NULL));
        seen += count;
    }
    CHECK(!readable(fd, 0));
    for (size_t i = 0; i < 3; i++) {
        CHECK(events[i].struct_size == sizeof events[i]);
        CHECK(events[i].data == NULL && events[i].data_length == 0 && events[i].os_error == 0);
    }
    submit_to(&pair, queue, 9);
    CHECK(readable(fd, 60000));
    end_pair(&pair);
}

static void an_event_says_which_transfer_ended_how(void)
{
    pair pair = open_pair(4096);
    ferry_queue queue = 0;
    ferry_transfer transfer;
    ferry_event event;
    CHECK_OK(ferry_queue_create(pair.a, FERRY_QUEUE_TRANSFERS, 1, &queue, NULL));
    transfer = submit_to(&pair, queue, 1234);
    event = next_event(pair.a, queue);
    CHECK(event.kind == FERRY_EVENT_TRANSFER && event.transfer == transfer);
    CHECK(event.user_data == 1234 && event.status == FERRY_OK && event.peer == pair.peer);
    /* A transfer with an event is final. */
    CHECK_OK(ferry_transfer_release(pair.a, transfer, NULL));
    end_pair(&pair);
}

static void room_is_reserved_at_submit(void)
{
    pair pair = open_pair(4096);
    ferry_request request = range(&pair, 0, 0, 8);
    ferry_transfer_options options = new_options();
    ferry_queue queue = 0, peers = 0;
    ferry_transfer transfer = 0, refused = 0;
    ferry_event event;
    CHECK_OK(ferry_queue_create(pair.a, FERRY_QUEUE_TRANSFERS, 1, &queue, NULL));
    CHECK_OK(ferry_queue_create(pair.a, FERRY_QUEUE_PEERS, 1, &peers, NULL));
    transfer = submit_to(&pair, queue, 1);
    options.queue = queue;
    CHECK_STATUS(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, &request, 1, &options, &refused,
                                       NULL), FERRY_ERR_LIMIT);
    CHECK_OK(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, NULL, NULL));
    CHECK_STATUS(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, &request, 1, &options, &refused,
                                       NULL), FERRY_ERR_LIMIT);
    event = next_event(pair.a, queue);
    CHECK(event.transfer == transfer);
    submit_to(&pair, queue, 2);
    options.queue = peers;
    CHECK_INVALID(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, &request, 1, &options, &refused,
                                        NULL));
    options.queue = 1;
    CHECK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, &request, 1, &options, &refused,
                                NULL) <= -100);
    options.queue = queue;
    CHECK_INVALID(ferry_write(pair.a, pair.peer, &request, 1, &options, NULL, NULL));
    CHECK(refused == 0);
    end_pair(&pair);
}

typedef struct {
    ferry_engine *engine;
    ferry_queue queue;
    ferry_event events[4];
    size_t count;
    ferry_status status;
} sleeper;

/* Waits, on a thread of its own. */
static void *sleep_on_queue(void *argument)
{
    sleeper *sleeper = argument;
    sleeper->status = ferry_queue_wait(sleeper->engine, sleeper->queue, PATIENCE_NS, sleeper->events,
                                       sizeof sleeper->events[0], 4, &sleeper->count, NULL);
    return NULL;
}

static void a_wait_ends_with_an_event_and_with_the_queue_and_with_the_engine(void)
{
    pair pair = open_pair(4096);
    sleeper sleeper = {pair.a, 0, {{0}}, 7, FERRY_OK};
    ferry_transfer transfer;
    pthread_t thread;
    int fd = -1;
    CHECK_OK(ferry_queue_create(pair.a, FERRY_QUEUE_TRANSFERS, 8, &sleeper.queue, NULL));
    CHECK_STATUS(ferry_queue_wait(pair.a, sleeper.queue, 0, sleeper.events, sizeof sleeper.events[0], 4,
                                  &sleeper.count, NULL), FERRY_PENDING);
    CHECK(sleeper.count == 0);
    CHECK_STATUS(ferry_queue_wait(pair.a, sleeper.queue, 1000000, sleeper.events, sizeof sleeper.events[0], 4,
                                  &sleeper.count, NULL), FERRY_PENDING);
    CHECK(pthread_create(&thread, NULL, sleep_on_queue, &sleeper) == 0);
    transfer = submit_to(&pair, sleeper.queue, 77);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_OK(sleeper.status);
    CHECK(sleeper.count == 1 && sleeper.events[0].transfer == transfer && sleeper.events[0].user_data == 77);
    CHECK(pthread_create(&thread, NULL, sleep_on_queue, &sleeper) == 0);
    CHECK_OK(ferry_queue_destroy(pair.a, sleeper.queue, NULL));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_STATUS(sleeper.status, FERRY_ERR_STALE);
    CHECK_OK(ferry_queue_create(pair.a, FERRY_QUEUE_TRANSFERS, 8, &sleeper.queue, NULL));
    CHECK_OK(ferry_queue_fd(pair.a, sleeper.queue, &fd, NULL));
    CHECK(!readable(fd, 0));
    CHECK(pthread_create(&thread, NULL, sleep_on_queue, &sleeper) == 0);
    CHECK_OK(ferry_engine_close(pair.a, PATIENCE_NS, NULL));
    CHECK(readable(fd, 0));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_STATUS(sleeper.status, FERRY_ERR_CLOSED);
    end_pair(&pair);
}

static void destroyed_and_foreign_queues_are_stale(void)
{
    ferry_engine *a = open_engine(), *b = open_engine();
    ferry_queue queue = 0;
    ferry_event event;
    size_t count = 7;
    int fd = -7;
    CHECK_OK(ferry_queue_create(a, FERRY_QUEUE_PEERS, 1, &queue, NULL));
    CHECK_STATUS(ferry_queue_destroy(b, queue, NULL), FERRY_ERR_STALE);
    CHECK_OK(ferry_queue_destroy(a, queue, NULL));
    CHECK_STATUS(ferry_queue_destroy(a, queue, NULL), FERRY_ERR_STALE);
    CHECK_STATUS(ferry_queue_fd(a, queue, &fd, NULL), FERRY_ERR_STALE);
    CHECK_STATUS(ferry_queue_drain(a, queue, &event, sizeof event, 1, &count, NULL), FERRY_ERR_STALE);
    CHECK_STATUS(ferry_queue_wait(a, queue, FERRY_FOREVER, &event, sizeof event, 1, &count, NULL),
                 FERRY_ERR_STALE);
    CHECK_STATUS(ferry_queue_callback(a, queue, NULL, NULL, NULL), FERRY_ERR_STALE);
    CHECK_INVALID(ferry_queue_destroy(a, 0, NULL));
    CHECK(fd == -7 && count == 7);
    end_engine(a);
    end_engine(b);
}

static void a_queue_with_transfers_under_way_is_not_destroyed(void)
{
    pair pair = open_pair(4096);
    ferry_transfer_options options = new_options();
    ferry_queue queue = 0;
    ferry_transfer transfer;
    CHECK_OK(ferry_queue_create(pair.a, FERRY_QUEUE_TRANSFERS, 1, &queue, NULL));
    options.queue = queue;
    transfer = hold_transfer(&pair, &options);
    CHECK_STATUS(ferry_queue_destroy(pair.a, queue, NULL), FERRY_ERR_BUSY);
    let_go(&pair);
    CHECK(next_event(pair.a, queue).transfer == transfer);
    CHECK_OK(ferry_queue_destroy(pair.a, queue, NULL));
    end_pair(&pair);
}

static void elements_stand_as_far_apart_as_the_caller_says(void)
{
    pair pair = open_pair(4096);
    struct {
        ferry_event known;
        uint64_t newer[2];
    } events[2];
    ferry_queue queue = 0;
    size_t count = 0;
    int fd = -1;
    CHECK_OK(ferry_queue_create(pair.a, FERRY_QUEUE_TRANSFERS, 2, &queue, NULL));
    CHECK_OK(ferry_queue_fd(pair.a, queue, &fd, NULL));
    memset(events, 0x5a, sizeof events);
    for (uint64_t i = 0; i < 2; i++) submit_to(&pair, queue, i);
    for (size_t seen = 0; seen < 2; seen += count) {
        CHECK(readable(fd, 60000));
        CHECK_OK(ferry_queue_drain(pair.a, queue, &events[seen].known, sizeof events[0], 2 - seen, &count,
                                   NULL));
    }
    CHECK(events[0].known.user_data + events[1].known.user_data == 1);
    CHECK(events[1].known.struct_size == sizeof(ferry_event));
    CHECK(events[0].newer[0] == UINT64_C(0x5a5a5a5a5a5a5a5a));
    end_pair(&pair);
}

SUITE(queues, CASE(what_cannot_be_created), CASE(the_descriptor_is_readable_until_a_drain_comes_short),
      CASE(an_event_says_which_transfer_ended_how), CASE(room_is_reserved_at_submit),
      CASE(a_wait_ends_with_an_event_and_with_the_queue_and_with_the_engine),
      CASE(destroyed_and_foreign_queues_are_stale),
      CASE(a_queue_with_transfers_under_way_is_not_destroyed),
      CASE(elements_stand_as_far_apart_as_the_caller_says));
