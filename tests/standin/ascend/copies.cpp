// Copies: which memory each call may copy.
#include "runtime.h"

using namespace ascend;

namespace ascend {
namespace {

// The checks of both kinds of call. `device` is that of the stream or context that copies.
int check_copy(void *target, size_t target_max, const void *source, size_t size, int kind, int device, Span *to,
               Span *from) {
    CHECK_ARGUMENT(target != nullptr && source != nullptr);
    CHECK_ARGUMENT(size != 0);
    CHECK_ARGUMENT(size <= target_max);
    CHECK_ARGUMENT(kind >= ACL_MEMCPY_HOST_TO_HOST && kind <= ACL_MEMCPY_DEFAULT);
    *to = resolve(target, size);
    *from = resolve(source, size);
    if (!to->inside || !from->inside) return fail(ACL_ERROR_RT_PARAM_INVALID, "a copy leaves its allocation");
    for (const Span *span : {to, from}) {
        for (const RangeRef &range : span->ranges) {
            CHECK_ARGUMENT(range->kind != Kind::shadow);
            if (range->is_host() || may_reach(device, range->device)) continue;
            if (range->imported && (range->access >> device & 1) != 0) continue;
            return fail(ACL_ERROR_RT_PARAM_INVALID, "device %d has no access to device %d", device, range->device);
        }
    }
    return 0;
}

bool imported(const Span &span) { return span.device_side() && !span.ranges[0]->key.empty(); }

int actual_kind(const Span &to, const Span &from) {
    if (from.host()) return to.host() ? ACL_MEMCPY_HOST_TO_HOST : ACL_MEMCPY_HOST_TO_DEVICE;
    return to.host() ? ACL_MEMCPY_DEVICE_TO_HOST : ACL_MEMCPY_DEVICE_TO_DEVICE;
}

// Checks the attributes of a batch: attributes[i] applies to the copies from index[i] up to index[i + 1].
int check_batch_attributes(size_t count, const aclrtMemcpyBatchAttr *attributes, const size_t *index, size_t n) {
    CHECK_ARGUMENT(attributes != nullptr && index != nullptr);
    CHECK_ARGUMENT(n != 0 && n <= count);
    CHECK_ARGUMENT(index[0] == 0);
    for (size_t i = 1; i < n; i++) CHECK_ARGUMENT(index[i] > index[i - 1]);
    CHECK_ARGUMENT(index[n - 1] < count);
    return 0;
}

bool fits(const aclrtMemLocation &location, const Span &span) {
    if (span.host()) return location.type == ACL_MEM_LOCATION_TYPE_HOST;
    return location.type == ACL_MEM_LOCATION_TYPE_DEVICE &&
           location.id == static_cast<uint32_t>(span.ranges[0]->device);
}

int check_batch(void **targets, size_t *target_max, void **sources, size_t *sizes, size_t count,
                aclrtMemcpyBatchAttr *attributes, size_t *index, size_t attribute_count, size_t *fail_index,
                std::vector<Span> *to, std::vector<Span> *from) {
    CHECK_ARGUMENT(targets && target_max && sources && sizes && fail_index);
    CHECK_ARGUMENT(count != 0);
    *fail_index = SIZE_MAX;
    if (const int code = check_batch_attributes(count, attributes, index, attribute_count)) return code;
    to->resize(count);
    from->resize(count);
    int direction = -1;
    for (size_t i = 0, attribute = 0; i < count; i++) {
        if (attribute + 1 < attribute_count && index[attribute + 1] == i) attribute++;
        Span &target = (*to)[i], &source = (*from)[i];
        const int code = check_copy(targets[i], target_max[i], sources[i], sizes[i], ACL_MEMCPY_DEFAULT, current->device,
                                    &target, &source);
        if (code != 0) return code;
        const int actual = actual_kind(target, source);
        *fail_index = i;
        CHECK_ARGUMENT(fits(attributes[attribute].dstLoc, target) && fits(attributes[attribute].srcLoc, source));
        CHECK_ARGUMENT(actual == ACL_MEMCPY_HOST_TO_DEVICE || actual == ACL_MEMCPY_DEVICE_TO_HOST);
        CHECK_ARGUMENT(direction == -1 || actual == direction);
        CHECK_ARGUMENT(!imported(target) && !imported(source));
        *fail_index = SIZE_MAX;
        direction = actual;
    }
    return 0;
}

} // namespace

} // namespace ascend

