/* Notifications: without data and after data, in order, and the owner of their bytes. */
#include "arguments.h"
#include "engines.h"

static void notifications_alone_and_with_data_come_in_order(void)
{
    pair pair = open_pair(65536);
    ferry_queue queue = 0;
    ferry_transfer_options options = new_options();
    ferry_request request = range(&pair, 0, 0, 65536);
    ferry_result result = new_result();
    CHECK_OK(ferry_queue_create(pair.b, FERRY_QUEUE_NOTIFICATIONS, 16, &queue, NULL));
    for (uint64_t i = 0; i < 6; i++) {
        if (i % 2 == 0) {
            CHECK_OK(ferry_notify(pair.a, pair.peer, &i, sizeof i, 0, NULL));
            continue;
        }
        fill(pair.a_memory, 65536, i);
        options.notify = &i;
        options.notify_length = sizeof i;
        CHECK_OK(ferry_write(pair.a, pair.peer, &request, 1, &options, &result, NULL));
        CHECK(result.notification == FERRY_NOTIFICATION_DELIVERED);
    }
    for (uint64_t i = 0; i < 6; i++) {
        ferry_event event = next_event(pair.b, queue);
        CHECK(event.kind == FERRY_EVENT_NOTIFICATION && event.peer == only_peer(pair.b));
        CHECK(event.data_length == sizeof i && memcmp(event.data, &i, sizeof i) == 0);
        ferry_event_release(&event);
    }
    end_pair(&pair);
}

/* Without waiting, so that the notification itself has to wait for the data. */
static void a_notification_comes_behind_its_data(void)
{
    pair pair = open_pair(8 << 20);
    ferry_queue queue = 0;
    ferry_transfer_options options = new_options();
    ferry_request request = range(&pair, 0, 0, 8 << 20);
    CHECK_OK(ferry_queue_create(pair.b, FERRY_QUEUE_NOTIFICATIONS, 16, &queue, NULL));
    for (uint64_t round = 1; round <= 4; round++) {
        ferry_transfer transfer = 0;
        ferry_event event;
        char bytes[] = "copied by submit";
        fill(pair.a_memory, pair.length, round);
        options.notify = bytes;
        options.notify_length = sizeof bytes;
        CHECK_OK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, &request, 1, &options, &transfer,
                                       NULL));
        memset(bytes, 0, sizeof bytes);
        event = next_event(pair.b, queue);
        CHECK(holds(pair.b_memory, 0, pair.length, round, 0));
        CHECK(strcmp(event.data, "copied by submit") == 0);
        ferry_event_release(&event);
        CHECK_OK(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, NULL, NULL));
        CHECK_OK(ferry_transfer_release(pair.a, transfer, NULL));
    }
    end_pair(&pair);
}

static void the_shortest_and_the_longest(void)
{
    pair pair = open_pair(4096);
    static char bytes[FERRY_NOTIFY_BYTES_MAX + 1];
    ferry_queue queue = 0;
    ferry_event event;
    CHECK_OK(ferry_queue_create(pair.b, FERRY_QUEUE_NOTIFICATIONS, 16, &queue, NULL));
    CHECK_OK(ferry_notify(pair.a, pair.peer, NULL, 0, 0, NULL));
    CHECK_STATUS(ferry_notify(pair.a, pair.peer, bytes, sizeof bytes, 0, NULL), FERRY_ERR_LIMIT);
    memset(bytes, 7, sizeof bytes);
    CHECK_OK(ferry_notify(pair.a, pair.peer, bytes, FERRY_NOTIFY_BYTES_MAX, 0, NULL));
    event = next_event(pair.b, queue);
    CHECK(event.kind == FERRY_EVENT_NOTIFICATION && event.data == NULL && event.data_length == 0);
    ferry_event_release(&event);
    event = next_event(pair.b, queue);
    CHECK(event.data_length == FERRY_NOTIFY_BYTES_MAX);
    CHECK(memcmp(event.data, bytes, FERRY_NOTIFY_BYTES_MAX) == 0);
    ferry_event_release(&event);
    end_pair(&pair);
}

