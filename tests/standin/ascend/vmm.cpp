// Physical memory, reserved addresses and mappings; handles that other processes can import.
#include "runtime.h"

#include <cstring>
#include <unistd.h>

using namespace ascend;

namespace ascend {
namespace {

Physical *physical_of(void *handle) {
    const auto found = state().physical.find(static_cast<Physical *>(handle));
    return found == state().physical.end() ? nullptr : *found;
}

void free_if_unused(Physical *one) {
    if (one->references != 0 || one->mappings != 0) return;
    if (one->imported) {
        mark_open(one->name, false);
    } else if (!one->name.empty()) {
        withdraw(one->name);
    }
    state().physical.erase(one);
    delete one;
}

// The number that means the memory in a u64 handle: the record's name is the number, repeated.
std::string name_of(uint64_t number) {
    char one[17];
    snprintf(one, sizeof one, "%016lx", static_cast<unsigned long>(number));
    return std::string(one) + one + one + one;
}

int export_physical(void *handle, uint64_t flags, uint64_t *out) {
    CHECK_ARGUMENT(flags == 0 || flags == ACL_DISABLE_PID_VALIDATION);
    const Hold hold(state().lock);
    Physical *one = physical_of(handle);
    if (one == nullptr) return fail(ACL_ERROR_RT_INVALID_HANDLE, "no such physical memory: %p", handle);
    CHECK_ARGUMENT(!one->imported);
    if (!one->name.empty()) return fail(ACL_ERROR_RT_DRV_INTERNAL_ERROR, "it was exported before");
    const uint64_t number = std::stoull(new_name().substr(0, 16), nullptr, 16);
    Shared shared;
    shared.process = getpid();
    shared.file = one->backing->file;
    shared.size = one->size;
    shared.device = one->backing->device;
    shared.page = huge_bytes;
    shared.anyone = flags == ACL_DISABLE_PID_VALIDATION;
    if (!publish(name_of(number), shared)) return fail(ACL_ERROR_RT_IPC, "the handle can't be published");
    one->name = name_of(number);
    *out = number;
    return 0;
}

int allow_physical(uint64_t shareable, const int32_t *processes, size_t count) {
    CHECK_ARGUMENT(processes != nullptr);
    CHECK_ARGUMENT(count != 0);
    const Hold hold(state().lock);
    for (const Physical *one : state().physical) {
        if (one->imported || one->name != name_of(shareable)) continue;
        for (size_t i = 0; i < count; i++) allow(one->name, processes[i]);
        return 0;
    }
    return fail(ACL_ERROR_RT_PARAM_INVALID, "no handle of this process");
}

int import_physical(uint64_t shareable, void **handle) {
    const std::string name = name_of(shareable);
    const Hold hold(state().lock);
    for (const Physical *one : state().physical) {
        if (one->name == name) return fail(ACL_ERROR_RT_DRV_INTERNAL_ERROR, "the handle is in this process already");
    }
    Shared shared;
    if (!look_up(name, &shared)) return fail(ACL_ERROR_RT_DRV_INTERNAL_ERROR, "no such handle, or its process has ended");
    if (!is_allowed(name, shared)) return fail(ACL_ERROR_RT_NO_PERMISSION, "this process is not on the whitelist");
    auto backing = open_backing(shared.process, shared.file, shared.size, shared.device);
    if (backing == nullptr) return fail(ACL_ERROR_RT_DRV_INTERNAL_ERROR, "the memory is gone");
    auto *made = new Physical{backing, shared.size, 1, 0, true, name};
    mark_open(name, true);
    state().physical.insert(made);
    *handle = made;
    return 0;
}

// Both kinds of V2 handle begin with the number.
int check_share_type(int share_type) {
    CHECK_ARGUMENT(share_type == ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT || share_type == ACL_MEM_SHARE_HANDLE_TYPE_FABRIC);
    if (share_type == ACL_MEM_SHARE_HANDLE_TYPE_FABRIC && knob(Knob::fabric) == 0) {
        return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "fabric handles are for A3");
    }
    return 0;
}

uint64_t number_in(const void *shareable) {
    uint64_t number;
    memcpy(&number, shareable, sizeof number);
    return number;
}

} // namespace
} // namespace ascend

int aclrtMallocPhysical(void **handle, size_t size, const aclrtPhysicalMemProp *properties, uint64_t flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(handle != nullptr && properties != nullptr);
    CHECK_ARGUMENT(flags == 0);
    CHECK_ARGUMENT(size != 0);
    CHECK_ARGUMENT(properties->handleType == 0 && properties->allocationType == 0);
    CHECK_ARGUMENT(properties->memAttr >= 0 && properties->memAttr <= 15);
    if (properties->location.type != ACL_MEM_LOCATION_TYPE_DEVICE) {
        return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "the stand-in has physical memory on devices only");
    }
    const int device = static_cast<int>(properties->location.id);
    if (!is_device(device)) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "aclrtMallocPhysical: %d", device);
    auto backing = make_backing(round_up(size, huge_bytes), device, "acl-vmm");
    if (backing == nullptr) return fail(ACL_ERROR_RT_DEVICE_MEMORY_ALLOCATION, "no %zu bytes left on %d", size, device);
    const Hold hold(state().lock);
    auto *made = new Physical{backing, size, 1, 0, false, ""};
    state().physical.insert(made);
    *handle = made;
    return 0;
}

