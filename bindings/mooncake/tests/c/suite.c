/*
 * The interface from a program's side: two processes, WRITE and READ byte by byte, batches, notices, wrong
 * arguments, lost peers, threads. Longer than 500 lines: each function tells one story, and all share the two sides.
 *
 *     suite [FILTER]        runs the tests whose name contains FILTER
 *     suite --peer HOST     is the other process
 *     suite --open HOST     tries to make an engine there; 0 if it can
 */
#define _POSIX_C_SOURCE 200809L
#include "peer.h"
#include "runner.h"

#include <ferry_mooncake.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* This side. Its memory outlives every engine here. */
static transfer_engine_t engine;
static peer other;
static segment_id_t segment;
static unsigned char memory[MEMORY_BYTES];
const char *program;

static transfer_engine_t opened(void)
{
    transfer_engine_t made = createTransferEngine("P2PHANDSHAKE", "127.0.0.1:12345", "", 0, 1);
    CHECK(made != NULL);
    return made;
}

static void begin(void)
{
    engine = opened();
    CHECK(registerLocalMemory(engine, memory, sizeof memory, "*", 1) == 0);
    peer_start(&other, "127.0.0.1");
    segment = openSegment(engine, other.session);
    CHECK(segment > LOCAL_SEGMENT);
}

/* Begins over TCP with these variables and values. The list ends with NULL. Later engines do not see the variables. */
static void begin_with(const char *const *settings)
{
    const char *const *one;
    setenv("FERRY_TRANSPORTS", "tcp", 1);
    for (one = settings; *one != NULL; one += 2) setenv(one[0], one[1], 1);
    begin();
    for (one = settings; *one != NULL; one += 2) unsetenv(one[0]);
}

static void end(void)
{
    destroyTransferEngine(engine);
    peer_stop(&other);
}

static transfer_request_t request(int opcode, size_t at, size_t to, size_t length)
{
    transfer_request_t made;
    memset(&made, 0, sizeof made);
    made.opcode = opcode;
    made.source = memory + at;
    made.target_id = segment;
    made.target_offset = other.address + to;
    made.length = length;
    return made;
}

/* Waits for the task and returns its final status. */
static transfer_status_t final(batch_id_t batch, size_t task)
{
    transfer_status_t status;
    do {
        CHECK(getTransferStatus(engine, batch, task, &status) == 0);
    } while (status.status == STATUS_WAITING);
    return status;
}

/* Submits the entries as a new batch and waits; returns the first status that is not COMPLETED. */
static int moved(transfer_request_t *requests, size_t count)
{
    const batch_id_t batch = allocateBatchID(engine, count);
    int outcome = STATUS_COMPLETED;
    CHECK(batch != INVALID_BATCH);
    CHECK(submitTransfer(engine, batch, requests, count) == 0);
    for (size_t task = 0; task < count; task++) {
        const transfer_status_t status = final(batch, task);
        if (status.status == STATUS_COMPLETED) CHECK(status.transferred_bytes == requests[task].length);
        else if (outcome == STATUS_COMPLETED) outcome = status.status;
    }
    CHECK(freeBatchID(engine, batch) == 0);
    return outcome;
}

static int wrote(size_t at, size_t length)
{
    transfer_request_t one = request(OPCODE_WRITE, at, at, length);
    return moved(&one, 1);
}

static notify_msg_t notice(const char *name, const char *msg)
{
    notify_msg_t made;
    made.name = (char *)(uintptr_t)name;
    made.msg = (char *)(uintptr_t)msg;
    return made;
}

/* ------------------------------------------------------------------------------------------------------ */

static void bytes_arrive_where_they_belong(void)
{
    const size_t lengths[] = {1, 7, 4096, 65536, 65537, (1 << 20) + 3, MEMORY_BYTES - 64};
    begin();
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const size_t length = lengths[i], from = 32;
        transfer_request_t one = request(OPCODE_WRITE, from, from, length);
        pattern_fill(memory, 2 * i + 1, 0, MEMORY_BYTES);
        CHECK(peer_ask(&other, "fill", 0, 0, MEMORY_BYTES) == 1);
        CHECK(moved(&one, 1) == STATUS_COMPLETED);
        CHECK(peer_ask(&other, "holds", 2 * i + 1, from, length) == 1);
        CHECK(peer_ask(&other, "holds", 0, 0, from) == 1);
        CHECK(peer_ask(&other, "holds", 0, from + length, MEMORY_BYTES - from - length) == 1);
        CHECK(peer_ask(&other, "fill", 2 * i + 2, 0, MEMORY_BYTES) == 1);
        one.opcode = OPCODE_READ;
        CHECK(moved(&one, 1) == STATUS_COMPLETED);
        CHECK(pattern_holds(memory, 2 * i + 2, from, length));
        CHECK(pattern_holds(memory, 2 * i + 1, 0, from));
        CHECK(pattern_holds(memory, 2 * i + 1, from + length, MEMORY_BYTES - from - length));
    }
    end();
}

enum { BLOCKS = 1024, BLOCK = 4096 };

