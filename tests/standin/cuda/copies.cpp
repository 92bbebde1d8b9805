// Copies. Addresses are unified; pageable host memory makes every copy synchronous.
#include "driver.h"

#include <cstring>

using namespace cuda;

namespace cuda {
namespace {

// The kind of memory that each side must have, by the call's name.
enum Side { anything, host_side, device_side };

bool suits(const Span &span, Side side) {
    if (!span.inside) return false;
    if (side == anything) return true;
    // Managed memory counts as both kinds.
    const bool managed = span.device_side() && span.ranges[0]->kind == Kind::managed;
    return managed || span.device_side() == (side == device_side);
}

bool may_access(const Span &span, int device) {
    for (const RangeRef &range : span.ranges) {
        if ((range->access >> device & 1) == 0) return false;
    }
    return true;
}

CUresult check_copy(const void *target, Side to_side, const void *source, Side from_side, size_t size, int device,
                    Span *to, Span *from) {
    CHECK_ARGUMENT(target != nullptr && source != nullptr);
    *to = resolve(target, size);
    *from = resolve(source, size);
    CHECK_ARGUMENT(suits(*to, to_side) && suits(*from, from_side));
    CHECK_ARGUMENT(may_access(*to, device) && may_access(*from, device));
    return CUDA_SUCCESS;
}

CUresult copy(const void *target, Side to_side, const void *source, Side from_side, size_t size, CUstream handle,
              bool synchronous) {
    const StreamRef stream = stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (size == 0) return CUDA_SUCCESS;
    Span to, from;
    if (const CUresult code = check_copy(target, to_side, source, from_side, size, stream->device, &to, &from)) return code;
    const bool wait = synchronous || to.pageable() || from.pageable();
    return outcome_code(static_cast<Context *>(stream->context), queue_copy(*stream, to, from, wait));
}

} // namespace
} // namespace cuda

CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream) {
    ENTER_WITH_CONTEXT();
    return copy(pointer(target), anything, pointer(source), anything, size, stream, false);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t size, CUstream stream) {
    ENTER_WITH_CONTEXT();
    return copy(pointer(target), device_side, source, host_side, size, stream, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t size, CUstream stream) {
    ENTER_WITH_CONTEXT();
    return copy(target, host_side, pointer(source), device_side, size, stream, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream) {
    ENTER_WITH_CONTEXT();
    return copy(pointer(target), device_side, pointer(source), device_side, size, stream, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t size) {
    ENTER_WITH_CONTEXT();
    return copy(pointer(target), device_side, source, host_side, size, nullptr, true);
}

CUresult cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t size) {
    ENTER_WITH_CONTEXT();
    return copy(target, host_side, pointer(source), device_side, size, nullptr, true);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t size) {
    ENTER_WITH_CONTEXT();
    return copy(pointer(target), device_side, pointer(source), device_side, size, nullptr, true);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext source_context,
                           size_t size, CUstream stream) {
    ENTER_WITH_CONTEXT();
    {
        const Hold hold(state().lock);
        const Context *to = context_of(target_context), *from = context_of(source_context);
        if (to == nullptr || from == nullptr || !to->alive() || !from->alive()) return CUDA_ERROR_INVALID_CONTEXT;
        const Span target_span = resolve(pointer(target), size), source_span = resolve(pointer(source), size);
        CHECK_ARGUMENT(target_span.device_side() && target_span.ranges[0]->device == to->device);
        CHECK_ARGUMENT(source_span.device_side() && source_span.ranges[0]->device == from->device);
    }
    return copy(pointer(target), device_side, pointer(source), device_side, size, stream, false);
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *targets, CUdeviceptr *sources, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attributes, size_t *index, size_t attribute_count, size_t *fail_index,
                            CUstream handle) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(targets && sources && sizes && attributes && index && fail_index);
    *fail_index = SIZE_MAX;
    CHECK_ARGUMENT(handle != nullptr && handle != CU_STREAM_LEGACY); // no default stream
    const StreamRef stream = stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    CHECK_ARGUMENT(count != 0 && attribute_count != 0 && attribute_count <= count && index[0] == 0);
    for (size_t i = 0; i < attribute_count; i++) {
        CHECK_ARGUMENT(i == 0 || index[i] > index[i - 1]);
        CHECK_ARGUMENT(index[i] < count);
        CHECK_ARGUMENT(attributes[i].srcAccessOrder >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
                       attributes[i].srcAccessOrder <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
    }
    std::vector<Span> to(count), from(count);
    bool wait = false;
    for (size_t i = 0; i < count; i++) {
        *fail_index = i;
        CHECK_ARGUMENT(sizes[i] != 0);
        const CUresult code = check_copy(pointer(targets[i]), anything, pointer(sources[i]), anything, sizes[i],
                                         stream->device, &to[i], &from[i]);
        if (code != CUDA_SUCCESS) return code;
        wait = wait || to[i].pageable() || from[i].pageable();
    }
    *fail_index = SIZE_MAX;
    // A batch has no order, so callers may not rely on the array's.
    for (size_t i = count; i-- > 0;) queue_copy(*stream, to[i], from[i], false);
    return outcome_code(static_cast<Context *>(stream->context), wait ? stream->wait(Deadline(-1)) : Outcome::done);
}

CUresult cuMemsetD8_v2(CUdeviceptr target, unsigned char value, size_t size) {
    ENTER_WITH_CONTEXT();
    if (size == 0) return CUDA_SUCCESS;
    const Span span = resolve(pointer(target), size);
    CHECK_ARGUMENT(suits(span, device_side) && may_access(span, current()->device));
    const StreamRef stream = current()->stream;
    enter(span);
    stream->push({[span, value](Stream &) {
                      for_each_part(span, [&](char *part, size_t bytes) { memset(part, value, bytes); });
                      return 0;
                  },
                  [span](bool) { leave(span); }});
    return outcome_code(current(), stream->wait(Deadline(-1)));
}
