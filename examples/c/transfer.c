/*
 * Two processes with one transfer each way: register, connect, write, notify, read, and wait on the queue's
 * descriptor as an event loop would.
 *
 *   transfer server            prints its address, checks the notified data, ends with the client
 *   transfer client ADDRESS    writes to the server's memory, notifies it, reads the bytes back
 *
 * cc -std=c99 transfer.c -lferry
 */
#define _POSIX_C_SOURCE 200809L
#include <ferry.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND UINT64_C(1000000000)
enum { BYTES = 1 << 20 };

static unsigned char memory[BYTES];
static ferry_error error;

/* If a call has failed, prints the reason and exits. */
static void must(ferry_status status, const char *what)
{
    if (status == FERRY_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, ferry_status_name(status), error.message);
    exit(1);
}

/* Waits until the queue has an event, and takes it. */
static ferry_event next_event(ferry_engine *engine, ferry_queue queue)
{
    struct pollfd entry = {-1, POLLIN, 0};
    ferry_event event;
    size_t count = 0;
    must(ferry_queue_fd(engine, queue, &entry.fd, &error), "eventfd");
    for (;;) {
        must(ferry_queue_drain(engine, queue, &event, sizeof event, 1, &count, &error), "drain");
        if (count == 1) return event;
        if (poll(&entry, 1, 30000) <= 0) {
            fputs("nothing came in 30 seconds\n", stderr);
            exit(1);
        }
    }
}

/* Waits for an event of this kind; skips others. */
static ferry_event next_event_of(ferry_engine *engine, ferry_queue queue, uint32_t kind)
{
    for (;;) {
        ferry_event event = next_event(engine, queue);
        if (event.kind == kind) return event;
        ferry_event_release(&event);
    }
}

static void serve(ferry_engine *engine)
{
    ferry_region region;
    ferry_queue queue;
    ferry_event event;
    char address[300];
    size_t length;
    must(ferry_region_register(engine, memory, BYTES, NULL, &region, &error), "register");
    must(ferry_queue_create(engine, FERRY_QUEUE_NOTIFICATIONS | FERRY_QUEUE_PEERS, 8, &queue, &error), "queue");
    must(ferry_engine_address(engine, address, sizeof address, &length, &error), "address");
    puts(address);
    fflush(stdout);
    event = next_event_of(engine, queue, FERRY_EVENT_NOTIFICATION);
    /* The notification comes after its data: every byte is in place. */
    for (size_t i = 0; i < BYTES; i++) {
        if (memory[i] != (unsigned char)(i * 7)) exit(2);
    }
    printf("server: %d bytes are here, and \"%.*s\"\n", (int)BYTES, (int)event.data_length,
           (const char *)event.data);
    ferry_event_release(&event);
    /* The client reads the bytes back and closes; then the memory may be freed too. */
    next_event_of(engine, queue, FERRY_EVENT_PEER_LOST);
    must(ferry_region_unregister(engine, region, 10 * SECOND, &error), "unregister");
}

/* Moves all of `memory` to or from the peer's first region, and waits for the event. */
static void move(ferry_engine *engine, ferry_peer peer, ferry_queue queue, uint32_t op, const char *word)
{
    ferry_region_info remote;
    ferry_request request;
    ferry_transfer_options options;
    ferry_transfer transfer;
    ferry_event event;
    size_t count;
    must(ferry_peer_regions(engine, peer, &remote, sizeof remote, 1, &count, &error), "regions");
    if (count == 0) exit(2);
    request.local = (uint64_t)(uintptr_t)memory;
    request.remote = remote.address;
    request.length = BYTES;
    request.remote_region = remote.region;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.queue = queue;
    options.notify = word;
    options.notify_length = word == NULL ? 0 : strlen(word);
    must(ferry_transfer_submit(engine, peer, op, &request, 1, &options, &transfer, &error), "submit");
    event = next_event(engine, queue);
    must(ferry_transfer_wait(engine, event.transfer, 0, NULL, &error), "transfer");
    must(ferry_transfer_release(engine, transfer, &error), "release");
}

static void use(ferry_engine *engine, const char *address)
{
    ferry_region region;
    ferry_queue queue;
    ferry_peer peer;
    must(ferry_region_register(engine, memory, BYTES, NULL, &region, &error), "register");
    must(ferry_queue_create(engine, FERRY_QUEUE_TRANSFERS, 4, &queue, &error), "queue");
    must(ferry_peer_connect(engine, address, 10 * SECOND, &peer, &error), "connect");
    for (size_t i = 0; i < BYTES; i++) memory[i] = (unsigned char)(i * 7);
    move(engine, peer, queue, FERRY_OP_WRITE, "written");
    memset(memory, 0, BYTES);
    move(engine, peer, queue, FERRY_OP_READ, NULL);
    for (size_t i = 0; i < BYTES; i++) {
        if (memory[i] != (unsigned char)(i * 7)) exit(2);
    }
    printf("client: wrote %d bytes, and read them back\n", (int)BYTES);
}

int main(int argc, char **argv)
{
    ferry_engine *engine;
    error.struct_size = sizeof error;
    must(ferry_engine_open(NULL, &engine, &error), "open");
    if (argc == 2 && strcmp(argv[1], "server") == 0) {
        serve(engine);
    } else if (argc == 3 && strcmp(argv[1], "client") == 0) {
        use(engine, argv[2]);
    } else {
        fputs("usage: transfer server | transfer client ADDRESS\n", stderr);
        return 1;
    }
    must(ferry_engine_close(engine, 10 * SECOND, &error), "close");
    ferry_engine_free(engine);
    return 0;
}