/* WRITEs and READs in one submit, in an order that is sorted on neither side. */
static void tasks_keep_their_numbers(void)
{
    static transfer_request_t requests[BLOCKS];
    const size_t half = (size_t)BLOCKS / 2 * BLOCK;
    batch_id_t batch;
    transfer_status_t status;
    begin();
    pattern_fill(memory, 1, 0, half);
    CHECK(peer_ask(&other, "fill", 2, half, half) == 1);
    for (size_t i = 0; i < BLOCKS; i++) {
        const size_t block = i * 389 % BLOCKS;
        const int opcode = block < BLOCKS / 2 ? OPCODE_WRITE : OPCODE_READ;
        /* The lengths differ, so that each task can be told from the others. */
        requests[i] = request(opcode, block * BLOCK, block * BLOCK, BLOCK - block);
    }
    batch = allocateBatchID(engine, BLOCKS);
    CHECK(submitTransfer(engine, batch, requests, 24) == 0);
    CHECK(submitTransfer(engine, batch, NULL, 0) == 0);
    CHECK(submitTransfer(engine, batch, requests + 24, BLOCKS - 24) == 0);
    CHECK(submitTransfer(engine, batch, requests, 1) == 2);
    for (size_t i = 0; i < BLOCKS; i++) {
        status = final(batch, i);
        CHECK(status.status == STATUS_COMPLETED && status.transferred_bytes == requests[i].length);
    }
    /* A second look gives the same: the status is final. */
    CHECK(final(batch, 7).transferred_bytes == requests[7].length);
    CHECK(getTransferStatus(engine, batch, BLOCKS, &status) == 1 && status.status == STATUS_INVALID);
    for (size_t block = 0; block < BLOCKS; block++) {
        if (block < BLOCKS / 2) CHECK(peer_ask(&other, "holds", 1, block * BLOCK, BLOCK - block) == 1);
        else CHECK(pattern_holds(memory, 2, block * BLOCK, BLOCK - block));
    }
    CHECK(freeBatchID(engine, batch) == 0);
    CHECK(freeBatchID(engine, batch) == 1);
    CHECK(getTransferStatus(engine, batch, 0, &status) == 1);
    CHECK(submitTransfer(engine, batch, requests, 1) == 1);
    end();
}

static void a_batch_of_no_tasks_has_room_for_none(void)
{
    batch_id_t batch;
    transfer_request_t one;
    begin();
    one = request(OPCODE_WRITE, 0, 0, 8);
    batch = allocateBatchID(engine, 0);
    CHECK(batch != INVALID_BATCH);
    CHECK(submitTransfer(engine, batch, &one, 1) == 2);
    CHECK(freeBatchID(engine, batch) == 0);
    /* A batch of any size is allocated, because only submitted tasks take memory. */
    batch = allocateBatchID(engine, SIZE_MAX);
    CHECK(submitTransfer(engine, batch, &one, 1) == 0);
    CHECK(final(batch, 0).status == STATUS_COMPLETED);
    CHECK(freeBatchID(engine, batch) == 0);
    end();
}

/* 1,024 notices wait at the peer, so a transfer with one more is not final until they are taken. */
static void what_is_pending_is_not_freed(void)
{
    enum { WAITING = 1024 };
    transfer_request_t one;
    transfer_status_t status;
    batch_id_t batch;
    char text[32];
    begin();
    CHECK(peer_ask(&other, "fill", 1, 0, MEMORY_BYTES) == 1);
    pattern_fill(memory, 1 + WAITING, 0, MEMORY_BYTES);
    for (int i = 0; i < WAITING; i++) {
        snprintf(text, sizeof text, "%d", 1 + i);
        CHECK(genNotifyInEngine(engine, (uint64_t)segment, notice("layer", text)) == 0);
    }
    one = request(OPCODE_WRITE, 4096, 4096, 4096);
    batch = allocateBatchID(engine, 1);
    snprintf(text, sizeof text, "%d", 1 + WAITING);
    CHECK(submitTransferWithNotify(engine, batch, &one, 1, notice("layer", text)) == 0);
    CHECK(getTransferStatus(engine, batch, 0, &status) == 0);
    CHECK(status.status == STATUS_WAITING && status.transferred_bytes == 0);
    CHECK(freeBatchID(engine, batch) == 4);
    CHECK(peer_ask(&other, "notices", 1, WAITING + 1, 0) == 1);
    CHECK(final(batch, 0).status == STATUS_COMPLETED);
    CHECK(freeBatchID(engine, batch) == 0);
    CHECK(peer_ask(&other, "holds", 1 + WAITING, 4096, 4096) == 1);
    end();
}

/* Each notice comes once, in order, after its bytes; the initiator does not poll. */
static void notices_follow_their_data(void)
{
    enum { ROUNDS = 20, STEP = 300000 };
    batch_id_t batch;
    char text[32];
    begin();
    batch = allocateBatchID(engine, ROUNDS);
    for (int i = 0; i < ROUNDS; i++) {
        transfer_request_t one = request(OPCODE_WRITE, (size_t)i * STEP, (size_t)i * STEP, STEP);
        pattern_fill(memory, 500ul + (unsigned long)i, (size_t)i * STEP, STEP);
        snprintf(text, sizeof text, "%d", 500 + i);
        CHECK(submitTransferWithNotify(engine, batch, &one, 1, notice("layer", text)) == 0);
    }
    CHECK(peer_ask(&other, "notices", 500, ROUNDS, STEP) == 1);
    for (size_t i = 0; i < ROUNDS; i++) CHECK(final(batch, i).status == STATUS_COMPLETED);
    CHECK(freeBatchID(engine, batch) == 0);
    end();
}

