/*
 * A process of the soak (soak.py), in C. Each of ferry's languages has this program, and any two of them can talk.
 *
 * The node prints "ADDRESS host:port" and takes one command a line from its standard input:
 *
 *   exchange ADDRESS SLOT BYTES PIECES COUNT SERIAL
 *
 * COUNT times, with SERIAL, SERIAL + 1, ...: the node writes BYTES into its slot of the peer's region "soak", as PIECES
 * requests that turn the order of the pieces round, with a notification. The node reads the slot back and checks each
 * byte. The peer checks each byte too, and writes the serial into the slot's word of acknowledgement, with the bit
 * BAD if a byte is wrong; the node reads that word until it has the answer. An answer with another serial belongs to a
 * notification that was given up and came nevertheless. The node answers "OK" and the microseconds of each WRITE, or "FAILED" or
 * "CORRUPT" and a sentence. The node ends at the end of its input.
 *
 * Word k (8 bytes) of a pattern is serial << 32 | k, so each word says where and when it belongs. A region "soak" has
 * SLOTS slots of SLOT_BYTES, and behind them a word for each slot. A notification is slot, bytes, pieces and serial as
 * 64-bit numbers of this host.
 */
#define _POSIX_C_SOURCE 200809L
#include <ferry.h>

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECOND UINT64_C(1000000000)
#define BAD (UINT64_C(1) << 63)
enum { SLOTS = 16, SLOT_BYTES = 1 << 20, PATIENCE_S = 10, REGIONS_MAX = 64 };

struct notice {
    uint64_t slot, bytes, pieces, serial;
};

static ferry_engine *engine;
static ferry_queue queue;
static unsigned char *soak;
static atomic_int ending;

/* The place in the slot of the byte at `place` of the source, and the other way round. */
static uint64_t turned(uint64_t place, uint64_t bytes, uint64_t pieces)
{
    uint64_t piece = bytes / pieces;
    return (pieces - 1 - place / piece) * piece + place % piece;
}

/* Returns the first word that is wrong, or -1. */
static int64_t wrong(const unsigned char *slot, const struct notice *notice)
{
    for (uint64_t at = 0; at < notice->bytes; at += 8) {
        uint64_t word, wanted = notice->serial << 32 | turned(at, notice->bytes, notice->pieces) / 8;
        memcpy(&word, slot + at, 8);
        if (word != wanted) return (int64_t)(at / 8);
    }
    return -1;
}

static void acknowledge(const struct notice *notice)
{
    uint64_t *words = (uint64_t *)(void *)(soak + (size_t)SLOTS * SLOT_BYTES);
    if (notice->slot >= SLOTS || notice->bytes > SLOT_BYTES || notice->pieces == 0) return;
    uint64_t word = wrong(soak + notice->slot * SLOT_BYTES, notice) < 0 ? notice->serial : notice->serial | BAD;
    __atomic_store_n(&words[notice->slot], word, __ATOMIC_RELEASE);
}

static void *check_what_comes(void *unused)
{
    struct pollfd entry = {-1, POLLIN, 0};
    (void)unused;
    if (ferry_queue_fd(engine, queue, &entry.fd, NULL) != FERRY_OK) abort();
    while (!atomic_load(&ending)) {
        ferry_event event;
        size_t count = 0;
        if (ferry_queue_drain(engine, queue, &event, sizeof event, 1, &count, NULL) != FERRY_OK) abort();
        if (count == 0) {
            poll(&entry, 1, 200);
            continue;
        }
        if (event.kind == FERRY_EVENT_NOTIFICATION && event.data_length == sizeof(struct notice)) {
            struct notice notice;
            memcpy(&notice, event.data, sizeof notice);
            acknowledge(&notice);
        }
        ferry_event_release(&event);
    }
    return NULL;
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* The answer to the command that runs. */
static char answer[1 << 16];
static size_t answer_length;

static void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(answer + answer_length, sizeof answer - answer_length, format, arguments);
    va_end(arguments);
    if (length > 0 && answer_length + (size_t)length < sizeof answer) answer_length += (size_t)length;
}

static int failed(const char *what, ferry_status status, const ferry_error *error)
{
    answer_length = 0;
    say("FAILED %s: %s: %s", what, ferry_status_name(status), error->message);
    return 0;
}

static int corrupt(const char *what, uint64_t serial)
{
    answer_length = 0;
    say("CORRUPT %s, serial %" PRIu64, what, serial);
    return 0;
}