int standin_acl_copy(void *target, const void *source, size_t size) {
    const Span to = resolve(target, size), from = resolve(source, size);
    if (!to.inside || !from.inside) return fail(ACL_ERROR_RT_PARAM_INVALID, "a copy leaves its allocation");
    enter(to);
    enter(from);
    copy_spans(to, from);
    leave(to);
    leave(from);
    return 0;
}

int standin_acl_where(const void *address, size_t size) {
    const Span span = resolve(address, size);
    if (!span.inside) return standin_nowhere;
    if (span.pageable()) return standin_pageable;
    return span.device_side() ? standin_device : standin_pinned;
}

int aclrtMemcpy(void *target, size_t target_max, const void *source, size_t size, int kind) {
    ENTER_WITH_CONTEXT();
    Span to, from;
    if (const int code = check_copy(target, target_max, source, size, kind, current->device, &to, &from)) return code;
    // The kind is not checked here, except that imported memory is for asynchronous copies only.
    if (imported(to) || imported(from)) return fail(ACL_ERROR_RT_PARAM_INVALID, "imported memory, copied synchronously");
    const bool reserved = (to.device_side() && to.ranges[0]->reservation != 0) ||
                          (from.device_side() && from.ranges[0]->reservation != 0);
    if (reserved && to.device_side() && from.device_side() && to.ranges[0]->device != from.ranges[0]->device) {
        return fail(ACL_ERROR_RT_PARAM_INVALID, "reserved addresses, copied synchronously between devices");
    }
    enter(to);
    enter(from);
    spend_copy_time(size);
    copy_spans(to, from);
    leave(to);
    leave(from);
    return 0;
}

int aclrtMemcpyAsync(void *target, size_t target_max, const void *source, size_t size, int kind, void *handle) {
    ENTER_WITH_CONTEXT();
    int code;
    const StreamRef stream = stream_of(handle, &code);
    if (stream == nullptr) return code;
    if ((code = stream->stopped()) != 0) return fail(code, "the stream has stopped");
    Span to, from;
    code = check_copy(target, target_max, source, size, kind, stream->device, &to, &from);
    if (code != 0) return code;
    const int actual = actual_kind(to, from);
    if ((imported(to) || imported(from)) && kind != ACL_MEMCPY_DEVICE_TO_DEVICE) {
        return fail(ACL_ERROR_RT_PARAM_INVALID, "imported memory is copied device to device only");
    }
    if (kind != ACL_MEMCPY_DEFAULT && kind != actual) {
        return fail(ACL_ERROR_RT_PARAM_INVALID, "kind %d, and the memory is of kind %d", kind, actual);
    }
    if (actual == ACL_MEMCPY_HOST_TO_HOST) return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "host to host, asynchronously");
    return outcome_code(*stream, queue_copy(*stream, to, from, to.pageable() || from.pageable()), 0);
}

int aclrtMemcpyBatch(void **targets, size_t *target_max, void **sources, size_t *sizes, size_t count,
                     aclrtMemcpyBatchAttr *attributes, size_t *index, size_t attribute_count, size_t *fail_index) {
    ENTER_WITH_CONTEXT();
    std::vector<Span> to, from;
    if (const int code = check_batch(targets, target_max, sources, sizes, count, attributes, index, attribute_count,
                                     fail_index, &to, &from)) {
        return code;
    }
    // A batch has no order, so callers may not rely on the array's.
    for (size_t i = count; i-- > 0;) {
        spend_copy_time(sizes[i]);
        copy_spans(to[i], from[i]);
    }
    return 0;
}

int aclrtMemcpyBatchAsync(void **targets, size_t *target_max, void **sources, size_t *sizes, size_t count,
                          aclrtMemcpyBatchAttr *attributes, size_t *index, size_t attribute_count, size_t *fail_index,
                          void *handle) {
    ENTER_WITH_CONTEXT();
    int code;
    const StreamRef stream = stream_of(handle, &code);
    if (stream == nullptr) return code;
    if ((code = stream->stopped()) != 0) return fail(code, "the stream has stopped");
    std::vector<Span> to, from;
    code = check_batch(targets, target_max, sources, sizes, count, attributes, index, attribute_count, fail_index, &to,
                       &from);
    if (code != 0) return code;
    for (size_t i = count; i-- > 0;) {
        code = outcome_code(*stream, queue_copy(*stream, to[i], from[i], to[i].pageable() || from[i].pageable()), 0);
        if (code != 0) return code;
    }
    return 0;
}