static void notices_have_limits(void)
{
    static char longest[16384 - 4 + 1];
    transfer_request_t requests[2];
    batch_id_t batch;
    int size = 77;
    transfer_engine_t target;
    char session[64];
    notify_msg_t *list;
    begin();
    target = opened();
    CHECK(getLocalIpAndPort(target, session, sizeof session) == 0);
    CHECK(getNotifsFromEngine(target, &size) == NULL && size == 0);
    CHECK(freeNotifsMsgBuf(NULL, 0) == 0 && freeNotifsMsgBuf(NULL, -1) == -1);
    memset(longest, 'x', sizeof longest - 1);
    segment = openSegment(engine, session);
    CHECK(genNotifyInEngine(engine, (uint64_t)segment, notice("", longest)) == 0);
    CHECK(genNotifyInEngine(engine, (uint64_t)segment, notice("\xff not UTF-8", "")) == 0);
    CHECK(genNotifyInEngine(engine, (uint64_t)segment, notice("n", longest)) == -2);
    CHECK(genNotifyInEngine(engine, (uint64_t)segment, notice(NULL, "m")) == -1);
    CHECK(genNotifyInEngine(engine, (uint64_t)segment, notice("n", NULL)) == -1);
    CHECK(genNotifyInEngine(engine, UINT64_MAX, notice("n", "m")) == -1);
    CHECK(genNotifyInEngine(engine, 0, notice("n", "m")) == -1);
    do list = getNotifsFromEngine(target, &size);
    while (size == 0);
    CHECK(size == 2);
    CHECK(strcmp(list[0].name, "") == 0 && strcmp(list[0].msg, longest) == 0);
    CHECK(strcmp(list[1].name, "\xff not UTF-8") == 0 && strcmp(list[1].msg, "") == 0);
    CHECK(freeNotifsMsgBuf(list, size) == 0);
    CHECK(getNotifsFromEngine(target, &size) == NULL && size == 0);
    CHECK(getNotifsFromEngine(target, NULL) == NULL);
    destroyTransferEngine(target);

    segment = openSegment(engine, other.session);
    batch = allocateBatchID(engine, 2);
    requests[0] = request(OPCODE_WRITE, 0, 0, 8);
    requests[1] = request(OPCODE_READ, 8, 8, 8);
    CHECK(submitTransferWithNotify(engine, batch, requests, 2, notice("n", "m")) == 1);
    CHECK(submitTransferWithNotify(engine, batch, requests, 0, notice("n", "m")) == 1);
    CHECK(submitTransferWithNotify(engine, batch, requests, 1, notice(NULL, "m")) == 1);
    CHECK(submitTransferWithNotify(engine, batch, requests, 1, notice("n", longest)) == 2);
    CHECK(freeBatchID(engine, batch) == 0);
    end();
}

/* ------------------------------------------------------------------------------------------------------ */

static void nothing_but_registered_memory_is_touched(void)
{
    static unsigned char elsewhere[4096];
    transfer_request_t requests[2];
    transfer_status_t status;
    batch_id_t batch;
    int code;
    begin();
    batch = allocateBatchID(engine, 64);
    pattern_fill(memory, 1, 0, 8192);
    /* Wrong local memory: the submit is refused. */
    requests[0] = request(OPCODE_WRITE, 0, 0, 4096);
    requests[1] = requests[0];
    requests[1].source = elsewhere;
    CHECK(submitTransfer(engine, batch, requests, 2) == 3);
    requests[1] = request(OPCODE_READ, 0, 0, 4096);
    requests[1].source = elsewhere;
    CHECK(submitTransfer(engine, batch, requests, 2) == 3);
    requests[1] = request(OPCODE_WRITE, MEMORY_BYTES - 8, 0, 9);
    CHECK(submitTransfer(engine, batch, requests, 2) == 3);
    requests[1] = request(OPCODE_WRITE, 0, 0, 0);
    CHECK(submitTransfer(engine, batch, requests, 2) == 1);
    requests[1] = request(OPCODE_WRITE, 0, 0, UINT64_MAX);
    CHECK(submitTransfer(engine, batch, requests, 2) == 1);
    requests[1] = request(2, 0, 0, 8);
    CHECK(submitTransfer(engine, batch, requests, 2) == 1);
    requests[1] = request(OPCODE_WRITE, 0, 0, 8);
    requests[1].target_id = segment + 1;
    CHECK(submitTransfer(engine, batch, requests, 2) == 1);
    requests[1].target_id = LOCAL_SEGMENT;
    CHECK(submitTransfer(engine, batch, requests, 2) == 1);
    CHECK(getTransferStatus(engine, batch, 0, &status) == 1);
    /* Wrong memory at the peer, in part or in whole: the submit is refused, or the task fails. */
    for (int i = 0; i < 4; i++) {
        const uint64_t targets[] = {other.address + MEMORY_BYTES - 8, 8, other.private_address,
                                    UINT64_MAX - 4096};
        transfer_request_t bad = request(OPCODE_WRITE, 0, 0, 4096);
        bad.target_offset = targets[i];
        code = submitTransfer(engine, batch, &bad, 1);
        CHECK(code >= 0);
        if (code == 0) {
            size_t task = 0;
            while (getTransferStatus(engine, batch, task + 1, &status) == 0) task++;
            status = final(batch, task);
            CHECK(status.status == STATUS_FAILED && status.transferred_bytes == 0);
        }
    }
    CHECK(freeBatchID(engine, batch) == 0);
    /* The engine still works. */
    CHECK(wrote(0, 4096) == STATUS_COMPLETED && peer_ask(&other, "holds", 1, 0, 4096) == 1);
    end();
}

