/*
 * What most tests need: one or two engines on loopback, memory with bytes that say where they belong,
 * waiting for events by poll. No sleeps.
 */
#ifndef ENGINES_H
#define ENGINES_H

#include "ferry.h"
#include "harness.h"

#include <stdlib.h>

/* Long enough that only a lost answer reaches it. */
#define PATIENCE_NS (60 * UINT64_C(1000000000))

/* An error to be filled, and a result. */
ferry_error new_error(void);
ferry_result new_result(void);
ferry_transfer_options new_options(void);

/* An engine with `key` = `value` besides what all tests set; NULL for nothing besides. */
ferry_engine *open_engine_with(const char *key, const char *value);
ferry_engine *open_engine(void);
/* Closes and frees; fails the test if it doesn't close. */
void end_engine(ferry_engine *engine);
/* The engine's address, static until the next call. */
const char *address_of(ferry_engine *engine);

/* Two engines, each with `length` bytes that ferry allocated, a connected to b. */
typedef struct {
    ferry_engine *a, *b;
    unsigned char *a_memory, *b_memory;
    size_t length;
    ferry_region a_region, b_region;
    ferry_peer peer; /* b, as a knows it */
} pair;

pair open_pair(size_t length);
/* `key` = `value` for b. */
pair open_pair_with(size_t length, const char *key, const char *value);
void end_pair(pair *pair);

/* The request that moves `length` bytes between these offsets of the pair's memories. */
ferry_request range(const pair *pair, size_t a_offset, size_t b_offset, size_t length);

/* Each 8 bytes say where they belong: `seed` and their offset. Offsets and lengths are multiples of 8. */
void fill(unsigned char *memory, size_t length, uint64_t seed);
/* Whether [offset, offset + length) of memory is what `fill` put at from_offset of its memory. */
int holds(const unsigned char *memory, size_t offset, size_t length, uint64_t seed, size_t from_offset);
/* Whether all of it is zero. */
int is_zero(const unsigned char *memory, size_t length);

/* Waits until the queue has an event and takes one. */
ferry_event next_event(ferry_engine *engine, ferry_queue queue);
/* Takes events until one of this kind comes; releases the others. */
ferry_event next_event_of(ferry_engine *engine, ferry_queue queue, uint32_t kind);
/* The handle under which `engine` knows its only peer. */
ferry_peer only_peer(ferry_engine *engine);
/* poll(2) for input, milliseconds. */
int readable(int fd, int timeout_ms);
/*
 * A transfer of the pair, of their first 8 bytes, that stays FERRY_PENDING until `let_go`: b's
 * application has as many notifications waiting as a peer may send ahead, and so its own must wait.
 */
ferry_transfer hold_transfer(const pair *pair, const ferry_transfer_options *options);
/* Drains b's notifications, the held transfer's among them. */
void let_go(const pair *pair);

/* Calls peer_regions until the peer shows `count` regions. */
void await_regions(ferry_engine *engine, ferry_peer peer, size_t count);

#endif
