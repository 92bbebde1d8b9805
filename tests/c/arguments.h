/* What the tests of wrong arguments share: a call fails with a status, and says which argument. */
#ifndef ARGUMENTS_H
#define ARGUMENTS_H

#include "engines.h"

/* Each file has its own; the macros fill it. */
static ferry_error error;

/* Fails, and names the argument. */
#define CHECK_NAMES(call, expected, part)                                                          \
    do {                                                                                           \
        error = new_error();                                                                       \
        CHECK_STATUS(call, expected);                                                              \
        CHECK(error.status == (expected));                                                         \
        CHECK_MESSAGE(error, part);                                                                \
    } while (0)
#define CHECK_NULL(call, name) CHECK_NAMES(call, FERRY_ERR_INVALID, name " is NULL")
#define CHECK_BAD(call, part) CHECK_NAMES(call, FERRY_ERR_INVALID, part)

#endif