static void memory_is_registered_once(void)
{
    static unsigned char field[8 * 4096];
    buffer_entry_t buffers[3];
    void *addresses[3];
    begin();
    CHECK(registerLocalMemory(engine, field, 4096, "cpu:0", 1) == 0);
    CHECK(registerLocalMemory(engine, field, 4096, "cpu:0", 1) == -7);
    CHECK(registerLocalMemory(engine, field + 4095, 4096, "*", 1) == -7);
    CHECK(registerLocalMemory(engine, NULL, 4096, "*", 1) == -1);
    CHECK(registerLocalMemory(engine, (void *)(uintptr_t)4096, 4096, "*", 1) == -1);
    CHECK(registerLocalMemory(engine, field + 4096, 0, "*", 1) == -1);
    CHECK(registerLocalMemory(engine, field + 4096, SIZE_MAX, "*", 1) == -1);
    CHECK(registerLocalMemory(engine, field + 4096, 4096, NULL, 0) == 0);
    CHECK(unregisterLocalMemory(engine, field + 1) == -3);
    CHECK(unregisterLocalMemory(engine, field) == 0);
    CHECK(unregisterLocalMemory(engine, field) == -3);
    CHECK(unregisterLocalMemory(engine, field + 4096) == 0);
    CHECK(unregisterLocalMemory(engine, NULL) == -3);
    for (size_t i = 0; i < 3; i++) {
        buffers[i].addr = addresses[i] = field + i * 4096;
        buffers[i].length = 4096;
    }
    buffers[2].addr = field + 4096;
    CHECK(registerLocalMemoryBatch(engine, buffers, 3, "*") == -7);
    CHECK(unregisterLocalMemoryBatch(engine, addresses, 3) == -3);
    buffers[2].addr = field + 2 * 4096;
    CHECK(registerLocalMemoryBatch(engine, buffers, 3, "*") == 0);
    CHECK(unregisterLocalMemory(engine, addresses[1]) == 0);
    CHECK(unregisterLocalMemoryBatch(engine, addresses, 3) == -3);
    CHECK(registerLocalMemory(engine, field, sizeof field, "*", 1) == 0);
    CHECK(registerLocalMemoryBatch(engine, NULL, 0, "*") == 0);
    CHECK(registerLocalMemoryBatch(engine, NULL, 1, "*") == -1);
    CHECK(registerLocalMemoryBatch(engine, buffers, SIZE_MAX, "*") == -1);
    CHECK(unregisterLocalMemoryBatch(engine, NULL, 0) == 0);
    CHECK(unregisterLocalMemoryBatch(engine, NULL, 1) == -1);
    end();
}

static void segments_have_numbers(void)
{
    char own[64], slashed[160], closed[32];
    segment_id_t again;
    transfer_engine_t gone = opened();
    CHECK(getLocalIpAndPort(gone, closed, sizeof closed) == 0);
    destroyTransferEngine(gone);
    begin();
    CHECK(strncmp(other.session, "127.0.0.1:", 10) == 0);
    CHECK(getLocalIpAndPort(engine, own, sizeof own) == 0);
    CHECK(openSegment(engine, own) < 0);
    CHECK(openSegment(engine, closed) == -102);
    CHECK(openSegment(engine, "") == -1 && openSegment(engine, "//") == -1 && openSegment(engine, NULL) == -1);
    CHECK(openSegment(engine, "no port") == -1 && openSegment(engine, "\xff:1") == -1);
    snprintf(slashed, sizeof slashed, "/%s", other.session);
    CHECK(openSegment(engine, slashed) == segment);
    CHECK(openSegmentNoCache(engine, other.session) == segment);
    CHECK(openSegmentNoCache(engine, closed) == -102);
    CHECK(syncSegmentCache(engine) == 0);
    CHECK(warmupEfaSegment(engine, other.session) == 0);
    CHECK(closeSegment(engine, LOCAL_SEGMENT) == 0);
    CHECK(closeSegment(engine, segment + 1) == -1 && closeSegment(engine, -1) == -1);
    CHECK(closeSegment(engine, segment) == 0);
    CHECK(wrote(0, 4096) == STATUS_COMPLETED);
    CHECK(removeLocalSegment(engine, "somebody:1") == 0);
    CHECK(removeLocalSegment(engine, "") == -1);
    CHECK(removeLocalSegment(engine, other.session) == 0);
    CHECK(closeSegment(engine, segment) == -1);
    again = openSegment(engine, other.session);
    CHECK(again > segment);
    segment = again;
    CHECK(wrote(0, 4096) == STATUS_COMPLETED);
    end();
}

