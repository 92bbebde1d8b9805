// Virtual memory: physical memory, reserved addresses, mappings, and handles as file descriptors.
#include "driver.h"

#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace cuda;

namespace cuda {
namespace {

Physical *physical_of(CUmemGenericAllocationHandle handle) {
    const auto found = state().physical.find(reinterpret_cast<Physical *>(handle));
    return found == state().physical.end() ? nullptr : *found;
}

void free_if_unused(Physical *one) {
    if (one->references != 0 || one->mappings != 0) return;
    state().physical.erase(one);
    delete one;
}

CUresult check_properties(const CUmemAllocationProp *properties) {
    CHECK_ARGUMENT(properties != nullptr && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED);
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (!is_device(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    const int types = properties->requestedHandleTypes;
    if ((types & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (types != 0 && knob(Knob::posix_fd) == 0) return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

// Returns the mappings that make up [address, address + size) exactly; none if they don't.
std::vector<RangeRef> mappings_in(CUdeviceptr address, size_t size) {
    const Span span = resolve(pointer(address), size);
    if (!span.inside || span.pageable()) return {};
    const Range &first = *span.ranges.front(), &last = *span.ranges.back();
    if (first.handle == nullptr || first.base != address || last.base + last.size != address + size) return {};
    return span.ranges;
}

// Returns the device in the memfd's name; -1 if this library did not make the descriptor.
int device_of_file(int file) {
    char target[128] = "";
    const std::string link = "/proc/self/fd/" + std::to_string(file);
    int device;
    if (readlink(link.c_str(), target, sizeof target - 1) < 0) return -1;
    return sscanf(target, "/memfd:standin-cuda-vmm-%d", &device) == 1 ? device : -1;
}

} // namespace
} // namespace cuda

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags) {
    ENTER();
    CHECK_ARGUMENT(granularity != nullptr);
    if (const CUresult code = check_properties(properties)) return code;
    *granularity = huge_bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
    ENTER();
    CHECK_ARGUMENT(handle != nullptr && flags == 0);
    if (const CUresult code = check_properties(properties)) return code;
    CHECK_ARGUMENT(size != 0 && size % huge_bytes == 0);
    auto backing = make_backing(size, properties->location.id, "cuda-vmm");
    if (backing == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    const Hold hold(state().lock);
    auto *made = new Physical{backing, size, *properties};
    state().physical.insert(made);
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(made);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER();
    const Hold hold(state().lock);
    Physical *one = physical_of(handle);
    CHECK_ARGUMENT(one != nullptr && one->references != 0);
    one->references--;
    free_if_unused(one);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr, unsigned long long flags) {
    ENTER();
    CHECK_ARGUMENT(address != nullptr && flags == 0); // the wanted address is a hint
    CHECK_ARGUMENT(size != 0 && size % huge_bytes == 0);
    CHECK_ARGUMENT((alignment & (alignment - 1)) == 0);
    const uintptr_t base = reserve_addresses(size, alignment > huge_bytes ? alignment : huge_bytes);
    if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    const Hold hold(state().lock);
    state().reservations[base] = size;
    *address = base;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
    ENTER();
    const Hold hold(state().lock);
    const auto found = state().reservations.find(address);
    CHECK_ARGUMENT(found != state().reservations.end() && found->second == size);
    CHECK_ARGUMENT(ranges_of(address).empty());
    release_addresses(address, size);
    state().reservations.erase(found);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    ENTER();
    CHECK_ARGUMENT(flags == 0 && offset == 0); // other offsets are not supported yet, says the manual
    CHECK_ARGUMENT(address % huge_bytes == 0 && size != 0 && size % huge_bytes == 0);
    State &all = state();
    const Hold hold(all.lock);
    Physical *one = physical_of(handle);
    CHECK_ARGUMENT(one != nullptr && size <= one->size);
    const RangeRef range = range_within(all.reservations, address, size, one->backing, one);
    CHECK_ARGUMENT(range != nullptr);
    range->access = 0; // until cuMemSetAccess
    CHECK_ARGUMENT(add_range(range));
    if (!map_backing(address, size, *one->backing, 0, false)) return CUDA_ERROR_MAP_FAILED;
    one->mappings++;
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    ENTER();
    const Hold hold(state().lock);
    const std::vector<RangeRef> mappings = mappings_in(address, size);
    CHECK_ARGUMENT(!mappings.empty());
    for (const RangeRef &range : mappings) {
        if (range->in_flight != 0) violation("cuMemUnmap(%#lx) while tasks name it", range->base);
        drop_range(range);
        auto *one = static_cast<Physical *>(range->handle);
        one->mappings--;
        free_if_unused(one);
    }
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count) {
    ENTER();
    CHECK_ARGUMENT(access != nullptr && count != 0);
    const Hold hold(state().lock);
    const std::vector<RangeRef> mappings = mappings_in(address, size);
    CHECK_ARGUMENT(!mappings.empty());
    for (size_t i = 0; i < count; i++) {
        const int device = access[i].location.id;
        CHECK_ARGUMENT(access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && is_device(device));
        for (const RangeRef &range : mappings) {
            if (range->device != device && knob(Knob::peer) == 0) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
            // The real driver refuses read-only access for memory of this kind.
            CHECK_ARGUMENT(access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ);
            const uint64_t bit = uint64_t(1) << device;
            if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
                range->access &= ~bit;
            } else {
                range->access |= bit;
            }
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle) {
    ENTER();
    const Hold hold(state().lock);
    const Physical *one = physical_of(handle);
    CHECK_ARGUMENT(properties != nullptr && one != nullptr);
    *properties = one->properties;
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    ENTER();
    CHECK_ARGUMENT(handle != nullptr);
    const Hold hold(state().lock);
    const RangeRef range = find_range(address);
    CHECK_ARGUMENT(range != nullptr && range->handle != nullptr);
    static_cast<Physical *>(range->handle)->references++;
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(range->handle);
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    ENTER();
    CHECK_ARGUMENT(shareable != nullptr && flags == 0);
    const Hold hold(state().lock);
    const Physical *one = physical_of(handle);
    CHECK_ARGUMENT(one != nullptr && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CHECK_ARGUMENT((one->properties.requestedHandleTypes & type) != 0); // must have been asked for at creation
    const int file = fcntl(one->backing->file, F_DUPFD_CLOEXEC, 0);
    if (file < 0) return CUDA_ERROR_UNKNOWN;
    memcpy(shareable, &file, sizeof file);
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type) {
    ENTER();
    CHECK_ARGUMENT(handle != nullptr && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (knob(Knob::posix_fd) == 0) return CUDA_ERROR_NOT_SUPPORTED;
    const int file = static_cast<int>(reinterpret_cast<intptr_t>(shareable)); // the descriptor itself, as a pointer
    const int device = device_of_file(file);
    struct stat info;
    CHECK_ARGUMENT(device >= 0 && fstat(file, &info) == 0);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    auto backing = dup_backing(file, static_cast<size_t>(info.st_size), device);
    if (backing == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    const Hold hold(state().lock);
    auto *made = new Physical{backing, backing->size, {}};
    made->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    made->properties.requestedHandleTypes = type;
    made->properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    state().physical.insert(made);
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(made);
    return CUDA_SUCCESS;
}
