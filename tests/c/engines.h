/*
 * Used by most tests: one or two engines on loopback, memory whose bytes encode their position, waiting for
 * events by poll. No sleeps.
 */
#ifndef ENGINES_H
#define ENGINES_H

#include "ferry.h"
#include "harness.h"

#include <stdlib.h>
#include <unistd.h>

/* Long enough that only a lost answer exceeds it. */
#define PATIENCE_NS (60 * UINT64_C(1000000000))

/* An error and a result for calls to fill. */
ferry_error new_error(void);
ferry_result new_result(void);
ferry_transfer_options new_options(void);

/* Opens an engine with `key` = `value` besides the settings of all tests; NULL for no further setting. */
ferry_engine *open_engine_with(const char *key, const char *value);
ferry_engine *open_engine(void);
/* Closes and frees an engine; fails the test if it doesn't close. */
void end_engine(ferry_engine *engine);
/* Returns the engine's address, valid until the next call. */
const char *address_of(ferry_engine *engine);

/* Two engines, each with `length` bytes of memory that ferry allocated; a is connected to b. */
typedef struct {
    ferry_engine *a, *b;
    unsigned char *a_memory, *b_memory;
    size_t length;
    ferry_region a_region, b_region;
    ferry_peer peer; /* b, as a knows it */
} pair;

pair open_pair(size_t length);
/* Opens a pair; `key` = `value` for b. */
pair open_pair_with(size_t length, const char *key, const char *value);
void end_pair(pair *pair);

/* Returns the request that moves `length` bytes between these offsets of the pair's memories. */
ferry_request range(const pair *pair, size_t a_offset, size_t b_offset, size_t length);

/* Fills memory: each 8 bytes encode `seed` and their offset. Offsets and lengths are multiples of 8. */
void fill(unsigned char *memory, size_t length, uint64_t seed);
/* True if [offset, offset + length) of memory has the bytes that `fill` put at from_offset. */
int holds(const unsigned char *memory, size_t offset, size_t length, uint64_t seed, size_t from_offset);
/* True if all bytes are zero. */
int is_zero(const unsigned char *memory, size_t length);

/* Waits until the queue has an event, and takes it. */
ferry_event next_event(ferry_engine *engine, ferry_queue queue);
/* Takes events until one has this kind; releases the others. */
ferry_event next_event_of(ferry_engine *engine, ferry_queue queue, uint32_t kind);
/* Returns the handle of the only peer of `engine`. */
ferry_peer only_peer(ferry_engine *engine);
/* Polls for input with poll(2); milliseconds. */
int readable(int fd, int timeout_ms);
/*
 * Submits a transfer of the pair's first 8 bytes that stays FERRY_PENDING until `let_go`: as many notifications
 * wait at b's application as a peer may send ahead, so the transfer's own notification must wait. It has no
 * deadline. `options` NULL: the defaults otherwise.
 */
ferry_transfer hold_transfer(const pair *pair, const ferry_transfer_options *options);
/* Drains b's notifications, that of the held transfer included. */
void let_go(const pair *pair);

/* Calls ferry_peer_regions until the peer shows `count` regions. */
void await_regions(ferry_engine *engine, ferry_peer peer, size_t count);

/*
 * Ends a child through exec. If the child exited by itself, valgrind would report as lost what only the stacks of
 * the parent's other threads refer to; these don't exist here.
 */
static inline void leave_child(int status)
{
    char command[16];
    snprintf(command, sizeof command, "exit %d", status);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(100);
}

#endif