static void no_engine_is_no_crash(void)
{
    char text[8] = "xxxxxxx";
    int size = 7;
    size_t count = 7;
    transfer_status_t status;
    transfer_request_t one;
    nic_load_stat_t stat;
    memset(&one, 0, sizeof one);
    CHECK(getLocalIpAndPort(NULL, text, sizeof text) == -1 && strcmp(text, "") == 0);
    CHECK(installTransport(NULL, "tcp", NULL) == NULL);
    CHECK(uninstallTransport(NULL, "tcp") == -1 && discoverTopology(NULL) == -1);
    CHECK(openSegment(NULL, "h:1") == -1 && openSegmentNoCache(NULL, "h:1") == -1);
    CHECK(closeSegment(NULL, 1) == -1 && removeLocalSegment(NULL, "h:1") == -1);
    CHECK(syncSegmentCache(NULL) == -1 && warmupEfaSegment(NULL, "h:1") == -1);
    CHECK(registerLocalMemory(NULL, memory, 8, "*", 1) == -1 && unregisterLocalMemory(NULL, memory) == -1);
    CHECK(registerLocalMemoryBatch(NULL, NULL, 0, "*") == -1 && unregisterLocalMemoryBatch(NULL, NULL, 0) == -1);
    CHECK(allocateBatchID(NULL, 1) == INVALID_BATCH);
    CHECK(submitTransfer(NULL, 1, &one, 1) == 1);
    CHECK(submitTransferWithNotify(NULL, 1, &one, 1, notice("n", "m")) == 1);
    CHECK(getTransferStatus(NULL, 1, 0, &status) == 1 && status.status == STATUS_INVALID);
    CHECK(freeBatchID(NULL, 1) == 1);
    CHECK(getNotifsFromEngine(NULL, &size) == NULL && size == 0);
    CHECK(genNotifyInEngine(NULL, 1, notice("n", "m")) == -1);
    CHECK(showLinks(NULL, text, sizeof text, 0) == -1 && getNicLoadStats(NULL, &stat, &count) == -1);
    enableGracefulShutdown(NULL);
    destroyTransferEngine(NULL);
}

static void wrong_arguments_are_no_crash(void)
{
    char text[8] = "xxxxxxx";
    size_t count = 7;
    batch_id_t batch;
    nic_load_stat_t stat;
    begin();
    batch = allocateBatchID(engine, 4);
    CHECK(getLocalIpAndPort(engine, NULL, 8) == -1 && getLocalIpAndPort(engine, text, 0) == -1);
    CHECK(getLocalIpAndPort(engine, text, sizeof text) == -2 && strcmp(text, "127.0.0") == 0);
    CHECK(submitTransfer(engine, batch, NULL, 1) == 1);
    CHECK(submitTransfer(engine, INVALID_BATCH, NULL, 0) == 1);
    CHECK(submitTransfer(engine, batch, (transfer_request_t *)(uintptr_t)1, 1) == 1);
    CHECK(submitTransfer(engine, batch, (transfer_request_t *)(void *)memory, SIZE_MAX) == 1);
    CHECK(getTransferStatus(engine, batch, 0, NULL) == 1);
    CHECK(freeBatchID(engine, INVALID_BATCH) == 1 && freeBatchID(engine, 0) == 1);
    CHECK(freeBatchID(engine, batch) == 0);
    CHECK(installTransport(engine, NULL, NULL) == NULL && uninstallTransport(engine, NULL) == -1);
    CHECK(warmupEfaSegment(engine, NULL) == -1);
    CHECK(getNicLoadStats(engine, NULL, &count) == -1 && getNicLoadStats(engine, &stat, NULL) == -1);
    CHECK(getNicLoadStats(engine, &stat, &count) == 0 && count == 0);
    enableGracefulShutdown(engine);
    CHECK(discoverTopology(engine) == 0);
    end();
}

/* ------------------------------------------------------------------------------------------------------ */

/* Returns the exit status of the program that tries to make an engine at `host`, and its stderr. */
static int said(const char *environment, const char *host, char *text, size_t size)
{
    char command[512];
    FILE *output;
    size_t length;
    snprintf(command, sizeof command, "env %s '%s' --open '%s' 2>&1", environment, program, host);
    output = popen(command, "r");
    CHECK(output != NULL);
    length = fread(text, 1, size - 1, output);
    text[length] = '\0';
    return pclose(output);
}