/* One round: WRITE, READ, and the peer's answer. Returns 0 if it failed. */
static int round_of(ferry_peer peer, const ferry_region_info *there, unsigned char *here, const struct notice *notice)
{
    uint64_t piece = notice->bytes / notice->pieces, remote = there->address + notice->slot * SLOT_BYTES;
    uint64_t local = (uint64_t)(uintptr_t)here;
    unsigned char *back = here + SLOT_BYTES, *word = back + SLOT_BYTES;
    ferry_error error = {.struct_size = sizeof error};
    ferry_transfer_options options;
    ferry_request requests[64];
    ferry_status status;
    for (uint64_t k = 0; k < notice->bytes / 8; k++) {
        uint64_t value = notice->serial << 32 | k;
        memcpy(here + 8 * k, &value, 8);
    }
    for (uint64_t i = 0; i < notice->pieces; i++) {
        ferry_request one = {local + i * piece, remote + turned(i * piece, notice->bytes, notice->pieces), piece, there->region};
        requests[i] = one;
    }
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.notify = notice;
    options.notify_length = sizeof *notice;
    double before = now_us();
    status = ferry_write(engine, peer, requests, notice->pieces, &options, NULL, &error);
    if (status != FERRY_OK) return failed("write", status, &error);
    say(" %.1f", now_us() - before);
    ferry_request all = {local + SLOT_BYTES, remote, notice->bytes, there->region};
    memset(back, 0, notice->bytes);
    status = ferry_read(engine, peer, &all, 1, NULL, NULL, &error);
    if (status != FERRY_OK) return failed("read", status, &error);
    if (wrong(back, notice) >= 0) return corrupt("what was read back", notice->serial);
    ferry_request acknowledgement = {
        local + 2 * SLOT_BYTES, there->address + (uint64_t)SLOTS * SLOT_BYTES + notice->slot * 8, 8, there->region};
    for (double end = now_us() + PATIENCE_S * 1e6; now_us() < end;) {
        uint64_t found;
        status = ferry_read(engine, peer, &acknowledgement, 1, NULL, NULL, &error);
        if (status != FERRY_OK) return failed("read", status, &error);
        memcpy(&found, word, 8);
        if (found == notice->serial) return 1;
        if (found == (notice->serial | BAD)) return corrupt("what the peer found", notice->serial);
    }
    answer_length = 0;
    say("FAILED the peer did not answer");
    return 0;
}

static int exchange(const char *address, struct notice notice, uint64_t count)
{
    ferry_error error = {.struct_size = sizeof error};
    ferry_alloc_options plain;
    ferry_region_info regions[REGIONS_MAX];
    ferry_peer peer;
    ferry_region region;
    void *here;
    size_t found = 0, total;
    ferry_status status = ferry_peer_connect(engine, address, PATIENCE_S * SECOND, &peer, &error);
    if (status != FERRY_OK) return failed("connect", status, &error);
    status = ferry_peer_regions(engine, peer, regions, sizeof regions[0], REGIONS_MAX, &total, &error);
    if (status != FERRY_OK) return failed("regions", status, &error);
    if (total > REGIONS_MAX) total = REGIONS_MAX;
    while (found < total && strcmp(regions[found].name, "soak") != 0) found++;
    if (found == total) {
        say("FAILED the peer has no region \"soak\"");
        return 0;
    }
    memset(&plain, 0, sizeof plain);
    plain.struct_size = sizeof plain;
    plain.access = FERRY_ACCESS_REMOTE_READ | FERRY_ACCESS_REMOTE_WRITE;
    status = ferry_memory_alloc(engine, 2 * SLOT_BYTES + 64, &plain, &here, &region, &error);
    if (status != FERRY_OK) return failed("alloc", status, &error);
    say("OK");
    int is_good = 1;
    for (uint64_t i = 0; i < count && is_good; i++, notice.serial++)
        is_good = round_of(peer, &regions[found], here, &notice);
    status = ferry_memory_free(engine, region, PATIENCE_S * SECOND, &error);
    if (status != FERRY_OK) return failed("free", status, &error);
    return is_good;
}

int main(void)
{
    ferry_error error = {.struct_size = sizeof error};
    ferry_alloc_options options;
    ferry_region region;
    pthread_t checker;
    char address[300], line[512];
    size_t length;
    void *memory;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.access = FERRY_ACCESS_REMOTE_READ | FERRY_ACCESS_REMOTE_WRITE;
    options.name = "soak";
    if (ferry_engine_open(NULL, &engine, &error) != FERRY_OK
        || ferry_memory_alloc(engine, (size_t)SLOTS * SLOT_BYTES + SLOTS * 8, &options, &memory, &region, &error) != FERRY_OK
        || ferry_queue_create(engine, FERRY_QUEUE_NOTIFICATIONS, 64, &queue, &error) != FERRY_OK
        || ferry_engine_address(engine, address, sizeof address, &length, &error) != FERRY_OK) {
        fprintf(stderr, "node: %s\n", error.message);
        return 1;
    }
    soak = memory;
    if (pthread_create(&checker, NULL, check_what_comes, NULL) != 0) return 1;
    printf("ADDRESS %s\n", address);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        struct notice notice;
        uint64_t count;
        answer_length = 0;
        if (sscanf(line, "exchange %299s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, address, &notice.slot,
                   &notice.bytes, &notice.pieces, &count, &notice.serial) != 6
            || notice.bytes > SLOT_BYTES || notice.pieces == 0 || notice.pieces > 64) {
            say("FAILED no such command");
        } else {
            exchange(address, notice, count);
        }
        puts(answer);
        fflush(stdout);
    }
    atomic_store(&ending, 1);
    pthread_join(checker, NULL);
    if (ferry_engine_close(engine, PATIENCE_S * SECOND, &error) != FERRY_OK) {
        fprintf(stderr, "node: close: %s\n", error.message);
        return 1;
    }
    ferry_engine_free(engine);
    return 0;
}
