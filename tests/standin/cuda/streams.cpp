// Streams, events, host functions and memory operations of streams.
#include "driver.h"

#include <cstring>
#include <thread>

using namespace cuda;

namespace cuda {

StreamRef new_stream(Context *context) {
    auto made = std::make_shared<Stream>(context, context->device);
    made->error_sink = &context->error;
    return made;
}

StreamRef stream_of(CUstream handle) {
    State &all = state();
    const Hold hold(all.lock);
    if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) return current()->stream;
    const auto found = all.streams.find(handle);
    return found == all.streams.end() ? nullptr : found->second;
}

CUresult outcome_code(Context *context, Outcome outcome) {
    if (outcome == Outcome::aborted) return CUDA_ERROR_UNKNOWN; // nobody aborts here
    return static_cast<CUresult>(context->error.load());
}

namespace {

Event *event_of(CUevent handle) {
    const auto found = state().events.find(reinterpret_cast<Event *>(handle));
    return found == state().events.end() ? nullptr : *found;
}

CUresult make_stream(CUstream *out, unsigned flags) {
    CHECK_ARGUMENT(out != nullptr);
    CHECK_ARGUMENT(flags <= CU_STREAM_NON_BLOCKING);
    auto made = new_stream(current());
    const Hold hold(state().lock);
    state().streams[made.get()] = made;
    *out = reinterpret_cast<CUstream>(made.get());
    return CUDA_SUCCESS;
}

bool holds(uint64_t there, uint64_t value, unsigned flags, unsigned bits) {
    if (bits == 32) there &= 0xffffffff;
    switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: // cyclically
        return bits == 32 ? static_cast<int32_t>(there - value) >= 0 : static_cast<int64_t>(there - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return there == value;
    case CU_STREAM_WAIT_VALUE_AND: return (there & value) != 0;
    default: return (bits == 32 ? ~(there | value) & 0xffffffff : ~(there | value)) != 0;
    }
}

uint64_t load(const char *alias, unsigned bits) {
    if (bits == 32) return __atomic_load_n(reinterpret_cast<const uint32_t *>(alias), __ATOMIC_ACQUIRE);
    return __atomic_load_n(reinterpret_cast<const uint64_t *>(alias), __ATOMIC_ACQUIRE);
}

// Memory that streams may wait for or write to: device or pinned memory, aligned.
CUresult word_at(CUdeviceptr address, unsigned bits, Span *out) {
    CHECK_ARGUMENT(address % (bits / 8) == 0);
    *out = resolve(pointer(address), bits / 8);
    CHECK_ARGUMENT(out->inside && !out->pageable());
    return CUDA_SUCCESS;
}

CUresult wait_value(CUstream handle, CUdeviceptr address, uint64_t value, unsigned flags, unsigned bits) {
    CHECK_ARGUMENT((flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) == 0);
    const StreamRef stream = stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    Span word;
    if (const CUresult code = word_at(address, bits, &word)) return code;
    enter(word);
    const char *alias = word.ranges[0]->alias(word.address);
    stream->push({[=](Stream &own) {
                      own.pause_until([=] { return holds(load(alias, bits), value, flags, bits); }, 50);
                      return 0;
                  },
                  [word](bool) { leave(word); }});
    return CUDA_SUCCESS;
}

CUresult write_value(CUstream handle, CUdeviceptr address, uint64_t value, unsigned flags, unsigned bits) {
    CHECK_ARGUMENT(flags <= 1);
    const StreamRef stream = stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    Span word;
    if (const CUresult code = word_at(address, bits, &word)) return code;
    enter(word);
    char *alias = word.ranges[0]->alias(word.address);
    stream->push({[=](Stream &) {
                      if (bits == 32) {
                          __atomic_store_n(reinterpret_cast<uint32_t *>(alias), static_cast<uint32_t>(value), __ATOMIC_RELEASE);
                      } else {
                          __atomic_store_n(reinterpret_cast<uint64_t *>(alias), value, __ATOMIC_RELEASE);
                      }
                      return 0;
                  },
                  [word](bool) { leave(word); }});
    return CUDA_SUCCESS;
}

} // namespace
} // namespace cuda

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    ENTER_WITH_CONTEXT();
    return make_stream(stream, flags);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int) {
    ENTER_WITH_CONTEXT();
    return make_stream(stream, flags);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(handle != nullptr);
    const Hold hold(state().lock);
    const auto found = state().streams.find(handle);
    if (found == state().streams.end()) return CUDA_ERROR_INVALID_HANDLE;
    // The work goes on; this call doesn't wait for it.
    std::thread([stream = std::move(found->second)] {}).detach();
    state().streams.erase(found);
    return CUDA_SUCCESS;
}