static void other_hosts_are_let_in_by_word_only(void)
{
    char text[1024];
    CHECK(said("FERRY_LOG=1", "0.0.0.0", text, sizeof text) != 0);
    CHECK(strstr(text, "FERRY_SECRET_FILE") != NULL && strstr(text, "FERRY_ALLOW_UNAUTHENTICATED=1") != NULL);
    CHECK(strstr(text, "createTransferEngine") != NULL);
    /* Without FERRY_LOG nothing is printed. */
    CHECK(said("A=1", "0.0.0.0", text, sizeof text) != 0 && strcmp(text, "") == 0);
    CHECK(said("FERRY_LOG=0", "0.0.0.0", text, sizeof text) != 0 && strcmp(text, "") == 0);
    CHECK(said("FERRY_ALLOW_UNAUTHENTICATED=1", "0.0.0.0", text, sizeof text) == 0 && strcmp(text, "") == 0);
    CHECK(said("FERRY_LOG=1 FERRY_LANES=many", "127.0.0.1", text, sizeof text) != 0);
    CHECK(strstr(text, "FERRY_LANES") != NULL);
    CHECK(said("FERRY_LOG=1", "", text, sizeof text) != 0 && strstr(text, "local_server_name") != NULL);
    CHECK(said("FERRY_LOG=1", "256.0.0.1", text, sizeof text) != 0 && strstr(text, "256.0.0.1") != NULL);
    CHECK(createTransferEngine("etcd://somewhere", "127.0.0.1", "", 0, 1) == NULL);
    CHECK(createTransferEngine(NULL, "127.0.0.1", "", 0, 1) == NULL);
    CHECK(createTransferEngine("P2PHANDSHAKE", NULL, "", 0, 1) == NULL);
    engine = createTransferEngine("P2PHANDSHAKE", "[::1]:7", NULL, 0, 0);
    CHECK(engine != NULL && getLocalIpAndPort(engine, text, sizeof text) == 0);
    CHECK(strncmp(text, "[::1]:", 6) == 0 && strcmp(text, "[::1]:7") != 0);
    destroyTransferEngine(engine);
}

static void write_secret(const char *path, int byte)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && chmod(path, 0600) == 0);
    for (int i = 0; i < 32; i++) CHECK(fputc(byte + i, file) != EOF);
    CHECK(fclose(file) == 0);
}

static void who_has_another_secret_is_refused(void)
{
    char folder[] = "/tmp/ferry-mooncake-XXXXXX", ours[64], another[64];
    peer stranger;
    CHECK(mkdtemp(folder) != NULL);
    snprintf(ours, sizeof ours, "%s/ours", folder);
    snprintf(another, sizeof another, "%s/another", folder);
    write_secret(ours, 1);
    write_secret(another, 2);
    setenv("FERRY_SECRET_FILE", ours, 1);
    begin();
    pattern_fill(memory, 1, 0, 4096);
    CHECK(wrote(0, 4096) == STATUS_COMPLETED && peer_ask(&other, "holds", 1, 0, 4096) == 1);
    setenv("FERRY_SECRET_FILE", another, 1);
    peer_start(&stranger, "127.0.0.1");
    unsetenv("FERRY_SECRET_FILE");
    CHECK(openSegment(engine, stranger.session) == -104);
    peer_stop(&stranger);
    end();
    unlink(ours), unlink(another), rmdir(folder);
}

static void transports_are_installed_by_name(void)
{
    char text[4096], small[16];
    begin();
    destroyTransferEngine(engine);
    engine = createTransferEngine("P2PHANDSHAKE", "localhost", "", 0, 0);
    CHECK(engine != NULL && registerLocalMemory(engine, memory, sizeof memory, "*", 1) == 0);
    CHECK(installTransport(engine, "nvlink", NULL) == NULL);
    CHECK(registerLocalMemory(engine, small, sizeof small, "cuda:x", 1) == -1);
    CHECK(registerLocalMemory(engine, small, sizeof small, "cpu:0", 1) == 0 && unregisterLocalMemory(engine, small) == 0);
    CHECK(installTransport(engine, "tcp", NULL) != NULL);
    segment = openSegment(engine, other.session);
    CHECK(wrote(0, 65536) == STATUS_COMPLETED);
    CHECK(installTransport(engine, "rdma", NULL) != NULL);
    CHECK(installTransport(engine, "ascend", NULL) != NULL);
    CHECK(uninstallTransport(engine, "tcp") == 0);
    CHECK(wrote(0, 65536) == STATUS_COMPLETED);
    CHECK(showLinks(engine, text, sizeof text, 0) == 0);
    CHECK(strstr(text, other.session) != NULL && strstr(text, "  tcp ") != NULL);
    CHECK(showLinks(engine, text, sizeof text, 1) == 0);
    CHECK(text[0] == '[' && strstr(text, "{\"transport\":\"tcp\",\"used\":") != NULL);
    CHECK(showLinks(engine, small, sizeof small, 1) == -2 && strlen(small) == sizeof small - 1);
    CHECK(showLinks(engine, NULL, 0, 1) == -1);
    end();
}

/* ------------------------------------------------------------------------------------------------------ */

static void a_peer_that_is_killed_fails_what_comes_and_its_successor_is_reached(void)
{
    transfer_request_t one;
    batch_id_t batch;
    siginfo_t info;
    begin();
    pattern_fill(memory, 1, 0, 4096);
    CHECK(wrote(0, 4096) == STATUS_COMPLETED);
    kill(other.pid, SIGKILL);
    CHECK(waitid(P_PID, (id_t)other.pid, &info, WEXITED | WNOWAIT) == 0);
    one = request(OPCODE_WRITE, 0, 0, 4096);
    batch = allocateBatchID(engine, 1);
    if (submitTransfer(engine, batch, &one, 1) == 0) CHECK(final(batch, 0).status == STATUS_FAILED);
    CHECK(freeBatchID(engine, batch) == 0);
    CHECK(openSegmentNoCache(engine, other.session) < 0);
    CHECK(genNotifyInEngine(engine, (uint64_t)segment, notice("n", "m")) < 0);
    peer_stop(&other);
    peer_start(&other, "127.0.0.1");
    segment = openSegment(engine, other.session);
    CHECK(segment > 0);
    CHECK(wrote(0, 4096) == STATUS_COMPLETED && peer_ask(&other, "holds", 1, 0, 4096) == 1);
    end();
}

