// IPC handles: device memory opened by another process of the host.
#include "driver.h"

#include <cstring>
#include <unistd.h>

using namespace cuda;

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(handle != nullptr);
    if (knob(Knob::ipc) == 0) return CUDA_ERROR_NOT_SUPPORTED;
    const RangeRef range = find_base(pointer(address));
    CHECK_ARGUMENT(range != nullptr && range->kind == Kind::device && range->handle == nullptr && range->key.empty());
    const Hold hold(state().lock);
    std::string &name = state().exports[range->id];
    if (name.empty()) {
        Shared shared;
        shared.process = getpid();
        shared.file = range->backing->file;
        shared.size = range->size;
        shared.device = range->device;
        shared.anyone = true;
        name = new_name();
        if (!publish(name, shared)) return CUDA_ERROR_UNKNOWN;
    }
    memcpy(handle->reserved, name.data(), sizeof handle->reserved); // 64 digits, and no room for a zero
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(address != nullptr && flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (knob(Knob::ipc) == 0) return CUDA_ERROR_NOT_SUPPORTED;
    const std::string name(handle.reserved, sizeof handle.reserved);
    CHECK_ARGUMENT(is_name(name));
    State &all = state();
    const Hold hold(all.lock);
    for (const auto &entry : all.exports) {
        if (entry.second == name) return CUDA_ERROR_INVALID_CONTEXT; // its own process can't
    }
    const auto opened = all.imports.find(name);
    if (opened != all.imports.end()) {
        opened->second.references++;
        *address = opened->second.base;
        return CUDA_SUCCESS;
    }
    Shared shared;
    if (!look_up(name, &shared)) return CUDA_ERROR_MAP_FAILED;
    if (shared.device != current()->device && knob(Knob::peer) == 0) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    auto range = std::make_shared<Range>();
    range->backing = open_backing(shared.process, shared.file, shared.size, shared.device);
    if (range->backing == nullptr) return CUDA_ERROR_MAP_FAILED;
    range->size = shared.size;
    range->device = shared.device;
    range->key = name;
    range->imported = true;
    if (!place_range(range, false)) return CUDA_ERROR_MAP_FAILED;
    current()->peers |= uint64_t(1) << shared.device;
    mark_open(name, true);
    all.imports[name] = {range->base, 1};
    *address = range->base;
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    ENTER_WITH_CONTEXT();
    State &all = state();
    const Hold hold(all.lock);
    const RangeRef range = find_base(pointer(address));
    CHECK_ARGUMENT(range != nullptr && !range->key.empty());
    Import &import = all.imports[range->key];
    if (--import.references != 0) return CUDA_SUCCESS;
    if (range->in_flight != 0) violation("cuIpcCloseMemHandle(%#llx) while tasks name it", address);
    mark_open(range->key, false);
    all.imports.erase(range->key);
    drop_range(range);
    return CUDA_SUCCESS;
}
