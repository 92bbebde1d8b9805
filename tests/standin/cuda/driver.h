// Shared by the files of this library: its state, and the checks that every call begins with.
#pragma once

#include "../core/knobs.h"
#include "../core/memory.h"
#include "../core/share.h"
#include "../core/stream.h"
#include "cuda.h"

#include <atomic>
#include <map>
#include <mutex>
#include <set>

namespace cuda {

using namespace standin;

constexpr int devices_max = 64;

// 12040 or 12080. profile.cpp.
extern const int driver_version;

// The primary context of a device; the stand-in has no other kind.
struct Context {
    int device = 0;
    int retained = 0;
    std::atomic<uint64_t> peers{0}; // bit p: kernels may reach the memory of device p
    std::atomic<int> error{0};  // sticky: every call returns it from then on
    StreamRef stream;           // the default one

    bool alive() const { return retained != 0; }
};
struct Event {
    unsigned flags;
    RecordRef last;
};
struct Physical {
    std::shared_ptr<Backing> backing;
    size_t size;
    CUmemAllocationProp properties;
    int references = 1;
    int mappings = 0;
};
struct Import {
    uintptr_t base;
    int references;
};

struct State {
    std::recursive_mutex lock; // of what follows; taken before any lock of core, never after
    bool initialised = false;
    Context contexts[devices_max];
    std::map<void *, StreamRef> streams;
    std::set<Event *> events;
    std::set<Physical *> physical;
    Reservations reservations;
    std::map<uint64_t, std::string> exports;  // IPC names by the range's id
    std::map<std::string, Import> imports;    // by name
    std::map<void *, Context *> modules;
};
State &state();
using Hold = std::lock_guard<std::recursive_mutex>;

Context *current();
// Set during a function of cuLaunchHostFunc, which may not call the driver.
extern thread_local bool in_host_function;

CUresult enter_call(Call &call);
CUresult enter_with_context(Call &call);
#define ENTER()                                                                                                        \
    static Call call(__func__);                                                                                        \
    if (const CUresult refused = enter_call(call)) return refused
#define ENTER_WITH_CONTEXT()                                                                                           \
    static Call call(__func__);                                                                                        \
    if (const CUresult refused = enter_with_context(call)) return refused
#define CHECK_ARGUMENT(condition)                                                                                      \
    do {                                                                                                               \
        if (!(condition)) return CUDA_ERROR_INVALID_VALUE;                                                             \
    } while (0)

bool is_device(int device);
inline void *pointer(CUdeviceptr address) { return reinterpret_cast<void *>(address); }
CUcontext handle_of(Context *context);
Context *context_of(CUcontext handle); // null if it is none
// Returns the stream, of any context; null if it does not exist.
StreamRef stream_of(CUstream handle);
StreamRef new_stream(Context *context);
// Returns the context's error, or UNKNOWN for an aborted wait.
CUresult outcome_code(Context *context, Outcome outcome);
// Waits until no task uses the range, as freeing memory does.
void wait_unused(const Range &range);
// Frees the objects of a context that is released for good. The lock is held.
void end_context(Context *context);

} // namespace cuda