static void a_peer_that_does_not_answer_is_no_new_segment(void)
{
    setenv("FERRY_TRANSPORTS", "tcp", 1);
    begin();
    peer_pause(&other);
    CHECK(openSegment(engine, other.session) == segment);
    CHECK(openSegmentNoCache(engine, other.session) < 0);
    kill(other.pid, SIGCONT);
    /* Not at once: the session may have to be established again first. */
    while (openSegmentNoCache(engine, other.session) != segment) continue;
    CHECK(wrote(0, 4096) == STATUS_COMPLETED);
    end();
}

/* Pauses the peer, and writes until a write does not complete; returns its outcome. */
static int wrote_to_a_paused_peer(void)
{
    int outcome;
    peer_pause(&other);
    do outcome = wrote(0, MEMORY_BYTES);
    while (outcome == STATUS_COMPLETED);
    return outcome;
}

/* The peer is stopped for longer than the session waits, so that the session is given up; then it runs again. The
 * segment keeps its number, and the memory is the same. */
static void a_peer_that_comes_back_has_the_number_that_it_had(void)
{
    const char *settings[] = {"FERRY_LEASE_MS", "300", "FERRY_PROGRESS_TIMEOUT_MS", "300", "FERRY_RECONNECT_TIMEOUT_MS", "0",
                              NULL};
    begin_with(settings);
    pattern_fill(memory, 1, 0, MEMORY_BYTES);
    CHECK(wrote_to_a_paused_peer() == STATUS_FAILED);
    kill(other.pid, SIGCONT);
    pattern_fill(memory, 2, 0, MEMORY_BYTES);
    CHECK(openSegmentNoCache(engine, other.session) == segment);
    CHECK(wrote(0, MEMORY_BYTES) == STATUS_COMPLETED);
    CHECK(peer_ask(&other, "holds", 2, 0, MEMORY_BYTES) == 1);
    end();
}

static void a_deadline_is_a_status_of_its_own(void)
{
    const char *settings[] = {"FERRY_DEADLINE_MS", "200", "FERRY_LEASE_MS", "500", NULL};
    begin_with(settings);
    CHECK(wrote_to_a_paused_peer() == STATUS_TIMEOUT);
    end();
}

enum { THREADS = 8, ROUNDS = 40, SHARE = 100000 };
static batch_id_t shared_batch;

/* Each thread moves its own part of the memory there and back, in its own batches and in a shared one. */
static void *work(void *argument)
{
    const size_t number = (size_t)(uintptr_t)argument;
    const size_t here = 3 * number * SHARE, back = here + SHARE, common = back + SHARE;
    transfer_request_t also = request(OPCODE_WRITE, common, common, SHARE);
    pattern_fill(memory, 1000 + number, common, SHARE);
    for (size_t round = 0; round < ROUNDS; round++) {
        const unsigned long seed = 1 + number * ROUNDS + round;
        transfer_request_t out = request(OPCODE_WRITE, here, here, SHARE);
        transfer_request_t in = request(OPCODE_READ, back, here, SHARE);
        const batch_id_t batch = allocateBatchID(engine, 2);
        transfer_status_t status;
        pattern_fill(memory + here, seed, 0, SHARE);
        if (submitTransfer(engine, batch, &out, 1) != 0) return "submit";
        do getTransferStatus(engine, batch, 0, &status);
        while (status.status == STATUS_WAITING);
        if (status.status != STATUS_COMPLETED || status.transferred_bytes != SHARE) return "WRITE";
        if (submitTransfer(engine, batch, &in, 1) != 0) return "submit";
        do getTransferStatus(engine, batch, 1, &status);
        while (status.status == STATUS_WAITING);
        if (status.status != STATUS_COMPLETED) return "READ";
        if (!pattern_holds(memory + back, seed, 0, SHARE)) return "data";
        if (freeBatchID(engine, batch) != 0) return "free";
        if (submitTransfer(engine, shared_batch, &also, 1) != 0) return "shared batch";
        if (openSegment(engine, other.session) != segment) return "segment";
    }
    return NULL;
}

static void many_threads_use_one_engine(void)
{
    pthread_t threads[THREADS];
    transfer_request_t one;
    begin();
    shared_batch = allocateBatchID(engine, THREADS * ROUNDS);
    for (size_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) == 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        void *failure = NULL;
        CHECK(pthread_join(threads[i], &failure) == 0);
        if (failure != NULL) FAIL("a thread failed: %s", (const char *)failure);
    }
    for (size_t task = 0; task < THREADS * ROUNDS; task++) {
        CHECK(final(shared_batch, task).status == STATUS_COMPLETED);
    }
    for (size_t i = 0; i < THREADS; i++) {
        CHECK(peer_ask(&other, "holds", 1000 + i, (3 * i + 2) * SHARE, SHARE) == 1);
    }
    one = request(OPCODE_WRITE, 0, 0, 8);
    CHECK(submitTransfer(engine, shared_batch, &one, 1) == 2);
    CHECK(freeBatchID(engine, shared_batch) == 0);
    end();
}

