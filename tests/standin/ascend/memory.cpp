// Device and host memory, the attributes of an address, and registered host memory.
#include "runtime.h"

using namespace ascend;

namespace ascend {

void check_unused(const Range &range, const char *what) {
    if (range.in_flight != 0) violation("%s(%#lx) while %d tasks name it", what, range.base, range.in_flight.load());
}

} // namespace ascend

int aclrtMalloc(void **address, size_t size, int policy) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(address != nullptr);
    CHECK_ARGUMENT(size != 0);
    const bool only = policy == ACL_MEM_MALLOC_HUGE_ONLY || policy == ACL_MEM_MALLOC_HUGE_ONLY_P2P;
    const bool normal = policy == ACL_MEM_MALLOC_NORMAL_ONLY || policy == ACL_MEM_MALLOC_NORMAL_ONLY_P2P;
    const size_t page = only || (!normal && size >= huge_bytes) ? huge_bytes : page_bytes;
    auto range = std::make_shared<Range>();
    range->backing = make_backing(round_up(size, page), current->device, "acl");
    if (range->backing == nullptr) {
        return fail(ACL_ERROR_RT_DEVICE_MEMORY_ALLOCATION, "no %zu bytes left on device %d", size, current->device);
    }
    range->size = size;
    range->device = current->device;
    range->page = page;
    if (!place_range(range, false)) return fail(ACL_ERROR_BAD_ALLOC, "no addresses left");
    *address = reinterpret_cast<void *>(range->base);
    return 0;
}

int aclrtFree(void *address) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(address != nullptr);
    const RangeRef range = find_base(address);
    CHECK_ARGUMENT(range != nullptr);
    CHECK_ARGUMENT(range->kind == Kind::device && !range->imported && range->handle == nullptr);
    check_unused(*range, "aclrtFree");
    {
        const Hold hold(state().lock);
        for (const auto &entry : state().exports) {
            if (entry.second.id != range->id || openers(entry.first) == 0) continue;
            return fail(ACL_ERROR_RT_DRV_INTERNAL_ERROR, "another process still has the memory open");
        }
    }
    drop_range(range);
    return 0;
}

int aclrtMallocHost(void **address, size_t size) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(address != nullptr);
    CHECK_ARGUMENT(size != 0);
    auto range = std::make_shared<Range>();
    range->kind = Kind::host;
    range->backing = make_backing(size, devices_max - 1, "acl-host");
    if (range->backing == nullptr) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no %zu bytes of host memory", size);
    range->size = size;
    if (!place_range(range, true)) return fail(ACL_ERROR_BAD_ALLOC, "no addresses left");
    *address = reinterpret_cast<void *>(range->base);
    return 0;
}

int aclrtFreeHost(void *address) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(address != nullptr);
    const RangeRef range = find_base(address);
    CHECK_ARGUMENT(range != nullptr && range->kind == Kind::host);
    check_unused(*range, "aclrtFreeHost");
    drop_range(range);
    return 0;
}

int aclrtHostRegister(void *address, uint64_t size, int type, void **device_address) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(address != nullptr && device_address != nullptr);
    CHECK_ARGUMENT(size != 0);
    CHECK_ARGUMENT(reinterpret_cast<uintptr_t>(address) % page_bytes == 0);
    CHECK_ARGUMENT(type == 0);
    auto range = std::make_shared<Range>();
    range->kind = Kind::registered;
    range->base = reinterpret_cast<uintptr_t>(address);
    range->size = size;
    if (!add_range(range)) return fail(ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "%p is known already", address);
    // The device's view of the memory: valid for kernels, not for copies.
    auto shadow = std::make_shared<Range>();
    shadow->kind = Kind::shadow;
    shadow->base = reserve_addresses(size, page_bytes);
    shadow->size = size;
    add_range(shadow);
    const Hold hold(state().lock);
    state().registrations[range->base] = shadow->base;
    *device_address = reinterpret_cast<void *>(shadow->base);
    return 0;
}

int aclrtHostUnregister(void *address) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(address != nullptr);
    const RangeRef range = find_base(address);
    if (range == nullptr || range->kind != Kind::registered) {
        return fail(ACL_ERROR_HOST_MEMORY_NOT_REGISTERED, "%p is not registered", address);
    }
    check_unused(*range, "aclrtHostUnregister");
    const Hold hold(state().lock);
    drop_range(find_base(reinterpret_cast<void *>(state().registrations[range->base])));
    state().registrations.erase(range->base);
    drop_range(range);
    return 0;
}

int aclrtPointerGetAttributes(const void *address, aclrtPtrAttributes *attributes) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(address != nullptr && attributes != nullptr);
    const RangeRef range = find_range(address);
    aclrtPtrAttributes out = {};
    if (range == nullptr) {
        // Drivers differ in what they report for plain memory.
        const std::string answer = knob_text("FERRY_STANDIN_POINTER");
        if (answer.empty() || answer == "fail") return fail(ACL_ERROR_RT_PARAM_INVALID, "%p is unknown", address);
        out.location.type = answer == "host" ? ACL_MEM_LOCATION_TYPE_HOST : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    } else if (range->kind == Kind::shadow) {
        violation("aclrtPointerGetAttributes(%p) of the device's address of registered memory", address);
    } else {
        out.location.type = range->is_host() ? ACL_MEM_LOCATION_TYPE_HOST : ACL_MEM_LOCATION_TYPE_DEVICE;
        out.location.id = range->is_host() ? 0 : static_cast<uint32_t>(range->device);
        out.pageSize = static_cast<uint32_t>(range->page);
    }
    *attributes = out;
    return 0;
}

int aclrtMemGetAddressRange(void *address, void **base, size_t *size) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(base != nullptr && size != nullptr);
    const RangeRef range = find_range(address);
    CHECK_ARGUMENT(range != nullptr);
    CHECK_ARGUMENT(range->kind == Kind::device || range->kind == Kind::host);
    *base = reinterpret_cast<void *>(range->base);
    *size = range->size;
    return 0;
}