static void a_drained_notification_outlives_queue_and_engine(void)
{
    pair pair = open_pair(4096);
    ferry_queue queue = 0;
    ferry_event event;
    CHECK_OK(ferry_queue_create(pair.b, FERRY_QUEUE_NOTIFICATIONS, 16, &queue, NULL));
    CHECK_OK(ferry_notify(pair.a, pair.peer, "outlives", 8, 0, NULL));
    event = next_event(pair.b, queue);
    CHECK_OK(ferry_queue_destroy(pair.b, queue, NULL));
    end_pair(&pair);
    CHECK(event.data_length == 8 && memcmp(event.data, "outlives", 8) == 0);
    ferry_event_release(&event);
    CHECK(event.data == NULL && event.data_length == 0);
    ferry_event_release(&event);
}

/* A notification without data, sent without waiting, on a channel of its own. */
static void a_channel_has_a_queue_of_its_own(void)
{
    pair pair = open_pair(4096);
    ferry_queue application = 0, library = 0;
    ferry_transfer transfer = 0;
    ferry_transfer_options options = new_options();
    ferry_event event;
    CHECK_OK(ferry_queue_create(pair.b, FERRY_QUEUE_NOTIFICATIONS, 16, &application, NULL));
    CHECK_OK(ferry_queue_create_channel(pair.b, FERRY_QUEUE_NOTIFICATIONS, 16, 15, &library, NULL));
    CHECK_STATUS(ferry_queue_create_channel(pair.b, FERRY_QUEUE_NOTIFICATIONS, 16, 15, &library, NULL), FERRY_ERR_BUSY);
    options.notify = "fifteen";
    options.notify_length = 7;
    options.channel = 15;
    CHECK_OK(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, NULL, 0, &options, &transfer, NULL));
    CHECK_OK(ferry_transfer_wait(pair.a, transfer, PATIENCE_NS, NULL, NULL));
    CHECK_OK(ferry_transfer_release(pair.a, transfer, NULL));
    CHECK_OK(ferry_notify(pair.a, pair.peer, "zero", 4, 0, NULL));
    event = next_event(pair.b, library);
    CHECK(event.channel == 15 && event.data_length == 7 && memcmp(event.data, "fifteen", 7) == 0);
    ferry_event_release(&event);
    event = next_event(pair.b, application);
    CHECK(event.channel == 0 && event.data_length == 4 && memcmp(event.data, "zero", 4) == 0);
    ferry_event_release(&event);
    options.channel = FERRY_CHANNELS_MAX;
    CHECK_BAD(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, NULL, 0, &options, &transfer, &error),
              "options.channel: 16 is not 0 to 15");
    CHECK_BAD(ferry_queue_create_channel(pair.b, FERRY_QUEUE_NOTIFICATIONS, 16, 65536, &library, &error),
              "channel: 65536 is not 0 to 15");
    options.channel = 1;
    options.notify = NULL;
    options.notify_length = 0;
    CHECK_BAD(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, NULL, 0, &options, &transfer, &error),
              "options.channel (without notify)");
    options.channel = 0;
    CHECK_BAD(ferry_transfer_submit(pair.a, pair.peer, FERRY_OP_WRITE, NULL, 0, &options, &transfer, &error), "requests");
    end_pair(&pair);
}

static void notifications_wait_for_a_queue_that_takes_them(void)
{
    pair pair = open_pair(4096);
    ferry_queue queue = 0;
    ferry_event event;
    CHECK_OK(ferry_notify(pair.a, pair.peer, "first", 5, 0, NULL));
    CHECK_OK(ferry_notify(pair.a, pair.peer, "second", 6, 0, NULL));
    CHECK_OK(ferry_queue_create(pair.b, FERRY_QUEUE_NOTIFICATIONS, 1, &queue, NULL));
    event = next_event(pair.b, queue);
    CHECK(event.data_length == 5);
    ferry_event_release(&event);
    CHECK_OK(ferry_queue_destroy(pair.b, queue, NULL));
    CHECK_OK(ferry_queue_create(pair.b, FERRY_QUEUE_NOTIFICATIONS, 1, &queue, NULL));
    event = next_event(pair.b, queue);
    CHECK(event.data_length == 6);
    ferry_event_release(&event);
    end_pair(&pair);
}

SUITE(notify, CASE(notifications_alone_and_with_data_come_in_order),
      CASE(a_notification_comes_behind_its_data), CASE(the_shortest_and_the_longest),
      CASE(a_drained_notification_outlives_queue_and_engine),
      CASE(a_channel_has_a_queue_of_its_own), CASE(notifications_wait_for_a_queue_that_takes_them));
