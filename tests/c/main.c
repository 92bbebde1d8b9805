/* Runs every test, or those whose name contains the argument, and counts. */
#define _POSIX_C_SOURCE 200809L
#include "runner.h"

#include <stdlib.h>

extern const test_suite basics_suite, config_suite, arguments_suite, structs_suite, memory_suite, peers_suite,
    transfers_suite, failures_suite, blocks_suite, queues_suite, callbacks_suite, notify_suite,
    local_suite, closing_suite, fork_suite, kv_suite,
    kv_descriptions_suite, kv_arguments_suite, kv_handoff_suite,
    kv_handoff_arguments_suite, kv_retracts_suite, kv_metrics_suite, kv_timeline_suite, directory_suite, mistakes_suite, pool_suite,
    pool_arguments_suite, pool_parts_suite;

static const test_suite *const suites[] = {
    &basics_suite,    &config_suite,   &arguments_suite, &structs_suite, &memory_suite,
    &peers_suite,     &transfers_suite, &failures_suite, &blocks_suite,  &queues_suite,
    &callbacks_suite, &notify_suite,   &local_suite,     &closing_suite, &fork_suite,
    &kv_suite,        &kv_descriptions_suite, &kv_arguments_suite,
    &kv_handoff_suite, &kv_handoff_arguments_suite, &kv_retracts_suite, &kv_metrics_suite,
    &kv_timeline_suite, &directory_suite, &mistakes_suite,
    &pool_suite,      &pool_arguments_suite, &pool_parts_suite,
};

int main(int argc, char **argv)
{
    const char *filter = argc > 1 ? argv[1] : "";
    unsigned passed = 0, failed = 0;
    if (name_what_hangs() != 0) return 3;
    /* The tests expect no devices, whatever devices this machine has. */
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
