// IPC keys: device memory opened by another process of the host.
#include "runtime.h"

#include <cstring>
#include <unistd.h>

using namespace ascend;

namespace ascend {

void close_import(const std::string &key) {
    State &all = state();
    const RangeRef range = find_base(reinterpret_cast<void *>(all.imports[key]));
    check_unused(*range, "aclrtIpcMemClose");
    drop_range(range);
    all.imports.erase(key);
    mark_open(key, false);
}

} // namespace ascend

int aclrtIpcMemGetExportKey(void *address, size_t size, char *key, size_t key_size, uint64_t flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(address != nullptr && key != nullptr);
    CHECK_ARGUMENT(key_size == ACL_IPC_KEY_BYTES);
    CHECK_ARGUMENT(flags == 0 || (flags == ACL_DISABLE_PID_VALIDATION && cann_version >= 85));
    const RangeRef range = find_base(address);
    CHECK_ARGUMENT(range != nullptr);
    CHECK_ARGUMENT(range->kind == Kind::device && !range->imported && range->handle == nullptr);
    CHECK_ARGUMENT(size != 0 && size <= range->size);
    // Other memory on the same page would be visible to the other process.
    if (range->size % page_bytes != 0) return fail(ACL_ERROR_RT_DRV_INTERNAL_ERROR, "not whole pages");
    Shared shared;
    shared.process = getpid();
    shared.file = range->backing->file;
    shared.size = size;
    shared.device = range->device;
    shared.page = range->page;
    shared.anyone = flags == ACL_DISABLE_PID_VALIDATION;
    const std::string name = new_name();
    if (!publish(name, shared)) return fail(ACL_ERROR_RT_IPC, "the key can't be published");
    const Hold hold(state().lock);
    state().exports[name] = {range->base, range->id};
    memcpy(key, name.c_str(), ACL_IPC_KEY_BYTES);
    return 0;
}

int aclrtIpcMemSetImportPid(const char *key, int32_t *processes, size_t count) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(key != nullptr && processes != nullptr);
    CHECK_ARGUMENT(count != 0);
    const Hold hold(state().lock);
    CHECK_ARGUMENT(state().exports.count(key) != 0);
    for (size_t i = 0; i < count; i++) allow(key, processes[i]);
    return 0;
}

int aclrtIpcMemImportByKey(void **address, const char *key, uint64_t flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(address != nullptr && key != nullptr);
    CHECK_ARGUMENT(flags == 0 || flags == ACL_IPC_IMPORT_ENABLE_PEER_ACCESS);
    CHECK_ARGUMENT(is_name(key));
    if (knob(Knob::pcie) != 0) return fail(ACL_ERROR_RT_DRV_INTERNAL_ERROR, "the devices are attached by PCIe");
    State &all = state();
    const Hold hold(all.lock);
    if (all.exports.count(key) != 0) return fail(ACL_ERROR_RT_IPC, "a key of this process");
    if (all.imports.count(key) != 0) return fail(ACL_ERROR_RT_IPC, "the key is imported already");
    Shared shared;
    if (!look_up(key, &shared)) return fail(ACL_ERROR_RT_IPC, "no such key, or its process has ended");
    if (!is_allowed(key, shared)) return fail(ACL_ERROR_RT_NO_PERMISSION, "this process is not on the whitelist");
    auto range = std::make_shared<Range>();
    range->backing = open_backing(shared.process, shared.file, shared.size, shared.device);
    if (range->backing == nullptr) return fail(ACL_ERROR_RT_IPC, "the memory is gone");
    range->size = shared.size;
    range->device = shared.device;
    range->page = shared.page;
    range->key = key;
    range->imported = true;
    range->access = flags == 0 ? uint64_t(1) << shared.device : ~0ULL;
    if (!place_range(range, false)) return fail(ACL_ERROR_BAD_ALLOC, "no addresses left");
    mark_open(key, true);
    all.imports[key] = range->base;
    *address = reinterpret_cast<void *>(range->base);
    return 0;
}

int aclrtIpcMemClose(const char *key) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(key != nullptr);
    State &all = state();
    const Hold hold(all.lock);
    if (all.imports.count(key) != 0) {
        close_import(key);
        return 0;
    }
    CHECK_ARGUMENT(all.exports.count(key) != 0);
    if (openers(key) != 0) return fail(ACL_ERROR_RT_IPC, "another process still has the key open");
    withdraw(key);
    all.exports.erase(key);
    return 0;
}
