// program.h by AscendCL.
#include "../ascend/acl.h"
#include "../ascend/below.h"
#include "program.h"

#include <cerrno>
#include <semaphore.h>
#include <vector>

namespace {
void *contexts[2];

void use(int device) {
    if (contexts[device] == nullptr) {
        OK(aclrtSetDevice(device));
        OK(aclrtGetCurrentContext(&contexts[device]));
    }
    OK(aclrtSetCurrentContext(contexts[device]));
}

void *pointer(uint64_t address) { return reinterpret_cast<void *>(address); }

// Memory is copied and freed under a context of its device.
void use_device_of(uint64_t address) {
    use(0);
    aclrtPtrAttributes found;
    OK(aclrtPointerGetAttributes(pointer(address), &found));
    use(static_cast<int>(found.location.id));
}
} // namespace

void program_begin(void) {
    const int code = aclInit(nullptr);
    if (code != ACL_ERROR_REPEAT_INITIALIZE) OK(code);
}

long program_end(void) {
    for (int device = 0; device < 2; device++) {
        if (contexts[device] != nullptr) OK(aclrtResetDevice(device));
        contexts[device] = nullptr;
    }
    const long complaints = standin_audit();
    OK(aclFinalizeReference(nullptr));
    return complaints;
}

uint64_t program_alloc(int device, size_t length) {
    void *address;
    use(device);
    OK(aclrtMalloc(&address, length, ACL_MEM_MALLOC_HUGE_FIRST));
    const std::vector<char> zeros(length);
    OK(aclrtMemcpy(address, length, zeros.data(), length, ACL_MEMCPY_HOST_TO_DEVICE));
    return reinterpret_cast<uint64_t>(address);
}

void program_free(uint64_t address) {
    use_device_of(address);
    OK(aclrtFree(pointer(address)));
}

void program_put(uint64_t address, const void *from, size_t length) {
    use_device_of(address);
    OK(aclrtMemcpy(pointer(address), length, from, length, ACL_MEMCPY_HOST_TO_DEVICE));
}

void program_get(void *into, uint64_t address, size_t length) {
    use_device_of(address);
    OK(aclrtMemcpy(into, length, pointer(address), length, ACL_MEMCPY_DEVICE_TO_HOST));
}

program_stream *program_stream_make(size_t length) {
    auto *stream = new program_stream{};
    use(0);
    OK(aclrtCreateStream(&stream->handle));
    OK(aclrtCreateEventWithFlag(&stream->event, ACL_EVENT_SYNC));
    OK(aclrtMallocHost(&stream->staged, length));
    stream->length = length;
    auto *gate = new sem_t;
    OK(sem_init(gate, 0, 0));
    stream->gate = gate;
    return stream;
}

void program_stream_end(program_stream *stream) {
    program_stream_go(stream);
    use(0);
    OK(aclrtDestroyStream(stream->handle));
    OK(aclrtDestroyEvent(stream->event));
    OK(aclrtFreeHost(stream->staged));
    auto *gate = static_cast<sem_t *>(stream->gate);
    OK(sem_destroy(gate));
    delete gate;
    delete stream;
}

// No stream of AscendCL can wait for host memory: a task of the stand-in does it.
void program_stream_block(program_stream *stream) {
    use(0);
    const auto wait = [](void *gate) {
        while (sem_wait(static_cast<sem_t *>(gate)) != 0 && errno == EINTR) {
        }
        return 0;
    };
    OK(standin_acl_task(stream->handle, wait, [](void *) {}, stream->gate, 0));
}

void program_stream_go(program_stream *stream) { OK(sem_post(static_cast<sem_t *>(stream->gate))); }

void program_stream_write(program_stream *stream, uint64_t to) {
    use(0);
    const size_t length = stream->length;
    OK(aclrtMemcpyAsync(pointer(to), length, stream->staged, length, ACL_MEMCPY_HOST_TO_DEVICE, stream->handle));
}

void program_stream_read(program_stream *stream, uint64_t from) {
    use(0);
    const size_t length = stream->length;
    OK(aclrtMemcpyAsync(stream->staged, length, pointer(from), length, ACL_MEMCPY_DEVICE_TO_HOST, stream->handle));
}

void program_stream_record(program_stream *stream) {
    use(0);
    OK(aclrtRecordEvent(stream->event, stream->handle));
}

int program_stream_is_done(program_stream *stream) {
    use(0);
    int status;
    OK(aclrtStreamQuery(stream->handle, &status));
    return status == ACL_STREAM_STATUS_COMPLETE;
}