#define STREAM(handle)                                                                                                 \
    const StreamRef stream = stream_of(handle);                                                                        \
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE

CUresult cuStreamQuery(CUstream handle) {
    ENTER_WITH_CONTEXT();
    STREAM(handle);
    if (!stream->idle()) return CUDA_ERROR_NOT_READY;
    return outcome_code(static_cast<Context *>(stream->context), Outcome::done);
}

CUresult cuStreamSynchronize(CUstream handle) {
    ENTER_WITH_CONTEXT();
    STREAM(handle);
    return outcome_code(static_cast<Context *>(stream->context), stream->wait(Deadline(-1)));
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(context != nullptr);
    STREAM(handle);
    *context = handle_of(static_cast<Context *>(stream->context));
    return CUDA_SUCCESS;
}

#define WITH_VALUE(name, bits, act)                                                                                    \
    CUresult name(CUstream stream, CUdeviceptr address, cuuint##bits##_t value, unsigned int flags) {                  \
        ENTER_WITH_CONTEXT();                                                                                          \
        return act(stream, address, value, flags, bits);                                                               \
    }
WITH_VALUE(cuStreamWaitValue32_v2, 32, wait_value)
WITH_VALUE(cuStreamWaitValue64_v2, 64, wait_value)
WITH_VALUE(cuStreamWriteValue32_v2, 32, write_value)
WITH_VALUE(cuStreamWriteValue64_v2, 64, write_value)

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *argument) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(function != nullptr);
    STREAM(handle);
    stream->push({[function, argument](Stream &) {
                      in_host_function = true;
                      function(argument);
                      in_host_function = false;
                      return 0;
                  },
                  [](bool) {}});
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(event != nullptr);
    CHECK_ARGUMENT(flags <= 7);
    CHECK_ARGUMENT((flags & CU_EVENT_INTERPROCESS) == 0 || (flags & CU_EVENT_DISABLE_TIMING) != 0);
    auto *made = new Event{flags, nullptr};
    const Hold hold(state().lock);
    state().events.insert(made);
    *event = reinterpret_cast<CUevent>(made);
    return CUDA_SUCCESS;
}

#define EVENT(handle)                                                                                                  \
    RecordRef last;                                                                                                    \
    {                                                                                                                  \
        const Hold hold(state().lock);                                                                                 \
        const Event *known = event_of(handle);                                                                         \
        if (known == nullptr) return CUDA_ERROR_INVALID_HANDLE;                                                        \
        last = known->last;                                                                                            \
    }                                                                                                                  \
    (void)last

CUresult cuEventDestroy_v2(CUevent handle) {
    ENTER_WITH_CONTEXT();
    EVENT(handle);
    const Hold hold(state().lock);
    state().events.erase(reinterpret_cast<Event *>(handle));
    delete reinterpret_cast<Event *>(handle);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
    ENTER_WITH_CONTEXT();
    EVENT(handle);
    STREAM(stream_handle);
    const Hold hold(state().lock);
    if (Event *known = event_of(handle)) known->last = record(*stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(flags == 0);
    EVENT(handle);
    STREAM(stream_handle);
    if (last != nullptr) stream_wait(*stream, last);
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent handle) {
    ENTER_WITH_CONTEXT();
    EVENT(handle);
    if (last != nullptr && !is_complete(last)) return CUDA_ERROR_NOT_READY;
    // A sticky error of the context takes precedence over the recorded event.
    return outcome_code(current(), Outcome::done);
}

CUresult cuEventSynchronize(CUevent handle) {
    ENTER_WITH_CONTEXT();
    EVENT(handle);
    if (last == nullptr) return CUDA_SUCCESS;
    return outcome_code(current(), wait_for(last, Deadline(-1)));
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(ms != nullptr);
    RecordRef from, to;
    {
        const Hold hold(state().lock);
        const Event *first = event_of(start), *second = event_of(end);
        if (first == nullptr || second == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (((first->flags | second->flags) & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
        from = first->last;
        to = second->last;
    }
    if (from == nullptr || to == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (!is_complete(from) || !is_complete(to)) return CUDA_ERROR_NOT_READY;
    *ms = std::chrono::duration<float, std::milli>(to->when - from->when).count();
    return CUDA_SUCCESS;
}
