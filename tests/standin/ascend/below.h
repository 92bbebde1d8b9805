// What libascendcl gives to the libraries that stand on it (HIXL, HCCL), beside its own interface.
#pragma once

#include "../core/knobs.h"

#include <cstddef>

enum { standin_nowhere = -1, standin_pageable, standin_pinned, standin_device };

// Copies between any two addresses that this process may name, imported ones among them, through the
// aliases. 0, or an error as of aclrtMemcpy.
STANDIN_API int standin_acl_copy(void *target, const void *source, size_t size);
// What [address, address + size) is; nowhere, if not all of one kind.
STANDIN_API int standin_acl_where(const void *address, size_t size);
// Does `run(argument)` in the order of the stream, after the time that a copy of so many bytes takes; the
// stream fails with what it returns. `finish(argument)` is always called, also if the task is dropped.
STANDIN_API int standin_acl_task(void *stream, int (*run)(void *), void (*finish)(void *), void *argument,
                                 size_t bytes);
STANDIN_API int standin_acl_has_context(void);
