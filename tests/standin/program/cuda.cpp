// program.h by the CUDA driver.
#include "../core/knobs.h"
#include "../cuda/cuda.h"
#include "program.h"

#include <algorithm>
#include <vector>

namespace {
CUcontext contexts[2];

void use(int device) {
    if (contexts[device] == nullptr) OK(cuDevicePrimaryCtxRetain(&contexts[device], device));
    OK(cuCtxSetCurrent(contexts[device]));
}

CUdeviceptr pointer(void *memory) { return reinterpret_cast<CUdeviceptr>(memory); }
CUstream stream_of(const program_stream *stream) { return static_cast<CUstream>(stream->handle); }
} // namespace

void program_begin(void) { OK(cuInit(0)); }

long program_end(void) {
    // A thread without a context cannot ask the driver.
    OK(cuCtxSetCurrent(nullptr));
    for (int device = 0; device < 2; device++) {
        if (contexts[device] != nullptr) OK(cuDevicePrimaryCtxRelease_v2(device));
        contexts[device] = nullptr;
    }
    return standin_audit();
}

uint64_t program_alloc(int device, size_t length) {
    CUdeviceptr address;
    use(device);
    OK(cuMemAlloc_v2(&address, length));
    OK(cuMemsetD8_v2(address, 0, length));
    return address;
}

void program_free(uint64_t address) {
    use(0);
    OK(cuMemFree_v2(address));
}

void program_put(uint64_t address, const void *from, size_t length) {
    use(0);
    OK(cuMemcpyHtoD_v2(address, from, length));
}

void program_get(void *into, uint64_t address, size_t length) {
    use(0);
    OK(cuMemcpyDtoH_v2(into, address, length));
}

program_stream *program_stream_make(size_t length) {
    auto *stream = new program_stream{};
    CUstream handle;
    CUevent event;
    use(0);
    OK(cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemHostAlloc(&stream->staged, length, 0));
    OK(cuMemHostAlloc(&stream->gate, sizeof(uint32_t), 0));
    stream->handle = handle;
    stream->event = event;
    stream->length = length;
    std::fill_n(static_cast<char *>(stream->staged), length, 0);
    *static_cast<uint32_t *>(stream->gate) = 0;
    return stream;
}

void program_stream_end(program_stream *stream) {
    program_stream_go(stream);
    use(0);
    OK(cuStreamDestroy_v2(stream_of(stream)));
    OK(cuEventDestroy_v2(static_cast<CUevent>(stream->event)));
    OK(cuMemFreeHost(stream->staged));
    OK(cuMemFreeHost(stream->gate));
    delete stream;
}

void program_stream_block(program_stream *stream) {
    use(0);
    OK(cuStreamWaitValue32_v2(stream_of(stream), pointer(stream->gate), 1, CU_STREAM_WAIT_VALUE_GEQ));
}

void program_stream_go(program_stream *stream) {
    __atomic_store_n(static_cast<uint32_t *>(stream->gate), 1, __ATOMIC_RELEASE);
}

void program_stream_write(program_stream *stream, uint64_t to) {
    use(0);
    OK(cuMemcpyHtoDAsync_v2(to, stream->staged, stream->length, stream_of(stream)));
}

void program_stream_read(program_stream *stream, uint64_t from) {
    use(0);
    OK(cuMemcpyDtoHAsync_v2(stream->staged, from, stream->length, stream_of(stream)));
}

void program_stream_record(program_stream *stream) {
    use(0);
    OK(cuEventRecord(static_cast<CUevent>(stream->event), stream_of(stream)));
}

int program_stream_is_done(program_stream *stream) {
    use(0);
    const CUresult result = cuStreamQuery(stream_of(stream));
    if (result == CUDA_ERROR_NOT_READY) return 0;
    OK(result);
    return 1;
}
