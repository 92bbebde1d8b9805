/*
 * A small test harness: each TEST is a function, and CHECK ends the test in which it fails. Header only, C99;
 * runner.h runs the tests.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *name;
    void (*run)(void);
} test_case;

typedef struct {
    const char *name;
    const test_case *cases;
    size_t count;
} test_suite;

#define SUITE(name, ...)                                                                           \
    static const test_case name##_cases[] = {__VA_ARGS__};                                         \
    const test_suite name##_suite = {#name, name##_cases,                                          \
                                     sizeof(name##_cases) / sizeof(name##_cases[0])}
#define CASE(function) {#function, function}

/* A failed check jumps to the runner. Only the main thread may check. */
extern jmp_buf harness_failed;

#define FAIL(...)                                                                                  \
    do {                                                                                           \
        printf("\n    %s:%d: ", __FILE__, __LINE__);                                               \
        printf(__VA_ARGS__);                                                                       \
        putchar('\n');                                                                             \
        longjmp(harness_failed, 1);                                                                \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) FAIL("%s", #condition);                                                  \
    } while (0)

/* The call returns this status. */
#define CHECK_STATUS(call, expected)                                                               \
    do {                                                                                           \
        ferry_status status_ = (call);                                                             \
        if (status_ != (expected))                                                                 \
            FAIL("%s\n      returned %s, not %s", #call, ferry_status_name(status_), #expected);   \
    } while (0)
#define CHECK_OK(call) CHECK_STATUS(call, FERRY_OK)
#define CHECK_INVALID(call) CHECK_STATUS(call, FERRY_ERR_INVALID)

/* The message of the last error contains this text, and no number of an errno in Rust's words: os_error has it. */
#define CHECK_MESSAGE(error, part)                                                                 \
    do {                                                                                           \
        if (strstr((error).message, (part)) == NULL)                                               \
            FAIL("the message \"%s\" doesn't say \"%s\"", (error).message, (part));                \
        if (strstr((error).message, "os error") != NULL)                                           \
            FAIL("the message \"%s\" repeats os_error", (error).message);                          \
    } while (0)

#endif
