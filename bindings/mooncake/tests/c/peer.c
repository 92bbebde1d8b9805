/* The other process of the tests: see peer.h. */
#define _POSIX_C_SOURCE 200809L
#include "peer.h"

#include "harness.h"
#include <ferry_mooncake.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t word_at(unsigned long seed, size_t offset)
{
    const uint64_t mixed = ((uint64_t)seed << 40 ^ (uint64_t)(offset / 8)) * UINT64_C(0x9e3779b97f4a7c15);
    return mixed ^ mixed >> 29;
}

static unsigned char byte_at(unsigned long seed, size_t offset)
{
    return (unsigned char)(word_at(seed, offset) >> offset % 8 * 8);
}

void pattern_fill(unsigned char *memory, unsigned long seed, size_t offset, size_t length)
{
    for (size_t i = offset; i < offset + length; i++) memory[i] = byte_at(seed, i);
}

int pattern_holds(const unsigned char *memory, unsigned long seed, size_t offset, size_t length)
{
    for (size_t i = offset; i < offset + length; i++) {
        if (memory[i] == byte_at(seed, i)) continue;
        fprintf(stderr, "byte %zu is %#x, not %#x\n", i, memory[i], byte_at(seed, i));
        return 0;
    }
    return 1;
}

void peer_start(peer *it, const char *host)
{
    int to[2], from[2];
    CHECK(pipe(to) == 0 && pipe(from) == 0);
    it->pid = fork();
    CHECK(it->pid >= 0);
    if (it->pid == 0) {
        if (dup2(to[0], 0) < 0 || dup2(from[1], 1) < 0) _exit(3);
        close(to[0]), close(to[1]), close(from[0]), close(from[1]);
        execl(program, program, "--peer", host, (char *)NULL);
        _exit(3);
    }
    close(to[0]), close(from[1]);
    it->in = fdopen(to[1], "w");
    it->out = fdopen(from[0], "r");
    CHECK(it->in != NULL && it->out != NULL);
    CHECK(fscanf(it->out, "%127s %lu %lu", it->session, &it->address, &it->private_address) == 3);
}

void peer_stop(peer *it)
{
    fclose(it->in);
    fclose(it->out);
    kill(it->pid, SIGCONT);
    kill(it->pid, SIGKILL);
    waitpid(it->pid, NULL, 0);
}

void peer_pause(const peer *it)
{
    int status;
    CHECK(kill(it->pid, SIGSTOP) == 0);
    CHECK(waitpid(it->pid, &status, WUNTRACED) == it->pid && WIFSTOPPED(status));
}

long peer_ask(peer *it, const char *what, unsigned long seed, size_t offset, size_t length)
{
    long answer;
    fprintf(it->in, "%s %lu %zu %zu\n", what, seed, offset, length);
    fflush(it->in);
    CHECK(fscanf(it->out, "%ld", &answer) == 1);
    return answer;
}

/* ------------------------------------------------------------------------------------------------------ */

static transfer_engine_t engine;
static unsigned char *memory;

/* Waits for notices until `count` have come. They are named "layer" and numbered from `first` on. When a notice
 * comes, its `step` bytes must be there, with its number as their seed. */
static int notices_come(unsigned long first, size_t count, size_t step)
{
    unsigned long next = first;
    while (next < first + count) {
        int size = -1;
        notify_msg_t *list = getNotifsFromEngine(engine, &size);
        if ((list == NULL) != (size == 0)) return 0;
        for (int i = 0; i < size; i++, next++) {
            if (strcmp(list[i].name, "layer") != 0 || strtoul(list[i].msg, NULL, 10) != next) return 0;
            if (!pattern_holds(memory, next, (size_t)(next - first) * step, step)) return 0;
        }
        if (freeNotifsMsgBuf(list, size) != 0) return 0;
    }
    return next == first + count;
}

static int obey(const char *what, unsigned long seed, size_t offset, size_t length)
{
    if (strcmp(what, "fill") == 0) {
        pattern_fill(memory, seed, offset, length);
        return 1;
    }
    if (strcmp(what, "holds") == 0) return pattern_holds(memory, seed, offset, length);
    if (strcmp(what, "notices") == 0) return notices_come(seed, offset, length);
    return -1;
}

int peer_main(const char *host)
{
    static unsigned char private_memory[4096];
    char session[128], what[32];
    unsigned long seed;
    size_t offset, length;
    engine = createTransferEngine("P2PHANDSHAKE", host, "", 0, 1);
    memory = calloc(1, MEMORY_BYTES);
    if (engine == NULL || memory == NULL) return 1;
    if (registerLocalMemory(engine, memory, MEMORY_BYTES, "*", 1) != 0) return 1;
    if (registerLocalMemory(engine, private_memory, sizeof private_memory, "*", 0) != 0) return 1;
    if (getLocalIpAndPort(engine, session, sizeof session) != 0) return 1;
    printf("%s %lu %lu\n", session, (unsigned long)(uintptr_t)memory, (unsigned long)(uintptr_t)private_memory);
    fflush(stdout);
    while (scanf("%31s %lu %zu %zu", what, &seed, &offset, &length) == 4) {
        printf("%d\n", obey(what, seed, offset, length));
        fflush(stdout);
    }
    destroyTransferEngine(engine);
    free(memory);
    return 0;
}
