// Initialisation, devices, contexts, the last error, and the audit.
#include "runtime.h"

#include <cstdarg>
#include <cstdio>

using namespace ascend;

static_assert(sizeof(aclrtMemLocation) == 8 && offsetof(aclrtMemLocation, type) == 4, "layout");
static_assert(sizeof(aclrtPtrAttributes) == 28 && offsetof(aclrtPtrAttributes, pageSize) == 8, "layout");
static_assert(sizeof(aclrtPhysicalMemProp) == 32 && offsetof(aclrtPhysicalMemProp, location) == 12, "layout");
static_assert(sizeof(aclrtMemcpyBatchAttr) == 32 && offsetof(aclrtMemcpyBatchAttr, srcLoc) == 8, "layout");
static_assert(sizeof(aclrtMemFabricHandle) == 128, "layout");

namespace ascend {

thread_local Context *current = nullptr;

namespace {
thread_local char last_error[256];

void audit() {
    State &all = state();
    const Hold hold(all.lock);
    for (const auto &entry : all.streams) leaked("stream %p", entry.first);
    for (const Event *event : all.events) leaked("event %p", static_cast<const void *>(event));
    for (const Context *context : all.contexts) {
        if (!context->is_default) leaked("context %p of device %d", static_cast<const void *>(context), context->device);
    }
    for (const auto &entry : all.exports) leaked("exported key %s", entry.first.c_str());
    for (const auto &entry : all.imports) leaked("imported key %s", entry.first.c_str());
    for (const Physical *one : all.physical) {
        leaked("physical memory %p of %zu bytes, %d references, %d mappings", static_cast<const void *>(one), one->size,
               one->references, one->mappings);
    }
    for (const auto &entry : all.reservations) leaked("reserved addresses %#lx", entry.first);
    for (const RangeRef &range : all_ranges()) {
        if (range->kind == Kind::registered) leaked("registered host memory %#lx of %zu bytes", range->base, range->size);
        if (range->kind == Kind::host) leaked("host memory %#lx of %zu bytes", range->base, range->size);
        if (range->kind == Kind::device && range->key.empty() && range->handle == nullptr)
            leaked("device memory %#lx of %zu bytes on %d", range->base, range->size, range->device);
    }
    for (int device = 0; device < devices_max; device++) {
        if (all.device_uses[device] != 0) leaked("device %d set %d times more than reset", device, all.device_uses[device]);
    }
}

// Frees the objects that the library itself frees at finalisation.
void clear() {
    State &all = state();
    const Hold hold(all.lock);
    for (const auto &entry : all.streams) entry.second->abort();
    all.streams.clear();
    for (Event *event : all.events) delete event;
    all.events.clear();
    for (const auto &entry : all.exports) withdraw(entry.first);
    all.exports.clear();
    for (const auto &entry : all.imports) mark_open(entry.first, false);
    all.imports.clear();
    all.registrations.clear();
    for (const RangeRef &range : all_ranges()) drop_range(range);
    for (const Physical *one : all.physical) delete one;
    all.physical.clear();
    for (const auto &entry : all.reservations) release_addresses(entry.first, entry.second);
    all.reservations.clear();
    for (const Context *context : all.contexts) delete context;
    all.contexts.clear();
    for (int device = 0; device < devices_max; device++) {
        all.defaults[device] = nullptr;
        all.device_uses[device] = 0;
        all.peers[device] = 0;
    }
}

// Programs that never finalise are audited too. A forked child owns nothing.
__attribute__((destructor)) void at_exit() {
    if (!forked() && state().initialised) audit();
}

} // namespace

State &state() {
    static State *const made = new State;
    return *made;
}

int fail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = snprintf(last_error, sizeof last_error, "E%d: ", code);
    vsnprintf(last_error + length, sizeof last_error - length, format, arguments);
    va_end(arguments);
    return code;
}

int enter_call(Call &call) {
    if (const int code = call.enter()) return fail(code, "%s: a fault of the test", call.function);
    if (forked()) return fail(ACL_ERROR_UNINITIALIZE, "%s: in a forked child", call.function);
    const Hold hold(state().lock);
    if (!state().initialised) return fail(ACL_ERROR_UNINITIALIZE, "%s: before aclInit", call.function);
    return 0;
}

int enter_with_context(Call &call) {
    if (const int code = enter_call(call)) return code;
    const Hold hold(state().lock);
    if (state().contexts.count(current) == 0) {
        return fail(ACL_ERROR_RT_CONTEXT_NULL, "%s: this thread has no context", call.function);
    }
    return 0;
}

bool is_device(int device) { return device >= 0 && device < knob(Knob::devices) && device < devices_max; }

bool may_reach(int from, int to) {
    const Hold hold(state().lock);
    return from == to || (state().peers[from] >> to & 1) != 0;
}

void end_context(Context *context) {
    State &all = state();
    for (auto entry = all.streams.begin(); entry != all.streams.end();) {
        entry = entry->second->context == context ? all.streams.erase(entry) : std::next(entry);
    }
    all.contexts.erase(context);
    delete context;
}

} // namespace ascend

int aclInit(const char *) {
    static Call call(__func__);
    if (const int code = call.enter()) return code;
    if (forked()) return ACL_ERROR_UNINITIALIZE;
    const Hold hold(state().lock);
    state().references++;
    if (state().initialised) return ACL_ERROR_REPEAT_INITIALIZE;
    state().initialised = true;
    return 0;
}

