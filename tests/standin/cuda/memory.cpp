// Device, managed and host memory, and the attributes of an address.
#include "driver.h"

#include <cstdio>
#include <fcntl.h>
#include <thread>
#include <unistd.h>

using namespace cuda;

namespace cuda {

void wait_unused(const Range &range) {
    while (range.in_flight != 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

namespace {

CUresult allocate(CUdeviceptr *address, size_t size, Kind kind, const char *label) {
    CHECK_ARGUMENT(address != nullptr);
    CHECK_ARGUMENT(size != 0);
    const int device = current()->device;
    auto range = std::make_shared<Range>();
    range->backing = make_backing(size, kind == Kind::host ? devices_max - 1 : device, label);
    if (range->backing == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    range->size = size;
    range->kind = kind;
    range->device = device;
    if (!place_range(range, kind != Kind::device)) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = range->base;
    return CUDA_SUCCESS;
}

CUresult allocate_host(void **address, size_t size) {
    CHECK_ARGUMENT(address != nullptr);
    CUdeviceptr got;
    if (const CUresult code = allocate(&got, size, Kind::host, "cuda-host")) return code;
    *address = pointer(got);
    return CUDA_SUCCESS;
}

template <typename T> void put(void *data, T value) { *static_cast<T *>(data) = value; }

// False if the attribute does not apply to this memory.
bool attribute_of(const Range &range, CUpointer_attribute which, CUdeviceptr address, void *data) {
    const bool host = range.is_host();
    const bool legacy = range.kind == Kind::device && range.handle == nullptr && range.key.empty();
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: put(data, handle_of(&state().contexts[range.device])); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: put<unsigned>(data, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE); break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: put<CUdeviceptr>(data, address); break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (range.kind == Kind::device) return false;
        put(data, pointer(address));
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: put<unsigned>(data, 0); break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: put<unsigned long long>(data, range.id); break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: put<unsigned>(data, range.kind == Kind::managed); break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: put<int>(data, range.device); break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: put<unsigned>(data, legacy && knob(Knob::ipc) != 0); break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: put(data, pointer(range.base)); break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: put<size_t>(data, range.size); break;
    case CU_POINTER_ATTRIBUTE_MAPPED: put<unsigned>(data, 1); break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: {
        const auto *physical = static_cast<const Physical *>(range.handle);
        put<uint64_t>(data, physical == nullptr ? 0 : physical->properties.requestedHandleTypes);
        break;
    }
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: put<unsigned>(data, 0); break;
    default: return false;
    }
    return true;
}

// The list form reports zeros for unknown memory, in the size of the attribute.
void put_nothing(CUpointer_attribute which, void *data) {
    switch (which) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: put<unsigned>(data, 0); break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: put<int>(data, -2); break; // no device, as the runtime's "invalid"
    default: put<uint64_t>(data, 0); break;
    }
}

} // namespace
} // namespace cuda

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    ENTER_WITH_CONTEXT();
    return allocate(address, size, Kind::device, "cuda");
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST);
    return allocate(address, size, Kind::managed, "cuda-managed");
}

CUresult cuMemHostAlloc(void **address, size_t size, unsigned int flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(flags <= 7);
    return allocate_host(address, size);
}

CUresult cuMemAllocHost_v2(void **address, size_t size) {
    ENTER_WITH_CONTEXT();
    return allocate_host(address, size);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
    ENTER_WITH_CONTEXT();
    if (address == 0) return CUDA_SUCCESS;
    const RangeRef range = find_base(pointer(address));
    CHECK_ARGUMENT(range != nullptr && !range->is_host() && range->handle == nullptr && range->key.empty());
    wait_unused(*range);
    const Hold hold(state().lock);
    const auto exported = state().exports.find(range->id);
    if (exported != state().exports.end()) {
        if (openers(exported->second) != 0) violation("cuMemFree(%#llx) while another process has it open", address);
        withdraw(exported->second);
        state().exports.erase(exported);
    }
    drop_range(range);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *address) {
    ENTER_WITH_CONTEXT();
    const RangeRef range = find_base(address);
    CHECK_ARGUMENT(range != nullptr && range->kind == Kind::host);
    wait_unused(*range);
    drop_range(range);
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned int flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(address != nullptr && size != 0);
    if ((flags & ~3u) != 0) return CUDA_ERROR_NOT_SUPPORTED; // IOMEMORY, READ_ONLY
    auto range = std::make_shared<Range>();
    range->kind = Kind::registered;
    range->base = reinterpret_cast<uintptr_t>(address);
    range->size = size;
    range->device = current()->device;
    const Span there = resolve(address, size);
    CHECK_ARGUMENT(!there.device_side());
    return add_range(range) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult cuMemHostUnregister(void *address) {
    ENTER_WITH_CONTEXT();
    const RangeRef range = find_base(address);
    if (range == nullptr || range->kind != Kind::registered) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    wait_unused(*range);
    drop_range(range);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device_address, void *address, unsigned int flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(device_address != nullptr && flags == 0);
    const RangeRef range = find_range(address);
    CHECK_ARGUMENT(range != nullptr && range->is_host());
    *device_address = reinterpret_cast<CUdeviceptr>(address);
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute which, CUdeviceptr address) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(data != nullptr);
    const RangeRef range = find_range(pointer(address));
    CHECK_ARGUMENT(range != nullptr);
    const Hold hold(state().lock);
    CHECK_ARGUMENT(attribute_of(*range, which, address, data));
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr address) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(count != 0 && attributes != nullptr && data != nullptr);
    const RangeRef range = find_range(pointer(address));
    const Hold hold(state().lock);
    for (unsigned i = 0; i < count; i++) {
        CHECK_ARGUMENT(data[i] != nullptr);
        CHECK_ARGUMENT(attributes[i] >= CU_POINTER_ATTRIBUTE_CONTEXT &&
                       attributes[i] <= CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE &&
                       attributes[i] != CU_POINTER_ATTRIBUTE_P2P_TOKENS);
        if (range == nullptr || !attribute_of(*range, attributes[i], address, data[i])) put_nothing(attributes[i], data[i]);
    }
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    ENTER_WITH_CONTEXT();
    const RangeRef range = find_range(pointer(address));
    if (range == nullptr) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = range->base;
    if (size != nullptr) *size = range->size;
    return CUDA_SUCCESS;
}

// The stand-in for a dma-buf is the memory's file, opened again, positioned at the start of the range.
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size, CUmemRangeHandleType type,
                                       unsigned long long flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(handle != nullptr);
    if (knob(Knob::dma_buf) == 0) return CUDA_ERROR_NOT_SUPPORTED;
    CHECK_ARGUMENT(type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD && flags == 0);
    CHECK_ARGUMENT(size != 0 && size % page_bytes == 0 && address % page_bytes == 0);
    const RangeRef range = find_range(pointer(address));
    CHECK_ARGUMENT(range != nullptr && range->kind == Kind::device);
    CHECK_ARGUMENT(size <= range->base + round_up(range->size, page_bytes) - address);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", range->backing->file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    lseek(file, static_cast<off_t>(range->offset + (address - range->base)), SEEK_SET);
    *static_cast<int *>(handle) = file;
    return CUDA_SUCCESS;
}
