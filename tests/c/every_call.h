/*
 * Every call that takes an engine, with valid arguments: a closed engine must refuse it, and so must a child that
 * inherited the engine by fork.
 */
#ifndef EVERY_CALL_H
#define EVERY_CALL_H

#include "engines.h"

/* Returns NULL if each call returned FERRY_ERR_CLOSED, else the first that did not. Contains no checks, because a
 * forked child calls it too. `queue` has no event. */
const char *first_not_closed(const pair *pair, ferry_queue queue, ferry_transfer transfer);

#endif