int aclFinalize(void) {
    ENTER();
    audit();
    clear();
    const Hold hold(state().lock);
    state().initialised = false;
    state().references = 0;
    return 0;
}

int aclFinalizeReference(uint64_t *left) {
    ENTER();
    const Hold hold(state().lock);
    const uint64_t references = --state().references;
    if (left != nullptr) *left = references;
    return references == 0 ? aclFinalize() : 0;
}

const char *aclGetRecentErrMsg(void) { return last_error[0] == '\0' ? nullptr : last_error; }

const char *aclrtGetSocName(void) {
    static const std::string name = knob_text("FERRY_STANDIN_SOC").empty() ? "Ascend910B3" : knob_text("FERRY_STANDIN_SOC");
    return name.c_str();
}

int aclrtSetDevice(int32_t device) {
    ENTER();
    if (!is_device(device)) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "aclrtSetDevice: %d", device);
    State &all = state();
    const Hold hold(all.lock);
    if (all.defaults[device] == nullptr) {
        auto *made = new Context{device, true, nullptr};
        made->stream = std::make_shared<Stream>(made, device);
        all.contexts.insert(made);
        all.defaults[device] = made;
    }
    all.device_uses[device]++;
    current = all.defaults[device];
    return 0;
}

int aclrtGetDevice(int32_t *device) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(device != nullptr);
    *device = current->device;
    return 0;
}

int aclrtResetDevice(int32_t device) {
    ENTER();
    if (!is_device(device)) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "aclrtResetDevice: %d", device);
    State &all = state();
    const Hold hold(all.lock);
    if (all.device_uses[device] == 0) return fail(ACL_ERROR_RT_CONTEXT_NULL, "aclrtResetDevice: %d is not set", device);
    if (--all.device_uses[device] != 0) return 0;
    // Memory on the device is freed with it. Explicit contexts must be destroyed before.
    for (const Context *context : all.contexts) {
        if (context->device == device && !context->is_default) {
            violation("device %d was reset under context %p", device, static_cast<const void *>(context));
        }
    }
    end_context(all.defaults[device]);
    all.defaults[device] = nullptr;
    for (const RangeRef &range : all_ranges()) {
        if (range->kind != Kind::device || range->device != device || range->imported || range->handle != nullptr) continue;
        leaked("device memory %#lx of %zu bytes when device %d was reset", range->base, range->size, device);
        drop_range(range);
    }
    return 0;
}

int aclrtGetDeviceCount(uint32_t *count) {
    ENTER();
    CHECK_ARGUMENT(count != nullptr);
    *count = static_cast<uint32_t>(knob(Knob::devices));
    return 0;
}

int aclrtGetPhyDevIdByLogicDevId(int32_t logical, int32_t *physical) {
    ENTER();
    CHECK_ARGUMENT(physical != nullptr);
    if (!is_device(logical)) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "aclrtGetPhyDevIdByLogicDevId: %d", logical);
    *physical = logical;
    return 0;
}

int aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer) {
    ENTER();
    CHECK_ARGUMENT(can != nullptr);
    if (!is_device(device) || !is_device(peer)) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "%d, %d", device, peer);
    CHECK_ARGUMENT(device != peer);
    *can = knob(Knob::peer) != 0;
    return 0;
}

int aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) {
    ENTER_WITH_CONTEXT();
    if (!is_device(peer)) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "aclrtDeviceEnablePeerAccess: %d", peer);
    CHECK_ARGUMENT(flags == 0);
    CHECK_ARGUMENT(peer != current->device);
    if (knob(Knob::peer) == 0) return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "devices can't reach one another");
    const Hold hold(state().lock);
    state().peers[current->device] |= uint64_t(1) << peer;
    return 0;
}

int aclrtDeviceGetBareTgid(int32_t *process) {
    ENTER();
    CHECK_ARGUMENT(process != nullptr);
    *process = driver_process();
    return 0;
}

int aclrtCreateContext(void **context, int32_t device) {
    ENTER();
    CHECK_ARGUMENT(context != nullptr);
    if (!is_device(device)) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "aclrtCreateContext: %d", device);
    const Hold hold(state().lock);
    auto *made = new Context{device, false, nullptr};
    made->stream = std::make_shared<Stream>(made, device);
    state().contexts.insert(made);
    current = made;
    *context = made;
    return 0;
}

int aclrtDestroyContext(void *context) {
    ENTER();
    const Hold hold(state().lock);
    auto *known = static_cast<Context *>(context);
    if (state().contexts.count(known) == 0) return fail(ACL_ERROR_RT_CONTEXT_NULL, "no such context");
    CHECK_ARGUMENT(!known->is_default);
    end_context(known);
    if (current == known) current = nullptr;
    return 0;
}

int aclrtSetCurrentContext(void *context) {
    ENTER();
    const Hold hold(state().lock);
    auto *known = static_cast<Context *>(context);
    if (state().contexts.count(known) == 0) return fail(ACL_ERROR_RT_CONTEXT_NULL, "no such context");
    current = known;
    return 0;
}

int aclrtGetCurrentContext(void **context) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(context != nullptr);
    *context = current;
    return 0;
}

long standin_audit(void) {
    if (!forked()) audit();
    return complaints();
}
