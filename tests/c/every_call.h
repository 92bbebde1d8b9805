/*
 * Every call that takes an engine, with arguments that are in order: what a closed engine, and a child
 * that inherited one by fork, must refuse.
 */
#ifndef EVERY_CALL_H
#define EVERY_CALL_H

#include "engines.h"

/* NULL if each returned FERRY_ERR_CLOSED, else the first that did not. No checks inside: a forked
 * child calls it too. `queue` holds no event. */
const char *first_not_closed(const pair *pair, ferry_queue queue, ferry_transfer transfer);

#endif
