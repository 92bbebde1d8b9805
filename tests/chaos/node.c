/* A node of chaos, in C; host.h documents what it is told and what it says. */
#define _GNU_SOURCE
#include <ferry.h>

#include "host.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MILLISECOND UINT64_C(1000000)
#define SECOND (1000 * MILLISECOND)
enum { LINE = 4096, PIECES = 16, BATCH = 64 };

/* A transfer that is not final. */
struct open {
    uint64_t id;
    ferry_transfer transfer;
    struct open *next;
};

/* A command that waits, for its thread. */
struct task {
    char line[LINE];
};

static ferry_engine *engine;
static ferry_queue queue;
static atomic_int closing;
/* Locked while a transfer is submitted, so that its end finds it in `opens`. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct open *opens;
/* Commands that wait. */
static atomic_int tasks;

static void tell(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    flockfile(stdout);
    vprintf(format, arguments);
    putchar('\n');
    fflush(stdout);
    funlockfile(stdout);
    va_end(arguments);
}

static void demand(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "node: %s\n", what);
    exit(1);
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static const char *text_of(ferry_status status, const ferry_error *error)
{
    return status == FERRY_OK ? "OK" : error->message;
}

static void final_state(const ferry_event *event)
{
    static const char *states[] = {"?", "?", "?", "Done", "Failed", "Cancelled", "TimedOut"};
    static const char *fences[] = {"?", "Confirmed", "Dead", "Lease"};
    static const char *notifications[] = {"None", "Delivered", "NotSent", "Unknown"};
    static const char *transports[] = {"none", "tcp", "local", "rdma", "cuda", "ascend"};
    pthread_mutex_lock(&lock);
    struct open **at = &opens;
    while (*at != NULL && (*at)->id != event->user_data) at = &(*at)->next;
    struct open *found = *at;
    if (found != NULL) *at = found->next;
    pthread_mutex_unlock(&lock);
    if (found == NULL) {
        tell("again %" PRIu64, event->user_data);
        return;
    }
    ferry_result result = FERRY_RESULT_INIT;
    result.struct_size = sizeof result;
    ferry_transfer_wait(engine, found->transfer, 0, &result, NULL);
    demand(result.state >= FERRY_STATE_DONE && result.state <= FERRY_STATE_TIMED_OUT, "a transfer has ended and is not final");
    demand(ferry_transfer_release(engine, found->transfer, NULL) == FERRY_OK, "a final transfer is not released");
    free(found);
    tell("final %" PRIu64 " %s %s %s %s %s", event->user_data, states[result.state], ferry_status_name(result.status),
         fences[result.fence & 3], notifications[result.notification & 3], transports[result.transport % 6]);
}

static void take(const ferry_event *event)
{
    if (event->kind == FERRY_EVENT_TRANSFER) {
        final_state(event);
    } else if (event->kind == FERRY_EVENT_NOTIFICATION) {
        uint64_t id;
        int64_t wrong = host_note(event->data, event->data_length, &id);
        if (wrong < 0) tell("note %" PRIu64 " whole", id);
        else tell("note %" PRIu64 " broken at %#" PRIx64, id, (uint64_t)wrong);
    } else if (event->kind == FERRY_EVENT_LATE_APPLY) {
        tell("late %" PRIu64 " %" PRIu64, event->address - HOST_ARENA, event->length);
    } else if (event->kind == FERRY_EVENT_PEER_LOST) {
        tell("lost %" PRIu64 " %s %.*s", event->peer, ferry_status_name(event->status), (int)event->data_length,
             event->data == NULL ? "" : (const char *)event->data);
    }
}

static void *take_events(void *unused)
{
    ferry_event events[BATCH];
    struct pollfd entry = {-1, POLLIN, 0};
    (void)unused;
    demand(ferry_queue_fd(engine, queue, &entry.fd, NULL) == FERRY_OK, "the queue has no descriptor");
    while (!atomic_load(&closing)) {
        size_t count = 0;
        ferry_status status = ferry_queue_drain(engine, queue, events, sizeof events[0], BATCH, &count, NULL);
        if (status == FERRY_ERR_CLOSED) break;
        demand(status == FERRY_OK, "the queue cannot be drained");
        for (size_t i = 0; i < count; i++) {
            take(&events[i]);
            ferry_event_release(&events[i]);
        }
        if (count < BATCH) poll(&entry, 1, 50);
    }
    return NULL;
}

