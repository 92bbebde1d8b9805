// Initialisation, primary contexts, the current context, and the audit.
#include "driver.h"

#include <thread>

using namespace cuda;

namespace cuda {

thread_local bool in_host_function = false;

namespace {
thread_local std::vector<Context *> stack;

// Objects of a context in a sticky error cannot be freed, not even by their owner.
bool counts(int device) { return device < 0 || device >= devices_max || state().contexts[device].error == 0; }

void audit() {
    State &all = state();
    const Hold hold(all.lock);
    for (const auto &entry : all.streams) {
        if (counts(entry.second->device)) leaked("stream %p of device %d", entry.first, entry.second->device);
    }
    bool any_dead = false;
    for (const Context &context : all.contexts) {
        if (context.error != 0) any_dead = true;
        if (context.error == 0 && context.retained != 0) {
            leaked("context of device %d retained %d times more than released", context.device, context.retained);
        }
    }
    for (const Event *event : all.events) {
        if (!any_dead) leaked("event %p", static_cast<const void *>(event));
    }
    for (const auto &entry : all.modules) {
        if (entry.second->error == 0) leaked("module %p", entry.first);
    }
    for (const auto &entry : all.imports) {
        const RangeRef range = find_base(reinterpret_cast<void *>(entry.second.base));
        if (counts(range->device)) leaked("imported memory %#lx, opened %d times", range->base, entry.second.references);
    }
    for (const Physical *one : all.physical) {
        if (!counts(one->backing->device)) continue;
        leaked("physical memory %p of %zu bytes, %d references, %d mappings", static_cast<const void *>(one), one->size,
               one->references, one->mappings);
    }
    for (const auto &entry : all.reservations) {
        if (!any_dead) leaked("reserved addresses %#lx", entry.first);
    }
    for (const RangeRef &range : all_ranges()) {
        if (range->handle != nullptr || !range->key.empty() || !counts(range->device)) continue;
        const char *kind = range->kind == Kind::registered ? "registered host memory"
                           : range->kind == Kind::host     ? "host memory"
                           : range->kind == Kind::managed  ? "managed memory"
                                                           : "device memory";
        leaked("%s %#lx of %zu bytes", kind, range->base, range->size);
    }
}

__attribute__((destructor)) void at_exit() {
    if (!forked() && state().initialised) audit();
}

} // namespace

State &state() {
    static State *const made = [] {
        auto *all = new State;
        for (int device = 0; device < devices_max; device++) all->contexts[device].device = device;
        return all;
    }();
    return *made;
}

Context *current() { return stack.empty() ? nullptr : stack.back(); }

CUresult enter_call(Call &call) {
    if (const int code = call.enter()) return static_cast<CUresult>(code);
    if (forked()) return CUDA_ERROR_NOT_INITIALIZED;
    if (in_host_function) return CUDA_ERROR_NOT_PERMITTED;
    const Hold hold(state().lock);
    return state().initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult enter_with_context(Call &call) {
    if (const CUresult code = enter_call(call)) return code;
    const Hold hold(state().lock);
    Context *context = current();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (const long sticky = knob(Knob::sticky)) context->error = static_cast<int>(sticky);
    return static_cast<CUresult>(context->error.load());
}

bool is_device(int device) { return device >= 0 && device < knob(Knob::devices) && device < devices_max; }

CUcontext handle_of(Context *context) { return reinterpret_cast<CUcontext>(context); }

Context *context_of(CUcontext handle) {
    for (Context &context : state().contexts) {
        if (handle_of(&context) == handle) return &context;
    }
    return nullptr;
}

void end_context(Context *context) {
    State &all = state();
    std::vector<StreamRef> streams = {std::move(context->stream)};
    context->stream = nullptr;
    for (auto entry = all.streams.begin(); entry != all.streams.end();) {
        const bool gone = entry->second->context == context;
        if (gone) leaked("stream %p when the context of device %d ended", entry->first, context->device);
        if (gone) streams.push_back(entry->second);
        entry = gone ? all.streams.erase(entry) : std::next(entry);
    }
    for (const RangeRef &range : all_ranges()) {
        if (range->device != context->device || range->kind != Kind::device || range->handle || !range->key.empty()) continue;
        leaked("device memory %#lx of %zu bytes when its context ended", range->base, range->size);
        drop_range(range);
    }
    context->peers = 0;
    // The end of a stream runs its queued work; nobody waits for it.
    std::thread([streams = std::move(streams)] {}).detach();
}

} // namespace cuda

CUresult cuInit(unsigned int flags) {
    static Call call(__func__);
    if (const int code = call.enter()) return static_cast<CUresult>(code);
    if (forked()) return CUDA_ERROR_NOT_INITIALIZED;
    CHECK_ARGUMENT(flags == 0);
    if (knob(Knob::devices) == 0) return CUDA_ERROR_NO_DEVICE;
    const Hold hold(state().lock);
    state().initialised = true;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER();
    CHECK_ARGUMENT(context != nullptr);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    const Hold hold(state().lock);
    Context *own = &state().contexts[device];
    if (own->retained++ == 0) {
        own->error = 0;
        own->stream = new_stream(own);
    }
    *context = handle_of(own);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER();
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    const Hold hold(state().lock);
    Context *own = &state().contexts[device];
    if (!own->alive()) return CUDA_ERROR_INVALID_CONTEXT;
    if (--own->retained == 0) end_context(own);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    ENTER();
    CHECK_ARGUMENT(flags != nullptr && active != nullptr);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    const Hold hold(state().lock);
    *flags = 0;
    *active = state().contexts[device].alive();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    ENTER();
    CHECK_ARGUMENT(context != nullptr);
    *context = handle_of(current());
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    ENTER();
    const Hold hold(state().lock);
    if (context == nullptr) {
        if (!stack.empty()) stack.pop_back();
        return CUDA_SUCCESS;
    }
    Context *own = context_of(context);
    if (own == nullptr || !own->alive()) return CUDA_ERROR_INVALID_CONTEXT;
    if (stack.empty()) stack.push_back(own);
    stack.back() = own;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    ENTER();
    const Hold hold(state().lock);
    Context *own = context_of(context);
    if (own == nullptr || !own->alive()) return CUDA_ERROR_INVALID_CONTEXT;
    stack.push_back(own);
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    ENTER();
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context != nullptr) *context = handle_of(stack.back());
    stack.pop_back();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(device != nullptr);
    *device = current()->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    ENTER_WITH_CONTEXT();
    std::vector<StreamRef> streams;
    {
        const Hold hold(state().lock);
        streams.push_back(current()->stream);
        for (const auto &entry : state().streams) {
            if (entry.second->context == current()) streams.push_back(entry.second);
        }
    }
    for (const StreamRef &stream : streams) {
        if (const CUresult code = outcome_code(current(), stream->wait(Deadline(-1)))) return code;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    ENTER();
    CHECK_ARGUMENT(can != nullptr);
    if (!is_device(device) || !is_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer && knob(Knob::peer) != 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(flags == 0);
    const Hold hold(state().lock);
    const Context *other = context_of(peer);
    if (other == nullptr || !other->alive()) return CUDA_ERROR_INVALID_CONTEXT;
    if (other == current()) return CUDA_ERROR_INVALID_DEVICE;
    if (knob(Knob::peer) == 0) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    const uint64_t bit = uint64_t(1) << other->device;
    if ((current()->peers & bit) != 0) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    current()->peers |= bit;
    return CUDA_SUCCESS;
}

long standin_audit(void) {
    if (!forked()) audit();
    return complaints();
}
