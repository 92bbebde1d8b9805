// The functions that libascendcl offers to the libraries above it (HIXL, HCCL), beside its own interface.
#pragma once

#include "../core/knobs.h"

#include <cstddef>

enum { standin_nowhere = -1, standin_pageable, standin_pinned, standin_device };

// Copies between any two addresses that this process may name, imported addresses included, through the
// aliases. Returns 0, or an error as aclrtMemcpy does.
STANDIN_API int standin_acl_copy(void *target, const void *source, size_t size);
// Returns the kind of [address, address + size); nowhere, if not all of it has one kind.
STANDIN_API int standin_acl_where(const void *address, size_t size);
// Runs `run(argument)` in the order of the stream, after the time of a copy of so many bytes; the stream
// fails with its result. `finish(argument)` is always called, also if the task is dropped.
STANDIN_API int standin_acl_task(void *stream, int (*run)(void *), void (*finish)(void *), void *argument,
                                 size_t bytes);
STANDIN_API int standin_acl_has_context(void);