int aclrtFreePhysical(void *handle) {
    ENTER_WITH_CONTEXT();
    const Hold hold(state().lock);
    Physical *one = physical_of(handle);
    if (one == nullptr || one->references == 0) return fail(ACL_ERROR_RT_INVALID_HANDLE, "no such physical memory");
    one->references--;
    free_if_unused(one);
    return 0;
}

int aclrtReserveMemAddress(void **address, size_t size, size_t alignment, void *wanted, uint64_t flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(address != nullptr);
    CHECK_ARGUMENT(size != 0);
    CHECK_ARGUMENT(alignment == 0);
    CHECK_ARGUMENT(wanted == nullptr);
    CHECK_ARGUMENT(flags <= 1);
    const uintptr_t base = reserve_addresses(round_up(size, huge_bytes), huge_bytes);
    if (base == 0) return fail(ACL_ERROR_BAD_ALLOC, "no addresses left");
    const Hold hold(state().lock);
    state().reservations[base] = round_up(size, huge_bytes);
    *address = reinterpret_cast<void *>(base);
    return 0;
}

int aclrtReleaseMemAddress(void *address) {
    ENTER_WITH_CONTEXT();
    const Hold hold(state().lock);
    const auto found = state().reservations.find(reinterpret_cast<uintptr_t>(address));
    CHECK_ARGUMENT(found != state().reservations.end());
    if (!ranges_of(found->first).empty()) return fail(ACL_ERROR_RT_PARAM_INVALID, "memory is still mapped there");
    release_addresses(found->first, found->second);
    state().reservations.erase(found);
    return 0;
}

int aclrtMapMem(void *address, size_t size, size_t offset, void *handle, uint64_t flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(offset == 0 && flags == 0);
    const uintptr_t base = reinterpret_cast<uintptr_t>(address);
    CHECK_ARGUMENT(size != 0 && size % huge_bytes == 0 && base % huge_bytes == 0);
    State &all = state();
    const Hold hold(all.lock);
    Physical *one = physical_of(handle);
    if (one == nullptr) return fail(ACL_ERROR_RT_INVALID_HANDLE, "no such physical memory: %p", handle);
    CHECK_ARGUMENT(size == one->size);
    const RangeRef range = range_within(all.reservations, base, size, one->backing, one);
    CHECK_ARGUMENT(range != nullptr);
    for (const RangeRef &other : ranges_of(range->reservation)) {
        CHECK_ARGUMENT(other->device == one->backing->device);
        CHECK_ARGUMENT(other->imported == one->imported);
    }
    range->imported = one->imported;
    range->access = uint64_t(1) << range->device;
    if (!add_range(range)) return fail(ACL_ERROR_RT_PARAM_INVALID, "something is mapped there");
    if (!map_backing(base, size, *one->backing, 0, false)) return fail(ACL_ERROR_BAD_ALLOC, "mmap");
    one->mappings++;
    return 0;
}

int aclrtUnmapMem(void *address) {
    ENTER_WITH_CONTEXT();
    const Hold hold(state().lock);
    const RangeRef range = find_base(address);
    CHECK_ARGUMENT(range != nullptr && range->handle != nullptr);
    check_unused(*range, "aclrtUnmapMem");
    drop_range(range);
    auto *one = static_cast<Physical *>(range->handle);
    one->mappings--;
    free_if_unused(one);
    return 0;
}

int aclrtMemRetainAllocationHandle(void *address, void **handle) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(handle != nullptr);
    const Hold hold(state().lock);
    const RangeRef range = find_base(address);
    CHECK_ARGUMENT(range != nullptr && range->handle != nullptr);
    static_cast<Physical *>(range->handle)->references++;
    *handle = range->handle;
    return 0;
}

int aclrtMemExportToShareableHandle(void *handle, int handle_type, uint64_t flags, uint64_t *shareable) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(shareable != nullptr);
    CHECK_ARGUMENT(handle_type == 0);
    return export_physical(handle, flags, shareable);
}

int aclrtMemSetPidToShareableHandle(uint64_t shareable, int32_t *processes, size_t count) {
    ENTER_WITH_CONTEXT();
    return allow_physical(shareable, processes, count);
}

int aclrtMemImportFromShareableHandle(uint64_t shareable, int32_t device, void **handle) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(handle != nullptr);
    if (!is_device(device)) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "aclrtMemImportFromShareableHandle: %d", device);
    return import_physical(shareable, handle);
}

int aclrtMemExportToShareableHandleV2(void *handle, uint64_t flags, int share_type, void *shareable) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(shareable != nullptr);
    if (const int code = check_share_type(share_type)) return code;
    uint64_t number;
    if (const int code = export_physical(handle, flags, &number)) return code;
    if (share_type == ACL_MEM_SHARE_HANDLE_TYPE_FABRIC) memset(shareable, 0xfa, sizeof(aclrtMemFabricHandle));
    memcpy(shareable, &number, sizeof number);
    return 0;
}

int aclrtMemSetPidToShareableHandleV2(void *shareable, int share_type, int32_t *processes, size_t count) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(shareable != nullptr);
    if (const int code = check_share_type(share_type)) return code;
    return allow_physical(number_in(shareable), processes, count);
}

int aclrtMemImportFromShareableHandleV2(void *shareable, int share_type, uint64_t flags, void **handle) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(shareable != nullptr && handle != nullptr);
    CHECK_ARGUMENT(flags == 0);
    if (const int code = check_share_type(share_type)) return code;
    return import_physical(number_in(shareable), handle);
}
