/*
 * Two mistakes of a caller that show in libferry's own code. scripts/sanitize.sh makes them in each of its programs:
 * a sanitizer that does not report them is not on.
 */
#include "planted.h"

#include <ferry.h>
#include <pthread.h>
#include <stdlib.h>

static ferry_error shared;

static void *fail(void *error)
{
    ferry_config_set(NULL, "workers", "1", error);
    return NULL;
}

int planted_race(void)
{
    pthread_t other;
    shared.struct_size = sizeof shared;
    if (pthread_create(&other, NULL, fail, &shared) != 0) return 1;
    fail(&shared);
    return pthread_join(other, NULL);
}

int planted_use_after_free(void)
{
    ferry_error *error = calloc(1, sizeof *error);
    /* Hides from the compiler that the memory is gone. */
    ferry_error *volatile gone = error;
    if (error == NULL) return 1;
    error->struct_size = sizeof *error;
    free(error);
    fail(gone);
    return 0;
}
