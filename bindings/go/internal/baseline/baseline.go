// Package baseline makes synchronous WRITEs from C, for the benchmarks to compare with.
package baseline

/*
#cgo pkg-config: ferry
#include <ferry.h>
#include <time.h>

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t writes(ferry_engine *engine, ferry_peer peer, const ferry_request *request, uint64_t count)
{
    uint64_t begun = now();
    ferry_error error = {sizeof error};
    for (uint64_t i = 0; i < count; i++) {
        if (ferry_write(engine, peer, request, 1, NULL, NULL, &error) != FERRY_OK) return 0;
    }
    return now() - begun;
}
*/
import "C"

import (
	"time"
	"unsafe"
)

// Write makes count WRITEs of one request, a ferry_request, and returns how long they took; 0 if one failed.
func Write(engine unsafe.Pointer, peer uint64, request unsafe.Pointer, count int) time.Duration {
	return time.Duration(C.writes((*C.ferry_engine)(engine), C.ferry_peer(peer), (*C.ferry_request)(request), C.uint64_t(count)))
}
