/* Runs every test, or those whose name contains the argument, and counts. */
#define _POSIX_C_SOURCE 200809L
#include "harness.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

jmp_buf harness_failed;

extern const test_suite basics_suite, config_suite, arguments_suite, structs_suite, memory_suite, peers_suite,
    transfers_suite, failures_suite, blocks_suite, queues_suite, callbacks_suite, notify_suite,
    local_suite, closing_suite, fork_suite;

static const test_suite *const suites[] = {
    &basics_suite,    &config_suite,   &arguments_suite, &structs_suite, &memory_suite,
    &peers_suite,     &transfers_suite, &failures_suite, &blocks_suite,  &queues_suite,
    &callbacks_suite, &notify_suite,   &local_suite,     &closing_suite, &fork_suite,
};

/* Long enough for valgrind on a busy machine; a hang must not hold up the whole run. */
enum { TEST_SECONDS_MAX = 120 };

static const char *running = "";

static void timed_out(int signal)
{
    static const char text[] = "\n    no end in sight: ";
    (void)signal;
    if (write(STDOUT_FILENO, text, sizeof(text) - 1) < 0 ||
        write(STDOUT_FILENO, running, strlen(running)) < 0 || write(STDOUT_FILENO, "\n", 1) < 0)
        _exit(3);
    _exit(2);
}

/* Descriptors that are open: a test must leave as many as it found. */
static int open_descriptors(void)
{
    int count = 0;
    DIR *list = opendir("/proc/self/fd");
    if (list == NULL) return -1;
    while (readdir(list) != NULL) count++;
    closedir(list);
    return count;
}

static int passes(const char *name, const test_case *test)
{
    const int before = open_descriptors();
    int after;
    running = name;
    printf("%s ... ", name);
    fflush(stdout);
    alarm(TEST_SECONDS_MAX);
    if (setjmp(harness_failed)) {
        alarm(0);
        printf("%s FAILED\n", name);
        return 0;
    }
    test->run();
    alarm(0);
    after = open_descriptors();
    if (after != before) {
        printf("\n    %d descriptors before, %d after\n%s FAILED\n", before, after, name);
        return 0;
    }
    puts("ok");
    return 1;
}

int main(int argc, char **argv)
{
    const char *filter = argc > 1 ? argv[1] : "";
    unsigned passed = 0, failed = 0;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = timed_out;
    if (sigaction(SIGALRM, &action, NULL) != 0) return 3;
    /* Whatever devices this machine has: the tests are about their absence. */
    if (setenv("FERRY_CUDA_LIBRARY", "no-libcuda.so", 1) != 0) return 3;
    if (setenv("FERRY_ASCEND_LIBRARY", "no-libascendcl.so", 1) != 0) return 3;
    for (size_t s = 0; s < sizeof suites / sizeof suites[0]; s++) {
        for (size_t t = 0; t < suites[s]->count; t++) {
            char name[128];
            const test_case *test = &suites[s]->cases[t];
            snprintf(name, sizeof name, "%s/%s", suites[s]->name, test->name);
            if (strstr(name, filter) == NULL) continue;
            if (passes(name, test)) passed++;
            else failed++;
            fflush(stdout);
        }
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0 || passed == 0;
}
