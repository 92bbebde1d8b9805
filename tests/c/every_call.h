/*
 * Every call that takes an engine, with valid arguments: a closed engine must refuse it, and so must a child that
 * inherited the engine by fork.
 */
#ifndef EVERY_CALL_H
#define EVERY_CALL_H

#include "engines.h"
#include "ferry_kv.h"

/* Returns NULL if each call returned FERRY_ERR_CLOSED, else the first that did not. Contains no checks, because a
 * forked child calls it too. `queue` has no event. */
const char *first_not_closed(const pair *pair, ferry_queue queue, ferry_transfer transfer);

/* The same for each call that gives a cache work or takes its events. The cache has no event. */
const char *first_kv_not_closed(ferry_kv_cache *cache, const ferry_kv_id *id, const ferry_kv_offer_options *offer,
                                const ferry_kv_take_options *take);

#endif
