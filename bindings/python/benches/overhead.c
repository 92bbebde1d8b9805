/* The calls that overhead.py measures, made from C in the same process and on the same engine. */
#include <ferry.h>
#include <time.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Returns the seconds for `count` synchronous WRITEs of one request; negative if one fails. */
double writes(ferry_status (*write)(ferry_engine *, ferry_peer, const ferry_request *, size_t,
                                    const ferry_transfer_options *, ferry_result *, ferry_error *),
              ferry_engine *engine, ferry_peer peer, const ferry_request *request, size_t count)
{
    double started = now();
    for (size_t i = 0; i < count; i++) {
        ferry_result result = {.struct_size = sizeof result};
        ferry_error error = {.struct_size = sizeof error};
        if (write(engine, peer, request, 1, NULL, &result, &error) != FERRY_OK) return -1;
    }
    return now() - started;
}

/* Returns the seconds for one submission of blocks, without the wait for its end; negative if it fails. */
double submission(ferry_status (*submit)(ferry_engine *, ferry_peer, uint32_t, const ferry_blocks *,
                                         const ferry_transfer_options *, ferry_transfer *, ferry_error *),
                  ferry_engine *engine, ferry_peer peer, const ferry_blocks *blocks,
                  ferry_transfer *out_transfer)
{
    ferry_error error = {.struct_size = sizeof error};
    double started = now();
    if (submit(engine, peer, FERRY_OP_WRITE, blocks, NULL, out_transfer, &error) != FERRY_OK) return -1;
    return now() - started;
}
