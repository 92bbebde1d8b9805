// Streams that are being captured into graphs, as far as callers can see that, and the calls that a thread
// may make during a capture. No graph is made.
#include "driver.h"

using namespace cuda;

extern "C" {
#pragma GCC visibility push(default)
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, void **graph);
CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
#pragma GCC visibility pop
}

namespace {
constexpr int mode_relaxed = 2;
std::set<CUstream> capturing;
thread_local int thread_mode = 0;
} // namespace

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(mode >= 0 && mode <= mode_relaxed);
    CHECK_ARGUMENT(stream != nullptr && stream != CU_STREAM_LEGACY);
    const Hold hold(state().lock);
    if (stream_of(stream) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    capturing.insert(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, void **graph) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(graph != nullptr);
    const Hold hold(state().lock);
    CHECK_ARGUMENT(capturing.erase(stream) == 1);
    *graph = nullptr;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(status != nullptr);
    const Hold hold(state().lock);
    if (stream_of(stream) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *status = capturing.count(stream) != 0;
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER();
    CHECK_ARGUMENT(mode != nullptr && *mode >= 0 && *mode <= mode_relaxed);
    std::swap(thread_mode, *mode);
    return CUDA_SUCCESS;
}
