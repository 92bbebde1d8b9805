/*
 * Runs one test and prints its outcome: it must end in time and leave as many descriptors as it found. Include it in
 * the one file of a program that has main; needs _POSIX_C_SOURCE.
 */
#ifndef RUNNER_H
#define RUNNER_H

#include "harness.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

jmp_buf harness_failed;

/* Longer than valgrind needs on a busy machine; a hang must not hold up the whole run. */
enum { TEST_SECONDS_MAX = 180 };

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

/* From here on a test that does not end is reported by name. Returns 0, or -1 with errno. */
static int name_what_hangs(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = timed_out;
    return sigaction(SIGALRM, &action, NULL);
}

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

#endif
