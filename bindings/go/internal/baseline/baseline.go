// Package baseline makes calls from C, for the benchmarks to compare with.
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

static uint64_t submission(ferry_engine *engine, ferry_peer peer, const ferry_request *bases, const void *local_ids,
                           const void *remote_ids, size_t count)
{
    ferry_blocks blocks = {.struct_size = sizeof blocks, .id_bytes = 8, .layer_count = 1};
    ferry_error error = {sizeof error};
    ferry_transfer transfer;
    uint64_t begun, taken;
    blocks.local_base = &bases->local;
    blocks.remote_base = &bases->remote;
    blocks.remote_region = &bases->remote_region;
    blocks.local_stride = blocks.remote_stride = blocks.block_bytes = &bases->length;
    blocks.pair_count = count;
    blocks.local_blocks = local_ids;
    blocks.remote_blocks = remote_ids;
    begun = now();
    if (ferry_transfer_submit_blocks(engine, peer, FERRY_OP_WRITE, &blocks, NULL, &transfer, &error) != FERRY_OK)
        return 0;
    taken = now() - begun;
    if (ferry_transfer_wait(engine, transfer, FERRY_FOREVER, NULL, &error) != FERRY_OK) return 0;
    ferry_transfer_release(engine, transfer, &error);
    return taken;
}
*/
import "C"

import (
	"time"
	"unsafe"
)

// Write makes count WRITEs of one ferry_request, and returns their total time; 0 if one failed.
func Write(engine unsafe.Pointer, peer uint64, request unsafe.Pointer, count int) time.Duration {
	return time.Duration(C.writes((*C.ferry_engine)(engine), C.ferry_peer(peer), (*C.ferry_request)(request), C.uint64_t(count)))
}

// Submission submits pairs of blocks of one size, waits for the end, and returns the time of the submission;
// 0 if the submission or the transfer failed. `request` is a ferry_request with both bases and the size.
func Submission(engine unsafe.Pointer, peer uint64, request unsafe.Pointer, local, remote []int64) time.Duration {
	return time.Duration(C.submission((*C.ferry_engine)(engine), C.ferry_peer(peer), (*C.ferry_request)(request),
		unsafe.Pointer(&local[0]), unsafe.Pointer(&remote[0]), C.size_t(len(local))))
}
