/* Shared by the tests of wrong arguments: a call fails with a status and names the argument. */
#ifndef ARGUMENTS_H
#define ARGUMENTS_H

#include "engines.h"

/* Each file has its own error; the macros fill it. */
static ferry_error error;

/* The call fails and names the argument. */
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