static void *wait_for(void *argument)
{
    struct task *task = argument;
    char address[256];
    ferry_error error = {.struct_size = sizeof error};
    ferry_status status;
    uint64_t a, b, c;
    if (sscanf(task->line, "connect %" SCNu64 " %" SCNu64 " %255s", &a, &b, address) == 3) {
        ferry_peer peer;
        status = ferry_peer_connect(engine, address, 2 * SECOND, &peer, &error);
        if (status == FERRY_OK) tell("connected %" PRIu64 " %" PRIu64 " %" PRIu64, a, b, peer);
        else tell("unconnected %" PRIu64 " %" PRIu64 " %s: %s", a, b, ferry_status_name(status), error.message);
    } else if (sscanf(task->line, "notify %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c) == 3) {
        char note[32];
        int length = snprintf(note, sizeof note, "%" PRIu64 " ", a);
        status = ferry_notify(engine, b, note, (size_t)length, c > 0 ? c * MILLISECOND : 1, &error);
        tell("noted %" PRIu64 " %s", a, ferry_status_name(status));
    } else if (sscanf(task->line, "fence %" SCNu64, &a) == 1) {
        status = ferry_peer_fence(engine, a, 5 * SECOND, &error);
        tell("fenced %" PRIu64 " %s", a, ferry_status_name(status));
    }
    free(task);
    atomic_fetch_sub(&tasks, 1);
    return NULL;
}

static void start(const char *line)
{
    struct task *task = malloc(sizeof *task);
    pthread_t thread;
    demand(task != NULL, "no memory");
    snprintf(task->line, sizeof task->line, "%s", line);
    atomic_fetch_add(&tasks, 1);
    demand(pthread_create(&thread, NULL, wait_for, task) == 0 && pthread_detach(thread) == 0, "no thread");
}

static void submit(const char *line)
{
    uint64_t id, peer, region, deadline;
    char op, flags[16], note[PIECES * 48];
    int taken = 0;
    size_t count = 0;
    ferry_request requests[PIECES];
    ferry_error error = {.struct_size = sizeof error};
    ferry_transfer_options options = FERRY_TRANSFER_OPTIONS_INIT;
    demand(sscanf(line, "op %" SCNu64 " %c %" SCNu64 " %" SCNu64 " %" SCNu64 " %15s%n", &id, &op, &peer, &region, &deadline,
                  flags, &taken) == 6, line);
    int length = snprintf(note, sizeof note, "%" PRIu64 " ", id);
    for (const char *at = line + taken; count < PIECES; at += taken, count++) {
        uint64_t local, remote, bytes;
        if (sscanf(at, " %" SCNu64 ":%" SCNu64 ":%" SCNu64 "%n", &local, &remote, &bytes, &taken) != 3) break;
        ferry_request request = {HOST_ARENA + local, HOST_ARENA + remote, bytes, region};
        requests[count] = request;
        length += snprintf(note + length, sizeof note - (size_t)length, "%" PRIu64 ":%" PRIu64 " ", remote, bytes);
    }
    if (strchr(flags, 'o') != NULL) options.flags |= FERRY_TRANSFER_ORDERED;
    if (strchr(flags, 'c') != NULL) options.flags |= FERRY_TRANSFER_CHECKSUM;
    if (strchr(flags, 's') != NULL) options.flags |= FERRY_TRANSFER_NO_COALESCE;
    if (strchr(flags, 'n') != NULL) {
        options.notify = note;
        options.notify_length = (size_t)length;
    }
    options.deadline_ns = deadline > 0 ? deadline * MILLISECOND : 1;
    options.user_data = id;
    options.queue = queue;
    struct open *open = malloc(sizeof *open);
    demand(open != NULL, "no memory");
    open->id = id;
    pthread_mutex_lock(&lock);
    ferry_status status = ferry_transfer_submit(engine, peer, op == 'w' ? FERRY_OP_WRITE : FERRY_OP_READ, requests, count,
                                                &options, &open->transfer, &error);
    if (status == FERRY_OK) {
        open->next = opens;
        opens = open;
    }
    pthread_mutex_unlock(&lock);
    if (status == FERRY_OK) return;
    free(open);
    tell("refused %" PRIu64 " %s %s", id, ferry_status_name(status), error.message);
}

static void cancel(uint64_t id)
{
    pthread_mutex_lock(&lock);
    for (struct open *open = opens; open != NULL; open = open->next)
        if (open->id == id) ferry_transfer_cancel(engine, open->transfer, NULL);
    pthread_mutex_unlock(&lock);
}

/* Opens an engine with the settings of a line; at any port if `apart`. */
static ferry_status open_engine(const char *settings, int apart, ferry_error *error)
{
    ferry_config *config;
    char copy[LINE], *rest = copy;
    snprintf(copy, sizeof copy, "%s", settings);
    demand(ferry_config_new(&config, error) == FERRY_OK, "no configuration");
    for (char *word; (word = strsep(&rest, " \n")) != NULL;) {
        char *value = strchr(word, '=');
        if (value == NULL) continue;
        *value++ = 0;
        demand(ferry_config_set(config, word, value, error) == FERRY_OK, error->message);
    }
    if (apart) ferry_config_set(config, "listen_address", "127.0.0.1:0", NULL);
    ferry_status status = ferry_engine_open(config, &engine, error);
    ferry_config_free(config);
    return status;
}

static void close_all(ferry_region region, pthread_t taker, struct host_usage before)
{
    ferry_error error = {.struct_size = sizeof error};
    uint64_t began = now_ms();
    ferry_status status = ferry_region_unregister(engine, region, 5 * SECOND, &error);
    tell("unregistered %" PRIu64 " %s", now_ms() - began, text_of(status, &error));
    began = now_ms();
    status = ferry_engine_close(engine, 10 * SECOND, &error);
    uint64_t took = now_ms() - began;
    atomic_store(&closing, 1);
    pthread_join(taker, NULL);
    /* A closed engine ends every wait. */
    while (atomic_load(&tasks) > 0) poll(NULL, 0, 5);
    tell("closed %" PRIu64 " %s", took, text_of(status, &error));
    ferry_engine_free(engine);
    struct host_usage after = host_usage_after(before);
    tell("usage %d %d %d %d", before.descriptors, after.descriptors, before.threads, after.threads);
}

int main(void)
{
    char line[LINE], what[16], address[256];
    ferry_error error = {.struct_size = sizeof error};
    ferry_region_options everything;
    ferry_region region;
    pthread_t taker;
    size_t length;
    void *arena = host_map();
    memset(&everything, 0, sizeof everything);
    everything.struct_size = sizeof everything;
    everything.access = FERRY_ACCESS_REMOTE_READ | FERRY_ACCESS_REMOTE_WRITE;
    demand(fgets(line, sizeof line, stdin) != NULL, "there are no settings");
    /* Descriptors that the process opens once and keeps do not count as leaked. */
    demand(open_engine(line, 1, &error) == FERRY_OK && ferry_engine_close(engine, FERRY_FOREVER, &error) == FERRY_OK,
           error.message);
    ferry_engine_free(engine);
    struct host_usage before = host_usage_before();
    if (open_engine(line, 0, &error) != FERRY_OK) {
        tell("unopened %s", error.message);
        return 0;
    }
    demand(ferry_region_register(engine, arena, HOST_ARENA_BYTES, &everything, &region, &error) == FERRY_OK
               && ferry_engine_address(engine, address, sizeof address, &length, &error) == FERRY_OK
               && ferry_queue_create(engine, FERRY_QUEUE_PEERS | FERRY_QUEUE_NOTIFICATIONS | FERRY_QUEUE_TRANSFERS, 16384,
                                     &queue, &error) == FERRY_OK,
           error.message);
    demand(pthread_create(&taker, NULL, take_events, NULL) == 0, "no thread");
    tell("opened %" PRIu64 " %s", region, address);
    while (fgets(line, sizeof line, stdin) != NULL) {
        uint64_t number;
        if (strncmp(line, "op ", 3) == 0) {
            submit(line);
        } else if (sscanf(line, "cancel %" SCNu64, &number) == 1) {
            cancel(number);
        } else if (sscanf(line, "limit %15s %" SCNu64, what, &number) == 2) {
            host_limit(what, (int64_t)number);
        } else if (sscanf(line, "unlimit %15s", what) == 1) {
            host_limit(what, -1);
        } else if (strncmp(line, "close", 5) == 0) {
            close_all(region, taker, before);
            return 0;
        } else {
            start(line);
        }
    }
    /* The parent is gone. */
    _Exit(0);
}
