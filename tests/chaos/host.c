#define _GNU_SOURCE
#include "host.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* The words of an operation, as engine/tests/faults/support.rs and engine/tests/chaos/arena.rs have them. */
static uint64_t word(uint64_t seed, uint64_t place)
{
    uint64_t x = (seed << 40 ^ place) * UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 29;
    return x * UINT64_C(0xbf58476d1ce4e5b9) | 1;
}
static uint64_t data(uint64_t id) { return 3 * id; }
static uint64_t scrubbed(uint64_t id) { return 3 * id + 2; }

void *host_map(void)
{
    const char *descriptor = getenv("CHAOS_ARENA");
    void *at = (void *)(uintptr_t)HOST_ARENA; /* NOLINT: a place of the address space is the point */
    int fd = descriptor == NULL ? -1 : atoi(descriptor);
    void *arena = mmap(at, HOST_ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    if (arena != at) {
        perror("node: mmap of the arena");
        exit(1);
    }
    return arena;
}

/* Other processes write here while it is read, as in every test of transfers. */
static volatile uint64_t *word_at(uint64_t place) { return (volatile uint64_t *)(uintptr_t)(HOST_ARENA + place); }

int64_t host_note(const void *text, size_t length, uint64_t *id)
{
    char copy[512] = "";
    memcpy(copy, text, length < sizeof copy ? length : sizeof copy - 1);
    char *rest;
    int64_t wrong = -1;
    *id = strtoull(copy, &rest, 10);
    const char *pieces = rest;
    for (int fills = 0; fills < 2 && wrong < 0; fills++) {
        unsigned long long place, bytes;
        int taken;
        for (const char *at = pieces; sscanf(at, " %llu:%llu%n", &place, &bytes, &taken) == 2; at += taken) {
            for (uint64_t offset = 0; offset < bytes && wrong < 0; offset += 8) {
                if (fills) *word_at(place + offset) = word(scrubbed(*id), place + offset);
                else if (*word_at(place + offset) != word(data(*id), place + offset)) wrong = (int64_t)(place + offset);
            }
        }
    }
    return wrong;
}

static int entries(const char *folder, int (*counts)(const char *name))
{
    DIR *list = opendir(folder);
    int count = 0;
    if (list == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) count += entry->d_name[0] != '.' && counts(entry->d_name);
    closedir(list);
    return count;
}

static int any(const char *name)
{
    (void)name;
    return 1;
}

static int is_of_ferry(const char *thread)
{
    char path[64], name[16] = "";
    snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", thread);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, name, sizeof name - 1);
    close(fd);
    return length > 0 && strncmp(name, "ferry", 5) == 0;
}

static struct host_usage usage_now(void)
{
    struct host_usage usage = {entries("/proc/self/fd", any), entries("/proc/self/task", is_of_ferry)};
    return usage;
}

static struct host_usage used_when(int32_t threads, int32_t descriptors)
{
    struct host_usage now = usage_now();
    struct timespec moment = {0, 5000000};
    for (int i = 0; i < 400 && (now.threads != threads || (descriptors >= 0 && now.descriptors != descriptors)); i++) {
        nanosleep(&moment, NULL);
        now = usage_now();
    }
    return now;
}

struct host_usage host_usage_before(void) { return used_when(0, -1); }
struct host_usage host_usage_after(struct host_usage before) { return used_when(before.threads, before.descriptors); }

void host_limit(const char *what, int64_t more)
{
    int descriptors = strcmp(what, "descriptors") == 0;
    struct rlimit limit;
    getrlimit(descriptors ? RLIMIT_NOFILE : RLIMIT_AS, &limit);
    limit.rlim_cur = limit.rlim_max;
    if (more >= 0) {
        rlim_t used = 0;
        if (descriptors) {
            used = (rlim_t)entries("/proc/self/fd", any);
        } else {
            FILE *statm = fopen("/proc/self/statm", "re");
            unsigned long pages = 0;
            if (statm == NULL || fscanf(statm, "%lu", &pages) != 1) pages = 0;
            if (statm != NULL) fclose(statm);
            used = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
        }
        if (used + (rlim_t)more < limit.rlim_max) limit.rlim_cur = used + (rlim_t)more;
    }
    setrlimit(descriptors ? RLIMIT_NOFILE : RLIMIT_AS, &limit);
}