static volatile int stop_polling;

static void *poll_all_the_time(void *argument)
{
    transfer_status_t status;
    const batch_id_t batch = *(const batch_id_t *)argument;
    while (!stop_polling && getTransferStatus(engine, batch, 0, &status) == 0) continue;
    return NULL;
}

/* The call returns while another thread polls, and no transfer is in progress afterwards. */
static void destroying_ends_what_is_under_way(void)
{
    batch_id_t batch;
    pthread_t poller;
    transfer_request_t one;
    const char *settings[] = {"FERRY_LEASE_MS", "500", NULL};
    begin_with(settings);
    one = request(OPCODE_READ, 0, 0, MEMORY_BYTES);
    memset(memory, 0, sizeof memory);
    CHECK(peer_ask(&other, "fill", 3, 0, MEMORY_BYTES) == 1);
    peer_pause(&other);
    batch = allocateBatchID(engine, 1);
    CHECK(submitTransfer(engine, batch, &one, 1) == 0);
    stop_polling = 0;
    CHECK(pthread_create(&poller, NULL, poll_all_the_time, &batch) == 0);
    stop_polling = 1;
    CHECK(pthread_join(poller, NULL) == 0);
    CHECK(freeBatchID(engine, batch) == 4);
    destroyTransferEngine(engine);
    /* From now on the memory is this program's alone. */
    pattern_fill(memory, 4, 0, MEMORY_BYTES);
    kill(other.pid, SIGCONT);
    CHECK(peer_ask(&other, "holds", 3, 0, MEMORY_BYTES) == 1);
    CHECK(pattern_holds(memory, 4, 0, MEMORY_BYTES));
    peer_stop(&other);
}

static void a_forked_child_does_no_harm(void)
{
    int status = 0;
    pid_t child;
    begin();
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char text[64];
        transfer_engine_t own;
        int wrong = openSegment(engine, other.session) != -202;
        wrong |= allocateBatchID(engine, 1) != INVALID_BATCH;
        wrong |= registerLocalMemory(engine, text, 64, "*", 1) != -202;
        destroyTransferEngine(engine);
        own = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
        wrong |= own == NULL || openSegment(own, other.session) <= 0;
        destroyTransferEngine(own);
        /* Through exec: valgrind would report as lost what only the parent's threads refer to. */
        execl("/bin/sh", "sh", "-c", wrong ? "exit 1" : "exit 0", (char *)NULL);
        _exit(100);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(wrote(0, 4096) == STATUS_COMPLETED);
    end();
}

/* ------------------------------------------------------------------------------------------------------ */

static const test_case cases[] = {
    CASE(bytes_arrive_where_they_belong),
    CASE(tasks_keep_their_numbers),
    CASE(a_batch_of_no_tasks_has_room_for_none),
    CASE(what_is_pending_is_not_freed),
    CASE(notices_follow_their_data),
    CASE(notices_have_limits),
    CASE(nothing_but_registered_memory_is_touched),
    CASE(memory_is_registered_once),
    CASE(segments_have_numbers),
    CASE(no_engine_is_no_crash),
    CASE(wrong_arguments_are_no_crash),
    CASE(other_hosts_are_let_in_by_word_only),
    CASE(who_has_another_secret_is_refused),
    CASE(transports_are_installed_by_name),
    CASE(a_peer_that_is_killed_fails_what_comes_and_its_successor_is_reached),
    CASE(a_peer_that_does_not_answer_is_no_new_segment),
    CASE(a_peer_that_comes_back_has_the_number_that_it_had),
    CASE(a_deadline_is_a_status_of_its_own),
    CASE(many_threads_use_one_engine),
    CASE(destroying_ends_what_is_under_way),
    CASE(a_forked_child_does_no_harm),
};

int main(int argc, char **argv)
{
    const char *given = getenv("FERRY_TRANSPORTS"), *filter = argc > 1 ? argv[1] : "";
    char transports[64] = "";
    unsigned passed = 0, failed = 0;
    if (argc > 2 && strcmp(argv[1], "--peer") == 0) return peer_main(argv[2]);
    if (argc > 2 && strcmp(argv[1], "--open") == 0) {
        engine = createTransferEngine("P2PHANDSHAKE", argv[2], "", 0, 1);
        destroyTransferEngine(engine);
        return engine == NULL;
    }
    if (name_what_hangs() != 0) return 3;
    program = argv[0];
    if (given != NULL) snprintf(transports, sizeof transports, "%s", given);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (strstr(cases[i].name, filter) == NULL) continue;
        /* A test may have changed the variable. */
        if (given != NULL ? setenv("FERRY_TRANSPORTS", transports, 1) : unsetenv("FERRY_TRANSPORTS")) return 3;
        if (passes(cases[i].name, &cases[i])) passed++;
        else failed++;
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0 || passed == 0;
}
