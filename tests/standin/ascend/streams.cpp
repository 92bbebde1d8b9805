// Streams and events.
#include "runtime.h"

using namespace ascend;

namespace ascend {

StreamRef stream_of(void *handle, int *code) {
    State &all = state();
    const Hold hold(all.lock);
    *code = 0;
    if (handle == nullptr) return current->stream;
    const auto found = all.streams.find(handle);
    if (found == all.streams.end()) {
        *code = fail(ACL_ERROR_RT_INVALID_HANDLE, "no such stream: %p", handle);
        return nullptr;
    }
    if (found->second->context != current) {
        *code = fail(ACL_ERROR_RT_STREAM_CONTEXT, "stream %p is of another context", handle);
        return nullptr;
    }
    return found->second;
}

int outcome_code(Stream &stream, Outcome outcome, int timeout_code) {
    switch (outcome) {
    case Outcome::timed_out: return fail(timeout_code, "the time is over");
    case Outcome::aborted: return fail(ACL_ERROR_RT_STREAM_ABORT, "the stream was aborted");
    case Outcome::failed: return fail(stream.take_error(), "a task of the stream failed");
    case Outcome::done: break;
    }
    return 0;
}

namespace {

Event *event_of(void *handle) {
    const auto found = state().events.find(static_cast<Event *>(handle));
    return found == state().events.end() ? nullptr : *found;
}

int make_stream(void **out) {
    auto made = std::make_shared<Stream>(current, current->device);
    const Hold hold(state().lock);
    state().streams[made.get()] = made;
    *out = made.get();
    return 0;
}

int synchronize(void *handle, long ms) {
    int code;
    const StreamRef stream = stream_of(handle, &code);
    if (stream == nullptr) return code;
    return outcome_code(*stream, stream->wait(Deadline(ms)), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
}

} // namespace

} // namespace ascend

int standin_acl_task(void *handle, int (*run)(void *), void (*finish)(void *), void *argument, size_t bytes) {
    int code;
    const StreamRef stream = stream_of(handle, &code);
    if (stream == nullptr) return code;
    stream->push({[=](Stream &own) { return spend_copy_time(own, bytes) ? run(argument) : 0; },
                  [=](bool) { finish(argument); }});
    return 0;
}

int standin_acl_has_context(void) {
    const Hold hold(state().lock);
    return state().contexts.count(current) != 0;
}

#define STREAM(handle)                                                                                                 \
    int stream_code;                                                                                                   \
    const StreamRef stream = stream_of(handle, &stream_code);                                                          \
    if (stream == nullptr) return stream_code

int aclrtCreateStream(void **stream) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(stream != nullptr);
    return make_stream(stream);
}

int aclrtCreateStreamWithConfig(void **stream, uint32_t, uint32_t flag) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(stream != nullptr);
    CHECK_ARGUMENT((flag & ~0xbu) == 0); // FAST_LAUNCH, FAST_SYNC and HUGE; the others are for what ferry never does
    return make_stream(stream);
}

int aclrtDestroyStream(void *handle) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(handle != nullptr);
    STREAM(handle);
    const Hold hold(state().lock);
    state().streams.erase(handle); // its end, here or when the last call lets go of it, does what is queued
    return 0;
}

// The real library has this mode for all streams of the context; no context here has a second stream that
// copies.
int aclrtSetStreamFailureMode(void *handle, uint64_t mode) {
    ENTER_WITH_CONTEXT();
    STREAM(handle);
    CHECK_ARGUMENT(mode == ACL_CONTINUE_ON_FAILURE || mode == ACL_STOP_ON_FAILURE);
    if (mode == ACL_STOP_ON_FAILURE) stream->stop_on_failure();
    return 0;
}

int aclrtStreamQuery(void *handle, int *status) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(status != nullptr);
    STREAM(handle);
    *status = stream->idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return 0;
}

int aclrtStreamAbort(void *handle) {
    ENTER_WITH_CONTEXT();
    STREAM(handle);
    stream->abort();
    return 0;
}

int aclrtSynchronizeStream(void *handle) {
    ENTER_WITH_CONTEXT();
    return synchronize(handle, -1);
}

int aclrtSynchronizeStreamWithTimeout(void *handle, int32_t ms) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(ms == -1 || ms > 0);
    return synchronize(handle, ms);
}

int aclrtCreateEventWithFlag(void **event, uint32_t flag) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(event != nullptr);
    CHECK_ARGUMENT(flag != 0 && (flag & ~0xbu) == 0); // SYNC, CAPTURE_STREAM_PROGRESS, TIME_LINE
    auto *made = new Event{(flag & ACL_EVENT_SYNC) != 0, nullptr};
    const Hold hold(state().lock);
    state().events.insert(made);
    *event = made;
    return 0;
}

#define EVENT(handle)                                                                                                  \
    RecordRef last;                                                                                                    \
    bool sync;                                                                                                         \
    {                                                                                                                  \
        const Hold hold(state().lock);                                                                                 \
        const Event *known = event_of(handle);                                                                         \
        if (known == nullptr) return fail(ACL_ERROR_RT_INVALID_HANDLE, "no such event: %p", handle);                   \
        last = known->last;                                                                                            \
        sync = known->sync;                                                                                            \
    }                                                                                                                  \
    (void)sync

int aclrtDestroyEvent(void *handle) {
    ENTER_WITH_CONTEXT();
    EVENT(handle);
    const Hold hold(state().lock);
    state().events.erase(static_cast<Event *>(handle));
    delete static_cast<Event *>(handle);
    return 0;
}

int aclrtRecordEvent(void *handle, void *stream_handle) {
    ENTER_WITH_CONTEXT();
    EVENT(handle);
    STREAM(stream_handle);
    const Hold hold(state().lock);
    if (Event *known = event_of(handle)) known->last = record(*stream);
    return 0;
}

int aclrtStreamWaitEvent(void *stream_handle, void *handle) {
    ENTER_WITH_CONTEXT();
    EVENT(handle);
    STREAM(stream_handle);
    CHECK_ARGUMENT(sync);
    if (last != nullptr) stream_wait(*stream, last);
    return 0;
}

int aclrtQueryEventStatus(void *handle, int *status) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(status != nullptr);
    EVENT(handle);
    const bool complete = last != nullptr && is_complete(last);
    *status = complete ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return 0;
}

int aclrtSynchronizeEventWithTimeout(void *handle, int32_t ms) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(ms == -1 || ms > 0);
    EVENT(handle);
    if (last == nullptr) return fail(ACL_ERROR_RT_PARAM_INVALID, "the event was never recorded");
    const Outcome outcome = wait_for(last, Deadline(ms));
    if (outcome == Outcome::timed_out) return fail(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "the time is over");
    return outcome == Outcome::done ? 0 : fail(ACL_ERROR_RT_STREAM_ABORT, "the event's stream was aborted");
}
